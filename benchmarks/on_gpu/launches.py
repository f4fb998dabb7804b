"""What a launch costs before the GPU does anything, and how much of a call is Python.

A kernel that does nothing, with 1 to 12 arrays, launched again and again: by ours, Numba's own
launch, CuPy's and Triton's; beside them the smallest operations of CuPy and PyTorch. *us* is how
long a call takes among many, *host us* Python's part of it, and *device us* the GPU's, with all
calls queued behind a long product.

Then calls so small that the GPU has next to nothing to do. *launches* counts those of our kernels,
not CuPy's operations; *launches alone us* is how long they take when they are made once more with
the same arguments, and nothing else.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from minitransformer import Tensor, no_grad
from minitransformer.attention import linear_attention, linear_attention_step, softmax_attention
from minitransformer_kernels import recurrent, softmax
from minitransformer_kernels.cuda import Launch, cuda
from minitransformer_kernels.visible import CAUSAL

from .. import harness
from .. import model as copying
from . import clock
from .clock import Device, Row, Run
from .models import Scale, our_decoder, scale_on

ARRAYS = 1, 4, 8, 12
TURNS = 5
CALLS = {"full": 100, "rehearsal": 2}
BLOCKER = 8192  # rows of the matrices whose product keeps the GPU busy while calls are queued
TOKENS = 16  # of a small attention, of one head of 16


@cuda.jit
def nothing_1(a):  # type: ignore[no-untyped-def]
    """Do nothing."""


@cuda.jit
def nothing_4(a, b, c, d):  # type: ignore[no-untyped-def]
    """Do nothing."""


@cuda.jit
def nothing_8(a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
    """Do nothing."""


@cuda.jit
def nothing_12(a, b, c, d, e, f, g, h, i, j, k, m):  # type: ignore[no-untyped-def]
    """Do nothing."""


NOTHING = {1: nothing_1, 4: nothing_4, 8: nothing_8, 12: nothing_12}


def rows(device: Device, size: str) -> Iterator[Row]:
    """Yield a row for each way to launch nothing, then one for each small call.

    Args:
        device: Where to launch.
        size: A key of `CALLS`.
    """
    for count in ARRAYS:
        case = f"a kernel that does nothing, {count} array{'s' * (count > 1)}"
        for name, build in launchers(device, count).items():
            yield {"case": case, "contestant": name} | launching(device, build, CALLS[size])
    for name, call in small_calls(device, scale_on(device, size)).items():
        yield {"call": name} | making(device, call, CALLS[size])


def launchers(device: Device, count: int) -> dict[str, Callable[[], Run]]:
    """Return what makes each way to launch a kernel with so many arrays."""
    arrays = [device.xp.zeros(32, device.xp.float32) for _ in range(count)]
    tensor = device.tensor(arrays[0])

    def ours() -> Run:
        launch = NOTHING[count][1, 1]
        return lambda call: launch(*arrays)

    def configured() -> Run:
        return lambda call: NOTHING[count][1, 1](*arrays)

    def numbas() -> Run:
        numba_cuda = importlib.import_module("numba.cuda")
        numba_cuda.config.CUDA_ARRAY_INTERFACE_SYNC = False  # all is on one stream
        numba_cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = False
        launch = numba_cuda.jit(NOTHING[count].function)[1, 1]
        return lambda call: launch(*arrays)

    def cupys() -> Run:
        names = ", ".join(f"float* a{number}" for number in range(count))
        kernel = device.xp.RawKernel(f'extern "C" __global__ void nothing({names}) {{}}', "nothing")
        return lambda call: kernel((1,), (1,), arrays)

    def tritons() -> Run:
        kernel = importlib.import_module("triton").jit(NOTHING[count].function)[1,]
        tensors = [device.tensor(array) for array in arrays]
        return lambda call: kernel(*tensors)

    found = {
        harness.OURS: ours,
        f"{harness.OURS}, [blocks, threads] at each call": configured,
        "Numba": numbas,
        "CuPy RawKernel": cupys,
        "Triton": tritons,
    }
    if count == 1:
        found |= {
            "CuPy x += 1" if device.name == "cuda" else "NumPy x += 1": lambda: (
                lambda call: device.xp.add(arrays[0], 1, out=arrays[0])
            ),
            "PyTorch x.add_(1)": lambda: lambda call: tensor.add_(1),
        }
    return found


def launching(device: Device, build: Callable[[], Run], calls: int) -> Row:
    """Return how long a call takes, in microseconds, or why it cannot be made."""
    columns = "us", "host_us", "device_us"
    try:
        run = build()
        times = (*typical(device, run, calls), queued(device, run, calls))
    except Exception as problem:
        return {**dict.fromkeys(columns), "note": clock.reason(problem)}
    return {**dict(zip(columns, times, strict=True)), "note": None}


def typical(device: Device, run: Run, calls: int) -> tuple[float, float]:
    """Return the microseconds of a call, and Python's part of it: medians of a few turns."""
    device.time(run, 2)
    turns = [device.time(run, calls) for _ in range(TURNS)]
    whole, host = (1e6 * statistics.median(times) for times in zip(*turns, strict=True))
    return whole, host


