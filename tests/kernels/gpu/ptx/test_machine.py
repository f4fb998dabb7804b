"""What threads do together, what memory holds, and what the machine catches, in small texts."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.gpu.ptx import Program, PtxError, Run, launch
from minitransformer_kernels.gpu.ptx.machine import DEEPEST

HEAD = """
mov.u32 %t, %tid.x;
ld.param.u64 %x, [x];
mul.wide.u32 %o, %t, 4;
add.s64 %mine, %x, %o;
"""
# Thread t reads x[t], does something, and writes to x[t].
BEFORE, AFTER = "ld.global.u32 %r1, [%mine];\n", "\nst.global.u32 [%mine], %r2;\nret;\n"


def kernel(body: str, before: str = "", parameters: str = ".param .u64 x") -> Program:
    return Program(f"{before}\n.visible .entry one({parameters}) {{{HEAD}{body}}}\n")


def run(
    made: Program, x: Any, threads: int = 32, blocks: int = 1, shared: int = 0, **options: Any
) -> tuple[np.ndarray, Run]:
    x = np.array(x)
    ends = (x.ctypes.data, x.ctypes.data + x.nbytes)
    parameters = [np.uint64(ends[0]).tobytes()]
    done = launch(made, (blocks, 1, 1), (threads, 1, 1), parameters, [ends], shared, **options)
    return x, done


def each(instructions: str, x: Any, **options: Any) -> list[int]:
    return run(kernel(BEFORE + instructions + AFTER), np.array(x, np.uint32), **options)[0].tolist()


COUNT = np.arange(32, dtype=np.uint32)

# Memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 32, 64])
def test_the_sign_goes_to_the_end_of_the_register(width: int) -> None:
    """Whatever reads all of it finds the number, where it is loaded and where it is converted."""
    body = (
        f".reg .b{width} %v, %w, %q<9>; cvt.u64.u32 %o, %t; add.s64 %a, %x, %o;\n"
        f"ld.global.s8 %v, [%a]; ld.global.u8 %r, [%a]; cvt.s8.u32 %q3, %r;\n"
        f"setp.eq.b{width} %p, %v, -3; setp.eq.b{width} %z, %q3, -3;"
        " selp.u32 %r1, 1, 0, %p; selp.u32 %r2, 2, 0, %z; add.u32 %r2, %r1, %r2;\n"
        "st.global.u32 [%mine + 32], %r2; ret;"
    )
    x = np.zeros(40, np.int32)
    x.view(np.int8)[:32] = np.arange(-16, 16)
    assert run(kernel(body), x)[0][8:].tolist() == [3 * (n == -3) for n in range(-16, 16)]


def test_words_are_packed_and_taken_apart() -> None:
    assert each("mov.b64 %d, {%r1, 7}; mov.b64 {%r3, %r2}, %d;", COUNT) == [7] * 32
    assert each("mov.b32 {%h, %g}, %r1; mov.b32 %r2, {%g, %h};", [1 << 16] * 32) == [1] * 32


def test_shared_memory_and_a_barrier() -> None:
    """Each thread takes what its opposite put there; without the barrier it finds nothing yet."""
    body = (
        BEFORE + "mov.u64 %s, tile; add.s64 %put, %s, %o; st.shared.u32 [%put], %r1;\n{}\n"
        "sub.s32 %u, 31, %t; mul.wide.u32 %o, %u, 4; add.s64 %get, %s, %o;\n"
        "ld.shared.u32 %r2, [%get];" + AFTER
    )
    tile = ".shared .align 4 .b8 tile[128];"
    x, done = run(kernel(body.format("bar.sync 0;"), tile), COUNT)
    assert x.tolist() == list(range(31, -1, -1))
    assert done.instructions == 32 * 15
    x, _ = run(kernel(body.format(""), tile), COUNT)
    assert 0xFFFFFFFF in x  # what nobody has written


def test_dynamic_shared_memory_is_as_long_as_the_launch_says() -> None:
    made = kernel(
        BEFORE + "mov.u64 %s, more; add.s64 %a, %s, %o; st.shared.u32 [%a], %r1;\n"
        "ld.shared.u32 %r2, [%a];" + AFTER,
        ".shared .align 8 .b8 tile[40];\n.extern .shared .align 16 .b8 more[];",
    )
    assert run(made, COUNT, shared=128)[0].tolist() == COUNT.tolist()
    with pytest.raises(PtxError, match="accesses 4 bytes at shared"):
        run(made, COUNT, shared=120)


def test_each_thread_has_memory_of_its_own() -> None:
    body = (
        ".local .align 8 .b8 own[8];\n" + BEFORE + "mov.u64 %l, own; st.local.u32 [%l + 4], %r1;\n"
        "bar.sync 0; ld.local.u32 %r2, [%l + 4];" + AFTER
    )
    assert run(kernel(body), COUNT)[0].tolist() == COUNT.tolist()


def test_an_address_without_a_space_is_that_of_any() -> None:
    body = (
        BEFORE + "mov.u64 %s, tile; cvta.shared.u64 %g, %s; add.s64 %a, %g, %o; st.u32 [%a], %r1;\n"
        "ld.shared.u32 %r2, [%a];" + AFTER
    )
    assert run(kernel(body, ".shared .align 4 .b8 tile[128];"), COUNT)[0].tolist() == COUNT.tolist()


def test_a_launch_says_how_much_shared_memory_there_is() -> None:
    made = kernel("mov.u32 %r2, %dynamic_smem_size; st.global.u32 [%mine], %r2; ret;")
    assert run(made, COUNT, shared=40)[0].tolist() == [40] * 32


def test_arrays_without_a_length_share_their_memory() -> None:
    body = (
        BEFORE + "mov.u64 %s, one_view; add.s64 %a, %s, %o; st.shared.u32 [%a], %r1;\n"
        "mov.u64 %s, other_view; add.s64 %a, %s, %o; ld.shared.u32 %r2, [%a];" + AFTER
    )
    views = "\n".join(
        f".extern .shared .align {a} .b8 {v}_view[];" for a, v in ((4, "one"), (8, "other"))
    )
    assert run(kernel(body, views), COUNT, shared=128)[0].tolist() == COUNT.tolist()


def test_names_without_a_percent_sign_are_registers_where_they_are_declared() -> None:
    """As in the text that NVIDIA's library of mathematics puts into a kernel."""
    body = (
        "{ .reg .b32 low, high; mov.b64 %d, {%r1, 7}; mov.b64 {low, high}, %d;\n"
        "add.u32 %r2, low, high; }"
    )
    assert each(body, COUNT) == [n + 7 for n in range(32)]


