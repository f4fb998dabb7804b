"""Linear attention by any of its algorithms: one door to four files.

    algorithm    file            direction            time of a sequence     states
    naive        linear.py       both                 Lq Lk (E + M)          none
    linear       linear.py       bidirectional        (Lq + Lk) E M          none
    recurrent    recurrent.py    causal               (Lq + Lk) E M          in, out, gradients
    chunked      chunked.py      causal               (Lq + Lk) E M          in, out, gradients

Relative and Fourier attention build on this door. They ask for the numerators and denominators,
n_i = sum_j a_ij v_j and d_i = sum_j a_ij (guard "none"), and hand back their gradients:

    n, d, state        = forward(..., guard="none")
    dq, dk, dv, dstate = gradients(gn, gd, grad_state, ...)

Features may be wider than a kernel's 256 columns. A product of features is a sum over features, so
with groups G of them

    a_ij = sum_G q_iG . k_jG      n_i = sum_G n_iG      d_i = sum_G d_iG                       (1)

and each group is an attention of its own; the gradients of q and k lie side by side, those of v
add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import chunked, linear, recurrent
from .arrays import HEAD_DIMS, Array, array_module, ceil_div
from .guards import divided, normaliser_gradients
from .recurrent import LinearState

step = recurrent.step  # of one token, whatever read the tokens before

Gradients = tuple[Array, Array, Array, LinearState | None]

WIDEST = HEAD_DIMS[-1]
LENGTHS = "query_lengths", "key_lengths"
CAUSAL = (*LENGTHS, "query_offset", "cu_seqlens", "initial_state")


class _Algorithm(NamedTuple):
    """Host functions, and those of the keywords of `forward` that they take."""

    forward: Callable[..., Any]
    gradients: Callable[..., Any]
    keywords: tuple[str, ...]

    def options(self, visible: dict[str, Any]) -> dict[str, Any]:
        """Those keywords that these host functions take.

        Raises:
            TypeError: there is no such keyword.
            ValueError: it asks for what the algorithm cannot do.
        """
        for name, x in visible.items():
            if name not in (*CAUSAL, "causal"):
                raise TypeError(f"expected keywords of {(*CAUSAL, 'causal')}, got {name!r}")
            needs_causal = name in ("cu_seqlens", "initial_state") and x is not None
            if needs_causal and name not in self.keywords:
                raise ValueError(
                    f"{name} needs a causal algorithm, 'recurrent' or 'chunked', which "
                    f"{self.forward.__module__}.{self.forward.__name__} is not"
                )
        return {name: visible[name] for name in self.keywords if name in visible}


ALGORITHMS = {
    "naive": _Algorithm(
        linear.naive_forward, linear.naive_gradients, (*LENGTHS, "causal", "query_offset")
    ),
    "linear": _Algorithm(linear.forward, linear.gradients, LENGTHS),
    "recurrent": _Algorithm(recurrent.forward, recurrent.gradients, CAUSAL),
    "chunked": _Algorithm(chunked.forward, chunked.gradients, CAUSAL),
}


def forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    algorithm: str,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
    **visible: Any,
) -> tuple[Array, Array, LinearState | None]:
    """Linear attention.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        algorithm: "naive", "linear" (not causal), "recurrent" or "chunked" (both causal).
        feature_map: a name of `feature_maps`; for E above 256 "identity".
        guard: "clamp", "add", "signed", or "none" for the numerators themselves.
        eps: the guard's size; None for its default.
        visible: what a query sees; the algorithm takes those of these that it knows:
            causal: whether query i sees only the keys j <= i + query_offset.
            query_offset: the position of the first query among the keys.
            query_lengths: (N,) integers; later rows of the output are zero. None: all count.
            key_lengths: (N,) integers; later keys are not seen. None: all count.
            cu_seqlens: (N + 1,) integers, for packed sequences, see `recurrent.forward`.
            initial_state: what causal sequences continue from.

    Returns:
        The output (N, H, Lq, M), the denominators (N, H, Lq), and the state after the last key,
        None where the algorithm has none.
    """
    chosen = ALGORITHMS[algorithm]
    if query.shape[3] <= WIDEST:
        options = {"feature_map": feature_map, "guard": guard, "eps": eps}
        output, denominator, *state = chosen.forward(
            query, key, value, **options, **chosen.options(visible)
        )
        return output, denominator, state[0] if state else None
    parts = [
        forward(
            q, k, value, algorithm=algorithm, feature_map=feature_map, guard="none",
            **{**visible, "initial_state": state},
        )
        for q, k, state in _groups(query, key, visible.get("initial_state"))
    ]  # fmt: skip
    numerators, denominators, states = zip(*parts, strict=True)
    output = divided(sum(numerators), sum(denominators), guard=guard, eps=eps)  # (1)
    return output, sum(denominators), _joined(states)


def backward(
    grad_output: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    denominator: Array,
    *,
    algorithm: str,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
    **visible: Any,
) -> Gradients:
    """The gradients of `forward`.

    Args:
        grad_output: (N, H, Lq, M), the gradient of the output.
        grad_state: the gradient of the final state, or None.
        query: this and all the rest as `forward` took and returned it.
        key: as there.
        value: as there.
        output: as there.
        denominator: as there.
        algorithm: as there.
        feature_map: as there.
        guard: as there.
        eps: as there.
        visible: as there.

    Returns:
        The gradients of query, key, value, and of the initial state or None.
    """
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key.shape[2], guard=guard, eps=eps, **visible
    )
    options = {"algorithm": algorithm, "feature_map": feature_map, **visible}
    return gradients(gn, gd, grad_state, query, key, value, **options)


def gradients(
    gn: Array,
    gd: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    *,
    algorithm: str,
    feature_map: str = "elu",
    **visible: Any,
) -> Gradients:
    """The gradients of the numerators and denominators of `forward`.

    Args:
        gn: (N, H, Lq, M), the gradient of the numerators, see `guards.normaliser_gradients`.
        gd: (N, H, Lq), the gradient of the denominators.
        grad_state: the gradient of the final state, or None.
        query: this and all the rest as in `forward`.
        key: as there.
        value: as there.
        algorithm: as there.
        feature_map: as there.
        visible: as there.

    Returns:
        The gradients of query, key, value, and of the initial state or None.
    """
    chosen = ALGORITHMS[algorithm]
    if query.shape[3] <= WIDEST:
        takes_state = "initial_state" in chosen.keywords
        arrays = (gn, gd, *([grad_state] if takes_state else []), query, key, value)
        dq, dk, dv, *dstate = chosen.gradients(
            *arrays, feature_map=feature_map, **chosen.options(visible)
        )
        return dq, dk, dv, dstate[0] if dstate else None
    starts = _groups(query, key, visible.get("initial_state"))
    parts = [
        gradients(
            gn, gd, end, q, k, value, algorithm=algorithm, feature_map=feature_map,
            **{**visible, "initial_state": start},
        )
        for (q, k, start), (_, _, end) in zip(starts, _groups(query, key, grad_state), strict=True)
    ]  # fmt: skip
    xp = array_module(query)
    dq, dk, dv, dstates = zip(*parts, strict=True)
    return xp.concatenate(dq, axis=3), xp.concatenate(dk, axis=3), sum(dv), _joined(dstates)


def _groups(
    query: Array, key: Array, state: LinearState | None
) -> Iterator[tuple[Array, Array, LinearState | None]]:
    """Query, key and state in groups of features that kernels can hold."""
    features = query.shape[3]
    width = ceil_div(features, ceil_div(features, WIDEST))
    for first in range(0, features, width):
        group = slice(first, first + width)
        part = None if state is None else LinearState(state.S[:, :, group], state.Z[:, :, group])
        yield query[..., group], key[..., group], part


def _joined(states: tuple[LinearState | None, ...]) -> LinearState | None:
    """The states of all groups as one."""
    if states[0] is None:
        return None
    xp = array_module(states[0].S)
    return LinearState(*(xp.concatenate(part, axis=2) for part in zip(*states, strict=True)))
