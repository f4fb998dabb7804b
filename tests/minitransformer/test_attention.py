"""The public attention functions: every property of the operation, on the tape; and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, gradcheck
from minitransformer import functions as F
from minitransformer.attention import (
    LinearState,
    linear_attention,
    linear_attention_step,
    softmax_attention,
)
from minitransformer_kernels.recurrent import TILE
from tests import references
from tests.cases import Arrays, Domain, Problem, Variant
from tests.properties import Check, Operation, derive, examine
from tests.references import Result

# A few of the kernels' own variants: the tests of the kernels draw all of them.
SOFTMAX = (Variant("float64", 5, 3), Variant("float32", 12, 8, {"scale": 0.3}))
LINEAR = (
    Variant("float64", 5, 3, {"feature_map": "elu", "guard": "clamp"}),
    Variant("float64", 7, 2, {"feature_map": "identity", "guard": "signed"}),
    Variant("float32", 16, 7, {"feature_map": "elu", "guard": "add"}),
)


def through_the_tape(function: Callable[..., Any], **fixed: Any) -> Callable[[Problem], Result]:
    """Forward and backward of a public function as one pass over a problem."""

    def apply(problem: Problem) -> Result:
        tensors = {name: Tensor(x, requires_grad=True) for name, x in problem.inputs.items()}
        options = {**problem.keywords, **fixed}
        if "S" in tensors:
            options["initial_state"] = LinearState(tensors["S"], tensors["Z"])
        returned = function(*(tensors[name] for name in ("query", "key", "value")), **options)
        output, state = returned if isinstance(returned, tuple) else (returned, ())
        outputs = {"output": output, **dict(zip("SZ", state, strict=False))}
        # An output without a cotangent stays out of the sum: its gradient arrives as None.
        losses = [(outputs[name] * c).sum() for name, c in problem.cotangents.items()]
        F.stack(losses).sum().backward()
        gradients = {name: x.grad.data for name, x in tensors.items() if x.grad is not None}
        return Result({name: y.data for name, y in outputs.items()}, gradients)

    return apply


def step(inputs: Arrays, state: Any, keywords: dict[str, Any]) -> Any:
    """One position through the public step."""
    options = {name: keywords[name] for name in ("feature_map", "guard")}
    state = None if state is None else LinearState(*map(Tensor, state))
    query, key, value = (Tensor(inputs[name]) for name in ("query", "key", "value"))
    output, state = linear_attention_step(query, key, value, state, **options)
    return output.data, LinearState(state.S.data, state.Z.data)


def operation(
    name: str, function: Callable[..., Any], domain: dict[str, Any], **fixed: Any
) -> Operation:
    """An operation whose reference follows from its name."""
    truth = {"softmax": references.softmax, "recurrent": references.recurrent}
    return Operation(
        name,
        Domain(tiles=(TILE,), **domain),
        through_the_tape(function, **fixed),
        truth.get(name, references.linear),
        step if name == "recurrent" else None,
    )


OPERATIONS = [
    operation("softmax", softmax_attention, {"variants": SOFTMAX}),
    operation("linear", linear_attention, {"variants": LINEAR}),
    operation("naive", linear_attention, {"variants": LINEAR}, algorithm="naive"),
    operation(
        "recurrent",
        linear_attention,
        {"variants": LINEAR, "causal": (True,), "stateful": True, "packed": True},
        algorithm="recurrent",
        return_state=True,
    ),
]
CHECKS = [pytest.param(op, check, id=f"{op}-{check}") for op in OPERATIONS for check in derive(op)]


@pytest.mark.parametrize(("op", "check"), CHECKS)
def test_properties(op: Operation, check: Check, device: str) -> None:
    examine(op.on(device), check)


def tensors(seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Random tensors by name."""
    rng = np.random.default_rng(seed)
    return {name: Tensor(rng.standard_normal(shape)) for name, shape in shapes.items()}


@pytest.mark.parametrize("with_state", [False, True])
def test_the_step_is_differentiable_in_token_and_state(with_state: bool) -> None:
    shapes: Any = {"query": (2, 1, 3), "key": (2, 1, 3), "value": (2, 1, 4)}
    if with_state:
        shapes |= {"S": (2, 1, 3, 4), "Z": (2, 1, 3)}
    inputs = list(tensors(**shapes).values())
    if with_state:
        inputs[4] = Tensor(np.abs(inputs[4].numpy()))

    def step(query: Tensor, key: Tensor, value: Tensor, *state: Tensor) -> Any:
        return linear_attention_step(query, key, value, LinearState(*state) if state else None)

    assert gradcheck(step, inputs)


