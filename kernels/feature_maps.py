r"""Feature maps phi of linear attention, as device functions for kernels.

Linear attention replaces exp(q.k) by phi(q).phi(k) with positive phi, here elu(x) + 1 (S0, S1):

    phi(x)  = x + 1   (x > 0)        exp(x)   (x <= 0)                      (1)
    phi'(x) = 1       (x > 0)        exp(x)   (x <= 0)                      (2)

Never write it as `elu(x) + 1`: for x = -17.5 the exp(x) - 1 + 1 of that form is 0 in float32, where
exp(x) is 2.5e-8 with seven correct digits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .cuda import DeviceFunction, cuda


class FeatureMap(NamedTuple):
    """A feature map and its derivative, both device functions of one number."""

    value: DeviceFunction
    derivative: DeviceFunction


@cuda.jit(device=True)
def _elu(x):  # type: ignore[no-untyped-def]
    return x + type(x)(1) if x > 0 else math.exp(x)  # (1)


@cuda.jit(device=True)
def _elu_derivative(x):  # type: ignore[no-untyped-def]
    return type(x)(1) if x > 0 else math.exp(x)  # (2)


@cuda.jit(device=True)
def _identity(x):  # type: ignore[no-untyped-def]
    return x


@cuda.jit(device=True)
def _one(x):  # type: ignore[no-untyped-def]
    return type(x)(1)


FEATURE_MAPS = {
    "elu": FeatureMap(_elu, _elu_derivative),
    "identity": FeatureMap(_identity, _one),
}


def feature_map(name: str) -> FeatureMap:
    """The feature map of a name.

    Raises:
        ValueError: there is no such feature map.
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature_map must be one of {sorted(FEATURE_MAPS)}, got {name!r}")
    return FEATURE_MAPS[name]
