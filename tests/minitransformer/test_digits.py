"""Handwritten digits: an honest split, two tasks that never look at the other side of it."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, nn, no_grad
from minitransformer.errors import UserError
from minitransformer.tasks import make_task
from minitransformer.tasks.digits import (
    DigitsTask,
    Split,
    load_split,
    logistic_regression,
    picture,
    read_image,
)
from minitransformer.tasks.graph import GraphTask, neighbourhood, squared_distances
from minitransformer.tasks.perceiver import PerceiverTask, distort, looks
from minitransformer.training import Interruption, Recipe, Trainer, train

from .line_task import run_in

SPLIT = load_split()
SOME = SPLIT.held_out.images[:5]
PERCEIVER = PerceiverTask(latents=4, heads=1, head_dim=16, depth=1, dropout=0.0, distortion=0.0)
GRAPH = GraphTask(neighbours=3, heads=2, head_dim=8, dropout=0.0)
TASKS: Mapping[str, tuple[DigitsTask, str]] = {
    "perceiver": (PERCEIVER, "softmax"),
    "graph": (GRAPH, "additive"),
}
EACH_TASK = pytest.mark.parametrize(("task", "attention"), TASKS.values(), ids=TASKS)


def trainer(task: DigitsTask, attention: str, **recipe: Any) -> Trainer:
    return Trainer(task, Recipe(**{"batch_size": 16, "steps": 20, "lr": 1e-2, **recipe}), attention)


# -- The split -------------------------------------------------------------------------------------


def test_every_image_is_on_one_side() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    found = np.concatenate([images for images, _ in SPLIT])
    known = {(*image, label) for image, label in zip(pixels / 16, labels, strict=True)}
    assert len(known) == len(found) == 1797  # no image is there twice, so the sides are disjoint
    assert {
        (*image, label)
        for images, labels in SPLIT
        for image, label in zip(images, labels, strict=True)
    } == known


def test_a_fifth_of_each_digit_is_held_out() -> None:
    held_out, train = (np.bincount(part.labels) for part in (SPLIT.held_out, SPLIT.train))
    assert held_out.sum() == 360
    np.testing.assert_allclose(held_out / (held_out + train), 0.2, atol=0.004)


def test_the_split_is_always_the_same() -> None:
    np.random.seed(99)
    again = load_split.__wrapped__()
    for part, other in zip(SPLIT, again, strict=True):
        np.testing.assert_array_equal(part.images, other.images)
        np.testing.assert_array_equal(part.labels, other.labels)
    # Of scikit-learn's 1,797 images, as any version of it must split them.
    assert SPLIT.held_out.labels[:12].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3, 2, 6]


def test_pixels_go_from_paper_to_ink() -> None:
    for images, _ in SPLIT:
        assert images.dtype == np.float32
        assert (images.min(), images.max()) == (0, 1)


def test_logistic_regression_is_the_library_s() -> None:
    found = logistic_regression(SPLIT)
    assert (found.predictions == SPLIT.held_out.labels).mean() == pytest.approx(0.967, abs=0.006)
    assert "on the same 1,437 images, C = 1, " in found.text
    assert found.parameters == 10 * (64 + 1)
    assert PERCEIVER.baseline == GRAPH.baseline == {"logistic regression": 348 / 360}


# -- Training --------------------------------------------------------------------------------------


@EACH_TASK
def test_images_held_out_change_nothing(task: DigitsTask, attention: str) -> None:
    """Training with noise in their place takes the same steps, bit for bit."""
    noise = np.random.default_rng(0).random((360, 64), np.float32)
    other = dataclasses.replace(task)
    split = Split(SPLIT.train, SPLIT.held_out._replace(images=noise))
    object.__setattr__(other, "digits", split)
    one, two = trainer(task, attention), trainer(other, attention)
    for _ in range(3):
        assert one.advance()["loss"] == two.advance()["loss"]
    np.testing.assert_equal(one.tensors(), two.tensors())


@EACH_TASK
def test_images_held_out_are_looked_at_along_the_way(
    task: DigitsTask, attention: str, tmp_path: Path
) -> None:
    """And change nothing: the steps are those of a training that never looked."""
    dropping = dataclasses.replace(task, dropout=0.3)
    rows = []
    for name, how in (("looking", {"examine": dropping.held_out}), ("blind", {})):
        run = run_in(tmp_path / name)
        trained = trainer(dropping, attention, steps=41)
        train(trained, run, Interruption(), quiet=True, **how)
        rows.append(run.rows())
    looking, blind = rows
    examined = [row["step"] for row in looking if "held_out_loss" in row]
    assert examined == [*range(2, 41, 2), 41]
    for row, other in zip(looking, blind, strict=True):
        assert (row["loss"], row["grad_norm"]) == (other["loss"], other["grad_norm"])
        assert "held_out_accuracy" not in other
    read = dropping.read(trained.model.eval(), SPLIT.held_out.images)
    right = read[np.arange(360), SPLIT.held_out.labels]
    assert looking[-1]["held_out_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-4)
    labels = SPLIT.held_out.labels
    assert looking[-1]["held_out_accuracy"] == (read.argmax(axis=1) == labels).mean()


@pytest.mark.parametrize("task", [PERCEIVER, GRAPH], ids=TASKS)
def test_a_batch_has_different_training_images(task: DigitsTask) -> None:
    batch = task.draw(np.random.default_rng(1), 500)
    images = {
        (*image, label)
        for image, label in zip(batch.images[batch.chosen], batch.labels, strict=True)
    }
    assert len(images) == len(batch.chosen) == 500
    assert images <= {(*image, label) for image, label in zip(*SPLIT.train, strict=True)}


@EACH_TASK
def test_loss_and_accuracy_are_those_of_the_labels(task: DigitsTask, attention: str) -> None:
    model = trainer(task, attention).model
    batch = task.draw(np.random.default_rng(1), 30)
    loss, accuracy = task.loss(model, batch)
    logits = task.logits(model, batch.images, batch.chosen).numpy().astype(np.float64)
    assert logits.shape == (30, 10), "a logit for each digit, and no more"
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = shares[np.arange(30), batch.labels]
    assert loss.item() == pytest.approx(-np.log(right).mean(), rel=1e-5)
    assert accuracy == (logits.argmax(axis=1) == batch.labels).mean()


@EACH_TASK
def test_a_model_learns(task: DigitsTask, attention: str) -> None:
    trained = trainer(task, attention)
    losses = [trained.advance()["loss"] for _ in range(12)]
    assert min(losses[-3:]) < 0.97 * losses[0]


@pytest.mark.nightly
@pytest.mark.parametrize("attention", nn.attention_names())
def test_latents_attend_by_every_attention(attention: str) -> None:
    trained = trainer(PERCEIVER, attention)
    losses = [trained.advance()["loss"] for _ in range(20)]
    assert losses[-1] < losses[0]
    assert looks(trained.model, SOME)[0].weights.shape == (4, 8, 8)


# -- The Perceiver ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("share", ["all", "none"])
def test_looks_are_shares_of_the_pixels(norm: str, share: str) -> None:
    task = dataclasses.replace(PERCEIVER, norm=norm, share=share, depth=2)
    model = trainer(task, "softmax").model
    found = looks(model, SOME)
    np.testing.assert_array_equal(np.array([look.image for look in found]).reshape(5, 64), SOME)
    weights = np.array([look.weights for look in found])
    assert weights.shape == (5, 4, 8, 8)
    np.testing.assert_allclose(weights.sum(axis=(2, 3)), 1, rtol=1e-5)
    assert weights.std() > 0


def test_the_settings_reach_the_perceiver() -> None:
    plain = trainer(PERCEIVER, "softmax").model
    parameters = plain.num_parameters()
    for change in (
        {"latents": 5}, {"heads": 3}, {"head_dim": 17}, {"layers": 2}, {"norm": "post"},
        {"num_bands": 5}, {"depth": 2, "share": "none"},
    ):  # fmt: skip
        changed = dataclasses.replace(PERCEIVER, **change)
        assert trainer(changed, "softmax").model.num_parameters() != parameters
    linear = dataclasses.replace(PERCEIVER, bands="linear")
    images = SPLIT.train.images[:4]
    assert np.any(
        PERCEIVER.read(plain, images) != linear.read(trainer(linear, "softmax").model, images)
    )
    dropping = trainer(dataclasses.replace(PERCEIVER, dropout=0.5), "softmax").model
    probabilities = [PERCEIVER.read(dropping, images) for _ in range(2)]
    assert np.any(probabilities[0] != probabilities[1])
    assert np.all(PERCEIVER.read(dropping.eval(), images) == PERCEIVER.read(dropping, images))


def test_distorted_images_are_drawn_anew_and_stay_near() -> None:
    task = dataclasses.replace(PERCEIVER, distortion=0.2)
    generator = np.random.default_rng(1)
    plain, one, other = (
        which.draw(np.random.default_rng(1) if which is PERCEIVER else generator, 1000)
        for which in (PERCEIVER, task, task)
    )
    np.testing.assert_array_equal(one.labels, plain.labels)
    near = np.square(one.images - plain.images[plain.chosen]).mean()
    assert 0 < near < np.square(one.images - other.images).mean() / 4


def test_distorting_by_nothing_is_nothing() -> None:
    np.testing.assert_array_equal(distort(SOME, np.random.default_rng(0), 0.0), SOME)


class Given:
    """A generator whose normal numbers are given: those of the matrices, then of the shifts."""

    def __init__(self, matrix: Any, shift: Any) -> None:
        self.numbers = [np.array([matrix], float), np.array(shift, float).reshape(1, 2, 1)]

    def normal(self, *_: Any) -> np.ndarray:
        return self.numbers.pop(0)


@pytest.mark.parametrize(
    ("matrix", "shift", "expected"),
    [
        ([[0, 0], [0, 0]], [1, 0], lambda image: np.pad(image, ((0, 1), (0, 0)))[1:]),
        ([[0, 0], [0, 0]], [0, -2], lambda image: np.pad(image, ((0, 0), (2, 0)))[:, :-2]),
        ([[0, 0], [0, 0]], [0, 0.5], lambda image: (image + np.pad(image, (0, 1))[:-1, 1:]) / 2),
        ([[-1, 1], [1, -1]], [0, 0], np.transpose),
        ([[-2, 0], [0, 0]], [0, 0], np.flipud),
    ],
)
def test_a_distortion_is_the_map(matrix: Any, shift: Any, expected: Any) -> None:
    found = distort(SOME[:1], Given(matrix, shift), 1.0).reshape(8, 8)
    np.testing.assert_allclose(found, expected(SOME[0].reshape(8, 8)), atol=1e-6)


# -- The graph -------------------------------------------------------------------------------------


def test_images_see_themselves_and_the_nearest_training_images() -> None:
    pool = np.concatenate([part.images for part in SPLIT])
    seen = GRAPH.seen(pool)
    assert seen.shape == (1797, 4)
    np.testing.assert_array_equal(seen[:, 0], np.arange(1797))
    for index in (0, 700, 1436, 1437, 1796):
        distances = np.square(pool[:1437] - pool[index]).sum(axis=1)
        if index < 1437:
            distances[index] = np.inf
        np.testing.assert_array_equal(distances[seen[index, 1:]], np.sort(distances)[:3])
    assert seen[:, 1:].max() < 1437
    assert (seen[:, 1:] != np.arange(1797)[:, None]).all()


def test_distances_are_exact() -> None:
    found = squared_distances(SPLIT.held_out.images, SPLIT.train.images)
    exact = np.square(SPLIT.held_out.images[:, None] - SPLIT.train.images[:50].astype(float)).sum(
        -1
    )
    np.testing.assert_array_equal(found[:, :50], exact)


def test_a_batch_brings_what_it_needs_and_no_more() -> None:
    """Logits by neighbourhoods are those of both layers on all training images."""
    model = trainer(GRAPH, "dot").model
    images = SPLIT.train.images
    seen = GRAPH.seen(images)
    everyone = np.arange(len(images))
    batch = np.random.default_rng(2).permutation(everyone)[:9]
    around, whole = neighbourhood(everyone, seen)
    np.testing.assert_array_equal(around, everyone)
    with no_grad():
        expected = model(Tensor(images), whole, whole).numpy()[batch]
        found = GRAPH.logits(model, images, batch).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    pixels, far, near = GRAPH._inputs(model, images, batch)
    assert (near.num_queries, far.num_queries) == (9, near.num_keys)
    assert near.num_keys == len(set(seen[batch].ravel()))
    assert len(pixels.numpy()) == len(set(seen[seen[batch].ravel()].ravel()))


@pytest.mark.parametrize("score", ["additive", "dot", "multi_head"])
def test_looks_at_neighbours_are_shares(score: str) -> None:
    model = trainer(GRAPH, score).model
    numbers = np.array([56, 3, 359])
    for number, found in zip(numbers, GRAPH.looks(model, numbers), strict=True):
        images, captions, weights = found
        np.testing.assert_array_equal(images[0].ravel(), SPLIT.held_out.images[number])
        assert captions[0] == f"image {number}\na {SPLIT.held_out.labels[number]}"
        assert all(re.fullmatch(r"a \d", caption) for caption in captions[1:])
        assert len(captions) == len(images) == 4
        for shares in weights.values():
            assert shares.shape == (4,)
            assert shares.sum() == pytest.approx(1, rel=1e-5)


def test_looks_belong_to_their_neighbours() -> None:
    """A first layer whose score is -|y| alone, of the neighbour's ink, looks most at the palest."""
    model = trainer(GRAPH, "additive").model
    projection, score = model.first.value_projection, model.first.score
    projection.weight.data[:] = 1
    score.vector.data[:, :8], score.vector.data[:, 8:] = 0, -1
    score.negative_slope = 1.0
    for images, _, weights in GRAPH.looks(model, np.arange(5)):
        order = np.argsort(images.sum(axis=(1, 2)))
        assert (np.diff(weights["first layer"][order]) <= 0).all()