def test_tokens_stepped_one_by_one_train_like_the_whole_sequence() -> None:
    inputs = tensors(query=(1, 2, 6, 3), key=(1, 2, 6, 3), value=(1, 2, 6, 4), c=(1, 2, 6, 4))
    cotangent = inputs.pop("c").numpy()
    whole = [Tensor(x.data, requires_grad=True) for x in inputs.values()]
    linear_attention(*whole, causal=True).backward(cotangent)

    stepped = [Tensor(x.data, requires_grad=True) for x in inputs.values()]
    state, outputs = None, []
    for i in range(6):
        query, key, value = (x[:, :, i] for x in stepped)
        output, state = linear_attention_step(query, key, value, state)
        outputs.append(output)
    F.stack(outputs, dim=2).backward(cotangent)
    for x, y in zip(whole, stepped, strict=True):
        assert x.grad is not None and y.grad is not None
        np.testing.assert_allclose(y.grad.numpy(), x.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_only_what_needs_a_gradient_gets_one() -> None:
    query, key, value = tensors(query=(1, 1, 3, 2), key=(1, 1, 4, 2), value=(1, 1, 4, 2)).values()
    query = Tensor(query.data, requires_grad=True)
    softmax_attention(query, key, value).sum().backward()
    assert query.grad is not None and key.grad is None and value.grad is None


@pytest.mark.parametrize("lengths", [[2, 3], (2, 3), np.array([2, 3]), Tensor(np.array([2, 3]))])
def test_lengths_come_in_any_integer_form(lengths: Any) -> None:
    qkv = tensors(query=(2, 1, 3, 2), key=(2, 1, 3, 2), value=(2, 1, 3, 2)).values()
    expected = softmax_attention(*qkv, key_lengths=np.array([2, 3], np.uint8)).numpy()
    np.testing.assert_array_equal(softmax_attention(*qkv, key_lengths=lengths).numpy(), expected)


GOOD = {"query": (2, 3, 5, 4), "key": (2, 3, 6, 4), "value": (2, 3, 6, 7)}
FLOATING = {name: np.ones(shape, np.float32) for name, shape in GOOD.items()}


@pytest.mark.parametrize("function", [softmax_attention, linear_attention])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"query": [[1.0]]}, TypeError, "query must be a Tensor, got list; wrap it: Tensor(query)"),
        (
            {"key": Tensor(np.ones(GOOD["key"], np.int64))},
            TypeError,
            "key must be float32 or float64, got int64; convert it: key.to(dtype=numpy.float32)",
        ),
        (
            {"value": Tensor(np.ones(GOOD["value"]))},
            ValueError,
            "value is float64, but query is float32; convert it: value.to(dtype=query.dtype)",
        ),
        (
            {"query": Tensor(np.ones((2, 5, 12), np.float32))},
            ValueError,
            "query must have the shape (N, H, Lq, E), got (2, 5, 12); split the heads",
        ),
        (
            {"key": Tensor(np.ones((2, 4, 6, 4), np.float32))},
            ValueError,
            "key must have the shape (N=2, H=3, Lk, E=4), got (2, 4, 6, 4); N, H, E and M are",
        ),
        (
            {"value": Tensor(np.ones((2, 3, 5, 7), np.float32))},
            ValueError,
            "value must have the shape (N=2, H=3, Lk=6, M), got (2, 3, 5, 7)",
        ),
        (
            {"value": Tensor(np.ones((2, 3, 6, 0), np.float32))},
            ValueError,
            "value must have the shape (N=2, H=3, Lk=6, M), got (2, 3, 6, 0)",
        ),
        (
            {"key_lengths": [1.0, 2.0]},
            TypeError,
            "key_lengths must be integers, got float32; a mask becomes lengths by mask.sum",
        ),
        (
            {"query_lengths": [1, 2, 3]},
            ValueError,
            "query_lengths must have the shape (N=2,), one length a sequence, got (3,)",
        ),
        (
            {"key_lengths": [1, 7]},
            ValueError,
            "key_lengths must lie between 0 and 6, the length of the padded sequences, got [1, 7]",
        ),
        ({"query_lengths": [-1, 5]}, ValueError, "query_lengths must lie between 0 and 5"),
        ({"query_offset": 1.5}, TypeError, "query_offset must be a whole number, got 1.5"),
    ],
)
def test_refusals(function: Any, changed: dict[str, Any], error: Any, message: str) -> None:
    arguments = {**{name: Tensor(x) for name, x in FLOATING.items()}, **changed}
    with pytest.raises(error) as caught:
        function(**arguments)
    assert str(caught.value).startswith(f"{function.__name__}: {message}")


