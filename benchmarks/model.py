"""S1's model, steps per second, beside the same model in eager PyTorch.

Encoder and decoder of 4 layers with 8 heads of 64, linear attention, batch 8, length 64, Adam. The
peer has the same weights, sums up all keys for bidirectional attention, takes the masked quadratic
form for causal attention (the fastest eager one at this length), and PyTorch's fused Adam; again
with its layers compiled, its first step in *compile s*. Freed memory is kept in the process, as
`train` does, for all of them.

The large matrix products of a step are then run again without the step, by NumPy's BLAS on our
threads and by PyTorch's: both engines do them, so neither step can take less. A profile of our
steps follows: each differentiable function's share, forward and backward.
"""

import cProfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import numpy as np
import torch

from minitransformer import functions as F
from minitransformer import nn, optim
from minitransformer.device import keep_freed_memory
from minitransformer.functions.products import shared_products
from minitransformer.tasks.copy import SYMBOLS, CopyBatch, CopyTask

from . import harness, peers

TASK = CopyTask(length=64, layers=4, heads=8, head_dim=64)
BATCH_SIZE = 8
LEARNING_RATE = 1e-3
PROFILED_STEPS = 3

Tokens = tuple[np.ndarray, np.ndarray]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each contestant, and the shares of our step."""
    keep_freed_memory()
    ours = TASK.build("linear")
    theirs = same_model(ours, TASK)
    tokens = draw(TASK, BATCH_SIZE)
    truth = exact_gradient(ours, TASK, tokens)
    steps: harness.Contestants = {
        harness.OURS: our_step(ours, tokens),
        "PyTorch eager": their_step(theirs, tokens),
    }
    if peers.compiles():
        model = same_model(ours, TASK)
        model.compile_layers()
        steps = {**steps, harness.COMPILED: their_step(model, tokens)}
    firsts = harness.first_turns(steps, lambda model: harness.error(gradient(model), truth, 1e-3))
    for row in harness.race(f"a training step of S1's model, length {TASK.length}", steps):
        name = row["contestant"]
        yield row | {"steps_per_second": 1e3 / row["median_ms"]} | firsts[name]
    alone = products_of(steps[harness.OURS])
    yield from harness.race("its matrix products alone", alone)
    yield from profile(steps[harness.OURS])


def draw(task: CopyTask, count: int) -> Tokens:
    """Return what the model reads and what its decoder is given, (N, L) integers each."""
    symbols = np.random.default_rng(0).integers(0, SYMBOLS, (count, task.length))
    batch = CopyBatch(symbols, np.full(count, task.length))
    return batch.source, batch.decoder_input


def same_model(ours: nn.Module, task: CopyTask) -> peers.Transformer:
    """Return the peer with our weights; a name or shape that differs is an error."""
    state = {name: torch.from_numpy(array) for name, array in ours.state_dict().items()}
    tokens, width = state["source_embedding.tokens.weight"].shape
    hidden = len(state["encoder.layers.0.feed_forward.layers.0.weight"])
    model = peers.Transformer(tokens, len(state["head.bias"]), task.length, width, task.heads,
                              task.layers, hidden)  # fmt: skip
    model.load_state_dict(state)
    return model


def exact_gradient(
    ours: nn.Module, task: CopyTask, tokens: Tokens, device: str = "cpu"
) -> np.ndarray:
    """Return the gradient at our weights, by the peer in float64 on one of PyTorch's devices.

    More than rounding parts others from it: a ReLU near its bend may pass in float32 and not here.
    """
    exact = same_model(ours, task).double().to(device)
    their_loss(exact, *(torch.from_numpy(array).to(device) for array in tokens)).backward()
    return gradient(exact)


def gradient(model: Any) -> np.ndarray:
    """Return the gradients of all parameters, sorted by name, as one vector."""
    parameters = sorted(model.named_parameters(), key=lambda item: item[0])
    return np.concatenate([_host(parameter.grad).ravel() for _, parameter in parameters])


def _host(tensor: Any) -> np.ndarray:
    """Return the NumPy array of a tensor, ours or PyTorch's, wherever it lies."""
    array: np.ndarray = (tensor.cpu() if isinstance(tensor, torch.Tensor) else tensor).numpy()
    return array


def our_loss(model: nn.Module, source: Any, target: Any) -> Any:
    """Return the cross entropy."""
    logits = model(source, target)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), source.reshape(-1))


def their_loss(
    model: peers.Transformer, source: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """Return the cross entropy."""
    return torch.nn.functional.cross_entropy(model(source, target).flatten(0, 1), source.flatten())


def our_step(model: nn.Module, tokens: Tokens) -> Callable[[], nn.Module]:
    """Return a function that takes one step, and returns the model with its gradient."""
    return partial(step, optim.Adam(model.parameters(), LEARNING_RATE), our_loss, model, tokens)


def their_step(
    model: peers.Transformer, tokens: Tokens, **options: Any
) -> Callable[[], peers.Transformer]:
    """Return a function that does the same, where the model is.

    Args:
        model: The peer.
        tokens: As `draw` returned them.
        options: Of PyTorch's Adam.
    """
    tensors = [torch.from_numpy(array).to(model.head.weight.device) for array in tokens]
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True, **options)
    return partial(step, optimizer, their_loss, model, tensors)


def step(optimizer: Any, loss: Callable[..., Any], model: Any, tokens: Iterable[Any]) -> Any:
    """Take one step, and return the model with its gradient."""
    optimizer.zero_grad()
    loss(model, *tokens).backward()
    optimizer.step()
    return model


def products_of(run: Callable[[], Any]) -> harness.Contestants:
    """Return contestants that compute the products that a call shares out among our threads."""
    calls: list[tuple[tuple[np.ndarray, ...], ...]] = []

    def noted(*terms: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        calls.append(terms)
        return shared_products(*terms)

    with mock.patch("minitransformer.functions.products.shared_products", noted):
        run()
    theirs = [tuple(torch.from_numpy(array) for array in term) for call in calls for term in call]
    return {
        harness.OURS: lambda: [shared_products(*terms) for terms in calls],
        "PyTorch eager": lambda: [
            torch.addmm(bias[0], x, y) if bias else torch.matmul(x, y) for x, y, *bias in theirs
        ],
    }


def profile(run: Callable[[], Any]) -> Iterator[harness.Row]:
    """Yield what each differentiable function, and the optimizer, take of a step."""
    profiler = cProfile.Profile()
    for _ in range(PROFILED_STEPS):
        profiler.runcall(run)
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
    passes = code.co_name in ("forward", "backward")
    of_functions = Path(code.co_filename).parent.name in ("functions", "attention")
    return (passes and of_functions) or code.co_qualname == "Optimizer.step"


if __name__ == "__main__":
    harness.main("model", rows)
