r"""Causal linear attention in chunks: a recurrence from chunk to chunk, matrix products inside.

With features q_i = phi(Q_i) and k_j = phi(K_j), `recurrent` updates a state at every token,

    S_i = S_{i-1} + k_i v_i^T        Z_i = Z_{i-1} + k_i        n_i = S_i^T q_i

which touches all E x M numbers of S for a single token. Cut the sequence into chunks of C tokens
instead, and let S and Z be the state before a chunk. Token i of the chunk has added the keys up to
its own to it:

    S_i = S + sum_{j <= i} k_j v_j^T                                                           (1)
    n_i = S_i^T q_i = S^T q_i + sum_{j <= i} (q_i . k_j) v_j                                   (2)

with j in the chunk. So the state need only be known where chunks begin. With the rows of a chunk
as matrices Q, K (C x E) and V (C x M), and tril for "0 where j > i",

    A  = tril(Q K^T)                                                                           (3)
    N  = Q S + A V                           d  = Q Z + A 1                                    (4)
    S' = S + K^T V                           Z' = Z + K^T 1                                    (5)
    o_i = n_i / guard(d_i)                                                                     (6)

(Hua et al. 2022; Sun et al. 2023; Yang et al. 2024, "Gated linear attention transformers"). C = 1
is the recurrence, C >= L the masked quadratic form of `linear`. All chunk sizes give the same
result; they differ in cost:

                               recurrence      chunks              quadratic form
    steps, one by one          L               L / C               1
    multiplications, a token   2 E M           2 E M + C (E + M)   L (E + M)
    passes over S              L               L / C               none

The multiplications that chunks add are few while C is small beside E and M. What they buy: a number
of S, once read, serves C tokens, and so do barriers. A core of a CPU has no barriers, and keeps S
in its nearest cache unless E M is large: it gains less.

Backward, given gn_i = dLoss/dn_i and gd_i = dLoss/dd_i from `normaliser_gradients`, `recurrent`
finds that dq, dk and dv are one sum with different actors,

    y_i = sum_{j <= i} (A_i . B_j + a_i b_j) C_j                                               (7)

               A    B    C    a    b    order      X_0     x_0     X_L      x_L
        dq     gn   v    k    gd   1    forward    S_0^T   Z_0
        dk     v    gn   q    1    gd   reverse    dS_L^T  dZ_L            dZ_0
        dv     k    q    gn   0    0    reverse    dS_L            dS_0

and it is cut into chunks by the same step:

    W  = tril(A B^T + a b^T)                                                                   (8)
    Y  = A X + a x^T + W C                                                                     (9)
    X' = X + B^T C                           x' = x + C^T b                                   (10)

Positions. Query i sees keys up to i + query_offset, so a chunk is a range of positions p: the keys
p and the queries p - query_offset; rows that do not exist are zeros. In reverse both sequences are
read from their ends.
"""

from __future__ import annotations

from functools import partial

from ..arrays import Array, version_of
from ..checks import QKV, host, whole
from ..recurrent import STATE, LinearState, scans, walked
from ..visible import CAUSAL, Visible
from . import fast, plain


@host(**QKV, initial_state=STATE)
def forward(
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = CAUSAL,
    *,
    feature_map: str = "elu",
    initial_state: LinearState | None = None,
    guard: str = "clamp",
    eps: float | None = None,
    chunk_size: int | None = None,
    version: str = "fast",
) -> tuple[Array, Array, LinearState]:
    """Causal linear attention, equations (3)-(6): time O(L (E M + C (E + M))).

    Args and returns are those of `recurrent.forward`, and so are errors, but for

    Args:
        chunk_size: C, any number of tokens from 1 up; None for the fastest.

    Raises:
        ValueError: the chunk size is below 1.

    Source: Hua et al. 2022, section 3.2; Yang et al. 2024, equations 2 and 3.

    Example: whatever the chunks, the means of the values so far.
        >>> import numpy as np
        >>> keys, values = np.ones((1, 1, 3, 1)), np.array([3.0, 6.0, 9.0]).reshape(1, 1, 3, 1)
        >>> forward(keys, keys, values, chunk_size=2)[0].ravel().tolist()
        [3.0, 4.5, 6.0]
    """
    chunk = _chunk(chunk_size, query, key)
    walk = partial(version_of(version, fast=fast, plain=plain).forward, chunk)
    return walked(walk, query, key, value, visible, feature_map, initial_state, guard, eps)


@host(**QKV, gn="N H Lq M", gd="N H Lq", initial_state=STATE, grad_state=STATE)
def gradients(
    gn: Array,
    gd: Array,
    grad_state: LinearState | None,
    query: Array,
    key: Array,
    value: Array,
    visible: Visible = CAUSAL,
    *,
    feature_map: str = "elu",
    initial_state: LinearState | None = None,
    chunk_size: int | None = None,
    of_value: bool = True,
    version: str = "fast",
) -> tuple[Array, Array, Array | None, LinearState | None]:
    """The gradients of the numerators and denominators, equations (7)-(10).

    Args and returns are those of `recurrent.gradients`, and `chunk_size`, as `forward` took it.
    """
    chunk, states = _chunk(chunk_size, query, key), (initial_state, grad_state)
    scan = partial(version_of(version, fast=fast, plain=plain).scan, chunk)
    return scans(scan, gn, gd, query, key, value, visible, feature_map, *states, of_value)


def _chunk(chunk_size: int | None, query: Array, key: Array) -> int:
    """How many tokens a chunk has: no more than there are positions to walk."""
    if chunk_size is None:
        return fast.TILE
    positions = max(1, query.shape[2] + key.shape[2])
    return min(whole("chunked", "chunk_size", chunk_size, 1), positions)