@pytest.mark.parametrize("power", [1, 2, 3])
def test_tables(power: int) -> None:
    tables = [
        f".global .align 4 .u32 power_{p}[32] = {{{', '.join(str(n**p) for n in range(32))}}};"
        for p in (1, 2, 3)
    ]
    body = f"mov.u64 %s, power_{power}; add.s64 %a, %s, %o; ld.global.u32 %r2, [%a];" + AFTER
    assert run(kernel(body, "\n".join(tables)), COUNT)[0].tolist() == [n**power for n in range(32)]


def test_calls() -> None:
    """A function that calls another: what is given is copied, and what comes back."""
    functions = """
.func (.param .b32 out) twice(.param .b32 in)
{ ld.param.u32 %r1, [in]; add.u32 %r1, %r1, %r1; st.param.u32 [out+0], %r1; ret; }
.func (.param .b32 out) fourfold(.param .b32 in)
{
ld.param.u32 %r1, [in];
{ .param .b32 given; st.param.u32 [given], %r1; .param .b32 back;
call.uni (back), twice, (given); ld.param.u32 %r2, [back]; }
add.u32 %r2, %r2, %r2; st.param.u32 [out], %r2; ret; }
"""
    body = (
        BEFORE + "{ .param .b32 given; st.param.u32 [given], %r1; .param .b32 back;\n"
        "call.uni (back), fourfold, (given); ld.param.u32 %r2, [back]; }" + AFTER
    )
    assert run(kernel(body, functions), COUNT)[0].tolist() == [4 * n for n in range(32)]
    with pytest.raises(PtxError, match="calls 'nobody', which is not in this module"):
        kernel(body.replace("fourfold", "nobody"), functions)


