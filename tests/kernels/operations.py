"""The kernels of a package as operations: of `minitransformer_kernels`, or of a mutated copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from minitransformer_kernels import tiles
from minitransformer_kernels.softmax.fast import SHORT, TILE
from minitransformer_kernels.visible import Visible

from .. import cases, references
from ..cases import Array, Arrays, Case, Domain, Problem, Variant
from ..properties import Operation
from ..references import Result, qkv

KERNELS = "minitransformer_kernels"

SOFTMAX_VARIANTS: tuple[Variant, ...] = (
    Variant("float64", 5, 3),
    Variant("float32", 40, 33, {"scale": 0.3}),
)
# From one distance to more than there are; the kernels are those of one variant.
SOFTMAX_RELATIVE_VARIANTS = tuple(Variant("float64", 5, 3, sizes={"k": k}) for k in (3, 0, 1, 100))


def linear(feature_map: str, guard: str) -> dict[str, Any]:
    """The options of linear attention."""
    return {"feature_map": feature_map, "guard": guard}


LINEAR_VARIANTS: tuple[Variant, ...] = (
    Variant("float64", 5, 3, linear("elu", "clamp")),
    Variant("float32", 40, 70, linear("identity", "signed")),
)

# The pattern is a matter of arguments: all in one width are one kernel to compile.
LOCAL_VARIANTS: tuple[Variant, ...] = (
    Variant("float64", 5, 3, {"window": 9, "stride": 7, "num_global": 2, "global_queries": 3}),
    Variant("float64", 5, 3, {"window": 0, "num_global": 40, "global_queries": 70}),
    Variant("float64", 5, 3, {"window": 20, "stride": 40, "scale": 0.3}),
    *(
        Variant("float64", 5, 3, {"window": window, "stride": stride})
        for window, stride in [(3, None), (70, 1), (1000, None)]
    ),
)

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
NARROW = 0  # the variant in float64 whose rows are one tile
# For kernels that are long to compile: no others than these two.
CHUNKED_VARIANTS = (LINEAR_VARIANTS[NARROW],)

if NIGHTLY:
    EVERY_DIM = [(5, 200), (20, 40), (130, 70), (100, 3), (256, 100)]
    EVERY = [(dtype, *dims) for dtype in ("float32", "float64") for dims in EVERY_DIM]
    SOFTMAX_VARIANTS += (
        Variant("float32", 64, 33),
        Variant("float32", 40, 64),
        Variant("float64", 1, 8, {"scale": 0.3}),
        *(Variant(*each) for each in EVERY),
    )
    SOFTMAX_RELATIVE_VARIANTS += tuple(Variant(*each, sizes={"k": 33}) for each in EVERY)
    LINEAR_VARIANTS += (
        Variant("float32", 40, 70, linear("elu", "clamp")),
        Variant("float32", 7, 3, linear("identity", "signed")),
        Variant("float64", 1, 8, linear("elu", "add")),
        Variant("float32", 20, 40, linear("softplus", "clamp")),
        *(Variant(*each, linear("elu", "clamp")) for each in EVERY),
    )
    CHUNKED_VARIANTS = LINEAR_VARIANTS
    LOCAL_VARIANTS += tuple(
        Variant(*each, {"window": 9, "stride": 13})
        for each in [("float32", 5, 3), ("float32", 40, 70), *EVERY]
    )


def and_wide(*variants: Variant) -> tuple[Variant, ...]:
    """These; by night the first of them, which is in float64, with rows of several tiles, too."""
    return variants + (replace(variants[0], head_dim=40, value_dim=70),) * NIGHTLY


def softmax(package: str = KERNELS, **more: Any) -> Operation:
    """Fused softmax attention."""
    module = import_module(f"{package}.softmax")
    domain = Domain(SOFTMAX_VARIANTS, (TILE // 2, TILE))
    return Operation("softmax", domain, softmax_apply(module, **more), references.softmax)


def on_lanes(operation: Operation, package: str = KERNELS, alone: bool = True) -> Operation:
    """The same by the blocks that softmax makes for a CPU, however small the launch.

    One of them makes all of a head's gradients, or, if not `alone`, those of its own rows.
    """
    fast = import_module(f"{package}.softmax.fast")

    def apply(problem: Problem) -> Result:
        with patch.object(fast, "ENOUGH_HEADS", 0) if alone else patch.object(fast, "LONG", 1):
            return operation.apply(problem)

    name = f"{operation.name}_on_lanes" + "_together" * (not alone)
    return replace(operation, name=name, apply=apply)


def softmax_on_lanes(package: str = KERNELS) -> Operation:
    """The same, a block for all of a head's gradients."""
    return on_lanes(softmax(package), package)


