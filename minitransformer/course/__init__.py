"""What the lessons are made of, and what is made of the lessons.

A lesson imports from here what it needs to predict, draw, quote, time and check:

    from minitransformer.course import check, guess, quote, show, six_tokens

`minitransformer course` makes notebooks, pages and a site of the lessons, and judges answers.
"""

from .exercise import NotYet
from .looking import Launched, watch
from .measuring import error, finite_differences, peak_bytes, quantity, seconds, slope
from .quoting import quote, quote_loop
from .showing import show, table
from .six import SixTokens, six_tokens
from .steps import check, guess, reveal

__all__ = [
    "Launched",
    "NotYet",
    "SixTokens",
    "check",
    "error",
    "finite_differences",
    "guess",
    "peak_bytes",
    "quantity",
    "quote",
    "quote_loop",
    "reveal",
    "seconds",
    "show",
    "six_tokens",
    "slope",
    "table",
    "watch",
]
