"""The public attention functions: every property of the operation, on the tape; and refusals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, gradcheck, nn
from minitransformer import functions as F
from minitransformer.attention import (
    FourierState,
    LinearState,
    RelativeState,
    algorithms,
    fourier_linear_attention,
    fourier_linear_attention_step,
    linear_attention,
    linear_attention_step,
    relative_linear_attention,
    relative_linear_attention_step,
    softmax_attention,
)
from minitransformer.attention.linear import LinearAttention
from minitransformer_kernels import planner, reference
from minitransformer_kernels.recurrent.fast import TILE
from minitransformer_kernels.visible import Visible
from tests import references
from tests.cases import (
    Arrays,
    Case,
    Domain,
    Problem,
    Variant,
    fourier_inputs,
    fourier_state,
    relative_inputs,
    relative_state,
)
from tests.kernels.operations import LINEAR_VARIANTS, SOFTMAX_VARIANTS, distances, rotation
from tests.properties import Check, Operation, derive, equals_the_reference, examine
from tests.references import Result
from tests.refusals import refusals

from .models import token_by_token

# Some of the kernels' own variants: no other kernels are compiled for them.
SOFTMAX = SOFTMAX_VARIANTS[:2]
LINEAR = LINEAR_VARIANTS[:2]


INPUTS = ("query", "key", "value")
STATES: dict[str, Any] = {
    "relative": RelativeState, "fourier": FourierState, "linear": LinearState
}  # fmt: skip


def through_the_tape(
    function: Callable[..., Any], names: tuple[str, ...], State: Any, **fixed: Any
) -> Callable[[Problem], Result]:
    """Forward and backward of a public function as one pass over a problem."""

    def apply(problem: Problem) -> Result:
        tensors = {
            name: Tensor(x, requires_grad=x.dtype.kind == "f") for name, x in problem.inputs.items()
        }
        options = {**problem.keywords, **fixed}
        if State._fields[0] in tensors:
            options["initial_state"] = State(*(tensors[name] for name in State._fields))
        returned = function(*(tensors[name] for name in names), **options)
        output, state = returned if isinstance(returned, tuple) else (returned, ())
        outputs = {"output": output, **dict(zip(State._fields, state, strict=False))}
        # An output without a cotangent stays out of the sum: its gradient arrives as None.
        losses = [(outputs[name] * c).sum() for name, c in problem.cotangents.items()]
        F.stack(losses).sum().backward()
        gradients = {name: x.grad.data for name, x in tensors.items() if x.grad is not None}
        return Result({name: y.data for name, y in outputs.items()}, gradients)

    return apply


def through_the_step(
    function: Callable[..., Any], names: tuple[str, ...], State: Any
) -> Callable[..., Any]:
    """One position through a public step."""

    def step(inputs: Arrays, state: Any, keywords: dict[str, Any]) -> Any:
        options = {n: x for n, x in keywords.items() if n not in ("causal", "query_offset")}
        before = None if state is None else State(*map(Tensor, state))
        output, after = function(*(Tensor(inputs[name]) for name in names), before, **options)
        return output.data, State(*(x.data for x in after))

    return step


def operation(
    name: str,
    function: Callable[..., Any],
    truth: Callable[..., Result],
    domain: dict[str, Any],
    *more: str,
    step: Callable[..., Any] | None = None,
    **fixed: Any,
) -> Operation:
    """An operation; a state is that of the kind of attention which begins its name."""
    names, State = (*INPUTS, *more), STATES.get(name.partition("_")[0], LinearState)
    if fixed.get("return_state"):
        domain = {"causal": (True,), "stateful": True, "packed": True, **domain}
    return Operation(
        name,
        Domain(tiles=(TILE,), **domain),
        through_the_tape(function, names, State, **fixed),
        references.public(truth),
        step and through_the_step(step, names, State),
        values=("value", *(x for x in State._fields if x not in ("Z", "length"))),
    )


FEW = (Variant("float64", 5, 3, **distances(3, "softplus", "feature")),)
WAVES = (Variant("float64", 5, 3, **rotation("one_plus_cos", "rotated", P=2)),)
RELATIVE_DOMAIN = {"variants": FEW, "extras": relative_inputs}
FOURIER_DOMAIN = {"variants": WAVES, "extras": fourier_inputs}

OPERATIONS = [
    operation("softmax", softmax_attention, references.softmax, {"variants": SOFTMAX}),
    operation("linear", linear_attention, references.linear, {"variants": LINEAR}),
    *(
        operation(
            algorithm,
            linear_attention,
            references.linear,
            {"variants": LINEAR[:1], "causal": causal},
            algorithm=algorithm,
        )
        for algorithm, causal in (("naive", (False, True)), ("linear", (False,)))
    ),
    *(
        operation(
            algorithm,
            linear_attention,
            references.recurrent,
            {"variants": LINEAR[:1]},
            step=linear_attention_step,
            algorithm=algorithm,
            return_state=True,
        )
        for algorithm in ("recurrent", "chunked")
    ),
    operation(
        "relative", relative_linear_attention, references.relative, RELATIVE_DOMAIN,
        "relative_embedding",
    ),
    operation(
        "relative_causal", relative_linear_attention, references.relative_causal,
        {**RELATIVE_DOMAIN, "states": relative_state, "follows": True}, "relative_embedding",
        step=relative_linear_attention_step, return_state=True,
    ),
    operation(
        "fourier", fourier_linear_attention, references.fourier, FOURIER_DOMAIN,
        *references.FOURIER,
    ),
    operation(
        "fourier_causal", fourier_linear_attention, references.fourier_causal,
        {**FOURIER_DOMAIN, "states": fourier_state}, *references.FOURIER,
        step=fourier_linear_attention_step, return_state=True,
    ),
]  # fmt: skip
# What the tape can break; all else it has from the kernels, which `tests.kernels` examines.
BY_DEFAULT = (
    "equals_the_reference", "takes_empty_arrays", "ignores_padding", "hands_its_state_over",
    "packs_like_it_pads", "steps_like_the_whole",
)  # fmt: skip


def tape_checks(*operations: Operation) -> list[Any]:
    """Every check of public functions; by default those that are not of the kernels alone."""
    return [
        pytest.param(
            operation,
            check,
            id=f"{operation}-{check}",
            marks=[] if str(check) in BY_DEFAULT else pytest.mark.nightly,
        )
        for operation in operations
        for check in derive(operation)
    ]


@pytest.mark.parametrize(("op", "check"), tape_checks(*OPERATIONS))
def test_properties(op: Operation, check: Check, device: str) -> None:
    examine(op.on(device), check)


def computes(plan: dict[str, str], function: Any, truth: Any, case: Case, *more: str) -> None:
    """Check that a function computes what a plan says, and computes it right."""
    planned = operation("planned", function, truth, {"variants": ()}, *more, algorithm=plan)
    equals_the_reference(planned, case)


# The seed takes sums for the kernelized term where L > 15 = E M (causal) or L L > 15 (both ways),
# and for the relative one where L > 2k + 5.
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "k"), [(3, 0), (12, 3), (12, 40), (40, 3), (40, 40)])
def test_what_the_seed_plans_can_be_computed(length: int, k: int, causal: bool) -> None:
    sizes = planner.Sizes(length, length, 5, 3, causal, max_distance=k)
    plan = planner.plan(sizes, cost_model="seed")
    sums = length > 15 if causal else length**2 > 15
    assert plan["kernelized"] == ("linear" if sums else "naive")
    assert plan["relative"] == ("linear" if length > 2 * k + 5 else "naive")
    case = Case(
        query_length=length, key_length=length, head_dim=5, value_dim=3, causal=causal,
        **distances(k, "softplus", "feature"), extras=relative_inputs,
    )  # fmt: skip
    computes(plan, relative_linear_attention, references.relative, case, "relative_embedding")
    of_one_term = {"kernelized": plan["kernelized"]}
    case = replace(case, options=LINEAR[0].options, sizes={}, extras=None)
    computes(of_one_term, linear_attention, references.linear, case)


@pytest.mark.parametrize(("blocks", "chosen"), [(1, "recurrent"), (132, "chunked")])
def test_auto_knows_the_device(blocks: int, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight heads are one block each for "recurrent": enough for a CPU, not for an H200."""
    taken: list[str] = []
    monkeypatch.setattr(algorithms, "processors", lambda array: blocks)
    monkeypatch.setattr(
        LinearAttention, "apply", lambda *inputs, algorithm, **rest: taken.append(algorithm)
    )
    x = Tensor(np.zeros((1, 8, 4096, 64), np.float32))
    linear_attention(x, x, x, causal=True)
    assert taken == [chosen]


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Random tensors by name."""
    rng = np.random.default_rng(0)
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
    token_by_token(linear_attention_step, *stepped).backward(cotangent)
    for x, y in zip(whole, stepped, strict=True):
        np.testing.assert_allclose(y.grad.numpy(), x.grad.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lengths", [[2, 3], (2, 3), np.array([2, 3]), Tensor(np.array([2, 3]))])
def test_lengths_come_in_any_integer_form(lengths: Any) -> None:
    qkv = tensors(query=(2, 1, 3, 2), key=(2, 1, 3, 2), value=(2, 1, 3, 2)).values()
    expected = softmax_attention(*qkv, key_lengths=np.array([2, 3], np.uint8)).numpy()
    np.testing.assert_array_equal(softmax_attention(*qkv, key_lengths=lengths).numpy(), expected)


GOOD = {"query": (2, 3, 5, 4), "key": (2, 3, 6, 4), "value": (2, 3, 6, 7)}
FLOATING = {name: np.ones(shape, np.float32) for name, shape in GOOD.items()}


def with_arguments(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """The function with arguments that fit, but for those that it is called with."""

    def call(**changed: Any) -> Any:
        return function(**{name: Tensor(x) for name, x in FLOATING.items()} | more | changed)

    return call


OF_ANY_ATTENTION: tuple[tuple[Any, ...], ...] = (
    ({"query": [[1.0]]}, TypeError, "query must be a Tensor, got list; wrap it: Tensor(query)"),
    ({"key": Tensor(np.ones(GOOD["key"], np.int64))}, TypeError,
     "key must be float32 or float64, got int64; convert it: key.to(dtype=numpy.float32)"),
    ({"value": Tensor(np.ones(GOOD["value"]))},
     "value is float64, but query is float32; convert it: value.to(dtype=query.dtype)"),
    ({"query": Tensor(np.ones((2, 5, 12), np.float32))},
     "query must have the shape (N, H, Lq, E), got (2, 5, 12); split the heads"),
    ({"key": Tensor(np.ones((2, 4, 6, 4), np.float32))},
     "key must have the shape (N=2, H=3, Lk, E=4), got (2, 4, 6, 4); a letter means"),
    ({"value": Tensor(np.ones((2, 3, 5, 7), np.float32))},
     "value must have the shape (N=2, H=3, Lk=6, M), got (2, 3, 5, 7)"),
    ({"value": Tensor(np.ones((2, 3, 6, 0), np.float32))},
     "value must have the shape (N=2, H=3, Lk=6, M), got (2, 3, 6, 0)"),
    ({"key_lengths": [1.0, 2.0]}, TypeError,
     "key_lengths must be integers, got float64; a mask becomes lengths by mask.sum"),
    ({"query_lengths": [1, 2, 3]},
     "query_lengths must have the shape (N=2,), one length a sequence, got (3,)"),
    ({"key_lengths": [1, 7]},
     "key_lengths must lie between 0 and 6, the length of the padded sequences, got [1, 7]"),
    ({"query_lengths": [-1, 5]}, "query_lengths must lie between 0 and 5"),
    ({"query_offset": 1.5}, TypeError, "query_offset must be a whole number, got 1.5"),
)  # fmt: skip

test_refusals = refusals(
    *OF_ANY_ATTENTION, of=with_arguments(softmax_attention), name="softmax_attention"
)


def state(e: int = 4) -> LinearState:
    return LinearState(
        Tensor(np.ones((2, 3, e, 7), np.float32)), Tensor(np.ones((2, 3, e), np.float32))
    )


test_refusals_of_linear_attention = refusals(
    *OF_ANY_ATTENTION,
    ({"feature_map": "cosine"},
     "feature_map must be one of 'elu', 'relu', 'softplus', 'exp', 'identity', 'favor', "
     "'dpfp', or a function from a Tensor (N, H, L, E) to one (N, H, L, D),"),
    ({"guard": "hope"}, "guard must be one of 'clamp', 'add', 'signed', got 'hope'"),
    ({"algorithm": "quadratic"},
     "algorithm must be one of 'auto', 'naive', 'linear', 'recurrent', 'chunked', got 'quad"),
    ({"eps": 0.0}, "eps must be a finite number above 0, got 0.0; None chooses one"),
    ({"algorithm": "recurrent"},
     "algorithm 'recurrent' goes from left to right and needs causal=True; for both"),
    ({"return_state": True}, "initial_state and return_state belong to a sequence that goes"),
    ({"initial_state": state()}, "initial_state and return_state belong to a sequence that"),
    ({"algorithm": "naive", "causal": True, "return_state": True},
     "algorithm 'naive' has no state and takes no packed sequences; for initial_state and "
     "return_state use 'recurrent'"),
    ({"algorithm": "naive", "causal": True, "cu_seqlens": [0, 5]},
     "packed sequences (cu_seqlens) lie one after the other in arrays (1, H, T, E), of the"),
    ({"cu_seqlens": [0, 5]},
     "packed sequences (cu_seqlens) need causal=True and query_offset=0"),
    ({"causal": True, "cu_seqlens": [0, 5], "key_lengths": [1, 2]},
     "cu_seqlens says how long sequences are; leave out query_lengths and key_lengths"),
    ({"causal": True, "initial_state": state(e=5)},
     "S must have the shape (N=2, H=3, E=4, M=7), got (2, 3, 5, 7)"),
    of=with_arguments(linear_attention), name="linear_attention",
)  # fmt: skip


relative = with_arguments(
    relative_linear_attention, relative_embedding=Tensor(np.ones((3, 5, 4), np.float32))
)

test_refusals_of_relative_attention = refusals(
    ({"relative_embedding": Tensor(np.ones((3, 4, 4), np.float32))},
     "relative_embedding must have an odd number of rows, 2k + 1 for the distances -k to k"),
    ({"relative_embedding": Tensor(np.ones((2, 5, 4), np.float32))},
     "relative_embedding must have the shape (H=3, 2k+1, E=4), got (2, 5, 4)"),
    ({"relative_embedding": Tensor(np.ones((3, 5, 4)))},
     "relative_embedding is float64, but query is float32; convert it"),
    ({"score_map": "relu"}, "score_map must be one of 'softplus', 'exp', 'identity'"),
    ({"relative_query": "key"},
     "relative_query must be one of 'feature', 'raw', got"),
    ({"feature_map": "dpfp", "relative_query": "raw"},
     "relative_query 'raw' needs a feature_map that kernels apply, one of 'elu', 'relu'"),
    ({"causal": True, "initial_state": RelativeState(*state(), *[Tensor([0.0])] * 3)},
     "tail must have the shape (N=2, H=3, M=7), got (1,)"),
    of=relative, name="relative_linear_attention",
)  # fmt: skip

WAVE = {"frequency": (3, 4, 1), "phase": (3, 4), "amplitude": (3, 4)}
ON_A_LINE: dict[str, Any] = {
    "query_positions": np.arange(5)[None, :, None],
    "key_positions": np.arange(6)[None, :, None],
    **{name: Tensor(np.ones(shape, np.float32)) for name, shape in WAVE.items()},
}

test_refusals_of_fourier_attention = refusals(
    ({"query_positions": np.arange(4)[None, :, None]},
     "query_positions must have the shape (2 or 1, 5, P), P numbers for each place, got (1"),
    ({"key_positions": Tensor(np.zeros((1, 6, 1), np.float32))},
     "key_positions must be float64, got float32: an angle of float32 is wrong where"),
    ({"key_positions": np.zeros((1, 6, 2))},
     "positions of queries and keys must have as many dimensions, got (1, 5, 1) and"),
    ({"phase": Tensor(np.ones((3, 5), np.float32))},
     "phase must have the shape (H=3, E=4), got (3, 5)"),
    ({"form": "sin"}, "form must be one of 'one_plus_cos', 'cos', got 'sin'"),
    ({"denominator": "both"}, "denominator must be one of 'rotated', 'plain', 'none'"),
    ({"causal": True, "initial_state": FourierState(*state())},
     "S must have the shape (N=2, H=3, D=12, M=7), got (2, 3, 4, 7)"),
    of=with_arguments(fourier_linear_attention, **ON_A_LINE), name="fourier_linear_attention",
)  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
def test_cosformer_is_a_fourier_attention(causal: bool) -> None:
    """relu features re-weighted by cos(pi (i - j) / 2T), as Qin et al. 2022 have them by rows."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 40, 5))
    rows = (reference.cosformer(x, np.arange(40), 50) for x in (q, k))
    seen = Visible(causal=causal)
    expected = reference.linear_attention(*rows, v, seen, feature_map="identity")
    variant = nn.CosFormerAttention(longest=50)
    variant.prepare(2, 5)
    output = variant(*map(Tensor, (q, k, v)), causal=causal)
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_without_a_denominator_features_keep_their_size() -> None:
    """Those of FAVOR+ are scaled row by row where a fraction cancels it, and only there."""
    rng = np.random.default_rng(0)
    q, k, v = (Tensor(x) for x in rng.standard_normal((3, 1, 2, 4, 5), np.float32))
    features = nn.Favor(head_dim=5, num_features=8, seed=0)
    places = np.arange(4.0)[None, :, None]
    zero, one = (np.full((2, 8), x, np.float32) for x in (0, 1))
    wave = Tensor(zero[..., None]), Tensor(zero), Tensor(one)
    options = {"form": "cos", "denominator": "none", "feature_map": features, "causal": True}
    output = fourier_linear_attention(q, k, v, places, places, *wave, **options)
    weights = features(q).numpy() @ features(k).numpy().swapaxes(-1, -2)
    np.testing.assert_allclose(output.numpy(), np.tril(weights) @ v.numpy(), rtol=1e-5)

    token = [x[:, :, 0] for x in (q, k, v)]
    del options["causal"]
    first, _ = fourier_linear_attention_step(*token, [[0.0]], [[0.0]], *wave, **options)
    np.testing.assert_allclose(first.numpy(), output.numpy()[:, :, 0], rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_function_of_ones_own_is_a_feature_map(causal: bool) -> None:
    """And gradients flow through it; more features than a kernel holds are taken in groups."""
    rng = np.random.default_rng(0)
    inputs = [Tensor(rng.standard_normal((1, 2, 5, 4))) for _ in range(3)]
    weight = Tensor(0.3 * rng.standard_normal((4, 300)))

    def attend(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Any:
        def features(x: Tensor) -> Tensor:
            return F.exp(x @ weight)

        return linear_attention(query, key, value, feature_map=features, causal=causal)

    assert gradcheck(attend, [*inputs, weight], elementwise=False, directions=4)
    q, k = (np.exp(x.numpy() @ weight.numpy()) for x in inputs[:2])
    expected = reference.linear_attention(
        q, k, inputs[2].numpy(), Visible(causal), feature_map="identity"
    )
    np.testing.assert_allclose(attend(*inputs, weight).numpy(), expected, rtol=1e-10)


def test_a_token_far_from_zero_steps_like_the_whole() -> None:
    """FAVOR+ features of a query of 60 underflow in float32; scaled by their sum they do not."""
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, 2, 6, 8), np.float32)
    x = [Tensor(y) for y in (60 * query, key, value)]
    whole = linear_attention(*x, feature_map="favor", causal=True).numpy()
    stepped = token_by_token(linear_attention_step, *x, feature_map="favor").numpy()
    np.testing.assert_allclose(stepped, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("feature_map", ["favor", "dpfp", "relu"])
def test_maps_of_rows_pack_like_they_pad(feature_map: str) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 50, 6)))
    packed = linear_attention(
        x, x, x, causal=True, cu_seqlens=[0, 20, 20, 50], feature_map=feature_map
    )
    for start, end in ((0, 20), (20, 50)):
        one = x[:, :, start:end]
        alone = linear_attention(one, one, one, causal=True, feature_map=feature_map)
        np.testing.assert_allclose(packed.numpy()[:, :, start:end], alone.numpy(), rtol=1e-9)


