"""What threads do together, what memory holds, and what the machine catches, in small texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.gpu.ptx import Program, PtxError, Run, launch

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


def test_loads_and_stores_of_all_widths() -> None:
    for kind, dtype in (("u8", "u1"), ("u16", "u2"), ("u32", "u4"), ("u64", "u8"), ("f64", "f8")):
        size = np.dtype(dtype).itemsize
        made = kernel(
            f"mul.wide.u32 %o, %t, {size}; add.s64 %a, %x, %o; ld.global.{kind} %v, [%a];\n"
            f"st.global.{kind} [%a + {32 * size}], %v; ret;"
        )
        x, _ = run(made, np.r_[np.arange(32), np.zeros(32)].astype(dtype))
        assert x[32:].tolist() == list(range(32))


def test_small_numbers_keep_their_sign() -> None:
    made = kernel(
        "cvt.u64.u32 %o, %t; add.s64 %a, %x, %o; ld.global.s8 %r, [%a]; mul.wide.u32 %o, %t, 4;\n"
        "add.s64 %b, %x, %o; st.global.u32 [%b + 32], %r; ret;"
    )
    x = np.zeros(40, np.int32)
    x.view(np.int8)[:32] = np.arange(-16, 16)
    assert run(made, x)[0][8:].tolist() == list(range(-16, 16))


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


def test_vectors() -> None:
    made = kernel(
        "setp.ne.u32 %p, %t, 0; @%p ret;\nld.global.v4.u32 {%a, %b, %c, %d}, [%x];\n"
        "st.global.v2.u32 [%x], {%d, %c}; st.global.v2.u32 [%x + 8], {%b, %a}; ret;"
    )
    memory = np.zeros(8, np.uint32)
    begin = (-memory.ctypes.data % 16) // 4
    memory[begin : begin + 4] = 1, 2, 3, 4
    x = memory[begin : begin + 4]
    ends = (x.ctypes.data, x.ctypes.data + x.nbytes)
    launch(made, (1, 1, 1), (32, 1, 1), [np.uint64(ends[0]).tobytes()], [ends])
    assert x.tolist() == [4, 3, 2, 1]


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


def test_tables() -> None:
    table = f".global .align 4 .u32 squares[32] = {{{', '.join(str(n * n) for n in range(32))}}};"
    body = "mov.u64 %s, squares; add.s64 %a, %s, %o; ld.global.u32 %r2, [%a];" + AFTER
    assert run(kernel(body, table), COUNT)[0].tolist() == [n * n for n in range(32)]


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
    with pytest.raises(PtxError, match="there is no function 'nobody' in this module"):
        kernel(body.replace("fourfold", "nobody"), functions)
    endless = functions.replace("call.uni (back), twice", "call.uni (back), fourfold")
    with pytest.raises(PtxError, match="calls more than"):
        run(kernel(body, endless), COUNT)


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
    ],
)  # fmt: skip
def test_a_comparison_and_its_opposite(text: str, expected: list[tuple[bool, bool]]) -> None:
    """Also where a result is read, or is the guard, and where nothing is greater: by a NaN."""
    told = "selp.u32 %r2, 1, 0, %p; selp.u32 %r3, 2, 0, %q; add.u32 %r2, %r2, %r3;"
    assert each(f"{text} {told}", COUNT) == [p + 2 * q for p, q in expected]


# Warps --------------------------------------------------------------------------------------------

ALL = "0xffffffff"


@pytest.mark.parametrize(
    "how, by, expected",
    [
        ("up", 3, [max(n - 3, n if n < 3 else 0) for n in range(32)]),
        ("down", 5, [n + 5 if n + 5 < 32 else n for n in range(32)]),
        ("bfly", 6, [n ^ 6 for n in range(32)]),
        ("idx", 9, [9] * 32),
    ],
)
def test_shuffles(how: str, by: int, expected: list[int]) -> None:
    clamp = 0 if how == "up" else 31
    text = f"shfl.sync.{how}.b32 %r2|%p, %r1, {by}, {clamp}, {ALL};"
    assert each(text, COUNT) == expected


def test_shuffles_in_segments() -> None:
    """With width 8 the clamp holds 24 above it: lanes ask in their own eight."""
    assert each(f"shfl.sync.idx.b32 %r2, %r1, 3, 0x181f, {ALL};", COUNT) == [
        n // 8 * 8 + 3 for n in range(32)
    ]
    told = "shfl.sync.down.b32 %r3|%p, %r1, 2, 0x181f, 0xffffffff; selp.u32 %r2, 1, 0, %p;"
    assert each(told, COUNT) == [int(n % 8 < 6) for n in range(32)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("vote.sync.any.pred %q, %p, 0xffffffff; selp.u32 %r2, 1, 0, %q;", [1] * 32),
        ("vote.sync.all.pred %q, %p, 0xffffffff; selp.u32 %r2, 1, 0, %q;", [0] * 32),
        ("vote.sync.uni.pred %q, %p, 0xffffffff; selp.u32 %r2, 1, 0, %q;", [0] * 32),
        ("vote.sync.ballot.b32 %r2, %p, 0xffffffff;", [0xFFFFFFF8] * 32),
        ("vote.sync.ballot.b32 %r2, !%p, 0xffffffff;", [7] * 32),
    ],
)
def test_votes(text: str, expected: list[int]) -> None:
    assert each(f"setp.gt.u32 %p, %r1, 2; {text}", COUNT) == expected


def test_matches() -> None:
    same = [sum(1 << m for m in range(32) if m % 3 == n % 3) for n in range(32)]
    assert each(f"match.any.sync.b32 %r2, %r1, {ALL};", COUNT % 3) == same
    text = f"match.all.sync.b32 %r2|%p, %r1, {ALL};"
    assert each(text, COUNT % 3) == [0] * 32
    assert each(text, [5] * 32) == [0xFFFFFFFF] * 32


def test_half_a_warp_meets() -> None:
    body = (
        BEFORE + "mov.u32 %r2, 99; setp.ge.u32 %p, %t, 16; @%p bra done;\n"
        "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff;\ndone:" + AFTER
    )
    assert run(kernel(body), COUNT)[0].tolist() == [n ^ 1 for n in range(16)] + [99] * 16


def test_the_product_of_tensor_cores() -> None:
    """mma.m16n8k8: which lane holds what is the manual's, section "Matrix Fragments"."""
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8))
    )
    held = np.zeros((32, 14), np.float32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        held[lane, :4] = a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]
        held[lane, 4:6] = b[t, g], b[t + 4, g]
        held[lane, 6:10] = c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1]
    loads = "".join(f"ld.global.f32 %f{i}, [%m + {4 * i}];\n" for i in range(10))
    stores = "".join(f"st.global.f32 [%m + {40 + 4 * i}], %d{i};\n" for i in range(4))
    made = kernel(
        f"mul.wide.u32 %o, %t, 56; add.s64 %m, %x, %o;\n{loads}"
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3}, "
        f"{{%f0, %f1, %f2, %f3}}, {{%f4, %f5}}, {{%f6, %f7, %f8, %f9}};\n{stores}ret;"
    )
    x, _ = run(made, held)
    truth = a @ b + c
    for lane in range(32):
        g, t = divmod(lane, 4)
        expected = (
            truth[g, 2 * t],
            truth[g, 2 * t + 1],
            truth[g + 8, 2 * t],
            truth[g + 8, 2 * t + 1],
        )
        assert tuple(x[lane, 10:]) == expected
    with pytest.raises(PtxError, match="waits for lanes of its warp"):
        run(made, held[:16], threads=16)


