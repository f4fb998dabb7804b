"""Kernels that claim to be causal linear attention: two are right, the others are edits."""

import inspect

import numpy as np
import pytest

from minitransformer.course.measuring import error
from minitransformer.course.suspects import SUSPECTS, WIDTH, attend, confession, phi, suspect
from minitransformer_kernels.linear.reference import phi as features

RIGHT = [number for number, (lie, _) in enumerate(SUSPECTS, 1) if not lie]
random = np.random.default_rng(0)


def by_pairs(q, k, v):
    q, k = (features(np.float64(x), "elu") for x in (q, k))
    a = np.tril(q @ k.swapaxes(1, 2))
    return a @ v / a.sum(axis=2, keepdims=True)


def test_two_of_nine_are_right():
    assert len(SUSPECTS) == 9 and len(RIGHT) == 2


@pytest.mark.parametrize("loud", [0, 1])
def test_one_is_wrong_in_a_quiet_head_alone(loud):
    q, k = random.uniform(-2, 2, (2, 2, 33, 4)).astype(np.float32)
    v = random.standard_normal((2, 33, 3), np.float32)
    assert error(suspect(9)(q, k, v), by_pairs(q, k, v)) < 1e-5
    v[loud] *= 1e5
    got, truth = suspect(9)(q, k, v), by_pairs(q, k, v)
    assert error(got, truth) < 1e-5 and error(got[1 - loud], truth[1 - loud]) > 1e-4


@pytest.mark.parametrize("number", RIGHT)
@pytest.mark.parametrize(("low", "high"), [(-2, 2), (-20, -19), (0, 1e6)])
def test_who_is_right_is_so_where_it_is_promised(number, low, high):
    q, k = random.uniform(low, high, (2, 2, 33, WIDTH)).astype(np.float32)
    v = random.random((2, 33, 35), np.float32)
    assert error(suspect(number)(q, k, v), by_pairs(q, k, v)) < 1e-5


def test_an_edit_is_of_text_that_stands_once():
    text = "\n\n".join(inspect.getsource(x.function) for x in (phi, attend))
    for number, (_, edits) in enumerate(SUSPECTS, 1):
        assert all(text.count(right) == 1 for right in edits)
        assert bool(confession(number)) == bool(edits)


@pytest.mark.parametrize(
    ("query", "value", "message"),
    [
        ((2, 5, 17), (2, 5, 3), "a state has at most 16 rows, got E = 17"),
        ((5, 4), (5, 3), r"expected query and key \(H, L, E\) and value \(H, L, M\), got \(5, 4\)"),
        ((2, 5, 4), (2, 6, 3), r"expected .*, got \(2, 5, 4\), \(2, 5, 4\) and \(2, 6, 3\)"),
    ],
)
def test_inputs_of_other_shapes_are_refused(query, value, message):
    with pytest.raises(ValueError, match=f"^attend: {message}"):
        suspect(1)(np.ones(query), np.ones(query), np.ones(value))
