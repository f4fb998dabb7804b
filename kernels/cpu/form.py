"""A kernel in canonical form, which step 3 makes of it, and what stands in its text."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from numba.core import types

from . import hints
from .flatten import BLOCK_VOTES, WARP_OPERATIONS
from .source import Source
from .trees import parse

AXES = "xyz"
WARP = 32
EVERYONE = 0xFFFFFFFF  # the mask of a whole warp
# The calls that stand for these: of atomics, of what looks at all threads, of what looks at a warp.
ATOMIC_CALLS = frozenset(f"atomic_{operation}" for operation in hints.ATOMICS)
VOTES = frozenset(BLOCK_VOTES.values())
OF_A_WARP = frozenset(WARP_OPERATIONS.values())
TAKES = OF_A_WARP | {"warp_active", "warp_origin"}
Shape3 = tuple[int, int, int]


@dataclass(frozen=True)
class Array:
    """A shared array (one per block) or a local array (one per thread).

    A shared array of shape 0 is dynamic: as long as the launch says.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch decides how long the array is."""
        return self.shape == (0,)


class Whole(ast.Name):
    """What all threads keep under a name, handed to those who look at other threads."""


@dataclass(frozen=True)
class Canonical:
    """A kernel in canonical form."""

    source: Source
    parameters: list[str]
    body: list[ast.stmt]
    arrays: Mapping[str, Array]
    block: Shape3
    names: frozenset[str]  # all that are taken
    sent: frozenset[str]  # variables that other threads look at
    shared_bytes: int  # of dynamic shared memory
    instrumented: bool  # will somebody watch each access?
    kinds: Mapping[str, types.Type] = field(default_factory=dict)  # of all variables, once known
    marked: Sequence[ast.stmt] = ()  # the statements that a trace tells of

    @cached_property
    def ndims(self) -> dict[str, int]:
        """How many indices lead to an element of each array; of a record 0."""
        arrays = {n: int(k.ndim) for n, k in self.kinds.items() if isinstance(k, types.Array)}
        records = (n for n, k in self.kinds.items() if isinstance(k, types.Record))
        return arrays | dict.fromkeys(records, 0)

    @cached_property
    def records(self) -> set[str]:
        """The arrays of records."""
        arrays = {n: k.dtype for n, k in self.kinds.items() if isinstance(k, types.Array)}
        return {n for n, dtype in arrays.items() if isinstance(dtype, types.Record)}

    @property
    def linear(self) -> ast.expr:
        """The number of a thread in its block."""
        return linear(self.block)


def linear(block: Shape3) -> ast.expr:
    """The number of a thread in a block of some shape."""
    terms, size = [], ""
    for axis, count in zip(AXES, block, strict=True):
        if count > 1:
            terms.append(f"{size}thread_{axis}")
        size += f"BLOCK_{axis.upper()} * "
    return parse(" + ".join(terms) or "0")


def whole(identifier: str) -> Whole:
    """A name being read, of all threads at once."""
    return Whole(identifier, ast.Load())


def is_barrier(node: ast.AST) -> bool:
    """Whether a statement is `barrier()`."""
    return isinstance(node, ast.Expr) and called_name(node.value) == "barrier"


def is_meeting(node: ast.AST) -> bool:
    """Whether a statement is a point where threads wait for others: of the block or the warp."""
    return isinstance(node, ast.Expr) and called_name(node.value) in ("barrier", "meet", "syncwarp")


def orders_a_warp(node: ast.AST) -> bool:
    """Whether what a warp does in memory before a statement comes before what it does after it."""
    return isinstance(node, ast.Expr) and called_name(node.value) == "syncwarp"


def is_vote(node: ast.AST) -> bool:
    """Whether a node is `block_count(...)` or the like: one result for all threads."""
    return called_name(node) in VOTES


def is_atomic(node: ast.AST) -> bool:
    """Whether a node is the call of an atomic operation."""
    return called_name(node) in ATOMIC_CALLS


def looks_at_others(node: ast.AST) -> bool:
    """Whether a node takes what other threads left, or asks who is here."""
    return called_name(node) in TAKES | VOTES


def called_name(node: ast.AST) -> str | None:
    """The name of the function that a node calls, if it is a call by name."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
