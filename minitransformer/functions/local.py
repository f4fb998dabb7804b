"""Local attention as a differentiable function; `minitransformer.attention.local` explains it."""

from typing import Any

from minitransformer_kernels import local

from ..device import Array
from ..function import Context, Function


class LocalAttention(Function):
    """softmax(scale Q K^T) V over the keys near each query."""

    @staticmethod
    def forward(ctx: Context, query: Array, key: Array, value: Array, **options: Any) -> Array:
        """Return the output (N, H, Lq, M)."""
        output, log_sum_exp = local.forward(query, key, value, **options)
        # As for `SoftmaxAttention`: scores are made again, and these two turn them into gradients.
        ctx.save(query, key, value, output, log_sum_exp, options)
        return output

    @staticmethod
    def backward(ctx: Context, grad_output: Array) -> tuple[Array, ...]:
        """Return dQ, dK, dV."""
        *saved, options = ctx.saved
        return local.backward(grad_output, *saved, **options)
