"""Linear attention by any of its algorithms: one door to three rooms.

    algorithm    room         direction            time of a sequence     states
    naive        linear       both                 Lq Lk (E + M)          none
    linear       linear       bidirectional        (Lq + Lk) E M          none
    recurrent    recurrent    causal               (Lq + Lk) E M          in, out, gradients
    chunked      chunked      causal               (Lq + Lk) E M          in, out, gradients

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

from collections.abc import Callable
from typing import Any, NamedTuple

from . import chunked, linear, recurrent
from .arrays import HEAD_DIMS, Array, array_module, ceil_div, chosen
from .checks import QKV, host
from .guards import divided, normaliser_gradients
from .recurrent import STATE, LinearState
from .visible import EVERYTHING, Visible

step = recurrent.step  # of one token, whatever read the tokens before

Gradients = tuple[Array, Array, Array, LinearState | None]

WIDEST = HEAD_DIMS[-1]


class _Algorithm(NamedTuple):
    """Host functions, and whether they take and return states."""

    forward: Callable[..., Any]
    gradients: Callable[..., Any]
    has_states: bool

    def state(self, **state: LinearState | None) -> dict[str, LinearState | None]:
        """A state as a keyword, where there is one to take.

        Raises:
            ValueError: there is none, and one is given.
        """
        if self.has_states:
            return state
        for name, given in state.items():
            if given is not None:
                raise ValueError(f"{name} needs a causal algorithm, 'recurrent' or 'chunked'")
        return {}


ALGORITHMS = {
    "naive": _Algorithm(linear.naive_forward, linear.naive_gradients, False),
    "linear": _Algorithm(linear.forward, linear.gradients, False),
    "recurrent": _Algorithm(recurrent.forward, recurrent.gradients, True),
    "chunked": _Algorithm(chunked.forward, chunked.gradients, True),
}


@host(**QKV, initial_state=STATE)
def forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    algorithm: str,
    feature_map: str = "elu",
    guard: str = "clamp",
    eps: float | None = None,
    initial_state: LinearState | None = None,
    version: str = "fast",
) -> tuple[Array, Array, LinearState | None]:
    """Linear attention.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E).
        value: (N, H, Lk, M).
        visible: who sees whom.
        algorithm: "naive", "linear" (not causal), "recurrent" or "chunked" (both causal).
        feature_map: a name of `feature_maps`; for E above 256 "identity".
        guard: "clamp", "add", "signed", or "none" for the numerators themselves.
        eps: the guard's size; None for its default.
        initial_state: what causal sequences continue from.
        version: "fast", or "plain" for the kernels of `plain`.

    Returns:
        The output (N, H, Lq, M), the denominators (N, H, Lq), and the state after the last key,
        None where the algorithm has none.

    Raises:
        ValueError: the algorithm cannot do what is asked, or a choice is unknown.
    """
    rooms = chosen("algorithm", algorithm, ALGORITHMS)
    options: dict[str, Any] = {"feature_map": feature_map, "guard": guard, "version": version}
    if query.shape[3] <= WIDEST:
        options |= {"eps": eps, **rooms.state(initial_state=initial_state)}
        output, denominator, *state = rooms.forward(query, key, value, visible, **options)
        return output, denominator, state[0] if state else None
    options |= {"algorithm": algorithm, "guard": "none"}
    parts = [
        forward(
            query[..., group], key[..., group], value, visible,
            initial_state=_rows(initial_state, group), **options,
        )
        for group in _groups(query)
    ]  # fmt: skip
    numerators, denominators, states = zip(*parts, strict=True)
    output = divided(sum(numerators), sum(denominators), guard=guard, eps=eps)  # (1)
    return output, sum(denominators), _joined(states)


@host(
    **QKV, grad_output="N H Lq M", output="N H Lq M", denominator="N H Lq",
    initial_state=STATE, grad_state=STATE,
)  # fmt: skip
def backward(
    grad_output: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    denominator: Array,
    visible: Visible = EVERYTHING,
    *,
    guard: str = "clamp",
    eps: float | None = None,
    initial_state: LinearState | None = None,
    **options: Any,
) -> Gradients:
    """The gradients of `forward`.

    Args:
        grad_output: (N, H, Lq, M), the gradient of the output.
        grad_state: the gradient of the final state, or None.
        query: this and all the rest as `forward` took and returned it.

    Returns:
        The gradients of query, key, value, and of the initial state or None.

    Raises:
        ValueError: the algorithm cannot do what is asked, or a choice is unknown.
    """
    gn, gd = normaliser_gradients(
        grad_output, output, denominator, key, visible,
        initial_state=initial_state, guard=guard, eps=eps,
    )  # fmt: skip
    return gradients(
        gn, gd, grad_state, query, key, value, visible, initial_state=initial_state, **options
    )


@host(**QKV, gn="N H Lq M", gd="N H Lq", initial_state=STATE, grad_state=STATE)
def gradients(
    gn: Array,
    gd: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = EVERYTHING,
    *,
    algorithm: str,
    feature_map: str = "elu",
    initial_state: LinearState | None = None,
    version: str = "fast",
) -> Gradients:
    """The gradients of the numerators and denominators of `forward`.

    Args:
        gn: (N, H, Lq, M), the gradient of the numerators, see `guards.normaliser_gradients`.
        gd: (N, H, Lq), the gradient of the denominators.
        grad_state: the gradient of the final state, or None.
        query: this and all the rest as in `forward`.

    Returns:
        The gradients of query, key, value, and of the initial state or None.

    Raises:
        ValueError: the algorithm cannot do what is asked, or a choice is unknown.
    """
    rooms = chosen("algorithm", algorithm, ALGORITHMS)
    options: dict[str, Any] = {"feature_map": feature_map, "version": version}
    if query.shape[3] <= WIDEST:
        ends = rooms.state(grad_state=grad_state).values()
        options |= rooms.state(initial_state=initial_state)
        dq, dk, dv, *dstate = rooms.gradients(gn, gd, *ends, query, key, value, visible, **options)
        return dq, dk, dv, dstate[0] if dstate else None
    options["algorithm"] = algorithm
    parts = [
        gradients(
            gn, gd, _rows(grad_state, group), query[..., group], key[..., group], value, visible,
            initial_state=_rows(initial_state, group), **options,
        )
        for group in _groups(query)
    ]  # fmt: skip
    xp = array_module(query)
    dq, dk, dv, dstates = zip(*parts, strict=True)
    return xp.concatenate(dq, axis=3), xp.concatenate(dk, axis=3), sum(dv), _joined(dstates)


def _groups(query: Array) -> list[slice]:
    """Groups of features that kernels can hold."""
    features = query.shape[3]
    width = ceil_div(features, ceil_div(features, WIDEST))
    return [slice(first, first + width) for first in range(0, features, width)]


def _rows(state: LinearState | None, group: slice) -> LinearState | None:
    """The part of a state that a group of features makes."""
    return None if state is None else LinearState(*(part[:, :, group] for part in state))


def _joined(states: tuple[LinearState | None, ...]) -> LinearState | None:
    """The states of all groups as one."""
    if states[0] is None:
        return None
    xp = array_module(states[0].S)
    return LinearState(*(xp.concatenate(part, axis=2) for part in zip(*states, strict=True)))
