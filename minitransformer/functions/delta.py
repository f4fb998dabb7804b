"""The delta rule as differentiable functions; `minitransformer.attention.delta` explains them."""

from typing import Any

from minitransformer_kernels import delta, normalised
from minitransformer_kernels.delta import DeltaState

from ..device import Array
from ..function import Context, Function
from .attention import KernelizedAttention, TokenStep


class DeltaAttention(KernelizedAttention):
    """W_t^T q_t with W_t = W_{t-1} + beta_t k_t (v_t - W_{t-1}^T k_t)^T."""

    kernels = delta
    state = DeltaState


class DeltaAttentionStep(TokenStep):
    """One token of `DeltaAttention`."""

    sequence = DeltaAttention
    axes = (2, 2, 2, 2)


class NormalizedFeatures(Function):
    """φ(x) over its sum or its length, row by row."""

    @staticmethod
    def forward(ctx: Context, x: Array, **options: Any) -> Array:
        """Return the features, of the shape of x."""
        features, inverse = normalised.forward(x, **options)
        # Slopes are those of x; what a row was divided by is one number, and is not summed again.
        ctx.save(x, features, inverse, options)
        return features

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        """Return dx."""
        *saved, options = ctx.saved
        return normalised.backward(gradient, *saved, **options)
