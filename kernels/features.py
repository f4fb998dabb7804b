r"""Feature maps of whole rows: FAVOR+, DPFP and cosFormer's re-weighting.

A map of `feature_maps` takes each number by itself. These three mix the numbers of a row x of
length E, or know where the row stands, and give a row phi(x) of another length D. They are kernels
of their own: (N, H, L, E) becomes (N, H, L, D), and linear attention goes on with the feature map
"identity". Nothing here is ever negative, except where a docstring says so.

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

cosFormer: relu features that fade with the distance            (Qin et al. 2022, equations 8 to 10)

A row at position p, with theta = pi p / (2 T) for a longest distance T,

    phi    = [max(x, 0) cos theta, max(x, 0) sin theta]          D = 2 E                  (10)

so that phi(q).phi(k) = max(q, 0).max(k, 0) cos(pi (p_q - p_k) / (2 T)): full weight at distance 0,
none at T. The features are negative at positions below 0 or above T; the products are not, while
the distance is at most T.

    dx_e   = (g_e cos theta + g_(E+e) sin theta) [x_e > 0]                                (11)

The kernels in this file take the rows of all sequences as one array (rows, E):

    _favor_kernel             (1) to (3); a block owns a tile of rows and walks the features
    _favor_gradient_kernel    (4), (5), dx; the same walk. It also leaves G for the next
    _projection_kernel        (4), (6), dw; a block owns 32 of the w_r and a span of the rows
    _dpfp_kernel, _dpfp_gradient_kernel               (7); (8), (9)
    _cosformer_kernel, _cosformer_gradient_kernel     (10); (11)

The first two have the thread pattern of `softmax`: threadIdx.x = x is a row of a transposed tile,
threadIdx.y = y a part of the work on it. The others have a warp to a row.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arrays import (
    Array,
    all_rows,
    array_module,
    ceil_div,
    contiguous,
    enough_blocks,
    kernel_dtype,
    round_up,
)
from .cuda import Kernel, cuda

TILE = 64  # rows of a block of the FAVOR+ kernels, where the shared memory allows
WIDTH = 4  # sums that a thread makes at once, at least
TURNS = 4  # over a thread's columns, at most
THREADS = 32, 8  # of the other kernels: columns, rows
OWN = 4  # features of a projection's tile that a thread owns
FEWEST_ROWS = 512  # that are worth a block of their own in (6)
ENOUGH_BLOCKS = 128  # to keep all cores of a CPU busy, with some to spare


class _Shape(NamedTuple):
    """How a block of the FAVOR+ kernels works."""

    rows: int  # threadIdx.x: rows that it owns
    parts: int  # threadIdx.y
    step: int  # features that it takes in at a time

    @property
    def threads(self) -> tuple[int, int]:
        return self.rows, self.parts


def _shape(head_dim: int, real: Any) -> _Shape:
    """The shape for rows of a rounded length; a tile of rows takes 16 KiB, of features 8 KiB."""
    size = real.bitwidth // 8
    rows = min(TILE, 16384 // (head_dim * size))
    step = min(rows // 2, 8192 // (head_dim * size))
    return _Shape(rows, min(256 // rows, step // WIDTH or 1, head_dim // WIDTH, 8), step)


@cache
def _favor_kernel(head_dim: int, real: Any) -> Kernel:
    rows, parts, step = _shape(head_dim, real)
    own = step // parts
    at_once = min(WIDTH, own)
    pitch = rows + 1  # of a transposed tile: neighbours in a column lie in different banks

    @cuda.jit(fastmath=True)
    def favor(x, projection, scale, normalised, phi):  # type: ignore[no-untyped-def]
        """Rows x (rows, E) and projection (R, E); phi (rows, R) is written to."""
        x_tile = cuda.shared.array((head_dim, pitch), real)  # of s x, transposed
        w_tile = cuda.shared.array((step, head_dim), real)
        z_tile = cuda.shared.array((step, pitch), real)  # transposed
        highest_of = cuda.shared.array((parts, rows), real)
        total_of = cuda.shared.array((parts, rows), real)
        l_tile = cuda.shared.array(rows, real)
        sums = cuda.local.array(at_once, real)

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        first_row = cuda.blockIdx.x * rows
        E, R = projection.shape[1], projection.shape[0]

        for r in range(ty, rows, parts):
            for e in range(tx, head_dim, rows):
                x_tile[e, r] = real(0)
                if first_row + r < x.shape[0] and e < E:
                    x_tile[e, r] = scale * x[first_row + r, e]
        cuda.syncthreads()
        l_i = real(0)
        if not normalised:
            l_i = real(0.5) * math.log(real(R))
            for e in range(head_dim):
                l_i += real(0.5) * x_tile[e, tx] * x_tile[e, tx]  # (2)
        highest, total = real(-1e30), real(0)

        for start in range(0, R, step):
            for r in range(ty, step, parts):
                for e in range(tx, head_dim, rows):
                    w_tile[r, e] = real(0)
                    if start + r < R and e < E:
                        w_tile[r, e] = projection[start + r, e]
            cuda.syncthreads()
            for t in range(0, own, at_once):
                j = ty * own + t
                for c in range(at_once):
                    sums[c] = real(0)
                for e in range(head_dim):
                    for c in range(at_once):
                        sums[c] += x_tile[e, tx] * w_tile[j + c, e]  # (1)
                for c in range(at_once):
                    z_tile[j + c, tx] = sums[c] - l_i if start + j + c < R else real(-1e30)
            cuda.syncthreads()
            if normalised:
                before = highest
                for t in range(own):
                    highest = max(highest, z_tile[ty * own + t, tx])
                total *= math.exp(before - highest)
                for t in range(own):
                    total += math.exp(z_tile[ty * own + t, tx] - highest)
            for r in range(ty, rows, parts):
                for t in range(tx, step, rows):
                    if first_row + r < phi.shape[0] and start + t < R:
                        z = z_tile[t, r]
                        phi[first_row + r, start + t] = z if normalised else math.exp(z)  # (1)

        if normalised:
            highest_of[ty, tx] = highest
            total_of[ty, tx] = total
            cuda.syncthreads()
            if ty == 0:
                for part in range(parts):
                    highest = max(highest, highest_of[part, tx])
                total = real(0)
                for part in range(parts):
                    total += total_of[part, tx] * math.exp(highest_of[part, tx] - highest)
                l_tile[tx] = highest + math.log(total)  # (3)
            cuda.syncthreads()
            for r in range(ty, rows, parts):
                if first_row + r < phi.shape[0]:
                    for t in range(tx, R, rows):
                        phi[first_row + r, t] = math.exp(phi[first_row + r, t] - l_tile[r])  # (1)

    return favor


@cache
def _favor_gradient_kernel(head_dim: int, real: Any) -> Kernel:
    rows, parts, step = _shape(head_dim, real)
    own = head_dim // parts
    width = max(WIDTH, own // TURNS)
    pitch = rows + 1

    @cuda.jit(fastmath=True)
    def favor_gradient(g, x, projection, phi, scale, normalised, dx, G):  # type: ignore[no-untyped-def]
        """Arrays g and phi (rows, R), x (rows, E), projection (R, E); dx and G (rows,) written."""
        dz = cuda.shared.array((step, pitch), real)  # transposed
        w_tile = cuda.shared.array((step, head_dim), real)
        G_tile = cuda.shared.array(rows, real)
        dx_own = cuda.local.array(own, real)
        sums = cuda.local.array(width, real)

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        first_row = cuda.blockIdx.x * rows
        i = first_row + tx
        E, R = projection.shape[1], projection.shape[0]

        for r in range(ty, rows, parts):
            for t in range(tx, step, rows):
                part = real(0)
                if first_row + r < x.shape[0]:
                    for c in range(t, R, step):
                        part += g[first_row + r, c] * phi[first_row + r, c]
                dz[t, r] = part
        for t in range(own):
            dx_own[t] = real(0)
        cuda.syncthreads()
        G_i = real(0)
        for t in range(step):
            G_i += dz[t, tx]
        if ty == 0:
            G_tile[tx] = G_i
            if i < x.shape[0]:
                G[i] = G_i
        cuda.syncthreads()

        for start in range(0, R, step):
            for r in range(ty, rows, parts):
                for t in range(tx, step, rows):
                    dz[t, r] = real(0)
                    if first_row + r < x.shape[0] and start + t < R:
                        less = G_tile[r] if normalised else real(0)
                        dz[t, r] = g[first_row + r, start + t] - less
                        dz[t, r] *= phi[first_row + r, start + t]  # (4)
            for r in range(ty, step, parts):
                for e in range(tx, head_dim, rows):
                    w_tile[r, e] = real(0)
                    if start + r < R and e < E:
                        w_tile[r, e] = projection[start + r, e]
            cuda.syncthreads()
            for t in range(0, own, width):
                e = ty * own + t
                for c in range(width):
                    sums[c] = dx_own[t + c]
                for r in range(step):
                    for c in range(width):
                        sums[c] += dz[r, tx] * w_tile[r, e + c]  # (5)
                for c in range(width):
                    dx_own[t + c] = sums[c]
            cuda.syncthreads()

        pull = real(0) if normalised else scale * scale * G_i
        if i < x.shape[0]:
            for t in range(own):
                e = ty * own + t
                if e < E:
                    dx[i, e] = scale * dx_own[t] - pull * x[i, e]  # (5)

    return favor_gradient


@cache
def _projection_kernel(real: Any) -> Kernel:
    columns, groups = THREADS

    @cuda.jit(fastmath=True)
    def projection_gradient(g, x, phi, G, scale, normalised, span, dw):  # type: ignore[no-untyped-def]
        """Arrays g and phi (rows, R), x (rows, E), G (rows,); dw (parts, R, E) is written to."""
        dz = cuda.shared.array((columns, columns), real)
        x_tile = cuda.shared.array((columns, columns), real)
        dw_own = cuda.local.array(OWN, real)

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        part = cuda.blockIdx.z
        e = cuda.blockIdx.y * columns + tx
        first_feature = cuda.blockIdx.x * columns
        R, E = dw.shape[1], dw.shape[2]
        begin = part * span
        end = min(begin + span, x.shape[0])

        for r in range(OWN):
            dw_own[r] = real(0)
        for start in range(begin, end, columns):
            for t in range(ty, columns, groups):
                i = start + t
                dz[t, tx] = real(0)
                if i < end and first_feature + tx < R:
                    less = G[i] if normalised else real(0)  # (4)
                    dz[t, tx] = phi[i, first_feature + tx] * (g[i, first_feature + tx] - less)
                x_tile[t, tx] = real(0)
                if i < end and e < E:
                    x_tile[t, tx] = x[i, e]
            cuda.syncthreads()
            for t in range(columns):
                for r in range(OWN):
                    dw_own[r] += dz[t, ty * OWN + r] * x_tile[t, tx]  # (6)
            cuda.syncthreads()
        for r in range(OWN):
            feature = first_feature + ty * OWN + r
            if feature < R and e < E:
                dw[part, feature, e] = scale * dw_own[r]  # (6)

    return projection_gradient


def _dpfp_threads(head_dim: int, real: Any) -> tuple[int, int]:
    """A warp to a row, and as many rows as fit in shared memory: 10 numbers for each of E."""
    return THREADS[0], min(THREADS[1], 4096 // (head_dim * real.bitwidth // 8))


@cache
def _dpfp_kernel(head_dim: int, real: Any) -> Kernel:
    columns, rows = _dpfp_threads(head_dim, real)
    twice = 2 * 2 * head_dim  # r two times over: a + m needs no way round

    @cuda.jit(fastmath=True)
    def dpfp(x, nu, phi):  # type: ignore[no-untyped-def]
        """Rows x (rows, E); phi (rows, 2 E nu) is written to."""
        r = cuda.shared.array((rows, twice), real)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        i = cuda.blockIdx.x * rows + ty
        E = x.shape[1]
        for e in range(tx, E, columns):
            x_e = x[i, e] if i < x.shape[0] else real(0)
            r[ty, e] = r[ty, 2 * E + e] = max(x_e, real(0))
            r[ty, E + e] = r[ty, 3 * E + e] = max(-x_e, real(0))
        cuda.syncthreads()
        if i < x.shape[0]:
            for block in range(nu):
                for a in range(tx, 2 * E, columns):
                    phi[i, block * 2 * E + a] = r[ty, a] * r[ty, a + block + 1]  # (7)

    return dpfp


@cache
def _dpfp_gradient_kernel(head_dim: int, real: Any) -> Kernel:
    columns, rows = _dpfp_threads(head_dim, real)
    once, twice = 2 * head_dim, 2 * 2 * head_dim

    @cuda.jit(fastmath=True)
    def dpfp_gradient(g, x, nu, dx):  # type: ignore[no-untyped-def]
        """Arrays g (rows, 2 E nu), x (rows, E); dx is written to."""
        r = cuda.shared.array((rows, twice), real)
        later = cuda.shared.array((rows, twice), real)  # g_a r_a, where a + m reads it
        dr = cuda.shared.array((rows, once), real)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        i = cuda.blockIdx.x * rows + ty
        E = x.shape[1]
        for e in range(tx, E, columns):
            x_e = x[i, e] if i < x.shape[0] else real(0)
            r[ty, e] = r[ty, 2 * E + e] = max(x_e, real(0))
            r[ty, E + e] = r[ty, 3 * E + e] = max(-x_e, real(0))
        for a in range(tx, 2 * E, columns):
            dr[ty, a] = real(0)
        cuda.syncthreads()
        for block in range(nu):
            m = block + 1
            for a in range(tx, 2 * E, columns):
                g_a = g[i, block * 2 * E + a] if i < x.shape[0] else real(0)
                dr[ty, a] += g_a * r[ty, a + m]  # (8)
                later[ty, a + m] = g_a * r[ty, a]
            cuda.syncthreads()
            for a in range(tx, 2 * E, columns):
                dr[ty, a] += later[ty, a] if a >= m else later[ty, a + 2 * E]  # (8)
            cuda.syncthreads()
        if i < x.shape[0]:
            for e in range(tx, E, columns):
                falls = dr[ty, E + e] if x[i, e] < real(0) else real(0)
                dx[i, e] = dr[ty, e] if x[i, e] > real(0) else -falls  # (9)

    return dpfp_gradient


@cache
def _cosformer_kernel(real: Any) -> Kernel:
    columns, rows = THREADS

    @cuda.jit
    def cosformer(x, cosines, sines, phi):  # type: ignore[no-untyped-def]
        """Rows x (rows, E), the rows of a sequence together; phi (rows, 2 E) is written to."""
        i = cuda.blockIdx.x * rows + cuda.threadIdx.y
        E = x.shape[1]
        if i < x.shape[0]:
            p = i % cosines.shape[0]
            cosine, sine = cosines[p], sines[p]
            for e in range(cuda.threadIdx.x, E, columns):
                r = max(x[i, e], real(0))
                phi[i, e] = r * cosine  # (10)
                phi[i, E + e] = r * sine  # (10)

    return cosformer


@cache
def _cosformer_gradient_kernel(real: Any) -> Kernel:
    columns, rows = THREADS

    @cuda.jit
    def cosformer_gradient(g, x, cosines, sines, dx):  # type: ignore[no-untyped-def]
        """Arrays g (rows, 2 E), x (rows, E); dx is written to."""
        i = cuda.blockIdx.x * rows + cuda.threadIdx.y
        E = x.shape[1]
        if i < x.shape[0]:
            p = i % cosines.shape[0]
            cosine, sine = cosines[p], sines[p]
            for e in range(cuda.threadIdx.x, E, columns):
                dr = g[i, e] * cosine + g[i, E + e] * sine
                dx[i, e] = dr if x[i, e] > real(0) else real(0)  # (11)

    return cosformer_gradient


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


def favor_forward(x: Array, projection: Array, *, normalised: bool = False) -> Array:
    """FAVOR+, equations (1) to (3).

    Args:
        x: (N, H, L, E), float32 or float64.
        projection: (R, E), of x's dtype.
        normalised: divide each row by its sum, equation (3): for queries, whose scale cancels.

    Returns:
        (N, H, L, R).

    Raises:
        TypeError: the arrays hold something else than float32 or float64.
        ValueError: E is above 256.
    """
    rows, projection = all_rows(x), *contiguous(projection)
    phi = array_module(x).empty((*x.shape[:-1], projection.shape[0]), x.dtype)
    head_dim, real = round_up(x.shape[-1]), kernel_dtype(x)
    shape = _shape(head_dim, real)
    kernel = _favor_kernel(head_dim, real)[_blocks(rows, shape.rows), shape.threads]
    kernel(rows, projection, _scale(x), bool(normalised), all_rows(phi))
    return phi


def favor_backward(
    grad: Array,
    x: Array,
    projection: Array,
    phi: Array,
    *,
    normalised: bool = False,
    projection_needs_gradient: bool = False,
) -> tuple[Array, Array | None]:
    """The gradient of `favor_forward`, equations (4) to (6).

    Args:
        grad: (N, H, L, R), dLoss/dphi.
        x: as `favor_forward` took it.
        projection: as there.
        phi: what `favor_forward` returned.
        normalised: as there.
        projection_needs_gradient: whether to compute equation (6) too.

    Returns:
        dx (N, H, L, E), and dw (R, E) or None.
    """
    xp, real, head_dim = array_module(x), kernel_dtype(x), round_up(x.shape[-1])
    g, rows, phi, projection = all_rows(grad), all_rows(x), all_rows(phi), *contiguous(projection)
    dx, G = xp.empty_like(rows), xp.empty(rows.shape[0], x.dtype)
    shape = _shape(head_dim, real)
    kernel = _favor_gradient_kernel(head_dim, real)[_blocks(rows, shape.rows), shape.threads]
    kernel(g, rows, projection, phi, _scale(x), bool(normalised), dx, G)
    dw = None
    if projection_needs_gradient:
        dw = _projection_gradient(g, rows, phi, G, _scale(x), bool(normalised))
    return dx.reshape(x.shape), dw


def _projection_gradient(
    g: Array, x: Array, phi: Array, G: Array, scale: Any, normalised: bool
) -> Array:
    """Equation (6): each block sums over a span of the rows, and the blocks' sums are added."""
    xp = array_module(x)
    R, E = phi.shape[1], x.shape[1]
    tiles = ceil_div(R, THREADS[0]), ceil_div(E, THREADS[0])
    enough = enough_blocks(x, ENOUGH_BLOCKS) // (tiles[0] * tiles[1])
    parts = max(1, min(enough, x.shape[0] // FEWEST_ROWS))
    dw = xp.empty((parts, R, E), x.dtype)
    kernel = _projection_kernel(kernel_dtype(x))[(*tiles, parts), THREADS]
    kernel(g, x, phi, G, scale, normalised, ceil_div(x.shape[0], parts), dw)
    return dw.sum(axis=0)


def dpfp_forward(x: Array, *, nu: int = 1) -> Array:
    """DPFP, equation (7).

    Args:
        x: (N, H, L, E), float32 or float64.
        nu: how many neighbours each number is multiplied by, 1 to 2 E - 1.

    Returns:
        (N, H, L, 2 E nu).

    Raises:
        TypeError: the array holds something else than float32 or float64.
        ValueError: E is above 256.
    """
    rows = all_rows(x)
    phi = array_module(x).empty((*x.shape[:-1], 2 * x.shape[-1] * nu), x.dtype)
    head_dim, real = round_up(x.shape[-1]), kernel_dtype(x)
    threads = _dpfp_threads(head_dim, real)
    _dpfp_kernel(head_dim, real)[_blocks(rows, threads[1]), threads](rows, nu, all_rows(phi))
    return phi


def dpfp_backward(grad: Array, x: Array, *, nu: int = 1) -> Array:
    """The gradient of `dpfp_forward`, equations (8) and (9).

    Args:
        grad: (N, H, L, 2 E nu), dLoss/dphi.
        x: as `dpfp_forward` took it.
        nu: as there.

    Returns:
        dx (N, H, L, E).
    """
    rows = all_rows(x)
    dx = array_module(x).empty_like(rows)
    head_dim, real = round_up(x.shape[-1]), kernel_dtype(x)
    threads = _dpfp_threads(head_dim, real)
    kernel = _dpfp_gradient_kernel(head_dim, real)[_blocks(rows, threads[1]), threads]
    kernel(all_rows(grad), rows, nu, dx)
    return dx.reshape(x.shape)


def cosformer_forward(x: Array, positions: Array, *, longest: int) -> Array:
    """Features of cosFormer, equation (10).

    Args:
        x: (N, H, L, E), float32 or float64.
        positions: (L,) integers, p of each row.
        longest: T, the distance at which weights reach zero.

    Returns:
        (N, H, L, 2 E).

    Raises:
        TypeError: the array holds something else than float32 or float64.
    """
    rows = all_rows(x)
    phi = array_module(x).empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    kernel = _cosformer_kernel(kernel_dtype(x))[_blocks(rows, THREADS[1]), THREADS]
    kernel(rows, *_waves(x, positions, longest), all_rows(phi))
    return phi


def cosformer_backward(grad: Array, x: Array, positions: Array, *, longest: int) -> Array:
    """The gradient of `cosformer_forward`, equation (11).

    Args:
        grad: (N, H, L, 2 E), dLoss/dphi.
        x: as `cosformer_forward` took it.
        positions: as there.
        longest: as there.

    Returns:
        dx (N, H, L, E).
    """
    rows = all_rows(x)
    dx = array_module(x).empty_like(rows)
    kernel = _cosformer_gradient_kernel(kernel_dtype(x))[_blocks(rows, THREADS[1]), THREADS]
    kernel(all_rows(grad), rows, *_waves(x, positions, longest), dx)
    return dx.reshape(x.shape)


def _waves(x: Array, positions: Array, longest: int) -> tuple[Array, Array]:
    """The cos and sin of theta in equation (10), in x's dtype; the angle is taken in float64."""
    xp = array_module(x)
    theta = xp.asarray(positions, np.float64) * (math.pi / (2 * longest))
    return xp.cos(theta).astype(x.dtype), xp.sin(theta).astype(x.dtype)


def _blocks(rows: Array, size: int) -> int:
    """How many blocks share out the rows; one even for none, as a launch needs a block."""
    return max(1, ceil_div(rows.shape[0], size))


def _scale(x: Array) -> Any:
    """The s of equation (1), as a number of x's dtype."""
    return x.dtype.type(x.shape[-1] ** -0.25)
