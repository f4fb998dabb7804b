"""Local attention, at more and more tokens, beside a mask and beside all keys.

Every query sees 128 keys before it; not causal, 128 behind it too. PyTorch's fused attention takes
that as a boolean mask, and looks at all keys; our softmax attention sees all keys, which is another
answer at the same cost. N=1, H=2, E=64. *Growth* is a time over that of the row for a fourth of the
tokens: 4 where cost is linear, 16 where it is quadratic.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from minitransformer_kernels import local, reference, softmax
from minitransformer_kernels.visible import Visible

from . import THREADS, harness

H, E, WINDOW = 2, 64, 128
LENGTHS = 1024, 4096, 16_384
ROUNDS = 5
CHECKED = 64  # rows of the output
torch.set_num_threads(THREADS)


def rows() -> Iterator[harness.Row]:
    """Yield a row for each pass, length and contestant."""
    for causal in (False, True):
        before: dict[tuple[str, str], float] = {}
        for length in LENGTHS:
            for name, contestants in passes(length, causal).items():
                kind = "causal" if causal else "both sides"
                case = f"window {WINDOW}, {kind}, {name}, L={length:,}"
                for row in harness.race(case, contestants, ROUNDS):
                    key = name, row["contestant"]
                    growth = row["median_ms"] / before[key] if key in before else None
                    before[key] = row["median_ms"]
                    yield row | {"growth": growth}


def passes(length: int, causal: bool) -> dict[str, harness.Contestants]:
    """The contestants of each pass, checked against float64 where they answer the same."""
    rng = np.random.default_rng(0)
    query, key, value, grad = (rng.standard_normal((1, H, length, E), np.float32) for _ in range(4))
    arrays = query, key, value
    mask = window_mask(length, causal)
    q, k, v = tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    grad_tensor = torch.from_numpy(grad)

    visible = Visible(causal)

    ours = partial(local.forward, *arrays, visible, window=WINDOW)
    all_keys = partial(softmax.forward, *arrays, visible)

    def our_backward() -> Any:
        return local.backward(grad, *arrays, *ours(), visible, window=WINDOW)

    def all_keys_backward() -> object:
        return softmax.backward(grad, *arrays, *all_keys(), visible)

    def masked() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(q, k, v, mask)

    def masked_backward() -> Any:
        output = scaled_dot_product_attention(q, k, v, mask)
        return torch.autograd.grad(output, tensors, grad_tensor)

    first = length - CHECKED
    last = Visible(causal, query_offset=first)
    truth = reference.local_attention(query[:, :, first:], key, value, last, window=WINDOW)
    for output in (ours()[0], masked()):
        harness.error(output[:, :, first:], truth)
    for mine, theirs in zip(our_backward(), masked_backward(), strict=True):
        harness.error(mine, theirs)
    peer, rival = "PyTorch scaled_dot_product_attention, mask", "minitransformer, all keys"
    return {
        "forward": {harness.OURS: ours, peer: masked, rival: all_keys},
        "forward and backward": {
            harness.OURS: our_backward, peer: masked_backward, rival: all_keys_backward,
        },
    }  # fmt: skip


def window_mask(length: int, causal: bool) -> torch.Tensor:
    """Which query sees which key: bool (L, L)."""
    place = torch.arange(length)
    distance = place[:, None] - place
    return (distance <= WINDOW) & (distance >= (0 if causal else -WINDOW))


if __name__ == "__main__":
    harness.main("local", rows)
