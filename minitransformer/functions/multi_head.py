"""Multi-head attention as one differentiable function: the three passes of `multi_head`."""

from __future__ import annotations

from typing import Any

from .. import multi_head
from ..device import Array
from ..function import Context, Function


class MultiHeadAttention(Function):
    """softmax(Q_h K_h^T / α) V_h between its projections, of all heads h."""

    @staticmethod
    def forward(
        ctx: Context,
        query: Array,
        key: Array | None,
        value: Array | None,
        *weights: Any,
        **options: Any,
    ) -> Array:
        """Return the output (N, Lq, D_o); the weights come in the order of `Weights`."""
        output, saved = multi_head.forward(
            multi_head.Weights(*weights), query, key, value, **options
        )
        ctx.save(saved)
        return output

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> tuple[Array | None, ...]:
        """Return the gradients of inputs and weights, by the passes that somebody asks for."""
        (saved,) = ctx.saved
        data: Any = (None,) * 3
        weights: Any = (None,) * len(multi_head.Weights._fields)
        projected = None
        if any(ctx.needs_input_grad[:3]):
            *data, projected = multi_head.backward_data(grad_output, saved)
        if any(ctx.needs_input_grad[3:]):
            weights = multi_head.backward_weights(grad_output, saved, projected)
        return *data, *weights
