"""Differentiable functions by topic; the names follow ``torch`` and ``torch.nn.functional``.

from minitransformer import functions as F
"""

from .arithmetic import (
    add,
    compare,
    divide,
    linear,
    matmul,
    multiply,
    negative,
    power,
    subtract,
    to,
)
from .reductions import amax, argmax, mean, sum, var
from .shapes import (
    cat,
    concatenate,
    expand,
    flatten,
    getitem,
    permute,
    reshape,
    split,
    squeeze,
    stack,
    transpose,
    unsqueeze,
)

__all__ = [
    "add",
    "amax",
    "argmax",
    "cat",
    "compare",
    "concatenate",
    "divide",
    "expand",
    "flatten",
    "getitem",
    "linear",
    "matmul",
    "mean",
    "multiply",
    "negative",
    "permute",
    "power",
    "reshape",
    "split",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "to",
    "transpose",
    "unsqueeze",
    "var",
]
