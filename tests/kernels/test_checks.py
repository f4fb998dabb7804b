"""No call that the documentation describes ends Python, or answers with numbers of no array.

Those of CRASHES run in a process of their own: before host functions looked at their arguments,
some of these read memory that is nobody's. One that ends it takes the calls after it along.
"""

import json
import subprocess
import sys
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, functions
from minitransformer.attention import softmax_attention
from minitransformer_kernels import (
    chunked,
    features,
    fourier,
    graph,
    local,
    recurrent,
    relative,
    softmax,
)
from minitransformer_kernels.checks import MOST_BLOCKS, finite, fit
from minitransformer_kernels.layers import matmul, optimizer
from minitransformer_kernels.visible import CAUSAL, EVERYTHING, Visible

from ..refusals import refusals

HEAD = """
    import numpy as np
    from minitransformer import Tensor, nn, optim
    from minitransformer.attention import linear_attention, multi_head, softmax_attention
    from minitransformer_kernels import delta, graph, linear, recurrent, softmax
    from minitransformer_kernels.layers import layer_norm, optimizer
    from minitransformer_kernels.visible import CAUSAL, EVERYTHING, Visible

    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 3, 40, 8)) for _ in range(3))
    packed = [x[:1] for x in (q, k, v)]
    far = 1 << 24  # numbers: a process owns no so much memory behind an array
"""

CRASHES = {
    "fewer key heads": (
        "softmax.forward(q, k[:, :1], v)",
        "ValueError: softmax.forward: key must have the shape (N=2, H=3, Lk, E=8), got (2, 1",
    ),
    "short values": (
        "softmax.forward(q, k, v[:, :, :1])",
        "ValueError: softmax.forward: value must have the shape (N=2, H=3, Lk=40, M), got",
    ),
    "lengths beyond the array": (
        "softmax.forward(q, k, v, Visible(key_lengths=np.array([40, far])))",
        "ValueError: softmax.forward: key_lengths must lie between 0 and 40, the length of",
    ),
    "boundaries beyond the array": (
        "recurrent.forward(*packed, Visible(True, cu_seqlens=np.array([0, 20, far])))",
        "ValueError: recurrent.forward: cu_seqlens must rise from 0 to 40, the rows of the",
    ),
    "a state of another shape": (
        "recurrent.forward(q, k, v, CAUSAL, initial_state=recurrent.LinearState(q[0], k[0]))",
        "ValueError: recurrent.forward: initial_state.S must have the shape (N=2, H=3, E=8, M=8)",
    ),
    "beta of another shape": (
        "delta.forward(q, k, v, np.ones((2, 3, 1)))",
        "ValueError: delta.forward: beta must have the shape (N=2, H=3, Lk=40), got (2, 3, 1)",
    ),
    "a gradient of another shape": (
        "o = softmax.forward(q, k, v); softmax.backward(o[0][:, :1], q, k, v, *o)",
        "ValueError: softmax.backward: grad_output must have the shape (N=2, H=3, Lq=40, M=8)",
    ),
    "a short weight of layer norm": (
        "layer_norm.forward(np.ones((4, 4096)), np.ones(2), None, eps=1e-5)",
        "ValueError: layers.layer_norm.forward: weight must have the shape (D=4096), got (2,)",
    ),
    "4 rows of a gradient for 16": (
        "x, w = rng.normal(size=(2, 16, 8)), np.eye(8)\n"
        "y, saved = multi_head.forward(multi_head.Weights(w, w, w, w), x, num_heads=2)\n"
        "multi_head.backward_data(y[:, :4], saved)",
        "ValueError: multi_head.backward_data: grad_output must have the shape (N=2, Lq=16, D_o=8)",
    ),
    "a short gradient of an optimizer": (
        "optimizer.descend(np.ones(far), np.ones(4), rate=0.1)",
        "ValueError: optimizer update: gradient must have the shape (D0=16777216), got (4,)",
    ),
    "columns that are written to": (
        "columns = np.array([0, 1]); seen = nn.Graph([0, 1, 2], columns); columns[:] = far\n"
        "edges = seen.edges\n"
        "graph.forward(np.zeros((1, 2)), np.ones((1, 2, 4)), edges)\n"
        "seen.columns[:] = far",
        "ValueError: assignment destination is read-only",
    ),
    "rows that are written to": (
        "seen = nn.Graph([0, 1, 2], [1, 0]); seen.rows[:] = far\n"
        "graph.dot_scores(np.ones((1, 2, 4)), np.ones((1, 2, 4)), seen.edges)",
        "ValueError: assignment destination is read-only",
    ),
    "lengths of what a forward saved that are written to": (
        "x, w = rng.normal(size=(2, 16, 8)), np.eye(8)\n"
        "lengths = np.array([3, 16])\n"
        "y, saved = multi_head.forward("
        "multi_head.Weights(w, w, w, w), x, num_heads=2, key_lengths=lengths)\n"
        "saved.options['visible'].key_lengths[:] = far\n"
        "multi_head.backward_data(y, saved)",
        "ValueError: assignment destination is read-only",
    ),
}  # fmt: skip


