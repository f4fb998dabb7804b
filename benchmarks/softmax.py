"""Fused softmax attention, forward, beside PyTorch.

The kernel that a learner reads, compiled for the CPU, against softmax(Q K^T) V as three eager
operations, and against PyTorch's own fused kernel. N=8, H=8, E=64; a forward takes 4 N H L^2 E
operations.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from minitransformer_kernels import reference, softmax

from . import harness, peers

N, H, L, E = 8, 8, 1024, 64


def rows() -> Iterator[harness.Row]:
    """Yield a row for each contestant."""
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal((N, H, L, E), np.float32) for _ in range(3)]
    tensors = [torch.from_numpy(array) for array in inputs]
    contestants: harness.Contestants = {
        harness.OURS: lambda: softmax.forward(*inputs)[0],
        "PyTorch eager": lambda: peers.softmax_eager(*tensors),
        "PyTorch scaled_dot_product_attention": lambda: scaled_dot_product_attention(*tensors),
    }
    truth = reference.softmax_attention(*(array[-1:] for array in inputs))
    errors = {name: harness.error(run()[-1:], truth) for name, run in contestants.items()}
    for row in harness.race(f"softmax attention, forward, L={L}", contestants):
        rate = 4 * N * H * L**2 * E / row["median_ms"] / 1e6
        yield row | {"GFLOP/s": rate, "error": errors[row["contestant"]]}


if __name__ == "__main__":
    harness.main("softmax", rows)
