"""Time and memory on a device: the same code takes both on a GPU and, to rehearse, on the CPU.

CuPy, Numba and PyTorch all work on CUDA's default stream here, so that one pair of events around
calls times any of them. A turn is as many calls, one after the other, as take about 10 ms: the GPU
is then busy with one while Python prepares the next, and what is left is the larger of both times.
`host_ms` is Python's part of it alone.
"""

from __future__ import annotations

import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from minitransformer.device import cuda_problem

from .. import harness

Array = Any  # a NumPy or a CuPy array
Run = Callable[[int], Any]
Row = harness.Row

ROUNDS, FEWEST_ROUNDS = 9, 2
TURN, RACE = 0.01, 0.8  # seconds: of a turn at least, and of a race at most if that is enough
MOST_CALLS = 100  # in a turn
SLOW = 0.5  # seconds of a call, from which the warming up is short
# The relative error (Frobenius) that a precision is allowed, of its products and sums.
ALLOWED = {"float32": 1e-4, "TF32": 5e-3, "bfloat16": 3e-2}
NOT_RUN = "not run: the time was up"


class Contestant(NamedTuple):
    """Who takes part in a race.

    Attributes:
        run: What to call, with the number of the call: it picks one of several sets of inputs.
        precision: Of its products, a key of `ALLOWED`.
        comparable: Whether its output is that of the others; it is not checked if not.
        allowed: The relative error that its output may have; None: what its precision is allowed.
    """

    run: Run
    precision: str = "float32"
    comparable: bool = True
    allowed: float | None = None


@dataclass(frozen=True)
class Device:
    """Where the contestants work.

    Attributes:
        name: "cuda", or "cpu" to rehearse.
        xp: The array module, CuPy or NumPy.
        torch_device: The same device's name in PyTorch.
        deadline: When to start no more races, by `time.monotonic`.
        hasty: Whether times do not matter, as in a rehearsal: turns are then few and short.
    """

    name: str
    xp: Any
    torch_device: str
    deadline: float = math.inf
    hasty: bool = False

    def array(self, data: Any) -> Array:
        """Our array with the numbers of a NumPy array."""
        return self.xp.asarray(data)

    def random(self, *shape: int, seed: int = 0) -> Array:
        """Our array of float32 numbers from a normal distribution."""
        return self.xp.random.default_rng(seed).standard_normal(shape, dtype=self.xp.float32)

    def tensor(self, array: Array) -> torch.Tensor:
        """PyTorch's view of one of our arrays (or of NumPy's, copied to the device)."""
        return torch.as_tensor(array, device=self.torch_device)

    def numpy(self, array: Any) -> np.ndarray:
        """A NumPy array of ours, PyTorch's, or the engine's."""
        if isinstance(array, torch.Tensor):
            return array.detach().to("cpu", copy=False, dtype=_readable(array.dtype)).numpy()
        array = getattr(array, "data", array) if hasattr(array, "requires_grad") else array
        return np.asarray(array.get() if hasattr(array, "get") else array)

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.name == "cuda":
            self.xp.cuda.get_current_stream().synchronize()

    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def free(self) -> None:
        """Give back the memory that nobody uses, of both libraries."""
        gc.collect()
        if self.name == "cuda":
            self.xp.get_default_memory_pool().free_all_blocks()
            torch.cuda.empty_cache()

    def sets(self, nbytes: int) -> int:
        """How many sets of inputs of `nbytes` to rotate, so that no cache can keep them."""
        cache = self.cache_bytes()
        return max(1, min(64, math.ceil(4 * cache / max(1, nbytes))))

    def cache_bytes(self) -> int:
        """Bytes of the last cache before the device's memory; nothing on a CPU."""
        if self.name == "cpu":
            return 0
        return int(self.xp.cuda.Device().attributes["L2CacheSize"])

    def time(self, run: Run, calls: int, first: int = 0) -> tuple[float, float]:
        """Return the seconds of a call, and Python's part of it, as a mean over a turn.

        Args:
            run: What to call.
            calls: How often.
            first: The number of the first call.
        """
        self.synchronize()
        if self.name == "cuda":
            start, end = self.xp.cuda.Event(), self.xp.cuda.Event()
            start.record()
        began = time.perf_counter()
        for call in range(first, first + calls):
            run(call)
        host = time.perf_counter() - began
        if self.name == "cpu":
            return host / calls, host / calls
        end.record()
        end.synchronize()
        return self.xp.cuda.get_elapsed_time(start, end) / 1e3 / calls, host / calls

    def peak(self, run: Run) -> int | None:
        """Return the most bytes that a call holds at a time, its result included.

        What was held before counts for nothing. None on a CPU, where PyTorch does not tell.
        """
        if self.name == "cpu":
            run(0)
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ours = _meter(self.xp.cuda.MemoryHook)
        with ours:
            run(0)
        self.synchronize()
        return int(ours.peak + torch.cuda.max_memory_allocated() - before)


def _readable(dtype: torch.dtype) -> torch.dtype:
    """The dtype that NumPy has for PyTorch's numbers."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _meter(hook: type[Any]) -> Any:
    """Return a hook that follows how many bytes CuPy's arrays take, and the most at a time."""

    class Meter(hook):
        name = "Meter"
        held = peak = 0

        def malloc_postprocess(self, **block: int) -> None:
            self.held += block["mem_size"]
            self.peak = max(self.peak, self.held)

        def free_postprocess(self, **block: int) -> None:
            self.held -= block["mem_size"]

    return Meter()


