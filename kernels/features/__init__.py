r"""Feature maps of whole rows: FAVOR+ and DPFP.

A map of `feature_maps` takes each number by itself. These two mix the numbers of a row x of length
E, and give a row phi(x) of another length D. They are kernels of their own: (N, H, L, E) becomes
(N, H, L, D), and linear attention goes on with the feature map "identity". Nothing here is ever
negative. (cosFormer, whose rows know where they stand, is a case of `fourier`.)

FAVOR+: positive random features of the softmax kernel         (Choromanski et al. 2021, lemma 1)

For a row w of independent standard normal numbers, and s = E^(-1/4),

    exp(q.k / sqrt(E)) = mean_w exp(s w.q - s^2 |q|^2 / 2) exp(s w.k - s^2 |k|^2 / 2)

because s w.(q + k) is normal with the variance s^2 |q + k|^2, and so its exponential has the mean
exp(s^2 |q + k|^2 / 2). Instead of all w take R of them: phi(q).phi(k) estimates it, with

    z_r    = s w_r.x                               phi_r  = exp(z_r - l)                   (1)
    l      = s^2 |x|^2 / 2 + log(R) / 2                                                    (2)

The error shrinks like 1 / sqrt(R), and rows w_r that are orthogonal to each other, each of them
still normal, make it smaller (`orthogonal_projection`). Products of positive numbers cannot sum to
a denominator of zero or below, as those of the sines and cosines of older random features did.

The stabiliser. Implementations subtract a maximum from the exponents. What may be subtracted? A
number of its own for each *query* cancels in o = n / d. One for each *key* would change the key's
weight, so it must be one for all keys: their maximum. But then a key's features depend on keys that
come after it; and a state, a sum over such features, cannot be handed on, for the maximum changes
with the next token. So keys have no stabiliser. They need none against overflow: completing the
square, phi_r = exp(|w_r|^2 / 2 - |s x - w_r|^2 / 2) / sqrt(R), bounded whatever x is. For large |x|
it can underflow to 0: there the true weights exp(q.k / sqrt(E)) are as extreme. Queries have a
stabiliser that is smoother than a maximum, with `normalised`:

    l      = log sum_t exp(z_t)                                                            (3)

makes a softmax over the features, which neither overflows nor underflows to a row of zeros. Linear
attention gives the same output with (2) as with (3); a denominator that it shares with other terms,
as with relative positions, needs (2).

Backward, given g_r = dLoss/dphi_r, and with G = sum_t g_t phi_t:

    dz_r   = g_r phi_r              with (2),      (g_r - G) phi_r     with (3)            (4)
    dx     = s sum_r dz_r w_r - s^2 G x            without the last term with (3)          (5)
    dw_r   = s sum_i dz_ir x_i      over all rows x_i of all sequences                     (6)

DPFP-nu: deterministic parameter-free projection                  (Schlag et al. 2021, section 5.3)

With r = [max(x, 0), max(-x, 0)], of length 2E, indices modulo 2E, and m = 1 .. nu,

    phi_a^m  = r_a r_(a+m)                         D = 2 E nu                              (7)

Such products are sparse: keys that differ get features that are nearly orthogonal, and a state S of
D rows keeps more of them apart. Only one of r_e and r_(E+e) is not zero; for it

    dr_a   = sum_m (g_a^m r_(a+m) + g_(a-m)^m r_(a-m))                                     (8)
    dx_e   = dr_e    (x_e > 0)      -dr_(E+e)    (x_e < 0)      0    (x_e = 0)             (9)

The kernels take the rows of all sequences as one array (rows, E).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import linear
from ..arrays import (
    Array,
    all_rows,
    array_module,
    ceil_div,
    contiguous,
    lengths_or_full,
    version_of,
)
from ..checks import fit, flag, host, whole
from . import fast, plain


def orthogonal_projection(
    num_features: int, head_dim: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Draw w_r of equation (1): each row standard normal, and orthogonal to others of its block.

    A block has E rows. The Q of a Gaussian matrix has rows of any direction with equal probability
    once their signs are those that make R's diagonal positive; the lengths of normal rows, drawn by
    themselves, make them normal.

    Args:
        num_features: R, how many rows.
        head_dim: E.
        generator: what they are drawn from.

    Returns:
        (R, E).

    Source: Choromanski et al. 2021, section 2.4; Mezzadri 2007 for the signs.

    Example:
        >>> w = orthogonal_projection(5, 3, np.random.default_rng(0))
        >>> np.allclose(w[0] @ w[1:3].T, 0)
        True
    """
    blocks = [
        _random_rotation(head_dim, generator) for _ in range(ceil_div(num_features, head_dim))
    ]
    directions = np.concatenate(blocks)[:num_features]
    lengths = np.linalg.norm(generator.standard_normal((num_features, head_dim)), axis=1)
    projection: NDArray[np.float64] = lengths[:, None] * directions
    return projection


