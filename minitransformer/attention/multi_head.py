"""Multi-head attention in three passes: forward, backward for data, backward for weights.

Each takes and returns NumPy or CuPy arrays and can be called on its own. `nn.MultiHeadAttention`
puts any attention between the same projections, as `ProjectedHeads` and `JoinedHeads` on the tape.
The equations are those of one sequence, whose tokens are rows.

Forward. The inputs are X_q (Lq x D_q), X_k (Lk x D_k) and X_v (Lk x D_v). Each has its projection,

    Q = X_q W_q^T + b_q        K = X_k W_k^T + b_k        V = X_v W_v^T + b_v                    (1)

and head h owns E columns of Q and K, and M of V:

    P_h = softmax(Q_h K_h^T / α)              over the keys that a query sees                    (2)
    O_h = drop(P_h) V_h                                                                          (3)
    Y   = [O_1 ... O_H] W_o^T + b_o                                                              (4)

Backward for data. With G = dLoss/dY, a projection is crossed by its weights, in equations (5) and
(10); between them lies each head's attention. `drop` has no gradient but itself: it scales what it
kept, by the same mask.

    [dO_1 ... dO_H] = G W_o                                                                      (5)
    dV_h = drop(P_h)^T dO_h                                                                      (6)
    dP_h = drop(dO_h V_h^T)                                                                      (7)
    dS_h = P_h * (dP_h - row sums of P_h * dP_h)                                                 (8)
    dQ_h = dS_h K_h / α                       dK_h = dS_h^T Q_h / α                              (9)
    dX_q = dQ W_q              dX_k = dK W_k              dX_v = dV W_v                         (10)

Backward for weights. Each projection is linear in its weights, and adds its bias to every row:

    dW_o = G^T [O_1 ... O_H]                  db_o = column sums of G                           (11)
    dW_q = dQ^T X_q                           db_q = column sums of dQ        (k and v alike)   (12)

Both backward passes need dQ, dK and dV: the first hands them to the second, which makes them itself
where nobody asks for the gradient of the data. Equations (2), (3) and (6) to (9) are one kernel
each way, `minitransformer_kernels.softmax`, which never holds the matrices P.

Inputs that are the same array are projected by one product: [W_q; W_k; W_v] in one matrix keeps
the machine busier than three, and copying the weights is cheap beside that.

Source: Vaswani et al. 2017, section 3.2.2; S3, whose three entry points these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels import softmax
from minitransformer_kernels.checks import fit, is_array, whole
from minitransformer_kernels.visible import Visible

from ..device import Array, array_module
from ..function import Context, Function
from ..functions.arithmetic import column_sums, product, products, rows
from ..tensor import Tensor
from .checks import Lengths, check_inputs

Inputs = tuple[Array, Array | None, Array | None]


class Weights(NamedTuple):
    """The four projections of a layer, or their gradients."""

    query: Array  # W_q (H E, D_q)
    key: Array  # W_k (H E, D_k)
    value: Array  # W_v (H M, D_v)
    out: Array  # W_o (D_o, H M)
    query_bias: Array | None = None  # b_q (H E), or None
    key_bias: Array | None = None  # b_k (H E), or None
    value_bias: Array | None = None  # b_v (H M), or None
    out_bias: Array | None = None  # b_o (D_o), or None

    @property
    def of_inputs(self) -> tuple[Array, ...]:
        """W_q, W_k and W_v."""
        return self.query, self.key, self.value

    @property
    def biases(self) -> tuple[Array | None, ...]:
        """b_q, b_k, b_v and b_o."""
        return self.query_bias, self.key_bias, self.value_bias, self.out_bias


class Saved(NamedTuple):
    """What `forward` leaves for the backward passes."""

    weights: Weights  # as given
    inputs: Inputs  # X_q, X_k and X_v; None for one that is the input before it
    concatenated: bool  # whether they came as one array
    heads: tuple[Array, Array, Array]  # Q (N, H, Lq, E), K (N, H, Lk, E) and V (N, H, Lk, M)
    output: Array  # O of equation (3), (N, H, Lq, M)
    sums: tuple[Array, Array]  # of each query (N, H, Lq), two numbers that turn scores back into P
    options: dict[str, Any]  # of the kernel


class DataGradients(NamedTuple):
    """What `backward_data` returns: gradients in the shapes of `forward`'s arguments.

    Where an input was left out, its gradient is in that of what stood for it.
    """

    query: Array  # dX_q
    key: Array | None  # dX_k
    value: Array | None  # dX_v
    projected: list[Array]  # dQ, dK and dV (N, L, width), those of one input side by side


def forward(
    weights: Weights,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    *,
    num_heads: int,
    alpha: float | None = None,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Array, Saved]:
    """Multi-head attention, equations (1) to (4).

    Args:
        weights: the projections; their shapes say what E, M and D_o are.
        query: X_q (N, Lq, D_q), float32 or float64. Alone, it may be all three inputs side by side,
            (N, L, D_q + D_k + D_v).
        key: X_k (N, Lk, D_k); None: the query's array.
        value: X_v (N, Lk, D_v); None: the key's array.
        num_heads: H.
        alpha: the scores' divisor α; sqrt(E) by default.
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries attend to nothing. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        dropout: the fraction of the weights P that is dropped, in [0, 1).
        seed: which ones: a whole number from 0 up; the same one drops the same weights.

    Returns:
        Y (N, Lq, D_o), and what the backward passes need.

    Raises:
        TypeError: an array is not floating, or lengths, offset or seed are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Example:
        >>> import numpy as np
        >>> identity = np.eye(2)
        >>> x = np.array([[[1.0, 0.0], [3.0, 0.0]]])
        >>> output, _ = forward(Weights(0 * identity, identity, identity, identity), x, num_heads=1)
        >>> output.tolist()
        [[[2.0, 0.0], [2.0, 0.0]]]
    """
    name = "multi_head.forward"
    if getattr(weights, "_fields", None) != Weights._fields:
        raise TypeError(f"{name}: weights must be Weights, got {type(weights).__name__}")
    named = {f"weights.{field}": x for field, x in weights._asdict().items()}
    optional = {"key", "value", *(f"weights.{field}" for field in Weights._field_defaults)}
    for argument, x in {"query": query, "key": key, "value": value, **named}.items():
        if not is_array(x) and (x is not None or argument not in optional):
            raise TypeError(f"{name}: {argument} must be an array, got {type(x).__name__}")
    inputs = _separated(name, weights, query, key, value)
    _check_shapes(name, weights, inputs, num_heads)
    (q, k, v), _ = _project(_given(inputs), weights.of_inputs, weights.biases, num_heads)
    options: dict[str, Any] = {
        "visible": Visible(causal, query_offset, query_lengths, key_lengths).settled(name, q, k),
        "scale": _scale(name, alpha),
        "dropout": dropout,
        "seed": whole(name, "seed", seed),
    }
    attended, highest, inverse = softmax.forward(q, k, v, **options)  # (2), (3)
    output = product(_side_by_side(attended), weights.out.T, weights.out_bias)  # (4)
    concatenated = inputs[0] is not query
    # What is cheap to make again is not kept: the joined heads and the stacked weights are copies.
    sums = highest, inverse
    return output, Saved(weights, inputs, concatenated, (q, k, v), attended, sums, options)


def backward_data(grad_output: Array, saved: Saved) -> DataGradients:
    """The gradient of the inputs, equations (5) to (10), given G (N, Lq, D_o), dLoss/dY."""
    _check_gradient("multi_head.backward_data", grad_output, saved)
    projected = _projected_gradients(grad_output, saved)
    gradients: list[Any] = [None, None, None]
    for (_, part), joint in zip(_given(saved.inputs), projected, strict=True):
        gradients[part.start] = product(joint, _stacked(saved.weights.of_inputs[part]))  # (10)
    query, key, value = gradients
    if saved.concatenated:
        query, key, value = array_module(query).concatenate(gradients, axis=-1), None, None
    return DataGradients(query, key, value, projected)


def backward_weights(
    grad_output: Array, saved: Saved, projected: list[Array] | None = None
) -> Weights:
    """The gradient of projections and biases, equations (11) and (12).

    Args:
        grad_output: G (N, Lq, D_o), dLoss/dY.
        saved: what `forward` returned.
        projected: what `backward_data` returned under that name; None: it is made here.

    Returns:
        A gradient for each weight, None for a bias that there is not.
    """
    _check_gradient("multi_head.backward_weights", grad_output, saved)
    if projected is None:
        projected = _projected_gradients(grad_output, saved)
    found = [
        _of_weights(joint[..., span], x)
        for (x, part), joint in zip(_given(saved.inputs), projected, strict=True)
        for span in _spans(map(len, saved.weights.of_inputs[part]))
    ]
    weights, biases = zip(
        *found, _of_weights(grad_output, _side_by_side(saved.output)), strict=True
    )
    learned = zip(biases, saved.weights.biases, strict=True)
    return Weights(*weights, *(None if b is None else gradient for gradient, b in learned))


class ProjectedHeads(Function):
    """Inputs by their projections, as heads: equation (1). An input's are one product."""

    @staticmethod
    def forward(ctx: Context, *arrays: Any, num_heads: int) -> tuple[Array, ...]:
        """Return heads (N, H, L, E) for all X (N, L, D), then all W (H E, D), then all b (H E).

        There are as many of each; an X may be None, for the one before it.
        """
        count = len(arrays) // 3
        weights, given = arrays[count : 2 * count], _given(arrays[:count])
        heads, stacked = _project(given, weights, arrays[2 * count :], num_heads)
        # The stacked weights are copies, but kept: to make them again took one percent of a step.
        ctx.save(given, stacked, [len(weight) for weight in weights])
        return tuple(heads)

    @staticmethod
    def backward(ctx: Context, *grad_heads: Array | None) -> tuple[Array | None, ...]:
        """Return each dX, each dW and each db."""
        given, stacked, widths = ctx.saved
        needed, gradients, count = ctx.needs_input_grad, ctx.filled(*grad_heads), len(widths)
        found: list[Array | None] = [None] * len(needed)
        pairs: dict[int, tuple[Array, Array]] = {}  # what is multiplied, by its gradient's place
        for (x, part), weight in zip(given, stacked, strict=True):
            joint, by_rows = rows(_side_by_side(*gradients[part])), rows(x)
            if needed[part.start]:
                pairs[part.start] = joint, weight  # (10)
            for at, own in enumerate(_columns(joint, widths[part]), part.start + count):
                if needed[at]:
                    pairs[at] = own.T, by_rows  # (12)
                if needed[at + count]:
                    found[at + count] = column_sums(own)
        for at, gradient in zip(pairs, products(*pairs.values()), strict=True):
            found[at] = gradient
        for x, part in given:
            if (dx := found[part.start]) is not None:
                found[part.start] = dx.reshape(x.shape)
        return tuple(found)


