"""Layers are what they are called, slopes are fitted, and paths are as long as theory says."""

import math

import numpy as np
import pytest

from minitransformer import Tensor
from minitransformer.course.measuring import peak_bytes
from minitransformer.experiments import slopes
from minitransformer.experiments.slopes import (
    LAYERS,
    PATHS,
    TAPS,
    chain,
    convolution,
    drawn,
    made,
    reach,
    recurrence,
    scores_kept,
    slope,
)

X = np.random.default_rng(0).standard_normal((10, 3))


def test_a_slope_is_an_exponent_with_its_error():
    x = np.array([1, 2, 4, 8, 16])
    exact = slope(x, 3.0 * x**2)
    assert exact.mean == pytest.approx(2) and exact.error < 1e-9
    assert exact.agrees(2) and not exact.agrees(1)
    rng = np.random.default_rng(0)
    fits = [slope(x, x**1.5 * np.exp(rng.normal(0, 0.1, 5))) for _ in range(500)]
    inside = np.mean([abs(fit.mean - 1.5) <= fit.error for fit in fits])
    assert 0.8 < inside < 0.95  # two standard errors of three degrees of freedom: 0.86


def test_both_attentions_are_one():
    kernel, arrays = (made(name, n=12, d=16)().numpy() for name in ("attention", "scores kept"))
    np.testing.assert_allclose(kernel[0, 0], arrays, atol=1e-6)
    p = np.exp(X @ X.T / math.sqrt(3))
    wanted = p / p.sum(axis=1, keepdims=True) @ X
    np.testing.assert_allclose(scores_kept(Tensor(X)).numpy(), wanted)


@pytest.mark.parametrize("apart", [1, 3])
def test_a_convolution_is_its_sum(apart):
    weight = np.random.default_rng(1).standard_normal((TAPS, 3, 3))
    wanted = np.zeros((10, 3))
    for i in range(10):
        for j in range(TAPS):
            before = i - (TAPS - 1 - j) * apart
            wanted[i] += X[before] @ weight[j] if before >= 0 else 0
    found = convolution(Tensor(X), Tensor(weight.reshape(-1, 3)), apart)
    np.testing.assert_allclose(found.numpy(), wanted)


def test_a_recurrence_is_its_loop():
    w, u = np.random.default_rng(1).standard_normal((2, 3, 3))
    h = np.zeros(3)
    for x, state in zip(X, recurrence(*map(Tensor, (X, w, u))), strict=True):
        h = np.tanh(x @ w + h @ u)
        np.testing.assert_allclose(state.numpy()[0], h)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_gives_an_output_for_each_token(layer):
    sizes = {"N": 6, "M": 12} if layer == "latents" else {"n": 12}
    y = made(layer, d=16, **sizes)()
    assert y.shape[-2:] == (sizes.get("N", 12), 16)


def test_memory_is_that_of_the_scores():
    """n x n of them, at least once in memory, and never in the kernel's."""
    kept, fused = (peak_bytes(made(name, n=256, d=16)) for name in ("scores kept", "attention"))
    assert kept >= 4 * 256**2 > fused
    assert drawn(4, 4).numpy().dtype == np.float32


@pytest.mark.parametrize("n", [9, 27])
def test_paths_are_counted(n):
    found = {name: reach(name, n) for name in PATHS}
    wanted = {"attention": 1, "convolution": (n - 1) // 2, "tanh": n}
    assert found == wanted | {"convolution, dilated": round(math.log(n, 3))}
    rows = [{"steps_of": name, "n": n, "path": steps} for name, steps in found.items()]
    counted = {(row["steps_of"], n): row for row in rows}
    assert slopes._as_printed(counted)
    counted["attention", n]["path"] = 2
    assert not slopes._as_printed(counted)


def test_only_a_recurrence_is_a_long_chain():
    short, long = ({name: chain(name, n) for name in PATHS} for n in (9, 27))
    assert long.pop("tanh") == short.pop("tanh") + 3 * (27 - 9)  # product, sum and tanh of a step
    assert long == short