def queued(device: Device, run: Run, calls: int) -> float | None:
    """Return the microseconds that the GPU needs for a call when the next is always there."""
    if device.name == "cpu":
        return None
    matrix = torch.randn(BLOCKER, BLOCKER, device=device.torch_device)
    start, end = device.xp.cuda.Event(), device.xp.cuda.Event()
    _ = matrix @ matrix
    start.record()
    for call in range(calls):
        run(call)
    end.record()
    end.synchronize()
    return float(1e3 * device.xp.cuda.get_elapsed_time(start, end) / calls)


def small_calls(device: Device, scale: Scale) -> dict[str, Callable[[], Any]]:
    """Return calls of an attention, from its kernel's host function up to whole models."""
    data = [device.random(1, 1, TOKENS, TOKENS, seed=seed) for seed in range(4)]
    query, key, value = (Tensor(x, requires_grad=True) for x in data[:3])
    q, k, v = (Tensor(x[:, :, 0]) for x in data[:3])
    arrays = data[0], data[1], data[2]
    _, _, state = recurrent.forward(*arrays)
    past = recurrent.LinearState(*map(Tensor, state))

    def attend(attention: Any) -> Any:
        return lambda: attention(query, key, value, causal=True)

    def passes(attention: Any) -> Any:
        return lambda: attention(query, key, value, causal=True).backward(data[3])

    sizes = f"L={TOKENS}, one head of {TOKENS}"
    return {
        f"softmax attention's host function, {sizes}": lambda: softmax.forward(*arrays, CAUSAL),
        f"softmax_attention, {sizes}": attend(softmax_attention),
        f"softmax_attention and backward, {sizes}": passes(softmax_attention),
        f"linear attention's host function, {sizes}": lambda: recurrent.forward(*data[:3]),
        f"linear_attention, {sizes}": attend(linear_attention),
        f"linear_attention and backward, {sizes}": passes(linear_attention),
        f"linear_attention_step, one head of {TOKENS}": lambda: linear_attention_step(
            q, k, v, past
        ),
        f"a token of a decoder of {scale.layers} layers": decoder_step(device, scale),
        "a training step of S1's model": training_step(device, scale),
    }


def decoder_step(device: Device, scale: Scale) -> Callable[[], Any]:
    """Return a step of the decoder that `models` has write."""
    model = our_decoder(scale, "linear").to(device.name).eval()
    with no_grad():
        _, state = model.step(np.zeros((1, 1), np.int64), model.init_state())
    return no_grad()(lambda: model.step(np.zeros((1, 1), np.int64), state))


def training_step(device: Device, scale: Scale) -> Callable[[], Any]:
    """Return the training step of `models`, of the smaller batch."""
    model = scale.task.build("linear").to(device.name)
    return copying.our_step(model, copying.draw(scale.task, min(scale.examples)))


def making(device: Device, call: Callable[[], Any], calls: int) -> Row:
    """Return how long a call takes, and its launches without the rest, in microseconds."""
    columns = "us", "host_us", "launches", "launches_alone_us"
    try:
        whole, host = typical(device, lambda _: call(), max(1, calls // 10))
        launches = launches_of(call)
        alone, _ = typical(device, lambda _: repeat(launches), max(1, calls // 10))
    except Exception as problem:
        return {**dict.fromkeys(columns), "note": clock.reason(problem)}
    times = whole, host, len(launches), alone
    return {**dict(zip(columns, times, strict=True)), "note": None}


def launches_of(call: Callable[[], Any]) -> list[tuple[Launch, tuple[Any, ...]]]:
    """Return the launches that a call makes, with their arguments."""
    made: list[tuple[Launch, tuple[Any, ...]]] = []
    launch = Launch.__call__

    def noted(self: Launch, *arguments: Any) -> None:
        made.append((self, arguments))
        launch(self, *arguments)

    with mock.patch.object(Launch, "__call__", noted):
        call()
    return made


def repeat(launches: list[tuple[Launch, tuple[Any, ...]]]) -> None:
    """Make launches once more."""
    for launch, arguments in launches:
        launch(*arguments)