@pytest.mark.parametrize("calls", [DEEPEST, DEEPEST + 1])
def test_calls_in_one_another(calls: int) -> None:
    """A function that calls itself until there is nothing left."""
    functions = """
.func (.param .b32 out) down(.param .b32 in)
{
ld.param.u32 %r1, [in]; st.param.u32 [out], %r1; setp.eq.u32 %p, %r1, 0; @%p ret;
sub.u32 %r1, %r1, 1;
{ .param .b32 given; st.param.u32 [given], %r1; .param .b32 back;
call.uni (back), down, (given); ld.param.u32 %r1, [back]; }
st.param.u32 [out], %r1; ret; }
"""
    made = kernel(
        BEFORE + "{ .param .b32 given; st.param.u32 [given], %r1; .param .b32 back;\n"
        "call.uni (back), down, (given); ld.param.u32 %r2, [back]; }" + AFTER,
        functions,
    )
    x = np.array([calls - 1], np.uint32)
    if calls <= DEEPEST:
        assert run(made, x, threads=1)[0] == [0]
    else:
        with pytest.raises(PtxError, match=f"calls more than {DEEPEST} functions in one another"):
            run(made, x, threads=1)


def test_each_call_has_variables_and_registers_of_its_own() -> None:
    """Two functions that call each other, and add what they had before to what comes back.

    Each gives the other the address of a variable of its own, and keeps a number in a register.
    """
    function = """
.func (.param .b32 out) {name}(.param .b32 in, .param .b64 where)
{{
.local .align 4 .b8 own[4];
ld.param.u32 %n, [in]; ld.param.u64 %w, [where]; mov.u64 %a, own;
mov.u32 %sum, 0; st.local.u32 [%a], %n; setp.eq.u32 %p, %n, 0; @%p bra done;
sub.u32 %m, %n, 1; cvta.local.u64 %g, %a;
{{ .param .b32 given; st.param.u32 [given], %m; .param .b64 place; st.param.u64 [place], %g;
.param .b32 back; call.uni (back), {other}, (given, place); ld.param.u32 %sum, [back]; }}
ld.local.u32 %l, [%a]; add.u32 %sum, %sum, %l; add.u32 %sum, %sum, %n;
done: mad.lo.u32 %l, %n, {factor}, 1000; st.u32 [%w], %l; st.param.u32 [out], %sum; ret; }}
"""
    first = function.format(name="first", other="second", factor=10)
    second = function.format(name="second", other="first", factor=100)
    body = (
        ".local .align 4 .b8 mine[4];\n" + BEFORE + "mov.u64 %a, mine; cvta.local.u64 %g, %a;\n"
        "{ .param .b32 given; st.param.u32 [given], %r1; .param .b64 place;"
        " st.param.u64 [place], %g; .param .b32 back;\n"
        "call.uni (back), first, (given, place); ld.param.u32 %r2, [back]; }\n"
        "ld.local.u32 %l, [%a]; add.u32 %r2, %r2, %l;" + AFTER
    )

    def expected(n: int, factor: int) -> tuple[int, int]:
        """What comes back, and what is left where the caller said."""
        back, left = expected(n - 1, 110 - factor) if n else (0, 0)
        return (back + left + n if n else 0), 1000 + factor * n

    found = run(kernel(body, first + second), COUNT[:20], threads=20)[0].tolist()
    assert found == [sum(expected(n, 10)) for n in range(20)]


