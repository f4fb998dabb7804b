"""What a lesson copies from `results` stands there."""

import ast
import csv
import json
import re
from math import inf
from pathlib import Path

import numpy as np
import pytest

from minitransformer.course.lesson import folder
from minitransformer.experiments import copy_times
from minitransformer.experiments.copy_curves import learned_at

from .attempts import LESSONS

RESULTS = Path(__file__).parents[3] / "results"
LESSON, TRAINING = LESSONS["16_microscope"], LESSONS["17_train"]


def prose(lesson):
    return " ".join("\n".join(cell.source for cell in lesson.cells if cell.is_text).split())


PROSE = prose(LESSON)


def rows(name):
    lines = (RESULTS / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def row(name, **wanted):
    (found,) = [one for one in rows(name) if all(one[k] == v for k, v in wanted.items())]
    return found


def table(name):
    lines = (RESULTS / f"gpu/{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return list(csv.DictReader(lines, delimiter="\t"))


def bound():
    """Of the recurrence's forward on an H100."""
    wanted = ("recurrent", "recurrent.forward", "H100")
    return next(
        one for one in table("bounds") if (one["host"], one["kernel"], one["gpu"]) == wanted
    )


def kept_blocks(host):
    """That a multiprocessor of an H100 has room for, of the recurrence's forward."""
    launch = next(one for one in table("bounds") if one["host"] == host)
    kernel, architecture = launch["fingerprint"], "sm_90"
    (found,) = [
        one
        for one in table("kernels")
        if (one["fingerprint"], one["architecture"]) == (kernel, architecture)
    ]
    return found["blocks"]


def written(name, lesson=LESSON):
    """What a lesson's code calls by that name."""
    for cell in lesson.cells:
        if not cell.is_text and f"{name} = " in cell.source:
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    return ast.literal_eval(node.value)
    raise LookupError(name)


def forward(case, contestant):
    return row("gpu/relative.jsonl" if "Shaw" in case else "gpu/linear.jsonl",
               case=f"{case}, E=64", contestant=contestant)["median_ms"]  # fmt: skip


def test_roofs_and_a_bound():
    recorded = written("recorded")
    copied = row("gpu/machine.jsonl", what="copy of 4.29 GB, PyTorch")["rate"]
    what = "product of matrices, 8,192 rows"
    computed = row("gpu/machine.jsonl", what=what, precision="float32")["rate"]
    took = forward("causal linear attention, forward, L=2,048", "minitransformer, recurrent")
    need = row("gpu/linear.jsonl", contestant="minitransformer, recurrent",
               case="causal linear attention, forward, L=2,048, E=64")  # fmt: skip
    floor = max(need["GB"] / copied, need["GFLOP"] / computed / 1000) * 1000
    assert recorded == {
        "copy, GB/s": round(copied),
        "product, TFLOP/s": round(computed, 1),
        "forward, ms": round(took, 2),
        "bound, ms": round(float(bound()["microseconds"]) / 1000, 3),
    }
    assert f"{floor:.3f} ms at least" in PROSE and "higher bound, 0.211 ms" in PROSE
    assert bound()["bound_by"] == "loads and stores"
    assert bound()["warps"] == "8" and "8 warps of 64" in PROSE
    assert bound()["blocks"] == "256" and "256 blocks of 4 warps" in PROSE


def test_times_by_length():
    names = {"recurrence": "minitransformer, recurrent", "chunks": "minitransformer"}
    for name, times in written("forward").items():
        for length, ms in zip(written("lengths"), times, strict=True):
            case = f"Shaw's relative positions, forward, L={length:,}"
            assert f"{forward(case, names[name]):.3g}" == f"{ms:g}"
    need = row("gpu/relative.jsonl", contestant="minitransformer",
               case="Shaw's relative positions, forward, L=512, E=64")  # fmt: skip
    floor = need["GFLOP"] / written("recorded")["product, TFLOP/s"]
    assert f"least={floor:.3f}" in LESSON.text
    assert kept_blocks("relative") == "4" and "enough for 16 warps on each" in PROSE
    first, second = written("forward")["recurrence"][:2]
    assert f"{second} to {first} ms" in PROSE


def test_a_pitch_that_no_clock_notices():
    room = {"room": "linear, all pairs", "pass": "forward"}
    fast = row("ladder/ladder.jsonl", **room, version="fast")
    without = row("ladder/ladder.jsonl", **room, version="fast, but without a pitch")
    assert "`linear`, all pairs, saves" in PROSE
    assert f"saves {without['conflicts']:,} of {without['wavefronts']:,}" in PROSE
    assert f"{fast['median_ms']:.3g} ms, in place of {without['median_ms']:.3g}" in PROSE
    assert without["quartiles_ms"][0] < fast["quartiles_ms"][1]


def recorded(name):
    """All rows of an experiment, each with its case."""
    return [{**one["case"], **row} for one in rows(f"{name}/record.jsonl") for row in one["rows"]]


def test_faults_as_switches():
    found = recorded("copy_faults")
    faults = written("faults", TRAINING)
    assert [*faults] == [*dict.fromkeys(row["fault"] for row in found)]
    for name, (learned, loss, right) in faults.items():
        own = [row for row in found if row["fault"] == name]
        assert len(own) == 3 and own[0]["steps"] == 500 and own[0]["length"] == 16
        assert learned == sum(learned_at(row) is not None for row in own)
        assert loss == np.median([row["losses"][-1] for row in own])
        assert right == pytest.approx(np.mean([row["symbols"] for row in own]), abs=5e-4)
    assert "2 + 2 layers, 16 digits, 500 steps, three seeds" in prose(TRAINING)


def test_linear_attention_learns_later():
    found = recorded("copy_curves")

    def of(length, attention):
        return [x for x in found if (x["length"], x["attention"]) == (length, attention)]

    larger = written("larger", TRAINING)
    for name, row in larger.items():
        attention, length = name.removesuffix(" digits").split(", ")
        own = of(int(length), attention)
        assert len(own) == 3
        assert row == (
            np.median([learned_at(run) or inf for run in own]),
            own[0]["steps"],
            round(np.mean([run["symbols"] for run in own]), 3),
        )
    times = [larger[f"linear, {n} digits"][0] / larger[f"softmax, {n} digits"][0] for n in (16, 64)]
    told = "takes {:.1f} times the steps with 16 digits, {:.1f} times with 64".format(*times)
    assert told in prose(TRAINING)
    assert f"needs {times[1]:.1f} times the steps" in prose(TRAINING)


def test_who_wins_at_64():
    assert written("printed", TRAINING) == copy_times.PRINTED
    found = recorded("copy_times")
    whole = copy_times.Measured(found, copy_times.MODEL)
    for name, times in written("measured", TRAINING).items():
        assert times == {n: float(f"{1e3 * x:.4g}") for n, x in whole.steps[name].items()}
    for what, both in written("at_64", TRAINING).items():
        for name, times in both.items():
            (row,) = [x for x in found if (x["what"], x["length"], x["variant"]) == (
                      f"the {what}" if what == "whole model" else what, 64, name)]  # fmt: skip
            parts = [row[part] for part in copy_times.PARTS if part in row]
            assert times == tuple(float(f"{1e3 * x:.4g}") for x in np.sum(parts, axis=0))
    of_medians = copy_times.crossing(*(whole.steps[name] for name in ("softmax", "linear")))
    of_repeats = map(copy_times.crossing, *(whole.repeats[name] for name in ("softmax", "linear")))
    assert written("crossings", TRAINING) == (round(of_medians), tuple(map(round, of_repeats)))
    ratio = whole.steps["linear"][64] / whole.steps["softmax"][64]
    assert f"softmax wins at 64, by {ratio - 1:.0%}" in prose(TRAINING)
    assert f"between logarithms, at {of_medians:.0f}" in prose(TRAINING)
    slowed = {"none" if name == "linear" else name: float(f"{1e3 * times[64]:.4g}")
              for name, times in whole.steps.items() if name != "softmax"}  # fmt: skip
    assert written("slowed", TRAINING) == slowed
    over = whole.steps["all together"][64] / whole.steps["softmax"][64]
    assert f"make {over:.1f} out of 24" in prose(TRAINING)
    assert copy_times.PRINTED["linear"][64] / copy_times.PRINTED["softmax"][64] > 24


def test_pictures_pixel_by_pixel():
    page = (RESULTS / "generation/README.md").read_text(encoding="utf-8")
    methods = zip(("recurrent", "cached", "uncached"), written("drawn", TRAINING).values(),
                  strict=True)  # fmt: skip
    for method, (here, there) in methods:
        assert f"| 3,072 | {method} | {here:,} | {there:,} |" in page
    assert "over softmax without a cache: alone 192x, here 37x" in page
    assert "3,072 pixels, gain over softmax with a cache: alone 1.6x, here 1.6x" in page
    told = prose(TRAINING)
    assert "gains 37 times here, 192 times in the paper, with one image at a time" in told
    assert "Over softmax that keeps its keys and values it gains 1.6 times in both" in told


NAMES = {  # on the page of its lesson
    "softmax": "softmax, E = 16", "linear": "linear, E = 16",
    "waves, one_plus_cos": "one_plus_cos, rotated", "waves, cos": "cos, plain",
}  # fmt: skip


def test_the_whole_scoreboard():
    pages = folder() / "pages"
    for number, name, kept, work, recall, _ in written("board", TRAINING):
        (path,) = pages.glob(f"{number:02}_*.md")
        lines = [re.split(r" {2,}", x) for x in path.read_text(encoding="utf-8").splitlines()]
        (line,) = [x for x in lines if x[0] == NAMES.get(name, name) and len(x) > 3]
        assert line[1:3] == [str(kept), str(work)] and f"{recall:.0%}" in line[3:]
    narrow = [
        row for row in recorded("recall") if (row["attention"], row["width"]) == ("softmax", 4)
    ]
    assert [(row["kept"], row["recalled"]) for row in narrow] == [(256, 1.0)] * 3
    assert "more=(256, 1.0)" in TRAINING.text and "with each of three seeds" in prose(TRAINING)


def test_what_a_sum_recalls():
    """Lesson 18 says it before its page shows it."""
    page = (folder() / "pages/18_yours.md").read_text(encoding="utf-8")
    pairs, marked = (int(x) for x in re.findall(r"^gates 1 .* (\d+)%$", page, re.MULTILINE))
    assert (round(pairs / 10), round(marked / 10)) == (9, 6)
    assert "nine pairs of ten are recalled, and six of ten after a mark" in prose(
        LESSONS["18_yours"]
    )
