"""Feature maps of whole rows as modules, whose sizes can be chosen, and which may learn.

The equations are in `minitransformer_kernels.features`.
"""

import numpy as np

from minitransformer_kernels.features import orthogonal_projection

from .. import random
from ..attention.features import dpfp_features, enough_features, favor_features
from ..device import array_module
from ..tensor import Tensor
from .layers import check_positive
from .module import Module, Parameter


class FeatureMap(Module):
    """The hook: override `forward` and `dim`. One with parameters is part of its model.

    Called with x (N, H, L, E), it returns features (N, H, L, D).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of every row of x (N, H, L, E)."""
        raise NotImplementedError(f"{type(self).__name__} does not override forward")

    def scaled(self, x: Tensor) -> Tensor:
        """Return the same, each row times a number of its own, which cancels in linear attention.

        Attention asks for queries so; a map may choose a scale that cannot underflow.
        """
        return self(x)

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
        num_features = enough_features(head_dim) if num_features is None else num_features
        check_positive(self, head_dim=head_dim, num_features=num_features)
        self.head_dim, self.num_features = head_dim, num_features
        self.projection = Parameter(self._draw(seed), requires_grad=False)

    def redraw(self, seed: int | None = None) -> None:
        """Draw another projection, in place: in training now and then, against a bad one.

        Args:
            seed: of the projection; None draws from the engine's generator.
        """
        data = self.projection.data
        data[...] = array_module(data).asarray(self._draw(seed))

    def forward(self, x: Tensor) -> Tensor:
        """Return exp(s W x - l) (N, H, L, R)."""
        return favor_features(x, self.projection.to(x.device, dtype=x.dtype))

    def scaled(self, x: Tensor) -> Tensor:
        """Return the same, of which each row sums to 1: its largest feature cannot underflow."""
        return favor_features(x, self.projection.to(x.device, dtype=x.dtype), scaled=True)

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
        check_positive(self, nu=nu)
        self.nu = nu

    def forward(self, x: Tensor) -> Tensor:
        """Return the products (N, H, L, 2 E nu)."""
        return dpfp_features(x, self.nu)

    def dim(self, head_dim: int) -> int:
        """Return 2 E nu."""
        return 2 * head_dim * self.nu

    def extra_repr(self) -> str:
        """Return nu."""
        return f"nu={self.nu}"
