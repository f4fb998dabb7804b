"""Python's `round`, as Numba computes it on a GPU.

With digits that is done in float64, a float32's too, by scaling: `round(x, 2)` is the whole number
nearest to 100 x, a tie to the even one, over 100. So `round(float32(2.675), 2)` is 2.67, and 2.68
in float32 alone. A scaled number that no int64 holds becomes the nearest that does.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

__all__ = ["round"]

LARGEST_POWER = 22  # of 10, that is exact in float64
INT64 = 2.0**63


@register_jitable
def _whole(x):  # type: ignore[no-untyped-def]
    """The nearest whole number, as far as int64 goes, where zero has no sign."""
    return min(max(np.rint(x), -INT64), INT64) + 0.0


@register_jitable
def _rounded(x, digits):  # type: ignore[no-untyped-def]
    if digits < 0:
        power = 10.0**-digits
        return _whole(x / power) * power
    rest = max(digits - LARGEST_POWER, 0)
    power, more = 10.0 ** (digits - rest), 10.0**rest
    scaled = x * more * power
    return x if np.isinf(scaled) else _whole(scaled) / power / more


def round(x: Any, digits: Any = None) -> Any:
    """`round(x)` is an integer, `round(x, digits)` a number like x."""
    return builtins.round(x, digits)


@overload(round)
def _round_for(x, digits=None):  # type: ignore[no-untyped-def]
    if isinstance(x, types.Float) and isinstance(digits, types.Integer):

        def with_digits(x, digits=None):  # type: ignore[no-untyped-def]
            return x if np.isnan(x) or np.isinf(x) else type(x)(_rounded(np.float64(x), digits))

        return with_digits
    if digits is None or isinstance(digits, types.NoneType | types.Omitted):
        return lambda x, digits=None: builtins.round(x)
    return lambda x, digits=None: builtins.round(x, digits)
