"""Models on slices: within `along_sequence`, every sequence that a layer sees is a rank's slice.

Most layers look at one token at a time, and have nothing to do: linear maps, norms, activations,
residual sums. Four look further:

    attention     asks the other ranks, as the functions of this package do
    embeddings    count positions from the first token of the first rank
    dropout       draws for the tokens of all ranks, and takes its own
    places        Fourier features are made of all, and each rank takes those of its own

A loss over tokens is a share: the sum over the own tokens, by the number of tokens of all. Shares
add up to the loss, so the gradients of parameters, added up over all ranks, are those of one
process; and so with results that every rank has, such as a Perceiver's latents, each counts 1 / P.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from .. import attention as whole
from .. import nn, random
from ..errors import UserError
from ..nn.stateful import StatefulAttention
from ..nn.transformer import TokenEmbedding
from ..nn.variants.local import LocalAttention
from ..nn.variants.softmax import SoftmaxAttention
from ..tasks import share
from ..tensor import Tensor
from . import attention, softmax
from .slices import spans
from .world import World

ON_SLICES: dict[Any, Callable[..., Tensor]] = {
    whole.delta_attention: attention.delta_attention,
    whole.fourier_linear_attention: attention.fourier_linear_attention,
    whole.linear_attention: attention.linear_attention,
    whole.relative_linear_attention: attention.relative_linear_attention,
}
LANDMARKS = "stride", "num_global", "global_queries"


@contextmanager
def along_sequence(model: nn.Module, world: World) -> Iterator[None]:
    """Let a model run on slices of its sequences, each rank on its own.

    Inside, the model takes its rank's tokens (N, L_r) in the place of all (N, L), and lengths of
    whole sequences; backward has to run inside, too. Outside it is what it was. A Perceiver takes
    its whole input: each rank reads a part of it, and all have the latents.

    Args:
        model: the model; all ranks have the same.
        world: the ranks, in the order of their slices.

    Raises:
        UserError: a layer has no form on slices; the message says which, and the way out.

    >>> model = nn.TransformerLM(10, 8, 2, 1, attention="linear", dropout=0.0)
    >>> with along_sequence(model, World()):  # one rank, as nobody called mpiexec
    ...     model([[3, 1, 4]]).shape
    (1, 3, 10)
    """
    changed = dict(_forwards(model, world, model.training))
    for module, forward in changed.items():
        vars(module)["forward"] = forward  # of this instance alone, before its class's
    try:
        yield
    finally:
        for module in changed:
            del vars(module)["forward"]


def _forwards(
    module: nn.Module, world: World, training: bool
) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """Yield the modules that do something else on slices, and what."""
    below = [child for _, child in module.named_children()]
    if isinstance(module, nn.Perceiver):  # all ranks have the latents, and what comes of them
        below = [block.cross.attention for block in module.blocks]
    elif isinstance(module, nn.FourierPositions):
        yield module, partial(_own_places, module, world)
    elif isinstance(module, nn.Dropout) and training and module.p:
        yield module, partial(_dropped, module, world)
    elif isinstance(module, TokenEmbedding):
        yield module, partial(_embedded, module, world)
    elif isinstance(module, nn.MultiHeadAttention):
        if training and module.dropout:
            raise UserError(
                f"slices of a sequence cannot drop attention weights (dropout={module.dropout}), "
                "which a rank would have to know of all others; drop outputs by out_dropout, or "
                "use --parallel data"
            )
        yield module.attention, _attending(module.attention, world)
    elif isinstance(module, nn.GraphAttention):
        raise UserError(
            "a graph cannot be cut along a sequence: its nodes have no order, and the neighbours "
            "of a slice may lie in all others; use --parallel data"
        )
    for child in below:
        yield from _forwards(child, world, training)


def _own_places(module: nn.FourierPositions, world: World, x: Tensor) -> Tensor:
    """Return the own part (B, M_r, C) of all places (B, M, C)."""
    places = type(module).forward(module, x)
    return places[:, share(places.shape[1], world.rank, world.size)]


def _embedded(module: TokenEmbedding, world: World, tokens: Any, offset: int = 0) -> Tensor:
    """Return the embeddings of the own tokens, at the positions where they stand."""
    (own,) = spans(world, np.shape(tokens)[1])
    return type(module).forward(module, tokens, offset + own[world.rank][0])


def _dropped(module: nn.Dropout, world: World, x: Tensor) -> Tensor:
    """Drop of the own tokens (N, L_r, ...) what one process would: numbers are drawn for all."""
    (places,) = spans(world, x.shape[1])
    (N, *_), (begin, end) = x.shape, places[world.rank]
    batch = random.parts() or ((slice(0, N), N),)
    with random.part_of(*batch, (slice(begin, end), places[-1][1])):
        return type(module).forward(module, x)


def _attending(variant: Any, world: World) -> Callable[..., Tensor]:
    """Return the forward of a variant of attention on slices."""
    own: dict[str, Any]
    if isinstance(variant, SoftmaxAttention):
        own = {"scale": variant.scale, "relative_embedding": variant.embedding}
        return partial(softmax.softmax_attention, world=world, **own)
    if isinstance(variant, LocalAttention):
        if any(variant.options[name] for name in LANDMARKS):
            raise UserError(
                "local attention on slices has no keys that are seen from everywhere "
                f"({', '.join(LANDMARKS)}): every rank would need them; use softmax, or "
                "--parallel data"
            )
        own = {name: x for name, x in variant.options.items() if name not in LANDMARKS}
        own["relative_embedding"] = variant.embedding
        return partial(softmax.local_attention, world=world, **own)
    if isinstance(variant, StatefulAttention) and variant.sequence in ON_SLICES:
        return partial(_stateful, variant, world)
    raise UserError(
        f"{type(variant).__name__} has no form on slices of a sequence; there is one of "
        "every attention that this package trains; use --parallel data"
    )


def _stateful(
    variant: StatefulAttention,
    world: World,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_offset: int = 0,
    **visible: Any,
) -> Tensor:
    """Attend, see `AttentionVariant.forward`."""
    if query_offset:
        raise UserError(
            f"attention with a state on slices needs query_offset=0, got {query_offset}: a rank "
            "hands on the state at the end of its slice, and no other"
        )
    first = 0, 0
    if 1 in variant.axes:  # it has positions
        queries, keys = spans(world, query.shape[2], key.shape[2])
        first = queries[world.rank][0], keys[world.rank][0]
    inputs = variant.inputs(query, key, *first)
    options = {"feature_map": variant.feature_map, **variant.options, **visible}
    return ON_SLICES[variant.sequence](query, key, value, *inputs, world=world, **options)
