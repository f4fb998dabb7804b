r"""What keeps linear attention from dividing by zero, and the gradient through that division.

Linear attention ends with o_i = n_i / D_i, where D_i = guard(d_i) keeps the denominator off zero:

    clamp    max(d, eps)                guard' = [d > eps]                    (1)
    add      d + eps                    guard' = 1                            (2)
    signed   sign(d) max(|d|, eps)      guard' = [|d| > eps]                  (3)

with sign(0) = 1. Positive features add up to a positive d that is exact to its last digits however
small it is, so "clamp" with the smallest eps is right for them: adding 1e-6 is wrong by 20% already
where d = 4e-6. "signed" is for scores of either sign.

Every backward of linear attention starts with the gradients of the numerator and the denominator,
given g_i = dLoss/do_i:

    gn_i = g_i / D_i                                                          (4)
    gd_i = -(g_i . o_i) / D_i guard'(d_i)                                     (5)

and zeros in a row that is padding or has nothing to see. The `normaliser` kernel computes both
in one pass: a row of threads takes a row of the arrays, and adds its products up as a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, array_module, ceil_div, contiguous, kernel_dtype
from .cuda import DeviceFunction, Kernel, cuda

THREADS = (32, 8)  # columns, rows


class Guard(NamedTuple):
    """A guard and its derivative, both device functions of the denominator and eps."""

    value: DeviceFunction
    derivative: DeviceFunction


def _clamp(real: Any) -> Guard:
    @cuda.jit(device=True)
    def clamp(d, eps):  # type: ignore[no-untyped-def]
        return d if d > eps else eps  # (1)

    @cuda.jit(device=True)
    def clamp_derivative(d, eps):  # type: ignore[no-untyped-def]
        return real(1) if d > eps else real(0)  # (1)

    return Guard(clamp, clamp_derivative)


def _add(real: Any) -> Guard:
    @cuda.jit(device=True)
    def add(d, eps):  # type: ignore[no-untyped-def]
        return d + eps  # (2)

    @cuda.jit(device=True)
    def one(d, eps):  # type: ignore[no-untyped-def]
        return real(1)  # (2)

    return Guard(add, one)


def _signed(real: Any) -> Guard:
    @cuda.jit(device=True)
    def signed(d, eps):  # type: ignore[no-untyped-def]
        return d if abs(d) > eps else (eps if d >= real(0) else -eps)  # (3)

    @cuda.jit(device=True)
    def signed_derivative(d, eps):  # type: ignore[no-untyped-def]
        return real(1) if abs(d) > eps else real(0)  # (3)

    return Guard(signed, signed_derivative)


GUARDS: dict[str, Callable[[Any], Guard]] = {"clamp": _clamp, "add": _add, "signed": _signed}


@cache
def guard(name: str, real: Any) -> Guard:
    """The guard of a name, for numbers of Numba's type `real` (float32 or float64).

    Raises:
        ValueError: there is no such guard.
    """
    if name not in GUARDS:
        raise ValueError(f"guard must be one of {sorted(GUARDS)}, got {name!r}")
    return GUARDS[name](real)


def default_eps(name: str, dtype: Any) -> Any:
    """The eps of a guard where none is given, as a number of the NumPy `dtype`."""
    tiny = 1e-30 if dtype == np.float32 else 1e-300
    return dtype.type(1e-6 if name == "add" else tiny)


@cache
def _normaliser_kernel(real: Any, guard_name: str) -> Kernel:
    columns, rows = THREADS
    value, derivative = guard(guard_name, real)

    @cuda.jit(fastmath=True)
    def normaliser(  # type: ignore[no-untyped-def]
        g, o, d, query_lengths, key_lengths, first_row, fewest_keys, eps, gn, gd
    ):
        """g, o (N, H, L, M), d (N, H, L); gn and gd, of these shapes, are written to."""
        products = cuda.shared.array((rows, columns), real)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        i = cuda.blockIdx.x * rows + y
        M = g.shape[3]
        end = query_lengths[n] if key_lengths[n] >= fewest_keys else 0
        sees = first_row <= i < end

        total = real(0)
        if sees:
            over_D = real(1) / value(d[n, h, i], eps)
            for m in range(x, M, columns):
                gn[n, h, i, m] = g[n, h, i, m] * over_D  # (4)
                total += g[n, h, i, m] * o[n, h, i, m]
        elif i < g.shape[2]:
            for m in range(x, M, columns):
                gn[n, h, i, m] = real(0)
        products[y, x] = total
        cuda.syncthreads()

        width = columns // 2
        while width > 0:
            if x < width:
                products[y, x] += products[y, x + width]
            cuda.syncthreads()
            width //= 2

        if x == 0 and i < g.shape[2]:
            slope = real(0)
            if sees:
                slope = derivative(d[n, h, i], eps)
            gd[n, h, i] = real(0)
            if slope > real(0):
                gd[n, h, i] = -products[y, 0] / value(d[n, h, i], eps) * slope  # (5)

    return normaliser


def eps_or_default(guard: str, eps: float | None, like: Array) -> Any:
    """The guard's constant as a number of the dtype of `like`; None for `default_eps`."""
    return like.dtype.type(default_eps(guard, like.dtype) if eps is None else eps)


def normaliser_gradients(
    grad_output: Array,
    output: Array,
    denominator: Array,
    *,
    query_lengths: Array,
    key_lengths: Array,
    causal: bool = False,
    query_offset: int = 0,
    has_initial_state: bool = False,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array]:
    """Gradients of the numerators and denominators of linear attention, equations (4) and (5).

    Args:
        grad_output: (N, H, L, M), dLoss/do.
        output: (N, H, L, M), o.
        denominator: (N, H, L), d before the guard.
        query_lengths: (N,) integers; later rows give zeros.
        key_lengths: (N,) integers; where there are none, only an initial state is seen.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        has_initial_state: whether every query sees a state from before the first key.
        guard: "clamp", "add" or "signed".
        eps: the guard's constant; None for `default_eps`.

    Returns:
        gn (N, H, L, M) and gd (N, H, L).
    """
    g, o, d = contiguous(grad_output, output, denominator)
    batch, heads, length, _ = g.shape
    xp = array_module(g)
    gn, gd = xp.empty_like(g), xp.empty_like(d)
    first_row = -query_offset if causal and not has_initial_state else 0
    fewest_keys = 0 if has_initial_state else 1
    number = eps_or_default(guard, eps, g)
    blocks = max(1, ceil_div(length, THREADS[1])), heads, batch
    kernel = _normaliser_kernel(kernel_dtype(g), guard)
    kernel[blocks, THREADS](
        g, o, d, query_lengths, key_lengths, first_row, fewest_keys, number, gn, gd
    )
    return gn, gd
