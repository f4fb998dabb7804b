"""The three passes of multi-head attention against the definition, head by head in float64."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from minitransformer import Tensor, manual_seed, multi_head, nn
from minitransformer.attention.multi_head import Weights
from minitransformer_kernels import reference, softmax
from minitransformer_kernels.visible import Visible
from tests.refusals import refusals

from .models import check_gradients

Array = Any  # where one is optional, too: the tests say which are None
Passes = tuple[Array, list[Array], Weights]  # Y, the gradients of the data and the weights


class Problem(NamedTuple):
    """The arguments of `forward`, and a cotangent."""

    weights: Weights
    inputs: tuple[Array, ...]
    options: dict[str, Any]
    cotangent: Array

    @property
    def separate(self) -> list[Array]:
        """The three inputs, whatever stood for them."""
        query, key, value = self.inputs
        widths = [weight.shape[1] for weight in self.weights.of_inputs]
        if key is None and value is None and query.shape[-1] == sum(widths):
            return np.split(query, np.cumsum(widths)[:2], axis=-1)
        key = query if key is None else key
        return [query, key, key if value is None else value]

    def cast(self, dtype: Any) -> Problem:
        """The same in another dtype."""
        weights, inputs = (
            tuple(None if x is None else x.astype(dtype) for x in arrays)
            for arrays in (self.weights, self.inputs)
        )
        return Problem(Weights._make(weights), inputs, self.options, self.cotangent.astype(dtype))


def problem(
    form: str = "separate",
    *,
    batch: int = 2,
    lengths: tuple[int, int] = (5, 7),
    widths: tuple[int, int, int, int] = (5, 6, 7, 9),
    heads: int = 3,
    head_dims: tuple[int, int] = (3, 4),
    biases: tuple[bool, bool, bool, bool] = (True, True, True, True),
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A problem in one of the forms that the inputs can have; every size differs by default."""
    normal = np.random.default_rng(seed).standard_normal
    queries, keys = lengths
    d_q, d_k, d_v, d_o = widths
    if form in ("self", "value_apart"):  # the query stands for the key
        keys, d_k = queries, d_q
    if form in ("self", "memory"):  # the key stands for the value
        d_v = d_k
    inputs: dict[str, tuple[Array, ...]] = {
        "separate": (
            normal((batch, queries, d_q)), normal((batch, keys, d_k)), normal((batch, keys, d_v))
        ),
        "memory": (normal((batch, queries, d_q)), normal((batch, keys, d_k)), None),
        "value_apart": (normal((batch, queries, d_q)), None, normal((batch, queries, d_v))),
        "self": (normal((batch, queries, d_q)), None, None),
        "concatenated": (normal((batch, queries, d_q + d_k + d_v)), None, None),
    }  # fmt: skip
    e, m = (heads * dim for dim in head_dims)
    drawn = [normal(size) for size in (e, e, m, d_o)]
    weights = Weights(
        normal((e, d_q)), normal((e, d_k)), normal((m, d_v)), normal((d_o, m)),
        *(bias if has else None for bias, has in zip(drawn, biases, strict=True)),
    )  # fmt: skip
    options = {"num_heads": heads, **options}
    return Problem(weights, inputs[form], options, normal((batch, queries, d_o)))


