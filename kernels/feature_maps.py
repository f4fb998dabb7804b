r"""Feature maps phi of linear attention, as device functions for kernels.

Linear attention replaces exp(q.k) by phi(q).phi(k) with positive phi, here elu(x) + 1 (S0, S1):

    phi(x)  = x + 1   (x > 0)        exp(x)   (x <= 0)                      (1)
    phi'(x) = 1       (x > 0)        exp(x)   (x <= 0)                      (2)

Never write it as `elu(x) + 1`: for x = -17.5 the exp(x) - 1 + 1 of that form is 0 in float32, where
exp(x) is 2.5e-8 with seven correct digits.

The device functions are made for a dtype, so that their constants have it: a bare `x + 1` would be
computed in float64, which a GPU does 32 to 64 times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .cuda import DeviceFunction, cuda


class FeatureMap(NamedTuple):
    """A feature map and its derivative, both device functions of one number."""

    value: DeviceFunction
    derivative: DeviceFunction


def _elu(real: Any) -> FeatureMap:
    @cuda.jit(device=True)
    def elu(x):  # type: ignore[no-untyped-def]
        return x + real(1) if x > real(0) else math.exp(x)  # (1)

    @cuda.jit(device=True)
    def elu_derivative(x):  # type: ignore[no-untyped-def]
        return real(1) if x > real(0) else math.exp(x)  # (2)

    return FeatureMap(elu, elu_derivative)


def _identity(real: Any) -> FeatureMap:
    @cuda.jit(device=True)
    def identity(x):  # type: ignore[no-untyped-def]
        return x

    @cuda.jit(device=True)
    def one(x):  # type: ignore[no-untyped-def]
        return real(1)

    return FeatureMap(identity, one)


FEATURE_MAPS: dict[str, Callable[[Any], FeatureMap]] = {"elu": _elu, "identity": _identity}


@cache
def feature_map(name: str, real: Any) -> FeatureMap:
    """The feature map of a name, for numbers of Numba's type `real` (float32 or float64).

    Raises:
        ValueError: there is no such feature map.
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature_map must be one of {sorted(FEATURE_MAPS)}, got {name!r}")
    return FEATURE_MAPS[name](real)
