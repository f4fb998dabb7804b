"""`minitransformer plan`: what it prints is what the planner found, and its map shows it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import cli
from minitransformer.options import PLAN_OPTIONS
from minitransformer.plan import draw_map, report
from minitransformer_kernels.planner import Sizes, plan

CAUSAL = Sizes(2048, 2048, 64, 64, causal=True, max_distance=32, heads=8)
SAND, BLUE = (246, 217, 168), (169, 207, 232)  # the map's regions, naive and linear


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `minitransformer plan`, which succeeds; returns what it printed."""

    def run(*arguments: str) -> str:
        assert cli.main(["plan", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_the_seed_s_model_in_full() -> None:
    assert report(CAUSAL, "seed", False) == [
        "Linear attention, causal: Lq=2048, Lk=2048, E=64, M=64, k=32, N=1, H=8, float32",
        "What array programs keep in memory, by the seed's cost model:",
        "",
        "  term           naive     linear    taken",
        "  kernelized   128 MiB    256 MiB    naive",
        "  relative     128 MiB   4.31 MiB   linear",
        "",
        "Where Lq = Lk = L:",
        "  kernelized: naive, linear above L = 4,096 = d²",
        "  relative: naive, linear above L = 69 = 2k + 5",
    ]


def test_crossovers_of_other_heads() -> None:
    both_ways = report(CAUSAL._replace(causal=False), "seed", False)
    assert "  kernelized: naive, linear above L = 64 = d" in both_ways
    narrow = report(CAUSAL._replace(value_dim=16), "seed", False)
    assert "  kernelized: naive, linear above L = 1,024" in narrow


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        CAUSAL,
        CAUSAL._replace(causal=False, max_distance=None),
        CAUSAL._replace(max_distance=None, fourier="cos"),
        CAUSAL._replace(queries=1, query_offset=2047, batch=64, itemsize=8),
        CAUSAL._replace(queries=3, keys=5, max_distance=0, heads=1),
    ],
)
def test_the_kernels_model_shows_what_the_planner_found(sizes: Sizes, backward: bool) -> None:
    found = plan(sizes, backward=backward)
    lines = report(sizes, "kernel", backward)
    (header,) = (line for line in lines if line.startswith("  algorithm"))
    assert ("total" in header) == (len(found.terms) > 1)
    for algorithm, cost in found.total.items():
        (row,) = (line for line in lines if re.match(rf"  {algorithm}( |$)", line))
        assert ("*" in row) == (algorithm in found.choice.values())
        numbers = re.findall(r"([\d.]+) ([KMG]iB|B|µs|ms|s)\b", row)
        assert len(numbers) == len(found.terms) + (len(found.terms) > 1) + 1
        *_, (total, unit), (seconds, scale) = numbers
        size = 1024.0 ** ("B", "KiB", "MiB", "GiB").index(unit)
        assert float(total) * size == pytest.approx(cost.bytes, rel=0.006)
        second = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[scale]
        assert float(seconds) * second == pytest.approx(cost.seconds, rel=0.006)
    assert sum(line.startswith("* ") for line in lines) == 1
    assert any(line.startswith("  softmax") for line in lines)
    assert lines[-1].startswith("Where Lq = Lk = L: ")


@given(st.floats(1, 1e18))
def test_bytes_are_read_at_a_glance(count: float) -> None:
    from minitransformer.plan import _human_bytes

    number, unit = _human_bytes(count).split()
    power = ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert float(number) * 1024.0**power == pytest.approx(count, rel=0.006)
    assert float(number) < 1000 or unit == "PiB"
    assert "e" not in number or unit == "PiB"


def region(path: Path, color: tuple[int, int, int]) -> float:
    """Returns which share of a picture has a colour."""
    image = np.asarray(np.rint(matplotlib.image.imread(path)[..., :3] * 255), int)
    return float((np.abs(image - color).max(axis=-1) <= 2).mean())


def test_the_map_of_the_seed_s_model(tmp_path: Path) -> None:
    """Naive has less of the map where its crossovers come sooner."""
    shares = {}
    for causal in (True, False):
        draw_map(tmp_path / "map.png", CAUSAL._replace(causal=causal), "seed", False)
        shares[causal] = region(tmp_path / "map.png", SAND)
        assert region(tmp_path / "map.png", BLUE) > 0.2
    assert shares[True] > shares[False] + 0.08 > 0.15


def test_the_command(command: Callable[..., str], tmp_path: Path) -> None:
    assert command("--lq", "2048", "--causal", "--max-distance", "32", "--cost-model", "seed") == (
        "\n".join([*report(CAUSAL, "seed", False), ""])
    )
    sizes = Sizes(96, 160, 32, 48, False, fourier="cos", batch=2, heads=3, itemsize=8)
    dims = ("--lq", "96", "--lk", "160", "--head-dim", "32", "--value-dim", "48")
    rest = ("--fourier", "cos", "--batch", "2", "--heads", "3", "--dtype", "float64", "--backward")
    assert command(*dims, *rest) == "\n".join([*report(sizes, "kernel", True), ""])
    picture = tmp_path / "map.png"
    assert command("--cost-model", "seed", "--out", str(picture)).endswith(f"\n\n{picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--lq 0", "argument --lq: expected a whole number from 1 to 16777216, got '0'"),
        ("--lk many", "argument --lk: expected a whole number from 1 to 16777216, got 'many'"),
        ("--head-dim 257", "argument --head-dim: expected a whole number from 1 to 256, got '257'"),
        ("--value-dim 0", "argument --value-dim: expected a whole number from 1 to 256, got '0'"),
        ("--max-distance -1", "argument --max-distance: expected a whole number from 0 to"),
        ("--dtype float16", "argument --dtype: expected float32 or float64, got 'float16'"),
        ("--cost-model gpu", "argument --cost-model: expected kernel or seed, got 'gpu'"),
        ("--fourier sin", "argument --fourier: expected one_plus_cos or cos, got 'sin'"),
        ("--fourier cos --max-distance 3", "argument --fourier: not allowed with argument --max-"),
        ("--fourier cos --cost-model seed", "the seed's cost model has no Fourier positions"),
        ("--cost-model seed --out nowhere/map.png", "nowhere/map.png: cannot be written"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, expected: str
) -> None:
    try:
        code = cli.main(["plan", *arguments.split()])
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr().err
    assert code == (1 if "nowhere" in arguments else 2)
    assert printed.startswith("minitransformer plan: error: ")
    assert printed.count("\n") == 1
    assert expected in printed


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["plan", "--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for name, option in PLAN_OPTIONS.items():
        assert f"--{name.replace('_', '-')} {option.metavar} {option.help}" in text


@given(text=st.text())
def test_any_text_is_a_value_or_an_argument_error(text: str) -> None:
    for option in PLAN_OPTIONS.values():
        try:
            assert option.parse(str(option.parse(text))) == option.parse(text)
        except argparse.ArgumentTypeError as error:
            assert repr(text) in str(error)
