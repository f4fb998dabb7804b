"""Every kernel that the package launches on a GPU, found without one and without a launch.

A kernel's source is compiled once for each set of constants that its factory closes over, and for
each set of argument types: a *specialisation*. To find them, the host functions run on arrays of a
head dim and a dtype, with their launches noted down instead of made.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from math import prod
from types import CodeType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numba
import numpy as np

from . import (
    assembler,
    chunked,
    codegen,
    delta,
    features,
    fourier,
    graph,
    guards,
    kernelized,
    layer_norm,
    linear,
    local,
    matmul,
    normalised,
    optimizer,
    recurrent,
    relative,
    softmax,
)
from .cuda import DeviceFunction, Kernel, Launch, cuda
from .gpu import types_of

USUAL = 64  # the head dim of most models
INSTRUCTION = "ptx", "results", "operands"  # what `tensor_cores.Instruction` is made of
Host = Callable[[Any, Any, Any], None]


class Specialisation(NamedTuple):
    """A kernel, Numba's types of its arguments, and the threads of its block."""

    kernel: Kernel
    types: tuple[Any, ...]
    threads: int

    @property
    def name(self) -> str:
        """The module and the kernel, as `softmax.forward`."""
        return f"{self.kernel.function.__module__.rpartition('.')[2]}.{self.kernel.__name__}"

    @property
    def oldest(self) -> tuple[int, int]:
        """The oldest architecture that runs it: its module's `OLDEST`, such as (8, 0), if any."""
        return getattr(sys.modules[self.kernel.function.__module__], "OLDEST", (0, 0))

    @property
    def constants(self) -> dict[str, str]:
        """What the kernel's factory bound but for the type of its numbers: names, and values."""
        values = inspect.getclosurevars(self.kernel.function).nonlocals
        return {
            name: value.function.__name__ if isinstance(value, DeviceFunction) else str(value)
            for name, value in values.items()
            if not isinstance(value, numba.types.Type)
        }

    @property
    def fingerprint(self) -> str:
        """Twelve digits that change where what is compiled may: not with comments or docstrings."""
        text = _ingredients(self.kernel), [str(each) for each in self.types], self.threads
        return hashlib.sha256(repr(text).encode()).hexdigest()[:12]


def specialisations(head_dim: int, dtype: Any = np.float32) -> Iterable[Specialisation]:
    """Return what `HOSTS`, and for one head dim `MORE`, launch for inputs of a dtype."""
    inputs = [np.zeros((2, 2, 100, head_dim), dtype)] * 3
    with noted() as found:
        for host in (HOSTS | MORE if head_dim == USUAL else HOSTS).values():
            host(*inputs)
    return found


@contextmanager
def noted() -> Iterator[Iterable[Specialisation]]:
    """Launch nothing, and note down what would have been launched, each once."""
    found: dict[Specialisation, None] = {}

    def note(launch: Launch, *arguments: Any) -> None:
        found[Specialisation(launch.kernel, types_of(arguments), prod(launch.block))] = None

    # Nothing is computed, so what comes after a launch may see any numbers.
    with patch.object(Launch, "__call__", note), np.errstate(all="ignore"):
        yield found


@cache
def pipeline() -> str:
    """Return eight digits that change where the way in which all kernels are compiled may."""
    parts = codegen, assembler.ptx, assembler.assemble
    text = "\n".join(ast.unparse(_parsed(part)) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _ingredients(made: Kernel | DeviceFunction) -> Any:
    """Return all that decides what a kernel or a device function is compiled to."""
    text, names = _text(made.function.__code__)
    outside = inspect.getclosurevars(made.function)
    values = {**outside.globals, **outside.nonlocals}
    used = [(name, _value(values[name])) for name in names if name in values]
    instruction = [vars(made)[name] for name in INSTRUCTION if name in vars(made)]
    return text, sorted(made.options.items()), used, *instruction


@cache
def _text(code: CodeType) -> tuple[str, list[str]]:
    """Return a function's statements without comments and docstrings, and the names they read."""
    function = next(x for x in ast.walk(_parsed(code)) if isinstance(x, ast.FunctionDef))
    function.decorator_list = []  # its options are looked at as they are
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return ast.unparse(function), sorted(names - {*code.co_varnames})


def _parsed(made: Any) -> ast.Module:
    """Return the tree of a function's or a module's source, without docstrings."""
    source = inspect.getsource(made)
    in_a_factory = source[0].isspace()
    tree = ast.parse(f"if True:\n{source}" if in_a_factory else source)
    documented = ast.Module, ast.FunctionDef, ast.ClassDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return tree


def _value(value: Any) -> Any:
    """Return a constant in a form whose text is the same in every process."""
    if value is cuda:
        return "cuda"
    if isinstance(value, (Kernel, DeviceFunction)):
        return _ingredients(value)
    if isinstance(value, tuple):
        return tuple(map(_value, value))
    if isinstance(value, np.generic):
        return str(value.dtype), value.item()
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numba.types.Type):
        return str(value)
    if isinstance(value, ModuleType) or callable(value):
        return value.__name__
    raise TypeError(f"no rule says what of {value!r}, a {type(value).__name__}, decides the code")


