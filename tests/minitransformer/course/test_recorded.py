"""What a lesson copies from `results` stands there."""

import ast
import csv
import json
from pathlib import Path

from .attempts import LESSONS

RESULTS = Path(__file__).parents[3] / "results"
LESSON = LESSONS["16_microscope"]
PROSE = " ".join("\n".join(cell.source for cell in LESSON.cells if cell.is_text).split())


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


def written(name):
    """What a lesson's code calls by that name."""
    for cell in LESSON.cells:
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
