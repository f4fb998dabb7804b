"""What takes the place of parts of Numba while a kernel is compiled: it gives the same, sooner.

A kernel has hundreds of blocks and thousands of names, of which Numba's passes ask again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numba.core import analysis, ir, lowering, ssa
from numba.core.targetconfig import TargetConfig
from numba.core.types import Function
from numba.core.typing.context import BaseContext

Blocks = Mapping[int, Any]  # Numba's, by offset


def names_of(parts: Iterable[Any]) -> set[str]:
    """The variables among the parts of a statement or an expression."""
    found = set()
    for part in parts:
        if type(part) is ir.Var:
            found.add(part.name)
        elif isinstance(part, list | tuple):
            found |= names_of(part)
        elif isinstance(part, dict):
            found |= names_of(part.values())
        elif isinstance(part, ir.Expr):
            found |= names_of(part._kws.values())
        elif isinstance(part, ir.Inst):
            found |= {variable.name for variable in part.list_vars()}
    return found


def use_defs(blocks: Blocks) -> Any:
    """Return the names that each block uses before it defines them, and those that it defines."""
    used: dict[int, set[str]] = {}
    defined: dict[int, set[str]] = {}
    for at, block in blocks.items():
        uses, defines = used[at], defined[at] = set(), set()
        for statement in block.body:
            if type(statement) is ir.Assign:
                reads = names_of([statement.value])
                if statement.target.name not in reads:
                    defines.add(statement.target.name)
            else:
                reads = names_of(vars(statement).values())
            uses |= reads - defines
    return analysis._use_defs_result(used, defined)


def live_map(
    graph: Any,
    blocks: Blocks,
    used: Mapping[int, Iterable[str]],
    defined: Mapping[int, Iterable[str]],
) -> dict[int, set[str]]:
    """Return the names alive at the entry of each block.

    Numba repeats this after most of its passes. Its own keeps a set of names for each block; here
    such a set is the bits of one number.

    Args:
        graph: the blocks' control flow graph.
        blocks: by offset.
        used: the names that each block uses before it defines them.
        defined: the names that each block defines.
    """
    names = sorted({name for table in (used, defined) for own in table.values() for name in own})
    bit = {name: 1 << place for place, name in enumerate(names)}
    uses, defines = (
        {at: sum(map(bit.__getitem__, table[at])) for at in blocks} for table in (used, defined)
    )
    order = graph.topo_order()
    after = {at: [successor for successor, _ in graph.successors(at)] for at in order}

    reached = {at: uses[at] | defines[at] for at in blocks}  # met on some way to the block's end
    changed = True
    while changed:
        changed = False
        for at in order:
            for successor in after[at]:
                if reached[at] & ~reached[successor]:
                    reached[successor] |= reached[at]
                    changed = True

    live = dict(uses)
    changed = True
    while changed:
        changed = False
        for at in reversed(order):
            needed = 0
            for successor in after[at]:
                needed |= live[successor]
            more = needed & reached[at] & ~defines[at] & ~live[at]
            if more:
                live[at] |= more
                changed = True
    return {at: set(_members(live[at], names)) for at in blocks}


def _members(bits: int, names: list[str]) -> Iterable[str]:
    while bits:
        place = bits.bit_length() - 1
        yield names[place]
        bits ^= 1 << place


def run_ssa(blocks: Blocks) -> dict[int, Any]:
    """Give each assignment of a variable a name of its own; note first which names are where."""
    for block in blocks.values():
        block.mentions = names_of(part for own in block.body for part in vars(own).values())
    found: dict[int, Any] = _NUMBAS_SSA(blocks)
    return found


def run_block_rewrite(blocks: Blocks, states: Any, handler: Any) -> dict[int, Any]:
    """Rename one variable, in the blocks that mention it: Numba goes through all of them."""
    new = {}
    for at, block in blocks.items():
        if states["varname"] not in block.mentions:
            new[at] = block
            continue
        new |= _NUMBAS_REWRITE({at: block}, states, handler)
        new[at].mentions = block.mentions
    return new


def result_type(
    context: BaseContext, function: Any, arguments: Any, keywords: Any, literals: Any = None
) -> Any:
    """Return what a function gives for arguments of some types; remember it of Numba's own.

    Of the questions (what is a float32 times a float32?) four in five have been asked before.
    """
    if type(function) is not Function or keywords or literals is not None:
        return _NUMBAS_RESULT_TYPE(context, function, arguments, keywords, literals)
    asked = context, function, arguments
    if asked not in _answers:
        _answers[asked] = _NUMBAS_RESULT_TYPE(context, function, arguments, keywords)
    return _answers[asked]


def same_flags(flags: TargetConfig, other: Any) -> Any:
    """Whether flags are equal; most often what has been set of them is."""
    if type(other) is type(flags) and flags._values == other._values:
        return True
    return _NUMBAS_SAME(flags, other)


def hash_of_flags(flags: TargetConfig) -> int:
    """Return Numba's hash of flags. It is made of the names of all there are, set or not."""
    kind = type(flags)
    if kind not in _hashes:
        _hashes[kind] = _NUMBAS_HASH(flags)
    return _hashes[kind]


_answers: dict[Any, Any] = {}
_hashes: dict[type[TargetConfig], int] = {}
_NUMBAS_SSA, _NUMBAS_REWRITE = ssa._run_ssa, ssa._run_block_rewrite
_NUMBAS_RESULT_TYPE = BaseContext._resolve_user_function_type
_NUMBAS_SAME, _NUMBAS_HASH = TargetConfig.__eq__, TargetConfig.__hash__
QUICKER: tuple[tuple[Any, str, Any], ...] = (
    (analysis, "compute_use_defs", use_defs),
    (lowering, "compute_use_defs", use_defs),
    (analysis, "compute_live_map", live_map),
    (ssa, "_run_ssa", run_ssa),
    (ssa, "_run_block_rewrite", run_block_rewrite),
    (BaseContext, "_resolve_user_function_type", result_type),
    (TargetConfig, "__eq__", same_flags),
    (TargetConfig, "__hash__", hash_of_flags),
)
