"""The naive truth of local attention: softmax attention to fewer keys, equation (1) literally."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Array
from ..softmax.reference import softmax_attention
from ..visible import EVERYTHING, Visible


def local_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    visible: Visible = EVERYTHING,
    *,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
    **options: Any,
) -> Array:
    """Local attention: softmax attention to the keys that are `near`.

    Args:
        query: this, key, value, visible and all options as in `softmax_attention`.
        window: how many keys a query sees on either side of its own place.
        stride: the last of every so many keys is seen from everywhere. None: no such keys.
        num_global: so many first keys are seen from everywhere.
        global_queries: the queries at so many first positions see every key.

    Returns:
        (N, H, Lq, M); a query that sees nothing gives zeros.

    Source: Child et al. 2019, section 4.3; Beltagy et al. 2020, section 3.1.
    """
    seen = near(query, key, visible.query_offset, window, stride, num_global, global_queries)
    return softmax_attention(query, key, value, visible, near=seen, **options)


def near(
    query: ArrayLike,
    key: ArrayLike,
    query_offset: int,
    window: int,
    stride: int | None = None,
    num_global: int = 0,
    global_queries: int = 0,
) -> Array:
    """Returns which key is near enough to which query, or seen from everywhere: bool, (Lq, Lk)."""
    p = np.arange(np.shape(query)[2])[:, None] + query_offset
    j = np.arange(np.shape(key)[2])
    landmark = (j < num_global) | ((j + 1) % stride == 0 if stride else False)  # (2)
    return (np.abs(p - j) <= window) | landmark | ((p >= 0) & (p < global_queries))  # (1)
