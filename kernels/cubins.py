"""What the kernels need on GPUs, found without one: `python -m minitransformer_kernels.cubins`.

The host functions run with their launches noted down instead of made. Numba compiles each kernel
for the noted arguments to PTX, and NVIDIA's linker assembles that to a cubin and tells its needs:

    registers   of each thread; a multiprocessor shares 65,536 among its threads
    spills      bytes that went to slow memory because there were too few registers
    local       bytes of each thread's stack: arrays that are indexed by more than constants
    shared      bytes of each block, as declared; 48 KiB are there without asking
    float64     instructions on float64, 2 to 64 times slower: often a stray Python number

It needs the extra `cuda13`, but no GPU and no driver.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from . import (
    chunked,
    delta,
    features,
    fourier,
    graph,
    guards,
    linear,
    local,
    normalised,
    recurrent,
    relative,
    softmax,
)
from .arrays import HEAD_DIMS
from .cuda import Kernel, Launch, cuda

ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0))  # Turing, Ampere, Hopper, Blackwell
REGISTERS = 65_536  # of a multiprocessor, on all of these


class Specialisation(NamedTuple):
    """A kernel, the types of its arguments, and the threads of its block."""

    name: str
    kernel: Kernel
    types: tuple[Any, ...]
    threads: int


class Needs(NamedTuple):
    """What a specialisation needs on one architecture, in the units of this module's docstring."""

    registers: int
    spills: int
    local: int
    shared: int
    float64: int


def specialisations(head_dim: int, dtype: Any = np.float32) -> Iterable[Specialisation]:
    """Return every kernel that the host functions launch for a head dim (E = M)."""
    found: dict[Any, Specialisation] = {}

    def note(launch: Launch, *arguments: Any) -> None:
        kernel, threads = launch.kernel, prod(launch.block)
        types = tuple(map(kernel.on_gpu.typeof_pyval, arguments))
        name = f"{kernel.function.__module__.rpartition('.')[2]}.{kernel.__name__}"
        found[kernel, types, threads] = Specialisation(name, kernel, types, threads)

    inputs = [np.zeros((2, 2, 100, head_dim), dtype)] * 3
    with patch.object(Launch, "__call__", note):
        for host in HOSTS.values():
            host(*inputs)
    return found.values()


