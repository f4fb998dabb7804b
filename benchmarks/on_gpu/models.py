"""Whole models: a training step, and the generation of a sequence, beside PyTorch.

The training step is that of the CPU's page: S1's encoder and decoder of 4 layers with 8 heads of
64, linear attention, length 64, Adam. The peer has the same weights: as eager PyTorch, compiled
layer by layer with `torch.compile`, and as one CUDA graph of the whole step. Its tokens lie on the
GPU; ours come from NumPy at every step, as in `train`. The error is the gradient's; much above
rounding it is a ReLU near its bend, which passes in float32 and not in float64.

Then a decoder of 8 layers with 8 heads of 64 writes 3,072 tokens, as many as an image of CIFAR-10
has numbers, each the likeliest after all before it: ours by `generate`, with the sums of linear
attention for its memory, or with all keys and values; PyTorch with either, eager, or replaying a
step as a CUDA graph. One run each; who takes longer than its share of the time stops early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from minitransformer import nn, random
from minitransformer.generation import generate
from minitransformer.tasks.copy import CopyTask

from .. import harness, peers
from .. import model as copying
from . import clock
from .clock import Contestant, Device
from .decoding import Cache, Decoder, MaskedCache, Sums, graphed

Weights = dict[str, np.ndarray]
Choose = Callable[[Any], Any]  # from logits (N, V) to tokens (N,), as in `generate`
Write = Callable[[Choose, int], object]  # so many tokens, each chosen
Step = Callable[[torch.Tensor], torch.Tensor]  # from tokens (N,) to logits (N, V)

BEND = 1e-3  # the error that a ReLU near its bend may bring
START = 0  # the token before the first
FORCED = 16  # tokens on which logits are checked
CHECKED = 4  # sequences of a batch, of which they are
EAGER, COMPILED, GRAPH = "PyTorch eager", "PyTorch torch.compile", "PyTorch CUDA graph"


class Scale(NamedTuple):
    """How large the models are.

    Attributes:
        task: What the training step learns.
        examples: Of a training step, batch by batch.
        layers: Of the decoder that writes.
        heads: H.
        head_dim: E.
        tokens: Size of its vocabulary.
        length: Tokens to write.
        sequences: At a time, batch by batch.
        marks: Numbers of tokens at which a token's time is told.
        window: Tokens before a mark, over which that time is a mean.
        limit: Seconds that a contestant may write.
    """

    task: CopyTask
    examples: tuple[int, int]
    layers: int
    heads: int
    head_dim: int
    tokens: int
    length: int
    sequences: tuple[int, int]
    marks: tuple[int, ...]
    window: int
    limit: float

    @property
    def width(self) -> int:
        """The width of the decoder."""
        return self.heads * self.head_dim


SCALES = {
    "full": Scale(
        copying.TASK, (8, 64), 8, 8, 64, 256, 3072, (1, 64), (256, 1024, 3072), window=64, limit=10
    ),
    "rehearsal": Scale(
        CopyTask(length=16, layers=1, heads=2, head_dim=16), (4, 2), 1, 2, 16, 11, 24, (1, 3),
        (8, 24), window=4, limit=60,
    ),
}  # fmt: skip


def rows(device: Device, size: str) -> Iterator[harness.Row]:
    """Yield the rows of each case, the smaller batches first.

    Args:
        device: Where the models are.
        size: A key of `SCALES`.
    """
    scale = scale_on(device, size)
    for examples, sequences in zip(scale.examples, scale.sequences, strict=True):
        yield from training(device, scale.task, examples)
        yield from writing(device, scale, sequences)


def scale_on(device: Device, size: str) -> Scale:
    """Return the scale of a size; to rehearse on a GPU compiles what the full size needs."""
    scale, full = SCALES[size], SCALES["full"]
    if device.name == "cpu":
        return scale
    task = replace(full.task, layers=scale.task.layers)
    return scale._replace(
        task=task, examples=full.examples, heads=full.heads, head_dim=full.head_dim
    )


def training(device: Device, task: CopyTask, examples: int) -> Iterator[harness.Row]:
    """Yield a row for each contestant of a training step."""
    random.manual_seed(0)
    ours = task.build("linear")
    tokens = copying.draw(task, examples)
    truth = copying.exact_gradient(ours, task, tokens, device.torch_device)
    eager, compiled, replayed = (
        copying.same_model(ours, task).to(device.torch_device) for _ in range(3)
    )
    steps = {
        harness.OURS: lambda: copying.our_step(ours.to(device.name), tokens),
        EAGER: lambda: copying.their_step(eager, tokens),
        COMPILED: lambda: compiled_step(compiled, tokens, "inductor"),
        GRAPH: lambda: graphed_training_step(replayed, tokens),
    }
    if device.name == "cpu":
        del steps[COMPILED]  # the compilation takes minutes there
    contestants = {name: Contestant(each(build), allowed=BEND) for name, build in steps.items()}
    case = f"a training step of S1's model, length {task.length}, batch {examples}"
    for row in clock.race(device, case, contestants, partial(gradient_error, truth)):
        milliseconds = row["median_ms"]
        yield row | {"steps_per_second": 1e3 / milliseconds if milliseconds else None}


def each(build: Callable[[], Callable[[], Any]]) -> clock.Run:
    """Return a contestant to whom the number of the call means nothing, built when first called."""

    def run() -> clock.Run:
        step = build()
        return lambda call: step()

    return clock.deferred(run)


def gradient_error(truth: np.ndarray, model: Any) -> float:
    """Return the relative error of the gradient that a step left in its model."""
    return harness.error(copying.gradient(model), truth, math.inf)


def compiled_step(
    model: peers.Transformer, tokens: copying.Tokens, backend: Any
) -> Callable[[], peers.Transformer]:
    """Return a training step whose layers are compiled: one of each kind, for all of that kind."""
    for layer in model.modules():
        if isinstance(layer, peers.EncoderLayer | peers.DecoderLayer):
            layer.compile(backend=backend, dynamic=False)
    return copying.their_step(model, tokens)


def graphed_training_step(
    model: peers.Transformer, tokens: copying.Tokens
) -> Callable[[], peers.Transformer]:
    """Return a training step that is one CUDA graph, from the weights as they are."""
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    replay = graphed(copying.their_step(model, tokens, capturable=True))
    model.load_state_dict(start)
    return replay


def writing(device: Device, scale: Scale, sequences: int) -> Iterator[harness.Row]:
    """Yield a row for each contestant that writes so many sequences at a time."""
    random.manual_seed(0)
    weights = our_decoder(scale, "linear").state_dict()
    truths = {
        "linear": exact_logits(scale, weights, peers.linear_quadratic),
        "softmax": exact_logits(
            scale, weights, partial(scaled_dot_product_attention, is_causal=True)
        ),
    }
    case = f"{scale.layers} layers write {scale.length:,} tokens, batch {sequences}"
    ours: float | None = None  # tokens per second
    for name, (attention, build) in writers(device, scale, weights, sequences).items():
        row = clock.row(case, name, "float32") | written(
            device, scale, sequences, build, truths[attention]
        )
        rate = row["tokens_per_second"]
        ours = rate if name == harness.OURS else ours
        yield row | {"ours_over_this": rate / ours if rate and ours else None}


def writers(
    device: Device, scale: Scale, weights: Weights, sequences: int
) -> dict[str, tuple[str, Callable[[], Write]]]:
    """Return what each contestant attends by, and what makes it."""
    ours = partial(our_writer, device, scale, weights, sequences)
    eager = partial(their_writer, device, scale, weights, sequences, eager_step)
    graph = partial(their_writer, device, scale, weights, sequences, graph_step)
    return {
        harness.OURS: ("linear", partial(ours, "linear")),
        f"{harness.OURS} softmax": ("softmax", partial(ours, "softmax")),
        EAGER: ("linear", partial(eager, Sums)),
        f"{EAGER} softmax": ("softmax", partial(eager, partial(Cache, length=scale.length))),
        GRAPH: ("linear", partial(graph, Sums)),
        f"{GRAPH} softmax": ("softmax", partial(graph, partial(MaskedCache, length=scale.length))),
    }


def our_decoder(scale: Scale, attention: str) -> nn.TransformerLM:
    """Return our decoder, with new weights."""
    return nn.TransformerLM(
        scale.tokens,
        scale.width,
        scale.heads,
        scale.layers,
        positions="learned",
        max_length=scale.length,
        attention=attention,
        dim_feedforward=4 * scale.width,
        dropout=0.0,
    )


def their_decoder(
    scale: Scale, weights: Weights, attention: Callable[[], peers.Attention]
) -> Decoder:
    """Return the peer with our weights."""
    model = Decoder(scale.tokens, scale.length, scale.width, scale.heads, scale.layers, attention)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model.requires_grad_(False)


def our_writer(
    device: Device, scale: Scale, weights: Weights, sequences: int, attention: str
) -> Write:
    """Return `generate`, with our decoder on the device."""
    model = our_decoder(scale, attention)
    model.load_state_dict(weights)
    model.to(device.name)
    start = np.full((sequences, 1), START)
    return lambda choose, count: generate(model, start, count, choose=choose)


def their_writer(
    device: Device,
    scale: Scale,
    weights: Weights,
    sequences: int,
    step_of: Callable[[Decoder, torch.Tensor], Step],
    memory: Callable[..., torch.nn.Module],
) -> Write:
    """Return the same of the peer, with a memory of the past in each layer."""
    attention = partial(memory, sequences, scale.heads, scale.head_dim)
    model = their_decoder(scale, weights, attention).to(device.torch_device)
    start = torch.full((sequences,), START, device=device.torch_device)

    step = step_of(model, start)

    def write(choose: Choose, count: int) -> None:
        model.forget()
        tokens = start
        for _ in range(count):
            tokens = torch.as_tensor(choose(step(tokens)), device=start.device)

    return write


def eager_step(model: Decoder, start: torch.Tensor) -> Step:
    """Return the peer's step as it is."""
    return model.step


