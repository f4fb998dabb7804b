"""Kernels to look at: products of which the second is faster, and one for each thing to be seen."""

import math

from numba import float32

from minitransformer_kernels.cuda import cuda

TILE = 32
SIDE = 64  # of the matrices


@cuda.jit
def matmul_naive(a, b, out):
    x, y = cuda.grid(2)
    total = float32(0)
    for k in range(a.shape[1]):
        total += a[y, k] * b[k, x]
    out[y, x] = total


@cuda.jit
def matmul_tiled(a, b, out):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        left[ty, tx] = a[y, start + tx]
        right[ty, tx] = b[start + ty, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    out[y, x] = total


@cuda.jit
def saxpy(alpha, x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = alpha * x[i] + y[i]


@cuda.jit
def saxpy_in_float64(alpha, x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 0.5 * alpha * x[i] + y[i]


@cuda.jit
def branches(x):
    t = cuda.threadIdx.x
    if t % 2:
        x[t] = math.sqrt(x[t])
    else:
        x[t] = -x[t]


@cuda.jit
def moving_sums(x, out):
    last = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(4):
        last[k] = x[i + k]
    total = float32(0)
    for k in range(4):
        total += last[k]
    out[i] = total


@cuda.jit
def reversed_in_a_block(x, out):
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[cuda.blockDim.x - 1 - t]
