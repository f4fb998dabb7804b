"""The kernel that a learner writes first: a thread owns a number of the product."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...arrays import Array, a_thread_each, kernel_dtype
from ...cuda import Kernel, cuda


@cache
def matmul_kernel(real: Any) -> Kernel:
    """The kernel for numbers of Numba's type `real`."""

    @cuda.jit
    def matmul(a, b, c):  # type: ignore[no-untyped-def]
        """Make c (n, m) the product of a (n, k) and b (k, m)."""
        i, j = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if j < c.shape[1]:
            total = real(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]  # (1)
            c[i, j] = total

    return matmul


def multiply(a: Array, b: Array, c: Array, precise: bool) -> None:
    """Equation (1), of which every product is precise."""
    if c.size:
        a_thread_each(matmul_kernel(kernel_dtype(a)), c.shape[1], len(c))(a, b, c)