# -- Answers ---------------------------------------------------------------------------------------


@EACH_TASK
def test_an_answer_is_that_of_the_report(task: DigitsTask, attention: str) -> None:
    model = trainer(task, attention).model
    shares = task.read(model, SPLIT.held_out.images)
    alone = task.read(model, SPLIT.held_out.images[17:18])
    np.testing.assert_allclose(alone[0], shares[17], rtol=1e-4)
    lines = task.respond({attention: model}, task.parse("17"))
    assert lines[0] == f"held-out image 17, a {SPLIT.held_out.labels[17]}:"
    best = int(shares[17].argmax())
    assert any(
        line.startswith(f"  {attention:9} {best} ({shares[17, best]:.1%}), ") for line in lines
    )


class Oracle(nn.Module):
    """Answers with what it is told."""


def test_the_report_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = SPLIT.held_out.labels.copy()
    answers[[3, 7, 30, 40]] = (answers[[3, 7, 30, 40]] + 1) % 10
    monkeypatch.setattr(PerceiverTask, "read", lambda *_: np.eye(10)[answers])
    text = "\n".join(PERCEIVER.report({"softmax": Oracle()}, {"softmax": 12.34}))
    assert "  softmax attention            98.89%       4            0       12.3 s" in text
    labels = SPLIT.held_out.labels
    assert f"Read wrong with softmax attention: 3 ({labels[3]} as {answers[3]}), 7 (" in text
    assert "logistic regression" in text
    rows = [text.splitlines()[-8 + row] for row in range(8)]
    for row, line in enumerate(rows):
        parts = [picture(SPLIT.held_out.images[index])[row] for index in (3, 7, 30)]
        assert line == ("  " + "   ".join(parts)).rstrip()