def test_what_is_given_is_copied_to_its_last_byte() -> None:
    """A structure of three numbers, which ends in the middle of 8 bytes; what lies behind stays."""
    functions = """
.func (.param .align 8 .b8 out[12]) turned(.param .align 8 .b8 in[12])
{
ld.param.u32 %r1, [in]; ld.param.u32 %r2, [in+4]; ld.param.u32 %r3, [in+8];
st.param.u32 [out], %r3; st.param.u32 [out+4], %r1; st.param.u32 [out+8], %r2; ret; }
"""
    body = (
        "{ .param .align 8 .b8 given[12]; .param .align 8 .b8 back[12];"
        "ld.global.u32 %r1, [%mine]; add.u32 %r2, %r1, 100; add.u32 %r3, %r1, 200;\n"
        "st.param.u32 [given], %r1; st.param.u32 [given+4], %r2; st.param.u32 [given+8], %r3;\n"
        "call.uni (back), turned, (given);\n"
        "ld.param.u32 %a, [back]; ld.param.u32 %b, [back+4]; ld.param.u32 %c, [back+8]; }\n"
        "mul.lo.u32 %a, %a, 1000000; mad.lo.u32 %b, %b, 1000, %c; add.u32 %r2, %a, %b;" + AFTER
    )
    found = run(kernel(body, functions), COUNT)[0].tolist()
    assert found == [(n + 200) * 1000000 + n * 1000 + n + 100 for n in range(32)]


def test_a_loop_without_an_end() -> None:
    with pytest.raises(PtxError, match="instructions without coming to an end: `bra on`"):
        each("on: bra on;", [1], threads=1)


def test_pointers_that_say_what_they_point_to() -> None:
    """As sm_100's texts declare parameters."""
    named = ".param .u64 .ptr .align 1 x", ".param .u64 .ptr .global .align 16 x"
    for parameter in (*named, ".param .u64 .ptr x"):
        made = kernel(BEFORE + "add.u32 %r2, %r1, 1;" + AFTER, parameters=parameter)
        assert run(made, COUNT)[0].tolist() == list(range(1, 33))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("setp.lt.u32 %p|%q, %r1, 3;", [(n < 3, n >= 3) for n in range(32)]),
        ("setp.eq.u32 %p|_, %r1, 3; setp.eq.u32 _|%q, %r1, 4;",
         [(n == 3, n != 4) for n in range(32)]),
        ("setp.lt.u32 %q, %r1, 9; setp.ge.and.u32 %p|%q, %r1, 3, %q;",
         [(3 <= n < 9, n < 3) for n in range(32)]),
        ("setp.lt.u32 %p, %r1, 9; setp.eq.u32 %q, 1, 0; @%p setp.ge.u32 %p|%q, %r1, 3;",
         [(3 <= n < 9, n < 3) for n in range(32)]),
        ("mov.f32 %f, 0f7fc00000; setp.lt.f32 %p|%q, %f, %f;", [(False, True)] * 32),
        ("mov.f32 %f, 0f7fc00000; setp.num.f32 %p|%q, %f, %f;", [(False, True)] * 32),
        ("mov.f32 %f, 0f3f800000; setp.num.f32 %p|%q, 0f00000000, %f;", [(True, False)] * 32),
        ("mov.f32 %f, 0f3f800000; setp.nan.f32 %p|%q, 0f00000000, %f;", [(False, True)] * 32),
    ],
)  # fmt: skip
def test_a_comparison_and_its_opposite(text: str, expected: list[tuple[bool, bool]]) -> None:
    """Also where a result is read, or is the guard, and where nothing is greater: by a NaN."""
    told = "selp.u32 %r2, 1, 0, %p; selp.u32 %r3, 2, 0, %q; add.u32 %r2, %r2, %r3;"
    assert each(f"{text} {told}", COUNT) == [p + 2 * q for p, q in expected]


# Warps --------------------------------------------------------------------------------------------

ALL = "0xffffffff"


def test_shuffles_in_segments() -> None:
    """With width 8 the clamp holds 24 above it: lanes ask in their own eight."""
    assert each(f"shfl.sync.idx.b32 %r2, %r1, 3, 0x181f, {ALL};", COUNT) == [
        n // 8 * 8 + 3 for n in range(32)
    ]


def test_half_a_warp_meets() -> None:
    body = (
        BEFORE + "mov.u32 %r2, 99; setp.ge.u32 %p, %t, 16; @%p bra done;\n"
        "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff;\ndone:" + AFTER
    )
    assert run(kernel(body), COUNT)[0].tolist() == [n ^ 1 for n in range(16)] + [99] * 16


@pytest.mark.parametrize("first", ["bar.sync 0", "bar.warp.sync 0xffffffff", "activemask.b32 %r1"])
def test_threads_may_meet_at_the_first_instruction(first: str) -> None:
    made = Program(f".visible .entry one() {{ {first}; ret; }}")
    assert launch(made, (1, 1, 1), (64, 1, 1), [], []).instructions == 2 * 64