class JoinedHeads(Function):
    """The heads' outputs side by side, projected: equation (4)."""

    @staticmethod
    def forward(ctx: Context, attended: Array, weight: Array, bias: Array | None) -> Array:
        """Return Y (N, L, D_o) for O (N, H, L, M), W (D_o, H M) and b (D_o)."""
        joined = _side_by_side(attended)
        # If the joined heads are a copy, it is kept: making it again took 1 % of a small step.
        ctx.save(joined, weight, attended.shape[1])
        return product(joined, weight.T, bias)

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> tuple[Array, Array | None, Array | None]:
        """Return dO, dW and db."""
        joined, weight, num_heads = ctx.saved
        learned = any(ctx.needs_input_grad[1:])
        by_rows = rows(grad_output)
        of_weight = [(by_rows.T, rows(joined))] if learned else []  # (11)
        joint, *found = products((by_rows, weight), *of_weight)  # (5)
        grad_attended = _split(joint.reshape(joined.shape), num_heads)
        dw, db = (found[0], column_sums(by_rows)) if learned else (None, None)
        return grad_attended, dw, db


def _projected_gradients(grad_output: Array, saved: Saved) -> list[Array]:
    """Return dQ, dK and dV, equations (5) to (9), as `DataGradients.projected`."""
    grad_attended = product(grad_output, saved.weights.out)  # (5)
    grad_heads = _split(grad_attended, saved.output.shape[1])
    known = *saved.heads, saved.output, *saved.sums
    gradients = softmax.backward(grad_heads, *known, **saved.options)  # (6) to (9)
    return [_side_by_side(*gradients[part]) for _, part in _given(saved.inputs)]


