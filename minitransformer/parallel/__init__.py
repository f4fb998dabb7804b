"""One model on many machines: ranks that MPI starts, each with a share of the work."""

from .attention import (
    delta_attention,
    fourier_linear_attention,
    linear_attention,
    relative_linear_attention,
)
from .softmax import local_attention, softmax_attention
from .world import Sent, World

__all__ = [
    "Sent",
    "World",
    "delta_attention",
    "fourier_linear_attention",
    "linear_attention",
    "local_attention",
    "relative_linear_attention",
    "softmax_attention",
]