# Atomic operations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how, kind, begin, expected",
    [
        ("add.u32", "u4", 5, 5 + sum(range(64))), ("add.f64", "f8", 0.5, 0.5 + sum(range(64))),
        ("min.s32", "i4", 40, 0), ("max.u32", "u4", 3, 63), ("xor.b32", "u4", 0, 0),
    ],
)  # fmt: skip
def test_atomics_of_many_threads_come_one_after_the_other(
    how: str, kind: str, begin: float, expected: float
) -> None:
    made = kernel(
        "mov.u32 %b, %ctaid.x; mov.u32 %w, %ntid.x; mad.lo.u32 %n, %b, %w, %t;\n"
        f"cvt{'.rn.f64' if 'f' in how else '.u32'}.u32 %v, %n;\n"
        f"atom.global.{how} %old, [%x], %v; ret;"
    )
    assert run(made, np.array([begin], kind), blocks=2)[0] == [expected]


@pytest.mark.skipif(sys.platform != "linux", reason="asks for a place in memory as Linux has it")
def test_an_array_low_in_memory_is_global() -> None:
    """There is the heap of a Python that is linked for fixed addresses, such as Debian's."""
    libc, bytes_ = ctypes.CDLL(None), 4096
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(
        ctypes.c_void_p(48 << 20), ctypes.c_size_t(bytes_), mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0),
    )  # fmt: skip
    x = np.frombuffer((ctypes.c_uint32 * 32).from_address(place), np.uint32)
    x[:] = COUNT
    made = kernel(BEFORE + "add.u32 %r2, %r1, 1;" + AFTER)
    launch(made, (1, 1, 1), (32, 1, 1), [np.uint64(place).tobytes()], [(place, place + bytes_)])
    assert x.tolist() == list(range(1, 33))
    del x
    libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(bytes_))


def test_compare_and_swap() -> None:
    made = kernel("atom.global.cas.b32 %old, [%x], 7, %t; red.global.add.u32 [%x + 4], %old; ret;")
    x, _ = run(made, np.array([7, 0], np.uint32), seed=None)
    assert x.tolist() == [0, 7]  # the first thread puts its number there, and no other does


# Barriers -----------------------------------------------------------------------------------------


def test_one_warp_makes_and_another_takes() -> None:
    """By two barriers of a number and two warps; the maker waits for nobody at the second."""
    body = (
        BEFORE
        + "mov.u64 %s, tile; and.b32 %l, %t, 31; mul.wide.u32 %o, %l, 4; add.s64 %a, %s, %o;\n"
        "setp.ge.u32 %p, %t, 32; setp.lt.u32 %q, %t, 64; @!%q bra rest; @%p bra take;\n"
        "st.shared.u32 [%a], %r1; bar.arrive 3, 64; mov.u32 %r2, 0; bra done;\n"
        "take: bar.sync 3, 64; ld.shared.u32 %r2, [%a]; bra done;\n"
        "rest: mov.u32 %r2, 7;\ndone:" + AFTER
    )
    tile = ".shared .align 4 .b8 tile[128];"
    for seed in range(4):
        x, _ = run(kernel(body, tile), np.arange(5, 101, dtype=np.uint32), 96, seed=seed)
        assert x.tolist() == [0] * 32 + list(range(5, 37)) + [7] * 32


# What goes wrong ----------------------------------------------------------------------------------


