"""Feature maps of whole rows, by name, as an object, or your own.

    linear_attention(query, key, value, feature_map="favor")                      # by name
    linear_attention(query, key, value, feature_map=nn.DPFP(nu=2))                # an object
    linear_attention(query, key, value, feature_map=lambda x: F.relu(x) + 0.1)    # your own

| name    | features of a row of E numbers             | source                  |
|---------|--------------------------------------------|-------------------------|
| "favor" | R random ones, products near exp(q.k / √E) | Choromanski et al. 2021 |
| "dpfp"  | 2 E nu products of neighbours              | Schlag et al. 2021      |

The equations are in `minitransformer_kernels.features`. "elu", "relu", "softplus" and "exp" take
each number by itself: kernels apply them as they read, and nothing here is needed.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minitransformer_kernels import features
from minitransformer_kernels.arrays import constant
from minitransformer_kernels.feature_maps import FEATURE_MAPS

from ..device import Array
from ..function import Context, Function
from ..tensor import Tensor

FeatureMap = str | Callable[[Tensor], Tensor]

MOST_FEATURES = 256  # of "favor" where nobody says how many; more are possible


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


def favor_features(x: Tensor, projection: Any, *, scaled: bool = False) -> Tensor:
    """Return FAVOR+'s features, whose products estimate exp(q.k / sqrt(E)).

    Args:
        x: (N, H, L, E), float32 or float64.
        projection: W (R, E), a Tensor or array of that dtype.
        scaled: whether each row may be multiplied by a number of its own, so that none underflows.

    Returns:
        (N, H, L, R).

    Raises:
        ValueError: x has another shape than the projection can take.
    """
    _check_rows("Favor", x)
    if x.shape[3] != projection.shape[1]:
        raise ValueError(
            f"Favor: x must have rows of head_dim={projection.shape[1]}, got {x.shape}; "
            f"build Favor(head_dim={x.shape[3]})"
        )
    phi: Tensor = FavorFeatures.apply(x, projection, normalised=scaled)
    return phi


def dpfp_features(x: Tensor, nu: int = 1) -> Tensor:
    """Return products of neighbours in [relu(x), relu(-x)].

    Args:
        x: (N, H, L, E), float32 or float64.
        nu: how many neighbours each number is multiplied by.

    Returns:
        (N, H, L, 2 E nu).

    Raises:
        ValueError: x has another shape, or nu is not below 2 E.
    """
    _check_rows("DPFP", x)
    if nu >= 2 * x.shape[3]:
        raise ValueError(
            f"DPFP: nu must be below 2 E = {2 * x.shape[3]}, where neighbours come round again, "
            f"got {nu}"
        )
    phi: Tensor = DPFPFeatures.apply(x, nu=nu)
    return phi


ROW_MAPS: dict[str, Callable[..., Tensor]] = {
    "favor": lambda x, scaled: favor_features(x, _shared_projection(x), scaled=scaled),
    "dpfp": lambda x, scaled: dpfp_features(x),
}


def is_elementwise(feature_map: FeatureMap) -> bool:
    """Return whether kernels apply the map to each number as they read it."""
    return isinstance(feature_map, str) and feature_map in FEATURE_MAPS


def row_features(
    function: str, feature_map: FeatureMap, x: Tensor, *, scaled: bool = False
) -> Tensor:
    """Return the features that a map gives for x, having checked that attention can use them.

    Args:
        function: who asks, for messages.
        feature_map: a name, or any function of a Tensor (N, H, L, E) that returns a Tensor
            (N, H, L, D); one with a method `scaled` may be asked for that instead, see
            `nn.FeatureMap`.
        x: (N, H, L, E).
        scaled: whether the size of each row's features would cancel.

    Returns:
        (N, H, L, D).

    Raises:
        TypeError: the map is none of these, or returns something else than a Tensor.
        ValueError: the name is unknown, or what the map returns has another shape, dtype or device.

    >>> row_features("example", lambda x: x * x, Tensor([[[[-1.0, 2.0]]]])).tolist()
    [[[[1.0, 4.0]]]]
    """
    if isinstance(feature_map, str):
        if feature_map not in ROW_MAPS:
            names = ", ".join(map(repr, (*FEATURE_MAPS, *ROW_MAPS)))
            raise ValueError(
                f"{function}: feature_map must be one of {names}, or a function from a Tensor "
                f"(N, H, L, E) to one (N, H, L, D), got {feature_map!r}"
            )
        return ROW_MAPS[feature_map](x, scaled)
    if not callable(feature_map):
        raise TypeError(
            f"{function}: feature_map must be a name or a function from a Tensor (N, H, L, E) to "
            f"one (N, H, L, D), got {type(feature_map).__name__}"
        )
    phi = getattr(feature_map, "scaled", feature_map)(x) if scaled else feature_map(x)
    _check_features(function, feature_map, x, phi)
    return phi


def enough_features(head_dim: int) -> int:
    """E log E, rounded up to eights (Choromanski et al. 2021, theorem 4); within bounds."""
    wanted = head_dim * math.log(max(head_dim, 2))
    return min(MOST_FEATURES, 8 * math.ceil(wanted / 8))


def _shared_projection(x: Tensor) -> Array:
    """Return the one projection that all calls by name share: keys and queries need the same."""
    return constant(_first_projection(x.shape[-1]).astype(x.dtype), x.data)


@cache
def _first_projection(head_dim: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    projection = features.orthogonal_projection(enough_features(head_dim), head_dim, generator)
    return projection.astype(np.float32)


def _check_rows(name: str, x: Tensor) -> None:
    if x.ndim != 4 or x.dtype.kind != "f":
        raise ValueError(
            f"{name}: x must be floating (N, H, L, E), got {x.dtype} {x.shape}; "
            "split the heads: (N, L, H * E) becomes x.reshape(N, L, H, E).transpose(1, 2)"
        )


def _check_features(function: str, feature_map: Any, x: Tensor, phi: Any) -> None:
    name = getattr(feature_map, "__name__", type(feature_map).__name__)
    if not isinstance(phi, Tensor):
        raise TypeError(
            f"{function}: feature_map {name} must return a Tensor, got {type(phi).__name__}; "
            "compute with minitransformer.functions, through which gradients flow"
        )
    if phi.ndim != 4 or phi.shape[:3] != x.shape[:3] or not phi.shape[3]:
        expected = ", ".join(map(str, (*x.shape[:3], "D")))
        raise ValueError(
            f"{function}: feature_map {name} must return the shape ({expected}), D features for "
            f"each row of {x.shape}, got {phi.shape}; keep all dimensions but the last"
        )
    if phi.dtype != x.dtype or phi.device != x.device:
        raise ValueError(
            f"{function}: feature_map {name} must return {x.dtype} on {x.device}, as it was given, "
            f"got {phi.dtype} on {phi.device}; return phi.to(x.device, dtype=x.dtype)"
        )
