"""The GPU's benchmarks, rehearsed: what is timed, what counts as right, what is recorded and shown.

The clock's part for CUDA runs on a CUDA that is made up, to see that it asks for the right things.
"""

import json
import multiprocessing
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra bench")

import torch

from benchmarks import gpu, harness
from benchmarks.on_gpu import attention, clock, floors, machine, page
from benchmarks.on_gpu.attention import VARIANTS
from benchmarks.on_gpu.clock import Contestant
from benchmarks.on_gpu.floors import Shape
from minitransformer_kernels import reference
from minitransformer_kernels.visible import CAUSAL

CPU = clock.on("cpu", hasty=True)
SMALL = Shape(1, 8, 64, 16)
pytestmark = pytest.mark.usefixtures("one_thread_of_torch")
COMPILED_ANYWAY = ("causal linear attention",)


class MadeUpCuda:
    """Events that take 3 ms from one to the next; memory hooks that hear of two arrays."""

    def __init__(self):
        log: list[object] = []
        self.log = log

        class Event:
            def record(self):
                log.append("record")

            def synchronize(self):
                log.append("wait")

        class MemoryHook:
            def __enter__(self):
                for place, (kind, size) in enumerate(
                    [("malloc", 70), ("free", 70), ("malloc", 50)]
                ):
                    getattr(self, f"{kind}_postprocess")(device_id=0, mem_size=size, mem_ptr=place)

            def __exit__(self, *error):
                pass

        self.Event, self.MemoryHook = Event, MemoryHook

    def get_current_stream(self):
        return SimpleNamespace(synchronize=lambda: self.log.append("synchronize"))

    def get_elapsed_time(self, start, end):
        return 3.0


def test_a_turn_on_cuda_is_timed_by_events_around_its_calls():
    cuda = MadeUpCuda()
    device = clock.Device("cuda", SimpleNamespace(cuda=cuda), "cuda")
    seconds, host = device.time(cuda.log.append, calls=3, first=6)
    assert cuda.log == ["synchronize", "record", 6, 7, 8, "record", "wait"]
    assert seconds == pytest.approx(1e-3)
    assert 0 < host < 1


def test_peak_memory_is_that_of_both_libraries(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1007)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    device = clock.Device("cuda", SimpleNamespace(cuda=MadeUpCuda()), "cuda")
    assert device.peak(lambda call: None) == 70 + 7


