"""Calls at random, of public functions and of host functions: each must be right, or refused.

    python -m tests.fuzz --seed 0 --cases 10000

A case is a call with arguments that fit, which must give what naive attention in float64 gives; or
one with an argument spoiled, which must end in an error that says what was expected and what came.
Everything else is a finding: a crash, a wrong result, a spoiled argument that was taken, and an
error that only says where Python stumbled. A case is made of the seed and its number alone:

    python -m tests.fuzz --seed 0 --first 1234 --cases 1

Cases run in a child process. One that ends it is a finding, and the next one begins another child.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as begun_at

import minitransformer_kernels
from minitransformer import Tensor, functions
from minitransformer.attention.multi_head import Weights
from minitransformer_kernels.cpu import KernelError
from minitransformer_kernels.feature_maps import FEATURE_MAPS
from minitransformer_kernels.graph import Edges
from minitransformer_kernels.layers import optimizer as updates
from minitransformer_kernels.visible import Visible

from .cases import LAYOUTS, Case, Problem
from .properties import Operation, allowed_errors, assert_within

RIGHT, REFUSED = "right", "refused"
FINDINGS = "crash", "wrong", "taken", "raw"
NAN, FAR = float("nan"), 2**59
CLEAR = (
    " must ",
    " got ",
    " needs ",
    " takes ",
    "out of range",
    "broadcast: ",
    " not broadcast to ",
    " cannot ",
    " not cut ",
)
Spoil = Callable[..., Any]  # of a generator and an array


class Found(NamedTuple):
    """What came of a case."""

    number: int
    verdict: str
    case: str
    what: str = ""


# ---------------------------------------------------------------------------------- what is spoiled


def cut(rng: np.random.Generator, x: Any, axes: tuple[int, ...] | None = None) -> Any:
    """The array without the last rows along one of some axes."""
    axes = tuple(range(x.ndim)) if axes is None else axes
    axis = int(rng.choice([axis for axis in axes if x.shape[axis] > 1] or [axes[0]]))
    return x[(slice(None),) * axis + (slice(0, x.shape[axis] // 2),)]


def grown(rng: np.random.Generator, x: Any, axes: tuple[int, ...] | None = None) -> Any:
    """The array with all rows twice along one of some axes."""
    axis = int(rng.choice(axes if axes else x.ndim))
    return np.concatenate([x, x], axis=axis)


SHARED = {"query": (0, 1, 3), "key": (0, 1, 2, 3), "value": (0, 1, 2)}  # axes, with other inputs
ARRAYS: dict[str, Spoil] = {
    "flat": lambda rng, x: x.reshape(-1),
    "one more axis": lambda rng, x: x[None],
    "whole numbers": lambda rng, x: x.astype(np.int64),
    "half": lambda rng, x: x.astype(np.float16),
    "objects": lambda rng, x: x.astype(object),
    "a list": lambda rng, x: x.tolist(),
    "a string": lambda rng, x: "x",
}
SPOILS: dict[str, Spoil] = {"cut": cut, "grown": grown, **ARRAYS}
NUMBERS: dict[str, tuple[Any, ...]] = {
    "causal": ("False", None, 1, NAN, 0.0),
    "query_offset": (NAN, None, 1.5, "1", 2**63 - 1, -(2**63), True),
    "query_lengths": ([-1], [2**40], [0.5], "x", [[1]], NAN),
    "key_lengths": ([-1], [2**40], [0.5], "x", [[1]], NAN),
    "cu_seqlens": ([0, 2**40], [0.0, 1.0], [1], [-5, 3], "x"),
    "scale": (NAN, "a", float("inf"), [1.0]),
    "eps": (NAN, "a", 0.0, -1.0, float("inf")),
    "guard": ("x", 3),  # None is the default where positions are relative
    "feature_map": ("x", None, 3),
    "dropout": (1.0, -0.1, NAN, "a", None),
    "seed": (-1, 1.5, 2**63, "a", None),
    "window": (-1, 1.5, "a", None, NAN),
    "stride": (0, -1, 1.5, "a"),
    "num_global": (-1, 1.5, "a", None),
    "global_queries": (-1, 1.5, "a", None),
    "num_heads": (0, -1, 1.5, "a", None),
    "score_map": ("x", None),
    "relative_query": ("x", None),
    "form": ("x", None),
    "denominator": ("x", None),
}


def judged(number: int, case: str, call: Callable[[], Any], spoiled: bool = False) -> Found:
    """Make a call, and say what came of it; a call that is right returns, or asserts."""
    try:
        with np.errstate(all="ignore"):
            call()
    except AssertionError as error:
        return Found(number, "wrong", case, str(error)[:200])
    except (TypeError, ValueError, IndexError, KernelError) as error:
        said = str(error)
        clear = spoiled and any(word in said for word in CLEAR)
        return Found(number, REFUSED if clear else "raw", case, f"{type(error).__name__}: {said}")
    except Exception as error:
        return Found(number, "raw", case, f"{type(error).__name__}: {error}")
    return Found(number, "taken" if spoiled else RIGHT, case)


# --------------------------------------------------------------------------------------- operations


@cache
def operations() -> tuple[Operation, ...]:
    """All attentions by their host functions, and by the public ones."""
    from .kernels.operations import OPERATIONS
    from .minitransformer.test_attention import OPERATIONS as PUBLIC
    from .minitransformer.test_delta import OPERATION as DELTA

    public = (replace(x, name=f"public {x}") for x in (*PUBLIC, DELTA))
    return *OPERATIONS, *public


def drawn(rng: np.random.Generator, operation: Operation, every: bool) -> Case:
    """A case of an operation: of `every` feature map and dtype, or of kernels of other tests."""
    domain = operation.domain
    variant = domain.variants[rng.integers(len(domain.variants))]
    dtype, options = variant.dtype, dict(variant.options)
    if every:
        dtype = str(rng.choice(["float32", "float64"]))
        if "feature_map" in options and options.get("guard") == "clamp":
            options["feature_map"] = str(rng.choice([x for x in FEATURE_MAPS if x != "identity"]))
    batch = int(rng.integers(0, 4))
    lengths = [0, 1, 2, 5, *domain.lengths]
    few = domain.queries or lengths
    query_length, key_length = int(rng.choice(few)), int(rng.choice(lengths))
    near = [0, key_length - query_length, int(rng.integers(-9, 9))]
    offset = int(rng.choice([*near, *near, 2**31, -(2**31), FAR, -FAR]))
    stateful = domain.stateful and bool(rng.integers(2))
    padding = (
        tuple(map(int, rng.integers(0, length + 1, batch))) if rng.integers(2) else None
        for length in (query_length, key_length)
    )
    return Case(
        dtype, batch, int(rng.integers(1, 3)), query_length, key_length,
        variant.head_dim, variant.value_dim, bool(rng.choice(domain.causal)),
        abs(offset) if domain.follows and stateful else offset, *padding, stateful,
        stateful and bool(rng.integers(2)), options=options, sizes=variant.sizes,
        seed=int(rng.integers(2**32)), spread=float(rng.choice([1.0, 0.1, 3.0])),
        layout=str(rng.choice(["contiguous", "sliced", "backwards", "frozen"])),
        extras=domain.extras, states=domain.states,
    )  # fmt: skip


def right(operation: Operation, problem: Problem) -> None:
    """Asserts that an operation gives what its reference gives."""
    truth = operation.reference(problem, np.float64).arrays()
    allowed = partial(allowed_errors, operation, problem)
    assert_within(operation.run(problem).arrays(), truth, allowed)


def of_operation(number: int, rng: np.random.Generator, every: bool) -> Found:
    """A case of an attention: forward and backward."""
    operation = operations()[rng.integers(len(operations()))]
    case = drawn(rng, operation, every)
    told = f"{operation} {case.dtype} {case.options} {case}"
    if rng.integers(2):
        return judged(number, told, lambda: right(operation, case.problem()), False)
    case = replace(case, batch=max(1, case.batch), key_length=6)
    case = replace(case, query_length=max(operation.domain.queries, default=5))
    case = replace(case, query_lengths=None, key_lengths=None, layout="contiguous")
    problem = case.problem()
    name, inputs, keywords = "", dict(problem.inputs), dict(problem.keywords)
    names = [x for x in NUMBERS if x in {*keywords, "query_lengths", "key_lengths", "causal"}]
    if rng.integers(2):
        name = str(rng.choice(names))
        choices = NUMBERS[name]
        keywords[name] = choices[rng.integers(len(choices))]
        told = f"{operation} with {name}={keywords[name]!r}"
    else:
        name = str(rng.choice(["query", "key", "value"]))
        tensors = "public" in str(operation)
        kinds = [x for x in SPOILS if not tensors or x not in NO_TENSORS]
        kind = str(rng.choice(kinds))
        axes = () if kind in ARRAYS else (SHARED[name],)
        inputs[name] = SPOILS[kind](rng, inputs[name], *axes)
        told = f"{operation} with {name} {kind}"
    spoiled = replace(problem, inputs=inputs, keywords=keywords)
    return judged(number, told, lambda: operation.apply(spoiled), True)


NO_TENSORS = "objects", "a list", "a string", "whole numbers"  # or no gradients: other errors


# ----------------------------------------------------------------------------------- host functions


@cache
def hosts() -> tuple[Any, ...]:
    """All functions that declare the shapes of their arrays."""
    found = {}
    for module in iter_modules(minitransformer_kernels.__path__, "minitransformer_kernels."):
        for name in (module.name, f"{module.name}.layer_norm", f"{module.name}.normalised"):
            try:
                members = vars(import_module(name))
            except ModuleNotFoundError:
                continue
            for x in members.values():
                if hasattr(x, "shapes") and x.__module__ == name:
                    found[f"{name}.{x.__name__}"] = x
    return tuple(found.values())


def of_host(number: int, rng: np.random.Generator, every: bool) -> Found:
    """A host function, backward ones too, with one array that does not fit."""
    host = hosts()[rng.integers(len(hosts()))]
    sizes = {"2k+1": 7, "k": 3, "R": 7, "D": 12, "edges": 4, "Tq": 4, "Tk": 5, "T": 4}
    dtype = ["float32", "float64"][rng.integers(2)]

    def array(text: str) -> Any:
        letters = [x.rstrip("?") for x in text.split() if x not in ("any", "int")]
        shape = [sizes.setdefault(x, int(rng.integers(2, 6))) for x in letters]
        return np.ones(shape, np.int64 if text.endswith("int") else dtype)

    arguments: dict[str, Any] = {}
    for name, letters in host.shapes.items():
        if isinstance(letters, str):
            arguments[name] = array(letters)
    for name, parameter in signature(host).parameters.items():
        if name in OTHERS and parameter.default is Parameter.empty:
            arguments.setdefault(name, OTHERS[name])
        elif parameter.default is Parameter.empty:
            arguments.setdefault(name, None)
    if "visible" in signature(host).parameters:
        arguments["visible"] = Visible(causal="linear" not in host.__module__)
    names = [name for name, letters in host.shapes.items() if isinstance(letters, str)]
    name = str(rng.choice(names))
    kind = str(
        rng.choice(["flat", "one more axis", "objects", "a list", "a string", "half", "cut"])
    )
    alone = kind in ("cut", "half") and (len(names) < 2 or "any" in host.shapes[name])
    if alone or (kind == "flat" and arguments[name].ndim == 1):
        kind = "one more axis"
    if kind == "cut":
        shared = [
            axis for axis, x in enumerate(host.shapes[name].split())
            if sum(x in str(letters).split() for letters in host.shapes.values()) > 1
        ]  # fmt: skip
        axis = int(rng.choice(shared)) if shared else 0
        arguments[name] = np.repeat(arguments[name], 2, axis=axis)
    else:
        arguments[name] = ARRAYS[kind](rng, arguments[name])
    told = f"{host.__module__.partition('.')[2]}.{host.__name__} with {name} {kind}"
    return judged(number, told, lambda: host(**arguments), True)


OTHERS: dict[str, Any] = {
    "algorithm": "recurrent",
    "edges": Edges(np.arange(5), np.array([0, 1, 4, 2]), 5),
    "eps": 1e-5,
    "guard": "clamp",
    "window": 2,
    "count": 3,
}

# ------------------------------------------- functions, optimizers, and multi-head attention


def example(rng: np.random.Generator, strategy: Any) -> Any:
    """What a strategy of other tests draws."""
    drawn = []

    @begun_at(int(rng.integers(2**32)))
    @settings(max_examples=2, phases=[Phase.generate], derandomize=False, database=None,
              suppress_health_check=list(HealthCheck), deadline=None)  # fmt: skip
    @given(strategy)
    def draw(x: Any) -> None:
        drawn.append(x)

    draw()
    return drawn[-1]  # the first one is the simplest that there is


def of_function(number: int, rng: np.random.Generator, every: bool) -> Found:
    """A differentiable function. A spoiled input does what it does in NumPy, or is refused."""
    from .minitransformer.test_functions import CASES, check_all, equals_its_reference, references

    case = CASES[rng.integers(len(CASES))]
    drawn = example(rng, case.examples)
    if rng.integers(2):
        return judged(number, f"{case.name} {drawn}", lambda: equals_its_reference(case, drawn))
    inputs = drawn.inputs(case.values)
    public = case.operation is getattr(functions, case.name, None)  # others call methods of Tensor
    kinds = [x for x in ARRAYS if public or x not in NO_TENSORS or x == "whole numbers"]
    place, kind = rng.integers(len(inputs)), str(rng.choice(kinds))
    inputs[place] = ARRAYS[kind](rng, inputs[place])
    tensors = [Tensor(x) if getattr(x, "dtype", "O") != "O" else x for x in inputs]
    told = f"{case.name} with input {place} {kind}: {drawn}"
    found = judged(number, told, lambda: case.operation(*tensors, **drawn.options), True)
    if found.verdict == "taken":

        def as_in_numpy() -> None:
            output = case.operation(*tensors, **drawn.options)
            outputs = output if isinstance(output, tuple) else (output,)
            numbers = [y.numpy().astype(np.float64) for y in outputs]
            expected = references(case, inputs, drawn.options)
            off = 1e-2 if kind == "half" else 1e-5  # what is no array becomes float32
            check_all(numbers, [y.astype(np.float64) for y in expected], off, off)

        return judged(number, told, as_in_numpy)
    numpys = judged(number, told, lambda: case.reference(*inputs, **drawn.options))
    return found._replace(verdict=REFUSED) if found.what and found.what == numpys.what else found


def of_optimizer(number: int, rng: np.random.Generator, every: bool) -> Found:
    """Steps of an optimizer, some with a setting or an array spoiled; or of its host function."""
    from .minitransformer.test_optim import ALGORITHMS, takes_the_steps

    optimizer, algorithm, strategy = ALGORITHMS[rng.integers(len(ALGORITHMS))].values
    options, dtype = example(rng, strategy), rng.choice([np.float32, np.float64])
    case, begin = f"{optimizer.__name__} {options}", int(rng.integers(2**32))
    which = rng.integers(4)
    if which == 0:
        return judged(
            number, case, lambda: takes_the_steps(optimizer, algorithm, options, dtype, begin)
        )
    if which == 1:
        name = str(rng.choice(list(options)))
        options = {**options, name: SETTINGS[name][rng.integers(len(SETTINGS[name]))]}
        told = f"{optimizer.__name__} with {name}={options[name]!r}"
        return judged(number, told, lambda: steps_of(optimizer, options), True)
    if which == 2:
        spoils = {**SPOILS, "frozen": lambda rng, x: LAYOUTS["frozen"](x, np)}
        kind, at = str(rng.choice(list(spoils))), int(rng.integers(2))
        name = "data" if kind == "frozen" else str(rng.choice(["data", "grad"]))

        def spoil(step: int, x: Tensor) -> None:
            array = spoils[kind](rng, x.data) if step == at else None
            if array is not None and name == "data":
                x.data = array
            elif array is not None:
                x.grad = Tensor(array) if getattr(array, "dtype", "O") != "O" else array

        told = f"{case} with {name} {kind} before step {at}"
        return judged(number, told, lambda: steps_of(optimizer, options, spoil), True)
    step, names, numbers = UPDATES[rng.integers(len(UPDATES))]
    arguments = {name: np.ones((4, 6), np.float32) for name in names} | dict(numbers)
    name = str(rng.choice(list(arguments)))
    if name in names:
        kind = str(rng.choice(list(SPOILS)))
        arguments[name] = SPOILS[kind](rng, arguments[name])
    else:
        kind = (NAN, "a", None, float("inf"), [0.1])[rng.integers(5)]
        arguments[name] = kind
    case = f"{step.__name__} with {name} {kind!r}"
    return judged(number, case, lambda: step(**arguments), True)


ABOVE = NAN, "a", None, -1.0, float("inf"), [0.1], 1j, 10**400
SETTINGS: dict[str, tuple[Any, ...]] = {
    "lr": (*ABOVE, lambda step: NAN, lambda step: "a", lambda step: None),
    "weight_decay": ABOVE,
    "momentum": ABOVE,
    "nesterov": ("False", None, 1, NAN),
    "betas": (None, 0.9, (0.9,), (0.9, 1.0), (0.9, NAN), ("a", 0.9), (0.9, "a", 0.99), (-0.1, 0.9)),
    "eps": ABOVE,
}


def steps_of(
    optimizer: Any, options: Any, before: Callable[[int, Tensor], None] = lambda step, x: None
) -> None:
    """Two steps of an optimizer, with something done to the parameter before each."""
    x = Tensor(np.ones((4, 6), np.float32), requires_grad=True)
    stepper = optimizer([x], **options)
    for step in range(2):
        x.grad = Tensor(np.ones((4, 6), np.float32))
        before(step, x)
        stepper.step()


MOMENTS = {"rate": 0.1, "betas": (0.9, 0.999), "root_weight": 1.0, "eps": 1e-8}
UPDATES: tuple[tuple[Any, tuple[str, ...], dict[str, Any]], ...] = (
    (updates.descend, ("parameter", "gradient"), {"rate": 0.1}),
    (updates.momentum_descend, ("parameter", "gradient", "buffer"), {"rate": 0.1, "momentum": 0.9}),
    (updates.moment_descend, ("parameter", "gradient", "first", "second"), MOMENTS),
)


def of_multi_head(number: int, rng: np.random.Generator, every: bool) -> Found:
    """The three passes of multi-head attention."""
    from .minitransformer.test_multi_head import assert_same, passes, problems, truth

    case = example(rng, problems())
    told = f"multi_head {[x if x is None else x.shape for x in case.inputs]} {case.options}"
    if rng.integers(2):
        return judged(number, told, lambda: assert_same(passes(case), truth(case)))
    kind, options, name = str(rng.choice(list(ARRAYS))), ("num_heads", *MASKS), "cotangent"
    part = str(rng.choice(["weights", "inputs", "cotangent", "options"]))
    if part == "options":
        name = str(rng.choice(options))
        kind = NUMBERS[name][rng.integers(len(NUMBERS[name]))]
        case = case._replace(options={**case.options, name: kind})
    elif part == "cotangent":
        case = case._replace(cotangent=ARRAYS[kind](rng, case.cotangent))
    else:
        arrays = list(getattr(case, part))
        place = int(rng.choice([i for i, x in enumerate(arrays) if x is not None]))
        kind = "one more axis" if arrays[place].ndim == 1 and kind == "flat" else kind
        arrays[place], name = ARRAYS[kind](rng, arrays[place]), f"{part} {place}"
        kept = Weights(*arrays) if part == "weights" else tuple(arrays)
        case = case._replace(**{part: kept})
    return judged(number, f"{told} with {name} {kind!r}", lambda: passes(case), True)


MASKS = "causal", "query_offset", "query_lengths", "key_lengths", "dropout", "seed"

KINDS = (
    *[of_operation] * 3, *[of_host] * 2, of_function, of_optimizer, of_multi_head,
)  # fmt: skip


# ------------------------------------------------------------------------------- child, and parent


def run_case(seed: int, number: int, every: bool) -> Found:
    """The case of a number."""
    rng = np.random.default_rng([seed, number])
    return KINDS[rng.integers(len(KINDS))](number, rng, every)


def child(seed: int, first: int, cases: int, every: bool) -> None:
    """Run cases; say before each that it begins, and after it what came of it."""
    for number in range(first, first + cases):
        print(number, flush=True)
        print(json.dumps(run_case(seed, number, every)), flush=True)


def fuzz(seed: int, cases: int, first: int = 0, every: bool = False) -> Iterator[Found]:
    """What came of so many cases."""
    end = first + cases
    while first < end:
        how = ["--seed", seed, "--first", first, "--cases", end - first, *["--every"] * every]
        command = [sys.executable, "-m", "tests.fuzz", "--child", *map(str, how)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            begun, done = first - 1, True
            for line in process.stdout:
                if line.startswith("["):
                    yield Found(*json.loads(line))
                    done = True
                elif line.strip().isdigit():
                    begun, done = int(line), False
        if not done:
            yield Found(begun, "crash", f"ended with {process.returncode}")
        elif process.returncode:
            raise RuntimeError(f"the child ended with {process.returncode} before case {first}")
        first = begun + 1


def table(found: list[Found]) -> str:
    """How many cases came to what, and the findings."""
    counts = Counter(x.verdict for x in found)
    lines = [f"{name:8} {counts[name]:6}" for name in (RIGHT, REFUSED, *FINDINGS)]
    findings = [x for x in found if x.verdict in FINDINGS]
    return "\n".join([*lines, *(f"{x.number}: {x.verdict}: {x.case}: {x.what}" for x in findings)])


def main() -> None:
    """Run cases, and print their table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", action="store_true", help="every feature map and dtype")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.seed, given.first, given.cases, given.every)
    else:
        print(table(list(fuzz(given.seed, given.cases, given.first, given.every))))


if __name__ == "__main__":
    main()
