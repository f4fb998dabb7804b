"""`gradcheck`: compares a hand-written backward with the differences that a forward makes.

For a random cotangent c the backward claims the gradient of ``L(x) = sum(c f(x))``. Two claims are
tried in float64, by central differences ``(L(x + h v) - L(x - h v)) / 2h``, whose error is of order
h² and rounding / h: each partial derivative (v one element), and the derivative along random
directions through all inputs at once. The cotangent is random because an even one hides mistakes:
the rows of a softmax sum to one, so a backward of zeros is right for ``sum``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import functions as F
from .device import Array
from .tensor import Tensor


class GradientError(AssertionError):
    """A backward that does not belong to its forward."""


def gradcheck(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    step: float = 1e-5,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    elementwise: bool = True,
    directions: int = 3,
    seed: int = 0,
) -> bool:
    """Check every gradient of a function at one point.

    Args:
        function: Takes tensors and returns a tensor or nested tuples of tensors. It must be smooth
            within ``step`` of the point, and give the same result each time.
        inputs: Its positional arguments. Floating ones are checked, in float64.
        step: h, in units of the inputs.
        rtol: Tolerance relative to each derivative.
        atol: Tolerance for derivatives near zero.
        elementwise: Whether to try each element, at two calls an element, or directions only.
        directions: How many random directions to try.
        seed: Of the cotangents and directions.

    Returns:
        True; what does not hold is raised, so that the report is not lost.

    Raises:
        GradientError: A gradient is wrong; the message names the worst element. Also when the
            function changes its inputs, is random, or does not compute in float64.
        TypeError: There is no floating input or output.

    Source: the cotangent as in JAX's ``check_grads``, the element-wise form as in PyTorch.

    >>> gradcheck(lambda x, y: x * y, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    True
    """
    check = _Check(function, inputs, step, np.random.default_rng(seed))
    gradients = check.gradients()
    for gradient, other in zip(gradients, check.gradients_one_by_one(), strict=True):
        if not np.allclose(gradient, other, rtol, atol, equal_nan=True):
            raise GradientError(
                "gradcheck: backward of all outputs at once differs from the sum of one at a time; "
                "gradients of unused outputs arrive as None and stand for zero"
            )
    if elementwise:
        for number, gradient in zip(check.checked, gradients, strict=True):
            difference = check.partial_derivatives(number)
            _compare(f"of input {number}", gradient, difference, atol + rtol * abs(difference))
    for _ in range(directions):
        steps = check.random_direction()
        claimed = sum(np.vdot(g, v) for g, v in zip(gradients, steps, strict=True))
        length = sum(abs(np.vdot(g, g)) for g in gradients) ** 0.5
        slope = check.slope(steps)
        allowed = atol * (1 + length) + rtol * abs(slope)
        _compare("along a random direction", np.array(claimed), np.array(slope), allowed)
    return True


class _Check:
    """One function at one point, with one random cotangent for each of its outputs."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        step: float,
        generator: np.random.Generator,
    ) -> None:
        self.function, self.step, self.generator = function, step, generator
        self.inputs = [_float64(x) if _is_floating(x) else x for x in inputs]
        self.checked = [i for i, x in enumerate(inputs) if _is_floating(x)]
        self.point = [self.inputs[i].copy() for i in self.checked]
        if not self.point:
            raise TypeError("gradcheck: expected floating arrays or tensors among the inputs")
        outputs = self.call(self.point)
        if not outputs:
            raise TypeError("gradcheck: the function must return floating tensors")
        self.inputs_unchanged()
        drawn = [generator.standard_normal(y.shape) for y in outputs]
        self.cotangents = [x + np.copysign(0.2, x) for x in drawn]  # near zero, one hides mistakes
        if any(y.dtype != np.float64 for y in outputs):
            raise GradientError(
                "gradcheck: expected float64 outputs for float64 inputs, "
                f"got {[str(y.dtype) for y in outputs]}"
            )
        again = zip(outputs, self.call(self.point), strict=True)
        if not all(np.array_equal(y.numpy(), z.numpy(), equal_nan=True) for y, z in again):
            raise GradientError(
                "gradcheck: the function gave two results for one input; call manual_seed inside it"
            )

    def call(self, point: Sequence[Array | Tensor]) -> list[Tensor]:
        """Return the floating outputs at a point."""
        arguments = list(self.inputs)
        for number, value in zip(self.checked, point, strict=True):
            arguments[number] = value if isinstance(value, Tensor) else Tensor(value)
        return [y for y in _flatten(self.function(*arguments)) if y.dtype.kind == "f"]

    def leaves(self) -> list[Tensor]:
        """Return fresh tensors at the point."""
        return [Tensor(x, requires_grad=True) for x in self.point]

    def gradients(self) -> list[Array]:
        """Return what the tape says of ``L``, all cotangents going in together."""
        leaves = self.leaves()
        outputs = self.call(leaves)
        products = [F.sum(y * c) for y, c in zip(outputs, self.cotangents, strict=True)]
        total = F.sum(F.stack(products))
        if total.requires_grad:
            total.backward()
        self.inputs_unchanged()
        return [_gradient(leaf) for leaf in leaves]

    def gradients_one_by_one(self) -> list[Array]:
        """Return the same, one output at a time: each backward sees None for the others."""
        leaves = self.leaves()
        for output, cotangent in zip(self.call(leaves), self.cotangents, strict=True):
            if output.requires_grad:
                output.backward(cotangent)
        return [_gradient(leaf) for leaf in leaves]

    def slope(self, direction: Sequence[Array]) -> float:
        """Return the central difference of ``L`` along a direction."""
        ahead, behind = (
            self.call([x + h * v for x, v in zip(self.point, direction, strict=True)])
            for h in (self.step, -self.step)
        )
        # Differences first: L itself is large, and subtracting two of it would round more away.
        changes = zip(self.cotangents, ahead, behind, strict=True)
        rise = sum(np.vdot(c, y.numpy() - z.numpy()) for c, y, z in changes)
        return float(rise) / (2 * self.step)

    def partial_derivatives(self, number: int) -> Array:
        """Return the derivative of ``L`` by each element of an input."""
        direction = [np.zeros_like(x) for x in self.point]
        moving = direction[self.checked.index(number)]
        result: Array = np.empty_like(moving)
        for index in np.ndindex(moving.shape):
            moving[index] = 1
            result[index] = self.slope(direction)
            moving[index] = 0
        return result

    def random_direction(self) -> list[Array]:
        """Return a step for every input."""
        return [self.generator.standard_normal(x.shape) for x in self.point]

    def inputs_unchanged(self) -> None:
        """Refuse a function that wrote to what it was given."""
        for number, x in zip(self.checked, self.point, strict=True):
            if not np.array_equal(x, self.inputs[number]):
                raise GradientError(f"gradcheck: the function changes its input {number}")


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic) and value.dtype.kind == "f"


def _float64(value: Any) -> Array:
    return np.array(value.numpy() if isinstance(value, Tensor) else value, np.float64)


def _flatten(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested result."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, list | tuple):
        yield from itertools.chain.from_iterable(map(_flatten, result))


def _gradient(leaf: Tensor) -> Array:
    """Return a leaf's gradient; None stands for zero."""
    return np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()


def _compare(what: str, claimed: Array, measured: Array, allowed: Any) -> None:
    """Raise with the worst element where the backward's figure is not the difference's."""
    error = abs(claimed - measured)
    wrong = ~(error <= allowed)  # a NaN is wrong too
    if not wrong.any():
        return
    excess = np.where(np.isnan(error), np.inf, error / allowed)
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(excess), excess.shape))
    place = f" at {list(worst)}" if worst else ""
    raise GradientError(
        f"gradcheck: the gradient {what} is wrong{place}: backward gives {claimed[worst]:.9g}, "
        f"differences give {measured[worst]:.9g} (off by {error[worst]:.3g}, allowed "
        f"{np.broadcast_to(allowed, error.shape)[worst]:.3g}); "
        f"{int(wrong.sum())} of {wrong.size} wrong"
    )
