"""What the machine does itself, beside computing: each way of it is right, and no other would be.

A case is a small text with one instruction in question. The machine must give what is expected,
and must not with anything else in its place: another size, another kind of shuffle, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu.ptx import Program, PtxError
from minitransformer_kernels.gpu.ptx.parser import ATOMICS, MEETINGS, OWN, SHUFFLES, SPACES, VOTES

from .test_machine import AFTER, BEFORE, COUNT, kernel, run

WORDS = np.random.default_rng(0).integers(0, 1 << 64, 64, np.uint64)
TILE = ".shared .align 16 .b8 tile[512];\n"
IN_TILE = "mov.u64 %s, tile; add.s64 %a, %s, %o;\n"
P, Q = "selp.u32 %r2, 1, 0, %p;", "selp.u32 %r2, 1, 0, %q;"
EVERY = "0xffffffff"
REDUCTIONS = MEETINGS[2:]


class Case(NamedTuple):
    """An instruction within a text, and what may not stand in the columns of its row."""

    handler: str
    text: str
    body: str
    expected: Any  # what is left in x, or a part of what the machine says
    others: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    x: Any = COUNT
    threads: int = 32
    declared: str = TILE

    def __str__(self) -> str:
        return self.text


def around(handler: str, before: str, text: str, after: str, *told: Any, **named: Any) -> Case:
    """Thread t has x[t] in %r1, and leaves %r2."""
    return Case(handler, text, f"{BEFORE}{before} {text}; {after}{AFTER}", *told, **named)


def others(names: tuple[str, ...], name: str, *same: str) -> dict[str, tuple[int, ...]]:
    """The other ways of what has several, but for those that come to the same here."""
    known = MEETINGS if names is REDUCTIONS else names
    return {"which": tuple(known.index(other) for other in names if other not in (name, *same))}


def spaces(*names: str) -> dict[str, tuple[int, ...]]:
    return {"space": tuple(SPACES[name] for name in names)}


# The cases ----------------------------------------------------------------------------------------


def accesses() -> Iterator[Case]:
    """Loads and stores: of each size, with a sign, of several registers, to each space."""
    mine = ".reg .b64 %v; mul.wide.u32 %o, %t, 8; add.s64 %a, %x, %o; ld.global.u64 %w, [%a];\n"
    words = WORDS[:32]
    for kind in ("u8", "u16", "u32", "u64", "s8", "s16", "s32"):
        size = int(kind[1:]) // 8
        columns = spaces("shared", "local", "param") | {"size": tuple({1, 2, 4, 8} - {size})}
        sign = {"signed": (int(kind[0] == "u"),)} if size < 8 else {}
        low = words.astype(f"{kind[0].replace('s', 'i')}{size}").astype(np.uint64)
        text = f"ld.global.{kind} %v, [%a]"
        yield Case("load", text, f"{mine}{text}; st.global.u64 [%a], %v; ret;", low.tolist(),
                   columns | sign, words)  # fmt: skip
        if kind[0] == "u":  # what is beside it stays
            text = f"st.global.{kind} [%a], %w"
            beside = (1 << 64) - (1 << 8 * size)
            yield Case("store", text, f"{mine}st.global.u64 [%a], -1; {text}; ret;",
                       [beside | word for word in low.tolist()], columns, words)  # fmt: skip
    place = f"mul.wide.u32 %o, %t, 16; {IN_TILE}"
    made = f"{place} mov.u32 %r2, 0;\n"
    made += "add.u32 %b, %r1, 100; add.u32 %c, %r1, 200; add.u32 %d, %r1, 300;"
    put, get = "st.shared.v4.u32 [%a], {%r1, %b, %c, %d}", "ld.shared.v4.u32 {%e, %f, %g, %h}, [%a]"
    add = "".join(f"mad.lo.u32 %r2, %{x}, {n}, %r2;" for n, x in enumerate("efgh", 1))
    expected = [n + 2 * (n + 100) + 3 * (n + 200) + 4 * (n + 300) for n in range(32)]
    columns = spaces("global", "local", "const")
    yield around("store", made, put, f"{get}; {add}", expected, columns)
    yield around("load", f"{made} {put};", get, add, expected, columns)


def ways() -> Iterator[Case]:
    """Where a thread goes on; and words in parts."""
    other_way = {"negated": (1,)}
    yield around("jump", "setp.gt.u32 %p, %t, 15; mov.u32 %r2, 1;", "@%p bra over",
                 "mov.u32 %r2, 2; over:", [2] * 16 + [1] * 16, other_way)  # fmt: skip
    yield around("end", "mov.u32 %r2, 99; setp.lt.u32 %p, %t, 16;", "@%p ret", "",
                 [*range(16)] + [99] * 16, other_way)  # fmt: skip
    yield around("trap", "mov.u32 %r2, 7;", "trap", "", "came to a trap")
    yield around("nothing", "mov.u32 %r2, 7;", "membar.gl", "", [7] * 32)
    yield around("active", "", "activemask.b32 %r2", "", [1 << n for n in range(32)])
    sooner = """
