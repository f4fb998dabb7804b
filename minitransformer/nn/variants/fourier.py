"""Linear attention with Fourier positions, as a variant."""

from typing import Any

import numpy as np

from minitransformer_kernels.arrays import constant

from ...attention import fourier_linear_attention, fourier_linear_attention_step
from ...device import Array
from ...functions import tanh
from ...tensor import Tensor
from ..stateful import TotalsAttention
from ..variant import register_attention


@register_attention("fourier")
class FourierLinearAttention(TotalsAttention):
    """Linear attention whose features turn with the position: learned harmonics of the distance.

    Token i stands at position i. Frequencies start as the sinusoids of Vaswani et al. 2017 have
    them, from 1 down to 1 / 10,000 radians a token; amplitudes are c = tanh of what is learned.

    Args:
        feature_map: φ, see `linear_attention`.
        options: form, denominator, guard, eps and algorithm, see `fourier_linear_attention`.

    Source: S2.
    """

    sequence = staticmethod(fourier_linear_attention)
    token = staticmethod(fourier_linear_attention_step)
    axes = 1, 1, None, None, None

    frequency: Tensor
    phase: Tensor
    unbounded_amplitude: Tensor

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make frequencies (H, E, 1), phases and amplitudes (H, E)."""
        share = np.arange(head_dim, dtype=np.float32) / head_dim
        frequency = np.tile(10_000**-share, (num_heads, 1))[..., None]
        flat = num_heads, head_dim
        self.learn("frequency", (*flat, 1), lambda: frequency)
        self.learn("phase", flat, lambda: np.zeros(flat, np.float32))
        self.learn("unbounded_amplitude", flat, lambda: np.full(flat, 1.5, np.float32))

    def inputs(self, query: Tensor, key: Tensor, first_query: int, first_key: int) -> Any:
        """Return the positions of queries and keys, (1, L, 1) each, and the wave."""
        return _places(query, first_query), _places(key, first_key), *self.wave(query)

    def wave(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return frequency (H, E, 1), phase (H, E) and amplitude (H, E), for a query."""
        return self.frequency, self.phase, tanh(self.unbounded_amplitude)


def _places(x: Tensor, first: int) -> Array:
    """Return the positions (1, L, 1) of the tokens of (N, H, L, E)."""
    along = np.arange(first, first + x.shape[2], dtype=np.float64)
    places: Array = constant(along[None, :, None], x.data)
    return places
