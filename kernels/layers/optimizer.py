"""Optimizer updates: one launch reads and writes every array once.

Written with array expressions, Adam is a dozen passes over memory, each with a temporary as large
as the parameter. It does less than one flop a byte, so memory traffic is all that it costs. Fused,
one thread owns one element i and takes it through every step in registers: these kernels are plain
already, and nothing would make them faster. All updates happen in place.

With g the gradient, θ the parameter and λ the weight decay, g' = g + λ θ in each of these:

    gradient descent        θ ← θ - η g'                                                     (1)
    momentum μ              b ← μ b + g'                                                     (2)
                            θ ← θ - η (α g' + β b)      α, β = 0, 1, or with Nesterov 1, μ   (3)
    moments                 m ← β₁ m + (1 - β₁) g'                                           (4)
                            v ← β₂ v + (1 - β₂) g'²                                          (5)
                            θ ← θ - s m / (r √v + ε)                                         (6)

Equation (6) is Adam and RAdam alike: bias correction and rectification depend on the step alone, so
the host folds them into the numbers s, r and ε.
"""

import math
from itertools import combinations
from typing import Any

from ..arrays import Array, array_module, ceil_div
from ..checks import finite, fit
from ..cuda import cuda

THREADS = 512  # a bias of the usual width is one block


@cuda.jit
def descend_kernel(parameter, gradient, rate, decay):  # type: ignore[no-untyped-def]
    """Equation (1)."""
    i = cuda.grid(1)
    if i < parameter.size:
        parameter[i] -= rate * (gradient[i] + decay * parameter[i])


@cuda.jit
def momentum_kernel(  # type: ignore[no-untyped-def]
    parameter, gradient, buffer, rate, decay, momentum, gradient_weight, buffer_weight
):
    """Equations (2) and (3)."""
    i = cuda.grid(1)
    if i < parameter.size:
        slope = gradient[i] + decay * parameter[i]
        velocity = momentum * buffer[i] + slope
        buffer[i] = velocity
        parameter[i] -= rate * (gradient_weight * slope + buffer_weight * velocity)


@cuda.jit
def moments_kernel(  # type: ignore[no-untyped-def]
    parameter, gradient, first, second, rate, root_weight, eps, decay, keep1, take1, keep2, take2
):
    """Equations (4), (5) and (6)."""
    i = cuda.grid(1)
    if i < parameter.size:
        slope = gradient[i] + decay * parameter[i]
        mean = keep1 * first[i] + take1 * slope
        square = keep2 * second[i] + take2 * slope * slope
        first[i] = mean
        second[i] = square
        parameter[i] -= rate * mean / (root_weight * math.sqrt(square) + eps)


def descend(parameter: Array, gradient: Array, *, rate: float, weight_decay: float = 0.0) -> None:
    """Move the parameter against its gradient, equation (1).

    Args:
        parameter: any shape, contiguous, float32 or float64 (is modified by this function).
        gradient: as the parameter.
        rate: η.
        weight_decay: λ.

    Raises:
        TypeError: an array is something else.
        ValueError: arrays do not fit, share memory or have gaps, or a number is not finite.
    """
    _launch(descend_kernel, (rate, weight_decay), parameter, gradient=gradient)


def momentum_descend(
    parameter: Array,
    gradient: Array,
    buffer: Array,
    *,
    rate: float,
    momentum: float,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> None:
    """Move the parameter against a decaying sum of its gradients, equations (2) and (3).

    Args:
        parameter: any shape, contiguous, float32 or float64 (is modified by this function).
        gradient: as the parameter.
        buffer: b, as the parameter, zeros before the first step (is modified by this function).
        rate: η.
        momentum: μ.
        nesterov: look ahead along the new buffer.
        weight_decay: λ.

    Raises:
        TypeError: an array is something else.
        ValueError: arrays do not fit, share memory or have gaps, or a number is not finite.

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum".
    """
    weights = (1.0, momentum) if nesterov else (0.0, 1.0)
    numbers = rate, weight_decay, momentum, *weights
    _launch(momentum_kernel, numbers, parameter, gradient=gradient, buffer=buffer)


def moment_descend(
    parameter: Array,
    gradient: Array,
    first: Array,
    second: Array,
    *,
    rate: float,
    betas: tuple[float, float],
    root_weight: float,
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """Move the parameter by its first moment over the root of its second, equations (4) to (6).

    Args:
        parameter: any shape, contiguous, float32 or float64 (is modified by this function).
        gradient: as the parameter.
        first: m, as the parameter, zeros before the first step (is modified by this function).
        second: v, likewise (is modified by this function).
        rate: s.
        betas: β₁ and β₂.
        root_weight: r.
        eps: ε.
        weight_decay: λ.

    Raises:
        TypeError: an array, or betas, is something else.
        ValueError: arrays do not fit, share memory or have gaps, or a number is not finite.

    Source: Kingma and Ba 2015, algorithm 1; Liu et al. 2020, algorithm 2.
    """
    try:
        keep1, keep2 = betas
    except (TypeError, ValueError):
        raise TypeError(f"optimizer update: betas must be two numbers, got {betas!r}") from None
    numbers = rate, root_weight, eps, weight_decay, keep1, 1 - keep1, keep2, 1 - keep2
    _launch(moments_kernel, numbers, parameter, gradient=gradient, first=first, second=second)


def _launch(kernel: Any, numbers: tuple[float, ...], parameter: Array, **others: Array) -> None:
    """Launch one thread an element, every number in the arrays' own dtype.

    A Python float would make the whole expression float64.
    """
    arrays = {"parameter": parameter, **others}
    letters = " ".join(f"D{axis}" for axis in range(getattr(parameter, "ndim", 0)))
    fit("optimizer update", [(name, x, letters) for name, x in arrays.items()], {})
    changed = {name: x for name, x in arrays.items() if name != "gradient"}
    for name, x in changed.items():
        if not getattr(x.flags, "writeable", True):
            raise ValueError(f"optimizer update: {name} must not be read-only; pass a copy")
    for (one, x), (other, y) in combinations(changed.items(), 2):
        if array_module(x).may_share_memory(x, y):
            raise ValueError(
                f"optimizer update: {one} and {other} must not share memory; pass a copy of one"
            )
    for x in numbers:
        finite("optimizer update", "each number", x)
    size, number = parameter.size, parameter.dtype.type
    if size:
        rows = map(_flat, arrays, arrays.values())
        kernel[ceil_div(size, THREADS), THREADS](*rows, *map(number, numbers))


def _flat(name: str, array: Array) -> Array:
    """Return the array as one row; refuse to make a copy, whose update would be lost."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"optimizer update: expected contiguous arrays, got strides {array.strides} for shape "
            f"{array.shape} of {name}; pass numpy.ascontiguousarray(array)"
        )
    return array.reshape(-1)
