"""Tensor cores: one instruction with which a warp multiplies two small matrices.

An ordinary instruction makes one multiplication per thread. A tensor core takes whole matrices from
the registers of a warp's 32 threads and makes 1,024 at once: D = A B + C, where A is 16 x 8, B is
8 x 8, and C and D are 16 x 8. PTX calls it `mma.sync.m16n8k8`. No thread sees a matrix; each holds
a few numbers of it, its *fragments*. Cut the warp into eight groups of four lanes. Lane t of group
g, with g = lane // 4 and t = lane % 4, holds

    a0 = A[g, t]      a1 = A[g + 8, t]      a2 = A[g, t + 4]      a3 = A[g + 8, t + 4]
    b0 = B[t, g]      b1 = B[t + 4, g]
    c0 = C[g, 2t]     c1 = C[g, 2t + 1]     c2 = C[g + 8, 2t]     c3 = C[g + 8, 2t + 1]

and D as it holds C. (PTX ISA, "Matrix fragments for mma.m16n8k8", .tf32.)

The multiplicands are TF32 numbers: float32 with 10 bits after the leading 1 instead of 23, so that
13 bits are zero. `to_tf32` rounds to the nearest, which is off by a share of at most

    |to_tf32(x) - x| <= u |x|,     u = 2^-11                                                   (1)

The product of two such numbers has 22 bits and is exact in float32; sums are made in float32, but
tensor cores cut off where others round: to a share of 2^-23 a sum, not of 2^-24 (Fasi et al. 2021).
A sum of K products of rounded numbers is therefore off by at most about

    (2 u + K 2^-23) sum_k |a_k b_k|                                                            (2)

`split` gets the lost bits back: x = big + small + rest, where both parts are TF32 and the rest is
below u^2 |x|. Three products instead of one then make almost a float32 product ("3xTF32"),

    a b = a_big b_big + a_big b_small + a_small b_big + ...,                                   (3)

of which what is left out, a_small b_small and the rests, is a share of 3 u^2 < 2^-20 of |a b|.

On a GPU `mma` is one instruction. On a CPU it is what its text below says: a warp's program, in
which each lane asks the others for two rows of A and two columns of B. There it is some 10 times
slower than a plain loop over a tile: it is for learning and for tests. All 32 lanes of a warp must
be there: of a warp that is not whole, a GPU promises nothing, and on the CPU every result is NaN.

Tensor cores with TF32 came with Ampere: sm_80 and newer have them, sm_75 does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from ..arrays import Array, array_module
from ..cpu import KernelError
from ..cuda import DeviceFunction, cuda
from ..gpu.compilers import Compiler

ROWS, INNER, COLUMNS = 16, 8, 8  # A is ROWS x INNER, B is INNER x COLUMNS
WARP = 32
GROUP = 4  # lanes
GROUPS = WARP // GROUP
EVERYONE = 0xFFFFFFFF
OLDEST = 8, 0  # compute capability: Ampere

KEPT = np.int32(~0x1FFF)  # the bits of a float32 that TF32 has as well
HALF = np.int32(0x1000)  # of the last of them
NAN = np.float32(np.nan)


class Instruction(DeviceFunction):
    """A device function that is one PTX instruction on a GPU; its text is its meaning on a CPU.

    `results` and `operands` have a letter for each number: "f" for a float32, "r" for the bits of a
    TF32 number.
    """

    def __init__(self, meaning: FunctionType, ptx: str, results: str, operands: str) -> None:
        super().__init__(meaning, {})
        self.ptx, self.results, self.operands = ptx, results, operands

    def compiled(self, compiler: Compiler) -> Any:
        """What the compiler puts in place of a call."""
        return compiler.instruction(self.function, self.ptx, self.results, self.operands)


def _instruction(ptx: str, results: str, operands: str) -> Callable[[Any], Instruction]:
    return partial(Instruction, ptx=ptx, results=results, operands=operands)


# The instructions ---------------------------------------------------------------------------------


@cuda.jit(device=True)
def _cut(x):  # type: ignore[no-untyped-def]
    """A number without the bits that a tensor core does not look at."""
    return np.int32(np.float32(x).view(np.int32) & KEPT).view(np.float32)


@_instruction("cvt.rna.tf32.f32 $0, $1;", "r", "f")
def to_tf32(x):  # type: ignore[no-untyped-def]
    """The TF32 number nearest to a float32; of two, the one farther from zero."""
    bits = np.float32(x).view(np.int32) + HALF
    return np.int32(bits & KEPT).view(np.float32) if x == x else x


@_instruction(
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
    "ffff", "rrrrrrffff",
)  # fmt: skip
def mma(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):  # type: ignore[no-untyped-def]
    """A B + C, in fragments; the 13 lowest bits of A and B, which `to_tf32` clears, do not count.

    Every lane of the warp must be there. Returns d0, d1, d2 and d3.
    """
    # Compiles only if all are float32: their sum is, and both choices of selp are of one type.
    nan = cuda.selp(True, NAN, a0 + a1 + a2 + a3 + b0 + b1 + c0 + c1 + c2 + c3)
    a0, a1, a2, a3, b0, b1 = _cut(a0), _cut(a1), _cut(a2), _cut(a3), _cut(b0), _cut(b1)
    row = cuda.laneid // GROUP * GROUP  # the lanes that hold rows g and g + 8 of A
    column = cuda.laneid % GROUP * 2 * GROUP  # those that hold column 2t of B; 2t + 1 follows
    for k in range(GROUP):
        a_k = cuda.shfl_sync(EVERYONE, a0, row + k)  # A[g, k]
        a_k4 = cuda.shfl_sync(EVERYONE, a2, row + k)  # A[g, k + 4]
        lower_k = cuda.shfl_sync(EVERYONE, a1, row + k)  # A[g + 8, k]
        lower_k4 = cuda.shfl_sync(EVERYONE, a3, row + k)  # A[g + 8, k + 4]
        even_k = cuda.shfl_sync(EVERYONE, b0, column + k)  # B[k, 2t]
        even_k4 = cuda.shfl_sync(EVERYONE, b1, column + k)  # B[k + 4, 2t]
        odd_k = cuda.shfl_sync(EVERYONE, b0, column + GROUP + k)  # B[k, 2t + 1]
        odd_k4 = cuda.shfl_sync(EVERYONE, b1, column + GROUP + k)  # B[k + 4, 2t + 1]
        c0 += a_k * even_k + a_k4 * even_k4
        c1 += a_k * odd_k + a_k4 * odd_k4
        c2 += lower_k * even_k + lower_k4 * even_k4
        c3 += lower_k * odd_k + lower_k4 * odd_k4
    if cuda.activemask() != EVERYONE:
        c0, c1, c2, c3 = nan, nan, nan, nan
    return c0, c1, c2, c3


# What kernels make of them ------------------------------------------------------------------------


@cuda.jit(device=True)
def split(x):  # type: ignore[no-untyped-def]
    """The parts big and small of equation (3), both TF32."""
    big = to_tf32(x)
    return big, to_tf32(x - big)


@cuda.jit(device=True)
def mma_3x(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):  # type: ignore[no-untyped-def]
    """A B + C with almost float32's products, equation (3); A and B are any float32 numbers."""
    p0, s0 = split(a0)
    p1, s1 = split(a1)
    p2, s2 = split(a2)
    p3, s3 = split(a3)
    q0, t0 = split(b0)
    q1, t1 = split(b1)
    for part in range(3):  # small * big, big * small, big * big: the smallest sums first
        if part == 0:
            a0, a1, a2, a3, b0, b1 = s0, s1, s2, s3, q0, q1
        elif part == 1:
            a0, a1, a2, a3, b0, b1 = p0, p1, p2, p3, t0, t1
        else:
            b0, b1 = q0, q1
        c0, c1, c2, c3 = mma(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
    return c0, c1, c2, c3


@cuda.jit(device=True)
def a_fragment(tile, row, k):  # type: ignore[no-untyped-def]
    """a0 to a3 of the matrix that begins at this row and column of a tile."""
    g, t = row + cuda.laneid // GROUP, k + cuda.laneid % GROUP
    return tile[g, t], tile[g + 8, t], tile[g, t + 4], tile[g + 8, t + 4]


@cuda.jit(device=True)
def b_fragment(tile, k, column):  # type: ignore[no-untyped-def]
    """b0 and b1 of the matrix that begins at this row and column of a tile."""
    t, g = k + cuda.laneid % GROUP, column + cuda.laneid // GROUP
    return tile[t, g], tile[t + 4, g]


def require(array: Array) -> None:
    """Check that tensor cores can multiply an array's numbers where it is.

    Raises:
        TypeError: it is not float32.
        KernelError: its GPU is older than Ampere.
    """
    if array.dtype != np.float32:
        raise TypeError(f"tensor cores take float32 arrays for TF32 products, got {array.dtype}")
    if array_module(array) is not np:
        digits = array.device.compute_capability
        if (int(digits[:-1]), int(digits[-1])) < OLDEST:
            raise KernelError(
                f"a GPU with compute capability {digits[:-1]}.{digits[-1]} has no tensor cores for "
                'TF32, which came with 8.0 (Ampere); use version="tiled"'
            )