def test_without_a_gpu_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(clock, "cuda_problem", lambda: "CuPy is not installed; pip install it")
    with pytest.raises(RuntimeError, match="measure on a GPU: CuPy is not installed; pip install"):
        clock.on("cuda")
    monkeypatch.setattr(clock, "cuda_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"PyTorch .* finds no CUDA GPU; install"):
        clock.on("cuda")


def test_inputs_rotate_where_a_cache_could_keep_them(monkeypatch):
    assert CPU.sets(1) == 1
    monkeypatch.setattr(clock.Device, "cache_bytes", lambda device: 100)
    assert [CPU.sets(nbytes) for nbytes in (1, 50, 100, 399, 400, 10**6)] == [64, 8, 4, 2, 1, 1]


def fails(call):
    raise MemoryError("no room\nfor it")


def error(answer):
    return abs(answer - 1.0)


def test_who_fails_or_is_wrong_gets_a_row_without_a_time():
    contestants = {
        harness.OURS: Contestant(lambda call: 1.0),
        "fails": Contestant(fails),
        "wrong": Contestant(lambda call: 1.001),
        "rounded": Contestant(lambda call: 1.001, "TF32"),
        "not a number": Contestant(lambda call: np.nan, "bfloat16"),
        "another": Contestant(lambda call: 7.0, comparable=False),
    }
    rows = list(clock.race(CPU, "case", contestants, error))
    assert [row["contestant"] for row in rows] == list(contestants)
    assert len({tuple(row) for row in rows}) == 1
    assert [row["note"] for row in rows] == [
        None,
        "MemoryError: no room",
        "ArithmeticError: expected a relative error of at most 0.0001, got 0.001",
        None,
        "ArithmeticError: expected a relative error of at most 0.03, got nan",
        None,
    ]
    for row in rows:
        timed = row["note"] is None
        assert (row["median_ms"] is not None) == (row["ours_over_this"] is not None) == timed
    assert [rows[place]["error"] for place in (0, 3, 5)] == [0, pytest.approx(1e-3), None]


def test_who_fails_in_a_later_turn_stops_nobody_else():
    def breaks(call):
        calls.append(call)
        return fails(call) if len(calls) > 3 else 1.0

    calls = []
    contestants = {harness.OURS: Contestant(breaks), "other": Contestant(lambda call: 1.0)}
    ours, other = clock.race(CPU, "case", contestants, error)
    assert (ours["note"], ours["median_ms"]) == ("MemoryError: no room", None)
    assert other["median_ms"] > 0
    assert other["ours_over_this"] is None


def test_nobody_starts_after_the_deadline():
    started: list[int] = []
    contestants = {harness.OURS: Contestant(started.append), "other": Contestant(started.append)}
    rows = list(clock.race(clock.on("cpu", seconds=0), "case", contestants))
    assert [row["note"] for row in rows] == [clock.NOT_RUN] * 2
    assert not started


def test_turns_are_long_enough_and_races_short_enough(monkeypatch):
    turns = []

    def takes(seconds):
        def timed(device, run, calls, first=0):
            turns.append((calls, first))
            return seconds, 0.0

        monkeypatch.setattr(clock.Device, "time", timed)
        turns.clear()
        (row,) = clock.race(clock.on("cpu"), "case", {harness.OURS: Contestant(lambda call: None)})
        return row["rounds"], turns[-1]

    assert takes(1e-3) == (9, (10, 80))
    assert takes(1e-6) == (9, (100, 800))
    assert takes(0.2) == (4, (1, 3))
    assert takes(5.0) == (2, (1, 1))


def inputs(name, shape):
    random = np.random.default_rng(1)
    qkv = list(random.standard_normal((3, *shape)))
    return [*qkv, *VARIANTS[name].extras(shape, random)]


def references(qkv, extras, length):
    """The float64 reference of each variant."""
    places = np.arange(length, dtype=float)[None, :, None]
    q, k, v = qkv

    def featured(phi, k_phi=None):
        mapped = phi(q), (k_phi or phi)(k), v
        return reference.linear_attention(*mapped, CAUSAL, feature_map="identity")

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    return {
        "causal softmax attention": lambda: reference.softmax_attention(*qkv, CAUSAL),
        "causal linear attention": lambda: reference.linear_attention(*qkv, CAUSAL),
        "linear attention": lambda: reference.linear_attention(*qkv),
        "delta rule": lambda: reference.delta_attention(unit(q), unit(k), v, *extras)[0],
        "Shaw's relative positions": lambda: reference.relative_linear_attention(
            *qkv, *extras, CAUSAL
        ),
        "Fourier positions": lambda: reference.fourier_linear_attention(
            q, k, v, reference.Fourier(places, places, *extras), CAUSAL
        ),
        "local attention": lambda: reference.local_attention(*qkv, CAUSAL, window=attention.WINDOW),
        "FAVOR+": lambda: featured(lambda x: reference.favor(x, *extras)),
        "DPFP": lambda: featured(lambda x: reference.dpfp(x, 1)),
        "cosFormer": lambda: featured(lambda x: reference.cosformer(x, np.arange(length), length)),
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_what_counts_as_right_is_the_reference(name):
    shape = Shape(2, 3, 192, 16)
    (*qkv,) = given = inputs(name, shape)
    expected = references(qkv[:3], given[3:], shape.length)[name]()
    tensors = [torch.from_numpy(np.asarray(x, np.float64)) for x in given]
    for first in (30, shape.length - 5):  # relu's features of the first rows may all be zero
        got = VARIANTS[name].exact(*tensors[:3], first, *tensors[3:]).numpy()
        np.testing.assert_allclose(got, expected[:, :, first:], rtol=1e-9, atol=1e-12)


def test_last_rows_have_the_gradients_of_the_whole():
    name = "Shaw's relative positions"
    data = attention.Data(CPU, VARIANTS[name], Shape(1, 8, 128, 8))
    assert data.first == 64
    q, k, v, embedding = (torch.from_numpy(x).double() for x in data.inputs)
    qkv = [x.requires_grad_() for x in (q, k, v)]
    output = VARIANTS[name].exact(*qkv, 0, embedding)
    gradients = torch.autograd.grad(output, qkv, torch.from_numpy(data.grad).double())
    answer = [output.detach().numpy(), *(x.numpy() for x in gradients)]
    assert data.error(answer) < 1e-12
    for place in range(4):
        wrong = [x.copy() for x in answer]
        wrong[place][-1, -1, -1] += 0.1
        assert data.error(wrong) > 1e-3
    assert np.isnan(data.error([answer[0] * np.nan, *answer[1:]]))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in COMPILED_ANYWAY else pytest.mark.nightly)
        for name in VARIANTS
    ],
)
def test_a_rehearsal_times_ours_and_says_why_others_are_missing(name):
    rows = list(attention.compare(CPU, name, SMALL))
    assert len({tuple(row) for row in rows}) == 1
    variant = VARIANTS[name]
    for row in rows:
        assert (row["median_ms"] is None) == (row["note"] is not None)
        if row["contestant"] in variant.ours or "eager" in row["contestant"]:
            assert row["note"] is None
    shown = {row["contestant"] for row in rows}
    assert shown == {
        *variant.ours, *(who for who, peer in variant.peers.items() if not peer.compiled)
    }  # fmt: skip
    cases = {row["case"] for row in rows}
    assert cases == {f"{name}, {which}, L=64, E=16" for which in floors.PASSES}


