"""What we are compared with: PyTorch in eager mode, written as well as we could.

All sizes and names are ours: (N, H, L, E) arrays, and a transformer whose `state_dict` has the keys
of `minitransformer.nn.Transformer`, so that both sides run with the same weights.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import minitransformer as mt

from . import THREADS, harness

torch.set_num_threads(THREADS)

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Map = Callable[[Tensor], Tensor]


@cache
def compiles() -> bool:
    """Whether `torch.compile` works here: for a CPU it needs a C++ compiler."""
    with suppress(Exception):
        torch.compile(torch.neg)(torch.ones(2))
        return True
    return False


def their_passes(attend: Callable[..., Tensor], inputs: list[Tensor], grad: Any) -> list[Tensor]:
    """Return the output and the gradients, given the output's, a NumPy array."""
    output = attend(*inputs)
    return [output.detach(), *torch.autograd.grad(output, inputs, torch.from_numpy(grad))]


def contestants(
    attend: Callable[..., mt.Tensor],
    forms: Mapping[str, Callable[..., Tensor]],
    inputs: list[Any],
    grad: Any,
) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """Return who takes part: our attention and PyTorch's forms of it, on the same NumPy arrays.

    First what makes the output, then what makes the gradients, too, given the output's.
    """
    ours = [mt.Tensor(array, requires_grad=True) for array in inputs]
    theirs = [torch.from_numpy(array).requires_grad_() for array in inputs]
    forward: dict[str, Callable[[], Any]] = {harness.OURS: partial(mt.no_grad()(attend), *ours)}
    passes: dict[str, Callable[[], Any]] = {
        harness.OURS: partial(harness.our_passes, attend, ours, grad)
    }
    for name, form in forms.items():
        forward[name] = partial(form, *theirs)
        passes[name] = partial(their_passes, form, theirs, grad)
    return forward, passes


def softmax_eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(E)) V, one operation after the other."""
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1) @ value


def features(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1."""
    return F.elu(x) + 1


def linear_chunk(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, state: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a chunk's outputs, and S and Z behind it."""
    scores = torch.bmm(q, k.mT) * mask  # (N H, C, C)
    numerator = torch.baddbmm(torch.bmm(scores, v), q, state)
    denominator = scores.sum(-1, keepdim=True) + (q * total).sum(-1, keepdim=True)
    return numerator / denominator, torch.baddbmm(state, k.mT, v), total + k.sum(1, keepdim=True)


def linear_chunkwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunk: int = 64,
    phi: Map = features,
    step: Callable[..., Any] = linear_chunk,
) -> Tensor:
    """Causal linear attention, chunk by chunk; PyTorch derives the backward.

    Of eight ways to write it, this took the least time on a CPU at L = 1024 and 4096, forward and
    backward. It carries the state in a loop: a chunk then stays in the cache, while the forms that
    compute all chunks at once, or `cumsum` all states, go through memory a dozen times. A mask that
    is multiplied beats `tril`.
    """
    batch, heads, length, _ = query.shape
    q, k = (phi(x).flatten(0, 1) for x in (query, key))  # (N H, L, E)
    width = q.shape[-1]
    v = value.flatten(0, 1)  # (N H, L, M)
    mask = q.new_ones(chunk, chunk).tril()
    state = q.new_zeros(batch * heads, width, v.shape[-1])  # S: (N H, E, M)
    total = q.new_zeros(batch * heads, 1, width)  # Z: (N H, 1, E)
    outputs = []
    for q_t, k_t, v_t in zip(q.split(chunk, 1), k.split(chunk, 1), v.split(chunk, 1), strict=True):
        output, state, total = step(q_t, k_t, v_t, mask, state, total)
        outputs.append(output)
    return torch.cat(outputs, 1).view(batch, heads, length, -1)


def linear_compiled() -> Attention:
    """Causal linear attention, chunk by chunk, each compiled, its features too, and its backward.

    The loop stays Python's: with it, sixteen chunks took 110 s to compile.
    """

    def chunk(q: Tensor, k: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return linear_chunk(features(q), features(k), *others)

    return partial(linear_chunkwise, phi=lambda x: x, step=torch.compile(chunk))


def linear_at_once(
    query: Tensor, key: Tensor, value: Tensor, chunk: int = 64, phi: Map = features
) -> Tensor:
    """Causal linear attention, all chunks at once: few operations, but on much memory.

    What a GPU is given: there each operation costs a launch, and nothing stays in a cache.
    """
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (phi(query), phi(key), value))
    sums = k.mT @ v  # (N, H, L / C, E, M), of each chunk
    state = sums.cumsum(2) - sums  # of those before it
    total = k.sum(-2, keepdim=True)
    total = total.cumsum(2) - total  # (N, H, L / C, 1, E)
    scores = q @ k.mT * q.new_ones(chunk, chunk).tril()
    denominator = scores.sum(-1, keepdim=True) + (q * total).sum(-1, keepdim=True)
    return ((scores @ v + q @ state) / denominator).flatten(2, 3)


