r"""What keeps linear attention from dividing by zero, and the gradient through that division.

Linear attention ends with o_i = n_i / D_i, where D_i = guard(d_i) keeps the denominator off zero:

    clamp    max(d, eps)                guard' = [d > eps]                    (1)
    add      d + eps                    guard' = 1                            (2)
    signed   sign(d) max(|d|, eps)      guard' = [|d| > eps]                  (3)

    none     1                          guard' = 0                            (4)

with sign(0) = 1. Positive features add up to a positive d that is exact to its last digits however
small it is, so "clamp" with the smallest eps is right for them: adding 1e-6 is wrong by 20% already
where d = 4e-6. "signed" is for scores of either sign. "none" is not for users: it leaves the
numerators as they are, for an attention that adds more terms before it divides, or never divides.

Every backward of linear attention starts with the gradients of the numerator and the denominator,
given g_i = dLoss/do_i:

    gn_i = g_i / D_i                                                          (5)
    gd_i = -(g_i . o_i) / D_i guard'(d_i)                                     (6)

and zeros in a row that is padding or has nothing to see. Where d_i is below eps, (5) is g_i / eps:
by the default eps, a g_i above 1e8 overflows there. The `normaliser` kernel computes both in one
pass: a row of threads takes a row of the arrays; one thread adds its products up. The `divide`
kernel divides for an attention that has guard "none" until it has added more terms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, array_module, ceil_div, chosen, contiguous, kernel_dtype
from .checks import finite, host
from .cuda import DeviceFunction, Kernel, cuda
from .visible import EVERYTHING, Visible

THREADS = (32, 16)  # columns, rows


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


def _none(real: Any) -> Guard:
    @cuda.jit(device=True)
    def one(d, eps):  # type: ignore[no-untyped-def]
        return real(1)  # (4)

    @cuda.jit(device=True)
    def zero(d, eps):  # type: ignore[no-untyped-def]
        return real(0)  # (4)

    return Guard(one, zero)


GUARDS: dict[str, Callable[[Any], Guard]] = {"clamp": _clamp, "add": _add, "signed": _signed}


@cache
def guard(name: str, real: Any) -> Guard:
    """The guard of a name, for numbers of Numba's type `real` (float32 or float64).

    Raises:
        ValueError: there is no such guard.
    """
    if name == "none":
        return _none(real)
    return chosen("guard", name, GUARDS)(real)


def default_eps(name: str, dtype: Any) -> Any:
    """The eps of a guard where none is given, as a number of the NumPy `dtype`."""
    tiny = 1e-30 if dtype == np.float32 else 1e-300
    return dtype.type(1e-6 if name == "add" else tiny)


@cache
def _normaliser_kernel(real: Any, guard_name: str) -> Kernel:
    columns, rows = THREADS
    pitch = rows + 1  # the threads of a warp write to different banks
    value, derivative = guard(guard_name, real)

    @cuda.jit(fastmath=True)
    def normaliser(g, o, d, lengths, eps, gn, gd):  # type: ignore[no-untyped-def]
        """g, o (N, H, L, M), d (N, H, L); gn and gd, of these shapes, are written to."""
        products = cuda.shared.array((columns, pitch), real)  # of a thread
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        first = cuda.blockIdx.x * rows
        i = first + y
        M = g.shape[3]
        end = lengths[n]

        over_D = real(0)
        if i < end:
            over_D = real(1) / value(d[n, h, i], eps)
        total = real(0)
        if i < g.shape[2]:
            for m in range(x, M, columns):
                g_im = g[n, h, i, m] if i < end else real(0)
                gn[n, h, i, m] = g_im * over_D  # (5)
                total += g_im * o[n, h, i, m]
        products[x, y] = total
        cuda.syncthreads()

        i = first + x
        if y == 0 and x < rows and i < g.shape[2]:
            total = real(0)
            for column in range(columns):
                total += products[column, x]
            slope = real(0)
            if i < end:
                slope = derivative(d[n, h, i], eps)
            gd[n, h, i] = real(0)
            if slope > real(0):
                gd[n, h, i] = -total / value(d[n, h, i], eps) * slope  # (6)

    return normaliser


def check_eps(function: str, eps: float | None) -> None:
    """Check the constant of a guard.

    Raises:
        TypeError: it is no number.
        ValueError: it is not above 0, or not finite.
    """
    expected, way_out = "a finite number above 0", "; None chooses one"
    if eps is not None and not finite(function, "eps", eps, expected, way_out) > 0:
        raise ValueError(f"{function}: eps must be {expected}, got {eps}{way_out}")


def eps_or_default(guard: str, eps: float | None, like: Array) -> Any:
    """The guard's constant as a number of the dtype of `like`; None for `default_eps`.

    Raises:
        TypeError: it is no number.
        ValueError: it is not above 0, or not a normal number of the dtype: then 0 / eps, in a row
            that sees nothing, would be no zero.
    """
    if eps is None:
        return default_eps(guard, like.dtype)
    check_eps("guard", eps)
    least, most = float(np.finfo(like.dtype).tiny), float(np.finfo(like.dtype).max)
    if not least <= eps <= most:
        raise ValueError(
            f"guard: eps must lie between {least:.1e} and {most:.1e}, as numbers of {like.dtype} "
            f"do, got {eps}; None chooses one"
        )
    return like.dtype.type(eps)


@host(grad_output="N H Lq M", output="N H Lq M", denominator="N H Lq", key="N H Lk E any")
def normaliser_gradients(
    grad_output: Array,
    output: Array,
    denominator: Array,
    key: Array,
    visible: Visible = EVERYTHING,
    *,
    initial_state: Any = None,
    guard: str = "clamp",
    eps: float | None = None,
) -> tuple[Array, Array]:
    """Gradients of the numerators and denominators of linear attention, equations (5) and (6).

    Args:
        grad_output: (N, H, L, M), dLoss/do.
        output: (N, H, L, M), o.
        denominator: (N, H, L), d before the guard.
        key: (N, H, Lk, E); only its shape counts.
        visible: who sees whom; of packed sequences every row sees its own key, at least.
        initial_state: given where every query sees a state from before the first key.
        guard: "clamp", "add", "signed", or "none", whose gd is zero.
        eps: the guard's constant; None for `default_eps`.

    Returns:
        gn (N, H, L, M) and gd (N, H, L).
    """
    seen, g = visible.sighted(grad_output, key, state=initial_state)
    g, o, d = contiguous(g, output, denominator)
    batch, heads, length, _ = g.shape
    xp = array_module(g)
    gn, gd = xp.empty_like(g), xp.empty_like(d)
    blocks = ceil_div(length, THREADS[1]), heads, batch
    kernel = _normaliser_kernel(kernel_dtype(g), guard)
    lengths, _ = seen._replace(cu_seqlens=None).lengths(g, key)
    kernel[blocks, THREADS](g, o, d, lengths, eps_or_default(guard, eps, g), gn, gd)
    return gn, gd


@cache
def _divide_kernel(real: Any, guard_name: str) -> Kernel:
    value = guard(guard_name, real).value

    @cuda.jit(fastmath=True)
    def divide(n, d, eps, output):  # type: ignore[no-untyped-def]
        """Numerators n (rows, M), denominators d (rows,); the output is written to."""
        i = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        if i < n.shape[0]:
            over_D = real(1) / value(d[i], eps)
            for m in range(cuda.threadIdx.x, n.shape[1], cuda.blockDim.x):
                output[i, m] = n[i, m] * over_D

    return divide


@host(numerator="N H L M", denominator="N H L")
def divided(numerator: Array, denominator: Array, *, guard: str, eps: float | None) -> Array:
    """The output (N, H, L, M) of numerators (N, H, L, M) and denominators (N, H, L)."""
    n, d = contiguous(numerator, denominator)
    output = array_module(n).empty_like(n)
    rows = d.size, n.shape[3]
    kernel = _divide_kernel(kernel_dtype(n), guard)
    kernel[ceil_div(d.size, THREADS[1]), THREADS](
        n.reshape(rows), d.reshape(-1), eps_or_default(guard, eps, n), output.reshape(rows)
    )
    return output
