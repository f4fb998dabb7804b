"""Optimizers, gradient clipping, and learning rates as functions of the step.

A learning rate is a number, or a function from the number of steps taken so far to a number, and
such functions compose:

    >>> from minitransformer import nn, optim
    >>> rate = optim.warmup(10, optim.cosine(1e-3, steps=100))
    >>> [round(rate(step), 6) for step in (0, 9, 50, 100)]
    [0.0001, 0.00098, 0.0005, 0.0]
    >>> optimizer = optim.Adam(nn.Linear(4, 4).parameters(), lr=rate)
    >>> optimizer.learning_rate
    0.0001
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from minitransformer_kernels.checks import finite, flag, is_array
from minitransformer_kernels.layers import optimizer as updates

from .device import Array, array_module, to_numpy
from .functions.checks import widened
from .tensor import Tensor

SMALL = 2048  # elements
Schedule = Callable[[int], float]


class Optimizer:
    """What optimizers share: the parameters, the learning rate, and state that survives a restart.

    A subclass names its moments, the arrays that it keeps beside each parameter, and overrides
    `_update`.

    Args:
        parameters: the tensors to optimize, changed in place by `step`.
        lr: the learning rate, or a function of the number of steps taken so far.
        weight_decay: λ, added to each gradient as λ times its parameter.

    Raises:
        ValueError: there are no parameters, one is there twice, or a setting is out of its range.
        TypeError: something else than leaf tensors was passed.
    """

    moments: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, parameters: Iterable[Tensor], lr: float | Schedule, weight_decay: float = 0.0
    ) -> None:
        self.parameters = _tensors(type(self).__name__, parameters)
        self.lr = lr
        self.weight_decay = _not_negative(self, "weight_decay", weight_decay)
        self.steps = 0
        self.counts = [0] * len(self.parameters)  # updates of each: it may have had no gradient
        self._state: dict[str, Array] = {}
        self._joined: list[_Together] | None = None
        self._check_parameters()
        if not callable(lr):
            _not_negative(self, "lr", lr)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step.

        Raises:
            TypeError: a schedule gives no number.
            ValueError: it gives one that is not finite.
        """
        rate = self.lr(self.steps) if callable(self.lr) else self.lr
        expected = f"a finite number at step {self.steps}"
        return float(finite(type(self).__name__, "lr", rate, expected))

    def zero_grad(self) -> None:
        """Forget every parameter's gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient, in place.

        Raises:
            TypeError: data is no array of floating numbers.
            ValueError: a parameter's data does not fit its gradient, or what is kept beside it.
        """
        rate = self.learning_rate
        self.steps += 1
        before = tuple(self.counts)
        for together in self._small():
            together.update(self, rate)
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None and self.counts[index] == before[index]:
                try:
                    moments = (self._moment(name, index) for name in self.moments)
                    arrays = parameter.data, self._gradient(index), *moments
                    self._update(rate, before[index] + 1, *arrays)
                    self.counts[index] += 1
                except (TypeError, ValueError) as error:
                    error.add_note(
                        f"in {type(self).__name__}.step, of parameter {index}; if its data was "
                        "replaced, build the optimizer again"
                    )
                    raise

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return a copy of all that a resumed run needs to continue bit for bit."""
        moments = {
            f"{name}.{index}": to_numpy(self._moment(name, index)).copy()
            for name in self.moments
            for index in range(len(self.parameters))
        }
        return {"steps": np.array([self.steps]), "counts": np.array(self.counts), **moments}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a `state_dict` of the same kind of optimizer over the same parameters.

        Raises:
            ValueError: the state has other entries, shapes or dtypes; then nothing is loaded.
        """
        own = self.state_dict()
        wrong = [
            f"{key} is {_kind(state.get(key))}, expected {_kind(own.get(key))}"
            for key in sorted(own.keys() | state.keys())
            if _kind(state.get(key)) != _kind(own.get(key))
        ]
        if wrong:
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: the state does not fit: "
                f"{'; '.join(wrong)}. Build the optimizer as it was when the state was saved"
            )
        self.steps, self.counts = int(state["steps"][0]), state["counts"].tolist()
        for key in own.keys() - {"steps", "counts"}:
            moment = self._state[key]
            moment[...] = array_module(moment).asarray(state[key])

    def _update(
        self, rate: float, count: int, parameter: Array, gradient: Array, *moments: Array
    ) -> None:
        """Change a parameter, and its moments, in place; it is its `count`-th update, from 1."""
        raise NotImplementedError(f"{type(self).__name__} does not override _update")

    def _small(self) -> list["_Together"]:
        """Return the small parameters, those of one dtype and as many updates together.

        They are gathered anew if data was replaced, or if some were without a gradient.
        """
        if self._joined is None or not all([together.holds(self) for together in self._joined]):
            arrays = {index: parameter.data for index, parameter in enumerate(self.parameters)}
            small = [i for i, x in arrays.items() if _is_small(x) and self._moments_fit(i, x)]
            indices: dict[Any, list[int]] = {}
            end = 0  # of two parameters in the same memory, the second is updated by itself
            for start, index in sorted((arrays[i].ctypes.data, i) for i in small):
                if start >= end:
                    kind = arrays[index].dtype, self.counts[index]
                    indices.setdefault(kind, []).append(index)
                end = max(end, start + arrays[index].nbytes)
            self._joined = [_Together(self, sorted(group)) for group in indices.values()]
        return self._joined

    def _moments_fit(self, index: int, array: Array) -> bool:
        moments = [self._moment(name, index) for name in self.moments]
        return all(x.shape == array.shape and x.dtype == array.dtype for x in moments)

    def _gradient(self, index: int) -> Array:
        """Return a parameter's gradient in one piece, having checked that both have arrays."""
        parameter = self.parameters[index]
        for name, tensor in ("data", parameter), ("grad.data", parameter.grad):
            array = getattr(tensor, "data", None)
            if not is_array(array):
                raise TypeError(
                    f"{type(self).__name__}: {name} must be an array, got {type(array).__name__}"
                )
        gradient = parameter.grad.data  # type: ignore[union-attr]
        in_one_piece: Array = array_module(gradient).ascontiguousarray(gradient)
        return in_one_piece.reshape(gradient.shape)  # a number has become a row

    def _moment(self, name: str, index: int) -> Array:
        """Return a parameter's moment, made at its first use: by then the device is settled."""
        key = f"{name}.{index}"
        if key not in self._state:
            parameter = self.parameters[index].data
            self._state[key] = array_module(parameter).zeros(parameter.shape, parameter.dtype)
        return self._state[key]

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if not self.parameters:
            raise ValueError(
                f"{name}: expected at least one parameter, got none; pass model.parameters()"
            )
        if not all(parameter.is_leaf for parameter in self.parameters):
            raise TypeError(
                f"{name}: parameters must be tensors that no function made, got some that one "
                "made; pass model.parameters()"
            )
        if len(set(map(id, self.parameters))) < len(self.parameters):
            raise ValueError(
                f"{name}: expected each parameter once, got some twice; pass model.parameters(), "
                "which yields a shared one once"
            )


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum.

    Args:
        parameters, lr, weight_decay: see `Optimizer`.
        momentum: μ; zero keeps no buffer.
        nesterov: look ahead along the momentum.

    Source: Sutskever et al. 2013; the equations are in `minitransformer_kernels.layers.optimizer`.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Schedule = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.momentum = _not_negative(self, "momentum", momentum)
        self.nesterov = flag("SGD", "nesterov", nesterov)
        if nesterov and not momentum:
            raise ValueError(
                "SGD: nesterov looks ahead along the momentum, got momentum 0; set it above 0"
            )
        if momentum:
            self.moments = ("buffer",)  # type: ignore[misc]

    def _update(
        self, rate: float, count: int, parameter: Array, gradient: Array, *moments: Array
    ) -> None:
        decay = self.weight_decay
        if moments:
            updates.momentum_descend(
                parameter,
                gradient,
                *moments,
                rate=rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=decay,
            )
        else:
            updates.descend(parameter, gradient, rate=rate, weight_decay=decay)


