"""What linear attention and its relatives share: features, and the choice of an algorithm."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer_kernels.feature_maps import FEATURE_MAPS
from minitransformer_kernels.planner import Sizes, choose

from ..device import Array, to_numpy
from ..tensor import Tensor
from .checks import check_algorithm, check_sequences, guard_options, visible_options

ALGORITHMS = ("auto", "naive", "linear", "recurrent", "chunked")

FeatureMap = str | Callable[[Tensor], Tensor]


def prepared(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap,
    algorithm: str,
    guard: str,
    eps: float | None,
    carries: str,
    sums_alone: bool = True,
    **visible: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Check the inputs; return query and key, or their features, and the options of the kernels.

    `sums_alone`: whether the output is a fraction that the size of a query's features cancels in.
    """
    check_sequences(name, query, key, value)
    options = visible_options(name, query, key, **visible) | guard_options(name, guard, eps)
    packed = visible["cu_seqlens"] is not None
    carries = " and ".join([*([carries] if carries else []), *(["cu_seqlens"] if packed else [])])
    check_algorithm(name, algorithm, ALGORITHMS, visible["causal"], carries)
    features: Any = feature_map
    if not is_elementwise(feature_map):
        query, key = row_features(name, feature_map, query, key, options, carries, sums_alone)
        features = "identity"
    return query, key, {**options, "algorithm": algorithm, "feature_map": features}


def attend(
    function: Any,
    inputs: tuple[Tensor, ...],
    initial_state: Any,
    return_state: bool,
    options: dict[str, Any],
    **positions: Any,
) -> Any:
    """Apply a function with states to inputs that are in order, by the algorithm chosen for them.

    Args:
        function: a `KernelizedAttention`.
        inputs: its Tensors, query, key and value first.
        initial_state: its state, or None.
        return_state: whether to return the state after the last key too.
        options: its keywords; "algorithm" may be "auto".
        positions: what the planner has to know of positions, see `Sizes`.

    Returns:
        (N, H, Lq, M); with `return_state` that and the state.
    """
    options["algorithm"] = _algorithm(
        options, return_state or initial_state is not None, *inputs[:3], **positions
    )
    no_state = (None,) * len(function.state._fields)
    result = function.apply(*inputs, *(initial_state or no_state), **options)
    output, *arrays = result if isinstance(result, tuple) else (result,)
    return (output, state_of(function, arrays)) if return_state else output


def state_of(function: Any, arrays: list[Tensor]) -> Any:
    """Return the state of these arrays; whole numbers among them are no part of the tape."""
    return function.state(*(Tensor(x.data) if x.dtype.kind in "iu" else x for x in arrays))


def _algorithm(
    options: dict[str, Any],
    stateful: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **positions: Any,
) -> str:
    """Return the algorithm that was asked for, or let the planner choose."""
    algorithm: str = options["algorithm"]
    if algorithm not in ("auto", "linear"):
        return algorithm
    boundaries = options.get("cu_seqlens")
    count = query.shape[0] if boundaries is None else len(boundaries) - 1
    packed = 1 if boundaries is None else count
    sizes = Sizes(
        queries=query.shape[2] // packed,
        keys=key.shape[2] // packed,
        head_dim=key.shape[3],
        value_dim=value.shape[3],
        causal=options["causal"],
        query_offset=options["query_offset"],
        batch=count,
        heads=key.shape[1],
        itemsize=key.dtype.itemsize,
        **positions,
    )
    no_naive = stateful or boundaries is not None or algorithm == "linear"
    return choose(sizes, stateful=no_naive)


def sequences(key: Tensor, cu_seqlens: Any) -> int:
    """Return N, which packed sequences do not show in their shape."""
    return key.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1


def is_elementwise(feature_map: FeatureMap) -> bool:
    """Return whether kernels apply the map to each number as they read it."""
    return isinstance(feature_map, str) and feature_map in FEATURE_MAPS


def token_features(
    name: str,
    feature_map: FeatureMap,
    query: Tensor,
    key: Tensor,
    guard: str,
    sums_alone: bool = True,
) -> tuple[Tensor, Tensor, str]:
    """Return the features of one token (N, H, E), or leave them to the kernel."""
    if is_elementwise(feature_map):
        return query, key, str(feature_map)
    rows = query[:, :, None], key[:, :, None]
    options = {"query_offset": 0, "guard": guard}
    q, k = row_features(name, feature_map, *rows, options, "a state", sums_alone)
    return q[:, :, 0], k[:, :, 0], "identity"


def row_features(
    name: str,
    feature_map: FeatureMap,
    query: Tensor,
    key: Tensor,
    options: dict[str, Any],
    carries: str,
    sums_alone: bool,
) -> tuple[Tensor, Tensor]:
    """Return the features of query and key by a map of whole rows."""
    # Feature maps may be modules, and modules attend: at the top this import would be a circle.
    from ..features import apply_feature_map, has_positions

    if "state" in carries and has_positions(feature_map):
        raise ValueError(
            f"{name}: the features of {feature_map!r} depend on positions, which a state does not "
            "know; use fourier_linear_attention, which is told them"
        )
    first_query: Any = options["query_offset"]
    first_key: Any = 0
    if (starts := options.get("cu_seqlens")) is not None:
        first_query = first_key = _positions_in_sequences(starts)
    scalable = sums_alone and options["guard"] != "add"
    return (
        apply_feature_map(name, feature_map, query, first_query, query=scalable),
        apply_feature_map(name, feature_map, key, first_key),
    )


def _positions_in_sequences(starts: Array) -> Array:
    """Return (T,) integers, the place of each packed row in its sequence."""
    starts = to_numpy(starts)
    places: Array = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
    return places
