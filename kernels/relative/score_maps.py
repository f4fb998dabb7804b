"""What makes weights of the scores of relative positions, equations (4) to (6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ..arrays import chosen
from ..cuda import DeviceFunction, cuda
from ..feature_maps import feature_map

CAP = 60.0  # of the scores that exp maps: in float32 e^60 leaves room for sums, and for 1 / e^60


class ScoreMap(NamedTuple):
    """What makes a weight of a score, and its slope as a function of that weight."""

    value: DeviceFunction
    slope: DeviceFunction


def _softplus(real: Any) -> ScoreMap:
    @cuda.jit(device=True)
    def softplus_slope(f):  # type: ignore[no-untyped-def]
        return -math.expm1(-f)  # (4)

    return ScoreMap(feature_map("softplus", real).value, softplus_slope)


def _exp(real: Any) -> ScoreMap:
    highest = real(math.exp(CAP))

    @cuda.jit(device=True)
    def exp(b):  # type: ignore[no-untyped-def]
        return math.exp(b) if b < real(CAP) else highest  # (5)

    @cuda.jit(device=True)
    def exp_slope(f):  # type: ignore[no-untyped-def]
        return f if f < highest else real(0)  # (5)

    return ScoreMap(exp, exp_slope)


def _identity(real: Any) -> ScoreMap:
    return ScoreMap(*feature_map("identity", real))  # (6)


SCORE_MAPS: dict[str, Callable[[Any], ScoreMap]] = {
    "softplus": _softplus,
    "exp": _exp,
    "identity": _identity,
}


@cache
def score_map(name: str, real: Any) -> ScoreMap:
    """The score map of a name, for numbers of Numba's type `real` (float32 or float64)."""
    return chosen("score_map", name, SCORE_MAPS)(real)
