"""No call that the documentation describes ends Python, or answers with numbers of no array.

Each call runs in a process of its own: before host functions looked at their arguments, some of
these read memory that is nobody's.
"""

import subprocess
import sys
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import recurrent, softmax
from minitransformer_kernels.checks import MOST_BLOCKS, fit
from minitransformer_kernels.visible import CAUSAL, Visible

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
}  # fmt: skip


@pytest.mark.parametrize("name", CRASHES)
def test_what_crashed_is_refused(name: str) -> None:
    call, message = CRASHES[name]
    script = f"{dedent(HEAD)}\n{call}\n"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 1, f"ended with {found.returncode}: {found.stderr}"
    assert found.stderr.splitlines()[-1].startswith(message), found.stderr


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


def arrays(*lengths: int) -> list[Any]:
    return [np.random.default_rng(0).normal(size=(2, 1, length, 4)) for length in lengths]


def test_what_was_checked_stays() -> None:
    """Lengths that change between the forward and its backward change no gradient."""
    from minitransformer import Tensor
    from minitransformer.attention import softmax_attention

    lengths, gradients = np.array([3, 5]), []
    for write in (False, True):
        query, key, value = (Tensor(x, requires_grad=True) for x in arrays(4, 6, 6))
        output = softmax_attention(query, key, value, key_lengths=lengths)
        if write:
            lengths[:] = 1 << 40
        output.sum().backward()
        gradients.append(value.grad.numpy())
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize("causal", ["False", None, 1, 0.0, np.nan])
def test_causal_is_a_bool(causal: Any) -> None:
    with pytest.raises(TypeError, match=r"softmax.forward: causal must be True or False, got"):
        softmax.forward(*arrays(4, 4, 4), Visible(causal))


@pytest.mark.parametrize("offset", [np.nan, None, 1.0, True, "1"])
def test_an_offset_is_a_whole_number(offset: Any) -> None:
    with pytest.raises(TypeError, match="query_offset must be a whole number, got"):
        softmax.forward(*arrays(4, 4, 4), Visible(True, offset))


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