TRY_ALL = """
    import json, sys
    for name, call in json.loads(sys.argv[1]).items():
        try:
            exec(call, {**globals()})
        except Exception as error:
            print(json.dumps([name, f"{type(error).__name__}: {error}"]), flush=True)
"""


@pytest.fixture(scope="module")
def refusals_of_all() -> dict[str, str]:
    """What each call raised, up to the first that ended the process."""
    calls = json.dumps({name: call for name, (call, _) in CRASHES.items()})
    script = dedent(HEAD) + dedent(TRY_ALL)
    found = subprocess.run([sys.executable, "-c", script, calls], capture_output=True, text=True)
    print(found.stderr)
    return dict(map(json.loads, found.stdout.splitlines()))


@pytest.mark.parametrize("name", CRASHES)
def test_what_crashed_is_refused(name: str, refusals_of_all: dict[str, str]) -> None:
    found = refusals_of_all.get(name, "an answer, or the end of Python here or before")
    assert found.startswith(CRASHES[name][1])


REPLACED = """
    x = Tensor(np.ones(4), requires_grad=True)
    adam = optim.Adam([x], lr=0.1)
    x.grad = Tensor(np.ones(4)); adam.step()
    x.data = np.ones(1 << 22); x.grad = Tensor(np.ones(1 << 22)); adam.step()
"""


def test_moments_of_a_parameter_whose_data_was_replaced() -> None:
    script = dedent(HEAD) + dedent(REPLACED)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "optimizer update: first must have the shape (D0=4194304), got (4,)" in found.stderr
    assert "in Adam.step, of parameter 0; if its data was replaced" in found.stderr


def test_what_an_optimizer_keeps_has_memory_of_its_own() -> None:
    x, gradient, moment = np.ones(4), np.ones(4), np.zeros(5)
    how = {"rate": 0.1, "betas": (0.9, 0.999), "root_weight": 1.0, "eps": 1e-8}
    with pytest.raises(ValueError, match="first and second must not share memory; pass a copy"):
        optimizer.moment_descend(x, gradient, moment[1:], moment[:-1], **how)


def arrays(*lengths: int) -> list[Any]:
    return [np.random.default_rng(0).normal(size=(2, 1, length, 4)) for length in lengths]


def test_what_was_checked_stays() -> None:
    """Lengths that change between the forward and its backward change no gradient."""
    lengths, gradients = np.array([3, 5]), []
    for write in (False, True):
        query, key, value = (Tensor(x, requires_grad=True) for x in arrays(4, 6, 6))
        output = softmax_attention(query, key, value, key_lengths=lengths)
        if write:
            lengths[:] = 1 << 40
        output.sum().backward()
        gradients.append(value.grad.numpy())
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize(
    ("choose", "chosen", "other"),
    [
        (lambda x, at: functions.embedding(at, x), [2, 0], [1, -1]),
        (lambda x, at: x[at], [2, 0], [1, 3]),
        (lambda x, at: functions.where(at, x, 0.0), [[True], [False], [True], [False]], True),
    ],
    ids=["embedding", "index", "where"],
)
def test_what_was_chosen_gets_the_gradient(choose: Any, chosen: Any, other: Any) -> None:
    """Whatever is written to indices or a mask in between, as to a buffer for batches."""
    at, x = np.array(chosen), Tensor(np.ones((4, 1)), requires_grad=True)
    output = choose(x, at)
    at[:] = other
    output.sum().backward()
    assert x.grad.tolist() == [[1.0], [0.0], [1.0], [0.0]]


