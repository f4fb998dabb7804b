"""How the kernels of softmax attention are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..visible import Visible
from . import backward, forward


def passes(query: Any, key: Any, value: Any, *, relative: bool = False, **options: Any) -> None:
    """Forward and backward; a pattern among the options makes it local attention."""
    inputs = query, key, value
    if relative:
        options["relative_scores"] = np.zeros((*query.shape[:3], 65), query.dtype)
    output, *sums = forward(*inputs, **options)
    backward(output, *inputs, output, *sums, **options)


def few_values(query: Any, key: Any, value: Any, **options: Any) -> None:
    """The same with fewer columns of values than queries and keys have."""
    passes(query, key, value[..., :8], **options)


def few_queries(query: Any, key: Any, value: Any, *, last: int = 1, **options: Any) -> None:
    """Forward of the last queries alone, as for a token that is generated."""
    visible = Visible(query_offset=query.shape[2] - last)
    forward(query[:, :, -last:], key, value, visible, version="few", **options)


HOSTS = {
    "softmax": passes,
    "softmax_few": few_queries,
    "softmax_dropped": partial(passes, relative=True, dropout=0.1),
}
MORE = {
    "softmax_relative": partial(passes, relative=True),
    "softmax_with_dropout": partial(passes, dropout=0.1),
    "softmax_few_values": few_values,
    "softmax_plain": partial(passes, version="plain"),
    "softmax_plain_dropped": partial(passes, relative=True, dropout=0.1, version="plain"),
}
