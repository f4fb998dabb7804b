"""Races on the PTX machine: planted ones are named, what is in order is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from minitransformer_kernels.gpu.ptx import PtxError

from .test_machine import AFTER, BEFORE, COUNT, Program, kernel, run

TILE = ".shared .align 4 .b8 tile[512];\n"
PUT = BEFORE + "mov.u64 %s, tile; add.s64 %put, %s, %o;\nst.shared.u32 [%put], %r1;\n"
# Each thread reads what its neighbour put there: the next of all, or the next of its warp.
NEXT = "add.u32 %u, %t, 1; and.b32 %u, %u, {}; "
OF_ALL = NEXT.format(63)
OF_WARP = NEXT.format(31) + "and.b32 %b, %t, 32; or.b32 %u, %u, %b; "
GET = "mul.wide.u32 %o, %u, 4; add.s64 %get, %s, %o;\nld.shared.u32 %r2, [%get];" + AFTER
HALF = "setp.lt.u32 %p, %t, 32; @%p bar.arrive 1, 64; @!%p bar.sync 1, 64;\n"

IN_ORDER = {
    "a barrier": PUT + "bar.sync 0;" + OF_ALL + GET,
    "a barrier of as many": PUT + "bar.sync 2, 64;" + OF_ALL + GET,
    "a barrier where they tell something": PUT + "bar.red.popc.u32 %n, 0, 1;" + OF_ALL + GET,
    "a warp's own": PUT + "bar.warp.sync 0xffffffff;" + OF_WARP + GET,
    "one's own": PUT + "mov.u32 %u, %t;" + GET,
    "atomics": "atom.global.add.u32 %r, [%x], 1; ret;",
    "the same written by all": "st.global.u32 [%x], 7; ret;",
    "read by all": "ld.global.u32 %r, [%x]; ret;",
    "neighbouring bytes": "cvt.u64.u32 %o, %t; add.s64 %a, %x, %o; st.global.u8 [%a], 9; ret;",
    "a warp that arrives, one that waits": (
        "setp.lt.u32 %p, %t, 32; @%p st.global.u32 [%mine], 99;\n" + HALF
        + "and.b32 %u, %t, 31; mul.wide.u32 %o, %u, 4; add.s64 %a, %x, %o;\n"
        "@!%p ld.global.u32 %r, [%a]; @!%p st.global.u32 [%a], 5; ret;"
    ),
    "by way of a third": (  # 0 tells 1, 1 tells 2
        "shr.u32 %w, %t, 5; setp.eq.u32 %p, %w, 0; setp.eq.u32 %q, %w, 1; setp.eq.u32 %z, %t, 0;\n"
        "@%z st.global.u32 [%x], 99; @%p bra first; @%q bra second; bar.sync 2, 64;\n"
        "ld.global.u32 %r, [%x]; ret;\n"
        "first: bar.arrive 1, 64; ret;\nsecond: bar.sync 1, 64; bar.arrive 2, 64; ret;"
    ),
}  # fmt: skip
RACES = {
    "no barrier": PUT + OF_ALL + GET,
    "only a warp's": PUT + "bar.warp.sync 0xffffffff;" + OF_ALL + GET,
    "a shuffle, which orders nothing": (
        PUT + "shfl.sync.bfly.b32 %r, %r1, 1, 31, 0xffffffff;" + OF_WARP + GET
    ),
    "half a warp each": (
        PUT + "mov.u32 %m, 0xffff; and.b32 %l, %t, 31; setp.ge.u32 %p, %l, 16;\n"
        "@%p mov.u32 %m, 0xffff0000; bar.warp.sync %m;" + OF_WARP + GET
    ),
    "read, then written": (
        BEFORE + "mov.u64 %s, tile; ld.shared.u32 %r, [%s]; setp.eq.u32 %p, %t, 40;\n"
        "@%p st.shared.u32 [%s], 7; ret;"
    ),
    "added to, and written": (
        "setp.eq.u32 %p, %t, 9; @%p st.global.u32 [%x], 70; @%p ret;\n"
        "atom.global.add.u32 %r, [%x], 1; ret;"
    ),
    "a wide access": "st.global.u32 [%mine], 99; ld.global.v2.u32 {%a, %b}, [%x]; ret;",
    "a part of a word": (
        "cvt.u64.u32 %o, %t; add.s64 %a, %x, %o; st.global.u8 [%a], 99;\n"
        "ld.global.u16 %r, [%x + 6]; ret;"
    ),
    "those that arrive do not wait": (
        "setp.lt.u32 %p, %t, 32; @!%p st.global.u32 [%x], 99;\n" + HALF
        + "@%p ld.global.u32 %r, [%x]; @!%p ld.global.u32 %r, [%mine]; ret;"
    ),
    "a third that nobody tells": IN_ORDER["by way of a third"].replace("bar.sync 2, 64;", ""),
}  # fmt: skip


def watched(made: Program, threads: int, seed: int | None, blocks: int = 1) -> None:
    run(made, np.arange(100, 196, dtype=np.uint32), threads, blocks, seed=seed, races=True)


@pytest.mark.parametrize("body", IN_ORDER.values(), ids=IN_ORDER)
def test_what_is_in_order(body: str) -> None:
    for seed in (None, 0, 1):
        watched(kernel(body, TILE), 96 if "third" in body or "first:" in body else 64, seed)


@pytest.mark.parametrize("body", RACES.values(), ids=RACES)
def test_a_race_is_named(body: str) -> None:
    """In whatever order the threads come: nothing needs to go wrong for it."""
    for seed in (None, 0, 1):
        with pytest.raises(PtxError, match=r"as thread .* did, one of them to write, and no bar"):
            watched(kernel(body, TILE), 96 if "first:" in body else 64, seed)


def test_both_accesses_are_shown() -> None:
    with pytest.raises(PtxError) as caught:
        run(kernel(PUT + OF_WARP + GET, TILE), COUNT, seed=None, races=True)
    assert str(caught.value) == (
        "one: thread (1, 0, 0) of block (0, 0, 0) accesses 4 bytes at shared 0x8, as thread "
        "(0, 0, 0) did, one of them to write, and no barrier stands between: "
        "`st.shared.u32 [%put], %r1`, line 10 of the PTX; the other: "
        "`ld.shared.u32 %r2, [%get]`, line 12 of the PTX"
    )


def test_blocks_have_no_order() -> None:
    with pytest.raises(PtxError, match=r"as thread \(0, 0, 0\) of another block did"):
        watched(kernel("mov.u32 %b, %ctaid.x; st.global.u32 [%x], %b; ret;"), 1, None, blocks=2)
    watched(kernel(PUT + "bar.sync 0;" + OF_ALL + GET.replace("%r2;", "%r1;"), TILE), 64, 0, 3)


def test_time_begins_anew_with_each_block() -> None:
    """What another block did in shared memory is no race: it has its own."""
    watched(kernel(PUT + "bar.sync 0;" + OF_ALL + GET.replace(AFTER, "ret;"), TILE), 64, 0, 3)


def test_who_does_not_look_finds_nothing() -> None:
    run(kernel(RACES["no barrier"], TILE), np.arange(64, dtype=np.uint32), 64)