FORMS = "separate", "memory", "value_apart", "self", "concatenated"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draws a problem; the head dims are those that one kernel serves."""
    size = st.integers(1, 7)
    form, batch, queries, keys = draw(st.sampled_from(FORMS)), draw(st.integers(1, 3)), *(
        draw(st.integers(0, 40)) for _ in range(2)
    )  # fmt: skip
    if form in ("self", "value_apart", "concatenated"):
        keys = queries
    options: dict[str, Any] = {"causal": draw(st.booleans())}
    if options["causal"]:
        options["query_offset"] = draw(st.integers(-2, 3))
    for name, longest in (("query_lengths", queries), ("key_lengths", keys)):
        if draw(st.booleans()):
            options[name] = np.array(draw(st.tuples(*[st.integers(0, longest)] * batch)))
    return problem(
        form, batch=batch, lengths=(queries, keys), widths=draw(st.tuples(size, size, size, size)),
        heads=draw(st.integers(1, 4)), head_dims=draw(st.tuples(size, size)),
        biases=draw(st.tuples(*[st.booleans()] * 4)), seed=draw(st.integers(0, 2**32 - 1)),
        alpha=draw(st.sampled_from([None, 0.7, -3.0])), **options,
    )  # fmt: skip


def truth(case: Problem, kept: Array = None) -> Passes:
    """The three passes from the definition; `kept` (N, H, Lq, Lk) is what dropout multiplies by."""
    x = case.separate
    w_q, w_k, w_v, w_o = (np.array(weight) for weight in case.weights[:4])
    biases: list[Any] = [0 if bias is None else bias for bias in case.weights.biases]
    visible = dict(case.options)
    heads, alpha = visible.pop("num_heads"), visible.pop("alpha", None)
    seen = Visible(**visible).mask(x[0][:, None], x[1][:, None])
    y = np.zeros_like(case.cotangent) + biases[3]
    data = [np.zeros_like(each) for each in x]
    grads = [np.zeros_like(weight) for weight in (w_q, w_k, w_v, w_o)]
    bias_grads = [np.zeros(len(weight)) for weight in (w_q, w_k, w_v)]
    for h in range(heads):
        rows = [np.array_split(np.arange(len(weight)), heads)[h] for weight in (w_q, w_k, w_v)]
        q, k, v = (
            each @ weight[own].T + (bias if np.ndim(bias) == 0 else bias[own])
            for each, weight, bias, own in zip(x, (w_q, w_k, w_v), biases, rows, strict=False)
        )
        scale = q.shape[-1] ** -0.5 if alpha is None else 1 / alpha
        p = reference.softmax_weights(q[:, None], k[:, None], seen, scale)[0][:, 0]
        keep = np.ones_like(p) if kept is None else kept[:, h]
        y += p * keep @ v @ w_o[:, rows[2]].T
        g = case.cotangent @ w_o[:, rows[2]]
        dp = keep * (g @ v.swapaxes(1, 2))
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        projected = scale * ds @ k, scale * ds.swapaxes(1, 2) @ q, (p * keep).swapaxes(1, 2) @ g
        for i, (own, each) in enumerate(zip(rows, projected, strict=True)):
            data[i] += each @ (w_q, w_k, w_v)[i][own]
            grads[i][own] = np.einsum("nle,nld->ed", each, x[i])
            bias_grads[i][own] = each.sum((0, 1))
        grads[3][:, rows[2]] = np.einsum("nlo,nlm->om", case.cotangent, p * keep @ v)
    bias_grads.append(case.cotangent.sum((0, 1)))
    given = (None if b is None else g for b, g in zip(case.weights.biases, bias_grads, strict=True))
    return y, in_the_form_of(case.inputs, data), Weights(*grads, *given)


def in_the_form_of(inputs: tuple[Array, ...], data: list[Array]) -> list[Array]:
    """Three gradients as one for each input that was given."""
    query, key, value = inputs
    d_q, d_k, d_v = data
    if key is None and value is None and query.shape[-1] != d_q.shape[-1]:
        return [np.concatenate(data, axis=-1), None, None]
    if value is None:
        d_k, d_v = d_k + d_v, None
    if key is None:
        d_q, d_k = d_q + d_k, None
    return [d_q, d_k, d_v]


def passes(case: Problem, module: Any = multi_head) -> Passes:
    """The three passes."""
    y, saved = module.forward(case.weights, *case.inputs, **case.options)
    *data, projected = module.backward_data(case.cotangent, saved)
    return y, data, module.backward_weights(case.cotangent, saved, projected)


def assert_same(got: Passes, expected: Passes, tolerance: float = 1e-9) -> None:
    """Asserts that passes gave the same arrays, and None where the others did."""
    names = ("output", "query", "key", "value", *Weights._fields)
    arrays = ((y, *data, *weights) for y, data, weights in (got, expected))
    for name, actual, desired in zip(names, *arrays, strict=True):
        assert (actual is None) == (desired is None), name
        if actual is not None:
            assert actual.shape == desired.shape, name
            np.testing.assert_allclose(
                actual, desired, rtol=tolerance, atol=tolerance, err_msg=name
            )


@given(problems())
@example(problem(lengths=(0, 4)))
@example(problem(lengths=(4, 0)))
@example(problem(key_lengths=np.array([0, 3])))  # sees nothing, so that the bias alone is given
def test_the_passes_are_the_definitions(case: Problem) -> None:
    """And no argument is changed."""
    arrays = [x for x in (*case.weights, *case.inputs, case.cotangent) if x is not None]
    before = [x.copy() for x in arrays]
    assert_same(passes(case), truth(case))
    for x, y in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, y)


def layer_of(case: Problem) -> nn.MultiHeadAttention:
    """A layer with the weights of a problem."""
    w, options = case.weights, case.options
    alpha = options.get("alpha")
    layer = nn.MultiHeadAttention(
        len(w.query),
        options["num_heads"],
        attention=nn.SoftmaxAttention(None if alpha is None else 1 / alpha),
        value_head_dim=len(w.value) // options["num_heads"],
        dropout=options.get("dropout", 0.0),
        **{f"{name}_dim": getattr(w, name).shape[1] for name in ("query", "key", "value")},
        out_dim=len(w.out),
    )
    for name in ("query", "key", "value", "out"):
        projection, bias = getattr(layer, f"{name}_projection"), getattr(w, f"{name}_bias")
        projection.weight = nn.Parameter(getattr(w, name))
        projection.bias = None if bias is None else nn.Parameter(bias)
    return layer


VISIBLE = "causal", "query_offset", "query_lengths", "key_lengths"


@given(problems())
def test_the_layer_sees_the_same_gradients(case: Problem) -> None:
    """All gradients at once, and those of the weights alone, for which no data's are computed."""
    y, data, weights = passes(case)
    visible = {name: x for name, x in case.options.items() if name in VISIBLE}
    for learned in (True, False):
        inputs = [None if x is None else Tensor(x, requires_grad=learned) for x in case.inputs]
        layer = layer_of(case)
        output = layer(*inputs, **visible)
        output.backward(case.cotangent)
        np.testing.assert_array_equal(output.numpy(), y)
        for x, gradient in zip(inputs, data, strict=True):
            if learned and x is not None:
                np.testing.assert_array_equal(x.grad.numpy(), gradient)
        for name, gradient in zip(Weights._fields, weights, strict=True):
            projection = getattr(layer, f"{name.removesuffix('_bias')}_projection")
            own = projection.bias if name.endswith("_bias") else projection.weight
            assert (own is None) == (gradient is None)
            if own is not None:
                np.testing.assert_array_equal(own.grad.numpy(), gradient)


