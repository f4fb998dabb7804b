"""Softmax attention."""

from typing import Any

from minitransformer_kernels import softmax
from minitransformer_kernels.checks import trusted
from minitransformer_kernels.visible import Visible

from ..device import Array
from ..function import Context, Function
from ..tensor import Tensor
from .checks import (
    Lengths,
    check_embedding,
    check_sequences,
    dropout_options,
    finite_scale,
    without_padding,
)


class SoftmaxAttention(Function):
    """softmax(scale (Q K^T + B)) V, where B, the relative scores, may be None.

    The options are those of the kernels; with a pattern it is local attention.
    """

    @staticmethod
    def forward(
        ctx: Context,
        query: Array,
        key: Array,
        value: Array,
        relative_scores: Array | None = None,
        **options: Any,
    ) -> Array:
        """Return the output (N, H, Lq, M)."""
        options["relative_scores"] = relative_scores
        # Generation asks for one query after the other, and for no gradient.
        if not any(ctx.needs_input_grad) and softmax.few.serves(query, **options):
            return trusted(softmax.forward)(query, key, value, version="few", **options)[0]
        output, *sums = trusted(softmax.forward)(query, key, value, **options)
        # The scores are recomputed tile by tile: they are quadratic, and two numbers a row, its
        # maximum and its sum of exponentials, turn them back into weights. The output gives
        # delta_i = g_i . o_i. Which weights were dropped follows from the seed among the options.
        ctx.save(query, key, value, output, *sums, options)
        return output

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> tuple[Array | None, ...]:
        """Return dQ, dK, dV and dB."""
        *saved, options = ctx.saved
        gradients = *trusted(softmax.backward)(grad_output, *saved, **options), None
        return gradients[: len(ctx.needs_input_grad)]


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    scale: float | None = None,
    relative_embedding: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Average the values, each weighted by the softmax of its key's product with the query.

        o_i = sum_j p_ij v_j        p_ij = exp(scale q_i . k_j) / sum_t exp(scale q_i . k_t)

    With a relative embedding, q_i . (k_j + e_r) takes the place of q_i . k_j, where the distance r
    is clip(j - (i + query_offset), -k, k). With dropout, each p_ij is then set to zero with that
    probability, and divided by 1 - dropout where it is not.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        causal: whether query i sees only the keys j <= i + query_offset.
        query_offset: the position of the first query among the keys.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys are not seen. None: all count.
        scale: factor of the scores; 1 / sqrt(E) by default.
        relative_embedding: (H, 2k + 1, E); row r + k is e_r. None: no relative positions. Their
            scores take (N, H, Lq, 2k + 1) numbers in memory.
        dropout: the probability, in [0, 1), that a weight is dropped.
        seed: what decides which weights are, a whole number from 0 to 2^63 - 1: the same one drops
            the same weights, on every device. None: drawn from `minitransformer.random`.

    Returns:
        (N, H, Lq, M).

    Raises:
        TypeError: an input is not floating, or lengths, offset or seed are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a number is out of its range.

    Source: Vaswani et al. 2017, equation (1); S3. Relative positions: Shaw et al. 2018, equation
    (4). Dropout: Srivastava et al. 2014.

    >>> same_keys = Tensor([[[[1.0, 1.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> softmax_attention(same_keys, same_keys, value).tolist()
    [[[[6.0], [6.0], [6.0]]]]
    >>> softmax_attention(same_keys, same_keys, value, causal=True).tolist()
    [[[[3.0], [4.5], [6.0]]]]
    >>> only_the_next = Tensor([[[0.0, 0.0], [0.0, 0.0], [99.0, 99.0]]])
    >>> softmax_attention(same_keys, same_keys, value, relative_embedding=only_the_next).tolist()
    [[[[7.5], [9.0], [6.0]]]]
    """
    name = "softmax_attention"
    check_sequences(name, query, key, value)
    visible = Visible(causal, query_offset, query_lengths, key_lengths)
    seen = visible.settled(name, query.data, key.data)
    output: Tensor = SoftmaxAttention.apply(
        query,
        key,
        value,
        relative_scores(name, query, relative_embedding, seen.query_lengths),
        visible=seen,
        scale=finite_scale(name, scale),
        **dropout_options(name, dropout, seed),
    )
    return output


def relative_scores(
    function: str, query: Tensor, relative_embedding: Tensor | None, query_lengths: Any
) -> Tensor | None:
    """Return q_i . e_r of all distances (N, H, Lq, 2k + 1), if there are embeddings of them."""
    if relative_embedding is None:
        return None
    check_embedding(function, query, relative_embedding)
    return without_padding(query, query_lengths) @ relative_embedding.transpose(1, 2)