def on(name: str, seconds: float = math.inf, hasty: bool = False) -> Device:
    """Return a device.

    Args:
        name: "cuda" or "cpu".
        seconds: How long it may start races.
        hasty: Whether times do not matter.

    Raises:
        RuntimeError: It cannot be used here; the message says what is missing.
    """
    deadline = time.monotonic() + seconds
    if name == "cpu":
        return Device("cpu", np, "cpu", deadline, hasty)
    if problem := cuda_problem() or _torch_problem():
        raise RuntimeError(f"benchmarks: cannot measure on a GPU: {problem}")
    return Device("cuda", importlib.import_module("cupy"), "cuda", deadline, hasty)


def _torch_problem() -> str | None:
    """Return why PyTorch cannot be timed beside CuPy, or None where it can."""
    if not torch.cuda.is_available():
        return (
            f"PyTorch {torch.__version__} finds no CUDA GPU; install the one for your driver, "
            "from https://pytorch.org/get-started/locally"
        )
    cupy = importlib.import_module("cupy")
    theirs, ours = torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr
    if theirs != ours:
        return (
            f"PyTorch works on stream {theirs} and CuPy on {ours}, and events on one do not time "
            "the other; unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
        )
    return None


class _Entry(NamedTuple):
    """A contestant who may start.

    Attributes:
        run: What to call.
        error: Of what it returned.
        peak: The most bytes that it held.
        seconds: That a call took, about.
        calls: In a turn.
    """

    run: Run
    error: float | None
    peak: int | None
    seconds: float
    calls: int


def race(
    device: Device,
    case: str,
    contestants: Mapping[str, Contestant],
    error: Callable[[Any], float] | None = None,
    rounds: int = ROUNDS,
) -> Iterator[Row]:
    """Check the contestants, then time them in turns.

    Args:
        device: Where they work.
        case: What they do.
        contestants: Who takes part, by name; `harness.OURS` is who others are measured against.
        error: The relative error of what a contestant returns. One that is too wrong, or raises,
            gets a row that says so, and no time.
        rounds: Turns that count, fewer where they would take longer than `RACE`.

    Yields:
        A row for each contestant, all with the same columns.
    """
    entries: dict[str, _Entry] = {}
    failed: dict[str, str] = {}
    for name, contestant in contestants.items():
        if device.seconds_left() <= 0:
            failed[name] = NOT_RUN
            continue
        try:
            entries[name] = _admit(device, contestant, error)
        except Exception as problem:
            failed[name] = reason(problem)
            device.free()
    times = _turns(device, entries, failed, rounds)
    ours = None if harness.OURS in failed else _median(times.get(harness.OURS))
    for name, contestant in contestants.items():
        line = row(case, name, contestant.precision, failed.get(name))
        if name not in failed:
            entry, median = entries[name], _median(times[name])
            line |= harness.summary([seconds for seconds, _ in times[name]])
            line |= {
                "host_ms": 1e3 * statistics.median(host for _, host in times[name]),
                "peak_MB": None if entry.peak is None else entry.peak / 1e6,
                "error": entry.error,
                "ours_over_this": ours and median and ours / median,
            }
        yield line


def deferred(build: Callable[[], Run]) -> Run:
    """Return what `build` returns, built at its first call.

    Who cannot be built on this machine, or needs a while for it, then gets a row all the same.
    """
    built = cache(build)
    return lambda call: built()(call)


def row(case: str, contestant: str, precision: str, note: str | None = None) -> Row:
    """Return a row of a race before its times are known, or of who has none, with the reason."""
    empty = dict.fromkeys(
        ("median_ms", "quartiles_ms", "rounds", "host_ms", "peak_MB", "error", "ours_over_this")
    )
    return {"case": case, "contestant": contestant, "precision": precision, **empty, "note": note}


def reason(problem: BaseException) -> str:
    """Return the first line of an error, and its kind."""
    lines = str(problem).strip().splitlines() or [""]
    return f"{type(problem).__name__}: {lines[0]}"[:200].rstrip(": ")


def _admit(device: Device, contestant: Contestant, error: Callable[[Any], float] | None) -> _Entry:
    """Check a contestant's answer, take its memory, and warm it up."""
    answer = contestant.run(0)
    wrong = error(answer) if error is not None and contestant.comparable else None
    allowed = contestant.allowed or ALLOWED[contestant.precision]
    if wrong is not None and not wrong <= allowed:
        raise ArithmeticError(f"expected a relative error of at most {allowed}, got {wrong:.3g}")
    del answer
    device.free()
    began = time.perf_counter()
    peak = device.peak(contestant.run)
    seconds = time.perf_counter() - began
    if seconds < SLOW:
        seconds, _ = device.time(contestant.run, 1, first=1)
    enough = 1 if device.hasty else math.ceil(TURN / max(seconds, 1e-7))
    return _Entry(contestant.run, wrong, peak, seconds, max(1, min(MOST_CALLS, enough)))


def _turns(
    device: Device, entries: Mapping[str, _Entry], failed: dict[str, str], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds and host seconds of a call, turn by turn, for each contestant.

    Who raises joins the `failed` (is modified by this function).
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in entries}
    names = list(entries)
    together = sum(entry.calls * entry.seconds for entry in entries.values())
    enough = 0 if device.hasty else int(RACE / max(together, TURN))
    rounds = max(FEWEST_ROUNDS, min(rounds, enough)) if names else 0
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            entry = entries[name]
            if name in failed:
                continue
            try:
                times[name].append(device.time(entry.run, entry.calls, turn * entry.calls))
            except Exception as problem:
                failed[name] = reason(problem)
    return times


def _median(times: list[tuple[float, float]] | None) -> float | None:
    return statistics.median(seconds for seconds, _ in times) if times else None
