"""The benchmarks' own arithmetic: what is timed, what is refused, and what the report shows."""

import json
import subprocess
import sys
from functools import partial
from unittest.mock import patch

import numba
import numpy as np
import pytest

from benchmarks import (
    compiling,
    harness,
    ladder,
    lowering,
    report,
    scaling,
    textbook,
    tuning,
)  # fmt: skip
from minitransformer_kernels import checked
from minitransformer_kernels.cpu import registers
from minitransformer_kernels.cpu.launch import CpuKernel
from minitransformer_kernels.cpu.lowering import Variant
from minitransformer_kernels.cuda import cuda


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["--help"], 0, "usage:"), (["fast"], 2, "no benchmark fast; there")],
)
def test_what_is_no_benchmark_starts_none(words, status, said):
    command = [sys.executable, "-m", "benchmarks", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ran.returncode == status and said in ran.stdout + ran.stderr


def test_contestants_take_turns(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    turns = []
    contestants = {name: lambda name=name: turns.append(name) for name in (harness.OURS, "b", "c")}
    rows = list(harness.race("case", contestants, rounds=3))
    names = list(contestants)
    assert turns == names * 2 + names + names[1:] + names[:1] + names[2:] + names[:2]
    assert [row["contestant"] for row in rows] == names


def test_ratio_is_ours_over_theirs(monkeypatch):
    seconds = {"quick": 1.0, "slow": 4.0}
    monkeypatch.setattr(harness, "elapsed", lambda run: seconds[run()])
    ours, theirs = harness.race("case", {harness.OURS: lambda: "quick", "b": lambda: "slow"}, 5)
    assert (ours["ours_over_this"], theirs["ours_over_this"]) == (1.0, 0.25)
    assert theirs["median_ms"] == 4000
    assert theirs["quartiles_ms"] == [4000, 4000]


def test_a_wrong_output_stops_the_race():
    truth = np.array([1.0, -2.0])
    assert harness.error(truth + 1e-5, truth) == pytest.approx(1e-5 * (2 / 5) ** 0.5)
    for wrong in (truth + 1e-3, truth * np.nan):
        with pytest.raises(ArithmeticError, match="relative error of at most"):
            harness.error(wrong, truth)


def test_pages_show_what_was_recorded(tmp_path):
    pytest.importorskip("torch")  # benchmarks say what they are, and import their peers
    for path in harness.RESULTS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    report.write(tmp_path)
    for path in harness.RESULTS.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    readme = harness.README.read_text()
    assert report.headline(readme, harness.RESULTS) == readme


def about(name):
    return {"command": f"python -m benchmarks.{name}", "machine": {"cores": 2}}


def race(case, ratio, *peers):
    for contestant in ("minitransformer", *peers):
        ours = {"case": case, "contestant": contestant, "median_ms": 2.0}
        yield ours | {"ours_over_this": 1.0 if contestant == "minitransformer" else ratio}


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_the_summary_compares_with_others_at_the_last_length(tmp_path):
    peers = "PyTorch", "our b", "minitransformer c"
    write(
        tmp_path / "A.jsonl",
        about("softmax"),
        *race("a, L=64", 0.5, "PyTorch"),
        *race("a, L=1,024", 0.5, *peers),
        *race("b", 0.5),
    )
    assert [line for line in report.summary(tmp_path).splitlines() if line.startswith("| a")] == [
        "| a, L=1,024 | PyTorch | 2 | 2 | 0.5 | A |  |"
    ]


def test_each_race_is_shown_where_it_came_out_worst(tmp_path):
    pytest.importorskip("torch")
    rows = about("softmax"), *race("a", 0.5, "PyTorch"), *race("b", 1.5, "PyTorch")
    write(tmp_path / "A_B.jsonl", *rows)
    rows = about("softmax"), *race("a", 2.0, "PyTorch"), *race("b", 1.25, "PyTorch")
    write(tmp_path / "C.jsonl", *rows, about("linear"), *race("c", 0.25, "PyTorch"))
    report.write(tmp_path)
    shown = (tmp_path / "README.md").read_text().splitlines()
    for line in (
        "| [A B](A_B.md) | 2 | 1 |",
        "| [C](C.md) | 3 | 2 |",
        "| a | PyTorch | 2 | 2 | 2 | C | 0.5 on A B |",
        "| b | PyTorch | 2 | 2 | 1.5 | A B | 1.25 on C |",
        "| c | PyTorch | 2 | 2 | 0.25 | C |  |",
    ):
        assert line in shown


def test_a_run_renews_its_own_rows_and_says_where_its_code_was_not_tried(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "renew", lambda: None)
    monkeypatch.setattr(harness, "code", lambda: "new")
    monkeypatch.setattr(harness, "machine", lambda packages: {"cores": 2})
    monkeypatch.setattr(harness, "processor", lambda: "Tall(R) Core(TM) 5 Processor")
    for made in 1, 2:
        for name in "softmax", "linear":
            harness.record(name, [{"made": made}])
    write(tmp_path / "Old.jsonl", about("softmax") | {"code": "old"})
    write(tmp_path / "Partly.jsonl", about("linear") | {"code": "new"})
    found = report.processors(tmp_path)["Tall Core 5"]
    assert {name: lines[1:] for name, lines in found.items()} == {
        "linear": [{"made": 2}],
        "softmax": [{"made": 2}],
    }
    assert harness.untried("softmax").endswith("not tried on Old, Partly")
    (tmp_path / "Old.jsonl").unlink()
    assert harness.untried("linear").endswith("tried on every processor met")


def test_what_pytorch_compiles_has_a_time_for_it():
    contestants = {harness.OURS: lambda: 1.0, f"{harness.COMPILED}, a": lambda: 3.0}
    ours, theirs = harness.first_turns(contestants, lambda got: got / 2).values()
    assert ours == {"error": 0.5, "compile_s": None}
    assert theirs["error"] == 1.5
    assert theirs["compile_s"] > 0


def test_report_shows_every_row(tmp_path):
    rows = [{"case": "a", "ms": [1.0, 250.4], "of": None}, {"part": "b", "share": 0.1234}]
    write(tmp_path / "A.jsonl", about("memory"), *rows)
    report.write(tmp_path)
    page = (tmp_path / "A.md").read_text()
    for line in (
        "## The memory of causal linear attention, forward and backward.",
        "| case | ms | of |",
        "| a | 1 .. 250 |  |",
        "| part | share |",
        "| b | 0.123 |",
        "`python -m benchmarks.memory` on cores 2.",
    ):
        assert line in page.splitlines()


def test_the_ladders_page_shows_what_was_recorded():
    page = (ladder.FOLDER / "README.md").read_text()
    assert ladder.page(report.read(ladder.FOLDER / "ladder.jsonl")) == page


@pytest.mark.parametrize("step", ladder.STEPS, ids=lambda step: step.version)
def test_what_a_step_of_the_ladder_leaves_out_is_there(step):
    assert step.new in step.mutant(step.folder).source()


def test_the_ladder_counts_what_all_launches_ask_for():
    @cuda.jit
    def copy(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    x = np.ones(64, np.float32)
    asked = ladder.requests(lambda: [copy[2, 32](x, np.empty_like(x)) for _ in range(3)])
    # A warp reads and writes 128 bytes, 4 sectors each; there are two warps, three times.
    assert asked == {"sectors": 48, "wavefronts": 0, "conflicts": 0}


@pytest.mark.parametrize("size", [1, 37])
def test_textbook_kernels_do_what_they_say(size):
    made = {}
    for name, (launch, arguments) in textbook.launches(size).items():
        launch(*arguments)
        made[name] = arguments
    a, b, product = made["matmul"]
    np.testing.assert_allclose(product, a @ b, rtol=1e-5, atol=1e-5)
    for name in "reduce_strided", "reduce_once":
        x, out = made[name]
        np.testing.assert_allclose(out, [x.sum(dtype=np.float64)], rtol=1e-5, atol=1e-4)
    numbers, counts = made["histogram"]
    np.testing.assert_array_equal(counts, np.bincount(numbers, minlength=textbook.BINS))
    x, blurred = made["blur"]
    wanted = np.zeros_like(x)
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    wanted[1:-1, 1:-1] = (x[1:-1, 1:-1] + around) / 5
    np.testing.assert_allclose(blurred, wanted, rtol=1e-5, atol=1e-6)
    x, smoothed = made["smooth"]
    framed = np.pad(x, 1)
    nine = (framed[i : i + size, j : j + size] for i in range(3) for j in range(3))
    np.testing.assert_allclose(smoothed, sum(nine), rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_each_part_of_what_is_done_for_speed_changes_a_text(monkeypatch):
    # Of 32 registers of 512 bits all rows here would fit as they are, and none would be cut.
    monkeypatch.setattr(registers, "VECTOR_REGISTERS", (16, 32))
    found = []

    def noted(kernel, grid, block, arguments, shared=0):
        kinds = (*map(numba.typeof, arguments), *map(numba.typeof, kernel.constants))
        found.append(Variant(kernel.source, block, kinds, kernel.fastmath, shared_bytes=shared))

    with patch.object(CpuKernel, "launch", noted), checked(False):
        for run in tuning.cases().values():
            run()
    texts = [str(variant.written().text) for variant in found]
    for part in tuning.PARTS:
        with tuning.left_out(part):
            assert any(str(v.written().text) != text for v, text in zip(found, texts, strict=True))


def test_a_run_without_a_part_gives_the_same():
    run = partial(tuning.filled, *textbook.launches(37)["smooth"])
    whole, part = tuning.Written(run), tuning.Written(run, "a guard asked once")
    np.testing.assert_allclose(part(), whole(), rtol=1e-5, atol=1e-5)
    assert "else:" in whole.texts.pop() and "else:" not in part.texts.pop()


def test_triple_loops_are_products():
    a, b = np.random.default_rng(0).standard_normal((2, 9, 9), np.float32)
    for loop in lowering.row_by_column, lowering.row_by_row:
        np.testing.assert_allclose(lowering.filled(loop, a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_only_first_launches_count(monkeypatch):
    seconds = iter([3.0, 0.1, 5.0])

    def elapsed(run):
        run()
        return next(seconds)

    monkeypatch.setattr(harness, "elapsed", elapsed)
    (sum_up, given), (count, others) = (
        textbook.launches(3)[name] for name in ("reduce_once", "histogram")
    )

    def run():
        sum_up(*given)
        sum_up(*given)
        count(*others)

    found = compiling.first_launches(run)
    assert found == {sum_up.kernel: 3.0, count.kernel: 5.0}
    assert given[1] == pytest.approx(2 * given[0].sum(), rel=1e-5)


def test_a_slope_is_the_exponent_of_a_power_law():
    assert scaling.slope({n: 3.0 * n**1.5 for n in (256, 512, 4096)}) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("mine", "softmax", "expected"),
    [
        ({16: 4.0, 64: 16.0, 256: 64.0}, {16: 1.0, 64: 16.0, 256: 256.0}, 64.0),
        ({16: 2.0, 64: 2.0}, {16: 1.0, 64: 4.0}, 32.0),
        ({16: 1.0, 64: 1.0}, {16: 2.0, 64: 3.0}, 16.0),
        ({16: 3.0, 64: 9.0}, {16: 2.0, 64: 3.0}, None),
    ],
)
def test_a_crossover_is_interpolated(mine, softmax, expected):
    found = scaling.crossover(mine, softmax)
    assert found == (None if expected is None else pytest.approx(expected))
