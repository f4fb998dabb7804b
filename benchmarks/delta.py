"""The delta rule, forward and backward, beside PyTorch and beside linear attention.

Our side is the public differentiable function, given its features. The peers are the definition,
token by token in eager PyTorch; its chunkwise form there (chunks of 64, a triangular solve in
each); the same with each chunk compiled, whose first call took *compile s*; and our own linear
attention, which does not look at its state before it writes. N=8, H=8, E=M=64, keys of length 1.
Freed memory is kept in the process, as `train` does, for all of them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from minitransformer.attention import delta_attention, linear_attention
from minitransformer.device import keep_freed_memory
from minitransformer_kernels import reference

from . import harness, peers

N, H, E = 8, 8, 64
LOOP, CHUNKWISE = "PyTorch eager, token by token", "PyTorch eager, chunkwise"
COMPILED = f"{harness.COMPILED}, chunkwise"
LINEAR = "our linear attention"

Array = Any


def rows() -> Iterator[harness.Row]:
    """Yield a row for each length, pass and contestant."""
    keep_freed_memory()
    yield from compare(1024, loop=True)
    yield from compare(4096, loop=False)


def compare(length: int, loop: bool) -> Iterator[harness.Row]:
    """Yield the rows of one length; the tape of a loop over 4096 tokens would not fit."""
    generator = np.random.default_rng(0)
    query, key, value, grad = (
        generator.standard_normal((N, H, length, E), np.float32) for _ in range(4)
    )
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    beta = generator.uniform(size=(N, H, length)).astype(np.float32)
    inputs = [query, key, value, beta]
    forms = {CHUNKWISE: peers.delta_chunkwise} | ({LOOP: peers.delta_loop} if loop else {})
    if peers.compiles():
        forms[COMPILED] = peers.delta_compiled()
    delta = partial(delta_attention, feature_map="identity", normalize="none")
    forward, passes = peers.contestants(delta, forms, inputs, grad)
    firsts = harness.first_turns(passes, lambda got: worst_error(got, inputs, grad))
    nothing = dict.fromkeys(firsts[harness.OURS])
    linear = partial(linear_attention, causal=True)
    linear_forward, linear_passes = peers.contestants(linear, {}, inputs[:3], grad)
    forward[LINEAR], passes[LINEAR] = linear_forward[harness.OURS], linear_passes[harness.OURS]

    with torch.no_grad():
        yield from harness.race(f"delta rule, forward, L={length}", forward)
    for row in harness.race(f"delta rule, forward and backward, L={length}", passes):
        yield row | firsts.get(row["contestant"], nothing)


def worst_error(got: list[Array], inputs: list[Array], grad: Array) -> float:
    """Return the largest error of the last head's output and gradients."""
    head = [array[-1:, -1:] for array in (grad, *inputs)]
    output, _, _ = reference.delta_attention(*head[1:])
    truth = output, *reference.delta_attention_backward(*head)[:4]
    return max(harness.error(a[-1:, -1:], b) for a, b in zip(got, truth, strict=True))


if __name__ == "__main__":
    harness.main("delta", rows)
