"""The layers that are not attention; each is a thin module over a function."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import functions as F
from .. import random
from ..functions.checks import WHOLE, number
from ..tensor import Tensor
from .module import Module, Parameter


def xavier_uniform(*shape: int) -> np.ndarray:
    """Draw a weight (fan_out, fan_in), float32, uniform in ±sqrt(6 / (fan_in + fan_out)).

    It keeps the variance of what passes through it, forward and backward.

    Source: Glorot and Bengio 2010, equation (16); S3.
    """
    bound = math.sqrt(6 / sum(shape))
    return random.generator().uniform(-bound, bound, shape).astype(np.float32)


class Linear(Module):
    """y = x W^T + b, with Xavier-uniform weights and zero biases (S3).

    Args:
        in_features: width of x.
        out_features: width of y.
        bias: whether to add b.

    >>> from minitransformer import Tensor, nn
    >>> nn.Linear(3, 5)(Tensor([[1.0, 2.0, 3.0]])).shape
    (1, 5)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        check_positive(self, in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(xavier_uniform(out_features, in_features))
        self.bias = Parameter(np.zeros(out_features, np.float32)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Embedding(Module):
    """A learned vector for every token, drawn from the normal distribution."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        check_positive(self, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        shape = num_embeddings, embedding_dim
        self.weight = Parameter(random.generator().standard_normal(shape).astype(np.float32))

    def forward(self, indices: Any) -> Tensor:
        """Map integers (...) to (..., embedding_dim)."""
        return F.embedding(indices, self.weight)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return "num_embeddings={}, embedding_dim={}".format(*self.weight.shape)


class LayerNorm(Module):
    """Shift and scale every vector to mean 0 and variance 1, then to learned ones.

    Args:
        normalized_shape: width of the vectors, or the shape of the trailing dimensions.
        eps: added to the variance.

    Source: Ba et al. 2016.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5) -> None:
        several = isinstance(normalized_shape, Sequence)
        shape: Any = normalized_shape if several else (normalized_shape,)
        check_positive(self, **{f"normalized_shape[{dim}]": size for dim, size in enumerate(shape)})
        if not number("LayerNorm", "a number eps", eps) >= 0:
            raise ValueError(f"LayerNorm: eps must be 0 or above, got {eps}")
        self.normalized_shape = tuple(map(int, shape))
        self.eps = eps
        self.weight = Parameter(np.ones(shape, np.float32))
        self.bias = Parameter(np.zeros(shape, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the trailing dimensions."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the shape."""
        return f"{self.normalized_shape}, eps={self.eps}"


class Dropout(Module):
    """Zero a fraction of the numbers while training, and scale the others up to make up for it.

    Args:
        p: the fraction, in [0, 1).

    Source: Srivastava et al. 2014.
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= number("Dropout", "a fraction p in [0, 1)", p) < 1:
            raise ValueError(f"Dropout: p must be a fraction in [0, 1), got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training, pass in evaluation."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the fraction."""
        return f"p={self.p}"


class ReLU(Module):
    """max(x, 0)."""

    forward = staticmethod(F.relu)


class GELU(Module):
    """x Φ(x), with Φ the normal distribution function.

    Args:
        approximate: "none", or "tanh" for its usual approximation.

    Source: Hendrycks and Gimpel 2016.
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Apply to every number."""
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """Return the form."""
        return f"approximate={self.approximate!r}"


class ELU(Module):
    """x where positive, exp(x) - 1 elsewhere."""

    forward = staticmethod(F.elu)


class Tanh(Module):
    """The hyperbolic tangent."""

    forward = staticmethod(F.tanh)


def check_positive(module: Module, **sizes: int) -> None:
    """Refuse a size that is no whole number above 0, by a ValueError that names the module."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, WHOLE) or size < 1:
            raise ValueError(
                f"{type(module).__name__}: {name} must be a whole number above 0, got {size!r}"
            )
