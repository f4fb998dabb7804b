"""Three things about each differentiable function: its inputs, itself, and a naive reference.

`test_functions.py` derives every check from them. References are plain NumPy in whatever dtype they
are given: in float64 they are the truth, in float32 the error that a function is allowed to make.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from minitransformer import functions as F

Array = NDArray[Any]
Shape = tuple[int, ...]
Call = tuple[tuple[Shape, ...], dict[str, Any]]  # shapes of the inputs, and options


@dataclass(frozen=True)
class Example:
    """The shapes and options of one call; the values come from the seed."""

    shapes: tuple[Shape, ...]
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    scale: float = 1.0

    def inputs(self, draw: Callable[[np.random.Generator, Shape], Array]) -> list[Array]:
        generator = np.random.default_rng(self.seed)
        return [np.asarray(self.scale * draw(generator, shape)) for shape in self.shapes]


def away_from_zero(generator: np.random.Generator, shape: Shape) -> Array:
    """Normal numbers, none so near to a kink at 0 that a difference would straddle it."""
    x = generator.standard_normal(shape)
    return np.asarray(x + np.copysign(0.01, x))


def positive(generator: np.random.Generator, shape: Shape) -> Array:
    return np.asarray(abs(away_from_zero(generator, shape)) + 0.3)


def distinct(generator: np.random.Generator, shape: Shape) -> Array:
    """Numbers of which no two are close."""
    size = math.prod(shape)
    return (generator.permutation(size).reshape(shape) - size / 3) / 4


@dataclass(frozen=True)
class FunctionCase:
    """A function and how to check it."""

    name: str
    operation: Callable[..., Any]
    reference: Callable[..., Any]
    examples: st.SearchStrategy[Example]
    values: Callable[[np.random.Generator, Shape], Array] = away_from_zero


# -- Shapes ----------------------------------------------------------------------------------------

sides = st.integers(1, 4)
shapes = st.lists(sides, min_size=0, max_size=3).map(tuple)
full_shapes = st.lists(sides, min_size=1, max_size=3).map(tuple)


@st.composite
def examples(draw: st.DrawFn, make: Callable[[st.DrawFn], Call]) -> Example:
    shapes_, options = make(draw)
    scale = draw(st.sampled_from([1.0, 1.0, 0.1, 3.0]))
    return Example(shapes_, options, draw(st.integers(0, 2**32 - 1)), scale)


def one(draw: st.DrawFn) -> Call:
    return (draw(shapes),), {}


def broadcast(count: int) -> Callable[[st.DrawFn], Call]:
    """Shapes that broadcast: each leaves out leading dimensions and has ones in places."""

    def make(draw: st.DrawFn) -> Call:
        full = draw(shapes)

        def part() -> Shape:
            kept = full[draw(st.integers(0, len(full))) :]
            return tuple(draw(st.sampled_from([n, n, 1])) for n in kept)

        return tuple(part() for _ in range(count)), {}

    return make


def reduced(draw: st.DrawFn) -> Call:
    shape = draw(full_shapes)
    every = st.integers(-len(shape), len(shape) - 1)
    several = st.sets(st.integers(0, len(shape) - 1), min_size=1).map(tuple)
    return (shape,), {"dim": draw(st.none() | every | several), "keepdim": draw(st.booleans())}


def along(draw: st.DrawFn) -> Call:
    shape = draw(full_shapes)
    return (shape,), {"dim": draw(st.integers(-len(shape), len(shape) - 1))}


def matrices(draw: st.DrawFn) -> Call:
    rows, inner, columns = draw(sides), draw(sides), draw(sides)
    batch = broadcast(2)(draw)[0]
    x = (*batch[0], rows, inner) if draw(st.booleans()) else (inner,)
    y = (*batch[1], inner, columns) if draw(st.booleans()) else (inner,)
    return (x, y), {}


def linear(draw: st.DrawFn) -> Call:
    inputs, outputs = draw(sides), draw(sides)
    bias = [(outputs,)] if draw(st.booleans()) else []
    return ((*draw(shapes), inputs), (outputs, inputs), *bias), {}


def permuted(draw: st.DrawFn) -> Call:
    shape = draw(shapes)
    return (shape,), {"dims": tuple(draw(st.permutations(range(len(shape)))))}


def stretched(draw: st.DrawFn) -> Call:
    """Up to two new dimensions, and some of size 1 repeated; -1 and a 1 keep a size."""
    shape = draw(shapes)
    new = draw(st.lists(sides, max_size=2))
    return (shape,), {"sizes": (*new, *(draw(sides) if n == 1 else -1 for n in shape))}


def indexed(draw: st.DrawFn) -> Call:
    index = st.sampled_from(
        [
            1,
            -1,
            slice(1, None),
            slice(None, None, -2),
            (slice(None), 1),
            (Ellipsis, None, slice(0, 2)),
            (0, slice(1, 3), np.array([0, 2])),
            np.array([0, 1, 1, 0, -1]),
            [1, 1, 0],
            (np.array([[0, 1], [1, 1]]), np.array([2, 2])),
            (slice(None), np.array([1, 1]), np.array([0, 3])),
            np.arange(24).reshape(2, 3, 4) % 5 == 0,
            (np.array([True, False]), slice(None), np.array([3, 3, 1])),
        ]
    )
    return ((2, 3, 4),), {"index": draw(index)}


def joined(draw: st.DrawFn) -> Call:
    shape = draw(full_shapes)
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    at = dim % len(shape)
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    return tuple((*shape[:at], n, *shape[at + 1 :]) for n in sizes), {"dim": dim}


def stacked(draw: st.DrawFn) -> Call:
    shape = draw(shapes)
    dim = draw(st.integers(-len(shape) - 1, len(shape)))
    return (shape,) * draw(st.integers(1, 3)), {"dim": dim}


def cut(draw: st.DrawFn) -> Call:
    shape = draw(full_shapes)
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    first = draw(st.integers(0, shape[dim]))
    size = draw(st.integers(1, 3) | st.just([first, shape[dim] - first]))
    return (shape,), {"size": size, "dim": dim}


def looked_up(draw: st.DrawFn) -> Call:
    rows = draw(sides)
    indices = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=6))
    shape = (-1, 1, 2) if len(indices) % 2 == 0 else (-1,)
    return ((rows, draw(sides)),), {"indices": np.array(indices).reshape(shape)}


def normalized(draw: st.DrawFn) -> Call:
    """More than two numbers each: two become 1 and -1, whose gradient is what rounding leaves."""
    sizes = st.lists(st.integers(2, 4), min_size=1, max_size=2).map(tuple)
    shape = draw(sizes.filter(lambda shape: math.prod(shape) > 2))
    parameters = draw(st.sampled_from([(), (shape,), (shape, shape)]))
    return ((*draw(shapes), *shape), *parameters), {"normalized_shape": shape}


def classified(draw: st.DrawFn) -> Call:
    classes, batch = draw(st.integers(2, 4)), draw(sides)
    rest = draw(st.lists(sides, max_size=2).map(tuple))
    shape, target = draw(
        st.sampled_from([((batch, classes, *rest), (batch, *rest)), ((classes,), ())])
    )
    count = math.prod(target)
    targets = draw(st.lists(st.integers(0, classes - 1), min_size=count, max_size=count))
    ignored = draw(st.sampled_from([-100, 0]))
    flat = np.array(targets)
    flat[::3] = ignored
    flat[0] = classes - 1  # something counts
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    return (shape,), {
        "targets": flat.reshape(target),
        "ignore_index": ignored,
        "reduction": reduction,
    }


def masked(draw: st.DrawFn) -> Call:
    (x, y), _ = broadcast(2)(draw)
    full = np.broadcast_shapes(x, y)
    bits = draw(st.lists(st.booleans(), min_size=math.prod(full), max_size=math.prod(full)))
    return (x, y), {"condition": np.array(bits).reshape(full)}


def filled(draw: st.DrawFn) -> Call:
    _, options = masked(draw)
    return (options["condition"].shape,), {"mask": options["condition"]}


def losses(draw: st.DrawFn) -> Call:
    shape = draw(shapes)
    return (shape, shape), {"reduction": draw(st.sampled_from(["mean", "sum", "none"]))}


# -- References ------------------------------------------------------------------------------------


def naive_softmax(x: Array, dim: int) -> Array:
    weights = np.exp(x - x.max(axis=dim, keepdims=True))
    return np.asarray(weights / weights.sum(axis=dim, keepdims=True))


def naive_erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def naive_layer_norm(x: Array, *parameters: Array, normalized_shape: Shape) -> Array:
    axes = tuple(range(-len(normalized_shape), 0))
    y: Array = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    for combine, parameter in zip((np.multiply, np.add), parameters, strict=False):
        y = combine(y, parameter)
    return y


def naive_cross_entropy(x: Array, targets: Array, ignore_index: int, reduction: str) -> Array:
    logits = np.moveaxis(x, 1, -1) if x.ndim > 1 else x
    losses = np.zeros(targets.shape, x.dtype)
    for place in np.ndindex(targets.shape):
        if targets[place] != ignore_index:
            losses[place] = -np.log(naive_softmax(logits[place], -1)[targets[place]])
    counted = np.sum(targets != ignore_index)
    choices = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counted}
    return np.asarray(choices[reduction])


def naive_embedding(weight: Array, indices: Array) -> Array:
    return np.stack([weight[i] for i in indices.ravel()]).reshape(*indices.shape, *weight.shape[1:])


def naive_linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    y = np.einsum("...i,oi->...o", x, weight)
    return np.asarray(y if bias is None else y + bias)


def naive_split(x: Array, size: Any, dim: int) -> list[Array]:
    step = range(size, x.shape[dim], size) if isinstance(size, int) else [size[0]]
    return np.split(x, list(step), axis=dim)


def naive_expand(x: Array, sizes: Shape) -> Array:
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [n if new < 0 else new for new, n in zip(sizes, own, strict=True)])


def naive_mse(x: Array, y: Array, reduction: str) -> Array:
    squares = (x - y) ** 2
    return np.asarray({"none": squares, "sum": squares.sum(), "mean": squares.mean()}[reduction])


# -- The table -------------------------------------------------------------------------------------


def unary(name: str, reference: Callable[[Array], Array], values: Any = away_from_zero) -> Any:
    return FunctionCase(name, getattr(F, name), reference, examples(one), values)


def _layer_norm(x: Any, *parameters: Any, normalized_shape: Shape) -> Any:
    return F.layer_norm(x, normalized_shape, *parameters)


CASES = [
    FunctionCase("add", F.add, np.add, examples(broadcast(2))),
    FunctionCase("subtract", F.subtract, np.subtract, examples(broadcast(2))),
    FunctionCase("multiply", F.multiply, np.multiply, examples(broadcast(2))),
    FunctionCase("divide", F.divide, np.divide, examples(broadcast(2)), positive),
    FunctionCase("power", F.power, np.power, examples(broadcast(2)), positive),
    FunctionCase("operators", lambda x: 3 - 2 / (1 + (-x) * x**2 - x / 2 + 0.5) + 2.0**x - (x - 1),
                 lambda x: 3 - 2 / (1 + (-x) * x**2 - x / 2 + 0.5) + 2.0**x - (x - 1),
                 examples(one), lambda generator, shape: -positive(generator, shape)),
    unary("negative", np.negative),
    unary("exp", np.exp),
    unary("log", np.log, positive),
    unary("sqrt", np.sqrt, positive),
    unary("tanh", np.tanh),
    unary("relu", lambda x: np.maximum(x, 0)),
    unary("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    unary("softplus", lambda x: np.logaddexp(x, 0)),
    unary("gelu", lambda x: (x * (1 + naive_erf(x / np.sqrt(2))) / 2).astype(x.dtype)),
    FunctionCase("gelu_tanh", lambda x: F.gelu(x, "tanh"),
                 lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
                 examples(one)),
    FunctionCase("elu", lambda x: F.elu(x, 1.3),
                 lambda x: np.where(x > 0, x, 1.3 * (np.exp(x) - 1)).astype(x.dtype),
                 examples(one)),
    FunctionCase("matmul", F.matmul, np.matmul, examples(matrices)),
    FunctionCase("linear", F.linear, naive_linear, examples(linear)),
    FunctionCase("sum", F.sum, lambda x, dim, keepdim: x.sum(dim, keepdims=keepdim),
                 examples(reduced)),
    FunctionCase("mean", F.mean, lambda x, dim, keepdim: x.mean(dim, keepdims=keepdim),
                 examples(reduced)),
    FunctionCase("var", lambda x, dim, keepdim: F.var(x, dim, correction=0.5, keepdim=keepdim),
                 lambda x, dim, keepdim: x.var(dim, ddof=0.5, keepdims=keepdim), examples(reduced)),
    FunctionCase("amax", F.amax, lambda x, dim, keepdim: x.max(dim, keepdims=keepdim),
                 examples(reduced), distinct),
    FunctionCase("softmax", F.softmax, naive_softmax, examples(along)),
    FunctionCase("log_softmax", F.log_softmax, lambda x, dim: np.log(naive_softmax(x, dim)),
                 examples(along)),
    FunctionCase("layer_norm", _layer_norm, naive_layer_norm, examples(normalized)),
    FunctionCase("cross_entropy", F.cross_entropy, naive_cross_entropy, examples(classified)),
    FunctionCase("mse_loss", F.mse_loss, naive_mse, examples(losses)),
    FunctionCase("flatten", F.flatten, np.ravel, examples(one).filter(lambda e: e.shapes[0])),
    FunctionCase("reshape", lambda x: x.reshape(1, -1), lambda x: x[None].reshape(1, -1),
                 examples(one)),
    FunctionCase("permute", lambda x, dims: x.permute(dims), lambda x, dims: x.transpose(dims),
                 examples(permuted)),
    FunctionCase("T", lambda x: x.T, np.transpose, examples(one)),
    FunctionCase("transpose", lambda x, dim: x.transpose(dim, 0), lambda x, dim: x.swapaxes(dim, 0),
                 examples(along)),
    FunctionCase("expand", lambda x, sizes: x.expand(*sizes), naive_expand, examples(stretched)),
    FunctionCase("squeeze", lambda x: x.unsqueeze(-1).squeeze(-1), np.copy, examples(one)),
    FunctionCase("getitem", F.getitem, lambda x, index: x[index], examples(indexed)),
    FunctionCase("cat", lambda *x, dim: F.cat(x, dim), lambda *x, dim: np.concatenate(x, dim),
                 examples(joined)),
    FunctionCase("stack", lambda *x, dim: F.stack(x, dim), lambda *x, dim: np.stack(x, dim),
                 examples(stacked)),
    FunctionCase("split", F.split, naive_split, examples(cut)),
    FunctionCase("embedding", lambda w, indices: F.embedding(indices, w), naive_embedding,
                 examples(looked_up)),
    FunctionCase("where", lambda x, y, condition: F.where(condition, x, y),
                 lambda x, y, condition: np.where(condition, x, y), examples(masked)),
    FunctionCase("masked_fill", lambda x, mask: F.masked_fill(x, mask, -7.5),
                 lambda x, mask: np.where(mask, x.dtype.type(-7.5), x), examples(filled)),
]  # fmt: skip
