"""`minitransformer plan`: what it prints is what the planner found, and its map shows it."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import commands as cli
from minitransformer.commands.plan import OPTIONS
from minitransformer.commands.plan.map import draw_map
from minitransformer.commands.plan.table import Question, report
from minitransformer_kernels import planner
from minitransformer_kernels.planner import Sizes

CAUSAL = Sizes(2048, 2048, 64, 64, causal=True, max_distance=32, heads=8)
SAND, BLUE, ROSE = (246, 217, 168), (169, 207, 232), (229, 198, 219)  # naive, linear, chunked


@pytest.fixture
def command(command: Callable[..., str]) -> Callable[..., str]:
    """Runs `minitransformer plan`, which succeeds; returns what it printed."""
    return partial(command, "plan")


def test_the_seed_s_model_in_full() -> None:
    assert report(Question(CAUSAL, "seed")) == [
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
        "",
        "To compute it so: algorithm={'kernelized': 'naive', 'relative': 'linear'}",
    ]


def test_crossovers_of_other_heads() -> None:
    both_ways = report(Question(CAUSAL._replace(causal=False), "seed"))
    assert "  kernelized: naive, linear above L = 64 = d" in both_ways
    narrow = report(Question(CAUSAL._replace(value_dim=16), "seed"))
    assert "  kernelized: naive, linear above L = 1,024" in narrow


@pytest.mark.parametrize("device", ["cpu", "H200"])
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
def test_the_kernels_model_shows_what_the_planner_found(
    sizes: Sizes, backward: bool, device: str
) -> None:
    processors = {"cpu": 1, "H200": 132}[device]
    chosen = planner.choose(sizes, processors)
    lines = report(Question(sizes, "kernel", device, backward))
    for algorithm in planner.algorithms(sizes):
        (row,) = (line for line in lines if re.match(rf"  {algorithm}( |$)", line))
        assert ("*" in row) == (algorithm == chosen)
        cells = re.fullmatch(r"  \w+(?: \*)? +([\d.]+) ([KMG]iB|B) +([\d,]+) +([\d,.e+]+)", row)
        assert cells is not None
        total, unit, blocks, effort = cells.groups()
        size = 1024.0 ** ("B", "KiB", "MiB", "GiB").index(unit)
        memory = planner.memory(sizes, algorithm, backward)
        assert float(total) * size == pytest.approx(memory, rel=0.006)
        assert int(blocks.replace(",", "")) == planner.blocks(sizes, algorithm, processors)
        least = planner.effort(sizes, chosen, processors)
        times = planner.effort(sizes, algorithm, processors) / least
        assert float(effort.replace(",", "")) == pytest.approx(times, rel=0.006)
    assert f"* {chosen} takes the least effort." in lines
    assert any(line.startswith("  softmax") for line in lines)
    assert lines[-1].startswith("Where Lq = Lk = L: ")


@given(st.floats(1, 1e18))
def test_bytes_are_read_at_a_glance(count: float) -> None:
    from minitransformer.commands.plan.table import _human_bytes

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
        draw_map(tmp_path / "map.png", Question(CAUSAL._replace(causal=causal), "seed"))
        shares[causal] = region(tmp_path / "map.png", SAND)
        assert region(tmp_path / "map.png", BLUE) > 0.2
    assert shares[True] > shares[False] + 0.08 > 0.15


def test_the_map_of_a_gpu_has_room_for_chunks(tmp_path: Path) -> None:
    shares = {}
    for device in ("cpu", "H200"):
        draw_map(tmp_path / "map.png", Question(CAUSAL, device=device))
        shares[device] = region(tmp_path / "map.png", ROSE)
    assert shares["cpu"] == 0
    assert shares["H200"] > 0.2


def test_the_command(command: Callable[..., str], tmp_path: Path) -> None:
    assert command("--lq", "2048", "--causal", "--max-distance", "32", "--cost-model", "seed") == (
        "\n".join([*report(Question(CAUSAL, "seed")), ""])
    )
    sizes = Sizes(96, 160, 32, 48, False, fourier="cos", batch=2, heads=3, itemsize=8)
    dims = ("--lq", "96", "--lk", "160", "--head-dim", "32", "--value-dim", "48")
    rest = ("--fourier", "cos", "--batch", "2", "--heads", "3", "--dtype", "float64", "--backward")
    asked = Question(sizes, "kernel", "t4", backward=True)
    assert command(*dims, *rest, "--device", "t4") == "\n".join([*report(asked), ""])
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
        ("--backward --cost-model seed", "argument --backward: the seed's cost model does not"),
        ("--device H200 --cost-model seed", "argument --device: the seed's cost model does not"),
        ("--device abacus", "argument --device: no GPU 'abacus' is known here; expected one of T4"),
        ("--cost-model seed --out nowhere/map.png", "nowhere/map.png: cannot be written"),
    ],
)
def test_a_mistake_is_one_line(
    complaint: Callable[..., str], arguments: str, expected: str
) -> None:
    printed = complaint(1 if "nowhere" in arguments else 2, "plan", *arguments.split())
    assert printed.startswith("minitransformer plan: error: ")
    assert expected in printed


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["plan", "--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for name, option in OPTIONS.items():
        assert f"--{name.replace('_', '-')} {option.kind.metavar} {option.help}" in text
