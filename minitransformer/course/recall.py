"""The course's measure of a memory: pairs are written to it, then each of them is asked for.

A sequence names 32 of 64 keys, in any order, and gives each a value, one of 16. Then it asks for
every key once, in another order. What answers is one layer with one head: as its tokens are names,
its projections are tables of queries, keys and values, which are learned, as is the map from an
output to the 16 values. A guess is right once in 16.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import functions as F
from .. import nn, no_grad, optim, random
from ..tensor import Tensor
from .measuring import FAST
from .showing import table

KEYS, VALUES, PAIRS = 64, 16, 32
BATCH = 16
STEPS = 0 if FAST else 300  # at small size nothing learns: a backward would have to be compiled

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Asked(NamedTuple):
    """Sequences: `keys` and their `values`, `(N, 32)`; what is `asked`, and the `answers`."""

    keys: Any
    values: Any
    asked: Any
    answers: Any


Task = Callable[[np.random.Generator], Iterator[Asked]]


class Row(NamedTuple):
    """A row of the scoreboard.

    Attributes:
        attention: Its name.
        kept: How many numbers it keeps of 32 pairs.
        work: Multiplications for the next token.
        recalled: The share of 32 pairs that it recalls.
    """

    attention: str
    kept: int
    work: int
    recalled: float


class Memory(nn.Module):
    """One head that reads pairs and answers questions.

    Args:
        attention: Of queries `(N, 1, 32, E)` that come after all keys `(N, 1, 32, E)` and values
            `(N, 1, 32, E)`.
        width: E.
    """

    def __init__(self, attention: Attention, width: int) -> None:
        self.attention = attention
        self.query, self.key = (nn.Embedding(KEYS, width) for _ in range(2))
        self.value = nn.Embedding(VALUES, width)
        self.answer = nn.Linear(width, VALUES)

    def forward(self, pairs: Asked) -> Tensor:
        """Return the scores of all values, `(N, 32, 16)`."""
        query, key, value = self.query(pairs.asked), self.key(pairs.keys), self.value(pairs.values)
        output = self.attention(*(x[:, None] for x in (query, key, value)))  # (N, 1, 32, E)
        return self.answer(output[:, 0])


def recall(
    attention: Attention,
    width: int = 16,
    steps: float = STEPS,
    seed: int = 0,
    seconds: float = math.inf,
    task: Task | None = None,
) -> float:
    """Train a memory for a second or two; return which share of pairs it then recalls.

    Args:
        attention: As `Memory` takes it.
        width: E = M, the head's.
        steps: Of Adam, with 16 sequences each; at most as many.
        seed: Decides the sequences, and where training begins.
        seconds: How long it may train, from its second step on: the first one compiles.
        task: What makes the sequences; None for pairs.
    """
    random.manual_seed(seed)
    draw = (task or sequences)(np.random.default_rng(seed))
    memory = Memory(attention, width)
    optimizer = optim.Adam(memory.parameters(), lr=0.03)
    step, began = 0, math.inf
    while step < steps and time.perf_counter() - began < seconds:
        pairs = next(draw)
        loss = F.cross_entropy(memory(pairs).transpose(1, 2), pairs.answers)  # classes second
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        began = min(began, time.perf_counter())
    with no_grad():
        tried = [
            (memory(pairs).numpy().argmax(-1), pairs.answers) for pairs in map(next, [draw] * 8)
        ]
    return float(np.mean([said == right for said, right in tried]))


def sequences(draw: np.random.Generator) -> Iterator[Asked]:
    """Return batches of sequences without end."""
    while True:
        keys = draw.permuted(np.tile(np.arange(KEYS), (BATCH, 1)), axis=1)[:, :PAIRS]
        values = draw.integers(VALUES, size=keys.shape)
        order = draw.permuted(np.tile(np.arange(PAIRS), (BATCH, 1)), axis=1)
        asked, answers = (np.take_along_axis(x, order, axis=1) for x in (keys, values))
        yield Asked(keys, values, asked, answers)


def earlier(distance: int, draw: np.random.Generator) -> Iterator[Asked]:
    """Return batches without end of another task, which asks for an order.

    Each of 32 symbols asks which one of 16 stood so many places before it; `distance` more stand in
    front. So query i is at position i + distance.
    """
    while True:
        symbols = draw.integers(VALUES, size=(BATCH, PAIRS + distance))
        yield Asked(symbols, symbols, symbols[:, distance:], symbols[:, :PAIRS])


def rewritten(draw: np.random.Generator) -> Iterator[Asked]:
    """Return batches without end of a third task, in which keys get new values.

    Each of 16 keys gets a value, then each, in another order, one more. The last one is right. Who
    cannot tell the two apart is right once in two, and where they are equal: (1 + 1/16) / 2.
    """
    once = PAIRS // 2
    while True:
        first = draw.permuted(np.tile(np.arange(KEYS), (BATCH, 1)), axis=1)[:, :once]
        again = draw.permuted(first, axis=1)
        values = draw.integers(VALUES, size=(2, *first.shape))
        order = draw.permuted(np.tile(np.arange(once), (BATCH, 1)), axis=1)
        asked, answers = (np.take_along_axis(x, order, axis=1) for x in (again, values[1]))
        yield Asked(np.hstack([first, again]), np.hstack([*values]), asked, answers)


def pages(draw: np.random.Generator) -> Iterator[Asked]:
    """Return batches without end of a fourth task, in which a page is turned.

    Of 16 keys 8 to 15 get values. Then comes a mark, the last key of all, with any value: what
    stands before it is void. Then each of the 16 gets a value, which is asked for.
    """
    once = PAIRS // 2
    while True:
        again = draw.permuted(np.tile(np.arange(KEYS - 1), (BATCH, 1)), axis=1)[:, :once]
        first = draw.permuted(again, axis=1)[:, : draw.integers(once // 2, once)]
        mark = np.full((BATCH, 1), KEYS - 1)
        keys = np.hstack([first, mark, again])
        values = draw.integers(VALUES, size=keys.shape)
        order = draw.permuted(np.tile(np.arange(once), (BATCH, 1)), axis=1)
        last = values[:, -once:]
        asked, answers = (np.take_along_axis(x, order, axis=1) for x in (again, last))
        yield Asked(keys, values, asked, answers)


def scoreboard(*rows: Row) -> None:
    """Print rows of the scoreboard."""
    head = "attention", "numbers kept", "work a token", "recall of 32 pairs"
    table(head, [(*row[:3], f"{row.recalled:.0%}") for row in rows])
