"""Attention: what every query reads from the keys that it sees.

Arrays are (N, H, L, E): batch, heads, length, head dim; values are (N, H, L, M). Query i sees key j
if j is below its sequence's key length and, when causal, j <= i + query_offset. A query that sees
nothing gives zeros, and passes no gradient.

| function                | cost of a sequence | state of a decoder       |
|-------------------------|--------------------|--------------------------|
| `softmax_attention`     | Lq Lk (E + M)      | all keys and values      |
| `local_attention`       | Lq w (E + M)       | the last w of both       |
| `linear_attention`      | (Lq + Lk) E M      | S (E x M) and Z (E)      |
| `relative_linear_...`   | the same, + 2k + 1 | S, Z, the last k values  |
| `fourier_linear_...`    | the same, times 3  | S (3E x M) and Z (3E)    |
| `delta_attention`       | the same, times 2  | W (E x M)                |
| `graph_attention`       | edges (M + 1)      | -                        |
| `graph_dot_product_...` | edges (E + M)      | -                        |
| `..._step`              | E M, one token     | the state, in and out    |
"""

from minitransformer_kernels.delta import DeltaState
from minitransformer_kernels.fourier import FourierState
from minitransformer_kernels.recurrent import LinearState
from minitransformer_kernels.relative import RelativeState

from .delta import delta_attention, delta_attention_step
from .fourier import fourier_linear_attention, fourier_linear_attention_step
from .graph import graph_attention, graph_dot_product_attention
from .linear import linear_attention, linear_attention_step
from .local import local_attention
from .relative import relative_linear_attention, relative_linear_attention_step
from .softmax import softmax_attention

__all__ = [
    "DeltaState",
    "FourierState",
    "LinearState",
    "RelativeState",
    "delta_attention",
    "delta_attention_step",
    "fourier_linear_attention",
    "fourier_linear_attention_step",
    "graph_attention",
    "graph_dot_product_attention",
    "linear_attention",
    "linear_attention_step",
    "local_attention",
    "relative_linear_attention",
    "relative_linear_attention_step",
    "softmax_attention",
]
