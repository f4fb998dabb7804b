"""cosFormer as a variant."""

from minitransformer_kernels.arrays import constant
from minitransformer_kernels.fourier import cosformer

from ...tensor import Tensor
from ..variant import register_attention
from .fourier import FourierLinearAttention


@register_attention("cosformer")
class CosFormerAttention(FourierLinearAttention):
    """relu features, re-weighted by cos(pi (i - j) / 2T): a Fourier attention that learns nothing.

    Args:
        longest: T, at least the length of the longest sequence: beyond it weights are negative.
        algorithm: see `fourier_linear_attention`.

    Source: Qin et al. 2022, equation 10.
    """

    def __init__(self, longest: int = 1024, algorithm: str = "auto") -> None:
        super().__init__("relu", form="cos", denominator="rotated", algorithm=algorithm)
        self.longest = longest

    def prepare(self, num_heads: int, head_dim: int) -> None:
        """Make the frequencies, phases and amplitudes, which are no parameters."""
        self.fixed = cosformer(self.longest, num_heads, head_dim)

    def wave(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return frequency pi / 2T, phase 0 and amplitude 1, for a query."""
        frequency, phase, amplitude = (
            Tensor(constant(x.astype(query.dtype), query.data)) for x in self.fixed
        )
        return frequency, phase, amplitude