def graph_step(model: Decoder, start: torch.Tensor) -> Step:
    """Return the peer's step as one CUDA graph, which reads its tokens where they always lie."""
    place = start.clone()
    replay = graphed(lambda: model.step(place))

    def step(tokens: torch.Tensor) -> torch.Tensor:
        place.copy_(tokens)
        return replay()

    return step


def forced_tokens(scale: Scale, sequences: int) -> np.ndarray:
    """Return tokens (N, FORCED), the same for each number of sequences as far as they go."""
    tokens = np.random.default_rng(0).integers(0, scale.tokens, (FORCED, CHECKED)).T
    return np.resize(tokens, (sequences, FORCED))


def exact_logits(scale: Scale, weights: Weights, attention: peers.Attention) -> np.ndarray:
    """Return the logits (N, FORCED, V) of forced tokens, by the peer in float64, all at once."""
    model = their_decoder(scale, weights, lambda: attention).double()
    tokens = np.insert(forced_tokens(scale, CHECKED)[:, :-1], 0, START, axis=1)
    logits: np.ndarray = model(torch.from_numpy(tokens)).numpy()
    return logits


def logits_error(device: Device, scale: Scale, write: Write, truth: np.ndarray) -> float:
    """Return the relative error of the logits, where the tokens are not chosen but forced.

    Raises:
        ArithmeticError: It is more than float32 is allowed.
    """
    found: list[np.ndarray] = []

    def force(logits: Any) -> np.ndarray:
        found.append(device.numpy(logits).copy())
        return forced_tokens(scale, len(logits))[:, len(found) - 1]

    write(force, FORCED)
    got = np.stack(found, axis=1)[:CHECKED]
    return harness.error(got, truth[: len(got)], clock.ALLOWED["float32"])


