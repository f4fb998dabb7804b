"""S1's model, steps per second, beside the same model in eager PyTorch.

Encoder and decoder of 4 layers with 8 heads of 64, linear attention, batch 8, length 64, Adam. The
peer has the same weights, sums up all keys for bidirectional attention, takes the masked quadratic
form for causal attention (the fastest eager one at this length), and PyTorch's fused Adam. Freed
memory is kept in the process, as `train` does, for both. A profile of our steps follows: each
differentiable function's share, forward and backward.
"""

import cProfile
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
import torch

from minitransformer import functions as F
from minitransformer import nn, optim
from minitransformer.device import keep_freed_memory
from minitransformer.tasks.copy import SYMBOLS, CopyBatch, CopyTask

from . import harness, peers

TASK = CopyTask(length=64, layers=4, heads=8, head_dim=64)
BATCH_SIZE = 8
LEARNING_RATE = 1e-3
PROFILED_STEPS = 3


def rows() -> Iterator[harness.Row]:
    """Yield a row for each contestant, and the shares of our step."""
    keep_freed_memory()
    symbols = np.random.default_rng(0).integers(0, SYMBOLS, (BATCH_SIZE, TASK.length))
    batch = CopyBatch(symbols, np.full(BATCH_SIZE, TASK.length))
    ours = TASK.build("linear")
    theirs = same_model(ours)
    errors = check(ours, theirs, batch)
    step = our_step(ours, batch)
    contestants: harness.Contestants = {
        harness.OURS: step,
        "PyTorch eager": their_step(theirs, batch),
    }
    for row in harness.race(f"a training step of S1's model, length {TASK.length}", contestants):
        name = row["contestant"]
        yield row | {"steps_per_second": 1e3 / row["median_ms"], "error": errors[name]}
    yield from profile(step)


def same_model(ours: nn.Module) -> peers.Transformer:
    """Return the peer with our weights; a name or shape that differs is an error."""
    state = {name: torch.from_numpy(array) for name, array in ours.state_dict().items()}
    tokens, width = state["source_embedding.tokens.weight"].shape
    hidden = len(state["encoder.layers.0.feed_forward.layers.0.weight"])
    model = peers.Transformer(tokens, len(state["head.bias"]), TASK.length, width, TASK.heads,
                              TASK.layers, hidden)  # fmt: skip
    model.load_state_dict(state)
    return model


def check(ours: nn.Module, theirs: peers.Transformer, batch: CopyBatch) -> dict[str, float]:
    """Return the error of each side's gradient, by the peer in float64.

    More than rounding is allowed: a ReLU near its bend may pass in float32 and not in float64.
    """
    our_loss(ours, batch).backward()
    their_loss(theirs, batch).backward()
    exact = same_model(ours).double()
    their_loss(exact, batch).backward()
    truth = gradient(exact)
    sides = {harness.OURS: ours, "PyTorch eager": theirs}
    return {side: harness.error(gradient(model), truth, 1e-3) for side, model in sides.items()}


def gradient(model: Any) -> np.ndarray:
    """Return the gradients of all parameters, sorted by name, as one vector."""
    parameters = sorted(model.named_parameters(), key=lambda item: item[0])
    return np.concatenate([np.asarray(parameter.grad).ravel() for _, parameter in parameters])


def our_loss(model: nn.Module, batch: CopyBatch) -> Any:
    """Return the cross entropy."""
    logits = model(batch.source, batch.decoder_input)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch.source.reshape(-1))


def their_loss(model: peers.Transformer, batch: CopyBatch) -> torch.Tensor:
    """Return the cross entropy."""
    source, target = torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input)
    return torch.nn.functional.cross_entropy(model(source, target).flatten(0, 1), source.flatten())


def our_step(model: nn.Module, batch: CopyBatch) -> Callable[[], None]:
    """Return a function that takes one step."""
    optimizer = optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        our_loss(model, batch).backward()
        optimizer.step()

    return step


def their_step(model: peers.Transformer, batch: CopyBatch) -> Callable[[], None]:
    """Return a function that takes one step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        their_loss(model, batch).backward()
        optimizer.step()

    return step


def profile(step: Callable[[], None]) -> Iterator[harness.Row]:
    """Yield what each differentiable function, and the optimizer, take of a step."""
    profiler = cProfile.Profile()
    for _ in range(PROFILED_STEPS):
        profiler.runcall(step)
    spent = {e.code: e.totaltime for e in profiler.getstats() if isinstance(e.code, CodeType)}
    total = max(spent.values())  # the step itself
    times = {code.co_qualname: seconds for code, seconds in spent.items() if is_part(code)}
    times["the tape and the modules"] = total - sum(times.values())
    for name, seconds in sorted(times.items(), key=lambda item: -item[1]):
        if seconds > total / 100:
            milliseconds = 1e3 * seconds / PROFILED_STEPS
            yield {"part_of_our_step": name, "ms": milliseconds, "share": seconds / total}


def is_part(code: CodeType) -> bool:
    """Whether this is a pass of a differentiable function, or the optimizer: none calls another."""
    passes = "functions" in code.co_filename and code.co_name in ("forward", "backward")
    return passes or code.co_qualname == "Optimizer.step"


if __name__ == "__main__":
    harness.main("model", rows)
