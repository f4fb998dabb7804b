"""Predict zero, S3's own test: an epoch of multi-head attention beside PyTorch's layer.

Queries, keys and values are three matrices of U[-1, 1], time by vector, 4x4 to 32x32; the targets
are zero, the loss is the mean squared error, and 100 batches of 8 are an epoch of gradient descent
at the learning rate 1e-3. Two heads. The peer is `torch.nn.MultiheadAttention` with the same
weights, asked for no attention weights, and `torch.optim.SGD`; again compiled, its first step in
*compile s*. One thread each: there is not enough to do for two.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from minitransformer import Tensor, nn, optim
from minitransformer import functions as F
from minitransformer.experiments.predict_zero import HEADS, same_layer

from . import harness, peers

SIZES = 4, 8, 16, 32
BATCHES, BATCH_SIZE = 100, 8
LEARNING_RATE = 1e-3
PEER = "torch.nn.MultiheadAttention"

Batches = list[np.ndarray]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each contestant at each size."""
    torch.set_num_threads(1)
    for size in SIZES:
        shape = BATCHES, 3, BATCH_SIZE, size, size
        batches = list(np.random.default_rng(size).uniform(-1, 1, shape).astype(np.float32))
        ours = nn.MultiHeadAttention(size, HEADS)
        theirs = {PEER: same_layer(ours, size)}
        if peers.compiles():
            theirs[harness.COMPILED] = torch.compile(same_layer(ours, size), dynamic=False)
        firsts = check(ours, theirs, batches[0])
        epochs = {name: their_epoch(layer, batches) for name, layer in theirs.items()}
        contestants = {harness.OURS: our_epoch(ours, batches), **epochs}
        case = f"predict zero, 3x{size}x{size}: an epoch of {BATCHES} batches of {BATCH_SIZE}"
        for row in harness.race(case, contestants):
            name = row["contestant"]
            yield row | {"us_per_step": 1e3 * row["median_ms"] / BATCHES, **firsts[name]}


def check(
    ours: nn.MultiHeadAttention, theirs: dict[str, Any], batch: np.ndarray
) -> dict[str, harness.Row]:
    """Return the error of each side's gradient of the weights, by the peer in float64."""
    exact = their_gradient(same_layer(ours, batch.shape[-1]).double(), batch.astype(np.float64))
    gradients = {name: partial(their_gradient, layer, batch) for name, layer in theirs.items()}
    everyone = {harness.OURS: partial(our_gradient, ours, batch), **gradients}
    return harness.first_turns(everyone, lambda gradient: harness.error(gradient, exact))


def our_gradient(layer: nn.MultiHeadAttention, batch: np.ndarray) -> np.ndarray:
    """Return the gradients of our projections' weights, as one matrix."""
    our_loss(layer, [Tensor(x) for x in batch]).backward()
    matrices: list[Any] = [weight for weight in layer.parameters() if weight.ndim == 2]
    return np.concatenate([weight.grad.numpy() for weight in matrices])


def their_gradient(layer: Any, batch: np.ndarray) -> np.ndarray:
    """Return the same of a peer."""
    their_loss(layer, [torch.from_numpy(x) for x in batch]).backward()
    return np.concatenate([layer.in_proj_weight.grad.numpy(), layer.out_proj.weight.grad.numpy()])


def our_loss(layer: nn.MultiHeadAttention, inputs: list[Tensor]) -> Tensor:
    """Return the mean squared error from zero."""
    output = layer(*inputs)
    return F.mse_loss(output, Tensor(np.zeros(output.shape, np.float32)))


def their_loss(layer: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean squared error from zero."""
    output, _ = layer(*inputs, need_weights=False)
    return torch.nn.functional.mse_loss(output, torch.zeros_like(output))


def our_epoch(layer: nn.MultiHeadAttention, batches: Batches) -> Callable[[], None]:
    """Return a function that takes a step for each batch."""
    tensors = [[Tensor(x) for x in batch] for batch in batches]
    return partial(epoch, optim.SGD(layer.parameters(), LEARNING_RATE), our_loss, layer, tensors)


def their_epoch(layer: Any, batches: Batches) -> Callable[[], None]:
    """Return a function that takes a step for each batch."""
    tensors = [[torch.from_numpy(x) for x in batch] for batch in batches]
    optimizer = torch.optim.SGD(layer.parameters(), LEARNING_RATE)
    return partial(epoch, optimizer, their_loss, layer, tensors)


def epoch(optimizer: Any, loss: Callable[..., Any], layer: Any, batches: list[list[Any]]) -> None:
    """Take a step for each batch."""
    for inputs in batches:
        optimizer.zero_grad()
        loss(layer, inputs).backward()
        optimizer.step()


if __name__ == "__main__":
    os.environ["MINITRANSFORMER_NUM_THREADS"] = "1"
    harness.main("multi_head", rows)
