"""Position encodings: added to the token vectors, or appended to them as channels of their own."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .. import functions as F
from ..device import Array, as_array
from ..tensor import Tensor
from .layers import Embedding, check_positive
from .module import Module

_KEPT = 128  # positions: sinusoids are computed for at least twice as many at a time


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
        """Add to x (N, L, D) the waves at the positions offset, ..., offset + L - 1.

        Raises:
            ValueError: x has another shape.
        """
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ValueError(
                f"SinusoidalPositions: x must have the shape (N, L, {self.d_model}), got {x.shape}"
            )
        length = x.shape[1]
        block = max(_KEPT, 1 << length.bit_length())
        first = offset // block * block
        waves = _waves(first, first + 2 * block, self.d_model, x.dtype, x.device)
        return x + Tensor(waves[offset - first : offset - first + length])

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
            ValueError: the sequence begins before the first position, or ends beyond the last.
        """
        end = offset + x.shape[1]
        if offset < 0:
            raise ValueError(f"LearnedPositions: offset must be 0 or above, got {offset}")
        if end > self.max_length:
            raise ValueError(
                f"LearnedPositions: the sequence is {end} long, expected at most "
                f"{self.max_length}; build the model with a larger max_length, or with "
                "positions='sinusoidal', which has no end"
            )
        return x + self.vectors.weight[offset:end]