class Adam(Optimizer):
    """Adam: each step is the mean gradient over the root of the mean squared gradient.

    Args:
        parameters, lr, weight_decay: see `Optimizer`.
        betas: β₁ and β₂, what the means keep at each step, in [0, 1).
        eps: added to the root, so that no step divides by zero.

    Source: Kingma and Ba 2015, algorithm 1.
    """

    moments = ("first_moment", "second_moment")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.betas = _decays(self, betas)
        self.eps = _not_negative(self, "eps", eps)

    def _update(
        self, rate: float, count: int, parameter: Array, gradient: Array, *moments: Array
    ) -> None:
        size, root_weight, eps = self._coefficients(count)
        updates.moment_descend(
            parameter,
            gradient,
            *moments,
            rate=rate * size,
            betas=self.betas,
            root_weight=root_weight,
            eps=eps,
            weight_decay=self.weight_decay,
        )

    def _corrections(self, count: int) -> tuple[float, float]:
        """What the means, which start at zero, have absorbed of all the weight: 1 - β^t."""
        return 1 - self.betas[0] ** count, 1 - self.betas[1] ** count

    def _coefficients(self, count: int) -> tuple[float, float, float]:
        """Return a, r and ε of the step a lr m / (r √v + ε), at a parameter's update t."""
        correction1, correction2 = self._corrections(count)
        return 1 / correction1, 1 / math.sqrt(correction2), self.eps