def test_who_is_too_slow_and_what_is_too_late_is_said():
    late = clock.on("cpu", seconds=0)
    rows = list(attention.compare(late, "causal linear attention", Shape(1, 8, 8192, 64)))
    notes = {row["contestant"]: row["note"] for row in rows}
    assert notes[harness.OURS] == notes["fla-core chunk, TF32"] == clock.NOT_RUN
    assert notes["PyTorch eager, all scores"] == attention.TOO_LONG


def test_inputs_that_cannot_be_made_are_said(monkeypatch):
    monkeypatch.setattr(attention, "Data", fails)
    rows = list(attention.compare(CPU, "FAVOR+", SMALL))
    assert {row["note"] for row in rows} == {"TypeError: fails() takes 1 positional argument but 3"
                                             " were given"}  # fmt: skip


def test_others_get_their_layout_and_precision():
    def swapped(q, k, v):
        assert q.shape == (1, 64, 8, 16)
        assert q.dtype == torch.bfloat16
        return v

    peer = attention.Peer(lambda: swapped, "bfloat16", tokens_first=True)
    data = attention.Data(CPU, VARIANTS["causal linear attention"], SMALL)
    (output,) = data.theirs("forward", peer)(0)
    np.testing.assert_allclose(CPU.numpy(output), data.inputs[2], rtol=2**-8)


def test_a_window_is_counted():
    for length in (5, 128, 129, 300):
        seen = sum(min(i, attention.WINDOW) + 1 for i in range(length))
        assert attention.seen_in_window(length) == pytest.approx(seen / length)


def test_floors_are_bytes_and_operations():
    forward, both = floors.sums(Shape(2, 3, 512, 64)).values()
    tokens, row = 2 * 3 * 512, 4 * 64
    assert forward == floors.Need(tokens * 4 * row, tokens * 4 * 64**2)
    assert both == floors.Need(tokens * (4 + 7) * row, tokens * 14 * 64**2)
    ceilings = floors.Ceilings(bandwidth=1e9, rate=1e12)
    assert floors.Need(2e9, 1e12).seconds(ceilings) == 2
    assert floors.Need(2e9, 5e12).seconds(ceilings) == 5


def test_the_machine_is_rehearsed_and_read_again():
    rows = list(machine.rows(CPU, "rehearsal"))
    assert all(row["rate"] > 0 and row["note"] is None for row in rows)
    rates = {(row["what"].split(" of ")[0], row["precision"]): row["rate"] for row in rows}
    found = machine.ceilings(rows)
    assert found is not None
    copies = [row["rate"] for row in rows if row["what"].startswith(machine.COPY)]
    assert found.bandwidth == pytest.approx(1e9 * max(copies))
    assert found.rate == pytest.approx(1e12 * rates["product", "float32"])
    assert machine.ceilings(rows[:2]) is None
    assert machine.version(13020) == "13.2"
    broken = machine.ceiling(CPU, "x", "float32", "GB/s", 1.0, fails)
    assert (broken["rate"], broken["note"]) == (None, "MemoryError: no room")