@given(problems())
def test_weights_need_no_backward_for_data(case: Problem) -> None:
    _, saved = multi_head.forward(case.weights, *case.inputs, **case.options)
    alone = multi_head.backward_weights(case.cotangent, saved)
    for gradient, expected in zip(alone, passes(case)[2], strict=True):
        assert (gradient is None) == (expected is None)
        if gradient is not None:
            np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("form", FORMS)
def test_float32_stays_float32(form: str) -> None:
    case = problem(form, causal=True, query_offset=1)
    got = passes(case.cast(np.float32))
    assert all(x.dtype == np.float32 for x in (got[0], *got[1], *got[2]) if x is not None)
    assert_same(got, truth(case), 1e-4)


def mask(case: Problem) -> Array:
    """What dropout multiplies the weights by: attention to the identity shows them."""
    _, saved = multi_head.forward(case.weights, *case.inputs, **case.options)
    q, k, _ = saved.heads
    identity = np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:3], k.shape[2]))
    whole, dropped = (
        softmax.forward(q, k, identity, **{**saved.options, "dropout": fraction})[0]
        for fraction in (0.0, saved.options["dropout"])
    )
    return np.divide(dropped, whole, out=np.zeros_like(whole), where=whole > 0)


@pytest.mark.parametrize("form", ["separate", "self"])
def test_dropout_is_inside_attention(form: str) -> None:
    case = problem(form, causal=True, query_offset=2, dropout=0.4, seed=5)
    case.options["seed"] = 11
    kept = mask(case)
    assert set(kept.ravel().round(9)) == {0, round(1 / 0.6, 9)}
    undropped = {name: x for name, x in case.options.items() if name not in ("dropout", "seed")}
    assert_same(passes(case), truth(case._replace(options=undropped), kept))