def packed(boundaries: Any) -> Any:
    x = Tensor(np.ones((1, 2, 5, 3)))
    return linear_attention(x, x, x, causal=True, cu_seqlens=boundaries)


RISE = "linear_attention: cu_seqlens must rise from 0 to 5, the rows of the packed"
TERMS = {"kernelized": "naive", "relative": "naive"}

test_other_refusals = refusals(
    (lambda: packed([1, 5]), RISE),
    (lambda: packed([0, 4]), RISE),
    (lambda: packed([0, 3, 2, 5]), RISE),
    (lambda: packed([0, 6]), RISE),
    (lambda: packed([5.0]), TypeError,
     "linear_attention: cu_seqlens must be N + 1 integers, where each of N seq"),
    (lambda: softmax_attention(*map(Tensor, FLOATING.values()), scale=float("inf")),
     "softmax_attention: scale must be a finite number, got"),
    (lambda: softmax_attention(*(Tensor(x.astype("f")) for x in FLOATING.values()), scale=1e39),
     "softmax: scale must be a number of float32, got 1e+39"),
    (lambda: linear_attention_step(*map(Tensor, FLOATING.values())),
     "linear_attention_step: query must have the shape (N, "),
    (lambda: linear_attention(*map(Tensor, FLOATING.values()), algorithm=TERMS),
     "linear_attention: algorithm must have an entry for each of 'kernelized', got 'kernelized', "),
    (lambda: relative(algorithm={"kernelized": "auto", "relative": "recurrent"}),
     "relative_linear_attention: algorithm['relative'] must be one of 'naive', 'linear'"),
    (lambda: relative(algorithm={**TERMS, "kernelized": "x"}),
     "relative_linear_attention: algorithm must be one of 'auto', 'naive', 'linear', 'recurrent', "
     "'chunked', got 'x'"),
)  # fmt: skip


def test_refusal_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moved(np.ndarray): ...

    query, key, value = map(Tensor, FLOATING.values())
    key.data = key.data.view(Moved)
    monkeypatch.setattr(Tensor, "device", property(lambda x: "cuda" if x is key else "cpu"))
    message = r"key is on cuda, but query is on cpu; move it: key\.to\(query\.device\)"
    with pytest.raises(ValueError, match=message):
        softmax_attention(query, key, value)


def test_positions_may_be_written_over_before_backward() -> None:
    rng = np.random.default_rng(0)
    query, key, value = (Tensor(x) for x in rng.standard_normal((3, 1, 1, 4, 3)))
    learned = [rng.standard_normal((1, 3, 1)), rng.standard_normal((1, 3)), np.full((1, 3), 0.3)]
    slopes = []
    for writes_over in False, True:
        places = np.arange(4.0)[None, :, None]
        frequency, *others = (Tensor(x, requires_grad=True) for x in learned)
        output = fourier_linear_attention(query, key, value, places, places, frequency, *others)
        places *= not writes_over
        output.sum().backward()
        slopes.append(frequency.grad.numpy())
    np.testing.assert_array_equal(*slopes)
