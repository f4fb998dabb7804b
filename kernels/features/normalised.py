r"""Features whose rows have size 1: a map of numbers, and then one number to divide the row by.

The delta rule of `delta` writes beta_t k_t r_t^T. For a long key that is a step too far: where
beta_t |k_t|^2 is above 2, residuals grow from token to token. So a row x becomes

    y_e = phi(x_e)              f_e = y_e / s                                              (1)
    s   = sum_e y_e             "sum"       (Schlag et al. 2021, section 4.2)
          sqrt(sum_e y_e^2)     "l2"        (Yang et al. 2024, as in `delta`)
          1                     "none"                                                     (2)

with phi of `feature_maps`. A row with s = 0 becomes zeros: it reads and writes nothing. "sum" is
for features that are nowhere negative; they then weigh the rows of a state by shares. Under "l2" a
key that is written with beta = 1 gives back its value exactly.

Backward, given g_e = dLoss/df_e. With p = sum_e g_e f_e, and one factor from (1) and (2) each,

    dy_e = (g_e - p) / s        "sum"
           (g_e - p f_e) / s    "l2"
           g_e                  "none"                                                     (3)
    dx_e = dy_e phi'(x_e)                                                                  (4)

The two kernels take the rows of all sequences as one array (rows, E), a warp to a row. Each thread
adds up some of a row's columns, and the warp adds up its threads' sums: that is all that a kernel
of a thread to a row would lack, so there is no plain one beside them.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ..arrays import Array, all_rows, array_module, ceil_div, kernel_dtype
from ..cuda import Kernel, cuda
from ..feature_maps import feature_map as get_feature_map
from ..guards import default_eps
from ..tiles import warp_sum

NORMALISERS = "none", "sum", "l2"
THREADS = 32, 8  # columns, rows


@cache
def _normalise_kernel(real: Any, feature_name: str) -> Kernel:
    columns, rows = THREADS
    phi = get_feature_map(feature_name, real).value

    @cuda.jit(fastmath=True)
    def normalise(x, normaliser, tiny, features, inverse):  # type: ignore[no-untyped-def]
        """Rows x (rows, E); features (rows, E) and 1 / s (rows,) are written to.

        `normaliser` counts in `NORMALISERS`; sums below `tiny` count as 0.
        """
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        i = cuda.blockIdx.x * rows + ty
        E = x.shape[1]

        total = real(0)
        if i < x.shape[0]:
            for e in range(tx, E, columns):
                y = phi(x[i, e])
                total += y * y if normaliser == 2 else y
        s = warp_sum(total)
        if normaliser == 2:
            s = math.sqrt(s)
        if normaliser == 0:
            s = real(1)
        over_s = real(0)
        if abs(s) > tiny:
            over_s = real(1) / s
        if i < x.shape[0]:
            for e in range(tx, E, columns):
                features[i, e] = phi(x[i, e]) * over_s  # (1)
            if tx == 0:
                inverse[i] = over_s

    return normalise


@cache
def _gradient_kernel(real: Any, feature_name: str) -> Kernel:
    columns, rows = THREADS
    slope = get_feature_map(feature_name, real).derivative

    @cuda.jit(fastmath=True)
    def gradient(g, x, features, inverse, normaliser, dx):  # type: ignore[no-untyped-def]
        """Arrays (rows, E), the inverse (rows,); the last is written to."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        i = cuda.blockIdx.x * rows + ty
        E = x.shape[1]

        total = real(0)
        if i < x.shape[0]:
            for e in range(tx, E, columns):
                total += g[i, e] * features[i, e]
        p = warp_sum(total)
        if normaliser == 0:
            p = real(0)
        if i < x.shape[0]:
            for e in range(tx, E, columns):
                by_s = p * features[i, e] if normaliser == 2 else p
                dx[i, e] = (g[i, e] - by_s) * inverse[i] * slope(x[i, e])  # (3), (4)

    return gradient


def forward(x: Array, *, feature_map: str, normalize: str) -> tuple[Array, Array]:
    """Normalised features, equations (1) and (2).

    Args:
        x: `(..., E)`, float32 or float64.
        feature_map: a name of `feature_maps`; "identity" where x holds features.
        normalize: "sum", "l2" or "none".

    Returns:
        The features `(..., E)`, and 1 / s `(...)` for `backward`, 0 where s is 0.

    Raises:
        TypeError: the array holds something else than float32 or float64.
        ValueError: there is no such feature map or normaliser.

    Example:
        >>> import numpy as np
        >>> forward(np.array([[3.0, 1.0]]), feature_map="identity", normalize="sum")[0].tolist()
        [[0.75, 0.25]]
    """
    if normalize not in NORMALISERS:
        raise ValueError(f"normalize must be one of {NORMALISERS}, got {normalize!r}")
    xp, real, rows = array_module(x), kernel_dtype(x), all_rows(x)
    features, inverse = xp.empty(x.shape, x.dtype), xp.empty(x.shape[:-1], x.dtype)
    _normalise_kernel(real, feature_map)[ceil_div(len(rows), THREADS[1]), THREADS](
        rows, NORMALISERS.index(normalize), default_eps("clamp", x.dtype), all_rows(features),
        inverse.reshape(-1),
    )  # fmt: skip
    return features, inverse


def backward(
    grad: Array, x: Array, features: Array, inverse: Array, *, feature_map: str, normalize: str
) -> Array:
    """The gradient of `forward`, equations (3) and (4).

    Args:
        grad: `(..., E)`, the gradient of the features.
        x: this and the rest as `forward` took and returned it.

    Returns:
        The gradient of x.
    """
    grad, rows, features = (all_rows(array) for array in (grad, x, features))
    dx = array_module(x).empty(x.shape, x.dtype)
    _gradient_kernel(kernel_dtype(x), feature_map)[ceil_div(len(rows), THREADS[1]), THREADS](
        grad, rows, features, inverse.reshape(-1), NORMALISERS.index(normalize), all_rows(dx)
    )
    return dx
