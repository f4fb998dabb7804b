r"""Feature maps phi of linear attention, as device functions for kernels.

Linear attention replaces exp(q.k) by phi(q).phi(k) with a phi that is nowhere negative, applied to
each number by itself. (Maps of whole rows are in `features`.)

"elu", elu(x) + 1, is positive everywhere and grows slowly (Katharopoulos et al. 2020; S0, S1):

    phi(x)  = x + 1   (x > 0)        exp(x)   (x <= 0)                      (1)
    phi'(x) = 1       (x > 0)        exp(x)   (x <= 0)                      (2)

Never write it as `elu(x) + 1`: for x = -17.5 the exp(x) - 1 + 1 of that form is 0 in float32, where
exp(x) is 2.5e-8 with seven correct digits.

"relu" gives exact zeros, the features of cosFormer (Qin et al. 2022):

    phi(x)  = max(x, 0)                                                     (3)
    phi'(x) = 1       (x > 0)        0        (x <= 0)                      (4)

A query without a positive number, or with none where a key has one, then weighs every key by
nothing: n = d = 0, and with the guards `clamp` and `add` the output is 0 / eps = 0.

"softplus" is a relu without the kink. As log(1 + exp(x)) it would overflow above 88 in float32, and
be 0 below -17; so

    phi(x)  = max(x, 0) + log1p(exp(-|x|))                                  (5)
    phi'(x) = 1 / (1 + exp(-x)), which is 1 / (1 + e) where x > 0
              and e / (1 + e) elsewhere, with e = exp(-|x|)                 (6)

"exp" makes features that weigh keys as sharply as a softmax does:

    phi(x)  = phi'(x) = exp(x)                                              (7)

In float32 it is infinite above 88, and a product of two such features already from 44 on: keep its
inputs small, or take FAVOR+ of `features`, whose exponents lose half the square of the row.

"identity" takes its inputs for features that somebody has made already.

The device functions are made for a dtype, so that their constants have it: a bare `x + 1` would be
computed in float64, which a GPU does 32 to 64 times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .arrays import Array, array_module, ceil_div, chosen, kernel_dtype
from .cuda import DeviceFunction, Kernel, cuda

THREADS = 256


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


def _relu(real: Any) -> FeatureMap:
    @cuda.jit(device=True)
    def relu(x):  # type: ignore[no-untyped-def]
        return x if x > real(0) else real(0)  # (3)

    @cuda.jit(device=True)
    def relu_derivative(x):  # type: ignore[no-untyped-def]
        return real(1) if x > real(0) else real(0)  # (4)

    return FeatureMap(relu, relu_derivative)


def _softplus(real: Any) -> FeatureMap:
    @cuda.jit(device=True)
    def softplus(x):  # type: ignore[no-untyped-def]
        return max(x, real(0)) + math.log1p(math.exp(-abs(x)))  # (5)

    @cuda.jit(device=True)
    def softplus_derivative(x):  # type: ignore[no-untyped-def]
        e = math.exp(-abs(x))
        return (real(1) if x > real(0) else e) / (real(1) + e)  # (6)

    return FeatureMap(softplus, softplus_derivative)


def _exp(real: Any) -> FeatureMap:
    @cuda.jit(device=True)
    def exp(x):  # type: ignore[no-untyped-def]
        return math.exp(x)  # (7)

    return FeatureMap(exp, exp)


def _identity(real: Any) -> FeatureMap:
    @cuda.jit(device=True)
    def identity(x):  # type: ignore[no-untyped-def]
        return x

    @cuda.jit(device=True)
    def one(x):  # type: ignore[no-untyped-def]
        return real(1)

    return FeatureMap(identity, one)


FEATURE_MAPS: dict[str, Callable[[Any], FeatureMap]] = {
    "elu": _elu,
    "relu": _relu,
    "softplus": _softplus,
    "exp": _exp,
    "identity": _identity,
}


@cache
def feature_map(name: str, real: Any) -> FeatureMap:
    """The feature map of a name, for numbers of Numba's type `real` (float32 or float64)."""
    return chosen("feature_map", name, FEATURE_MAPS)(real)


@cache
def _features_kernel(real: Any, name: str) -> Kernel:
    phi = feature_map(name, real).value

    @cuda.jit(fastmath=True)
    def features(x, result):  # type: ignore[no-untyped-def]
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < x.size:
            result[i] = phi(x[i])

    return features


def elementwise_features(x: Array, name: str) -> Array:
    """Phi of every number of a contiguous array; a thread makes one."""
    result = array_module(x).empty_like(x)
    kernel = _features_kernel(kernel_dtype(x), name)
    kernel[ceil_div(x.size, THREADS), THREADS](x.reshape(-1), result.reshape(-1))
    return result