def softmax_together(package: str = KERNELS) -> Operation:
    """The same, blocks for a head's gradients."""
    return in_tiles(on_lanes(of_two(softmax(package)), package, alone=False))


def in_tiles(operation: Operation) -> Operation:
    """The same for sequences that fill a tile; for short ones, all kernels are compiled again.

    By night those are drawn as well.
    """
    domain = replace(operation.domain, shortest=1 if NIGHTLY else SHORT + 1)
    return replace(operation, domain=domain)


def of_two(operation: Operation) -> Operation:
    """The same in two variants, as kernels take long to compile."""
    domain = replace(operation.domain, variants=and_wide(*operation.domain.variants[:2]))
    return replace(operation, domain=domain)


def softmax_few(package: str = KERNELS, **more: Any) -> Operation:
    """The same for few queries to many keys, with relative scores too; it has no gradients.

    Those are the plain kernels', which are the quickest to compile.
    """
    operation = softmax(package, **{**more, "version": "plain"})
    few = import_module(f"{package}.softmax.few")
    module = import_module(f"{package}.softmax")

    def apply(problem: Problem) -> Result:
        arrays, keywords = softmax_arguments(problem)
        outputs = softmax_outputs(*module.forward(*arrays, **keywords, version="few"))
        return replace(operation.apply(problem), outputs=outputs)

    variants = *SOFTMAX_RELATIVE_VARIANTS[:2], replace(SOFTMAX_VARIANTS[1], sizes={"k": 40})
    queries = tuple(range(1, few.QUERIES + 1))
    domain = Domain(and_wide(*variants), (few.SPAN,), extras=cases.relative_scores, queries=queries)
    return replace(operation, name="softmax_few", domain=domain, apply=apply)


def softmax_relative(package: str = KERNELS, **more: Any) -> Operation:
    """The same with relative scores."""
    operation = softmax(package, **more)
    domain = Domain(SOFTMAX_RELATIVE_VARIANTS, operation.domain.tiles, extras=cases.relative_scores)
    return replace(operation, name="softmax_relative", domain=domain)


def softmax_dropped(package: str = KERNELS, **more: Any) -> Operation:
    """The same with dropout as well."""
    return dropped(softmax_relative(package, **more), "softmax_dropped")


def dropped(operation: Operation, name: str) -> Operation:
    """An operation with dropout: no mean of the values, as weights no longer add up to one."""
    variants = tuple(
        replace(variant, options={**variant.options, "dropout": d, "seed": seed})
        for variant in operation.domain.variants
        for d, seed in ((0.3, 7), (0.9, 2**63 - 1))
    )
    domain = replace(operation.domain, variants=variants)
    exempt = (*operation.exempt, "preserves_a_constant_value")
    return replace(operation, name=name, domain=domain, exempt=exempt)


def softmax_apply(module: Any, **more: Any) -> Any:
    """Forward and backward of softmax attention as one pass over a problem."""

    def apply(problem: Problem) -> Result:
        arrays, keywords = softmax_arguments(problem, **more)
        results = module.forward(*arrays, **keywords)
        gradients = module.backward(problem.cotangents["output"], *arrays, *results, **keywords)
        names = ("query", "key", "value", "relative_scores")
        return Result(softmax_outputs(*results), dict(zip(names, gradients, strict=False)))

    return apply


