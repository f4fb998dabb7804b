"""How the kernels of graph attention are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import (
    Edges,
    additive_scores,
    additive_scores_backward,
    backward,
    dot_scores,
    dot_scores_backward,
    forward,
)


def _graph(query: Any, key: Any, value: Any, **how: Any) -> None:
    query, key, value = query[0], key[0], value[0]
    nodes = np.arange(query.shape[1] + 1)  # each sees itself
    edges = Edges(nodes, nodes[:-1], query.shape[1])
    a, b = query[..., 0], key[..., 0]
    additive_scores_backward(additive_scores(a, b, edges, **how), a, b, edges, **how)
    scores = dot_scores(query, key, edges, **how)
    dot_scores_backward(scores, query, key, edges, **how)
    output, weights = forward(scores, value, edges, dropout=0.5, **how)
    backward(output, value, edges, output, weights, **how)


HOSTS = {"graph": _graph}
MORE = {"graph_plain": partial(_graph, version="plain")}