def _given(inputs: Sequence[Array | None]) -> list[tuple[Array, slice]]:
    """Return each input that was given, and which of the projections project it."""
    given = [(i, x) for i, x in enumerate(inputs) if x is not None]
    stops = [*(i for i, _ in given[1:]), len(inputs)]
    return [(x, slice(start, stop)) for (start, x), stop in zip(given, stops, strict=True)]


def _project(
    given: list[tuple[Array, slice]],
    weights: Sequence[Array],
    biases: Sequence[Array | None],
    num_heads: int,
) -> tuple[list[Array], list[Array]]:
    """Return all heads (1), contiguous (N, H, L, E), and the matrix that each input met."""
    stacked = [_stacked(weights[part]) for _, part in given]
    terms = (
        (rows(x), w.T, *_stacked_biases(biases[part], weights[part]))
        for (x, part), w in zip(given, stacked, strict=True)
    )
    heads: list[Array] = []
    for (x, part), found in zip(given, products(*terms), strict=True):
        each = _columns(found.reshape(*x.shape[:2], found.shape[1]), list(map(len, weights[part])))
        heads += [array_module(x).ascontiguousarray(_split(own, num_heads)) for own in each]
    return heads, stacked


def _of_weights(gradient: Array, x: Array) -> tuple[Array, Array]:
    """Return dW and db, given the gradient of X W^T + b and X; equations (11) and (12)."""
    by_rows = rows(gradient)
    return product(by_rows.T, rows(x)), column_sums(by_rows)


