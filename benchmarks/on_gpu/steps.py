"""One more token of an attention: how long it takes, and how many a second, beside PyTorch.

8 heads of 64, float32, 1 and 256 sequences at a time. Linear attention and the delta rule keep sums
of constant size; local attention keeps the last 256 keys and values, softmax attention all of them,
after 256, 3,072 and 16,384 tokens. A step writes the token to its memory and reads all of it, and
so do the peers: eager, as a CUDA graph, and with `scaled_dot_product_attention` over arrays that
have room for the token. Beside softmax attention, *minitransformer linear* is the step of linear
attention, for which it makes no difference how many tokens came before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from minitransformer import Tensor
from minitransformer.attention import delta_attention_step, linear_attention_step
from minitransformer.nn import AttentionVariant, LocalAttention, SoftmaxAttention
from minitransformer.nn.variant import KeyValueCache
from minitransformer_kernels import reference
from minitransformer_kernels.delta import DeltaState
from minitransformer_kernels.recurrent import LinearState

from .. import harness
from . import clock
from .clock import Array, Contestant, Device, deferred
from .decoding import FastWeights, Sums, graphed

HEADS = 8
EAGER, GRAPH = "PyTorch eager", "PyTorch CUDA graph"
CACHED = "PyTorch scaled_dot_product_attention"
LINEAR = f"{harness.OURS} linear"

Rows = Iterator[harness.Row]
Shape = tuple[int, int, int]  # N, H and E
Arrays = tuple[Array, ...]
Sets = Sequence[Arrays]  # of inputs, that calls rotate among
Kind = Callable[..., torch.nn.Module]  # by the numbers of sequences and heads, and E
Call = Callable[[], torch.Tensor]


class Scale(NamedTuple):
    """What is asked: sequences at a time, tokens before the next, the window, and E."""

    batches: tuple[int, ...]
    positions: tuple[int, ...]
    window: int
    head_dim: int


SCALES = {
    "full": Scale((1, 256), (3072, 256, 16384), 256, 64),
    "rehearsal": Scale((2,), (24,), 8, 16),
}


def rows(device: Device, size: str) -> Rows:
    """Yield the rows of each case: linear attention beside softmax attention first.

    Args:
        device: Where the attentions are.
        size: A key of `SCALES`; to rehearse on a GPU compiles what the full size needs.
    """
    batches, positions, window, head_dim = SCALES[size]
    if device.name == "cuda":
        head_dim = SCALES["full"].head_dim
    shapes = [(batch, HEADS, head_dim) for batch in batches]
    for shape in shapes:
        yield from counted(shape, linear(device, shape))
        for position in positions:
            yield from counted(shape, softmax(device, shape, position))
    for shape in shapes:
        yield from counted(shape, delta(device, shape))
        yield from counted(shape, local(device, shape, window))


def counted(shape: Shape, rows: Rows) -> Rows:
    """Add how many tokens a second that is."""
    for row in rows:
        milliseconds = row["median_ms"]
        rate = {"tokens_per_second": 1e3 * shape[0] / milliseconds if milliseconds else None}
        yield row | rate


def linear(device: Device, shape: Shape) -> Rows:
    """Yield the rows of linear attention."""
    tokens, states = linear_inputs(device, shape)
    memories = [(S, Z[:, :, None]) for S, Z in states]
    ours = our_summed_step(linear_attention_step, tokens, states)
    case = f"a token of linear attention, batch {shape[0]}"
    yield from summed(device, case, Sums, ours, memories, tokens)


def delta(device: Device, shape: Shape) -> Rows:
    """Yield the rows of the delta rule."""
    count = sets(device, shape, shape[2])
    tokens = [token(device, shape, seed) for seed in range(count)]
    states = [DeltaState(device.random(*shape, shape[2], seed=seed)) for seed in range(count)]
    beta = device.xp.full(shape[:2], 0.5, device.xp.float32)
    ours = our_summed_step(delta_attention_step, tokens, states, Tensor(beta))
    given = [(*each, beta[:, :, None, None]) for each in tokens]
    case = f"a token of the delta rule, batch {shape[0]}"
    yield from summed(device, case, FastWeights, ours, states, given)


def summed(
    device: Device,
    case: str,
    kind: Kind,
    ours: clock.Run,
    memories: Sets,
    inputs: Sets,
) -> Rows:
    """Yield the rows of an attention that keeps sums.

    Args:
        device: Where it is.
        case: What it does.
        kind: The peer: a module that keeps the sums in its buffers.
        ours: Our step.
        memories: The sums before the token, set by set.
        inputs: What the peer takes, set by set.
    """
    theirs = partial(their_summed_step, device, kind, memories, inputs)
    contestants = {
        harness.OURS: Contestant(ours),
        EAGER: Contestant(deferred(partial(theirs, directly))),
        GRAPH: Contestant(deferred(partial(theirs, graphed))),
    }
    truth = exact_summed(device, kind, memories[0], inputs[0])
    yield from clock.race(device, case, contestants, error_from(device, truth))


def softmax(device: Device, shape: Shape, position: int) -> Rows:
    """Yield the rows of softmax attention after so many tokens."""
    caches = key_value_arrays(device, shape, position)
    tokens = [token(device, shape, seed) for seed in range(len(caches))]
    sums = our_summed_step(linear_attention_step, *linear_inputs(device, shape))
    contestants = {
        harness.OURS: Contestant(our_cached_step(SoftmaxAttention(), caches, tokens)),
        LINEAR: Contestant(sums, comparable=False),
        CACHED: Contestant(their_cached_step(device, caches, tokens)),
        f"{CACHED}, bfloat16": Contestant(
            deferred(lambda: their_cached_step(device, caches, tokens, torch.bfloat16)), "bfloat16"
        ),
    }
    case = f"a token of softmax attention after {position:,}, batch {shape[0]}"
    error = error_from(device, exact_cached(device, caches[0], tokens[0]))
    yield from clock.race(device, case, contestants, error)


def local(device: Device, shape: Shape, window: int) -> Rows:
    """Yield the rows of local attention; ours moves its keys up, so that it gets its own."""
    caches = key_value_arrays(device, shape, window)
    tokens = [token(device, shape, seed) for seed in range(len(caches))]
    own = [(keys.copy(), values.copy()) for keys, values in caches]
    contestants = {
        harness.OURS: Contestant(our_cached_step(LocalAttention(window), own, tokens)),
        CACHED: Contestant(their_cached_step(device, caches, tokens)),
    }
    case = f"a token of local attention, window {window}, batch {shape[0]}"
    error = error_from(device, exact_cached(device, caches[0], tokens[0]))
    yield from clock.race(device, case, contestants, error)


def sets(device: Device, shape: Shape, vectors: int) -> int:
    """Return how many sets of inputs to rotate, of so many vectors for each head."""
    return device.sets(4 * vectors * math.prod(shape))


def token(device: Device, shape: Shape, seed: int) -> Arrays:
    """Return the query, key and value of a token, (N, H, 1, E) each."""
    batch, heads, head_dim = shape
    query, key, value = device.random(3, batch, heads, 1, head_dim, seed=seed)
    return query, key, value


def linear_inputs(device: Device, shape: Shape) -> tuple[Sets, list[LinearState]]:
    """Return tokens, and the sums before each; Z is positive, as sums of features are."""
    seeds = range(sets(device, shape, shape[2]))
    states = [
        LinearState(
            device.random(*shape, shape[2], seed=2 * seed),
            shape[2] * abs(device.random(*shape, seed=2 * seed + 1)),
        )
        for seed in seeds
    ]
    return [token(device, shape, seed) for seed in seeds], states


def key_value_arrays(device: Device, shape: Shape, position: int) -> Sets:
    """Return keys and values (N, H, position + 1, E) of so many tokens, with room for one."""
    seeds = range(sets(device, shape, 2 * position))
    batch, heads, head_dim = shape
    sizes = batch, heads, position + 1, head_dim
    return [
        (device.random(*sizes, seed=2 * seed), device.random(*sizes, seed=2 * seed + 1))
        for seed in seeds
    ]


def our_summed_step(
    attend: Callable[..., Any], tokens: Sets, states: Sequence[Any], *others: Tensor
) -> clock.Run:
    """Return a step of ours, which leaves the sums as they are and returns new ones."""
    inputs: list[Any] = [[*(Tensor(x[:, :, 0]) for x in each), *others] for each in tokens]
    past = [type(state)(*map(Tensor, state)) for state in states]

    def step(call: int) -> Array:
        output, _ = attend(*inputs[call % len(past)], past[call % len(past)])
        return output.data

    return step


def our_cached_step(variant: AttentionVariant, caches: Sets, tokens: Sets) -> clock.Run:
    """Return the step of a variant whose state is a cache, in which it always takes one place."""
    inputs: list[Any] = [[Tensor(x) for x in each] for each in tokens]
    states = []
    for keys, values in caches:
        state = KeyValueCache()
        state.keys, state.values = keys, values
        states.append(state)
    position = caches[0][0].shape[2] - 1

    def step(call: int) -> Array:
        state = states[call % len(states)]
        state.length = position
        query, key, value = inputs[call % len(states)]
        output, _ = variant.step(query, key, value, state)
        return output.data

    return step


def their_cached_step(
    device: Device, caches: Sets, tokens: Sets, dtype: torch.dtype = torch.float32
) -> clock.Run:
    """Return the peer's step, which writes to the last place of its arrays and reads all."""
    inputs = [[device.tensor(x).to(dtype) for x in each] for each in tokens]
    memories = [[device.tensor(x).to(dtype) for x in cache] for cache in caches]

    def step(call: int) -> torch.Tensor:
        (query, key, value), (keys, values) = (
            inputs[call % len(inputs)],
            memories[call % len(inputs)],
        )
        keys[:, :, -1:], values[:, :, -1:] = key, value
        return scaled_dot_product_attention(query, keys, values)

    return step


