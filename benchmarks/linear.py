"""Causal linear attention, forward and backward, beside PyTorch.

Our side is the public differentiable function. The peers are the chunkwise form in eager PyTorch
(chunks of 64, backward by autograd), the same with each chunk compiled, whose first call took
*compile s*, and causal softmax attention in PyTorch's own fused kernel. N=8, H=8, E=M=64. Freed
memory is kept in the process, as `train` does, for all of them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from minitransformer.attention import linear_attention
from minitransformer.device import keep_freed_memory
from minitransformer_kernels import reference
from minitransformer_kernels.visible import CAUSAL

from . import harness, peers

N, H, E = 8, 8, 64
CHUNKWISE, COMPILED = "PyTorch eager, chunkwise", f"{harness.COMPILED}, chunkwise"
SOFTMAX = "PyTorch scaled_dot_product_attention"

Array = Any


def rows() -> Iterator[harness.Row]:
    """Yield a row for each length, pass and contestant."""
    keep_freed_memory()
    yield from compare(1024, against_softmax=False)
    yield from compare(4096, against_softmax=True)


def compare(length: int, against_softmax: bool) -> Iterator[harness.Row]:
    """Yield the rows of one length."""
    generator = np.random.default_rng(0)
    *inputs, grad = (generator.standard_normal((N, H, length, E), np.float32) for _ in range(4))
    forms: dict[str, peers.Attention] = {CHUNKWISE: peers.linear_chunkwise}
    if peers.compiles():
        forms[COMPILED] = peers.linear_compiled()
    attend = partial(linear_attention, causal=True)
    forward, passes = peers.contestants(attend, forms, inputs, grad)
    firsts = harness.first_turns(passes, lambda got: worst_error(got, inputs, grad))

    if against_softmax:
        theirs = map(torch.from_numpy, inputs)
        forward[SOFTMAX] = partial(scaled_dot_product_attention, *theirs, is_causal=True)
    with torch.no_grad():
        yield from harness.race(f"causal linear attention, forward, L={length}", forward)
    for row in harness.race(f"causal linear attention, forward and backward, L={length}", passes):
        yield row | firsts[row["contestant"]]


def worst_error(got: list[Array], inputs: list[Array], grad: Array) -> float:
    """Return the largest error of the last head's output and gradients."""
    g, query, key, value = (array[-1:, -1:] for array in (grad, *inputs))
    truth = (
        reference.linear_attention(query, key, value, CAUSAL),
        *reference.linear_attention_backward(g, query, key, value, CAUSAL)[:3],
    )
    return max(harness.error(a[-1:, -1:], b) for a, b in zip(got, truth, strict=True))


if __name__ == "__main__":
    harness.main("linear", rows)
