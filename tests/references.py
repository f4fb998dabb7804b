"""The naive truth in the form that the checks compare: results of a `Problem`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minitransformer_kernels import reference
from minitransformer_kernels.visible import inside

from .cases import Array, Arrays, Problem


@dataclass(frozen=True)
class Result:
    """What an operation returns for a `Problem`: its results, and one gradient for each input."""

    outputs: Arrays
    gradients: Arrays

    def arrays(self) -> Arrays:
        """Everything, by name."""
        return {**self.outputs, **{f"grad_{name}": x for name, x in self.gradients.items()}}


Reference = Callable[[Problem, Any], Result]
KEPT = "denominator", "log_sum_exp", "residual"  # by a forward for its backward


def public(reference: Reference) -> Reference:
    """The reference of a public function, which returns its output and its state only."""

    def shown(problem: Problem, dtype: Any) -> Result:
        result = reference(problem, dtype)
        outputs = {name: x for name, x in result.outputs.items() if name not in KEPT}
        return replace(result, outputs=outputs)

    return shown


def qkv(problem: Problem) -> tuple[Array, Array, Array]:
    """The three inputs that every attention has."""
    return problem.inputs["query"], problem.inputs["key"], problem.inputs["value"]


LOCAL = "window", "stride", "num_global", "global_queries"


def seen_and_alive(problem: Problem) -> tuple[Array, Array]:
    """Which query sees which key (N, 1, Lq, Lk), and which query is no padding (N, 1, Lq)."""
    query, key, _ = qkv(problem)
    visible, options = problem.visible, problem.options
    seen = visible.mask(query, key)
    if pattern := {name: options[name] for name in LOCAL if name in options}:
        seen = seen & reference.near(query, key, visible.query_offset, **pattern)
    return seen, inside(query, visible.query_lengths)


def softmax(problem: Problem, dtype: Any) -> Result:
    """Softmax attention, local or not, and the logarithm of its denominators."""
    query, key, value = (x.astype(dtype) for x in qkv(problem))
    visible, keywords = problem.visible, {**problem.options, "dtype": dtype}
    pattern = {name: keywords.pop(name) for name in LOCAL if name in keywords}
    if pattern:
        keywords["near"] = reference.near(query, key, visible.query_offset, **pattern)
    relative_scores = problem.inputs.get("relative_scores")
    if relative_scores is not None:
        keywords["relative_scores"] = relative_scores
    if "dropout" in keywords:
        shape = *query.shape[:3], key.shape[2]
        dropout = keywords.pop("dropout"), keywords.pop("seed")
        keywords["kept"] = reference.dropout_factors(shape, *dropout)
    output = reference.softmax_attention(query, key, value, visible, **keywords)
    b = reference.bias(relative_scores, key, visible.query_offset)
    seen, scale = seen_and_alive(problem)[0], keywords.get("scale")
    _, log_sum_exp = reference.softmax_weights(query, key, seen, scale, b)
    gradients = reference.softmax_attention_backward(
        problem.cotangents["output"], query, key, value, visible, **keywords
    )
    names = ("query", "key", "value", "relative_scores")
    outputs = {"output": output, "log_sum_exp": log_sum_exp}
    return Result(outputs, dict(zip(names, gradients, strict=False)))


def linear(problem: Problem, dtype: Any) -> Result:
    """Linear attention and its denominators."""
    query, key, value = (x.astype(dtype) for x in qkv(problem))
    state = problem.initial_state
    keywords: dict[str, Any] = {**problem.options, "initial_state": state, "dtype": dtype}
    output = reference.linear_attention(query, key, value, problem.visible, **keywords)
    _, denominator = reference.linear_sums(
        query, key, value, keywords["feature_map"], *seen_and_alive(problem), state
    )
    dq, dk, dv, (dS, dZ) = reference.linear_attention_backward(
        problem.cotangents["output"], query, key, value, problem.visible, **keywords
    )
    gradients = {"query": dq, "key": dk, "value": dv}
    if state is not None:
        gradients |= {"S": dS, "Z": dZ}
    return Result({"output": output, "denominator": denominator}, gradients)


def recurrent(problem: Problem, dtype: Any) -> Result:
    """Linear attention with its final state."""
    _, key, value = qkv(problem)
    attention = linear(problem, dtype)
    keys: dict[str, Any] = {
        "feature_map": problem.options["feature_map"],
        "key_lengths": problem.visible.key_lengths,
        "dtype": dtype,
    }
    S, Z = reference.final_state(key, value, initial_state=problem.initial_state, **keys)
    outputs = {**attention.outputs, "S": S, "Z": Z}
    if problem.grad_state is None:
        return Result(outputs, attention.gradients)
    dk, dv, (dS, dZ) = reference.final_state_backward(problem.grad_state, key, value, **keys)
    more = {"key": dk, "value": dv, "S": dS, "Z": dZ}
    added = {name: x + more[name] for name, x in attention.gradients.items() if name in more}
    return Result(outputs, {**attention.gradients, **added})


FOURIER = reference.Fourier._fields


def fourier(problem: Problem, dtype: Any, stateful: bool = False) -> Result:
    """Linear attention with Fourier relative positions, and its final state if it is stateful."""
    query, key, value = (x.astype(dtype) for x in qkv(problem))
    positions = reference.Fourier(*(problem.inputs[name] for name in FOURIER))
    inputs = query, key, value, positions
    state: Any = problem.initial_state
    visible = problem.visible
    keywords: dict[str, Any] = {**problem.options, "dtype": dtype, "initial_state": state}
    names = "form", "denominator", "feature_map", "initial_state"
    chosen: dict[str, Any] = {name: keywords[name] for name in names}
    _, denominator = reference.fourier_sums(*inputs, visible, **chosen)
    outputs = {"output": reference.fourier_linear_attention(*inputs, visible, **keywords)}
    outputs["denominator"] = denominator
    if stateful:
        chosen["key_lengths"] = visible.key_lengths
        final = reference.fourier_final_state(key, value, positions, **chosen, dtype=dtype)
        outputs |= dict(zip("SZ", final, strict=True))
    keywords["grad_state"] = problem.grad_state
    (dq, dk, dv), dfourier, dstate = reference.fourier_linear_attention_backward(
        problem.cotangents["output"], *inputs, visible, **keywords
    )
    gradients = {"query": dq, "key": dk, "value": dv, **dfourier._asdict()}
    if state is not None:
        gradients |= dict(zip("SZ", dstate, strict=True))
    return Result(outputs, gradients)


fourier_causal = partial(fourier, stateful=True)
RELATIVE_STATE = reference.RelativeState._fields[:4]  # the parts of it that have gradients


def relative(problem: Problem, dtype: Any, stateful: bool = False) -> Result:
    """Linear attention with Shaw's relative positions, and its final state if it is stateful."""
    query, key, value = (x.astype(dtype) for x in qkv(problem))
    embedding = problem.inputs["relative_embedding"].astype(dtype)
    inputs, visible = (query, key, value, embedding), problem.visible
    keywords: dict[str, Any] = {**problem.options, "dtype": dtype}
    state = problem.initial_state and reference.RelativeState(*problem.initial_state)
    keywords["initial_state"] = state
    chosen = {name: keywords[name] for name in ("score_map", "relative_query", "feature_map")}
    _, denominator = reference.relative_sums(*inputs, visible, *chosen.values(), state)
    outputs = {"output": reference.relative_linear_attention(*inputs, visible, **keywords)}
    outputs["denominator"] = denominator
    gradients, of_state = reference.relative_linear_attention_backward(
        problem.cotangents["output"], *inputs, visible, **keywords
    )
    names = "query", "key", "value", "relative_embedding", *RELATIVE_STATE
    found = dict(zip(names, (*gradients, *(of_state or ())), strict=False))
    if not stateful:
        return Result(outputs, found)
    ends: dict[str, Any] = {name: keywords[name] for name in ("feature_map", "initial_state")}
    ends["key_lengths"] = visible.key_lengths
    final = reference.relative_final_state(key, value, embedding.shape[1] // 2, **ends, dtype=dtype)
    outputs |= final._asdict()
    if problem.grad_state is None:
        return Result(outputs, found)
    dk, dv, dstate = reference.relative_final_state_backward(
        problem.grad_state, key, value, **ends, dtype=dtype
    )
    more = {"key": dk, "value": dv, **dict(zip(RELATIVE_STATE, dstate, strict=True))}
    return Result(outputs, {name: x + more.get(name, 0) for name, x in found.items()})


relative_causal = partial(relative, stateful=True)


def delta(problem: Problem, dtype: Any) -> Result:
    """The delta rule, its residuals and its final state."""
    names = "query", "key", "value", "beta"
    inputs = [problem.inputs[name].astype(dtype) for name in names]
    (initial_state,), (grad_state,) = problem.initial_state or [None], problem.grad_state or [None]
    start: dict[str, Any] = {"initial_state": initial_state, "dtype": dtype}
    output, residual, W = reference.delta_attention(*inputs, problem.visible, **start)
    *gradients, dW = reference.delta_attention_backward(
        problem.cotangents["output"], *inputs, problem.visible, grad_state=grad_state, **start
    )
    found = dict(zip(names, gradients, strict=True))
    if problem.initial_state is not None:
        found["W"] = dW
    return Result({"output": output, "residual": residual, "W": W}, found)
