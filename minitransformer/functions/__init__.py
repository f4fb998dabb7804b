"""Differentiable functions by topic; the names follow ``torch`` and ``torch.nn.functional``.

from minitransformer import functions as F
"""

from .activations import elu, exp, gelu, log, relu, sigmoid, softplus, sqrt, tanh
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
from .losses import cross_entropy, mse_loss
from .normalization import layer_norm, log_softmax, softmax
from .reductions import amax, argmax, mean, sum, var
from .regularization import dropout
from .selection import embedding, masked_fill, where
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
    "cross_entropy",
    "divide",
    "dropout",
    "elu",
    "embedding",
    "exp",
    "expand",
    "flatten",
    "gelu",
    "getitem",
    "layer_norm",
    "linear",
    "log",
    "log_softmax",
    "masked_fill",
    "matmul",
    "mean",
    "mse_loss",
    "multiply",
    "negative",
    "permute",
    "power",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "tanh",
    "to",
    "transpose",
    "unsqueeze",
    "var",
    "where",
]