class RAdam(Adam):
    """Rectified Adam: warms up by itself, as far as the variance of the step size calls for.

    While too few gradients have been seen for that variance to exist, it is gradient descent with
    momentum. The arguments are those of `Adam`.

    Source: Liu et al. 2020, "On the variance of the adaptive learning rate", algorithm 2.
    """

    def _coefficients(self, count: int) -> tuple[float, float, float]:
        correction1, correction2 = self._corrections(count)
        longest = 2 / (1 - self.betas[1]) - 1  # ρ_∞, the length of the average at infinity
        length = longest - 2 * count * (1 - correction2) / correction2  # ρ_t
        if length <= 5:  # 4 in the paper; 5 in its authors' code and in PyTorch
            return 1 / correction1, 0.0, 1.0
        rectification = (length - 4) * (length - 2) * longest
        rectification /= (longest - 4) * (longest - 2) * length  # r_t²
        return math.sqrt(rectification * correction2) / correction1, 1.0, self.eps


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> float:
    """Scale all gradients together, in place, so that their joint norm is at most `max_norm`.

    Returns:
        The Euclidean norm before clipping, of all gradients as one vector. NaN and infinity are
        returned, and not hidden: nothing is scaled then.

    Raises:
        TypeError: something else than tensors was passed.
        ValueError: `max_norm` is not above 0.

    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks".
    """
    if not isinstance(max_norm, int | float | np.number) or not max_norm > 0:
        raise ValueError(
            f"clip_grad_norm_: max_norm must be above 0, got {max_norm}; "
            "to switch clipping off, do not call it"
        )
    tensors = _tensors("clip_grad_norm_", parameters)
    gradients = [p.grad.data for p in tensors if p.grad is not None]
    if not gradients:
        return 0.0
    norm = _joint_norm([widened(gradient) for gradient in gradients])
    if norm in (0.0, math.inf):  # squares that float32 does not hold
        norm = _joint_norm([gradient.astype(np.float64) for gradient in gradients])
    if max_norm < norm < math.inf:
        for gradient in gradients:
            gradient *= max_norm / norm
    return norm


def _joint_norm(arrays: list[Array]) -> float:
    squares = [array_module(array).vdot(array, array) for array in arrays]
    # They become numbers in one copy: a GPU is waited for once.
    return math.sqrt(sum(array_module(squares[0]).stack(squares).tolist()))