# The host functions -------------------------------------------------------------------------------


def _softmax(
    query: Any, key: Any, value: Any, *, relative: bool = False, dropout: float = 0.0
) -> None:
    inputs = query, key, value
    scores = np.zeros((*query.shape[:3], 65), query.dtype) if relative else None
    options: dict[str, Any] = {"relative_scores": scores, "dropout": dropout}
    output, log_sum_exp = softmax.forward(*inputs, **options)
    softmax.backward(output, *inputs, output, log_sum_exp, **options)


def _naive(query: Any, key: Any, value: Any, **options: Any) -> None:
    inputs = query, key, value
    for causal in (False, True):
        output, denominator = linear.naive_forward(*inputs, causal=causal, **options)
        linear.naive_backward(output, *inputs, output, denominator, causal=causal, **options)


def _linear(query: Any, key: Any, value: Any, *, guard: str = "clamp", **options: Any) -> None:
    inputs = query, key, value
    output, denominator = linear.forward(*inputs, guard=guard, **options)
    linear.backward(output, *inputs, output, denominator, guard=guard, **options)
    guards.divided(output, denominator, guard=guard, eps=None)


def _recurrent(query: Any, key: Any, value: Any, **options: Any) -> None:
    inputs = query, key, value
    output, denominator, state = recurrent.forward(*inputs, **options)
    recurrent.backward(output, state, *inputs, output, denominator, **options)
    q, k, v = _first(*inputs)
    recurrent.step(q, k, v, state, **options)


def _chunked(query: Any, key: Any, value: Any, **options: Any) -> None:
    inputs = query, key, value
    output, denominator, state = chunked.forward(*inputs, **options)
    chunked.backward(output, state, *inputs, output, denominator, **options)


def _fourier(query: Any, key: Any, value: Any) -> None:
    (N, H, L, E), dtype = query.shape, query.dtype
    positions, frequency = np.zeros((N, L, 2)), np.zeros((H, E, 2), dtype)
    phase, amplitude = np.zeros((2, H, E), dtype)
    saved = fourier.features(query, positions, frequency, phase, amplitude)
    fourier.features_backward(saved.rows, query, positions, frequency, amplitude, saved)


def _fourier_attention(query: Any, key: Any, value: Any, **options: Any) -> None:
    (N, H, L, E), dtype = query.shape, query.dtype
    positions, frequency = np.zeros((N, L, 2)), np.zeros((H, E, 2), dtype)
    phase, amplitude = np.zeros((2, H, E), dtype)
    inputs = query, key, value, positions, positions, frequency, phase, amplitude
    output, d, saved, state = fourier.forward(*inputs, **options)
    fourier.backward(output, state, *inputs, output, d, saved, **options)
    if state is not None:
        (q, k, v), place = _first(query, key, value), positions[:, 0]
        del options["algorithm"]
        fourier.step(q, k, v, place, place, frequency, phase, amplitude, state, **options)


def _relative(query: Any, key: Any, value: Any, **options: Any) -> None:
    embedding = np.zeros((query.shape[1], 65, query.shape[3]), query.dtype)
    inputs = query, key, value, embedding
    walk = {"algorithm": "recurrent", "causal": True, **options}
    output, denominator, weights, state = relative.forward(*inputs, **walk)
    walk["initial_state"] = state
    relative.backward(output, state, *inputs, output, denominator, weights, **walk)
    q, k, v = _first(query, key, value)
    relative.step(q, k, v, embedding, state, **options)


def _features(query: Any, key: Any, value: Any) -> None:
    projection, positions = key[0, 0], np.arange(query.shape[2])
    phi = features.favor_forward(query, projection)
    favor = query, projection, phi
    features.favor_backward(phi, *favor, projection_needs_gradient=True)
    features.dpfp_backward(features.dpfp_forward(query), query)
    phi = features.cosformer_forward(query, positions, longest=len(positions))
    features.cosformer_backward(phi, query, positions, longest=len(positions))


