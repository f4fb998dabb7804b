"""Fused softmax attention, forward and backward, beside PyTorch.

The kernels that a learner reads, compiled for the CPU, against PyTorch's own fused kernel, and
forward against softmax(Q K^T) V as three eager operations; then few heads; and one query, as when
a token is generated. Then what dropout of a tenth of the weights costs, and what relative scores of
65 distances do. PyTorch takes neither into its fused kernel on a CPU: it stores all weights, and
the relative scores have to be laid out for each pair. N=8, H=8, E=64. Freed memory is kept in the
process, as `train` does, for all of them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from minitransformer.device import keep_freed_memory
from minitransformer_kernels import reference, softmax
from minitransformer_kernels.visible import Visible

from . import harness, peers

N, H, L, E = 8, 8, 1024, 64
FEW = 4  # heads in all
KEYS = 4096  # of the one query of a token that is generated
DROPOUT, DISTANCE = 0.1, 32
EAGER, FUSED = "PyTorch eager", "PyTorch scaled_dot_product_attention"
PLAIN = "minitransformer without"

Array = Any
Options = dict[str, Any]
Attend = Callable[..., torch.Tensor]
Run = Callable[[], list[Array]]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each case and contestant."""
    keep_freed_memory()
    generator = np.random.default_rng(0)
    *inputs, grad = (generator.standard_normal((N, H, L, E), np.float32) for _ in range(4))
    scores = generator.standard_normal((N, H, L, 2 * DISTANCE + 1), np.float32)
    for causal in (False, True):
        ours, fused = (
            {"visible": Visible(causal)},
            partial(scaled_dot_product_attention, is_causal=causal),
        )
        case = f"{'causal ' if causal else ''}softmax attention, {{}}, L={L}"
        forward = {harness.OURS: our_forward(inputs, ours), FUSED: their_forward(inputs, fused)}
        if not causal:
            forward[EAGER] = their_forward(inputs, peers.softmax_eager)
        yield from compare(case.format("forward"), forward, inputs, grad, ours)
        passes = {
            harness.OURS: our_passes(inputs, grad, ours),
            FUSED: their_passes(inputs, grad, fused),
        }
        yield from compare(case.format("forward and backward"), passes, inputs, grad, ours)

    *few, few_grad = (array[:1, :FEW] for array in (*inputs, grad))
    passes = {
        harness.OURS: our_passes(few, few_grad, {}),
        FUSED: their_passes(few, few_grad, scaled_dot_product_attention),
    }
    case = f"softmax attention of {FEW} heads, forward and backward, L={L}"
    yield from compare(case, passes, few, few_grad, {})

    one = [generator.standard_normal((N, H, n, E), np.float32) for n in (1, KEYS, KEYS)]
    forward = {
        harness.OURS: our_forward(one, {"version": "few"}),
        FUSED: their_forward(one, scaled_dot_product_attention),
    }
    yield from compare(
        f"softmax attention of one query, forward, {KEYS} keys", forward, one, one[0], {}
    )

    case = f"softmax attention with {{}}, forward and backward, L={L}"
    plain = our_passes(inputs, grad, {})
    for name, options, peer in (
        (
            "dropout",
            {"dropout": DROPOUT, "seed": 1},
            their_passes(inputs, grad, partial(scaled_dot_product_attention, dropout_p=DROPOUT)),
        ),
        (
            "relative scores",
            {"relative_scores": scores},
            their_passes([*inputs, scores], grad, biased),
        ),
    ):
        passes = {harness.OURS: our_passes(inputs, grad, options), PLAIN: plain, FUSED: peer}
        unlike = (PLAIN, FUSED) if name == "dropout" else (PLAIN,)  # whose output is another
        yield from compare(case.format(name), passes, inputs, grad, options, unlike)


def compare(
    case: str,
    contestants: dict[str, Run],
    inputs: list[Array],
    grad: Array,
    options: Options,
    unlike: tuple[str, ...] = (),
) -> Iterator[harness.Row]:
    """Yield the rows of a case, with the largest error of the first head's outputs and gradients.

    The peers in `unlike` compute something else.
    """
    expected = truth(inputs, grad, options)
    errors = {
        name: max(harness.error(a[:1, :1], b) for a, b in zip(run(), expected, strict=False))
        for name, run in contestants.items()
        if name not in unlike
    }
    for row in harness.race(case, contestants):
        yield row | {"error": errors.get(row["contestant"])}


def truth(inputs: list[Array], grad: Array, options: Options) -> list[Array]:
    """Return the first head's output and gradients in float64."""
    query, key, value, g = (array[:1, :1] for array in (*inputs, grad))
    options = {name: x[:1, :1] if name == "relative_scores" else x for name, x in options.items()}
    if "dropout" in options:
        rate, seed = options.pop("dropout"), options.pop("seed")
        options["kept"] = reference.dropout_factors((1, 1, L, L), rate, seed)
    output = reference.softmax_attention(query, key, value, **options)
    return [output, *reference.softmax_attention_backward(g, query, key, value, **options)]


def our_forward(inputs: list[Array], options: Options) -> Run:
    """Return what computes the output."""
    return lambda: [softmax.forward(*inputs, **options)[0]]


def our_passes(inputs: list[Array], grad: Array, options: Options) -> Run:
    """Return what computes the output and the gradients."""
    query, key, value = inputs

    def run() -> list[Array]:
        output, *sums = softmax.forward(query, key, value, **options)
        return [output, *softmax.backward(grad, query, key, value, output, *sums, **options)]

    return run


def their_forward(inputs: list[Array], attend: Attend) -> Run:
    """Return what computes the output in PyTorch."""
    tensors = [torch.from_numpy(array) for array in inputs]
    return lambda: [attend(*tensors)]


def their_passes(inputs: list[Array], grad: Array, attend: Attend) -> Run:
    """Return what computes the output and the gradients in PyTorch."""
    tensors = [torch.from_numpy(array).requires_grad_() for array in inputs]
    return partial(peers.their_passes, attend, tensors, grad)


def biased(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: torch.Tensor
) -> torch.Tensor:
    """Softmax attention with relative scores, which PyTorch takes as a mask of floats."""
    place = torch.arange(L)
    column = (place - place[:, None]).clamp(-DISTANCE, DISTANCE) + DISTANCE
    mask = E**-0.5 * scores.gather(3, column.expand(N, H, L, L))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


if __name__ == "__main__":
    harness.main("softmax", rows)
