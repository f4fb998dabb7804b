"""Graph attention, forward and backward, beside PyTorch.

Random graphs of 10,000 nodes with 16 neighbours each, or with 2 to 10,000 of them and 15 on
average; H=8. The first peer has no kernel for graphs: it gathers a row of values for each edge, and
`index_add` sums them, as libraries for graphs do where they have nothing better. The second, on
1,000 nodes, fills the rest of a dense matrix of scores with -inf. PyTorch derives the backward.
Freed memory is kept in the process, for both.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from minitransformer import Tensor
from minitransformer.attention.graph import AdditiveScores, DotScores, NeighbourAttention
from minitransformer.device import keep_freed_memory
from minitransformer_kernels.graph import Edges

from . import harness, peers

NODES, DEGREE, H = 10_000, 16, 8

Array = Any
Attention = Callable[..., torch.Tensor]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each kind of graph, size and contestant."""
    keep_freed_memory()
    even = np.full(NODES, DEGREE)
    yield from compare("additive", 8, even, f"degree {DEGREE}", gathered)
    yield from compare("additive", 8, uneven(), "degrees 2 to 10,000", gathered)
    yield from compare("dot", 64, even, f"degree {DEGREE}", gathered)
    yield from compare("dot", 64, even[:1000], f"1,000 nodes, degree {DEGREE}", dense)


def uneven() -> Array:
    """Degrees that fall off as a power of their rank, as those of many real graphs do."""
    degrees = (NODES * np.arange(1, NODES + 1) ** -0.9).astype(int)
    return np.random.default_rng(2).permutation(degrees)


def compare(
    score: str, width: int, degrees: Array, graph: str, peer: Callable[..., Attention]
) -> Iterator[harness.Row]:
    """Yield the rows of one case, having checked them against the peer in float64."""
    rng, nodes = np.random.default_rng(0), len(degrees)
    ends = np.repeat(np.arange(nodes), degrees), rng.integers(0, nodes, degrees.sum())
    edges = Edges(np.cumsum([0, *degrees]), ends[1], nodes)
    *shapes, shape = [(H, nodes, *(width,) * (score == "dot"))] * 2 + [(H, nodes, width)]
    inputs = [rng.standard_normal(size, np.float32) for size in (*shapes, shape)]
    grad, theirs = rng.standard_normal(shape, np.float32), peer(score, *ends)

    forms = {f"PyTorch {peer.__name__}": theirs}
    _, passes = peers.contestants(partial(attend, score, edges), forms, inputs, grad)
    wide = [torch.from_numpy(x).double().requires_grad_() for x in inputs]
    truth = peers.their_passes(theirs, wide, grad.astype(np.float64))

    def error(got: list[Array]) -> float:
        return max(harness.error(x, right) for x, right in zip(got, truth, strict=True))

    case = f"graph attention, {score}, M={width}, {graph}"
    yield from harness.checked_race(case, passes, error)


def attend(score: str, edges: Edges, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the output of our attention."""
    scores = (AdditiveScores if score == "additive" else DotScores).apply(query, key, edges=edges)
    output: Tensor = NeighbourAttention.apply(scores, value, edges)
    return output


def gathered(score: str, rows: Array, columns: Array) -> Attention:
    """Attention by a row for each edge.

    Nodes come before heads, so that a gathered row is as long as can be: of four ways to write it
    (also heads first, by indexing, and by `segment_reduce`) this took the least time.
    """
    i, j = torch.from_numpy(rows), torch.from_numpy(columns)

    def attend(x: torch.Tensor, y: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x, y, v = (z.transpose(0, 1) for z in (x, y, value))  # (T, H), or (T, H, M)
        x, y = x.index_select(0, i), y.index_select(0, j)
        if score == "additive":
            s = torch.nn.functional.leaky_relu(x + y, 0.2)
        else:
            s = (x * y).sum(-1) * value.shape[-1] ** -0.5
        lowest = s.new_full(v.shape[:2], -torch.inf)
        highest = lowest.scatter_reduce(0, i[:, None].expand(s.shape), s.detach(), "amax")
        e = (s - highest.index_select(0, i)).exp()
        p = e / torch.zeros_like(highest).index_add(0, i, e).index_select(0, i)
        output = v.new_zeros(v.shape).index_add(0, i, p[..., None] * v.index_select(0, j))
        return output.transpose(0, 1)

    return attend


def dense(score: str, rows: Array, columns: Array) -> Attention:
    """Attention by all pairs: an edge that is there n times adds log n to its score."""
    counts = np.zeros((rows.max() + 1,) * 2)
    np.add.at(counts, (rows, columns), 1)
    with np.errstate(divide="ignore"):
        mask = torch.from_numpy(np.log(counts))

    def attend(x: torch.Tensor, y: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if score == "additive":
            s = torch.nn.functional.leaky_relu(x[:, :, None] + y[:, None], 0.2)
        else:
            s = x @ y.mT * value.shape[-1] ** -0.5
        return torch.softmax(s + mask.to(s.dtype), -1) @ value

    return attend


if __name__ == "__main__":
    harness.main("graph", rows)
