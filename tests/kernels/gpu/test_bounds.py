"""Bounds of time: what they are reckoned from, that counts are extrapolated exactly, the table."""

from pathlib import Path

import numpy as np
import pytest

from minitransformer_kernels.gpu import bounds, needs
from minitransformer_kernels.gpu.gpus import GPUS
from minitransformer_kernels.gpu.specialisations import pipeline

from ...conftest import PROFILE
from .test_needs import needs_gate

ROOT = Path(__file__).parents[3]
HEAD, ROWS = bounds.read(ROOT / bounds.TABLE)
A100 = GPUS["A100"]
NOTHING = dict.fromkeys(bounds.Work._fields, 0) | {"even": True}


@pytest.mark.parametrize(
    ("asked", "unit", "seconds"),
    [
        # 10^9 warps at two fused multiply-adds a clock and multiprocessor: 64 of 32 threads.
        ({"float32": 10**9}, "float32", 10**9 * 32 * 2 / 19.5e12),
        ({"issued": 10**9}, "issue", 10**9 / 4 / 108 / A100.clock),
        ({"special": 10**9}, "special functions", 10**9 * 2 / 108 / A100.clock),
        ({"accesses": 10**9}, "loads and stores", 10**9 / 108 / A100.clock),
        ({"wavefronts": 10**9}, "shared memory", 10**9 / 108 / A100.clock),
        ({"sectors": 10**9}, "shared memory", 10**9 / 4 / 108 / A100.clock),
        ({"written": 10**9}, "L2", 32e9 / 5120 / A100.clock),
        ({"bytes": 10**9}, "DRAM", 1e9 / 2039e9),
        ({"tensor": 10**9}, "tensor cores", 10**9 * 2048 / 156e12),
    ],
)
def test_each_unit_takes_its_time(asked, unit, seconds):
    work = bounds.Work(**NOTHING | asked)
    found = bounds.bound(work, A100, blocks=108 * 1000, warps=4, kept=8)
    assert found.by == unit
    assert found.seconds == pytest.approx(seconds)


def test_the_clock_is_that_of_the_data_sheets():
    clocks = {"T4": 1590, "A100": 1410, "RTX 3090": 1695, "RTX 4090": 2520, "H100": 1980}
    assert {name: GPUS[name].clock / 1e6 for name in clocks} == pytest.approx(clocks, rel=0.006)


def test_blocks_are_not_shared_out_among_multiprocessors():
    work = bounds.Work(**NOTHING | {"float32": 10**6})

    def seconds(blocks, even):
        uneven = work._replace(even=even)
        return bounds.bound(uneven, A100, blocks=blocks, warps=4, kept=8).seconds

    all_busy = seconds(108, True)
    assert seconds(54, True) == pytest.approx(2 * all_busy)
    assert seconds(109, True) == pytest.approx(2 * 108 / 109 * all_busy)
    assert seconds(109, False) == pytest.approx(all_busy)


def test_few_warps_do_not_keep_all_schedulers_busy():
    work = bounds.Work(**NOTHING | {"issued": 10**6})
    one, four = (bounds.bound(work, A100, 108, warps, 1).seconds for warps in (1, 4))
    assert one == pytest.approx(4 * four)


@pytest.mark.parametrize(
    ("text", "kind", "space", "units"),
    [
        ("fma.rn.ftz.f32 %f1, %f2, %f3, %f4", "arithmetic", "", ["float32"]),
        ("mul.rn.f32 %f1, %f2, %f3", "arithmetic", "", ["float32"]),
        ("mul.f32 %f1, %f2, %f3", "arithmetic", "", ["multiplied"]),
        ("add.ftz.f32 %f1, %f2, %f3", "arithmetic", "", ["added"]),
        ("fma.rn.f64 %fd1, %fd2, %fd3, %fd4", "arithmetic", "", ["float64"]),
        ("@!%p1 ex2.approx.ftz.f32 %f1, %f2", "arithmetic", "", ["special"]),
        ("ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]", "load", "shared", ["accesses"]),
        ("ld.param.u64 %rd1, [a]", "load", "param", []),
        ("selp.f32 %f1, %f2, %f3, %p1", "arithmetic", "", []),
        ("add.s64 %rd1, %rd2, 4", "address", "", []),
        ("bar.sync 0", "barrier", "", ["waits"]),
    ],
)
def test_what_an_instruction_asks_for(text, kind, space, units):
    assert [*bounds._asked(text, kind, space)] == units


def test_polynomials_are_extrapolated_as_integers():
    values = [np.array([3 * n * n - n + 2, 5 * n]) for n in range(4)]
    *_, third = bounds._differences(values)
    assert not third.any()
    assert bounds._newton(values, 31).tolist() == [3 * 31**2 - 31 + 2, 5 * 31]
    *_, third = bounds._differences([*values[:3], values[3] + 1])
    assert third.any()


@needs_gate
@pytest.mark.parametrize("host", ["recurrent", "naive"])
def test_what_is_extrapolated_is_what_is_counted(host, monkeypatch):
    length = 320
    monkeypatch.setattr(bounds, "SHAPE", (2, 2, length, 16))

    *small, full = (
        bounds.captured(host, (2, 2, each, 16))[0] for each in (*bounds.LENGTHS, length)
    )
    found = bounds._by_length(small, full)
    assert found is not None
    counted = bounds.counted(full, range(full[0].grid[0]))
    assert np.array_equal(found, counted)


@needs_gate
def test_blocks_on_lines_are_counted_as_all_are():
    full = bounds.captured("local", (1, 1, 512, 16))[0]
    every = bounds.counted(full, range(full[0].grid[0]))
    assert np.array_equal(bounds._by_blocks(full), every)


def test_the_table_is_of_the_kernels_as_they_are():
    wanted = {
        (host, place, fingerprint)
        for host, fingerprints in bounds.wanted().items()
        for place, fingerprint in enumerate(fingerprints)
    }
    found = {(row.host, row.launch, row.fingerprint) for row in ROWS}
    stale = sorted({each[:2] for each in found ^ wanted})
    assert not stale, f"the table is not of today's {stale}; run {bounds.COMMAND}"
    ours = f"pipeline {pipeline()}, model {bounds.model()}"  # compilers need not be installed
    assert HEAD.endswith(ours), f"run {bounds.COMMAND}"


def test_the_table_is_as_old_as_what_it_was_made_by(monkeypatch):
    read, head = Path.read_text, bounds.head()

    def edited(old, new):
        changed = lambda path, *given, **named: read(path, *given, **named).replace(old, new)  # noqa: E731
        monkeypatch.setattr(Path, "read_text", changed)
        return bounds.head()

    assert edited("No GPU is asked", "None is asked") == head  # words
    assert edited("SCHEDULERS = 4", "SCHEDULERS = 2") != head
    assert edited("MOST = 200_000_000", "MOST = 100") != head  # of the PTX machine
    monkeypatch.undo()
    monkeypatch.setattr(needs, "_version", lambda package: "99")
    assert bounds.head() != head


def test_no_kernel_is_faster_than_its_floor():
    for row in ROWS:
        assert row.microseconds >= row.floor > 0, row


@needs_gate
@pytest.mark.skipif(PROFILE != "nightly", reason="a minute: HYPOTHESIS_PROFILE=nightly runs it")
@pytest.mark.parametrize("host", ["normalised", "recurrent"])
def test_the_table_is_what_the_command_counts(host):
    of_host = [row for row in ROWS if row.host == host]
    assert bounds.lines(host, sorted({row.launch for row in of_host})) == of_host
