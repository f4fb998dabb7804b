"""S4's table of dimensions: every array of a Perceiver, its formula and its shape.

The formulas are written here; the shapes are not. They are read off the arrays that a forward pass
over zeros makes, and off the weights that the model has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import random
from ..function import no_grad
from ..tensor import Tensor
from .cross_attention import PostNormCrossAttention
from .layers import Linear
from .module import Module, Sequential
from .transformer import TransformerEncoderLayer
from .variants.softmax import SoftmaxAttention

if TYPE_CHECKING:
    from .perceiver import Perceiver

Shape = tuple[int, ...]


class Row(NamedTuple):
    """A line of the table."""

    array: str  # its name
    formula: str  # how it is made
    letters: str  # its shape, one letter a dimension
    shape: Shape  # its shape
    weights: tuple[Linear, ...] = ()  # the linear maps that make it

    def cells(self) -> tuple[str, ...]:
        """Return the columns' texts."""
        weights = ", ".join(_times(layer.weight.shape[::-1]) for layer in self.weights)
        return self.array, self.formula, _times(self.letters), _times(self.shape), weights


class Kind(NamedTuple):
    """An array that reads or is read: its name, and the letters of its length and its width."""

    name: str
    length: str
    width: str


class Frame(NamedTuple):
    """The formulas of an attention by which x reads y, and of a map after it."""

    enter: str
    attended: str
    mapped: str


class Call(NamedTuple):
    """What went into a module, and what came out."""

    arguments: tuple[Tensor, ...]
    output: Tensor


Calls = dict[Module, Call]

BYTES = Kind("bytes", "M", "C")
LATENTS = Kind("latents", "N", "P")
QUERIES = Kind("queries", "O", "D")

PRE = Frame("norm({x})", "{x} + A W_O", "{x} + mlp(norm({x}))")
POST = Frame("{x}", "norm({x} + A W_O)", "norm({x} + mlp({x}))")
LITERAL = Frame("norm({x})", "norm({x} + A)", "{x} + {x} W")


def dimensions(model: Perceiver, num_bytes: int, batch: int, num_queries: int) -> str:
    """Return the table of a model, see `Perceiver.dimensions`."""
    shapes: list[Shape] = [(batch, num_bytes, model.input_dim)]
    if model.query_dim is not None:
        shapes.append((batch, num_queries, model.query_dim))
    calls = _traced(model, shapes)
    latents = calls[model.blocks[0]].arguments[0]
    lines: list[str | Row] = [
        Row("bytes", "the input", "BMC", shapes[0]),
        Row("latents", "learned, the same for all", "BNP", latents.shape),
    ]
    for block in model.blocks:
        repeats = _repeats([i + 1 for i in range(model.depth) if model.block(i) is block])
        lines += [f"{repeats}: latents read bytes", *_reading(block.cross, LATENTS, BYTES, calls)]
        for number, layer in enumerate(block.layers, 1):
            lines += [f"{repeats}: layer {number} of the transformer", *_layer(layer, calls)]
    if shapes[1:]:
        lines += ["queries read latents", Row("queries", "the input", "BOD", shapes[1])]
        lines += _reading(model.head.cross, QUERIES, LATENTS, calls)
    lines += _outputs(model, calls)
    return "\n".join([*_aligned(lines), "", *_notes(model, num_bytes, num_queries)])


def _traced(model: Perceiver, shapes: Iterable[Shape]) -> Calls:
    """Return the first call of every module of a model that reads zeros."""
    zeros = [Tensor(np.zeros(shape, model.latents.dtype)).to(model.device) for shape in shapes]
    state = random.get_state()  # dropout draws, and a look at the model shall change nothing
    with no_grad(), _recorded(model) as calls:
        model(*zeros)
    random.set_state(state)
    return calls


@contextmanager
def _recorded(model: Module) -> Iterator[Calls]:
    calls: Calls = {}

    def recording(module: Module) -> Any:
        forward = module.forward

        def record(*arguments: Any, **keywords: Any) -> Tensor:
            output = forward(*arguments, **keywords)
            calls.setdefault(module, Call(arguments, output))
            return output

        return record

    modules = {module for module in model.modules() if hasattr(module, "forward")}
    try:
        for module in modules:
            module.forward = recording(module)  # hides the class's own
        yield calls
    finally:
        for module in modules:
            vars(module).pop("forward", None)


def _repeats(numbers: Sequence[int]) -> str:
    return f"repeats {numbers[0]} to {numbers[-1]}" if numbers[1:] else f"repeat {numbers[0]}"


def _reading(cross: Any, x: Kind, y: Kind, calls: Calls) -> list[Row]:
    """Return the lines of a module by which x reads y."""
    if isinstance(cross, PostNormCrossAttention):
        return _residual(LITERAL, cross, cross.attention, [cross.dense], x, y, calls)
    maps = _linears(cross.feed_forward)
    return _residual(PRE, cross, cross.attention, maps, x, y, calls)


