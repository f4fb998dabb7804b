"""Local attention."""

from minitransformer_kernels.checks import whole
from minitransformer_kernels.local import Pattern
from minitransformer_kernels.visible import Visible

from ..tensor import Tensor
from .checks import Lengths, check_sequences, dropout_options, finite_scale
from .softmax import SoftmaxAttention, relative_scores


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int,
    causal: bool = False,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    scale: float | None = None,
    relative_embedding: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Softmax attention to the keys near by, and to a few that are seen from everywhere.

    Query i, at position p = i + query_offset, sees key j if |p - j| <= window, if j < num_global,
    or if j is the last of `stride` keys, j mod stride = stride - 1; when causal, of these only j <=
    p. With K keys that are seen from everywhere, L queries cost L (window + K).

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        window: how many keys a query sees beside the one at its own place: before it and, where
            not causal, as many after it.
        causal, query_offset, query_lengths, key_lengths, scale, relative_embedding, dropout, seed:
            as in `softmax_attention`.
        stride: see above, the fixed pattern of Child et al. 2019. None: no such keys.
        num_global: so many first keys are seen from everywhere.
        global_queries: the queries at so many first positions see every key. Equal to `num_global`,
            both are Beltagy et al.'s global tokens.

    Returns:
        (N, H, Lq, M); a query that sees nothing gives zeros.

    Raises:
        TypeError: an input is not floating, or lengths, offset or counts are not whole numbers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Source: Child et al. 2019, section 4.3; Beltagy et al. 2020, section 3.1.

    >>> same_keys = Tensor([[[[1.0, 1.0]] * 4]])
    >>> value = Tensor([[[[1.0], [3.0], [5.0], [7.0]]]])
    >>> local_attention(same_keys, same_keys, value, window=1).tolist()
    [[[[2.0], [3.0], [5.0], [6.0]]]]
    >>> local_attention(same_keys, same_keys, value, window=0, num_global=1, causal=True).tolist()
    [[[[1.0], [2.0], [3.0], [4.0]]]]
    """
    name = "local_attention"
    check_sequences(name, query, key, value)
    pattern = Pattern(
        window=whole(name, "window", window, 0),
        stride=None if stride is None else whole(name, "stride", stride, 1),
        num_global=whole(name, "num_global", num_global, 0),
        global_queries=whole(name, "global_queries", global_queries, 0),
    )
    visible = Visible(causal, query_offset, query_lengths, key_lengths)
    seen = visible.settled(name, query.data, key.data)
    output: Tensor = SoftmaxAttention.apply(
        query,
        key,
        value,
        relative_scores(name, query, relative_embedding, seen.query_lengths),
        pattern=pattern,
        visible=seen,
        scale=finite_scale(name, scale),
        **dropout_options(name, dropout, seed),
    )
    return output
