"""`Tensor`: an array that remembers how it was made.

Every operation is a one-line call of a function in :mod:`minitransformer.functions`; the tape
behind ``backward`` is in :mod:`minitransformer.function`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from .device import Array, as_array, device_of, to_device

if TYPE_CHECKING:
    from .function import Context

Operand: TypeAlias = "Tensor | Array | float"
"""What stands beside a tensor in arithmetic."""
Dim: TypeAlias = "int | tuple[int, ...] | None"
"""The dimensions that a reduction takes away; None takes all."""


class Tensor:
    """A NumPy or CuPy array with a gradient.

    Tensors are values: no operation changes one. ``x += 1`` makes a new tensor and ``x[0] = 1`` is
    refused, so whatever a function saved for its backward still stands when the backward runs.
    Only optimizers, which know that no graph is alive, write to ``data``.

    Args:
        data: An array, which is not copied, a number, or nested sequences of numbers. Python
            floats become float32; an array keeps its dtype. A tensor gives its array, detached.
        requires_grad: Whether ``backward`` shall leave a gradient in ``grad``.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``; None leaves the data where it is.

    Attributes:
        data: The array.

    Raises:
        TypeError: A gradient was asked of a tensor that is not floating, or is no tensor.
        RuntimeError: The device is not available.

    Example:
        >>> x = Tensor([[1.0, 2.0]], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        Tensor([[2., 4.]], dtype=float32)
    """

    __slots__ = ("_grad", "_requires_grad", "data", "edge")
    data: Array
    # NumPy then leaves `array + tensor` to Tensor.__radd__.
    __array_ufunc__ = None

    def __init__(self, data: Any, requires_grad: bool = False, device: str | None = None) -> None:
        self.data = as_array(data.data if isinstance(data, Tensor) else data, device)
        self.requires_grad = requires_grad
        self._grad: Tensor | None = None
        self.edge: tuple[Context, int] | None = None  # the node that made it; a leaf has none

    @classmethod
    def wrap(cls, array: Any, edge: tuple[Context, int] | None = None) -> Tensor:
        """Return a function's output as a tensor, skipping the checks of the constructor."""
        tensor = cls.__new__(cls)
        tensor.data = np.asarray(array) if isinstance(array, np.generic) else array
        tensor._requires_grad = edge is not None and array.dtype.kind == "f"
        tensor._grad = None
        tensor.edge = edge
        return tensor

    # -- The array ---------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self.data.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """The number of elements (PyTorch's ``numel()``)."""
        return self.data.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda"``."""
        return device_of(self.data)

    def numpy(self) -> Array:
        """Return the elements as a NumPy array; on the CPU it shares the tensor's memory."""
        return to_device(self.data, "cpu")

    def item(self) -> float:
        """Return the only element as a Python number.

        Raises:
            ValueError: There is not exactly one element.
        """
        if self.size != 1:
            raise ValueError(f"item: expected a tensor with one element, got shape {self.shape}")
        number: float = self.data.item()
        return number

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self.data.tolist()

    def detach(self) -> Tensor:
        """Return the same array outside the tape."""
        return Tensor.wrap(self.data)

    def to(self, device: str | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
        """Return the tensor on another device or in another dtype, itself where nothing changes.

        Gradients flow back.

        Args:
            device: ``"cpu"``, ``"cuda"`` or ``"auto"``; None stays here.
            dtype: The dtype to convert to; None keeps it.

        Raises:
            RuntimeError: CUDA is not available; the message says what to install.
            TypeError: The dtype is not one of real numbers or booleans.
        """
        return F.to(self, device, dtype=dtype)

    # -- The tape ----------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor is part of the tape; a floating one can be made a leaf of it."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted and self.data.dtype.kind != "f":
            raise TypeError(
                f"Tensor: only floating tensors can require a gradient, got {self.data.dtype}; "
                "convert with .to(dtype=numpy.float32)"
            )
        self._requires_grad = wanted

    @property
    def grad(self) -> Tensor | None:
        """After ``backward``, the gradient of a leaf, added up over calls; else None."""
        return self._grad

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        if not (gradient is None or isinstance(gradient, Tensor)):
            raise TypeError(
                f"Tensor: grad is a Tensor or None, got {type(gradient).__name__}; "
                "wrap it: Tensor(...)"
            )
        self._grad = gradient

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded function made this tensor."""
        return self.edge is None

    def backward(
        self, gradient: Any = None, finished: Callable[[Tensor], object] | None = None
    ) -> None:
        """Add the gradient of this tensor to the ``grad`` of every leaf that it came from.

        What the functions saved stays alive with the tensor, so backward may run again; gradients
        add up. Gradients are not themselves differentiable.

        Args:
            gradient: The cotangent, in this tensor's shape. A tensor with one element has 1.
            finished: Called with each leaf whose ``grad`` has all that this call adds to it,
                while the call goes on: what shall be done with it can begin.

        Raises:
            RuntimeError: The tensor does not require a gradient, or has several elements and no
                ``gradient`` was given.
            ValueError: ``gradient`` has another shape.
        """
        if not self.requires_grad:
            raise RuntimeError(
                "backward: this tensor does not require a gradient; create an input with "
                "requires_grad=True, outside no_grad()"
            )
        if gradient is None:
            if self.size != 1:
                raise RuntimeError(
                    f"backward: a tensor of shape {self.shape} needs gradient=..., of that shape; "
                    "only a tensor with one element has a default"
                )
            gradient = np.ones(self.shape)
        cotangent = as_array(
            gradient.data if isinstance(gradient, Tensor) else gradient, self.device, self.dtype
        )
        if cotangent.shape != self.shape:
            raise ValueError(
                f"backward: expected a gradient of shape {self.shape}, got {cotangent.shape}"
            )
        backpropagate(self, cotangent, finished)

    def accumulate(self, gradient: Array) -> None:
        """Add an array that nobody else holds to ``grad``, without writing to the earlier one."""
        self._grad = Tensor.wrap(gradient if self._grad is None else self._grad.data + gradient)

    # -- Python ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        text = np.array2string(self.numpy(), separator=", ", prefix="Tensor(")
        where = "" if self.device == "cpu" else f", device={self.device!r}"
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({text}, dtype={self.dtype}{where}{grad})"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False and self.device != "cpu":
            raise ValueError(f"Tensor: from {self.device} NumPy gets a copy; copy=False has no way")
        return np.array(self.numpy(), dtype, copy=copy)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.edge is not None:
            raise TypeError(
                "Tensor: only leaves are copied and pickled; with this one would go all that made "
                "it, and gradients to copies of its leaves: take x.detach()"
            )
        return super().__reduce_ex__(protocol)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len: a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __getitem__(self, index: Any) -> Tensor:
        return F.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "Tensor: elements cannot be assigned, because a backward may still need the old ones; "
            "use functions.where or functions.masked_fill"
        )

    # -- Arithmetic --------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Tensor:
        return F.add(self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return F.add(other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return F.subtract(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return F.subtract(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return F.multiply(self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return F.multiply(other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return F.divide(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return F.divide(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return F.power(self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return F.power(other, self)

    def __matmul__(self, other: Tensor | Array) -> Tensor:
        return F.matmul(self, other)

    def __rmatmul__(self, other: Tensor | Array) -> Tensor:
        return F.matmul(other, self)

    def __neg__(self) -> Tensor:
        return F.negative(self)

    # Comparisons give boolean tensors without a gradient; a tensor hashes by identity.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None or isinstance(other, str):  # equals no tensor, says Python then
            return NotImplemented
        return F.compare("equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None or isinstance(other, str):
            return NotImplemented
        return F.compare("not_equal", self, other)

    def __lt__(self, other: Any) -> Tensor:
        return F.compare("less", self, other)

    def __le__(self, other: Any) -> Tensor:
        return F.compare("less_equal", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return F.compare("greater", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return F.compare("greater_equal", self, other)

    # -- Reductions and shapes ---------------------------------------------------------------

    def sum(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """See :func:`minitransformer.functions.sum`."""
        return F.sum(self, dim, keepdim)

    def mean(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """See :func:`minitransformer.functions.mean`."""
        return F.mean(self, dim, keepdim)

    def var(self, dim: Dim = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
        """See :func:`minitransformer.functions.var`."""
        return F.var(self, dim, correction=correction, keepdim=keepdim)

    def amax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """See :func:`minitransformer.functions.amax`."""
        return F.amax(self, dim, keepdim)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """See :func:`minitransformer.functions.argmax`."""
        return F.argmax(self, dim, keepdim)

    @property
    def T(self) -> Tensor:
        """The tensor with its dimensions reversed."""
        return F.permute(self, *reversed(range(self.ndim)))

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """See :func:`minitransformer.functions.reshape`."""
        return F.reshape(self, *shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """See :func:`minitransformer.functions.flatten`."""
        return F.flatten(self, start_dim, end_dim)

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """See :func:`minitransformer.functions.transpose`."""
        return F.transpose(self, dim0, dim1)

    def permute(self, *dims: int | tuple[int, ...]) -> Tensor:
        """See :func:`minitransformer.functions.permute`."""
        return F.permute(self, *dims)

    def unsqueeze(self, dim: int) -> Tensor:
        """See :func:`minitransformer.functions.unsqueeze`."""
        return F.unsqueeze(self, dim)

    def squeeze(self, dim: int) -> Tensor:
        """See :func:`minitransformer.functions.squeeze`."""
        return F.squeeze(self, dim)

    def expand(self, *shape: int | tuple[int, ...]) -> Tensor:
        """See :func:`minitransformer.functions.expand`."""
        return F.expand(self, *shape)

    def split(self, size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
        """See :func:`minitransformer.functions.split`."""
        return F.split(self, size, dim)


# The functions need Tensor and Tensor needs the functions: one of the two comes last.
from . import functions as F  # noqa: E402
from .function import backpropagate  # noqa: E402
