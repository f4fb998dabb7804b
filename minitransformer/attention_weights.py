"""The attention weights of a trained model, whatever its variant of attention.

Attention is linear in the values: o_i = sum_j a_ij v_j. With the rows of the identity for values,
v_j = e_j, the output *is* the weights: o_i = (a_i1, ..., a_iL). For linear attention that reads off
a_ij = φ(q_i)·φ(k_j) / sum_j' φ(q_i)·φ(k_j'), which its fast algorithms never compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .device import array_module
from .function import no_grad
from .nn import Module, MultiHeadAttention
from .nn.variants import AttentionVariant
from .tensor import Tensor


@contextmanager
def recorded_weights(model: Module) -> Iterator[dict[str, np.ndarray]]:
    """Record the weights of every attention layer that runs inside the `with`.

    Args:
        model: Any model with `MultiHeadAttention` layers.

    Yields:
        A dictionary that fills as the model runs: weights (N, H, Lq, Lk) by the layer's path.

    Example:
        >>> from minitransformer import nn
        >>> layer = nn.MultiHeadAttention(8, num_heads=2, attention="linear")
        >>> with recorded_weights(layer) as weights:
        ...     _ = layer(Tensor(np.ones((1, 2, 8), np.float32)), causal=True)
        >>> weights[""][0, 0].round(6).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    variants = {path: layer.attention for path, layer in layers.items()}
    weights: dict[str, np.ndarray] = {}
    try:
        for path, layer in layers.items():
            layer.attention = _Recorder(layer.attention, path, weights)
        yield weights
    finally:
        for path, layer in layers.items():
            layer.attention = variants[path]


class _Recorder(AttentionVariant):
    """Attends as another variant does, and notes its weights."""

    def __init__(
        self, variant: AttentionVariant, path: str, weights: dict[str, np.ndarray]
    ) -> None:
        self.variant, self.path, self.weights = variant, path, weights

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **visible: Any) -> Tensor:
        """Attend, see `AttentionVariant.forward`."""
        self.weights[self.path] = _weights(self.variant, query, key, value.shape[-1], visible)
        output: Tensor = self.variant(query, key, value, **visible)
        return output


def _weights(
    attend: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    width: int,
    visible: dict[str, Any],
) -> np.ndarray:
    """Attend to the identity, `width` columns at a time: the size the kernels are compiled for."""
    batch, heads, length, _ = key.shape
    identity = np.eye(length, -(-length // width) * width, dtype=key.dtype)
    blocks = []
    with no_grad():
        for start in range(0, length, width):
            columns = np.broadcast_to(
                identity[:, start : start + width], (batch, heads, length, width)
            )
            values = Tensor(array_module(key.data).asarray(columns))
            blocks.append(attend(query, key, values, **visible).numpy())
    return np.concatenate(blocks, axis=-1)[..., :length]
