"""How the kernels of the delta rule are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import backward, forward, step


def _delta(query: Any, key: Any, value: Any, **how: Any) -> None:
    inputs = query, key, value, np.zeros(key.shape[:3], key.dtype)
    output, residual, state = forward(*inputs, **how)
    backward(output, state, *inputs, output, residual, **how)
    q, k, v, beta = (x[:, :, 0] for x in inputs)
    step(q, k, v, beta, state)


def _few_values(query: Any, key: Any, value: Any) -> None:
    _delta(query, key, value[..., :8])


HOSTS = {"delta": _delta}
MORE = {
    "delta_chunked": partial(_delta, algorithm="chunked"),
    "delta_plain": partial(_delta, version="plain"),
    "delta_few_values": _few_values,
}
