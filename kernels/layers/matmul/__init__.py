r"""A matrix product in three steps: plain, in tiles, on tensor cores.

    c_ij = sum_k a_ik b_kj                                                                     (1)

The same sum three times. What differs is how often a number comes from memory:

    plain    a thread a c_ij: for each multiplication it reads two numbers from global memory
    tiled    a block a tile of 16 x 16: it brings a tile of A and one of B to shared memory, where
             each number is read 16 times; global memory is read a sixteenth as often
    fast     tensor cores: a warp computes 64 x 64 numbers at a time, a block 128 x 128; for every
             number that comes from global memory 64 multiplications are made, and for one from
             shared memory 32

Products of "plain" and "tiled" are float32's or float64's; those of tensor cores are TF32 or, with
`precise`, nearly float32 (equation 3 of `tensor_cores`).
"""

from __future__ import annotations

from ...arrays import Array, array_module, contiguous, version_of
from ...checks import flag, is_array
from . import fast, plain, tiled

__all__ = ["matmul"]


def matmul(a: Array, b: Array, *, precise: bool = False, version: str = "fast") -> Array:
    """The product of two matrices, equation (1).

    Args:
        a: `(n, k)`, float32; "plain" and "tiled" take float64, too.
        b: `(k, m)`, of the same dtype.
        precise: on tensor cores three products for each one, "3xTF32": nearly float32's digits,
            which the others have anyway.
        version: "fast", on tensor cores, "tiled" or "plain".

    Returns:
        `(n, m)`, of the same dtype. Of |a| |b|, the product of the absolute values, "fast" is off
        by a share of at most 2^-10 + 2^-22 k; where `precise`, of 2^-20 + 2^-21 k; "plain" and
        "tiled" by k units of the last digit.

    Raises:
        TypeError: the dtypes are none that the version multiplies, or `precise` is no bool.
        ValueError: they are no matrices that can be multiplied, or there is no such version.
        KernelError: their GPU has no tensor cores for TF32.

    Example:
        >>> import numpy as np
        >>> a = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> matmul(a, a, version="plain").tolist()
        [[7.0, 10.0], [15.0, 22.0]]
    """
    multiply = version_of(version, fast=fast, tiled=tiled, plain=plain).multiply
    flag("matmul", "precise", precise)
    for name, array in (("a", a), ("b", b)):
        if not is_array(array):
            raise TypeError(f"matmul: {name} must be an array, got {type(array).__name__}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul takes matrices (n, k) and (k, m), got {a.shape} and {b.shape}")
    if a.dtype != b.dtype:
        raise TypeError(f"matmul takes matrices of one dtype, got {a.dtype} and {b.dtype}")
    a, b = contiguous(a, b)
    c = array_module(a).empty((a.shape[0], b.shape[1]), a.dtype)
    multiply(a, b, c, precise)
    return c
