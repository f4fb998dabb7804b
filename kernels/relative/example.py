"""How the kernels of relative positions are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..visible import CAUSAL
from . import backward, forward, step


def _relative(query: Any, key: Any, value: Any, *, version: str = "fast", **options: Any) -> None:
    embedding = np.zeros((query.shape[1], 65, query.shape[3]), query.dtype)
    inputs = query, key, value, embedding
    how: dict[str, Any] = {"algorithm": "recurrent", "version": version, **options}
    output, denominator, weights, state = forward(*inputs, CAUSAL, **how)
    how["initial_state"] = state
    backward(output, state, *inputs, output, denominator, weights, CAUSAL, **how)
    q, k, v = (x[:, :, 0] for x in (query, key, value))
    step(q, k, v, embedding, state, **options)


HOSTS = {"relative": _relative}
MORE = {
    "relative_exp": partial(_relative, score_map="exp", relative_query="raw", guard="signed"),
    "relative_plain": partial(_relative, version="plain"),
}