def test_the_report_of_a_perfect_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    perfect = np.eye(10)[SPLIT.held_out.labels]
    monkeypatch.setattr(PerceiverTask, "read", lambda *_: perfect)
    text = "\n".join(PERCEIVER.report({"softmax": Oracle()}, {"softmax": 1.0}))
    assert "100.00%       0 " in text
    assert "Read wrong with softmax attention: none." in text


@pytest.mark.parametrize("separator", [" ", ",", ", ", "\n"])
def test_an_image_in_a_file(tmp_path: Path, separator: str) -> None:
    pixels = np.arange(64) % 17
    (tmp_path / "mine.txt").write_text(separator.join(map(str, pixels)))
    np.testing.assert_array_equal(read_image(tmp_path / "mine.txt"), np.float32(pixels / 16))
    question = PERCEIVER.parse(str(tmp_path / "mine.txt"))
    assert question.text == str(tmp_path / "mine.txt")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "ink, got 0 of them"),
        ("1 2 3", "ink, got 3 of them"),
        ("1 " * 65, "ink, got 65 of them"),
        ("17 " + "1 " * 63, "ink, got some from 1 to 17"),
        ("-1 " + "1 " * 63, "ink, got some from -1 to 1"),
        ("nan " + "1 " * 63, "ink, got some from nan to nan"),
        ("x " + "1 " * 63, "ink, got something else (could not convert string to float: 'x')"),
        (b"\xff" * 64, "ink, got something else ('utf-8' codec"),
        (None, "mine.txt: cannot be read: No such file or directory; expected 8 x 8 numbers"),
    ],
)
def test_a_file_with_something_else(tmp_path: Path, content: Any, expected: str) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        PERCEIVER.parse(str(path))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["360", "999", "-1", "-360", "+360"])
def test_no_such_image(text: str) -> None:
    expected = f"a held-out image from 0 to 359, or a file, got '{text}'"
    with pytest.raises(ValueError, match=re.escape(expected)):
        PERCEIVER.parse(text)


def test_settings_of_other_tasks_do_not_matter() -> None:
    settings = {"neighbours": 3, "heads": 2, "head_dim": 8, "dropout": 0.0, "length": 3}
    assert make_task("graph", settings) == GRAPH