def _softmax(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    output, log_sum_exp = softmax.forward(*inputs)
    softmax.backward(output, *inputs, output, log_sum_exp)


def _softmax_dropped(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    scores = np.zeros((*query.shape[:3], 65), query.dtype)
    options: dict[str, Any] = {"relative_scores": scores, "dropout": 0.1}
    output, log_sum_exp = softmax.forward(*inputs, **options)
    softmax.backward(output, *inputs, output, log_sum_exp, **options)


def _naive(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    for causal in (False, True):
        output, denominator = linear.naive_forward(*inputs, causal=causal)
        linear.naive_backward(output, *inputs, output, denominator, causal=causal)


def _linear(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    output, denominator = linear.forward(*inputs)
    linear.backward(output, *inputs, output, denominator)
    guards.divided(output, denominator, guard="clamp", eps=None)


def _recurrent(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    output, denominator, state = recurrent.forward(*inputs)
    recurrent.backward(output, state, *inputs, output, denominator)
    recurrent.step(query[:, :, 0], key[:, :, 0], value[:, :, 0], state)


def _chunked(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    output, denominator, state = chunked.forward(*inputs)
    chunked.backward(output, state, *inputs, output, denominator)


def _fourier(query: Any, key: Any, value: Any) -> None:
    (N, H, L, E), dtype = query.shape, query.dtype
    positions, frequency = np.zeros((N, L, 2)), np.zeros((H, E, 2), dtype)
    phase, amplitude = np.zeros((2, H, E), dtype)
    saved = fourier.features(query, positions, frequency, phase, amplitude)
    fourier.features_backward(saved.rows, query, positions, frequency, amplitude, saved)


def _relative(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value, np.zeros((query.shape[1], 65, query.shape[3]), query.dtype)
    options: dict[str, Any] = {"algorithm": "recurrent", "causal": True}
    output, denominator, weights, state = relative.forward(*inputs, **options)
    options["initial_state"] = state
    relative.backward(output, state, *inputs, output, denominator, weights, **options)
    relative.step(query[:, :, 0], key[:, :, 0], value[:, :, 0], inputs[3], state)


def _features(query: Any, key: Any, value: Any) -> None:
    projection, positions = key[0, 0], np.arange(query.shape[2])
    phi = features.favor_forward(query, projection)
    favor = query, projection, phi
    features.favor_backward(phi, *favor, projection_needs_gradient=True)
    features.dpfp_backward(features.dpfp_forward(query), query)
    phi = features.cosformer_forward(query, positions, longest=len(positions))
    features.cosformer_backward(phi, query, positions, longest=len(positions))


def _delta(query: Any, key: Any, value: Any) -> None:
    inputs, beta = (query, key, value), np.zeros(key.shape[:3], key.dtype)
    output, residual, state = delta.forward(*inputs, beta)
    delta.backward(output, state, *inputs, beta, output, residual)
    delta.step(query[:, :, 0], key[:, :, 0], value[:, :, 0], beta[:, :, 0], state)
    options: dict[str, Any] = {"feature_map": "elu", "normalize": "sum"}
    phi, inverse = normalised.forward(query, **options)
    normalised.backward(phi, query, phi, inverse, **options)


def _local(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    output, log_sum_exp = local.forward(*inputs, window=32)
    local.backward(output, *inputs, output, log_sum_exp, window=32)


def _graph(query: Any, key: Any, value: Any) -> None:
    query, key, value = query[0], key[0], value[0]
    nodes = np.arange(query.shape[1] + 1)  # each sees itself
    edges = graph.Edges(nodes, nodes[:-1], query.shape[1])
    a, b = query[..., 0], key[..., 0]
    graph.additive_scores_backward(graph.additive_scores(a, b, edges), a, b, edges)
    scores = graph.dot_scores(query, key, edges)
    graph.dot_scores_backward(scores, query, key, edges)
    output, weights = graph.forward(scores, value, edges, dropout=0.5)
    graph.backward(output, value, edges, output, weights)


# Each calls the host functions of one attention, forward and backward, on query, key and value.
HOSTS = {
    "softmax": _softmax,
    "naive": _naive,
    "linear": _linear,
    "recurrent": _recurrent,
    "chunked": _chunked,
    "fourier": _fourier,
    "relative": _relative,
    "features": _features,
    "delta": _delta,
    "local": _local,
    "graph": _graph,
    "softmax_dropped": _softmax_dropped,
}


def available() -> bool:
    """Return whether the extra that this module needs is installed."""
    try:
        from cuda.bindings import nvjitlink  # noqa: F401
    except ImportError:
        return False
    return find_spec("numba_cuda") is not None


@cache
def needs(specialisation: Specialisation, architecture: tuple[int, int]) -> Needs:
    """Compile a kernel for an architecture, and return what it needs there."""
    text = ptx(specialisation, architecture)
    log = _assemble(text, architecture, specialisation.kernel.options.get("max_registers"))
    return Needs(
        registers=max(_numbers(r"sed (\d+) registers", log)),
        spills=sum(_numbers(r"(\d+) bytes spill", log)),
        local=max(_numbers(r"(\d+) bytes (?:stack frame|lmem)", log)),
        shared=sum(_numbers(r"^\.visible \.shared .*\[(\d+)\];", text)),
        float64=float64_lines(text).total(),
    )


def ptx(
    specialisation: Specialisation, architecture: tuple[int, int], lineinfo: bool = False
) -> str:
    """Compile a kernel to PTX, with the lines of its source in it if they are wanted."""
    _, kernel, types, _ = specialisation
    fastmath = bool(kernel.options.get("fastmath"))
    # Numba compiles device functions for the device that it finds: let it find one.
    device = SimpleNamespace(compute_capability=architecture)
    with patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = cuda.compile_ptx(
            kernel.on_gpu.py_func, types, cc=architecture, fastmath=fastmath, lineinfo=lineinfo
        )
    return text


def float64_lines(ptx: str) -> Counter[tuple[str, int]]:
    """Count the float64 instructions of each (file, line); without lines all are at ("", 0)."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "(.*?)"', ptx, re.MULTILINE))
    found = Counter[tuple[str, int]]()
    place = ("", 0)
    for text in ptx.splitlines():
        if location := re.match(r"\s*\.loc\s+(\d+) (\d+)", text):
            place = files[location[1]], int(location[2])
        elif re.match(r"\s.*\.f64\b", text) and not re.match(r"\s*\.(reg|param)\b", text):
            found[place] += 1
    return found


def _assemble(ptx: str, architecture: tuple[int, int], max_registers: int | None) -> str:
    """Assemble PTX to a cubin; return the assembler's log."""
    from cuda.bindings import nvjitlink

    major, minor = architecture
    options = [f"-arch=sm_{major}{minor}", "-O3", "-verbose"]
    if max_registers is not None:
        options.append(f"-maxrregcount={max_registers}")
    linker = nvjitlink.create(len(options), options)
    try:
        text = ptx.encode()
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "kernel.ptx")
        nvjitlink.complete(linker)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        error.add_note(log.decode().rstrip("\n\0 "))
        raise
    finally:
        nvjitlink.destroy(linker)
    return log.decode()


def _numbers(pattern: str, log: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, log, re.MULTILINE)]


def main() -> None:
    """Print a table of all float32 kernels."""
    columns = ("kernel", "head dim", "architecture", "threads", *Needs._fields)
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for head_dim in HEAD_DIMS:
        for specialisation in specialisations(head_dim):
            for architecture in ARCHITECTURES:
                found = needs(specialisation, architecture)
                arch = "sm_{}{}".format(*architecture)
                row = specialisation.name, head_dim, arch, specialisation.threads, *found
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
