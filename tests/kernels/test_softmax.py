"""Dropout inside softmax attention, and its random numbers; relative scores at their limits."""

import itertools
from typing import Any

import numba
import numpy as np
import pytest

from minitransformer_kernels import reference, softmax
from minitransformer_kernels.arrays import HEAD_DIMS, SHARED_BYTES
from minitransformer_kernels.layers import dropout
from minitransformer_kernels.local import Pattern
from minitransformer_kernels.softmax import fast

from ..properties import array_library, to_numpy

# Published with the paper's library (Random123, kat_vectors): rounds, counter, key, output.
KNOWN_ANSWERS = """
7 00000000 00000000 00000000 00000000 00000000 00000000 5f6fb709 0d893f64 4f121f81 4f730a48
7 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 5207ddc2 45165e59 4d8ee751 8c52f662
7 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 4dfccaba 190a87f0 c47362ba b6b5242a
10 00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
10 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
10 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""


@pytest.mark.parametrize("line", KNOWN_ANSWERS.strip().splitlines())
def test_philox_gives_the_published_answers(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of them: the device function, called as Python, and the naive one in NumPy."""
    rounds, *hexadecimal = line.split()
    words = tuple(int(word, 16) for word in hexadecimal)
    counter, key, answer = words[:4], (words[4], words[5]), words[6:]
    arrays = tuple(np.array(word, np.uint64) for word in counter)
    assert tuple(map(int, reference.philox(arrays, key, int(rounds)))) == answer
    monkeypatch.setattr(dropout, "ROUNDS", int(rounds))
    assert dropout.philox(*counter, *key) == answer


@pytest.mark.parametrize("length", [16, 32, 64, 300])
def test_blocks_for_lanes_have_room(length: int) -> None:
    """Filled up or not, in the shared memory of any GPU, which a launch on a CPU asks for, too."""
    plainly, listed = (False, False, None), (False, False, Pattern(window=3).walk)
    for real, dim in itertools.product((numba.float32, numba.float64), HEAD_DIMS):
        for make, shape_of, constants in (
            (fast._forward_kernel, fast.forward_shape, listed),
            (fast._query_gradient_kernel, fast.backward_shape, listed),
            (fast._key_gradient_kernel, fast.backward_shape, (*listed, False)),
            (fast._key_gradient_kernel, fast.backward_shape, (*plainly, True)),
        ):
            kernel, _ = fast._made(make, shape_of, length, dim, dim, True, real, *constants)
            assert kernel.on_cpu.outline.declared(()) <= SHARED_BYTES, (
                kernel.on_cpu.function,
                real,
                dim,
            )


@pytest.mark.parametrize("version", ["fast", "plain"])
def test_backward_finds_the_scores_of_the_forward(version: str, device: str) -> None:
    """To the last bit: weights are exp(s - h), and the last bit of 50,000 is seven digits of them.

    Each query is the key at its own place, and sees next to nothing of others: its weight is 1.
    With an output of zeros for the backward, so that delta is 0, the gradients show it.
    """
    xp = array_library(device)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 2, 130, 5))
    x *= np.sqrt(5e4 / np.square(x).sum(-1, keepdims=True))
    of_first = np.zeros((2, 2, 130, 3))
    of_first[..., 0] = 1
    query, g, scores = (xp.asarray(y) for y in (x, of_first, 50 * rng.normal(size=(2, 2, 130, 7))))
    options: dict[str, Any] = {"scale": 1.0, "relative_scores": scores, "version": version}
    options |= {"dropout": 1e-16, "seed": 3}  # nothing is: these are kernels that others test, too
    output, *sums = softmax.forward(query, query, g, **options)
    dq, dk, dv, _ = softmax.backward(g, query, query, g, 0 * output, *sums, **options)
    found = to_numpy({"output": output, "dv": dv, "dq": dq, "dk": dk})
    for name, wanted in {"output": of_first, "dv": of_first, "dq": x, "dk": x}.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-15, err_msg=name)


SHAPE = (2, 2, 130, 72)  # N, H, Lq, Lk: ragged in tiles of any size
NARROW = (np.float64, 5, 8)
WIDE = [(np.float32, 40, 64), (np.float32, 256, 256), (np.float64, 256, 8)]


