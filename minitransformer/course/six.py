"""The head that the whole course is worked out on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class SixTokens(NamedTuple):
    """One head of attention: six tokens, small enough to print.

    Attributes:
        query: `(6, 4)`, float64.
        key: `(6, 4)`.
        value: `(6, 3)`.
    """

    query: Any
    key: Any
    value: Any


def six_tokens() -> SixTokens:
    """Return the course's head: L = 6 tokens, head dim E = 4, value dim M = 3; always the same.

    The numbers have one decimal, so that a page can show them whole.

    >>> six_tokens().value[0]
    array([ 0.1, -1.5,  0.8])
    """
    draw = np.random.default_rng(6)
    return SixTokens(*(draw.standard_normal((6, width)).round(1) + 0.0 for width in (4, 4, 3)))
