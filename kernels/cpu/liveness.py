"""Which variables a function still needs at the head of each block: Numba's analysis, in bits.

Numba repeats it after most of its passes. Its own keeps a set of names for each block, and a kernel
has hundreds of blocks and thousands of names; here such a set is the bits of one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def live_map(
    graph: Any,
    blocks: Mapping[int, Any],
    used: Mapping[int, Iterable[str]],
    defined: Mapping[int, Iterable[str]],
) -> dict[int, set[str]]:
    """Return the names alive at the entry of each block, as `numba.core.analysis` does.

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