def factors(device: str, dtype: Any, head_dim: int, value_dim: int, **options: Any) -> Any:
    """What the kernel multiplies its weights by, (N, H, Lq, Lk).

    Where all scores are alike, weights are 1 / Lk; with columns of the identity for values, the
    output shows them. The relative scores are there for a kernel that other tests compile, too.
    """
    xp = array_library(device)
    N, H, Lq, Lk = SHAPE
    query, key = (xp.zeros((N, H, length, head_dim), dtype) for length in (Lq, Lk))
    alike = xp.ones((N, H, Lq, 1), dtype)
    columns = []
    for first in range(0, Lk, value_dim):
        one_hot = xp.broadcast_to(xp.eye(Lk, value_dim, -first, dtype), (N, H, Lk, value_dim))
        shown, *_ = softmax.forward(query, key, one_hot, relative_scores=alike, **options)
        columns.append(to_numpy({"output": shown})["output"])
    return Lk * np.concatenate(columns, axis=-1)[..., :Lk]


@pytest.mark.parametrize(
    "kind", [NARROW, *(pytest.param(each, marks=pytest.mark.nightly) for each in WIDE)], ids=str
)
def test_the_mask_is_that_of_the_reference(kind: Any, device: str) -> None:
    """Which knows nothing of tiles: so their shape, which differs among these, has no say."""
    for rate, seed in ((0.3, 5), (0.75, (77 << 40) + 5), (0.5, 2**63 - 1)):
        found = factors(device, *kind, dropout=rate, seed=seed)
        expected = reference.dropout_factors(SHAPE, rate, seed)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.9])
def test_weights_are_dropped_independently(rate: float) -> None:
    """The share that is dropped, by itself and together with every kind of neighbour."""
    shape = 4, 4, 128, 128

    def dropped(seed: int) -> Any:
        return reference.dropout_factors(shape, rate, seed) == 0

    mask = dropped(1)
    assert abs(mask.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / mask.size)
    neighbours = {
        "the next seed": (mask, dropped(2)),
        "a seed that differs in its high half": (mask, dropped(1 + (1 << 32))),
        "the next sequence": (mask[1:], mask[:-1]),
        "the next head": (mask[:, 1:], mask[:, :-1]),
        "the next query": (mask[:, :, 1:], mask[:, :, :-1]),
        "the next key": (mask[..., 1:], mask[..., :-1]),
        "the next group of keys": (mask[..., 4:], mask[..., :-4]),
        "query and key exchanged": (mask, mask.swapaxes(2, 3)),
    }
    both = rate**2
    for name, (first, second) in neighbours.items():
        found = np.mean(first & second)
        # Pairs (i, j) and (j, i) count twice, and (i, i) is a pair with itself.
        spread = np.sqrt(2 * both * (1 - both) / first.size) + (rate / shape[-1]) / 5
        assert abs(found - both) < 5 * spread, f"together with {name}"


def test_dropout_leaves_the_mean() -> None:
    """Over many seeds the outputs scatter around that without dropout as widely as they should."""
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 1, 2, 6, 5))
    rate, seeds = 0.4, 600
    scores = np.zeros((1, 2, 6, 1))
    outputs = [
        softmax.forward(query, key, value, relative_scores=scores, dropout=rate, seed=seed)[0]
        for seed in range(seeds)
    ]
    expected = reference.softmax_attention(query, key, value)
    p, _ = reference.softmax_weights(query, key, np.ones((1, 1, 6, 6), bool), None)
    variance = rate / (1 - rate) * (p**2 @ value**2)
    assert np.all(np.abs(np.mean(outputs, axis=0) - expected) < 5 * np.sqrt(variance / seeds))
    np.testing.assert_allclose(np.var(outputs, axis=0), variance, rtol=0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, "dropout must be a probability with 0 <= dropout < 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be a probability with 0 <= dropout < 1, got -0.1"),
        ({"dropout": float("nan")}, "dropout must be a finite number, got nan"),
        ({"dropout": 0.5, "seed": -1}, r"seed must be a whole number from 0 to 2\^63 - 1, got -1"),
        ({"dropout": 0.5, "seed": 2**63}, "seed must be a whole number from 0 to"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    x = np.zeros((1, 1, 2, 3))
    with pytest.raises(ValueError, match=message):
        softmax.forward(x, x, x, **options)
    with pytest.raises(ValueError, match=message):
        softmax.backward(x, x, x, x, x, *np.zeros((2, 1, 1, 2)), **options)


@pytest.mark.parametrize(
    ("queries", "options"), [(4, {}), (1, {"dropout": 0.5}), (1, {"pattern": Pattern(window=3)})]
)
def test_few_refuses_what_it_does_not_do(queries: int, options: dict[str, Any]) -> None:
    x = np.ones((1, 1, 8, 4))
    with pytest.raises(ValueError, match="up to 3 queries, no pattern and no dropout"):
        softmax.forward(x[:, :, :queries], x, x, version="few", **options)
