"""Digits are drawn from levels alone, and what is said of the drawings is so."""

from typing import Any

import numpy as np
import pytest

from minitransformer import manual_seed, no_grad
from minitransformer.experiments.drawn_digits import (
    CLASSES,
    GUIDANCES,
    LEVELS,
    NOT_TOLD,
    PIXELS,
    SHOWN,
    DrawingTask,
    behind,
    bits,
    cases,
    histogram_bits,
    levels,
    nearest,
    report,
    sampled,
    shades,
    sheet,
    spelled,
)
from minitransformer.tasks.digits import load_split

TASK = DrawingTask(width=32, heads=2, layers=1)
IMAGES = levels(load_split().held_out)


def model(attention: str = "linear") -> Any:
    manual_seed(0)
    return TASK.build(attention).eval()


def test_a_spelled_image_is_the_image() -> None:
    for image in IMAGES[:20]:
        assert len(spelled(image)) == PIXELS
        np.testing.assert_array_equal(shades(spelled(image)).ravel() * 16, image)


def test_a_batch_tells_the_digit_of_half_of_its_images() -> None:
    tokens = TASK.draw(np.random.default_rng(0), 1000)
    train = load_split().train
    labels = {
        spelled(image): label for image, label in zip(levels(train), train.labels, strict=True)
    }
    told = tokens[:, 0] != NOT_TOLD
    assert 400 < told.sum() < 600
    for first, *pixels in tokens[told]:
        assert first == LEVELS + labels[spelled(np.array(pixels))]
    assert len({spelled(image) for image in tokens[:, 1:]}) == 1000


def test_a_digit_s_token_never_follows() -> None:
    drawing = model()
    prompt = np.full((20, 1), NOT_TOLD)
    before = bits(drawing, behind(NOT_TOLD, IMAGES)), sampled(drawing, prompt, 1)
    drawing.head.bias.data[LEVELS:] += 50.0  # as if it were sure of one
    np.testing.assert_array_equal(before[0], bits(drawing, behind(NOT_TOLD, IMAGES)))
    np.testing.assert_array_equal(before[1], sampled(drawing, prompt, 1))
    assert before[1].shape == (20, PIXELS) and before[1].max() < LEVELS


def test_bits_are_those_of_the_chances() -> None:
    drawing = model()
    drawing.head.weight.data[:] = 0
    chances = np.arange(1, LEVELS + 1) / np.arange(1, LEVELS + 1).sum()
    drawing.head.bias.data[:LEVELS] = np.log(chances)
    wanted = -np.log2(chances)[IMAGES].mean(axis=1)
    np.testing.assert_allclose(bits(drawing, behind(NOT_TOLD, IMAGES)), wanted, rtol=1e-5)
    drawn = sampled(drawing, np.full((200, 1), NOT_TOLD), 0)
    found = np.bincount(drawn.ravel(), minlength=LEVELS) / drawn.size
    np.testing.assert_allclose(found, chances, atol=0.01)


def test_a_completion_keeps_what_was_given() -> None:
    given = behind(NOT_TOLD, IMAGES[:5, :32])
    one, again, other = (sampled(model(), given, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one[:, :32], IMAGES[:5, :32])
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_guidance_goes_as_far_again_where_the_token_leads() -> None:
    drawing = model()
    told, plain = (np.full((400, 1), first) for first in (LEVELS + 3, NOT_TOLD))
    with no_grad():
        logits = [drawing(x[:1]).numpy()[0, 0, :LEVELS].astype(np.float64) for x in (told, plain)]
    for guidance in GUIDANCES:
        chances = np.exp(logits[0] + guidance * (logits[0] - logits[1]))
        first = sampled(drawing, told, 0, guidance)[:, 0]
        found = np.bincount(first, minlength=LEVELS) / len(first)
        np.testing.assert_allclose(found, chances / chances.sum(), atol=0.07)
    np.testing.assert_array_equal(sampled(drawing, plain, 0), sampled(drawing, plain, 0, 5.0))


def test_a_histogram_counts_every_level_once_more() -> None:
    learned = np.zeros((15, PIXELS), int)
    learned[:3, 5] = 16
    image = np.zeros((1, PIXELS), int)
    image[0, 5] = 16
    wanted = -(63 * np.log2(16 / 32) + np.log2(4 / 32)) / 64
    np.testing.assert_allclose(histogram_bits(learned, image), [wanted])


def test_the_nearest_is_found() -> None:
    known = levels(load_split().train)
    wanted = [np.sqrt(((known - image) ** 2).mean(axis=1)).min() for image in IMAGES[:10]]
    np.testing.assert_allclose(nearest(IMAGES[:10], known), wanted)
    np.testing.assert_array_equal(nearest(known[7:9], known), 0)


def test_a_sheet_has_every_image_in_its_place() -> None:
    images = [np.full((8, 8), number) for number in (1, 2, 3)]
    whole = sheet(images, 2)
    assert whole.shape == (17, 17)
    assert [whole[0, 0], whole[7, 16], whole[16, 7]] == [1, 2, 3]
    assert whole[8, 0] == whole[0, 8] == whole[16, 16] == 0.15


def rows(linear: float = 1.0, right: float = 0.9) -> list[dict[str, Any]]:
    """Of one seed of softmax, and of two of linear, whose bits have this mean."""
    bits = {"bits": 1.0, "bits_told": 0.95, "reads": 0.5, "parameters": 10, "curve": []}
    judged = {"right": 0.9, "nearest": 2.0, "copies": 0}
    sizes = {"seed": 0, "layers": 1, "heads": 2, "width": 32, "steps": 8}
    return [
        {"model": "histogram", **bits, **judged},
        *({"model": name, **sizes, **bits} for name in ("linear", "softmax")),
        {"model": "linear", **sizes, **bits, "seed": 1, "bits": 2 * linear - 1},
        *(
            {"model": name, **sizes, **judged, "guidance": guidance, "right": right}
            for name in ("linear", "softmax")
            for guidance in GUIDANCES
        ),
    ]


@pytest.mark.parametrize(("right", "verdict"), [(0.8, "do not yet"), (0.82, "do")])
def test_looks_are_judged_by_a_reader(right: float, verdict: str) -> None:
    text = " ".join(report(rows(right=right)).text.split())
    assert f"guided, {verdict} look like digits" in text
    assert f"recognises {right / 0.9:.0%} as many" in text


@pytest.mark.parametrize(("linear", "verdict"), [(1.03, "*Supported*"), (1.04, "*Not supported*")])
def test_the_verdict_follows_from_the_bits(linear: float, verdict: str) -> None:
    text = " ".join(report(rows(linear)).text.split())
    assert f"at most 3.7% more). {verdict}: {linear:.3f} against 1.000" in text
    assert f"saves {64 * (linear - 0.95):.1f} bits an image with linear attention" in text


def test_every_attention_has_the_same_budget() -> None:
    found = [case for case in cases("default") if "seed" in case]
    linear, softmax = (
        [{**case, "model": ""} for case in found if case["model"] == name]
        for name in ("linear", "softmax")
    )
    assert linear == softmax and len(linear) * 2 == len(found)
    assert CLASSES * SHOWN == 80
