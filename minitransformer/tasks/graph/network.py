"""The network: two layers of graph attention."""

from functools import partial

from ... import functions as F
from ... import nn
from ...tensor import Tensor
from ..digits import CLASSES, PIXELS


class ImageNetwork(nn.Module):
    """Two layers of graph attention: pixels to features, features to logits.

    Source: Velickovic et al. 2018, section 3.3.
    """

    def __init__(self, heads: int, head_dim: int, score: str, dropout: float) -> None:
        layer = partial(nn.GraphAttention, num_heads=heads, score=score, dropout=dropout)
        self.first = layer(PIXELS, head_dim)
        self.second = layer(heads * head_dim, CLASSES, concat=False)

    def forward(self, pixels: Tensor, far: nn.Graph, near: nn.Graph) -> Tensor:
        """Map pixels (T, 64) to logits (N, 10).

        `near` is what the N images to read see, `far` what those see; both know the first images.
        """
        features = self.features(pixels, far)
        return self.second(features, near, features[: near.num_queries])

    def features(self, pixels: Tensor, far: nn.Graph) -> Tensor:
        """Map pixels (T, 64) to what the second layer sees, (Tq, heads * head_dim)."""
        return F.elu(self.first(pixels, far, pixels[: far.num_queries]))