# Atomic operations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how, kind, begin, expected",
    [
        ("add", "u32", 5, 5 + sum(range(64))), ("min", "s32", 40, 0), ("max", "u32", 3, 63),
        ("and", "b32", 0xFF, 0), ("or", "b32", 0, 63), ("xor", "b32", 0, 0),
        ("add", "f32", 0.5, 0.5 + sum(range(64))), ("add", "f64", 0.5, 0.5 + sum(range(64))),
        ("inc", "u32", 0, None), ("dec", "u32", 7, None), ("exch", "b32", 99, None),
    ],
)  # fmt: skip
def test_atomics(how: str, kind: str, begin: Any, expected: Any) -> None:
    dtype = {"f": f"f{kind[1:]}", "s": "i4"}.get(kind[0], "u4")
    dtype = {"f32": "f4", "f64": "f8"}.get(kind, dtype)
    value = f"cvt.rn.{kind}.u32 %v, %n;" if kind[0] == "f" else "mov.u32 %v, %n;"
    made = kernel(
        "mov.u32 %b, %ctaid.x; mov.u32 %w, %ntid.x; mad.lo.u32 %n, %b, %w, %t;\n"
        f"{value} atom.global.{how}.{kind} %old, [%x], %v; ret;"
    )
    x, _ = run(made, np.array([begin], dtype), blocks=2)
    if expected is None:  # one after the other, in some order
        assert x[0] in range(100)
    else:
        assert x[0] == expected
    if how == "inc":
        made = kernel(f"atom.global.{how}.{kind} %old, [%x], 9; ret;")
        assert run(made, np.array([0], dtype))[0][0] == 32 % 10
    if how == "dec":
        made = kernel(f"atom.global.{how}.{kind} %old, [%x], 9; ret;")
        assert run(made, np.array([0], dtype))[0][0] == (0 - 32) % 10


def test_compare_and_swap() -> None:
    made = kernel("atom.global.cas.b32 %old, [%x], 7, %t; red.global.add.u32 [%x + 4], %old; ret;")
    x, _ = run(made, np.array([7, 0], np.uint32), seed=None)
    assert x.tolist() == [0, 7]  # the first thread puts its number there, and no other does


# Barriers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("bar.red.popc.u32 %r2, 0, %p;", 3), ("bar.red.popc.u32 %r2, 0, !%p;", 37),
        ("bar.red.or.pred %q, 0, %p; selp.u32 %r2, 1, 0, %q;", 1),
        ("bar.red.or.pred %q, 0, !%w; selp.u32 %r2, 1, 0, %q;", 0),
        ("bar.red.and.pred %q, 0, %w; selp.u32 %r2, 1, 0, %q;", 1),
        ("barrier.sync.aligned 0; barrier.red.and.pred %q, 0, %p; selp.u32 %r2, 1, 0, %q;", 0),
    ],
)  # fmt: skip
def test_what_a_block_tells_at_a_barrier(text: str, expected: int) -> None:
    """Also where the last warp is not full: those who are not there have nothing to tell."""
    count = np.arange(40)
    text = f"setp.gt.u32 %p, %r1, 36; setp.lt.u32 %w, %r1, 99; {text}"
    assert each(text, count, threads=40) == [expected] * 40


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
        ("bra nowhere;", "line 7 of the PTX of one, `bra nowhere`: nothing is called 'nowhere'"),
        ("mov.u32 %a, missing;", "nothing is called 'missing'"),
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
