"""Warps in lockstep: which lanes go together, and what is counted of it."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.gpu import assembler
from minitransformer_kernels.microscope import transpose, watch

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu.ptx import Profile, Program, PtxError, launch, profile, ptx_machine

HEAD = "mov.u32 %t, %tid.x; ld.param.u64 %x, [x]; mul.wide.u32 %o, %t, 4; add.s64 %m, %x, %o;"


def counted(body: str, x: Any, threads: int = 32, before: str = "") -> tuple[Profile, np.ndarray]:
    """Run a text in lockstep, and in a drawn order: it writes the same numbers."""
    made = Program(f"{before}\n.visible .entry one(.param .u64 x) {{{HEAD}\n{body}}}\n")
    found = []
    for how in (profile, launch):
        memory = np.zeros(len(x) + 64, np.uint32)
        begin = -memory.ctypes.data % 256 // 4
        array = memory[begin : begin + len(x)]
        array[:] = x
        ends = (array.ctypes.data, array.ctypes.data + array.nbytes)
        parameters = [np.uint64(ends[0]).tobytes()]
        found.append((how(made, (1, 1, 1), (threads, 1, 1), parameters, [ends]), array))
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][0].counts, found[1][0].counts)
    return found[0]


def warps(made: Profile) -> dict[str, tuple[int, int]]:
    return {row.text: (row.executions, row.warps) for row in made.rows}


COUNT = np.arange(32, dtype=np.uint32)


def test_lanes_part_at_a_branch_and_meet_behind_it() -> None:
    made, _ = counted(
        "setp.lt.u32 %p, %t, 5; @%p bra less; add.u32 %v, %t, 1; bra join;\n"
        "less: add.u32 %v, %t, 2;\njoin: st.global.u32 [%m], %v; ret;",
        COUNT,
    )
    found = warps(made)
    assert found["@%p bra less"] == (5, 1)
    assert found["add.u32 %v, %t, 1"] == (27, 1)
    assert found["add.u32 %v, %t, 2"] == (5, 1)
    assert found["st.global.u32 [%m], %v"] == (32, 1)
    assert made.issued == 4 + 2 + 2 + 1 + 2


def test_a_block_at_the_end_of_the_text_is_no_later_than_what_follows_it() -> None:
    made, _ = counted(
        "setp.lt.u32 %p, %t, 5; @%p bra rare;\njoin: st.global.u32 [%m], %t; ret;\n"
        "rare: add.u32 %t, %t, 2; bra join;",
        COUNT,
    )
    assert warps(made)["st.global.u32 [%m], %t"] == (32, 1)


LOOPS = """
mov.u32 %i, 0;
outer:
mov.u32 %j, 0;
inner:
add.u32 %j, %j, 1; setp.lt.u32 %p, %j, %t; @%p bra inner;
add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 3; @%q bra outer;
st.global.u32 [%m], %j; ret;
"""


def test_lanes_wait_behind_a_loop_for_those_with_more_to_do() -> None:
    """The inner loop of lane t is run max(t, 1) times, so that of the warp 31 times."""
    found = warps(counted(LOOPS, COUNT)[0])
    each = sum(max(t, 1) for t in range(32))
    assert found["add.u32 %j, %j, 1"] == (3 * each, 3 * 31)
    assert found["add.u32 %i, %i, 1"] == (3 * 32, 3)
    assert found["st.global.u32 [%m], %j"] == (32, 1)


def test_a_lane_that_goes_on_with_the_next_turn_waits_for_the_others() -> None:
    """A loop with two ways back to its first row: `continue`."""
    made, _ = counted(
        "mov.u32 %i, 0;\nagain: add.u32 %i, %i, 1; setp.gt.u32 %q, %i, 4; @%q bra done;\n"
        "and.b32 %b, %t, 1; setp.eq.u32 %p, %b, 0; @%p bra again;\n"
        "add.u32 %t, %t, 2; bra again;\ndone: st.global.u32 [%m], %t; ret;",
        COUNT,
    )
    found = warps(made)
    assert found["add.u32 %i, %i, 1"] == (32 * 5, 5)
    assert found["add.u32 %t, %t, 2"] == (16 * 4, 4)
    assert found["st.global.u32 [%m], %t"] == (32, 1)


def test_a_guard_that_holds_for_no_lane_still_takes_its_turn() -> None:
    made, _ = counted("setp.gt.u32 %p, %t, 99; @%p st.global.u32 [%m], %t; ret;", COUNT)
    (row,) = (row for row in made.rows if row.kind == "store")
    assert (row.executions, row.warps, row.requests, row.sectors) == (0, 1, 0, 0)


def test_barriers_are_passed_by_warps() -> None:
    made, _ = counted("bar.sync 0; bar.sync 0; ret;", COUNT, threads=80)
    assert warps(made)["bar.sync 0"] == (80, 3)


def test_shuffles_of_parts_of_a_warp() -> None:
    made, x = counted(
        "setp.lt.u32 %p, %t, 16; mov.u32 %v, 7; @!%p bra join;\n"
        "shfl.sync.bfly.b32 %v, %t, 1, 31, 0xffff;\njoin: st.global.u32 [%m], %v; ret;",
        COUNT,
    )
    assert x.tolist() == [i ^ 1 for i in range(16)] + [7] * 16
    found = warps(made)
    assert found["shfl.sync.bfly.b32 %v, %t, 1, 31, 0xffff"] == (16, 1)
    assert found["st.global.u32 [%m], %v"] == (32, 1)


def test_lanes_are_waited_for_that_come_another_way() -> None:
    """Both halves shuffle with all lanes, one of them behind a detour."""
    made, _ = counted(
        "setp.lt.u32 %p, %t, 16; @%p bra join; add.u32 %t, %t, 0;\n"
        "join: shfl.sync.bfly.b32 %v, %t, 1, 31, 0xffffffff; st.global.u32 [%m], %v; ret;",
        COUNT,
    )
    assert warps(made)["shfl.sync.bfly.b32 %v, %t, 1, 31, 0xffffffff"] == (32, 1)
    made, _ = counted(  # those that have ended are not waited for
        "setp.lt.u32 %p, %t, 16; @!%p ret; bar.warp.sync 0xffffffff; ret;", COUNT
    )
    assert warps(made)["bar.warp.sync 0xffffffff"] == (16, 1)


def test_calls_are_made_together() -> None:
    functions = """