def _delta(query: Any, key: Any, value: Any, *, algorithm: str = "recurrent") -> None:
    inputs = query, key, value, np.zeros(key.shape[:3], key.dtype)
    output, residual, state = delta.forward(*inputs, algorithm=algorithm)
    delta.backward(output, state, *inputs, output, residual, algorithm=algorithm)
    q, k, v, beta = _first(*inputs)
    delta.step(q, k, v, beta, state)
    options: dict[str, Any] = {"feature_map": "elu", "normalize": "sum"}
    phi, inverse = normalised.forward(query, **options)
    normalised.backward(phi, query, phi, inverse, **options)


def _local(query: Any, key: Any, value: Any) -> None:
    inputs = query, key, value
    output, log_sum_exp = local.forward(*inputs, window=32)
    local.backward(output, *inputs, output, log_sum_exp, window=32)


def _graph(query: Any, key: Any, value: Any) -> None:
    query, key, value = query[0], key[0], value[0]
    nodes = np.arange(query.shape[1] + 1)  # each sees itself
    edges = graph.Edges(nodes, nodes[:-1], query.shape[1])
    a, b = query[..., 0], key[..., 0]
    graph.additive_scores_backward(graph.additive_scores(a, b, edges), a, b, edges)
    scores = graph.dot_scores(query, key, edges)
    graph.dot_scores_backward(scores, query, key, edges)
    output, weights = graph.forward(scores, value, edges, dropout=0.5)
    graph.backward(output, value, edges, output, weights)


def _optimizer(query: Any, key: Any, value: Any) -> None:
    arrays = [np.zeros_like(query) for _ in range(4)]
    optimizer.descend(*arrays[:2], rate=0.1)
    optimizer.momentum_descend(*arrays[:3], rate=0.1, momentum=0.9)
    optimizer.moment_descend(*arrays, rate=0.1, betas=(0.9, 0.99), root_weight=1.0, eps=1e-8)


def _layer_norm(query: Any, key: Any, value: Any) -> None:
    x, weight = query[0, 0], key[0, 0, 0]
    y, mean, scale = layer_norm.forward(x, weight, weight, eps=1e-5)
    layer_norm.backward(y, x, weight, mean, scale)
    layer_norm.parameters_backward(y, x, mean, scale)


def _matmul(query: Any, key: Any, value: Any) -> None:
    a, b = (array[0, 0].astype(np.float32) for array in (query, key))
    for precise in (False, True):
        matmul.matmul(a, b.T, precise=precise)


def _first(*arrays: Any) -> list[Any]:
    """Return the first token of arrays (N, H, L, ...)."""
    return [array[:, :, 0] for array in arrays]


def _few_values(host: Host) -> Host:
    """Return a host function whose values have 8 columns, fewer than queries and keys have."""
    return lambda query, key, value: host(query, key, value[..., :8])


# Each calls the host functions of one attention, forward and backward, on query, key and value.
HOSTS: dict[str, Host] = {
    "softmax": _softmax,
    "naive": _naive,
    "linear": _linear,
    "recurrent": _recurrent,
    "chunked": _chunked,
    "fourier": _fourier,
    "relative": _relative,
    "features": _features,
    "delta": _delta,
    "local": _local,
    "graph": _graph,
    "softmax_dropped": partial(_softmax, relative=True, dropout=0.1),
    "layer_norm": _layer_norm,
    "optimizer": _optimizer,
    "matmul": _matmul,
}

# The same kernels with other options, for head dim `USUAL`. Of the feature maps, softplus is the
# longest; of the guards, "signed". Fourier features are 3 times as wide as the head dim; the plain
# denominator is an attention to values of one column.
OTHER: dict[str, Any] = {"feature_map": "softplus", "guard": "signed"}
MORE: dict[str, Host] = {
    "softmax_relative": partial(_softmax, relative=True),
    "softmax_with_dropout": partial(_softmax, dropout=0.1),
    "softmax_few_values": _few_values(_softmax),
    "local_few_values": _few_values(_local),
    "naive_softplus": partial(_naive, **OTHER),
    "linear_softplus": partial(_linear, **OTHER),
    "recurrent_softplus": partial(_recurrent, **OTHER),
    "chunked_softplus": partial(_chunked, **OTHER),
    "relative_exp": partial(_relative, score_map="exp", relative_query="raw", guard="signed"),
    "delta_chunked": partial(_delta, algorithm="chunked"),
    "delta_few_values": _few_values(_delta),
    **{
        f"fourier_{algorithm}": partial(
            _fourier_attention, algorithm=algorithm, denominator="plain"
        )
        for algorithm in kernelized.ALGORITHMS
    },
}
