"""The pictures are there, show what they are given, and stand any size of run."""

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from minitransformer import plots
from minitransformer.plots import line
from minitransformer.tasks.copy import AttentionMap
from minitransformer.tasks.copy.picture import plot_attention
from minitransformer.tasks.graph import Neighbourhood
from minitransformer.tasks.graph.picture import plot_neighbours
from minitransformer.tasks.perceiver import Look
from minitransformer.tasks.perceiver.picture import plot_looks
from minitransformer.training import CheckpointError
from minitransformer.training.curves import _draw_curve, _finish_accuracy, plot_training

BLUE, VERMILION, ORANGE = (0, 114, 178), (213, 94, 0), (230, 159, 0)
DARKEST = (8, 48, 107)


def rows(steps: int, *attentions: str) -> list[dict[str, Any]]:
    return [
        {"attention": name, "step": step, "loss": 2 / step, "accuracy": step / steps}
        for name in attentions
        for step in range(1, steps + 1)
    ]


def pixels(path: Path) -> np.ndarray:
    return np.rint(matplotlib.image.imread(path)[..., :3] * 255).astype(int).reshape(-1, 3)


def count(path: Path, color: tuple[int, int, int]) -> int:
    return int((np.abs(pixels(path) - color).max(axis=-1) <= 2).sum())


def heat_map(heads: int, length: int) -> AttentionMap:
    weights = np.broadcast_to(np.eye(length), (heads, length, length))
    tokens = tuple(map(str, np.arange(length) % 10))
    return AttentionMap("decoder 1, cross", weights, tokens, tokens)


@pytest.mark.parametrize("change", [-1e-2, 1e-2], ids=["below zero", "of another sum"])
def test_weights_that_are_no_shares_are_not_called_shares(change: float, tmp_path: Path) -> None:
    def label(layer: AttentionMap) -> np.ndarray:
        plot_attention(tmp_path / "map.png", [layer])
        return matplotlib.image.imread(tmp_path / "map.png")[:, -60:]

    shares = heat_map(2, 5)
    assert np.array_equal(label(shares), label(shares))
    assert not np.array_equal(
        label(shares), label(shares._replace(weights=shares.weights + change))
    )


def test_a_curve_for_each_attention(tmp_path: Path) -> None:
    plot_training(tmp_path / "one.png", rows(50, "linear"), "one")
    plot_training(tmp_path / "two.png", rows(50, "linear", "softmax"), "two")
    assert count(tmp_path / "one.png", BLUE) > 500
    assert count(tmp_path / "one.png", VERMILION) == 0
    assert count(tmp_path / "two.png", VERMILION) > 300


def test_a_run_of_one_step_is_a_dot_and_of_none_an_empty_picture(tmp_path: Path) -> None:
    plot_training(tmp_path / "one.png", rows(1, "linear"))
    assert count(tmp_path / "one.png", BLUE) > 20
    plot_training(tmp_path / "none.png", [])  # without a warning


def test_many_curves_are_told_apart() -> None:
    looks = [tuple(sorted(line(number).items())) for number in range(28)]
    assert len(set(looks)) == 28


def test_what_was_held_out_is_a_curve_with_dots() -> None:
    measured = rows(50, "linear")
    for row in measured[9::10]:
        row |= {"held_out_loss": 0.5, "held_out_accuracy": row["step"] / 100}
    axis = Figure().add_subplot()
    _draw_curve(axis, measured, "accuracy", line(0))
    dots = axis.get_lines()[-1]
    assert dots.get_marker() == "o"
    assert dots.get_xydata().tolist() == [[step, step / 100] for step in (10, 20, 30, 40, 50)]


def test_what_is_to_be_beaten_is_a_line(tmp_path: Path) -> None:
    plain, base, high = (tmp_path / f"{name}.png" for name in ("plain", "base", "high"))
    plot_training(plain, rows(50, "linear"))
    for path, share in ((base, 0.5), (high, 0.6)):
        plot_training(path, rows(50, "linear"), baseline={"guessing": share})
    assert (pixels(plain) != pixels(base)).any()
    assert (pixels(high) != pixels(base)).any()


