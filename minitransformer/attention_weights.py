"""The attention weights of a trained model, whatever its variant of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .nn import Module
from .tensor import Tensor


@contextmanager
def recorded_weights(model: Module) -> Iterator[dict[str, np.ndarray]]:
    """Record the weights of every attention layer that runs inside the `with`.

    Args:
        model: Any model with layers of attention: modules that have an `on_weights`.

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
    layers: dict[str, Any] = {
        path: module for path, module in model.named_modules() if hasattr(module, "on_weights")
    }
    before = [(layer, layer.on_weights) for layer in layers.values()]
    weights: dict[str, np.ndarray] = {}
    try:
        for path, layer in layers.items():
            layer.on_weights = _recorder(weights, path)
        yield weights
    finally:
        for layer, on_weights in before:
            layer.on_weights = on_weights


def _recorder(weights: dict[str, np.ndarray], path: str) -> Callable[[Tensor], None]:
    """Return a function that notes a layer's weights."""

    def note(found: Tensor) -> None:
        weights[path] = found.numpy()

    return note