def softmax_arguments(problem: Problem, **more: Any) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """What softmax attention is called with."""
    scores = {"relative_scores": problem.inputs.get("relative_scores")}
    return qkv(problem), {**problem.options, "visible": problem.visible, **more, **scores}


def softmax_outputs(output: Array, highest: Array, inverse: Array) -> Arrays:
    """What it returns, as the reference does."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_sum_exp = highest - np.log(inverse)
    log_sum_exp[inverse == 0] = -np.inf  # a query that sees nothing
    return {"output": output, "log_sum_exp": log_sum_exp}


def local(package: str = KERNELS, **more: Any) -> Operation:
    """Softmax attention to a window of keys, and to landmarks."""
    module = import_module(f"{package}.local")
    return Operation(
        "local",
        Domain(LOCAL_VARIANTS, (TILE // 2, TILE)),
        softmax_apply(module, **more),
        references.softmax,
        exempt=("ignores_the_order_of_keys",),
    )


def local_dropped(package: str = KERNELS, **more: Any) -> Operation:
    """The same with relative scores and dropout."""
    operation = local(package, **more)
    variants = tuple(replace(variant, sizes={"k": 3}) for variant in LOCAL_VARIANTS[:2])
    domain = replace(operation.domain, variants=and_wide(*variants), extras=cases.relative_scores)
    return dropped(replace(operation, domain=domain), "local_dropped")


def bidirectional(package: str = KERNELS, **more: Any) -> Operation:
    """Linear attention in which every query sees every key."""
    module = import_module(f"{package}.linear")
    domain = Domain(LINEAR_VARIANTS, (module.fast.TILE,), causal=(False,))
    apply = linear_apply(package, "linear", **more)
    return Operation("bidirectional", domain, apply, references.linear)


def naive(package: str = KERNELS, **more: Any) -> Operation:
    """Linear attention by its quadratic form."""
    module = import_module(f"{package}.linear")
    domain = Domain(LINEAR_VARIANTS, (module.fast.TILE,))
    return Operation("naive", domain, linear_apply(package, "naive", **more), references.linear)


def recurrent(package: str = KERNELS, **more: Any) -> Operation:
    """Causal linear attention as a recurrence, with its states and its step."""
    module = import_module(f"{package}.recurrent")
    step = step_of(module, module.LinearState)
    domain = Domain(
        LINEAR_VARIANTS, (module.fast.TILE,), causal=(True,), stateful=True, packed=True
    )
    apply = linear_apply(package, "recurrent", **more)
    return Operation("recurrent", domain, apply, references.recurrent, step)


def step_of(module: Any, state_type: Any, *more: str) -> Any:
    """The step of a module from one position to the next, which takes more inputs than others."""

    def step(inputs: Arrays, state: Any, keywords: dict[str, Any]) -> Any:
        options = {name: x for name, x in keywords.items() if name not in Visible._fields}
        token = (inputs[name] for name in ("query", "key", "value", *more))
        return module.step(*token, state and state_type(*state), **options)

    return step


def chunked(package: str = KERNELS, chunk_size: int | None = None, **more: Any) -> Operation:
    """Causal linear attention in chunks, with its states."""
    module = import_module(f"{package}.chunked")
    domain = Domain(
        CHUNKED_VARIANTS, (module.fast.TILE,), causal=(True,), stateful=True, packed=True
    )
    apply = linear_apply(package, "chunked", chunk_size=chunk_size, **more)
    name = "chunked" if chunk_size is None else f"chunked_by_{chunk_size}"
    return Operation(name, domain, apply, references.recurrent)


def linear_apply(package: str, algorithm: str, **more: Any) -> Any:
    """Forward and backward of linear attention, states included, as one pass over a problem."""
    guards = import_module(f"{package}.guards")
    chosen = import_module(f"{package}.algorithms").ALGORITHMS[algorithm]
    linear_state = import_module(f"{package}.recurrent").LinearState

    def apply(problem: Problem) -> Result:
        arrays, visible, options = qkv(problem), problem.visible, problem.options
        states = problem.initial_state, problem.grad_state
        start, end = (x if x is None else linear_state(*x) for x in states)
        how = {"feature_map": options.pop("feature_map"), **more}
        how |= chosen.state(initial_state=start)
        output, d, *state = chosen.forward(*arrays, visible, **how, **options)
        gn, gd = guards.normaliser_gradients(
            problem.cotangents["output"], output, d, arrays[1], visible,
            initial_state=start, **options,
        )  # fmt: skip
        ends = chosen.state(grad_state=end).values()
        dq, dk, dv, *grad_initial = chosen.gradients(gn, gd, *ends, *arrays, visible, **how)
        outputs, gradients = {"output": output, "denominator": d}, by_name((dq, dk, dv))
        if state:
            outputs |= state[0]._asdict()
        if start is not None:
            gradients |= grad_initial[0]._asdict()
        return Result(outputs, gradients)

    return apply


def rotation(form: str, denominator: str, guard: str = "clamp", **sizes: int) -> dict[str, Any]:
    """The options and the sizes of Fourier attention."""
    options = {**linear("elu", guard), "form": form, "denominator": denominator}
    return {"options": options, "sizes": {"P": 1, "shared": 0, **sizes}}


ONE_PLUS_COS = rotation("one_plus_cos", "rotated", P=2)
FOURIER_VARIANTS: tuple[Variant, ...] = (Variant("float64", 5, 3, **ONE_PLUS_COS),)
PLAIN_VARIANTS: tuple[Variant, ...] = (Variant("float64", 5, 3, **rotation("cos", "plain")),)
SUM_VARIANTS: tuple[Variant, ...] = (Variant("float64", 5, 3, **rotation("cos", "none")),)
SHARED_VARIANTS: tuple[Variant, ...] = (
    Variant("float64", 5, 3, **rotation("cos", "rotated", "signed", shared=1)),
)

if NIGHTLY:
    FOURIER_VARIANTS += (
        Variant("float32", 5, 3, **rotation("cos", "rotated", "signed")),
        Variant("float64", 10, 7, **rotation("cos", "rotated", P=3)),
        Variant("float32", 40, 33, **rotation("one_plus_cos", "rotated", P=3)),
    )
    PLAIN_VARIANTS += (
        Variant("float32", 5, 3, **rotation("one_plus_cos", "plain")),
        Variant("float64", 10, 7, **rotation("one_plus_cos", "plain", "add", P=3)),
        Variant("float32", 40, 33, **rotation("cos", "plain")),
    )
    SUM_VARIANTS += (
        Variant("float32", 5, 3, **rotation("one_plus_cos", "none", P=3)),
        Variant("float32", 40, 33, **rotation("cos", "none")),
    )
    SHARED_VARIANTS += (
        Variant("float32", 5, 3, **rotation("one_plus_cos", "rotated", P=2, shared=1)),
    )


NO_MEAN = ("preserves_a_constant_value",)


def fourier(package: str = KERNELS) -> Operation:
    """Bidirectional Fourier attention; the whole batch shares its positions."""
    domain = Domain(and_wide(*SHARED_VARIANTS), (8,), causal=(False,), extras=cases.fourier_inputs)
    apply = fourier_apply(package, "linear")
    return Operation("fourier", domain, apply, references.fourier)


def fourier_causal(package: str = KERNELS, **more: str) -> Operation:
    """Causal Fourier attention, with its states and its step."""
    return fourier_recurrent(package, "fourier_causal", FOURIER_VARIANTS, **more)


def fourier_plain_denominator(package: str = KERNELS) -> Operation:
    """The same with plain denominators: no mean of the values."""
    operation = fourier_recurrent(package, "fourier_plain_denominator", PLAIN_VARIANTS)
    return replace(operation, exempt=NO_MEAN)


def fourier_sum(package: str = KERNELS) -> Operation:
    """The same without denominators."""
    return replace(fourier_recurrent(package, "fourier_sum", SUM_VARIANTS), exempt=NO_MEAN)


def fourier_recurrent(
    package: str, name: str, variants: tuple[Variant, ...], **more: str
) -> Operation:
    """Causal Fourier attention by the recurrence."""
    module = import_module(f"{package}.fourier")
    step = step_of(module, module.FourierState, *references.FOURIER)
    domain = Domain(
        and_wide(*variants), (8,), causal=(True,), stateful=True, packed=True,
        extras=cases.fourier_inputs, states=cases.fourier_state,
    )  # fmt: skip
    apply = fourier_apply(package, "recurrent", **more)
    return Operation(name, domain, apply, references.fourier_causal, step)


def fourier_apply(package: str, algorithm: str, version: str = "fast") -> Any:
    """Forward and backward of Fourier attention as one pass over a problem."""
    module = import_module(f"{package}.fourier")

    def apply(problem: Problem) -> Result:
        arrays = [*qkv(problem), *(problem.inputs[name] for name in references.FOURIER)]
        initial, of_state = (
            state and module.FourierState(*state)
            for state in (problem.initial_state, problem.grad_state)
        )
        keywords = {**problem.options, "visible": problem.visible, "initial_state": initial}
        keywords |= {"algorithm": algorithm, "version": version}
        output, d, saved, state = module.forward(*arrays, **keywords)
        outputs = {"output": output, "denominator": d}
        if state is not None:
            outputs |= state._asdict()
        grad = problem.cotangents["output"], of_state
        gradients = module.backward(*grad, *arrays, output, d, saved, **keywords)._asdict()
        of_initial = gradients.pop("state")
        if initial is not None:
            gradients |= of_initial._asdict()
        return Result(outputs, gradients)

    return apply


def distances(k: int, score_map: str, relative_query: str, **options: str) -> dict[str, Any]:
    """The options and the sizes of attention with relative positions."""
    maps = {"score_map": score_map, "relative_query": relative_query}
    return {"options": {**linear("elu", "clamp"), **maps, **options}, "sizes": {"k": k}}


SIGNED = distances(0, "identity", "feature", feature_map="identity", guard="signed")
FEW, ALL, NONE = (
    Variant("float64", 5, 3, **distances(k, "softplus", "feature")) for k in (3, 100, 0)
)
SIGNED_RELATIVE = Variant("float32", 5, 3, **SIGNED)
WIDE_RELATIVE = Variant("float32", 40, 70, **distances(33, "exp", "raw"))
NAIVE_RELATIVE_VARIANTS: tuple[Variant, ...] = (FEW,)
RELATIVE_VARIANTS: tuple[Variant, ...] = (FEW, ALL, SIGNED_RELATIVE)
CAUSAL_RELATIVE_VARIANTS: tuple[Variant, ...] = (FEW, ALL, NONE, WIDE_RELATIVE)

if NIGHTLY:
    EVERY_DISTANCES = [
        distances(k, score_map, relative_query)
        for k in (0, 1, 3, 100)
        for score_map in ("softplus", "exp")
        for relative_query in ("feature", "raw")
    ]
    EVERY_RELATIVE = [
        *(Variant("float64", 5, 3, **each) for each in EVERY_DISTANCES),
        *(Variant(*each, **distances(32, "softplus", "feature")) for each in EVERY),
    ]
    NAIVE_RELATIVE_VARIANTS += (SIGNED_RELATIVE, *EVERY_RELATIVE)
    RELATIVE_VARIANTS += (WIDE_RELATIVE, *EVERY_RELATIVE)
    CAUSAL_RELATIVE_VARIANTS += (SIGNED_RELATIVE, *EVERY_RELATIVE)


# All keys beyond k have one weight. The plain kernels add it as often as there are keys, to a sum
# that is large from the start.
EVERY_KEY = 2**31


def relative_naive(package: str = KERNELS) -> Operation:
    """Attention with relative positions by the quadratic form of both its terms."""
    module = import_module(f"{package}.relative")
    domain = Domain(NAIVE_RELATIVE_VARIANTS, (module.fast.TILE,), extras=cases.relative_inputs)
    apply = relative_apply(package, "naive")
    return Operation("relative_naive", domain, apply, references.relative)


def relative(package: str = KERNELS, **more: str) -> Operation:
    """Bidirectional attention with relative positions, in linear time."""
    module = import_module(f"{package}.relative")
    domain = Domain(
        RELATIVE_VARIANTS, (module.fast.TILE,), causal=(False,), extras=cases.relative_inputs
    )
    apply = relative_apply(package, "linear", **more)
    return Operation("relative", domain, apply, references.relative)


def relative_causal(package: str = KERNELS, **more: str) -> Operation:
    """Causal attention with relative positions, with its states and its step."""
    module = import_module(f"{package}.relative")
    step = step_of(module, module.RelativeState, "relative_embedding")
    domain = Domain(
        CAUSAL_RELATIVE_VARIANTS, (module.fast.TILE,), causal=(True,), stateful=True, packed=True,
        extras=cases.relative_inputs, states=cases.relative_state, follows=True,
    )  # fmt: skip
    return Operation(
        "relative_causal",
        domain,
        relative_apply(package, "recurrent", **more),
        references.relative_causal,
        step,
        values=("value", "S", "tail", "recent"),
    )


def relative_apply(package: str, algorithm: str | dict[str, str], version: str = "fast") -> Any:
    """Forward and backward of attention with relative positions as one pass over a problem."""
    module = import_module(f"{package}.relative")

    def apply(problem: Problem) -> Result:
        arrays = (*qkv(problem), problem.inputs["relative_embedding"])
        initial, of_state = problem.initial_state, problem.grad_state
        keywords = {**problem.options, "visible": problem.visible}
        keywords |= {"algorithm": algorithm, "version": version}
        keywords["initial_state"] = initial and module.RelativeState(*initial)
        output, d, weights, state = module.forward(*arrays, **keywords)
        *gradients, embedding, of_initial = module.backward(
            problem.cotangents["output"],
            of_state and module.RelativeState(*of_state, None),
            *arrays,
            output,
            d,
            weights,
            **keywords,
        )
        named = {**by_name(gradients), "relative_embedding": embedding}
        if initial is not None:
            named |= {name: getattr(of_initial, name) for name in references.RELATIVE_STATE}
        ends = {} if state is None else state._asdict()
        return Result({"output": output, "denominator": d, **ends}, named)

    return apply


DELTA_VARIANTS: tuple[Variant, ...] = (Variant("float64", 5, 3), Variant("float32", 40, 33))

if NIGHTLY:
    DELTA_VARIANTS += (Variant("float32", 130, 70), *(Variant(*each) for each in EVERY))


def delta(package: str = KERNELS, **options: str) -> Operation:
    """The delta rule, with its state and its step; `options` are those of its host functions."""
    module = import_module(f"{package}.delta")

    def apply(problem: Problem) -> Result:
        arrays = *qkv(problem), problem.inputs["beta"]
        start, of_end = (
            x and module.DeltaState(*x) for x in (problem.initial_state, problem.grad_state)
        )
        keywords = {**problem.options, "visible": problem.visible, **options}
        keywords["initial_state"] = start
        output, residual, state = module.forward(*arrays, **keywords)
        grad = problem.cotangents["output"], of_end
        *gradients, beta, initial = module.backward(*grad, *arrays, output, residual, **keywords)
        named = {**by_name(gradients), "beta": beta}
        if start is not None:
            named["W"] = initial.W
        return Result({"output": output, "residual": residual, "W": state.W}, named)

    step = step_of(module, module.DeltaState, "beta")
    domain = Domain(
        DELTA_VARIANTS, (module.fast.TILE,), causal=(True,), stateful=True, packed=True,
        extras=cases.delta_inputs, states=cases.delta_state,
    )  # fmt: skip
    return Operation(
        "delta", domain, apply, references.delta, step, values=("value", "W"),
        exempt=("preserves_a_constant_value", "a_long_sequence"),  # that is in test_delta
    )  # fmt: skip


def plain(operation: Operation) -> Operation:
    """The twin by plain kernels, in one variant, by night in three; it has no step of its own."""
    first = operation.domain.variants[0]
    variants = and_wide(first) + (replace(first, dtype="float32"),) * NIGHTLY
    domain = replace(operation.domain, variants=variants)
    return replace(operation, name=f"{operation}_plain", domain=domain, step=None)


def plain_of(operation: Callable[..., Operation], **more: Any) -> Callable[..., Operation]:
    """The same by the plain kernels, but for `more`."""
    return lambda package=KERNELS: replace(plain(operation(package, version="plain")), **more)


SOFTMAX_PLAIN = softmax_plain, softmax_dropped_plain, local_plain = [
    plain_of(operation) for operation in (softmax, softmax_dropped, local)
]
LINEAR_PLAIN = bidirectional_plain, naive_plain, recurrent_plain, chunked_plain = [
    plain_of(operation) for operation in (bidirectional, naive, recurrent, chunked)
]
fourier_causal_plain, delta_plain = plain_of(fourier_causal), plain_of(delta)
relative_plain, relative_causal_plain = (
    plain_of(operation, additions=EVERY_KEY) for operation in (relative, relative_causal)
)


def by_name(gradients: Any) -> dict[str, Array]:
    """Gradients of query, key and value."""
    return dict(zip(("query", "key", "value"), gradients, strict=True))


def changed(problem: Problem, **inputs: Array) -> Problem:
    """The problem with some other inputs."""
    return replace(problem, inputs={**problem.inputs, **inputs})


def narrowed(operation: Operation) -> Operation:
    """The operation with one kernel to compile, in float64, where small errors show."""
    domain = operation.domain
    return replace(operation, domain=replace(domain, variants=domain.variants[:1]))


def in_several_tiles(operation: Operation) -> Variant:
    """The variant whose rows take several tiles; the first, where none does."""
    variants = operation.domain.variants
    wide = (v for v in variants if min(v.head_dim, v.value_dim) > tiles.TILE)
    return next(wide, variants[NARROW])


def ragged(operation: Operation, variant: Variant, causal: bool | None = None) -> Case:
    """Two sequences of more than two tiles, partly padding; with states where there are any."""
    domain = operation.domain
    tile = max(domain.tiles)
    queries = max(domain.queries, default=2 * tile + 3)
    return domain.case(
        variant,
        batch=2,
        heads=2,
        query_length=queries,
        key_length=2 * tile + 1,
        causal=domain.causal[0] if causal is None else causal,
        query_offset=2 if domain.follows else -2,
        query_lengths=(queries, queries // 2),
        key_lengths=(tile - 1, 2 * tile + 1),
        initial_state=domain.stateful,
        grad_state=domain.stateful,
    )


OPERATIONS: tuple[Operation, ...] = (
    softmax(),
    in_tiles(on_lanes(of_two(softmax_dropped()))),
    softmax_few(),
    in_tiles(softmax_dropped()),
    softmax_together(),
    *(operation() for operation in SOFTMAX_PLAIN),
    bidirectional(),
    naive(),
    recurrent(),
    chunked(),
    *(operation() for operation in LINEAR_PLAIN),
    fourier(),
    fourier_causal(),
    fourier_plain_denominator(),
    fourier_sum(),
    fourier_causal_plain(),
    relative_naive(),
    relative(),
    relative_causal(),
    relative_plain(),
    relative_causal_plain(),
    delta(),
    delta_plain(),
    local(),
    in_tiles(local_dropped()),
)

if NIGHTLY:  # of kernels that those above share, with fewer or other choices
    OPERATIONS += (softmax_relative(), softmax_on_lanes(), in_tiles(on_lanes(of_two(local()))))


def launches(
    always: Callable[[Operation, bool], bool], operations: Iterable[Operation] = OPERATIONS
) -> Iterator[Any]:
    """Each operation in each of its variants, causal or not; by default in one, where `always`."""
    for operation in operations:
        for number, variant in enumerate(operation.domain.variants):
            for causal in operation.domain.causal:
                yield pytest.param(
                    operation,
                    ragged(operation, variant, causal),
                    id=f"{operation}-{number}-{variant.dtype}-{'causal' if causal else 'all'}",
                    marks=[]
                    if number == NARROW and always(operation, causal)
                    else pytest.mark.nightly,
                )