def _tensors(function: str, parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    """Return parameters as a list, having checked that they are tensors; one may come alone."""
    if isinstance(parameters, Tensor):
        return [parameters]
    tensors = list(parameters) if np.iterable(parameters) else [parameters]
    for tensor in tensors:
        if not (np.iterable(parameters) and isinstance(tensor, Tensor)):
            raise TypeError(
                f"{function}: parameters must be tensors, got {type(tensor).__name__}; pass "
                "model.parameters()"
            )
    return tensors


def constant(lr: float) -> Schedule:
    """Return the same rate at every step."""
    return lambda step: lr


def warmup(steps: int, then: Schedule) -> Schedule:
    """Rise linearly, over so many steps, to another schedule, which counts from step 0 too."""
    if not callable(then):
        raise TypeError(
            f"warmup: expected a schedule, such as optim.cosine(...), got {then!r}; "
            "a constant one is lambda step: rate"
        )
    return lambda step: then(step) * min(1.0, (step + 1) / max(1, steps))


def cosine(lr: float, steps: int, final: float = 0.0) -> Schedule:
    """Fall along half a cosine from `lr` at step 0 to `final` at step `steps`, and stay there.

    Source: Loshchilov and Hutter 2017, "SGDR", equation (5).
    """
    _at_least_one("cosine", "steps", steps)
    return lambda step: final + (lr - final) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def step_decay(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """Multiply the rate by a factor every so many steps."""
    _at_least_one("step_decay", "every", every)
    return lambda step: lr * factor ** (step // every)


def inverse_sqrt(lr: float, warmup_steps: int = 4000) -> Schedule:
    """Rise linearly to `lr` at step `warmup_steps`, then fall with the root of the step.

    Source: Vaswani et al. 2017, equation (3).
    """
    _at_least_one("inverse_sqrt", "warmup_steps", warmup_steps)
    return lambda step: lr * min((step + 1) / warmup_steps, math.sqrt(warmup_steps / (step + 1)))


def noam(d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> Schedule:
    """The rate of the first transformer: `inverse_sqrt`, highest for narrow models.

    Source: Vaswani et al. 2017, equation (3).
    """
    _at_least_one("noam", "d_model", d_model)
    _at_least_one("noam", "warmup_steps", warmup_steps)
    return inverse_sqrt(factor / math.sqrt(d_model * warmup_steps), warmup_steps)


class _Together:
    """Small parameters of one dtype that one launch updates: to begin one takes longest.

    They have had equally many updates. For a launch they are copied one after the other into one
    array, and back. Their moments stay in such arrays: what the optimizer holds are views.
    """

    def __init__(self, optimizer: Optimizer, indices: list[int]) -> None:
        self._indices = indices
        self._tensors = [optimizer.parameters[index] for index in indices]
        self._arrays = [tensor.data for tensor in self._tensors]
        self._shapes = [array.shape for array in self._arrays]
        self._rows = [array.reshape(-1) for array in self._arrays]
        self._parameters, self._gradients = (np.concatenate(self._rows) for _ in range(2))
        ends = list(accumulate(row.size for row in self._rows))
        self._parts = np.split(self._parameters, ends[:-1])
        self._moments = []
        for name in optimizer.moments:
            earlier = [optimizer._moment(name, index) for index in indices]
            self._moments.append(np.concatenate([moment.reshape(-1) for moment in earlier]))
            views = np.split(self._moments[-1], ends[:-1])
            for index, view, moment in zip(indices, views, earlier, strict=True):
                optimizer._state[f"{name}.{index}"] = view.reshape(moment.shape)

    def holds(self, optimizer: Optimizer) -> bool:
        """Whether the parameters have the arrays that they had; the rows of a copy are no views."""
        if len({optimizer.counts[index] for index in self._indices}) > 1:
            return False
        pairs = zip(self._tensors, self._arrays, strict=True)
        same = [tensor.data is array and array.flags.writeable for tensor, array in pairs]
        return all(same) and self._rows[0].base is not None

    def update(self, optimizer: Optimizer, rate: float) -> None:
        """Update the parameters, unless a gradient is missing or does not fit."""
        gradients: list[Any] = [getattr(tensor.grad, "data", None) for tensor in self._tensors]
        if [getattr(gradient, "shape", None) for gradient in gradients] != self._shapes:
            return
        dtype = self._parameters.dtype
        if not all([type(x) is np.ndarray and x.dtype == dtype for x in gradients]):
            return
        np.concatenate(gradients, axis=None, out=self._gradients)
        np.concatenate(self._rows, out=self._parameters)
        count = optimizer.counts[self._indices[0]] + 1
        optimizer._update(rate, count, self._parameters, self._gradients, *self._moments)
        for row, part in zip(self._rows, self._parts, strict=True):
            row[:] = part
        for index in self._indices:
            optimizer.counts[index] = count


def _is_small(array: Array) -> bool:
    """Whether a parameter is updated sooner than a launch begins."""
    return (
        type(array) is np.ndarray
        and 0 < array.size <= SMALL
        and array.dtype.kind == "f"
        and array.flags.carray  # in one piece, and may be written to
    )


def _kind(array: NDArray[Any] | None) -> str:
    return "absent" if array is None else f"{np.shape(array)} {np.asarray(array).dtype}"


def _not_negative(optimizer: Optimizer, name: str, value: float) -> float:
    function, expected = type(optimizer).__name__, "a finite number, 0 or more"
    if finite(function, name, value, expected) < 0:
        raise ValueError(f"{function}: {name} must be {expected}, got {value}")
    return value


def _decays(optimizer: Optimizer, betas: tuple[float, float]) -> tuple[float, float]:
    numbers = tuple(betas) if np.iterable(betas) else ()
    real = [isinstance(x, int | float | np.floating) and 0 <= x < 1 for x in numbers]
    if real != [True, True]:
        raise ValueError(
            f"{type(optimizer).__name__}: betas must be two numbers in [0, 1), got {betas}"
        )
    return numbers[0], numbers[1]


def _at_least_one(function: str, name: str, value: int) -> None:
    if not isinstance(value, int | float | np.number) or not value >= 1:
        raise ValueError(f"{function}: {name} must be 1 or more, got {value}")