@pytest.mark.parametrize("causal", ["False", None, 1, 0.0, np.nan])
def test_causal_is_a_bool(causal: Any) -> None:
    with pytest.raises(TypeError, match=r"softmax.forward: causal must be True or False, got"):
        softmax.forward(*arrays(4, 4, 4), Visible(causal))


@pytest.mark.parametrize("offset", [np.nan, None, 1.0, True, "1"])
def test_an_offset_is_a_whole_number(offset: Any) -> None:
    with pytest.raises(TypeError, match="query_offset must be a whole number, got"):
        softmax.forward(*arrays(4, 4, 4), Visible(True, offset))


@pytest.mark.parametrize("kind", [np.ma.masked_array, lambda x: x[0, 0].view(np.matrix)])
def test_arrays_that_compute_in_their_own_way_are_none(kind: Any) -> None:
    x, y, z = arrays(4, 4, 4)
    with pytest.raises(TypeError, match=r"softmax.forward: key must be a NumPy or a CuPy array"):
        softmax.forward(x, kind(y), z)


X = np.random.default_rng(0).normal(size=(2, 3, 6, 4))
WAVES = np.zeros((2, 6, 1)), np.ones((3, 4, 1)), np.ones((3, 4))


def turned_back(**more: Any) -> Any:
    """The gradient of Fourier features."""
    saved = fourier.features(X, *WAVES, WAVES[2])
    return fourier.features_backward(saved.rows, X, *WAVES[:2], WAVES[2], saved, **more)


test_refusals = refusals(
    (lambda: softmax.forward(X, value=X), TypeError, "forward() missing 1 required positional"),
    (lambda: softmax.forward(X, X, X, query=X), TypeError, "forward() got multiple values for"),
    (lambda: softmax.forward(X, X, X, EVERYTHING, 0.5), TypeError, "forward() takes from 3 to 4"),
    (lambda: softmax.forward(X, X, X, pattern="x"), TypeError, "softmax: pattern must be a Patter"),
    (lambda: turned_back(lengths=np.array([6, 1 << 40])),
     "fourier.features_backward: lengths must lie between 0 and 6"),
    (lambda: turned_back(origin=np.zeros((2, 2))),
     "fourier.features_backward: origin must have the shape (N=2 or 1, P=1), got (2, 2)"),
    (lambda: fourier.cosformer(0, 1, 1), "fourier.cosformer: longest must be at least 1, got 0"),
    (lambda: features.favor_forward(X, X[0, 0, :0]),
     "features.favor_forward: R, the rows of projection, must be at least 1, got 0"),
    (lambda: features.favor_forward(X, X[0, 0], normalised="no"), TypeError,
     "features.favor_forward: normalised must be True or False, got 'no'"),
    (lambda: matmul.matmul(X[0, 0], X[0, 0].T, precise="no"), TypeError,
     "matmul: precise must be True or False, got 'no'"),
    (lambda: graph.sum_by_owner(X[0, 0], np.arange(6), -1),
     "graph.sum_by_owner: count must be at least 0, got -1"),
)  # fmt: skip


@pytest.mark.parametrize("version", ["fast", "plain"])
def test_far_numbers_cost_and_change_no_more_than_near_ones(version: str) -> None:
    """A chunk of more tokens than there are, and every so many keys, and more, than there are."""
    for size in (12, 2**62, 10**30):
        found, *_ = chunked.forward(X, X, X, CAUSAL, chunk_size=size, version=version)
        expected, *_ = recurrent.forward(X, X, X, CAUSAL, version=version)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    near, far = (local.forward(X, X, X, window=1, stride=n, version=version) for n in (7, 10**30))
    np.testing.assert_array_equal(near[0], far[0])


@pytest.mark.parametrize("dtype", ["u8", ">i4", "i1"])
def test_a_state_counts_in_integers_of_any_kind(dtype: str) -> None:
    embedding = np.ones((3, 5, 4))
    one, other = relative.empty_state(2, X, X, 2), relative.empty_state(2, X, X, 2)
    other = other._replace(length=other.length.astype(dtype))
    token = X[:, :, 0], X[:, :, 1], X[:, :, 2], embedding
    for expected, found in (
        [relative.step(*token, state) for state in (one, other)],
        [relative.forward(X, X, X, embedding, CAUSAL, algorithm="recurrent", initial_state=state)
         for state in (one, other)],
    ):  # fmt: skip
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[-1].length, expected[-1].length)