def state(e: int = 4, m: int = 7) -> LinearState:
    return LinearState(
        Tensor(np.ones((2, 3, e, m), np.float32)), Tensor(np.ones((2, 3, e), np.float32))
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"feature_map": "cosine"},
            "feature_map must be one of 'elu', 'relu', 'softplus', 'exp', 'identity', got",
        ),
        ({"guard": "hope"}, "guard must be one of 'clamp', 'add', 'signed', got 'hope'"),
        (
            {"algorithm": "quadratic"},
            "algorithm must be one of 'auto', 'naive', 'linear', 'recurrent', 'chunked', got 'quad",
        ),
        ({"eps": 0.0}, "eps must be a finite number above 0, got 0.0; None chooses one"),
        (
            {"algorithm": "recurrent"},
            "algorithm 'recurrent' goes from left to right and needs causal=True; for both",
        ),
        ({"return_state": True}, "initial_state and return_state belong to a sequence that goes"),
        ({"initial_state": state()}, "initial_state and return_state belong to a sequence that"),
        (
            {"algorithm": "naive", "causal": True, "return_state": True},
            "algorithm 'naive' has no state and takes no packed sequences; for initial_state and "
            "return_state use 'recurrent'",
        ),
        (
            {"algorithm": "naive", "causal": True, "cu_seqlens": [0, 5]},
            "packed sequences (cu_seqlens) lie one after the other in arrays (1, H, T, E), of the",
        ),
        (
            {"cu_seqlens": [0, 5]},
            "packed sequences (cu_seqlens) need causal=True and query_offset=0",
        ),
        (
            {"causal": True, "cu_seqlens": [0, 5], "key_lengths": [1, 2]},
            "cu_seqlens says how long sequences are; leave out query_lengths and key_lengths",
        ),
        (
            {"causal": True, "initial_state": state(e=5)},
            "S must have the shape (N=2, H=3, E=4, M=7), got (2, 3, 5, 7)",
        ),
    ],
)
def test_refusals_of_linear_attention(changed: dict[str, Any], message: str) -> None:
    arguments: Any = {**{name: Tensor(x) for name, x in FLOATING.items()}, **changed}
    with pytest.raises(ValueError) as caught:
        linear_attention(**arguments)
    assert str(caught.value).startswith(f"linear_attention: {message}")


@pytest.mark.parametrize("boundaries", [[1, 5], [0, 4], [0, 3, 2, 5], [0, 6]])
def test_refusal_of_boundaries_that_do_not_fit(boundaries: list[int]) -> None:
    x = Tensor(np.ones((1, 2, 5, 3)))
    with pytest.raises(
        ValueError, match="cu_seqlens must rise from 0 to 5, the rows of the packed"
    ):
        linear_attention(x, x, x, causal=True, cu_seqlens=boundaries)


def test_refusal_of_lengths_in_place_of_boundaries() -> None:
    x = Tensor(np.ones((1, 2, 5, 3)))
    with pytest.raises(TypeError, match=r"cu_seqlens must be N \+ 1 integers, where each of N seq"):
        linear_attention(x, x, x, causal=True, cu_seqlens=[5.0])


def test_refusal_of_an_infinite_scale() -> None:
    with pytest.raises(ValueError, match="softmax_attention: scale must be a finite number, got"):
        softmax_attention(*map(Tensor, FLOATING.values()), scale=float("inf"))


def test_refusal_of_a_sequence_where_a_token_belongs() -> None:
    query, key, value = map(Tensor, FLOATING.values())
    with pytest.raises(ValueError, match=r"linear_attention_step: query must have the shape \(N, "):
        linear_attention_step(query, key, value)


def test_refusal_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = map(Tensor, FLOATING.values())
    monkeypatch.setattr(Tensor, "device", property(lambda x: "cuda" if x is key else "cpu"))
    message = r"key is on cuda, but query is on cpu; move it: key\.to\(query\.device\)"
    with pytest.raises(ValueError, match=message):
        softmax_attention(query, key, value)