.func (.param .b32 out) sooner(.param .b32 in)
{ ld.param.u32 %r1, [in]; st.param.u32 [out], %r1; setp.lt.u32 %p, %r1, 16; @%p ret;
add.u32 %r1, %r1, 100; st.param.u32 [out], %r1; ret; }
"""
    call = around("call", ".param .b32 given; st.param.u32 [given], %r1; .param .b32 back;",
                  "call.uni (back), sooner, (given)", "ld.param.u32 %r2, [back];",
                  [n + 100 * (n >= 16) for n in range(32)], declared=sooner)  # fmt: skip
    yield call
    yield call._replace(handler="return", text="@%p ret", others=other_way)
    yield around("pack", "", "mov.b64 %d, {%r1, 7}", "shr.b64 %d, %d, 4; cvt.u32.u64 %r2, %d;",
                 [0x70000000 + (n >> 4) for n in range(32)], {"bits": (16, 64)})  # fmt: skip
    yield around("pack", "", "mov.b64 %d, {%unset, 7}", "mov.b64 {%r3, %r2}, %d;", [7] * 32)
    yield around("unpack", "mov.b64 %d, {%r1, 99};", "mov.b64 {%r3, %r2}, %d", "", [99] * 32,
                 {"bits": (16, 64)})  # fmt: skip


def of_warps() -> Iterator[Case]:
    """What lanes tell one another. A warp agrees on nothing, the second on no, the third on yes."""
    yes, three = "setp.gt.u32 %p, %r1, 2;", np.r_[COUNT, 0 * COUNT, 0 * COUNT + 9]
    told: dict[str, list[int]] = {
        "up": [max(n - 3, n if n < 3 else 0) for n in range(32)],
        "down": [n + 3 if n + 3 < 32 else n for n in range(32)],
        "bfly": [n ^ 3 for n in range(32)], "idx": [3] * 32,
    }  # fmt: skip
    for how, expected in told.items():
        text = f"shfl.sync.{how}.b32 %r2, %r1, 3, {0 if how == 'up' else 31}, {EVERY}"
        yield around("shuffle", "", text, "", expected, others(SHUFFLES, how))
    text = f"shfl.sync.down.b32 %r3|%p, %r1, 2, 0x181f, {EVERY}"
    yield around("shuffle", "", text, P, [int(n % 8 < 6) for n in range(32)],
                 others(SHUFFLES, "down"))  # fmt: skip
    # A ballot, taken for true or false, says whether any holds.
    votes: dict[str, tuple[list[int], tuple[str, ...]]] = {
        "any": ([1, 0, 1], ("ballot",)), "all": ([0, 0, 1], ()), "uni": ([0, 1, 1], ()),
    }  # fmt: skip
    for how, (answers, same) in votes.items():
        columns = others(VOTES, how, *same) | ({} if how == "uni" else {"combine": (1,)})
        text = f"vote.sync.{how}.pred %q, %p, {EVERY}"
        yield around("vote", yes, text, Q, np.repeat(answers, 32).tolist(), columns,
                     x=three, threads=96)  # fmt: skip
    for sign, ballots in (("", [0xFFFFFFF8, 0, 0xFFFFFFFF]), ("!", [7, 0xFFFFFFFF, 0])):
        text, columns = f"vote.sync.ballot.b32 %r2, {sign}%p, {EVERY}", others(VOTES, "ballot")
        yield around("vote", yes, text, "", np.repeat(ballots, 32).tolist(),
                     columns | {"combine": (int(not sign),)}, three, 96)  # fmt: skip
    same_third = [sum(1 << m for m in range(n % 3, 32, 3)) for n in range(32)]
    yield around("match", "", f"match.any.sync.b32 %r2, %r1, {EVERY}", "", same_third,
                 {"which": (1,)}, x=COUNT % 3)  # fmt: skip
    text = f"match.all.sync.b32 %r2|%p, %r1, {EVERY}"
    yield around("match", "", text, "", [0] * 32 + [0xFFFFFFFF] * 64, {"which": (0,)},
                 x=three, threads=96)  # fmt: skip
    yield around("match", "", text, P, [0] * 32 + [1] * 64, x=three, threads=96)
    opposite = f"sub.s32 %u, 31, %t; mul.wide.u32 %o, %u, 4; {IN_TILE} ld.shared.u32 %r2, [%a];"
    yield around("warp_barrier", f"{IN_TILE} st.shared.u32 [%a], %r1;", f"bar.warp.sync {EVERY}",
                 opposite, COUNT[::-1].tolist())  # fmt: skip


def barriers() -> Iterator[Case]:
    """Who waits for whom, and what a block tells at a barrier: three of 40 exceed 36."""
    roles = "mov.u32 %r2, 0; setp.lt.u32 %p, %t, 32; setp.ge.u32 %q, %t, 64;\n@%p bra first; "
    slot = f"and.b32 %l, %t, 31; mul.wide.u32 %o, %l, 4; {IN_TILE}"
    count = np.arange(96, dtype=np.uint32)
    # The first warp waits for the second, which before that waits for the third.
    second = "bar.sync 2, 64; @%q bra done; st.shared.u32 [%a], %r1; bar.arrive 1, 64; bra done;"
    yield around("barrier", f"{slot} {roles} {second} first:", "bar.sync 1, 64",
                 "ld.shared.u32 %r2, [%a]; done:", [*range(32, 64)] + [0] * 64,
                 others(MEETINGS[:2], "sync"), count, 96)  # fmt: skip
    # Were it to wait, the second would never come.
    yield around("barrier", f"{roles} bar.sync 2, 64; bar.sync 1, 64; bra done; first:",
                 "bar.arrive 1, 64", "bar.sync 2, 64; done:", [0] * 64,
                 others(MEETINGS[:2], "arrive"), count[:64], 64)  # fmt: skip
    negation = {"combine": (1,)}
    for how, given, after, answer, columns in (
        ("bar.red.popc.u32 %r2", "%p", "", 3, others(REDUCTIONS, "popc") | negation),
        ("bar.red.popc.u32 %r2", "!%p", "", 37, {"combine": (0,)}),
        ("bar.red.and.pred %q", "%p", Q, 0, others(REDUCTIONS, "and")),
        ("barrier.red.and.pred %q", "%w", Q, 1, negation),
        # A count, taken for true or false, says whether any holds.
        ("bar.red.or.pred %q", "%p", Q, 1, others(REDUCTIONS, "or", "popc")),
        ("bar.red.or.pred %q", "%w", Q, 1, negation),
    ):
        tell = "setp.gt.u32 %p, %r1, 36; setp.lt.u32 %w, %r1, 99; barrier.sync.aligned 0;\n"
        tell += f"setp.ne.u32 %q, {answer}, 1;"  # what it is not in the end
        text = f"{how}, 0, {given}"
        yield around("barrier", tell, text, after, [answer] * 40, columns, count[:40], 40)


def atomics() -> Iterator[Case]:
    """Each operation: its result, and what was there before."""
    results: dict[str, Callable[[Any, Any], Any]] = {
        **dict.fromkeys(("add.u32", "add.u64", "add.f32", "add.f64"), np.add),
        **dict.fromkeys(("min.u32", "min.s32", "min.u64", "min.s64"), np.minimum),
        **dict.fromkeys(("max.u32", "max.s32", "max.u64", "max.s64"), np.maximum),
        **dict.fromkeys(("exch.b32", "exch.b64"), lambda old, new: new),
        **dict.fromkeys(("cas.b32", "cas.b64"), lambda old, new: np.where(old == new, 9, old)),
        "and.b32": np.bitwise_and, "or.b32": np.bitwise_or, "xor.b32": np.bitwise_xor,
        "inc.u32": lambda old, most: np.where(old >= most, 0, old + 1),
        "dec.u32": lambda old, most: np.where((old == 0) | (old > most), most, old - 1),
    }  # fmt: skip
    for name, result in results.items():
        how, kind = name.split(".")
        size = int(kind[1:]) // 8
        x = (WORDS >> np.uint64(64 - 8 * size)).astype(f"u{size}")
        x[:4], x[2:8] = 0, x[34:40]  # some are zero, some alike
        x = x.view(f"{kind[0].replace('b', 'u').replace('s', 'i')}{size}")
        if kind[0] == "f":
            x = np.linspace(-3, 5, 64, dtype=x.dtype)
        with np.errstate(over="ignore"):
            made = result(x[:32], x[32:])
        text = f"atom.global.{name} %old, [%m], %v" + ", 9" * (how == "cas")
        body = (
            f"mul.wide.u32 %o, %t, {size}; add.s64 %m, %x, %o;\n"
            f"ld.global.u{8 * size} %v, [%m + {32 * size}]; {text};\n"
            f"st.global.u{8 * size} [%m + {32 * size}], %old; ret;"
        )
        signs = {"min": (0, 1), "max": (0, 1), "add": (0, 2)}.get(how, ())
        columns = others(ATOMICS, how) | spaces("shared", "local") | {"size": (12 - size,)}
        columns["signed"] = tuple({*signs} - {"usf".index(kind[0].replace("b", "u"))})
        yield Case("atomic", text, body, [*made.tolist(), *x[:32].tolist()], columns, x)


def tensor_core() -> Case:
    """mma.m16n8k8: which lane holds what is the manual's, section "Matrix Fragments"."""
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8))
    )
    held = np.zeros((32, 14), np.float32)
    beyond = np.float32(2**-14)  # what tf32 has no bits for
    for lane in range(32):
        g, t = divmod(lane, 4)
        held[lane, :4] = a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]
        held[lane, 4:6] = b[t, g], b[t + 4, g]
        held[lane, 6:10] = c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1]
    held[:, :6] += np.sign(held[:, :6]) * beyond
    expected, truth = held.copy(), a @ b + c
    for lane in range(32):
        g, t = divmod(lane, 4)
        expected[lane, 10:] = [truth[g + 8 * (i // 2), 2 * t + i % 2] for i in range(4)]
    loads = "".join(f"ld.global.f32 %f{i}, [%m + {4 * i}];\n" for i in range(10))
    stores = "".join(f"st.global.f32 [%m + {40 + 4 * i}], %d{i};\n" for i in range(4))
    text = (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3}, "
        "{%f0, %f1, %f2, %f3}, {%f4, %f5}, {%f6, %f7, %f8, %f9}"
    )
    body = f"mul.wide.u32 %o, %t, 56; add.s64 %m, %x, %o;\n{loads}{text};\n{stores}ret;"
    return Case("matrix", text, body, expected.tolist(), x=held)


def print_() -> Case:
    """Of a text with one number, where there is none; `test_driver` has what is printed."""
    text = "call.uni (back), vprintf, (text, given)"
    body = (
        "mov.u64 %s, line; mov.u64 %a, 5;\n{ .param .b64 text; .param .b64 given;"
        " .param .b32 back; st.param.u64 [text], %s; st.param.u64 [given], %a;\n"
        f"{text}; }} ret;"
    )
    declared = (
        ".extern .func (.param .b32 out) vprintf (.param .b64 text, .param .b64 given);\n"
        ".const .align 1 .b8 line[3] = {37, 100};\n"
    )
    return Case("print", text, body, "accesses 8 bytes at global 0x5", declared=declared)


CASES = [print_(), *accesses(), *ways(), *of_warps(), *barriers(), *atomics(), tensor_core()]

# What is done with them ---------------------------------------------------------------------------


def the_row(made: Program, case: Case) -> int:
    """Where the instruction in question is."""
    code, lines = OWN[case.handler], enumerate(made.lines)
    return [i for i, line in lines if line.text == case.text and made.rows[i]["code"] == code][-1]


def right(made: Program, case: Case) -> bool:
    """Whether what is expected comes."""
    try:
        x, _ = run(made, case.x, case.threads)
    except PtxError as error:
        return isinstance(case.expected, str) and case.expected in str(error)
    return bool(x.tolist() == case.expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_way_is_right_and_no_other_would_be(case: Case) -> None:
    made = kernel(case.body, case.declared)
    assert right(made, case)
    at = the_row(made, case)
    row, vector = made.rows[at].copy(), made.vectors[at].copy()
    instead = OWN["trap" if case.handler == "nothing" else "nothing"]
    for column, values in {"code": (instead,), **case.others}.items():
        for value in values:
            made.rows[at][column] = value
            assert not right(made, case), f"{column} = {value} is not seen"
            made.rows[at] = row
    for pair in combinations(range(row["count"]), 2):  # registers in each other's place
        made.vectors[at, [*pair]] = vector[[*pair[::-1]]]
        assert not right(made, case), f"registers {pair} are not told apart"
        made.vectors[at] = vector


def test_tensor_cores_need_a_whole_warp() -> None:
    case = tensor_core()
    with pytest.raises(PtxError, match="waits for lanes of its warp"):
        run(kernel(case.body), case.x[:16], 16)


def test_all_that_the_machine_does_is_tested() -> None:
    assert {case.handler for case in CASES} == {*OWN}
    ways = {"shuffle": SHUFFLES, "vote": VOTES, "barrier": MEETINGS, "atomic": ATOMICS}
    for handler, names in ways.items():
        tried = {part for c in CASES if c.handler == handler for part in re.split(r"[. ]", c.text)}
        assert tried >= {*names}, handler