def test_the_seed_decides_what_is_dropped() -> None:
    case = problem(dropout=0.5)
    outputs = [
        multi_head.forward(case.weights, *case.inputs, **case.options, seed=seed)[0]
        for seed in (3, 3, 4)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.allclose(outputs[0], outputs[2])


def test_gradients_with_dropout_by_differences() -> None:
    case = problem("memory", lengths=(3, 4), dropout=0.3)
    layer = layer_of(case)

    def attend(layer: nn.MultiHeadAttention, query: Tensor, key: Tensor) -> Tensor:
        manual_seed(7)
        return layer(query, key)

    check_gradients(layer, attend, *case.inputs[:2])


MISTAKES = {
    "alpha_multiplies": ("return 1 / alpha", "return alpha"),
    "heads_interleaved": (
        "x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)",
        "x.reshape(batch, length, width // num_heads, num_heads).transpose(0, 3, 1, 2)"),
    "out_bias_missing": ("weights.out.T, weights.out_bias)", "weights.out.T)"),
    "bias_of_one_row": ("rows(x)), column_sums(by_rows)", "rows(x)), column_sums(by_rows[:1])"),
    "out_weights_of_another_sequence": ("_side_by_side(saved.output))",
                                        "_side_by_side(saved.output[::-1]))"),
    "keys_without_lengths": ("query_lengths, key_lengths).sett", "query_lengths, None).sett"),
    "shared_gradient_of_one": (
        "product(joint, _stacked(saved.weights.of_inputs[part]))  # (10)",
        "product(joint, _stacked(saved.weights.of_inputs[part])) / (part.stop - part.start)"),
}  # fmt: skip


def with_mistake(old: str, new: str) -> ModuleType:
    """A copy of the module in which a text that occurs once is another."""
    source = inspect.getsource(multi_head)
    assert source.count(old) == 1, f"the text to replace must occur once: {old!r}"
    copy = ModuleType("minitransformer.attention.multi_head_with_mistake")
    copy.__package__ = "minitransformer.attention"
    exec(compile(source.replace(old, new), "<mistake>", "exec"), vars(copy))
    return copy


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_found(mistake: str) -> None:
    module = with_mistake(*MISTAKES[mistake])

    @settings(derandomize=True, max_examples=25, database=None, phases=[Phase.generate])
    @given(problems())
    def examine(case: Problem) -> None:
        assert_same(passes(case, module), truth(case))

    with pytest.raises(AssertionError):
        examine()


def changed(inputs: Any = None, weights: Any = None, **options: Any) -> Any:
    """The first pass over a problem, of which something is changed."""
    case = problem()
    options = case.options | options
    return multi_head.forward(weights or case.weights, *(inputs or case.inputs), **options)


test_refusals = refusals(
    ({"inputs": (np.ones((2, 5, 6)), None, None)},
     "query alone must be as wide as the three inputs side by side, D_q + D_k + D_v = 5 + 6 + 7, "
     "got 6; or give key and value"),
    ({"inputs": (np.ones((2, 5, 5)), np.ones((2, 7, 4)), np.ones((2, 7, 7)))},
     "weights.key must have the shape (H·E=9, D_k=4), got (9, 6)"),
    ({"weights": problem().cast(np.float32).weights},
     "weights.query is float32, but query is float64"),
    ({"inputs": (np.ones(()), None, None)}, "query must have the shape (N, Lq, D_q), got ()"),
    ({"weights": problem("self").weights._replace(key=np.ones(())),
      "inputs": problem("self").inputs}, "weights.key must have the shape (H·E=9, D_q=5), got ()"),
    ({"weights": problem().weights._replace(query=None)}, TypeError,
     "weights.query must be an array, got NoneType"),
    ({"weights": problem().weights._replace(out=None)}, TypeError,
     "weights.out must be an array, got NoneType"),
    ({"num_heads": 2},
     "weights.query must have as many rows for each of num_heads=2 heads, at least one, got 9"),
    ({"alpha": 0.0}, "alpha divides the scores and must be a number other than 0, got 0.0"),
    ({"key_lengths": [8, 1]}, "key_lengths must lie between 0 and 7"),
    ({"query_offset": 0.5}, TypeError, "query_offset must be a whole number"),
    ({"dropout": 0.5, "seed": 0.5}, TypeError, "seed must be a whole number"),
    of=changed, name="multi_head.forward",
)  # fmt: skip

test_refusal_by_the_kernels = refusals(
    ({"dropout": 1.0}, "dropout must be a probability with 0 <= dropout < 1, got 1.0"), of=changed
)