def _random_rotation(size: int, generator: np.random.Generator) -> NDArray[np.float64]:
    Q, R = np.linalg.qr(generator.standard_normal((size, size)))
    rotation: NDArray[np.float64] = Q * np.sign(np.diag(R))
    return rotation.T


@host(x="N H L E", projection="R E")
def favor_forward(
    x: Array, projection: Array, *, normalised: bool = False, version: str = "fast"
) -> Array:
    """FAVOR+, equations (1) to (3).

    Args:
        x: (N, H, L, E), float32 or float64.
        projection: (R, E), of x's dtype.
        normalised: divide each row by its sum, equation (3): for queries, whose scale cancels.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        (N, H, L, R).

    Raises:
        TypeError: the arrays hold something else than float32 or float64, or `normalised` is no
            bool.
        ValueError: R is 0, E is above 256, or there is no such version.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    flag("features.favor_forward", "normalised", normalised)
    whole("features.favor_forward", "R, the rows of projection,", len(projection), 1)
    phi = array_module(x).empty((*x.shape[:-1], projection.shape[0]), x.dtype)
    rows, (projection,) = all_rows(x), contiguous(projection)
    kernels.favor(rows, projection, _scale(x), bool(normalised), all_rows(phi))
    return phi


@host(x="N H L E", projection="R E", grad="N H L R", phi="N H L R")
def favor_backward(
    grad: Array,
    x: Array,
    projection: Array,
    phi: Array,
    *,
    normalised: bool = False,
    projection_needs_gradient: bool = False,
    version: str = "fast",
) -> tuple[Array, Array | None]:
    """The gradient of `favor_forward`, equations (4) to (6).

    Args:
        grad: (N, H, L, R), dLoss/dphi.
        x: this and the rest as `favor_forward` took and returned it.
        projection_needs_gradient: whether to compute equation (6) too.

    Returns:
        dx (N, H, L, E), and dw (R, E) or None.
    """
    kernels = version_of(version, fast=fast, plain=plain)
    g, rows, phi, projection = all_rows(grad), all_rows(x), all_rows(phi), *contiguous(projection)
    dx = array_module(x).empty_like(rows)
    kernels.favor_gradient(g, rows, projection, phi, _scale(x), bool(normalised), dx)
    if not projection_needs_gradient:
        return dx.reshape(x.shape), None
    less = array_module(x).einsum("ir,ir->i", g, phi)[:, None] if normalised else 0
    dz = (g - less) * phi  # (4)
    how = {"lengths": lengths_or_full(None, 1, len(rows), rows), "version": version}
    (dw,) = linear.summed_products(dz[None, None], rows[None, None], **how)
    return dx.reshape(x.shape), _scale(x) * dw  # (6)


@host(x="N H L E")
def dpfp_forward(x: Array, *, nu: int = 1, version: str = "fast") -> Array:
    """DPFP, equation (7).

    Args:
        x: (N, H, L, E), float32 or float64.
        nu: how many neighbours each number is multiplied by, 1 to 2 E - 1.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        (N, H, L, 2 E nu).

    Raises:
        TypeError: the array holds something else than float32 or float64, or nu is no whole number.
        ValueError: nu is out of its range, E is above 256, or there is no such version.
    """
    nu = _neighbours(nu, x)
    phi = array_module(x).empty((*x.shape[:-1], 2 * x.shape[-1] * nu), x.dtype)
    version_of(version, fast=fast, plain=plain).dpfp(all_rows(x), nu, all_rows(phi))
    return phi


@host(x="N H L E", grad="N H L D")
def dpfp_backward(grad: Array, x: Array, *, nu: int = 1, version: str = "fast") -> Array:
    """The gradient dx (N, H, L, E) of `dpfp_forward`, equations (8) and (9).

    Args:
        grad: (N, H, L, 2 E nu), dLoss/dphi.
        x: this and the rest as `dpfp_forward` took it.
    """
    rows, nu = all_rows(x), _neighbours(nu, x)
    fit("features.dpfp_backward", [("grad", grad, "N H L 2·E·nu")], {"2·E·nu": 2 * x.shape[3] * nu})
    dx = array_module(x).empty_like(rows)
    version_of(version, fast=fast, plain=plain).dpfp_gradient(all_rows(grad), rows, nu, dx)
    return dx.reshape(x.shape)


def _neighbours(nu: int, x: Array) -> int:
    """How many neighbours there are to multiply by, having checked that there are so many."""
    if whole("features.dpfp", "nu", nu, 1) >= 2 * x.shape[3]:
        raise ValueError(f"features.dpfp: nu must be below 2 E = {2 * x.shape[3]}, got {nu}")
    return int(nu)


def _scale(x: Array) -> Any:
    """The s of equation (1), as a number of x's dtype."""
    return x.dtype.type(x.shape[-1] ** -0.25)