def record(folder, name, *rows):
    about = {"command": "python -m benchmarks.gpu", "machine": {"GPU": "H"}}
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in (about, *rows)))


def timed(case, contestant, ms, ours, **columns):
    made = clock.row(case, contestant, "float32") | {"median_ms": ms, "ours_over_this": ours}
    return made | {"GB": 0.001, "GFLOP": 3.0} | columns


def test_the_page_shows_what_is_asked_first_and_how_far_the_floor_is(tmp_path):
    case = "causal linear attention, forward and backward, L=8,192, E=64"
    near = "causal linear attention, forward, L=512, E=64"
    ceiling = {"precision": "float32", "ms": 1.0, "note": None}
    record(
        tmp_path, "machine", {"what": "copy", "rate": 1.0, "unit": "GB/s", **ceiling},
        {"what": "product of matrices", "rate": 1.0, "unit": "TFLOP/s", **ceiling},
    )  # fmt: skip
    record(
        tmp_path, "linear",
        timed(near, harness.OURS, 4.5, 1.0),
        timed(case, harness.OURS, 12.0, 1.0, GB=0.006),
        timed(case, "fla-core chunk", 24.0, 0.5),
        timed(case, "fla-core fused chunk", None, None, note="missing"),
        gpu.stopped("its time was up"),
    )  # fmt: skip
    page.write(tmp_path, gpu.SECTIONS)
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## At a glance",
        "## The GPU",
        "## Distance from the floor",
        "## E = 64: causal linear attention",
    ]
    assert f"| {case} | fla-core chunk | 12 | 24 | 0.5 | H |" in lines
    far = f"| {case} | minitransformer | 12 | 6 | 2 | bytes | 0.25 |"
    assert far in lines
    assert lines[lines.index(far) - 1] == "|---|---|---|---|---|---|---|"
    assert f"| {near} | minitransformer | 4.5 | 3 | 1.5 | operations | 0.667 |" in lines
    assert "| its time was up |" in lines
    assert "`python -m benchmarks.gpu` on GPU H." in lines


def test_a_page_of_nothing_says_so(tmp_path):
    page.write(tmp_path, gpu.SECTIONS)
    assert (tmp_path / "README.md").read_text().endswith(page.NOTHING)


def test_every_section_and_every_variant_has_its_place():
    for width in attention.WIDTHS:
        asked = [section.options for section in gpu.SECTIONS.values() if section.options]
        named = [name for each in asked if each["widths"] == (width,) for name in each["names"]]
        assert sorted(named) == sorted(VARIANTS)
    assert all(section.share > 0 for section in gpu.SECTIONS.values())


@pytest.fixture
def worker():
    """A worker whose process is made up; it and the process's end of the line."""
    made: Any = gpu.Worker.__new__(gpu.Worker)
    made.line, far = multiprocessing.Pipe()
    made.process = SimpleNamespace(join=lambda wait: None, kill=lambda: None, exitcode=-9)
    return made, far


def test_a_worker_measures_when_it_is_told(worker):
    made, far = worker
    assert made.about(0.0) is None
    for message in ({"GPU": "H"}, {"case": "a"}, None):
        far.send(message)
    assert made.about(0.0) == {"GPU": "H"}
    assert list(made.rows(7.0, 1.0)) == [{"case": "a"}]
    assert far.recv() == 7.0


def test_a_worker_that_is_late_or_dead_is_said(worker):
    made, far = worker
    far.send({"case": "a"})
    late = gpu.stopped("its time was up: 0 s, and 0 s more")
    assert list(made.rows(0.0, 0.0)) == [{"case": "a"}, late]
    far.send({"case": "b"})
    rows = made.rows(1.0, 0.0)
    assert next(rows) == {"case": "b"}
    far.close()
    died = gpu.stopped("the process ended early, with exit code -9")
    assert list(rows) == list(made.rows(1.0, 0.0)) == [died]
    assert made.about(0.0) is None


