"""The cost of a pixel is measured of what it is said to be measured of."""

from typing import Any

import numpy as np
import pytest

from minitransformer import no_grad
from minitransformer.experiments import drawn_digits
from minitransformer.experiments.generation import (
    METHODS,
    MODELS,
    STATES,
    TOKENS,
    Image,
    Model,
    cases,
    copied,
    kept,
    largest_batch,
    made,
    printed_gains,
    products,
    report,
    seen,
)
from minitransformer.generation import generate
from minitransformer.nn.variant import KeyValueCache

SMALL = Model(layers=2, heads=2, head_dim=16)
EACH_METHOD = pytest.mark.parametrize("method", METHODS)


def numbers(state: Any) -> int:
    """How many numbers of attention a state holds."""
    if isinstance(state, KeyValueCache):
        return 2 * state.keys[:, :, : state.length].size
    if isinstance(state, tuple):
        return sum(map(numbers, state))
    return int(np.prod(state.shape)) if getattr(state, "dtype", None) == np.float32 else 0


@EACH_METHOD
def test_what_is_kept_is_counted(method: str) -> None:
    with no_grad():
        assert 4 * numbers(seen(made(method, SMALL), 9)) == kept(method, 9, SMALL)


def test_a_cache_changes_no_pixel() -> None:
    cached, uncached = (made(method, SMALL) for method in ("cached", "uncached"))
    prompt = [[3, 1, 4], [1, 5, 9]]
    np.testing.assert_array_equal(generate(cached, prompt, 20), generate(uncached, prompt, 20))


@EACH_METHOD
def test_a_copied_state_goes_on_as_the_one_and_leaves_it(method: str) -> None:
    model = made(method, SMALL)
    with no_grad():
        state = model.step(np.array([[3, 1, 4, 1, 5]]), model.init_state())[1]
        batch, _ = model.step(np.full((3, 1), 2), copied(state, 3))
        again, _ = model.step(np.full((1, 1), 2), copied(state, 1))
        whole = model(np.array([[3, 1, 4, 1, 5, 2]])).numpy()[0, -1]
    for row in (*batch.numpy(), again.numpy()[0]):
        np.testing.assert_allclose(row[-1], whole, rtol=1e-4, atol=1e-5)


def test_products_are_counted() -> None:
    mapped, of_key = 2 * 12 * 32**2, 2 * 2 * 32  # by both layers
    wanted = {"recurrent": 0, "cached": 0, "uncached": 0}
    for place in range(1, 6):
        wanted["recurrent"] += mapped + of_key * 16
        wanted["cached"] += mapped + of_key * place
        for query in range(1, place + 1):
            wanted["uncached"] += mapped + of_key * query
    assert {method: products(method, 5, SMALL) for method in METHODS} == wanted


@pytest.mark.parametrize("pixels", MODELS)
@EACH_METHOD
def test_the_largest_batch_is_the_largest(method: str, pixels: int) -> None:
    model = MODELS[pixels]
    batch = largest_batch(method, pixels, model, "default")

    def fits(batch: int) -> bool:
        passed = pixels * batch if method == "uncached" else batch
        return (
            batch <= 256
            and passed <= TOKENS["default"]
            and batch * kept(method, pixels, model) <= STATES["default"]
        )

    assert fits(batch) and not fits(4 * batch)


def test_an_image_is_the_sum_of_its_pixels() -> None:
    image = Image(2, [1, 3, 5], [1.0, 3.0, 4.0], [0, 0, 0], None)
    assert image.summed == 1 + 2 + 3 + 3.5 + 4
    assert image.throughput == 2 / image.summed


def test_the_source_s_gains_are_those_that_it_printed() -> None:
    assert [f"{printed_gains(pixels, 'recurrent')[1]:,.0f}" for pixels in (784, 3072)] == [
        "317",
        "4,462",
    ]
    assert [f"{printed_gains(pixels, 'recurrent')[0]:.1f}" for pixels in (784, 3072)] == [
        "13.2",
        "191.8",
    ]


def rows(gain: float) -> list[dict[str, Any]]:
    """Recurrent pixels that take 1 s, and others that take more: alone, and not in batches."""
    return [
        {
            "pixels": 784,
            "layers": 8,
            "heads": 8,
            "head_dim": 32,
            "method": method,
            "batch": batch,
            **row,
        }
        for method in METHODS
        for batch in (1, 4)
        for slower in (gain if method != "recurrent" and batch == 1 else 1.0,)
        for row in (
            {"place": 1, "seconds": slower, "bytes": 10},
            {"place": 784, "seconds": slower, "bytes": 10},
            {"whole_seconds": 784 * slower},
        )
    ]


@pytest.mark.parametrize(("gain", "verdict"), [(13.0, "not reached"), (13.5, "supported")])
def test_verdicts_follow_from_the_times(gain: float, verdict: str) -> None:
    text = report(rows(gain)).text
    assert f"without a cache: alone 13x, here {gain:.0f}x, *{verdict}*; in batches 317x, " in text
    assert "*Supported*: over the whole image neither is more than 1.0x its least." in text
    assert "within 0% of the 6 images" in text


def test_each_method_draws_images_of_each_size_alone() -> None:
    alone = [(case["pixels"], case["method"]) for case in cases("default") if case["batch"] == 1]
    assert alone == [(pixels, method) for pixels in MODELS for method in METHODS]


def test_the_smallest_model_is_the_one_that_draws_digits() -> None:
    sizes, model = drawn_digits.SCALES["default"], MODELS[drawn_digits.PIXELS]
    assert (model.layers, model.heads, model.width) == (
        sizes["layers"],
        sizes["heads"],
        sizes["width"],
    )
