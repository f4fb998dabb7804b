"""Feature maps of whole rows as differentiable functions, on the kernels of `features`.

The objects that users call are in `minitransformer.features`.
"""

from typing import Any

from minitransformer_kernels import features

from ..device import Array
from ..function import Context, Function


class FavorFeatures(Function):
    """exp(s W x - l): positive random features of the softmax kernel."""

    @staticmethod
    def forward(ctx: Context, x: Array, projection: Array, *, normalised: bool) -> Array:
        """Return phi (N, H, L, R) for x (N, H, L, E) and the projection W (R, E)."""
        phi = features.favor_forward(x, projection, normalised=normalised)
        # Each slope is a multiple of its feature: kept, nothing is exponentiated again.
        ctx.save(x, projection, phi, normalised)
        return phi

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> tuple[Array, Array | None]:
        """Return dx, and dW where the projection is learned."""
        *saved, normalised = ctx.saved
        return features.favor_backward(
            gradient,
            *saved,
            normalised=normalised,
            projection_needs_gradient=ctx.needs_input_grad[1],
        )


class DPFPFeatures(Function):
    """Products of rectified neighbours."""

    @staticmethod
    def forward(ctx: Context, x: Array, *, nu: int) -> Array:
        """Return phi (N, H, L, 2 E nu) for x (N, H, L, E)."""
        ctx.save(x, nu)
        return features.dpfp_forward(x, nu=nu)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        """Return dx."""
        x, nu = ctx.saved
        return features.dpfp_backward(gradient, x, nu=nu)


class CosFormerFeatures(Function):
    """Rectified rows times the cosine and the sine of their positions."""

    @staticmethod
    def forward(ctx: Context, x: Array, *, positions: Any, longest: int) -> Array:
        """Return phi (N, H, L, 2 E) for x (N, H, L, E) and positions (L,)."""
        ctx.save(x, positions, longest)
        return features.cosformer_forward(x, positions, longest=longest)

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        """Return dx."""
        x, positions, longest = ctx.saved
        return features.cosformer_backward(gradient, x, positions, longest=longest)