def _stacked(weights: Sequence[Array]) -> Array:
    """Return weights (..., D) as the one matrix of a joint projection."""
    if len(weights) == 1:
        return weights[0]
    stacked: Array = array_module(weights[0]).concatenate(weights)
    return stacked


def _stacked_biases(biases: Sequence[Array | None], weights: Sequence[Array]) -> Iterator[Array]:
    """Yield the bias (width) of a joint projection, if one of its parts has one."""
    own = [bias for bias in biases if bias is not None]
    if own and len(weights) > 1:
        pairs = zip(biases, weights, strict=True)
        xp = array_module(weights[0])
        own = [xp.concatenate([xp.zeros(len(w), w.dtype) if b is None else b for b, w in pairs])]
    yield from own


def _spans(widths: Iterable[int]) -> Iterator[slice]:
    """Yield where each of several things of these widths lies, side by side."""
    first = 0
    for width in widths:
        yield slice(first, first + width)
        first += width


def _columns(array: Array, widths: Sequence[int]) -> list[Array]:
    """Return views of the parts of an array whose last dimension holds things side by side."""
    return [array] if len(widths) == 1 else [array[..., span] for span in _spans(widths)]


def _split(x: Array, num_heads: int) -> Array:
    """Return (N, L, H E) as a view (N, H, L, E)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def _side_by_side(*arrays: Array) -> Array:
    """Return heads (N, H, L, E) and others (N, H, L, M) as (N, L, H E + H M)."""
    batch, heads, length, width = arrays[0].shape
    if len(arrays) == 1:
        return arrays[0].swapaxes(1, 2).reshape(batch, length, heads * width)
    widths = [heads * array.shape[3] for array in arrays]
    joint: Array = array_module(arrays[0]).empty((batch, length, sum(widths)), arrays[0].dtype)
    for array, span in zip(arrays, _spans(widths), strict=True):
        _split(joint[..., span], heads)[...] = array
    return joint


def _separated(
    name: str, weights: Weights, query: Array, key: Array | None, value: Array | None
) -> Inputs:
    """Return the inputs; one array that holds all three side by side, as its parts."""
    if key is not None or value is not None or not all(x.ndim for x in (query, *weights.of_inputs)):
        return query, key, value  # where an array has no dimensions, `_check_shapes` says so
    widths = [weight.shape[-1] for weight in weights.of_inputs]
    if widths == [query.shape[-1]] * 3:
        return query, key, value
    if query.shape[-1] != sum(widths):
        raise ValueError(
            f"{name}: query alone must be as wide as the three inputs side by side, D_q + D_k + "
            f"D_v = {' + '.join(map(str, widths))}, got {query.shape[-1]}; or give key and value"
        )
    q, k, v = (query[..., span] for span in _spans(widths))
    return q, k, v


def _check_gradient(name: str, grad_output: Array, saved: Saved) -> None:
    """Check that the gradient of an output has its shape."""
    if not isinstance(saved, Saved):
        raise TypeError(f"{name}: saved must be what forward returned, got {type(saved).__name__}")
    batch, _, length, _ = saved.output.shape
    sizes = {"N": batch, "Lq": length, "D_o": len(saved.weights.out)}
    fit(name, [("grad_output", grad_output, "N Lq D_o")], sizes, ("query", saved.output))


def _check_shapes(name: str, weights: Weights, inputs: Inputs, num_heads: int) -> None:
    """Check that inputs and weights fit each other, and the weights the heads."""
    query, key, value = inputs
    length, d_k = ("Lq", "D_q") if key is None else ("Lk", "D_k")
    d_v = d_k if value is None else "D_v"
    layout = {
        "query": (query, "N Lq D_q"),
        "key": (key, f"N {length} {d_k}"),
        "value": (value, f"N {length} {d_v}"),
        "weights.query": (weights.query, "H·E D_q"),
        "weights.key": (weights.key, f"H·E {d_k}"),
        "weights.value": (weights.value, f"H·M {d_v}"),
        "weights.out": (weights.out, "D_o H·M"),
        "weights.query_bias": (weights.query_bias, "H·E"),
        "weights.key_bias": (weights.key_bias, "H·E"),
        "weights.value_bias": (weights.value_bias, "H·M"),
        "weights.out_bias": (weights.out_bias, "D_o"),
    }
    given = {argument: (x, text) for argument, (x, text) in layout.items() if x is not None}
    check_inputs(name, {argument: (Tensor.wrap(x), text) for argument, (x, text) in given.items()})
    for argument, weight in (("weights.query", weights.query), ("weights.value", weights.value)):
        if whole(name, "num_heads", num_heads) < 1 or not len(weight) or len(weight) % num_heads:
            raise ValueError(
                f"{name}: {argument} must have as many rows for each of num_heads={num_heads} "
                f"heads, at least one, got {len(weight)} in all"
            )


def _scale(name: str, alpha: float | None) -> float | None:
    """Return the kernel's factor 1 / α; None leaves it the default."""
    if alpha is None:
        return None
    if not isinstance(alpha, int | float | np.number) or not alpha or math.isnan(alpha):
        raise ValueError(
            f"{name}: alpha divides the scores and must be a number other than 0, got {alpha}; "
            "None is sqrt(E)"
        )
    return 1 / alpha
