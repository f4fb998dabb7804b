"""One model on many machines: ranks that MPI starts, each with a share of the work."""

from .attention import (
    delta_attention,
    fourier_linear_attention,
    linear_attention,
    relative_linear_attention,
)
from .grid import Grid
from .layers import along_sequence
from .softmax import local_attention, softmax_attention
from .world import Sent, World

__all__ = [
    "Grid",
    "Sent",
    "World",
    "along_sequence",
    "delta_attention",
    "fourier_linear_attention",
    "linear_attention",
    "local_attention",
    "relative_linear_attention",
    "softmax_attention",
]