def test_an_access_beyond_the_arrays() -> None:
    made = kernel(BEFORE + "mov.u32 %r2, %r1;" + AFTER)
    with pytest.raises(PtxError) as caught:
        run(made, COUNT[:31], seed=None)
    assert str(caught.value).startswith(
        "one: thread (31, 0, 0) of block (0, 0, 0) accesses 4 bytes"
    )
    assert "which no array of the launch has: `ld.global.u32 %r1, [%mine]`, line 7" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "body, said",
    [
        ("ld.global.v2.u32 {%a, %b}, [%mine]; ret;", "accesses 8 bytes at .* no multiple of that"),
        ("mov.u64 %l, 5; ld.shared.u32 %a, [%l]; ret;", "accesses 4 bytes at global 0x5"),
        (".shared .align 8 .b8 tile[12]; ld.shared.u64 %d, [tile + 8]; ret;", "8 bytes at shared"),
        ("setp.eq.u32 %p, %t, 3; @%p ret; bar.sync 0; ret;", "a barrier that others never reach"),
        ("setp.eq.u32 %p, %t, 3; @%p bra a; bar.sync 0; ret; a: bar.sync 0; ret;", "at another"),
        ("setp.eq.u32 %p, %t, 3; @%p bra a; bar.warp.sync 0xffffffff; ret; a: bar.sync 0; ret;",
         "lanes of its warp that are elsewhere"),
        ("bar.warp.sync 1; ret;", "or not in the mask"),
        ("setp.eq.u32 %p, %t, 3; @%p bra a; bar.sync 0; ret; a: bar.sync 1; ret;", "at another"),
        ("bar.sync 1, 64; ret;", "a barrier that others never reach"),
        ("bar.sync 0, 48; ret;", "or not for whole warps"),
        ("bar.sync 16; ret;", "none of the 16"),
        ("trap;", "came to a trap"),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_allow(body: str, said: str) -> None:
    with pytest.raises(PtxError, match=said):
        run(kernel(body), COUNT)


@pytest.mark.parametrize(
    "body, said",
    [
        (
            "bra nowhere;",
            "line 7 of the PTX of one: `bra nowhere` names 'nowhere', which is nothing",
        ),
        ("mov.u32 %a, missing;", "names 'missing', which is nothing"),
        ("atom.global.none.u32 %a, [%x], 1;", "`atom.global.none.u32 .*` is not known"),
        ("ld.global.b128 %a, [%x];", "`ld.global.b128 .*` is not known"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%a}, {%b}, {%c}, {%d};", "m16n8k8"),
    ],
)
def test_what_is_not_known_is_refused(body: str, said: str) -> None:
    with pytest.raises(PtxError, match=said):
        kernel(body)


@pytest.mark.parametrize("name", ["clock64", "globaltimer", "smid", "nclusterid.x", "envreg3"])
def test_an_unknown_register_is_refused(name: str) -> None:
    with pytest.raises(PtxError, match=f"has no register %{name}"):
        run(kernel(f"mov.u64 %a, %{name}; ret;"), COUNT)


def test_parameters_must_fit() -> None:
    with pytest.raises(PtxError, match="one has 1 parameters, got 2"):
        launch(kernel("ret;"), (1, 1, 1), (1, 1, 1), [bytes(8), bytes(8)], [])


def test_the_order_is_drawn_and_repeats() -> None:
    """Blocks and threads that add to one float show their order in its last bits."""
    made = kernel("ld.global.f32 %v, [%mine]; atom.global.add.f32 %old, [%x], %v; ret;")
    values = np.random.default_rng(3).normal(size=32).astype(np.float32) * 1e3
    found = [run(made, values, seed=seed)[0][0] for seed in (1, 1, 2, 3, None, None)]
    assert found[0] == found[1]
    assert found[4] == found[5]
    assert len(set(found)) > 1


def test_a_block_has_registers_of_its_own() -> None:
    """As in inline assembly: the inner %r1 is another one than the outer."""
    text = """
    .visible .entry one(.param .u64 out) {
    .reg .b32 %r<3>;
    mov.u32 %r1, 5;
    {
    .reg .b32 %r1;
    mov.u32 %r1, 7;
    { .reg .b32 %r2; add.u32 %r2, %r1, 1; }
    mov.u32 %r2, %r1;
    }
    add.u32 %r2, %r2, %r1;
    ld.param.u64 %rd1, [out];
    st.global.u32 [%rd1], %r2;
    ret;
    }
    """
    out = np.zeros(1, np.uint32)
    begin = out.ctypes.data
    parameters, ends = [np.uint64(begin).tobytes()], [(begin, begin + out.nbytes)]
    launch(Program(text), (1, 1, 1), (1, 1, 1), parameters, ends)
    assert out == 12
