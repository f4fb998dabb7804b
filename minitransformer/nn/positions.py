"""Position encodings that are added to the token vectors."""

import numpy as np

from ..tensor import Tensor
from .layers import Embedding, check_positive
from .module import Module


class SinusoidalPositions(Module):
    """Add a wave of its own to every channel: any offset is then a rotation of the channels.

    Args:
        d_model: D, the model's width.

    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, d_model: int) -> None:
        check_positive(self, d_model=d_model)
        self.d_model = d_model

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add to x (N, L, D) the waves at the positions offset, ..., offset + L - 1."""
        waves = sinusoids(np.arange(offset, offset + x.shape[1]), self.d_model)
        return x + Tensor(waves.astype(x.dtype), device=x.device)

    def extra_repr(self) -> str:
        """Return the width."""
        return f"d_model={self.d_model}"


class LearnedPositions(Module):
    """Add a learned vector for every position.

    Args:
        max_length: how many positions there are.
        d_model: D, the model's width.

    Source: Gehring et al. 2017.
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        check_positive(self, max_length=max_length)
        self.max_length = max_length
        self.vectors = Embedding(max_length, d_model)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add to x (N, L, D) the vectors of the positions offset, ..., offset + L - 1.

        Raises:
            ValueError: the sequence reaches beyond the last position.
        """
        end = offset + x.shape[1]
        if end > self.max_length:
            raise ValueError(
                f"LearnedPositions: the sequence is {end} long, expected at most "
                f"{self.max_length}; build the model with a larger max_length, or with "
                "positions='sinusoidal', which has no end"
            )
        return x + self.vectors.weight[offset:end]


def sinusoids(positions: np.ndarray, width: int) -> np.ndarray:
    """Return sin(p w_c) in even and cos(p w_c) in odd channels, with w_c from 1 down to 1 / 10000.

    Args:
        positions: (L,).
        width: the number of channels.

    Returns:
        (L, width) float64.

    Source: Vaswani et al. 2017, section 3.5.
    """
    channel = np.arange(width)
    angles = positions[:, None] * 10_000.0 ** -(channel // 2 * 2 / width)  # (L, width)
    return np.where(channel % 2, np.cos(angles), np.sin(angles))


def position_encoding(
    positions: str | Module | None, d_model: int, max_length: int | None
) -> Module:
    """Return the position encoding of a name; an instance stands for itself.

    Args:
        positions: "sinusoidal", "learned", None for none, or a module called with x and an offset.
        d_model: the model's width.
        max_length: how many positions "learned" learns.

    Raises:
        ValueError: the name is unknown, or "learned" comes without a length.
    """
    if isinstance(positions, Module):
        return positions
    if positions == "sinusoidal":
        return SinusoidalPositions(d_model)
    if positions == "learned" and max_length is not None:
        return LearnedPositions(max_length, d_model)
    if positions is None:
        return NoPositions()
    raise ValueError(
        "positions must be 'sinusoidal', 'learned' with a max_length, None or a Module, got "
        f"{positions!r} with max_length={max_length}"
    )


class NoPositions(Module):
    """Add nothing: relative encodings live in the attention, and causality alone orders tokens."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Return x."""
        return x
