r"""The kernels that run.

The FAVOR+ kernels have the thread pattern of `softmax`: threadIdx.x = x is a row of a transposed
tile, threadIdx.y = y a part of the work on it. The others have a warp to a row. The sum (6) is made
by kernels of `linear`.

What they add to `plain`; results/ladder says what it brings:

    tiles in shared memory     a w_r is read from memory once for all rows of a block, and a row
                               once for all features
    sums in registers          WIDTH of them at a time share a read of a row
    transposed, with a pitch   neighbours in a column lie in different banks
    one walk for (3)           maximum and sum of all features are rescaled on the way, by parts
    r twice over, in (7)       a + m needs no way round
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from ..arrays import Array, ceil_div, kernel_dtype, round_up
from ..cuda import Kernel, cuda

TILE = 64  # rows of a block of the FAVOR+ kernels, where the shared memory allows
WIDTH = 4  # sums that a thread makes at once, at least
TURNS = 4  # over a thread's columns, at most
THREADS = 32, 8  # of the other kernels: columns, rows


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


def favor(x: Array, projection: Array, scale: Any, normalised: bool, phi: Array) -> None:
    """Equations (1) to (3); a block owns a tile of rows and walks the features."""
    head_dim, real = round_up(x.shape[1]), kernel_dtype(x)
    shape = _shape(head_dim, real)
    kernel = _favor_kernel(head_dim, real)[ceil_div(len(x), shape.rows), shape.threads]
    kernel(x, projection, scale, normalised, phi)


@cache
def _favor_gradient_kernel(head_dim: int, real: Any) -> Kernel:
    rows, parts, step = _shape(head_dim, real)
    own = head_dim // parts
    width = max(WIDTH, own // TURNS)
    pitch = rows + 1

    @cuda.jit(fastmath=True)
    def favor_gradient(g, x, projection, phi, scale, normalised, dx):  # type: ignore[no-untyped-def]
        """Arrays g and phi (rows, R), x and dx (rows, E), projection (R, E); writes dx."""
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


def favor_gradient(
    g: Array, x: Array, projection: Array, phi: Array, scale: Any, normalised: bool, dx: Array
) -> None:
    """Equations (4) and (5), dx, by the same walk."""
    head_dim, real = round_up(x.shape[1]), kernel_dtype(x)
    shape = _shape(head_dim, real)
    kernel = _favor_gradient_kernel(head_dim, real)[ceil_div(len(x), shape.rows), shape.threads]
    kernel(g, x, projection, phi, scale, normalised, dx)


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


def dpfp(x: Array, nu: int, phi: Array) -> None:
    """Equation (7); a warp takes a row."""
    head_dim, real = round_up(x.shape[1]), kernel_dtype(x)
    threads = _dpfp_threads(head_dim, real)
    _dpfp_kernel(head_dim, real)[ceil_div(len(x), threads[1]), threads](x, nu, phi)


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


def dpfp_gradient(g: Array, x: Array, nu: int, dx: Array) -> None:
    """Equations (8) and (9); a warp takes a row."""
    head_dim, real = round_up(x.shape[1]), kernel_dtype(x)
    threads = _dpfp_threads(head_dim, real)
    _dpfp_gradient_kernel(head_dim, real)[ceil_div(len(x), threads[1]), threads](g, x, nu, dx)
