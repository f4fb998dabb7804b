"""Relative positions in linear cost, forward and backward, beside their quadratic form in PyTorch.

Shaw's relative positions with k=32 and softplus scores; Fourier positions in the form 1 + c cos.
Both causal, N=8, H=8, L=2048, E=M=64. The peers make all L x L scores in eager PyTorch, with a
backward by autograd. Freed memory is kept in the process, for both.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from minitransformer import Tensor
from minitransformer.attention import fourier_linear_attention, relative_linear_attention
from minitransformer.device import keep_freed_memory
from minitransformer_kernels import reference
from minitransformer_kernels.visible import CAUSAL

from . import harness, peers

N, H, L, E, FURTHEST = 8, 8, 2048, 64, 32
SHOWN = 256  # first rows, which hang on no later ones: the float64 truth is cubic in memory
EAGER = "PyTorch eager, quadratic"

Array = Any
Arrays = list[Array]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each kind of positions and each contestant."""
    keep_freed_memory()
    generator = np.random.default_rng(0)
    *qkv, grad = (generator.standard_normal((N, H, L, E), np.float32) for _ in range(4))
    embedding = 0.3 * generator.standard_normal((H, 2 * FURTHEST + 1, E), np.float32)
    inputs, ours = [*qkv, embedding], partial(relative_linear_attention, causal=True)
    truth = partial(reference.relative_linear_attention, visible=CAUSAL)
    yield from compare("Shaw", inputs, grad, ours, peers.relative_quadratic, truth)
    wave = [generator.uniform(-1, 1, shape).astype(np.float32) for shape in ((H, E, 1), (H, E))]
    amplitude = generator.uniform(-0.9, 0.9, (H, E)).astype(np.float32)
    inputs = [*qkv, *wave, amplitude]
    yield from compare("Fourier", inputs, grad, our_fourier, peers.fourier_quadratic, fourier)


def compare(
    name: str,
    inputs: Arrays,
    grad: Array,
    attend: Callable[..., Tensor],
    peer: Callable[..., torch.Tensor],
    truth: Callable[..., Array],
) -> Iterator[harness.Row]:
    """Yield the rows of one kind of positions."""
    _, passes = peers.contestants(attend, {EAGER: peer}, inputs, grad)
    right = truth(*(array[-1:, :, :SHOWN] for array in inputs[:3]), *inputs[3:])
    results = {contestant: run() for contestant, run in passes.items()}
    errors = {
        who: harness.error(result[0][-1:, :, :SHOWN], right) for who, result in results.items()
    }
    for mine, other in zip(results[harness.OURS], results[EAGER], strict=True):
        harness.error(mine, other)  # the gradients
    results.clear()
    case = f"{name} positions, causal, forward and backward, L={L}"
    for row in harness.race(case, passes, rounds=3):
        yield row | {"error": errors[row["contestant"]]}


POSITIONS = np.arange(L, dtype=np.float64)[None, :, None]  # (1, L, P)


def our_fourier(query: Tensor, key: Tensor, value: Tensor, *wave: Tensor) -> Tensor:
    """Attend with Fourier positions."""
    places = Tensor(POSITIONS), Tensor(POSITIONS)
    output: Tensor = fourier_linear_attention(query, key, value, *places, *wave, causal=True)
    return output


def fourier(query: Array, key: Array, value: Array, *wave: Array) -> Array:
    """Return the output in float64."""
    positions = POSITIONS[:, :SHOWN]
    fourier = reference.Fourier(positions, positions, *wave)
    return reference.fourier_linear_attention(query, key, value, fourier, CAUSAL)


if __name__ == "__main__":
    harness.main("positions", rows)