class TimeIsUp(Exception):
    """A contestant has written for as long as it may."""


class Pace:
    """Chooses the likeliest tokens, and notes when, at some of them.

    Args:
        device: Where the logits are.
        scale: Where a token's time is told, and how long it may take.
    """

    def __init__(self, device: Device, scale: Scale) -> None:
        self.device, self.scale = device, scale
        self.limit = min(scale.limit, device.seconds_left())
        self.noted = {0, scale.length, *scale.marks, *(mark - scale.window for mark in scale.marks)}
        self.count = 0
        self.times: dict[int, float] = {}
        self._note()

    def __call__(self, logits: Any) -> Any:
        """Return the tokens (N,) of logits (N, V)."""
        tokens = logits.argmax(-1)
        self.count += 1
        late = time.perf_counter() - self.times[0] > self.limit
        if late or self.count in self.noted:
            self._note()
        if late and self.count < self.scale.length:
            raise TimeIsUp
        return tokens

    def _note(self) -> None:
        self.device.synchronize()
        self.times[self.count] = time.perf_counter()

    def row(self, sequences: int) -> harness.Row:
        """Return what was measured, of so many sequences at a time."""
        seconds = self.times[self.count] - self.times[0]
        done = self.count == self.scale.length
        return {
            "median_ms": 1e3 * seconds if done else None,
            "rounds": 1,
            "tokens_per_second": sequences * self.count / seconds,
            **{f"ms_at_{mark:,}": self._milliseconds(mark) for mark in self.scale.marks},
            "note": None if done else f"its time was up after {self.count:,} tokens",
        }

    def _milliseconds(self, mark: int) -> float | None:
        if mark not in self.times:
            return None
        before = mark - self.scale.window
        return 1e3 * (self.times[mark] - self.times[before]) / self.scale.window


def written(
    device: Device, scale: Scale, sequences: int, build: Callable[[], Write], truth: np.ndarray
) -> harness.Row:
    """Return what a contestant's row says of its speed, error and memory, or why it has none."""
    nothing = dict.fromkeys(["tokens_per_second", *(f"ms_at_{mark:,}" for mark in scale.marks)])
    if device.seconds_left() <= 0:
        return nothing | {"note": clock.NOT_RUN}
    device.free()
    if device.name == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        write = build()
        error = logits_error(device, scale, write, truth)
        pace = Pace(device, scale)
        with suppress(TimeIsUp):
            write(pace, scale.length)
    except Exception as problem:
        return nothing | {"note": clock.reason(problem)}
    return pace.row(sequences) | {"error": error, "peak_MB": most_megabytes(device)}


def most_megabytes(device: Device) -> float | None:
    """Return the most that both libraries took of the GPU since `device.free`, weights included."""
    if device.name == "cpu":
        return None
    ours: int = device.xp.get_default_memory_pool().total_bytes()  # it gives nothing back by itself
    return (ours + torch.cuda.max_memory_allocated()) / 1e6
