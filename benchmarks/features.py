"""Feature maps of whole rows, forward and backward, beside PyTorch.

FAVOR+ with R=128 random features, and DPFP with nu=2. The peers are the formulas in eager PyTorch,
with a backward by autograd. N=8, H=8, L=2048, E=64.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from minitransformer import Tensor
from minitransformer.nn import DPFP, Favor, FeatureMap

from . import harness, peers

N, H, L, E = 8, 8, 2048, 64
EAGER = "PyTorch eager"

Array = Any


def rows() -> Iterator[harness.Row]:
    """Yield a row for each feature map and contestant."""
    x = np.random.default_rng(0).standard_normal((N, H, L, E), np.float32)
    favor, dpfp = Favor(E, 128, seed=0), DPFP(nu=2)
    projection = torch.from_numpy(favor.projection.numpy())
    yield from compare("FAVOR+", x, favor, lambda x: their_favor(x, projection))
    yield from compare("DPFP", x, dpfp, lambda x: their_dpfp(x, dpfp.nu))


def compare(
    name: str, x: Array, ours: FeatureMap, theirs: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[harness.Row]:
    """Yield the rows of one feature map, having checked it against float64."""
    grad = np.random.default_rng(1).standard_normal((*x.shape[:-1], ours.dim(E)), np.float32)
    _, passes = peers.contestants(ours, {EAGER: theirs}, [x], grad)
    truth = ours(Tensor(x[:1].astype(np.float64))).numpy()
    (_, slope), (_, right) = (run() for run in passes.values())
    harness.error(slope, right)
    case = f"{name} features, forward and backward, L={L}"
    yield from harness.checked_race(case, passes, lambda got: harness.error(got[0][:1], truth))


def their_favor(x: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """exp(s W x - s² |x|² / 2) / sqrt(R)."""
    scaled = x * x.shape[-1] ** -0.25
    half_square = (scaled * scaled).sum(-1, keepdim=True) / 2
    return torch.exp(scaled @ projection.T - half_square) * len(projection) ** -0.5


def their_dpfp(x: torch.Tensor, nu: int) -> torch.Tensor:
    """r_a r_(a+m), as the authors' code rolls it."""
    r = torch.cat([x.relu(), (-x).relu()], -1)
    return torch.cat([r * r.roll(-m, -1) for m in range(1, nu + 1)], -1)


def their_cosformer(x: torch.Tensor) -> torch.Tensor:
    """relu(x) cos, relu(x) sin."""
    length = x.shape[-2]
    angle = torch.arange(length, device=x.device)[:, None] * (math.pi / (2 * length))
    r = x.relu()
    return torch.cat([r * angle.cos(), r * angle.sin()], -1)


if __name__ == "__main__":
    harness.main("features", rows)