class FourierPositions(Module):
    """Append to every element of a grid the Fourier features of where it stands, and flatten.

    Args:
        shape: of the grid: (L,) for a sequence, (height, width) for an image.
        num_bands: K, see `fourier_features`.
        max_resolution: see there; the shape itself by default.
        bands: see there.

    Raises:
        ValueError: see `fourier_features`.

    Source: Jaegle et al. 2021, section 3.2; S4.

    >>> from minitransformer import Tensor, nn
    >>> images = Tensor([[[[0.0]] * 8] * 8])  # (B, 8, 8, C)
    >>> nn.FourierPositions((8, 8), num_bands=4)(images).shape  # (B, M, C + 2 (2 K + 1))
    (1, 64, 19)
    """

    def __init__(
        self,
        shape: Sequence[int],
        num_bands: int,
        max_resolution: float | Sequence[float] | None = None,
        bands: str = "log",
    ) -> None:
        self.shape = tuple(shape)
        self.num_bands, self.bands = num_bands, bands
        resolution = self.shape if max_resolution is None else max_resolution
        positions = grid_positions(self.shape)
        self.features = fourier_features(positions, num_bands, resolution, bands)  # (M, F)
        self.num_features: int = self.features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, *shape, C) to (B, M, C + num_features); M is the product of the shape.

        Raises:
            ValueError: x is no batch of such grids.
        """
        if x.shape[1:-1] != self.shape:
            raise ValueError(
                f"FourierPositions: x must be (B, {', '.join(map(str, self.shape))}, C), got "
                f"{x.shape}; build it for the shape that the data has"
            )
        batch, channels = x.shape[0], x.shape[-1]
        flat = x.reshape(batch, len(self.features), channels)  # (B, M, C)
        features = Tensor(as_array(self.features, x.device, x.dtype))
        return F.cat([flat, features.expand(batch, *features.shape)], dim=-1)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"{self.shape}, num_bands={self.num_bands}, bands={self.bands!r}"


FREQUENCIES: dict[str, Callable[..., Any]] = {"log": np.geomspace, "linear": np.linspace}


def fourier_features(
    positions: Any,
    num_bands: int,
    max_resolution: float | Sequence[float],
    bands: str = "log",
    include_positions: bool = True,
) -> np.ndarray:
    """Return sines and cosines of positions, from the slowest wave to the finest detail.

    A dimension with μ samples in [-1, 1] shows no wave faster than μ / 2 turns (Nyquist), so the
    frequencies f_k go from 1 to μ / 2, and coordinate p becomes sin(π f_k p) and cos(π f_k p).

    Args:
        positions: (..., D) coordinates in [-1, 1] of a point in D dimensions; see `grid_positions`.
        num_bands: K, how many frequencies a dimension has.
        max_resolution: μ, of all dimensions, or (D,) of each.
        bands: "log", frequencies of equal ratio (S4), or "linear", of equal distance (elsewhere).
        include_positions: whether the coordinates themselves are features, too: -1 and 1 look alike
            to a wave that turns a whole number of times between them.

    Returns:
        (..., D (2 K + 1)) float64: the D coordinates, then K sines for each of them, then the
        cosines likewise; without the coordinates (..., 2 D K).

    Raises:
        ValueError: a size is not positive, the dimensions disagree, or there are no such bands.

    Source: Jaegle et al. 2021, section 3.2, whose code spreads them linearly; S4.

    >>> fourier_features([[0.25]], num_bands=2, max_resolution=4).round(3).tolist()
    [[0.25, 0.707, 1.0, 0.707, 0.0]]
    """
    positions = np.asarray(positions, np.float64)
    resolution = np.asarray(max_resolution, np.float64)
    _check_waves(positions, num_bands, resolution, bands)
    resolution = np.broadcast_to(resolution, positions.shape[-1:])  # (D,)
    frequency = FREQUENCIES[bands](1, resolution / 2, num_bands, axis=-1)  # (D, K)
    angles = np.pi * positions[..., None] * frequency  # (..., D, K)
    angles = angles.reshape(*positions.shape[:-1], positions.shape[-1] * num_bands)
    waves = [np.sin(angles), np.cos(angles)]
    return np.concatenate([positions, *waves] if include_positions else waves, axis=-1)


def _check_waves(positions: np.ndarray, num_bands: int, resolution: np.ndarray, bands: str) -> None:
    if positions.ndim == 0:
        raise ValueError(
            "fourier_features: positions must be (..., D), got a number; grid_positions makes them"
        )
    if resolution.shape not in ((), positions.shape[-1:]) or not (resolution > 0).all():
        raise ValueError(
            "fourier_features: max_resolution must be a number above 0, or one for each of the "
            f"{positions.shape[-1]} dimensions, got {resolution.tolist()}"
        )
    if not isinstance(num_bands, int) or num_bands < 1:
        raise ValueError(
            f"fourier_features: num_bands must be a whole number above 0, got {num_bands!r}"
        )
    if bands not in FREQUENCIES:
        raise ValueError(f"fourier_features: bands must be 'log' or 'linear', got {bands!r}")


def grid_positions(shape: Sequence[int]) -> np.ndarray:
    """Return (M, D): where the M elements of a grid stand, in [-1, 1] along each of D dimensions.

    A lone element stands at 0; the last dimension runs fastest.

    >>> grid_positions((2, 3)).tolist()
    [[-1.0, -1.0], [-1.0, 0.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    axes = [np.linspace(-1, 1, size) if size > 1 else np.zeros(size) for size in shape]
    places = np.meshgrid(*axes, indexing="ij")
    return np.stack(places, axis=-1).reshape(math.prod(shape), len(axes))


@lru_cache(maxsize=8)
def _waves(first: int, end: int, width: int, dtype: np.dtype[Any], device: str) -> Array:
    """Return `sinusoids` of a block of positions, kept for the steps to come."""
    return as_array(sinusoids(np.arange(first, end), width), device, dtype)


def sinusoids(positions: np.ndarray, width: int) -> np.ndarray:
    """Return (L, width): sin(p w_c) in even, cos(p w_c) in odd channels, w_c from 1 to 1 / 10000.

    Source: Vaswani et al. 2017, section 3.5.
    """
    channel = np.arange(width)
    angles = positions[:, None] * 10_000.0 ** -(channel // 2 * 2 / width)  # (L, width)
    return np.where(channel % 2, np.cos(angles), np.sin(angles))


def position_encoding(
    positions: str | Module | None, d_model: int, max_length: int | None
) -> Module:
    """Return the position encoding of a name; a module stands for itself.

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