def _layer(layer: TransformerEncoderLayer, calls: Calls) -> list[Row]:
    """Return the lines of a layer of the latent transformer."""
    frame = PRE if layer.residual.norm_first else POST
    maps = _linears(layer.feed_forward)
    return _residual(frame, layer, layer.self_attention, maps, LATENTS, LATENTS, calls)


def _residual(
    frame: Frame,
    module: Module,
    attention: Any,
    maps: Sequence[Linear],
    x: Kind,
    y: Kind,
    calls: Calls,
) -> list[Row]:
    enter, attended, mapped = (formula.format(x=x.name) for formula in frame)
    letters = f"B{x.length}{x.width}"
    update = calls[attention].output
    joins = tuple(m for name, m in attention.named_children() if name == "out_projection")
    return [
        *_attention(attention, (enter, x.length), (frame.enter.format(x=y.name), y.length), calls),
        Row(x.name, attended, letters, update.shape, joins),
        Row(x.name, mapped, letters, calls[module].output.shape, tuple(maps)),
    ]


def _attention(
    attention: Any, query: tuple[str, str], key: tuple[str, str], calls: Calls
) -> list[Row]:
    """Return the lines from Q to A; an input is given by its formula and its length's letter."""
    arguments = calls[attention].arguments
    rows = {}
    for array, (formula, length), x, projection in (
        ("Q", query, arguments[0], attention.query_projection),
        ("K", key, arguments[-1], attention.key_projection),
        ("V", key, arguments[-1], attention.value_projection),
    ):
        width = projection.out_features // attention.num_heads
        shape = x.shape[0], attention.num_heads, x.shape[1], width
        rows[array] = Row(array, f"{formula} W_{array}", f"BH{length}E", shape, (projection,))
    per_query = rows["Q"].shape[:3]
    variant = attention.attention
    formula = f"{type(variant).__name__}(Q, K, V)"
    if isinstance(variant, SoftmaxAttention):
        formula, scale = "softmax(S) V", variant.scale
        scores = "Q K^T / sqrt(E)" if scale is None else f"{scale} Q K^T"
        pairs = (*per_query, rows["K"].shape[2])
        rows["S"] = Row("S", f"{scores}, never stored", f"BH{query[1]}{key[1]}", pairs)
    output = Row("A", formula, f"BH{query[1]}E", (*per_query, rows["V"].shape[3]))
    return [*rows.values(), output]


def _outputs(model: Perceiver, calls: Calls) -> list[Row]:
    """Return the lines of the head; the latents are the output of a model without one."""
    head = model.head
    if isinstance(head, Sequential):
        return []
    normalized, output = calls[head.norm].arguments[0].shape, calls[head].output.shape
    if model.query_dim is not None:
        return [Row("outputs", "norm(queries) W", "BOY", output, (head.projection,))]
    return [
        Row("mean", "mean of the latents", "BP", normalized),
        Row("logits", "norm(mean) W", "BY", output, (head.projection,)),
    ]


def _linears(module: Module) -> list[Linear]:
    return [layer for layer in module.modules() if isinstance(layer, Linear)]


def _aligned(lines: Sequence[str | Row]) -> list[str]:
    """Return the rows in columns; a text is a heading."""
    titles = "array", "formula", "letters", "shape", "weights (in × out)"
    table = [titles, *(line.cells() for line in lines if isinstance(line, Row))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    texts = [titles, *(f"\n{line}" if isinstance(line, str) else line.cells() for line in lines)]
    return [
        text if isinstance(text, str) else "  ".join(map(str.ljust, text, widths)).rstrip()
        for text in texts
    ]


def _notes(model: Perceiver, num_bytes: int, num_queries: int) -> list[str]:
    """Return the letters' meaning, and how many parameters and pairs of query and key there are."""
    counts = [m.num_parameters() for m in (model, model.blocks, model.head)]
    total, blocks, head = (f"{count:,}" for count in counts)
    M, N, L, depth = num_bytes, len(model.latents), len(model.blocks[0].layers), model.depth
    letters = "B items, M bytes of C channels, N latents of P channels, H heads of E numbers"
    answers, term = 0, ""
    if model.query_dim is not None:
        answers, term, letters = num_queries * N, " + O N", f"{letters}, O queries of D channels"
    if counts[-1]:
        letters += ", Y classes"
    pairs, quadratic = depth * (M * N + L * N**2) + answers, depth * (1 + L) * M**2
    return [
        f"{letters}.",
        f"Parameters: {total}, of which latents {model.latents.size:,}, blocks {blocks} "
        f"({len(model.blocks)} for a depth of {depth}), head {head}.",
        f"Pairs of query and key, a head: depth (M N + L N^2){term} = {pairs:,}.",
        f"With as many layers over the bytes themselves: depth (1 + L) M^2 = {quadratic:,}, "
        f"{quadratic / pairs:.3g} times as many.",
    ]


def _times(sizes: Iterable[Any]) -> str:
    return " × ".join(map(str, sizes))
