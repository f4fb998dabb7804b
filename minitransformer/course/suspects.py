"""Nine kernels that claim to be causal linear attention; seven of them lie.

The right one stands below, once: lesson 7's, with a Z in each thread. Every other is an edit of it.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import float32

from minitransformer_kernels.cuda import Kernel, cuda

from .worker import defined

Array = Any
Attend = Callable[[Array, Array, Array], Array]

WIDTH, THREADS = 16, 32  # rows of a state, and threads of a block
TINY = np.finfo(np.float32).tiny
IMPORTS = f"""\
import math
from numba import float32
from minitransformer_kernels.cuda import cuda
WIDTH, TINY = {WIDTH}, float32({float(TINY)})
"""


@cuda.jit(device=True)
def phi(x):  # type: ignore[no-untyped-def]
    """elu(x) + 1."""
    return x + float32(1) if x > float32(0) else math.exp(x)


@cuda.jit
def attend(query, key, value, out):  # type: ignore[no-untyped-def]
    """A thread owns column m of S; query and key (H, L, E), value and out (H, L, M)."""
    S, Z = cuda.local.array(WIDTH, float32), cuda.local.array(WIDTH, float32)
    m, h = cuda.grid(1), cuda.blockIdx.y
    L, E = query.shape[1], query.shape[2]
    for e in range(E):
        S[e] = Z[e] = float32(0)
    if m < value.shape[2]:
        for t in range(L):
            for e in range(E):
                k = phi(key[h, t, e])
                S[e] += k * value[h, t, m]  # (1)
                Z[e] += k  # (2)
            n = d = float32(0)
            for e in range(E):
                q = phi(query[h, t, e])
                n += S[e] * q  # (3)
                d += Z[e] * q  # (3)
            out[h, t, m] = n / (d if d > TINY else TINY)  # (4)


class Suspect(NamedTuple):
    """A kernel that claims to be the right one.

    Attributes:
        lie: What is wrong with it; empty where nothing is.
        edits: Texts of the right one, each of which stands there once, and what takes its place.
    """

    lie: str
    edits: dict[str, str]


SUSPECTS = (
    Suspect("", {}),
    Suspect("adds to the denominator", {"(d if d > TINY else TINY)": "(d + float32(1e-6))"}),
    Suspect("gives all heads the first one's values", {"value[h, t, m]": "value[0, t, m]"}),
    Suspect("multiplies by masks: float32 has no e^100, and 0 times infinity is nan", {
        "x + float32(1) if x > float32(0) else math.exp(x)":
        "float32(x > 0) * (x + float32(1)) + float32(x <= 0) * math.exp(x)"}),
    Suspect("", {"math.exp(x)": "float32(2) ** (x * float32(1.4426950408889634))"}),
    Suspect("adds up all tokens first, then walks back, and takes away what it has added", {
        "                Z[e] += k  # (2)\n":
        "                Z[e] += k  # (2)\n        for t in range(L - 1, -1, -1):\n",
        "  # (4)\n":
        "  # (4)\n            for e in range(E):\n                k = phi(key[h, t, e])\n"
        "                S[e] -= k * value[h, t, m]\n                Z[e] -= k\n"}),
    Suspect("takes four tokens at a time, and has none for the rest",
            {"for t in range(L):": "for t in range(L // 4 * 4):"}),
    Suspect("takes 1 away, and adds it again",
            {"math.exp(x)": "math.expm1(x) + float32(1)"}),
    Suspect("counts values from a sum over all heads, and a loud one takes others' digits", {
        "    if m < value.shape[2]:\n":
        "    if m < value.shape[2]:\n        c = float32(0)\n"
        "        for j in range(value.shape[0]):\n            c += value[j, 0, m]\n",
        "k * value[h, t, m]": "k * (value[h, t, m] - c)",
        "n / (d if": "c + n / (d if"}),
)  # fmt: skip


def suspect(number: int) -> Attend:
    """Return what a kernel makes of query, key `(H, L, E)` and value `(H, L, M)`, `(H, L, M)`.

    Args:
        number: Of the kernel, from 1 to 9.
    """
    kernel = _kernel(number)

    def attend(query: Array, key: Array, value: Array) -> Array:
        q, k, v = (np.ascontiguousarray(x, np.float32) for x in (query, key, value))
        if q.ndim != 3 or k.shape != q.shape or v.ndim != 3 or v.shape[:2] != q.shape[:2]:
            raise ValueError(
                "attend: expected query and key (H, L, E) and value (H, L, M), got "
                f"{q.shape}, {k.shape} and {v.shape}"
            )
        if q.shape[2] > WIDTH:
            raise ValueError(f"attend: a state has at most {WIDTH} rows, got E = {q.shape[2]}")
        out = np.zeros(v.shape, np.float32)
        kernel[(-(-v.shape[2] // THREADS), len(v)), THREADS](q, k, v, out)
        return out

    return attend


@cache
def _kernel(number: int) -> Kernel:
    text = _edited(SUSPECTS[number - 1].edits)
    kernel: Kernel = defined([(f"kernel {number}", IMPORTS + text)], "attend")
    return kernel


def _edited(edits: dict[str, str]) -> str:
    text = "\n\n".join(inspect.getsource(x.function) for x in (phi, attend))
    for right, wrong in edits.items():
        text = text.replace(right, wrong)
    return text


def confession(number: int) -> str:
    """Return which lines of the right kernel another has not, `-`, and what it has, `+`."""
    right, own = (_edited(edits).splitlines() for edits in ({}, SUSPECTS[number - 1].edits))
    lines = list(difflib.unified_diff(right, own, n=0, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))