@pytest.mark.parametrize(
    ("shares", "lowest"), [([], 0), ([0.5], 0), ([0.95, 0.98], 0.8), ([1.0, 0.99], 0.96)]
)
def test_where_accuracies_begin(shares: list[float], lowest: float) -> None:
    axis = Figure().add_subplot()
    _finish_accuracy(axis, "image", shares)
    assert axis.get_ylim()[0] == pytest.approx(lowest)


@pytest.mark.parametrize("steps", [1, 1000])
def test_any_number_of_steps(tmp_path: Path, steps: int) -> None:
    plot_training(tmp_path / "loss.png", rows(steps, "linear"))
    assert len(np.unique(pixels(tmp_path / "loss.png"), axis=0)) > 10


@pytest.mark.parametrize(("layers", "heads", "length"), [(1, 1, 1), (6, 4, 16), (2, 3, 40)])
def test_a_diagonal_is_seen_as_dark_as_it_is(
    tmp_path: Path, layers: int, heads: int, length: int
) -> None:
    plot_attention(tmp_path / "map.png", [heat_map(heads, length)] * layers, "diagonals")
    dark = count(tmp_path / "map.png", DARKEST)
    side = 1.35 * 0.9 * 160
    assert 0.4 < dark / (layers * heads * side**2 / length) < 2.5


@pytest.mark.parametrize(("layers", "length"), [(55, 2), (1, 300)])
def test_a_picture_has_an_end(tmp_path: Path, layers: int, length: int) -> None:
    plot_attention(tmp_path / "map.png", [heat_map(1, length)] * layers)
    image = matplotlib.image.imread(tmp_path / "map.png")
    reds = np.bincount((255 * image[..., 0]).astype(np.uint8).ravel())
    assert np.count_nonzero(reds) > 10
    assert max(image.shape) <= 12_000


@pytest.mark.parametrize(("images", "latents"), [(1, 1), (2, 16)])
def test_each_look_has_its_darkest_pixel(tmp_path: Path, images: int, latents: int) -> None:
    """Each latent looks at one pixel of 64, in images without ink."""
    weights = np.zeros((latents, 64))
    weights[np.arange(latents), np.arange(latents) * 3] = 1
    look = Look(np.zeros((8, 8)), weights.reshape(latents, 8, 8))
    plot_looks(tmp_path / "looks.png", [look] * images, "looks")
    darkest = count(tmp_path / "looks.png", DARKEST)
    side = 0.8 * 0.9 * 160 / 8
    assert 0.5 < darkest / (images * latents * side**2) < 2


@pytest.mark.parametrize(("images", "neighbours"), [(1, 1), (2, 8)])
def test_bars_are_as_high_as_their_shares(tmp_path: Path, images: int, neighbours: int) -> None:
    places = 1 + neighbours
    first = np.eye(places)[0]
    second = 0.25 * first
    rows = [
        Neighbourhood(
            np.zeros((places, 8, 8)), ("itself",) * places, {"first": first, "second": second}
        )
    ] * images
    plot_neighbours(tmp_path / "one.png", rows, "bars")
    high, low = (count(tmp_path / "one.png", color) for color in (BLUE, ORANGE))
    rows = [row._replace(weights={"first": 0.5 * first, "second": first}) for row in rows]
    plot_neighbours(tmp_path / "two.png", rows, "bars")
    middle, as_high = (count(tmp_path / "two.png", color) for color in (BLUE, ORANGE))
    assert as_high == high
    key = 350  # pixels of the legend
    assert (middle - key) / (high - key) == pytest.approx(0.5, abs=0.02)
    assert (low - key) / (high - key) == pytest.approx(0.25, abs=0.02)


def test_the_axes_say_what_is_counted(tmp_path: Path) -> None:
    for answer in ("token", "image"):
        plot_training(tmp_path / f"{answer}.png", rows(50, "linear"), "one", answer)
    assert (pixels(tmp_path / "token.png") != pixels(tmp_path / "image.png")).any()


def test_a_title_is_no_wider_than_its_picture() -> None:
    figure = Figure((3, 2))
    title = figure.suptitle("Where the heads of linear attention look", fontweight="bold")
    below = figure.supxlabel("short")
    plots._break_titles(figure)
    assert title.get_window_extent().width <= figure.bbox.width
    assert title.get_text().split("\n") == ["Where the heads of linear", "attention look"]
    assert below.get_text() == "short"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"loss\.png: cannot be written: No such file"):
        plot_training(tmp_path / "nowhere" / "loss.png", rows(3, "linear"))