def their_summed_step(
    device: Device, kind: Kind, memories: Sets, inputs: Sets, launched: Callable[[Call], Call]
) -> clock.Run:
    """Return the peer's step, whose calls go through `launched`."""
    calls = []
    for memory, given in zip(memories, inputs, strict=True):
        module = kind(*given[0].shape[:2], given[0].shape[3]).to(device.torch_device)
        calls.append(launched(partial(module, *map(device.tensor, given))))
        fill(module, map(device.tensor, memory))  # afterwards: a capture makes calls as well
    return lambda call: calls[call % len(calls)]()


def directly(call: Call) -> Call:
    """Return a call as it is."""
    return call


def fill(module: torch.nn.Module, sums: Iterable[torch.Tensor]) -> None:
    """Set a module's sums."""
    for buffer, tensor in zip(module.buffers(), sums, strict=True):
        buffer.copy_(tensor)


def exact_summed(device: Device, kind: Kind, memory: Arrays, given: Arrays) -> np.ndarray:
    """Return the first head's output of the peer in float64."""
    module = kind(1, 1, given[0].shape[3]).double()
    fill(module, (torch.from_numpy(first_head(device, x)) for x in memory))
    output: np.ndarray = module(*(torch.from_numpy(first_head(device, x)) for x in given)).numpy()
    return output


def exact_cached(device: Device, cache: Arrays, given: Arrays) -> np.ndarray:
    """Return the first head's output of softmax attention to a cache and a token, in float64."""
    query, key, value = (first_head(device, x) for x in given)
    keys, values = (first_head(device, x) for x in cache)
    keys[:, :, -1:], values[:, :, -1:] = key, value
    return reference.softmax_attention(query, keys, values)


def first_head(device: Device, array: Any) -> np.ndarray:
    """Return a copy of what belongs to the first head of the first sequence, in float64."""
    return device.numpy(array[:1, :1]).astype(np.float64)


def error_from(device: Device, truth: np.ndarray) -> Callable[[Any], float]:
    """Return what tells the relative error of an output (N, H, E) or (N, H, 1, E)."""
    return lambda output: harness.error(first_head(device, output).ravel(), truth.ravel(), math.inf)