def test_a_section_that_never_was_ready_is_recorded(tmp_path, monkeypatch):
    class Unready:
        def __init__(self, name, **asked):
            self.line, self.far = multiprocessing.Pipe()

        def about(self, patience):
            return None

    monkeypatch.setattr(gpu, "Worker", Unready)
    monkeypatch.setattr(gpu, "PATIENCE", 0.0)
    gpu.measure(["linear", "softmax"], "cpu", "full", 0.0, tmp_path)
    for name in "linear", "softmax":
        *_, last = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert json.loads(last) == gpu.stopped(gpu.NOT_READY)
    assert gpu.NOT_READY in (tmp_path / "README.md").read_text()


def test_a_rehearsal_is_one_command(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--only", "machine"]
    ran = subprocess.run(
        [*command, "--out", tmp_path], cwd=harness.ROOT, capture_output=True, text=True, check=True
    )
    assert "machine: copy of" in ran.stdout
    about, *rows = (json.loads(x) for x in (tmp_path / "machine.jsonl").read_text().splitlines())
    assert about["machine"]["numpy"] == np.__version__
    assert len(rows) == 6
    assert "## The GPU" in (tmp_path / "README.md").read_text()


def test_tuning_tries_fewer_configurations_and_starts_anew(monkeypatch):
    class Autotuner:
        def __init__(self, fn=None):
            self.fn, self.configs, self._do_bench = fn, list(range(48)), None
            self.cache = {"few tokens": 3}

    tuned, inside = Autotuner(), Autotuner(fn=len)
    module = SimpleNamespace(kernel=SimpleNamespace(fn=tuned), direct=inside, number=3)
    runtime = SimpleNamespace(Autotuner=Autotuner)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    monkeypatch.setitem(sys.modules, "fla.ops.made_up", module)
    for _ in range(2):
        attention.fewer_configurations()
    list(attention.rows(CPU, "rehearsal", names=()))
    for kernel in (tuned, inside):
        assert kernel.configs == [0, 8, 16, 24, 32, 40]
        assert kernel._do_bench is attention.quick_bench
        assert not kernel.cache


@pytest.mark.parametrize("fails_at", [None, "rehearsal", "full"])
def test_a_section_compiles_and_waits_and_measures(monkeypatch, fails_at):
    class Section:
        module = "steps"

        def rows(self, device, size):
            asked.append((size, device.hasty, device.seconds_left() <= 30))
            yield {"case": size}
            if size == fails_at:
                raise ValueError("broken\nat once")

    asked: list[tuple[str, bool, bool]] = []
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr(gpu, "SECTIONS", {"one": Section()})
    near, far = multiprocessing.Pipe()
    near.send(30.0)
    gpu.work("one", "cpu", "full", 60.0, far)
    assert asked == [("rehearsal", True, False), ("full", False, True)]
    assert near.recv()["numpy"] == np.__version__
    rows = list(iter(near.recv, None))
    stops = [gpu.stopped("ValueError: broken")] if fails_at == "full" else []
    assert rows == [{"case": "full"}, *stops]


def test_shapes_are_compiled_before_they_are_measured(monkeypatch):
    def spy(q, k, v):
        shapes.append((tuple(q.shape), torch.is_grad_enabled()))
        return v

    shapes: list[tuple[tuple[int, ...], bool]] = []
    monkeypatch.setattr(attention, "COMPILED", (64, 128))
    monkeypatch.setattr(attention, "TOKENS", {"full": 1024})
    compiled, other = (
        attention.Peer(lambda: spy, longest=64, compiled=True),
        attention.Peer(lambda: fails),
    )
    variant = VARIANTS["linear attention"]._replace(peers={"compiled": compiled, "other": other})
    attention.compile_ahead(CPU, variant, (8,))
    assert shapes == [((2, 8, 64, 8), False), ((2, 8, 64, 8), True)]
    shapes.clear()
    attention.compile_ahead(clock.on("cpu", seconds=0), variant, (8,))
    assert not shapes