def linear_quadratic(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal linear attention by its masked scores: the fastest eager form while L is about E."""
    mask = query.new_ones(query.shape[-2], key.shape[-2]).tril()
    scores = features(query) @ features(key).mT * mask
    return scores @ value / scores.sum(-1, keepdim=True)


def linear_bidirectional(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Linear attention to all keys: sum them first."""
    q, k = features(query), features(key)
    return q @ (k.mT @ value) / (q @ k.sum(-2, keepdim=True).mT)


def relative_quadratic(query: Tensor, key: Tensor, value: Tensor, embedding: Tensor) -> Tensor:
    """Causal linear attention with Shaw's relative positions, by its masked scores.

    Each row has k + 1 different weights, softplus(q . e_r) for r from -k to 0: `gather` spreads
    them out over the keys.
    """
    length, furthest = query.shape[-2], embedding.shape[1] // 2
    q, k = features(query), features(key)
    weights = F.softplus(q @ embedding[:, : furthest + 1].mT)  # (N, H, L, k + 1)
    place = torch.arange(length, device=query.device)
    rows = (furthest + place - place[:, None]).clamp(0, furthest)  # of the embedding, r + k
    scores = q @ k.mT + weights.gather(-1, rows.expand(*q.shape[:2], -1, -1))
    scores = scores * scores.new_ones(length, length).tril()
    return scores @ value / scores.sum(-1, keepdim=True)


def fourier_quadratic(
    query: Tensor, key: Tensor, value: Tensor, frequency: Tensor, phase: Tensor, amplitude: Tensor
) -> Tensor:
    """Causal linear attention with weights 1 + c cos(b + a (i - j)), by its masked scores.

    The cosine of a difference is split in two, so that no array (N, H, L, L, E) is made.
    """
    q, k = features(query), features(key)
    positions = torch.arange(query.shape[2], dtype=torch.float64, device=query.device)[:, None]
    turn = (positions[..., None, :] * frequency[:, None]).sum(-1)  # (H, L, E)
    angle = (turn + phase[:, None]).to(query.dtype)
    turn = turn.to(query.dtype)
    scaled = amplitude[:, None] * q
    q_hat = torch.cat([scaled * angle.cos(), scaled * angle.sin(), q], -1)  # (N, H, L, 3 E)
    k_hat = torch.cat([k * turn.cos(), k * turn.sin(), k], -1)
    scores = q_hat @ k_hat.mT
    scores = scores * scores.new_ones(scores.shape[-2:]).tril()
    return scores @ value / scores.sum(-1, keepdim=True)


class MultiHeadAttention(nn.Module):
    """H attentions between projections."""

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.query_projection = nn.Linear(width, width)
        self.key_projection = nn.Linear(width, width)
        self.value_projection = nn.Linear(width, width)
        self.out_projection = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Let queries (N, Lq, D) attend to keys (N, Lk, D)."""
        projected = (
            self.query_projection(query),
            self.key_projection(key),
            self.value_projection(key),
        )
        split = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected)
        output = self.attention(*split).transpose(1, 2).flatten(2)
        joined: Tensor = self.out_projection(output)
        return joined


class Residual(nn.Module):
    """The normalization before a sublayer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the sublayer gets."""
        normalized: Tensor = self.norm(x)
        return normalized


class FeedForward(nn.Module):
    """Two linear maps around a ReLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.residual = Residual(width)
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Identity(),
            nn.Linear(hidden, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, L, D) to (N, L, D)."""
        update: Tensor = self.layers(self.residual(x))
        return x + update


class EncoderLayer(nn.Module):
    """Bidirectional self-attention and a feed-forward network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.residual = Residual(width)
        self.self_attention = MultiHeadAttention(width, heads, linear_bidirectional)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, L, D) to (N, L, D)."""
        normalized = self.residual(x)
        output: Tensor = self.feed_forward(x + self.self_attention(normalized, normalized))
        return output


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, and a feed-forward network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_residual = Residual(width)
        self.self_attention = MultiHeadAttention(width, heads, linear_quadratic)
        self.cross_residual = Residual(width)
        self.cross_attention = MultiHeadAttention(width, heads, linear_bidirectional)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Map (N, L, D) to (N, L, D)."""
        normalized = self.self_residual(x)
        x = x + self.self_attention(normalized, normalized)
        x = x + self.cross_attention(self.cross_residual(x), memory)
        output: Tensor = self.feed_forward(x)
        return output


