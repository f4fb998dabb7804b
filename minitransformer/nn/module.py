"""Module: a tree of parameters with names; and the containers that build such trees."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..device import array_module, to_device, to_numpy
from ..tensor import Tensor


class Parameter(Tensor):
    """A tensor that a module learns, or, without `requires_grad`, only keeps."""

    def __init__(self, data: Any, requires_grad: bool = True, device: str | None = None) -> None:
        super().__init__(data, requires_grad=requires_grad, device=device)


class Module:
    """A layer or a model: whatever holds parameters and computes with them.

    The attributes are the tree: a `Parameter` is learned and saved, a `Module` is a branch. A
    subclass overrides `forward`, and its instances are called like functions.

    >>> from minitransformer import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias']
    >>> model
    Sequential(  # 9 parameters
      (0): Linear(in_features=2, out_features=3, bias=True)  # 9 parameters
      (1): ReLU()
    )
    """

    training: bool = True

    forward: Callable[..., Tensor]

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute; what is passed is up to `forward`."""
        return self.forward(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """Yield the modules directly below, with their names."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """Yield this module and every one below, with its path, which begins by `prefix`."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator["Module"]:
        """Yield this module and every one below."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield every parameter with its path; one that is shared, once."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{prefix}.{name}" if prefix else name, value

    def parameters(self) -> Iterator[Parameter]:
        """Yield every parameter; one that is shared, once."""
        return (parameter for _, parameter in self.named_parameters())

    def num_parameters(self) -> int:
        """Return how many numbers the module learns."""
        return sum(p.data.size for p in self.parameters() if p.requires_grad)

    def train(self, mode: bool = True) -> Self:
        """Switch to training, where dropout drops; or, by False, to evaluation."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch to evaluation, where dropout passes everything."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget every parameter's gradient."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self, device: str) -> Self:
        """Move every parameter to a device, "cpu" or "cuda", in place; gradients are forgotten."""
        for parameter in self.parameters():
            parameter.data = to_device(parameter.data, device)
            parameter.grad = None
        return self

    @property
    def device(self) -> str:
        """Where the parameters are; a module without any is at home on the CPU."""
        return next((parameter.device for parameter in self.parameters()), "cpu")

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return a NumPy copy of every parameter, by its path."""
        return {name: to_numpy(p.data).copy() for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set every parameter, in place, from a `state_dict` of a module built like this one.

        Raises:
            ValueError: paths are missing or unknown, shapes differ, or what is there are no real
                numbers; then nothing is loaded.
        """
        own = dict(self.named_parameters())
        complaints = [
            *(f"missing {name}" for name in own if name not in state),
            *(f"unexpected {name}" for name in state if name not in own),
            *(
                f"{name} has shape {np.shape(state[name])}, expected {parameter.shape}"
                for name, parameter in own.items()
                if name in state and np.shape(state[name]) != parameter.shape
            ),
            *(
                f"{name} has dtype {_dtype(state[name])}, expected {parameter.dtype}"
                for name, parameter in own.items()
                if name in state and _dtype(state[name]).kind not in "fiub"
            ),
        ]
        if complaints:
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: the state does not fit: "
                f"{'; '.join(complaints)}. Build the module as it was when the state was saved"
            )
        for name, parameter in own.items():
            parameter.data[...] = array_module(parameter.data).asarray(state[name])

    def extra_repr(self) -> str:
        """Return what stands between the parentheses of this module's line."""
        return ""

    def __repr__(self) -> str:
        count = self.num_parameters()
        note = f"  # {count:,} parameters" if count else ""
        children = [f"({name}): {child!r}" for name, child in self.named_children()]
        if not children:
            return f"{type(self).__name__}({self.extra_repr()}){note}"
        body = "\n".join(children).replace("\n", "\n  ")
        return f"{type(self).__name__}({self.extra_repr()}{note}\n  {body}\n)"


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = getattr(value, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) else np.asarray(value).dtype


class ModuleList(Module):
    """Modules in a list, named by their position."""

    def __init__(self, modules: Any = ()) -> None:
        for index, module in enumerate(modules):
            if not isinstance(module, Module):
                raise TypeError(
                    f"{type(self).__name__}: item {index} must be a Module, got "
                    f"{type(module).__name__}; wrap a function in a Module's forward"
                )
            setattr(self, str(index), module)

    def __len__(self) -> int:
        return sum(1 for _ in self.named_children())

    def __iter__(self) -> Iterator[Any]:
        return (module for _, module in self.named_children())

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]


class Sequential(ModuleList):
    """Modules that feed one another, first to last."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """Pass `x` through every module in turn."""
        for module in self:
            x = module(x)
        return x
