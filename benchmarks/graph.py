"""Graph attention, forward and backward, beside PyTorch.

Random graphs of 10,000 nodes with 16 neighbours each, or with 2 to 10,000 of them and 15 on
average; H=8. The first peer has no kernel for graphs: it gathers a row of values for each edge, and
`index_add` sums them, as libraries for graphs do where they have nothing better. The second, on
1,000 nodes, fills the rest of a dense matrix of scores with -inf. "Backward" includes a forward.
Freed memory is kept in the process, for both.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from minitransformer import Tensor
from minitransformer.device import keep_freed_memory
from minitransformer.functions.graph import AdditiveScores, DotScores, NeighbourAttention
from minitransformer_kernels.graph import Edges

from . import harness

NODES, DEGREE, H = 10_000, 16, 8
GATHER, DENSE = "PyTorch gather and index_add", "PyTorch dense, masked"

Array = Any
Attention = Callable[..., torch.Tensor]


def rows() -> Iterator[harness.Row]:
    """Yield a row for each kind of graph, size and contestant."""
    keep_freed_memory()
    even = np.full(NODES, DEGREE)
    for width in (8, 64):
        yield from compare("additive", even, width, GATHER, f"degree {DEGREE}")
    yield from compare("dot", even, 64, GATHER, f"degree {DEGREE}")
    yield from compare("additive", uneven(), 8, GATHER, "degrees 2 to 10,000")
    yield from compare("dot", even[:1000], 64, DENSE, f"1,000 nodes, degree {DEGREE}")


def uneven() -> Array:
    """Degrees that fall off as a power of their rank, as those of many real graphs do."""
    degrees = (NODES * np.arange(1, NODES + 1) ** -0.9).astype(int)
    return np.random.default_rng(2).permutation(degrees)


def compare(score: str, degrees: Array, width: int, peer: str, graph: str) -> Iterator[harness.Row]:
    """Yield the rows of one case, having checked them against the peer in float64."""
    rng, nodes = np.random.default_rng(0), len(degrees)
    ends = np.repeat(np.arange(nodes), degrees), rng.integers(0, nodes, degrees.sum())
    edges = Edges(np.cumsum([0, *degrees]), ends[1], nodes)
    shapes = [(H, nodes, *(width,) * (score == "dot"))] * 2 + [(H, nodes, width)]
    inputs = [rng.standard_normal(shape, np.float32) for shape in shapes]
    grad = rng.standard_normal(shapes[2], np.float32)
    theirs = dense(score, *ends) if peer == DENSE else gathered(score, *ends)

    tensors = [torch.from_numpy(x).requires_grad_() for x in inputs]
    wide = [torch.from_numpy(x.astype(np.float64)) for x in inputs]
    truth = theirs(*wide).numpy()
    name = f"graph attention, {score}, M={width}, {graph}"
    mine = [Tensor(x, requires_grad=True) for x in inputs]

    def ours() -> Tensor:
        scores = (AdditiveScores if score == "additive" else DotScores).apply(
            *mine[:2], edges=edges
        )
        output: Tensor = NeighbourAttention.apply(scores, mine[2], edges)
        return output

    def peers_forward() -> torch.Tensor:
        with torch.no_grad():
            return theirs(*tensors)

    forward: harness.Contestants = {harness.OURS: ours, peer: peers_forward}
    errors = {who: harness.error(run().numpy(), truth) for who, run in forward.items()}
    for row in harness.race(f"{name}, forward", forward):
        yield row | {"error": errors[row["contestant"]]}

    def our_passes() -> list[Array]:
        for x in mine:
            x.grad = None
        ours().backward(grad)
        return [np.asarray(x.grad) for x in mine]

    def their_passes() -> list[Array]:
        found = torch.autograd.grad(theirs(*tensors), tensors, torch.from_numpy(grad))
        return [x.numpy() for x in found]

    backward: harness.Contestants = {harness.OURS: our_passes, peer: their_passes}
    exact = torch.autograd.grad(
        theirs(*(x.requires_grad_() for x in wide)), wide, torch.from_numpy(grad).double()
    )
    errors = {
        who: max(harness.error(x, y) for x, y in zip(run(), exact, strict=True))
        for who, run in backward.items()
    }
    for row in harness.race(f"{name}, backward", backward):
        yield row | {"error": errors[row["contestant"]]}


def gathered(score: str, rows: Array, columns: Array) -> Attention:
    """Attention by a row for each edge.

    Nodes come before heads, so that a gathered row is as long as can be: of five ways to write it
    (also `scatter_add`, `segment_reduce`, indexing and heads first) this took the least time.
    """
    i, j = torch.from_numpy(rows), torch.from_numpy(columns)

    def attend(x: torch.Tensor, y: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x, y, v = (z.transpose(0, 1) for z in (x, y, value))  # (T, H), or (T, H, M)
        if score == "additive":
            pairs = x.index_select(0, i) + y.index_select(0, j)
            s = torch.nn.functional.leaky_relu(pairs, 0.2)
        else:
            pairs = x.index_select(0, i) * y.index_select(0, j)
            s = pairs.sum(-1) * value.shape[-1] ** -0.5
        lowest = s.new_full(x.shape[:2], -torch.inf)
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
