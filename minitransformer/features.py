"""Feature maps of linear attention that take whole rows, as objects, by name, or your own.

    linear_attention(query, key, value, feature_map="favor")          # by name, with defaults
    linear_attention(query, key, value, feature_map=DPFP(nu=2))       # an object
    linear_attention(query, key, value, feature_map=lambda x: F.relu(x) + 0.1)    # your own

| name        | object      | features of a row of E numbers             | source                  |
|-------------|-------------|--------------------------------------------|-------------------------|
| "favor"     | `Favor`     | R random ones, products near exp(q.k / √E) | Choromanski et al. 2021 |
| "dpfp"      | `DPFP`      | 2 E nu products of neighbours              | Schlag et al. 2021      |
| "cosformer" | `CosFormer` | 2 E, relu, fading with the distance        | Qin et al. 2022         |

The equations are in `minitransformer_kernels.features`. "elu", "relu", "softplus" and "exp" take
each number by itself: kernels apply them as they read, and nothing here is needed.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minitransformer_kernels.feature_maps import FEATURE_MAPS
from minitransformer_kernels.features import orthogonal_projection

from . import random
from .device import array_module
from .functions.features import CosFormerFeatures, DPFPFeatures, FavorFeatures
from .nn.module import Module, Parameter
from .tensor import Tensor

__all__ = ["DPFP", "CosFormer", "Favor", "FeatureMap", "apply_feature_map", "row_map"]

MOST_FEATURES = 256  # of "favor" where nobody says how many; more are possible


class FeatureMap(Module):
    """The hook: override `features` and `dim`. One with parameters is part of its model.

    Called with x (N, H, L, E), it returns features (N, H, L, D).

    Attributes:
        positional: whether the features of a row depend on where it stands.
    """

    positional = False

    def __call__(self, x: Tensor, first: Any = 0, *, query: bool = False) -> Tensor:
        """Return the features of every row.

        Args:
            x: (N, H, L, E), float32 or float64.
            first: the position of the first row; or (L,) integers, that of each.
            query: whether each row may be scaled by a number of its own, which cancels in the
                output of linear attention: a map may then choose a scale that cannot underflow.

        Returns:
            (N, H, L, D).

        Raises:
            ValueError: x has another shape than the map can take.
        """
        if x.ndim != 4 or x.dtype.kind != "f":
            raise ValueError(
                f"{type(self).__name__}: x must be floating (N, H, L, E), got {x.dtype} {x.shape}; "
                "split the heads: (N, L, H * E) becomes x.reshape(N, L, H, E).transpose(1, 2)"
            )
        return self.features(x, first, query)

    def features(self, x: Tensor, first: Any, query: bool) -> Tensor:
        """Return the features; the arguments are those of `__call__`."""
        raise NotImplementedError(f"{type(self).__name__} does not override features")

    def dim(self, head_dim: int) -> int:
        """Return D, how many features a row of `head_dim` numbers has."""
        raise NotImplementedError(f"{type(self).__name__} does not override dim")


class Favor(FeatureMap):
    """FAVOR+: positive random features, whose products estimate exp(q.k / sqrt(E)).

    The projection is saved with a model, and not learned, unless `projection.requires_grad` is set.

    Args:
        head_dim: E.
        num_features: R; E log E by default, which the paper proves enough, but at most 256.
        seed: of the projection; None draws from the engine's generator.

    Raises:
        ValueError: a size is below 1.

    Source: Choromanski et al. 2021, "Rethinking attention with Performers".

    >>> q, k = Tensor([[[[0.5, 1.0]]]]), Tensor([[[[1.0, -0.5]]]])
    >>> favor = Favor(head_dim=2, num_features=4096, seed=0)
    >>> estimate = (favor(q) * favor(k)).sum().item()  # of exp(q.k / sqrt(E)) = exp(0)
    >>> abs(estimate - 1) < 0.1
    True
    """

    def __init__(
        self, head_dim: int, num_features: int | None = None, seed: int | None = None
    ) -> None:
        num_features = _enough_features(head_dim) if num_features is None else num_features
        _check_at_least_one("Favor", head_dim=head_dim, num_features=num_features)
        self.head_dim, self.num_features = head_dim, num_features
        self.projection = Parameter(self._draw(seed), requires_grad=False)

    def redraw(self, seed: int | None = None) -> None:
        """Draw another projection, in place: in training now and then, against a bad one.

        Args:
            seed: of the projection; None draws from the engine's generator.
        """
        data = self.projection.data
        data[...] = array_module(data).asarray(self._draw(seed))

    def features(self, x: Tensor, first: Any, query: bool) -> Tensor:
        """Return exp(s W x - l), see `FeatureMap`; the positions do not matter."""
        if x.shape[3] != self.head_dim:
            raise ValueError(
                f"Favor: x must have rows of head_dim={self.head_dim}, got {x.shape}; "
                f"build Favor(head_dim={x.shape[3]})"
            )
        projection = self.projection.to(x.device, dtype=x.dtype)
        phi: Tensor = FavorFeatures.apply(x, projection, normalised=query)
        return phi

    def dim(self, head_dim: int) -> int:
        """Return R."""
        return self.num_features

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"head_dim={self.head_dim}, num_features={self.num_features}"

    def _draw(self, seed: int | None) -> np.ndarray:
        generator = random.generator() if seed is None else np.random.default_rng(seed)
        return orthogonal_projection(self.num_features, self.head_dim, generator).astype(np.float32)


class DPFP(FeatureMap):
    """Deterministic parameter-free projection: products of neighbours in [relu(x), relu(-x)].

    Args:
        nu: how many neighbours each number is multiplied by.

    Raises:
        ValueError: nu is below 1.

    Source: Schlag et al. 2021, "Linear transformers are secretly fast weight programmers", 5.3.

    >>> DPFP(nu=1)(Tensor([[[[2.0, 3.0]]]])).tolist()
    [[[[6.0, 0.0, 0.0, 0.0]]]]
    """

    def __init__(self, nu: int = 1) -> None:
        _check_at_least_one("DPFP", nu=nu)
        self.nu = nu

    def features(self, x: Tensor, first: Any, query: bool) -> Tensor:
        """Return the products, see `FeatureMap`; the positions do not matter."""
        if self.nu >= 2 * x.shape[3]:
            raise ValueError(
                f"DPFP: nu must be below 2 E = {2 * x.shape[3]}, where neighbours come round "
                f"again, got {self.nu}"
            )
        phi: Tensor = DPFPFeatures.apply(x, nu=self.nu)
        return phi

    def dim(self, head_dim: int) -> int:
        """Return 2 E nu."""
        return 2 * head_dim * self.nu

    def extra_repr(self) -> str:
        """Return nu."""
        return f"nu={self.nu}"


class CosFormer(FeatureMap):
    """Relu features, weighted by cos(pi (p_q - p_k) / (2 T)): near keys count more.

    Args:
        longest: T, the distance at which weights reach zero, beyond which they would be negative.

    Raises:
        ValueError: longest is below 1.

    Source: Qin et al. 2022, "cosFormer: rethinking softmax in attention".

    >>> here, there = (CosFormer(longest=3)(Tensor([[[[1.0]]]]), first) for first in (0, 2))
    >>> round((here * there).sum().item(), 6)  # cos(pi / 3)
    0.5
    """

    positional = True

    def __init__(self, longest: int) -> None:
        _check_at_least_one("CosFormer", longest=longest)
        self.longest = longest

    def features(self, x: Tensor, first: Any, query: bool) -> Tensor:
        """Return [relu(x) cos, relu(x) sin], see `FeatureMap`."""
        positions = first + np.arange(x.shape[2]) if np.ndim(first) == 0 else first
        if positions.shape != x.shape[2:3]:
            raise ValueError(
                f"CosFormer: first must be one position or one for each of the {x.shape[2]} rows, "
                f"got the shape {positions.shape}"
            )
        if x.shape[2] and int(positions.max()) >= self.longest:
            raise ValueError(
                f"CosFormer: positions must be below longest={self.longest}, got "
                f"{int(positions.max())}: keys that far away would get negative weights; "
                "build CosFormer with the length of your longest sequence"
            )
        phi: Tensor = CosFormerFeatures.apply(x, positions=positions, longest=self.longest)
        return phi

    def dim(self, head_dim: int) -> int:
        """Return 2 E."""
        return 2 * head_dim

    def extra_repr(self) -> str:
        """Return T."""
        return f"longest={self.longest}"


ROW_MAPS: dict[str, Callable[[int], FeatureMap]] = {
    "favor": lambda head_dim: Favor(head_dim, seed=0),
    "dpfp": lambda head_dim: DPFP(),
    "cosformer": lambda head_dim: CosFormer(longest=4096),
}


def row_map(name: str, head_dim: int) -> FeatureMap:
    """Return a new feature map of a name, with its defaults; "favor" has the projection of seed 0.

    Args:
        name: "favor", "dpfp" or "cosformer".
        head_dim: E.

    Raises:
        ValueError: there is no such feature map.

    >>> row_map("dpfp", 8).dim(8)
    16
    """
    if name not in ROW_MAPS:
        raise ValueError(f"row_map: name must be one of {_names(ROW_MAPS)}, got {name!r}")
    return ROW_MAPS[name](head_dim)


def apply_feature_map(
    function: str, feature_map: Any, x: Tensor, first: Any = 0, *, query: bool = False
) -> Tensor:
    """Return the features that a map gives for x, having checked that attention can use them.

    Args:
        function: who asks, for messages.
        feature_map: a name of `row_map`, a `FeatureMap`, or any function of a Tensor (N, H, L, E)
            that returns a Tensor (N, H, L, D).
        x: (N, H, L, E).
        first: the position of the first row, or (L,) integers, that of each; for a `FeatureMap`.
        query: whether a scale of its own for each row would cancel, see `FeatureMap`.

    Returns:
        (N, H, L, D).

    Raises:
        TypeError: the map is none of these, or returns something else than a Tensor.
        ValueError: the name is unknown, or what the map returns has another shape, dtype or device.

    >>> apply_feature_map("example", lambda x: x * x, Tensor([[[[-1.0, 2.0]]]])).tolist()
    [[[[1.0, 4.0]]]]
    """
    if isinstance(feature_map, str):
        if feature_map not in ROW_MAPS:
            raise ValueError(
                f"{function}: feature_map must be one of {_names(FEATURE_MAPS, ROW_MAPS)}, or a "
                f"function from a Tensor (N, H, L, E) to one (N, H, L, D), got {feature_map!r}"
            )
        feature_map = _shared_row_map(feature_map, x.shape[-1])
    if not callable(feature_map):
        raise TypeError(
            f"{function}: feature_map must be a name, a FeatureMap or a function from a Tensor "
            f"(N, H, L, E) to one (N, H, L, D), got {type(feature_map).__name__}"
        )
    knows_more = isinstance(feature_map, FeatureMap)
    phi = feature_map(x, first, query=query) if knows_more else feature_map(x)
    _check_features(function, feature_map, x, phi)
    features: Tensor = phi
    return features


def has_positions(feature_map: Any) -> bool:
    """Return whether the features of a map, or of one by that name, depend on positions."""
    return feature_map == "cosformer" or getattr(feature_map, "positional", False)


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


@cache
def _shared_row_map(name: str, head_dim: int) -> FeatureMap:
    """Return the one map that all calls with a name share: keys and queries need the same."""
    return row_map(name, head_dim)


def _enough_features(head_dim: int) -> int:
    """E log E, rounded up to eights (Choromanski et al. 2021, theorem 4); within bounds."""
    wanted = head_dim * math.log(max(head_dim, 2))
    return min(MOST_FEATURES, 8 * math.ceil(wanted / 8))


def _check_at_least_one(name: str, **sizes: int) -> None:
    for size, number in sizes.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: {size} must be a whole number above 0, got {number!r}")


def _names(*groups: Any) -> str:
    return ", ".join(repr(name) for group in groups for name in group)
