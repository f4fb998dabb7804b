"""A decoder in PyTorch that continues sequences token by token: what ours is compared with.

Its `state_dict` has the keys of `minitransformer.nn.TransformerLM`, so that both sides run with the
same weights. What a layer remembers of the past is a module that attends, in the place of its
attention; all of them write to memory that was there before the first token, so that the launches
of a step are the same for every token and CUDA can replay them as one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from .. import peers

Result = TypeVar("Result")

WARM_UP = 3  # calls before a capture, as PyTorch asks


class Sums(nn.Module):
    """The state (S, Z) of causal linear attention."""

    S: Tensor
    Z: Tensor

    def __init__(self, batch: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("S", torch.zeros(batch, heads, head_dim, head_dim), persistent=False)
        self.register_buffer("Z", torch.zeros(batch, heads, 1, head_dim), persistent=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with one token (N, H, 1, E) to itself and all before it."""
        q, k = peers.features(query), peers.features(key)
        self.S.addcmul_(k.mT, value)
        self.Z += k
        return (q @ self.S) / (q * self.Z).sum(-1, keepdim=True)


class FastWeights(nn.Module):
    """The state W of the delta rule."""

    W: Tensor

    def __init__(self, batch: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("W", torch.zeros(batch, heads, head_dim, head_dim), persistent=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
        """Correct W by one token (N, H, 1, E), with beta (N, H, 1, 1), and read it."""
        q, k = (f / f.sum(-1, keepdim=True) for f in map(peers.features, (query, key)))
        self.W.addcmul_(k.mT, beta * (value - k @ self.W))
        return q @ self.W


class Cache(nn.Module):
    """Keys and values in arrays for the longest sequence, of which it reads what was written."""

    keys: Tensor
    values: Tensor

    def __init__(self, batch: int, heads: int, head_dim: int, length: int) -> None:
        super().__init__()
        shape = batch, heads, length, head_dim
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)
        self.count = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with one token (N, H, 1, E) to itself and all before it."""
        last, self.count = self.count, self.count + 1
        self.keys[:, :, last : self.count] = key
        self.values[:, :, last : self.count] = value
        seen = self.keys[:, :, : self.count], self.values[:, :, : self.count]
        return scaled_dot_product_attention(query, *seen)


class MaskedCache(Cache):
    """The same in shapes that no token changes: it reads the whole arrays, under a mask."""

    position: Tensor

    def __init__(self, batch: int, heads: int, head_dim: int, length: int) -> None:
        super().__init__(batch, heads, head_dim, length)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with one token (N, H, 1, E) to itself and all before it."""
        self.keys.index_copy_(2, self.position, key)
        self.values.index_copy_(2, self.position, value)
        places = torch.arange(self.keys.shape[2], device=self.keys.device)
        mask = (places <= self.position)[None, None, None]  # (1, 1, 1, L)
        self.position += 1
        return scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)


class Decoder(nn.Module):
    """A decoder-only transformer with learned positions.

    Args:
        tokens: Size of the vocabulary.
        length: Learned positions.
        width: D.
        heads: H.
        layers: How many.
        attention: Makes the attention of a layer.
    """

    position: Tensor

    def __init__(
        self,
        tokens: int,
        length: int,
        width: int,
        heads: int,
        layers: int,
        attention: Callable[[], peers.Attention],
    ) -> None:
        super().__init__()
        self.embedding = peers.TokenEmbedding(tokens, length, width)
        stack = [peers.EncoderLayer(width, heads, 4 * width) for _ in range(layers)]
        for layer in stack:
            layer.self_attention.attention = attention()
        self.decoder = peers.Stack(list(stack), width)
        self.head = nn.Linear(width, tokens)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (N, L) to logits (N, L, V), by an attention to whole sequences."""
        logits: Tensor = self.head(self.decoder(self.embedding(tokens)))
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Map the next tokens (N,) to logits (N, V), by an attention that remembers."""
        place = self.embedding.positions.vectors.weight[self.position]  # (1, D)
        x = self.embedding.tokens(tokens[:, None]) + place
        self.position += 1
        logits: Tensor = self.head(self.decoder(x))
        return logits[:, -1]

    def forget(self) -> None:
        """Return to the state before the first token."""
        for memory in self.buffers():
            memory.zero_()
        for module in self.modules():
            if isinstance(module, Cache):
                module.count = 0


def graphed(run: Callable[[], Result]) -> Callable[[], Result]:
    """Return a function that replays the launches of a call as one CUDA graph.

    The call is made a few times first; it must read and write the same memory each time.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay(_: object = run) -> Result:  # a graph does not keep alive what it reads and writes
        graph.replay()
        return result

    return replay