def test_lengths_behind_a_mask_are_looked_at() -> None:
    masked = np.ma.masked_array([3, 1 << 40], [False, True])
    with pytest.raises(ValueError, match="key_lengths must lie between 0 and 4, the length of"):
        softmax.forward(*arrays(4, 4, 4), Visible(key_lengths=masked))


@pytest.mark.parametrize("eps", [1e-50, 1e-39, 1e39])
def test_an_eps_that_the_dtype_does_not_hold(eps: float) -> None:
    """As a float32 it would be 0, too small to divide 1 by, or infinite."""
    x, y, z = (x.astype(np.float32) for x in arrays(4, 4, 4))
    with pytest.raises(ValueError, match=r"guard: eps must lie between 1.2e-38 and 3.4e\+38"):
        recurrent.forward(x, y, z, CAUSAL, eps=eps)


@pytest.mark.parametrize("number", [np.array("a"), np.array(1j), np.ones(2), 10**400, np.inf])
def test_what_is_no_finite_number(number: Any) -> None:
    with pytest.raises(ValueError, match="f: x must be a finite number, got"):
        finite("f", "x", number)


def test_far_offsets_cost_and_change_nothing() -> None:
    """Beyond all keys every query sees all of them, at the cost of its tokens."""
    for forward in (softmax.forward, recurrent.forward):
        for near, far in ((6, 2**31), (6, 2**59), (-5, -(2**59))):
            expected, found = (
                forward(*arrays(5, 6, 6), Visible(True, offset))[0] for offset in (near, far)
            )
            np.testing.assert_array_equal(found, expected)
        with pytest.raises(ValueError, match=r"query_offset must lie between -2\^59 and 2\^59"):
            forward(*arrays(5, 6, 6), Visible(True, 2**63 - 1))


@pytest.mark.parametrize("forward", [softmax.forward, recurrent.forward])
def test_more_sequences_than_a_grid_has_blocks(forward: Any) -> None:
    count = MOST_BLOCKS + 3
    x = np.random.default_rng(0).normal(size=(count, 1, 2, 1))
    found = forward(x, x, x, CAUSAL)
    ends = [forward(x[at], x[at], x[at], CAUSAL) for at in (slice(0, 4), slice(-4, None))]
    np.testing.assert_array_equal(found[0][:4], ends[0][0])
    np.testing.assert_array_equal(found[0][-4:], ends[1][0])
    assert len(found[0]) == count


def test_more_packed_sequences_than_a_grid_has_blocks() -> None:
    """They give what two halves give."""
    count, rng = MOST_BLOCKS + 3, np.random.default_rng(0)
    ends = np.cumsum([0, *rng.integers(0, 3, count)])
    q, k, v, g = (rng.normal(size=(1, 2, ends[-1], 1)) for _ in range(4))
    state = recurrent.LinearState(*(abs(rng.normal(size=(count, 2, 1, 1)[:n])) for n in (4, 3)))

    def passes(first: int, last: int) -> list[Any]:
        rows = slice(ends[first], ends[last])
        visible = Visible(True, cu_seqlens=ends[first : last + 1] - rows.start)
        start = recurrent.LinearState(*(x[first:last] for x in state))
        inputs = *(x[:, :, rows] for x in (q, k, v)), visible
        output, d, end = recurrent.forward(*inputs, initial_state=start)
        *gradients, of_start = recurrent.gradients(
            g[:, :, rows], d, end, *inputs[:3], visible, initial_state=start
        )
        return [output, d, *gradients, *end, *of_start]

    half = count // 2
    for found, *halves in zip(passes(0, count), passes(0, half), passes(half, count), strict=True):
        axis = 0 if len(found) == count else 2
        np.testing.assert_array_equal(found, np.concatenate(halves, axis=axis))


def test_letters() -> None:
    x = np.ones((2, 3))
    assert fit("f", [("x", x, "A B"), ("y", x[:1], "A? B"), ("z", x[0], "B any")], {}) == {
        "A": 2, "B": 3, "1": 1
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"f: y must have the shape \(A=2 or 1, C\), got \(3, 2\)"):
        fit("f", [("x", x, "A B"), ("y", x.T, "A? C")], {})
    with pytest.raises(TypeError, match="f: x must be integers, got float64"):
        fit("f", [("x", x, "A B int")], {})
    with pytest.raises(TypeError, match="f: x must be a NumPy or a CuPy array, got list"):
        fit("f", [("x", [1.0], "A")], {})
