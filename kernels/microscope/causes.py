"""Why a warp's request costs more than it has to: told from its worst request, lane by lane.

The lanes of a request fall into *runs*, in which each lane's element follows that of the lane
before (or is the same). One run that costs too much begins in the middle of a sector. Several are
either rows of a block that is narrower than a warp, or threads that ask for elements apart.
"""

from __future__ import annotations

import numpy as np

from ..gpu.gpus import BANKS, SECTOR, WARP, WORD
from .units import plural
from .warps import Integers, Requests, usual


def global_memory(made: Requests, width: int) -> str:
    """Say why requests move more sectors than they have to, and what helps.

    Args:
        made: The requests of one place in the text.
        width: Threads of the block along x.
    """
    worst = made.worst()
    starts = _starts(worst)
    if len(starts) == 1:
        return _misaligned(made)
    if _are_rows(worst, starts, width):
        return (
            f"a warp spans {len(starts)} rows of {width} threads, and each row is a piece of its "
            f"own. Let a block be {WARP} threads wide."
        )
    step = _step(worst)
    if step is None:
        return (
            "the threads of a warp ask for scattered addresses. Let neighbouring threads take "
            "neighbouring elements."
        )
    if abs(step) == worst.site.itemsize:
        idle = int(np.ptp(worst.lane)) + 1 - len(worst.lane)
        if idle:
            return (
                f"{plural(idle, 'lane')} of the warp sit out, in between those that take part. Let "
                "whole warps take part."
            )
        return (
            f"the threads of a warp ask for {len(starts)} pieces, and each begins and ends in the "
            f"middle of a sector. Let pieces be longer, or begin at a multiple of "
            f"{SECTOR // worst.site.itemsize} elements."
        )
    return (
        f"neighbouring threads ask for addresses {abs(step)} bytes apart. Let neighbouring threads "
        "take neighbouring elements."
    )


def shared_memory(made: Requests, width: int) -> str:
    """Say why requests take more wavefronts than they have to, and what helps; see above."""
    worst, pitch = made.worst(), made.site.shape[-1] if made.site.shape else 1
    starts, step = _starts(worst), _step(worst)
    if len(starts) > 1 and _are_rows(worst, starts, width):
        apart = int(worst.address[starts[1]] - worst.address[starts[0]]) // WORD
        return (
            f"a warp spans {len(starts)} rows of {width} threads, {abs(apart)} words apart, and "
            f"their words meet in the same of the {BANKS} banks. Let a block be {WARP} threads "
            "wide, or choose the length of a row so that its banks follow those of the row before."
        )
    if step is None:
        return "threads of a warp want different words of one bank."
    text = f"neighbouring threads ask for words {abs(step) // WORD} apart."
    if len(made.site.shape) > 1 and abs(step) == pitch * made.site.itemsize:
        text += f" Rows of {pitch + 1} elements instead of {pitch} would spread them."
    return text


def _misaligned(made: Requests) -> str:
    """The words for runs that begin, or end, in the middle of a sector."""
    site = made.site
    pitch = site.shape[-1] * site.itemsize if len(site.shape) > 1 else 0
    if pitch % SECTOR:
        wider = -(-pitch // SECTOR) * SECTOR // site.itemsize
        return (
            f"rows of {site.shape[-1]} elements are {pitch} bytes, no multiple of a sector's "
            f"{SECTOR}, so that a warp's piece begins anywhere in one. Rows of {wider} elements, "
            "the last of them unused, would begin with it."
        )
    first = np.flatnonzero(np.diff(made.request, prepend=-1))
    offsets, counts = np.unique(made.address[first] % SECTOR, return_counts=True)
    if offsets[counts.argmax()] and 2 * counts.max() > counts.sum():
        return (
            "a warp's piece begins in the middle of a sector, and so ends in one more. That is the "
            "price of a halo; the next warp has the same sector, so a cache softens it, and a tile "
            "in shared memory saves it."
        )
    return (
        "a warp's piece begins anywhere in a sector. Let it begin at a multiple of "
        f"{SECTOR // site.itemsize} elements, or let pieces be longer."
    )


def _starts(worst: Requests) -> Integers:
    """Return the places among the lanes of a request at which a run begins."""
    steps = np.abs(np.diff(worst.address))
    return np.flatnonzero(np.concatenate([[True], steps > worst.site.itemsize]))


def _are_rows(worst: Requests, starts: Integers, width: int) -> bool:
    """Whether runs begin where the rows of a block do that is narrower than a warp."""
    rows, begun = (len(np.unique(lane // width)) for lane in (worst.lane, worst.lane[starts]))
    return width < WARP and rows == begun == len(starts)


def _step(worst: Requests) -> int | None:
    """Return how many bytes lie between a lane's address and the next one's, if most agree."""
    return usual(np.diff(worst.address) // np.maximum(np.diff(worst.lane), 1))