class Stack(nn.Module):
    """Layers, and the normalization that pre-norm layers leave to the end."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        """Map (N, L, D) to (N, L, D)."""
        for layer in self.layers:
            x = layer(x, *memory)
        normalized: Tensor = self.norm(x)
        return normalized


class Positions(nn.Module):
    """A learned vector for every position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(length, width)


class TokenEmbedding(nn.Module):
    """Vectors for tokens at their positions."""

    def __init__(self, tokens: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = Positions(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map integers (N, L) to (N, L, D)."""
        vectors: Tensor = self.tokens(tokens)
        return vectors + self.positions.vectors.weight[: tokens.shape[1]]


class Transformer(nn.Module):
    """The encoder-decoder transformer with linear attention.

    Args:
        source_tokens: Size of the source's vocabulary.
        target_tokens: Size of the target's vocabulary.
        length: Learned positions.
        width: D.
        heads: H.
        layers: Layers of the encoder, and as many of the decoder.
        hidden: Width of the feed-forward networks.
    """

    def __init__(
        self,
        source_tokens: int,
        target_tokens: int,
        length: int,
        width: int,
        heads: int,
        layers: int,
        hidden: int,
    ) -> None:
        super().__init__()
        size = width, heads, hidden
        self.source_embedding = TokenEmbedding(source_tokens, length, width)
        self.encoder = Stack([EncoderLayer(*size) for _ in range(layers)], width)
        self.target_embedding = TokenEmbedding(target_tokens, length, width)
        self.decoder = Stack([DecoderLayer(*size) for _ in range(layers)], width)
        self.head = nn.Linear(width, target_tokens)

    def compile_layers(self) -> None:
        """Compile a layer of the encoder and one of the decoder; the others are like them."""
        for layer in (*self.encoder.layers, *self.decoder.layers):
            layer.compile()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map tokens (N, Ls) and (N, Lt) to logits (N, Lt, V)."""
        memory = self.encoder(self.source_embedding(source))
        logits: Tensor = self.head(self.decoder(self.target_embedding(target), memory))
        return logits


def delta_loop(query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
    """The delta rule from its definition, token by token; PyTorch derives the backward."""
    q, k, v = (x.flatten(0, 1)[:, :, None] for x in (query, key, value))  # (N H, L, 1, E)
    rate = beta.flatten(0, 1)[..., None, None]
    state = q.new_zeros(q.shape[0], q.shape[-1], v.shape[-1])  # W: (N H, E, M)
    outputs = []
    for q_t, k_t, v_t, rate_t in zip(*(x.unbind(1) for x in (q, k, v, rate)), strict=True):
        residual = v_t - torch.bmm(k_t, state)  # (N H, 1, M)
        state = torch.baddbmm(state, k_t.mT, rate_t * residual)
        outputs.append(torch.bmm(q_t, state))
    return torch.cat(outputs, 1).view(value.shape)


def delta_chunk(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, mask: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a chunk's outputs, and W behind it.

    (I + strict(K K^T) diag(beta)) R = V - K W, in terms of U = diag(beta) R.
    """
    strict = mask.tril(-1)
    system = mask - strict + torch.bmm(rate * k, k.mT) * strict
    wanted = rate * torch.baddbmm(v, k, state, alpha=-1)
    writes = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    scores = torch.bmm(q, k.mT) * mask  # (N H, C, C)
    return torch.baddbmm(torch.bmm(scores, writes), q, state), torch.baddbmm(state, k.mT, writes)


def delta_chunkwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    chunk: int = 64,
    step: Callable[..., Any] = delta_chunk,
) -> Tensor:
    """The delta rule, chunk by chunk: the residuals of a chunk solve a triangular system."""
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))  # (N H, L, E)
    rate = beta.flatten(0, 1)[..., None]
    mask = q.new_ones(chunk, chunk).tril()
    state = q.new_zeros(q.shape[0], q.shape[-1], v.shape[-1])  # W: (N H, E, M)
    outputs = []
    chunks = (x.split(chunk, 1) for x in (q, k, v, rate))
    for q_t, k_t, v_t, rate_t in zip(*chunks, strict=True):
        output, state = step(q_t, k_t, v_t, rate_t, mask, state)
        outputs.append(output)
    return torch.cat(outputs, 1).view(value.shape)


def delta_compiled() -> Callable[..., Tensor]:
    """The delta rule, chunk by chunk, each compiled, and its backward."""
    return partial(delta_chunkwise, step=torch.compile(delta_chunk))
