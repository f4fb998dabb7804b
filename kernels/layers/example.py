"""How the kernels of layers are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import layer_norm, matmul, optimizer


def _optimizer(query: Any, key: Any, value: Any) -> None:
    arrays = [np.zeros_like(query) for _ in range(4)]
    optimizer.descend(*arrays[:2], rate=0.1)
    optimizer.momentum_descend(*arrays[:3], rate=0.1, momentum=0.9)
    optimizer.moment_descend(*arrays, rate=0.1, betas=(0.9, 0.99), root_weight=1.0, eps=1e-8)


def _layer_norm(query: Any, key: Any, value: Any, **version: str) -> None:
    x, weight = query[0, 0], key[0, 0, 0]
    y, mean, scale = layer_norm.forward(x, weight, weight, eps=1e-5, **version)
    layer_norm.backward(y, x, weight, mean, scale, **version)
    layer_norm.parameters_backward(y, x, mean, scale, **version)


def _matmul(query: Any, key: Any, value: Any, *, version: str) -> None:
    matmul.matmul(query[0, 0], key[0, 0].T, version=version)


def _on_tensor_cores(query: Any, key: Any, value: Any) -> None:
    a, b = (array[0, 0].astype(np.float32) for array in (query, key))
    for precise in (False, True):
        matmul.matmul(a, b.T, precise=precise)


HOSTS = {"layer_norm": _layer_norm, "optimizer": _optimizer, "matmul": _on_tensor_cores}
MORE = {
    "layer_norm_plain": partial(_layer_norm, version="plain"),
    "matmul_plain": partial(_matmul, version="plain"),
    "matmul_tiled": partial(_matmul, version="tiled"),
}