.func (.param .b32 out) twice(.param .b32 in)
{ ld.param.u32 %r1, [in]; add.u32 %r1, %r1, %r1; st.param.u32 [out+0], %r1; ret; }
"""
    made, x = counted(
        "{ .param .b32 given; st.param.u32 [given], %t; .param .b32 back;\n"
        "call.uni (back), twice, (given); ld.param.u32 %v, [back]; }\n"
        "st.global.u32 [%m], %v; ret;",
        COUNT, before=functions,
    )  # fmt: skip
    assert x.tolist() == [2 * i for i in range(32)]
    assert warps(made)["add.u32 %r1, %r1, %r1"] == (32, 1)


def test_what_goes_wrong_is_said() -> None:
    with pytest.raises(PtxError, match=r"thread \(8, 0, 0\) .* accesses 4 bytes"):
        counted("st.global.u32 [%m], %t; ret;", COUNT[:8])
    with pytest.raises(PtxError, match="a barrier that others never reach"):
        counted("setp.lt.u32 %p, %t, 40; @%p bar.sync 0; ret;", COUNT, threads=64)
    with pytest.raises(PtxError, match="elsewhere, or not in the mask"):
        counted("bar.warp.sync 1; ret;", COUNT)


@pytest.mark.parametrize(
    "stride, kind, sectors",
    [(4, "u32", 4), (8, "u32", 8), (32, "u32", 32), (0, "u32", 1), (16, "v4.u32", 16),
     (8, "v2.u32", 8), (1, "u8", 1), (36, "u32", 32)],
)  # fmt: skip
def test_sectors(stride: int, kind: str, sectors: int) -> None:
    vector = {"v4.u32": "{%a, %b, %c, %d}", "v2.u32": "{%a, %b}"}.get(kind, "%a")
    body = f"mul.wide.u32 %o, %t, {stride}; add.s64 %q, %x, %o; ld.global.{kind} {vector}, [%q];"
    made, _ = counted(body + "ret;", np.zeros(1024))
    assert [row.sectors for row in made.rows if row.space == "global"] == [sectors]


@pytest.mark.parametrize(
    "stride, kind, wavefronts",
    [(4, "u32", 1), (8, "u32", 2), (128, "u32", 32), (132, "u32", 1), (0, "u32", 1),
     (16, "v4.u32", 4), (8, "v2.u32", 2), (32, "v4.u32", 8), (1, "u8", 1), (64, "u32", 16)],
)  # fmt: skip
def test_wavefronts(stride: int, kind: str, wavefronts: int) -> None:
    vector = {"v4.u32": "{%a, %b, %c, %d}", "v2.u32": "{%a, %b}"}.get(kind, "%a")
    # A shared array begins no better aligned than it says: this one at 1024.
    body = (
        f"mov.u64 %s, tile; mul.wide.u32 %o, %t, {stride}; add.s64 %q, %s, %o;\n"
        f"ld.shared.{kind} {vector}, [%q]; ret;"
    )
    made, _ = counted(body, COUNT, before=".shared .align 1024 .b8 tile[8192];")
    assert [row.wavefronts for row in made.rows if row.space == "shared"] == [wavefronts]


def test_atomic_operations_take_turns_at_a_word() -> None:
    made, _ = counted(
        "mov.u64 %s, tile; atom.shared.add.u32 %v, [%s], %t; ret;", COUNT,
        before=".shared .align 16 .b8 tile[16];",
    )  # fmt: skip
    assert [row.wavefronts for row in made.rows if row.kind == "atomic"] == [32]


def test_the_counts_are_those_of_the_microscope() -> None:
    with ptx_machine(counted=True) as machine:
        transpose.example()
    reports = watch(transpose.example, compiled=False)
    for made, (name, report) in zip(machine.runs, reports.items(), strict=True):
        assert made.program.name == f"microscope_transpose_{name}"
        found = {space: made.by(lambda row: row.space, cost)[space]
                 for space, cost in (("global", "sectors"), ("shared", "wavefronts"))}  # fmt: skip
        assert found == {space: report.total(space).transactions for space in found}
        assert {row.file for row in made.rows} == {report.trace.filename}
        assert all(row.line for row in made.rows)


def test_each_row_has_its_kind() -> None:
    with ptx_machine(counted=True) as machine:
        transpose.example()
    tiled = machine.runs[1].by(lambda row: row.label, "warps")
    accesses = ("load global 4 B", "store shared 4 B", "load shared 4 B", "store global 4 B")
    assert {tiled[label] for label in accesses} == {128}  # 32 in each of 4 blocks
    assert {*tiled} == {"load param 8 B", "address", *accesses, "barrier", "branch"}


def test_what_is_kept_knows_the_lines_of_its_own_file(tmp_path) -> None:
    """The same kernel in another file, or further down, has other lines."""
    digests = set()
    for above in (0, 3):
        for folder in ("one", "other"):
            path = tmp_path / folder / f"kernel{above}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n" * above + "from minitransformer_kernels.cuda import cuda\n"
                            "@cuda.jit\ndef nothing(x):\n    x[0] = 1\n")  # fmt: skip
            kernel = runpy.run_path(str(path))["nothing"]
            digests.add(assembler._digest(kernel, lineinfo=True))
            digests.add(assembler._digest(kernel, lineinfo=False))
    assert len(digests) == 5
