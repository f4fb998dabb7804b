"""What people write in more than one way gives what the plain way gives."""

import enum
import linecache
import math
import re
import types
from collections import namedtuple
from typing import Any

import numba
import numpy as np
import pytest
from numba import float32, int32

from minitransformer_kernels import FailedAssertion, checked, microscope
from minitransformer_kernels.cpu import KernelError, UnsupportedKernel
from minitransformer_kernels.cuda import cuda


class Config:
    """Constants, as a script keeps them."""

    STEP = 3
    REAL = np.float32


class Mode(enum.IntEnum):
    """As above."""

    SLOW = 1
    FAST = 5


module = types.ModuleType("settings")
module.__dict__["HALF"] = 0.5
POINT = numba.from_dtype(np.dtype([("x", np.float32), ("n", np.int64)], align=True))
GRID = numba.from_dtype(np.dtype([("n", np.int32), ("cells", np.float32, (3, 2))]))
add = cuda.atomic.add
X = np.arange(8, dtype=np.float32)
WHOLE = np.arange(1, 9)


@cuda.jit
def names(x):
    """Names for what stands elsewhere."""
    b, t = cuda.blockIdx, cuda.threadIdx
    size = cuda.blockDim
    if (i := b.x * size.x + t.x) < x.size and Mode.FAST == 5:
        total = numba.types.float32(Config.STEP) * Config.REAL(2)
        x[i] += total * module.HALF + Mode.FAST


@cuda.jit
def tiles(x):
    """A local constant is a size; an array is filled as a whole; ranges go in step."""
    B, width = 4, 2
    size = double, _ = 8, width
    tile = cuda.shared.array(size, float32)
    own = cuda.local.array((2, width), float32)
    row = cuda.local.array(shape=B, dtype=float32)
    t = cuda.threadIdx.x
    tile[t, 0] = x[t]
    own[:] = 1
    row[:] = own[1, 1] + 1
    cuda.syncthreads()
    total = tile[double - 1 - t, 0]
    first = 2
    for i, j in zip(range(1, 8, 3), range(first, 100)):  # noqa: B905 -- (1, 2), (4, 3), (7, 4)
        total += i * j * row[3]
        first = 50
    for i, j in zip(range(5), range(0)):  # noqa: B905
        total += 1000 * (i + j)
    while (left := total) > 1000:
        total = left - 1000
    x[t] = total


@cuda.jit
def functions(x, y):
    """CUDA's own, under other names and from its library."""
    i = cuda.grid(1)
    add(y, 0, 1)
    root = cuda.libdevice.sqrtf(x[i]) + cuda.libdevice.fast_expf(x[i])
    x[i] = root + abs(numba.complex64(3 + 4j))


@cuda.jit
def plus(v, n=3):
    """Launched or called, alike."""
    return v + n


@cuda.jit(device=True)
def times(v, factor=2, shift=0):
    """With an assertion, which is not looked at here."""
    assert factor > 0, "positive"
    return v * factor + shift


@cuda.jit
def defaults(x, n=10):
    """Kernels are called as device functions are."""
    i = cuda.grid(1)
    x[i] = plus(x[i]) + times(x[i], shift=n)


@cuda.jit
def ends(x, first=0):
    """A thread that raises is at its end."""
    i = cuda.grid(1)
    assert i + first != 2, "not this one"
    x[i] += 1
    if i + first > 5:
        raise ValueError("too far")
    x[i] += 1


@cuda.jit
def items(x, pair, scale, triple):
    """Tuples as arguments."""
    i = cuda.grid(1)
    a, b = pair
    x[i] = a * x[i] + b * scale + triple[2]
    for k in range(2):
        x[i] += pair[k]


Point = namedtuple("Point", "x y")
Path = namedtuple("Path", "start weights")


@cuda.jit
def named_items(x, path, alone):
    """Named tuples as arguments, one in another; their fields by names and by places."""
    i = cuda.grid(1)
    alone[0].x[i] = path.start.x * x[i] + path[0].y
    x[i] = alone[0].x[i] + path.weights[1] * len(path.start)


@cuda.jit(device=True)
def in_step(x, t, first):
    """Iterators of iterators; what they walk along is what it was before the loop."""
    total = 0
    for i, (a, b) in enumerate(zip(x, range(first, 40, 5))):  # noqa: B905
        total += a * b + i
    for (i, a), j in zip(enumerate(x, t), range(20, 0, -3)):  # noqa: B905
        total += a * i - j
    for i, j in enumerate(range(first), first):
        first += 100
        total += i * j
        if i > t:
            break
    else:
        total += 1000
    for first, (i, a) in enumerate(zip(range(3, t), x), first):  # noqa: B020, B905
        total += first * i * a
    for i, one in enumerate((t, first, 7)):
        first += 10 * i
        total += i * one
    return total + first


@cuda.jit
def iterators(x):
    """As a device function: Python runs it as well."""
    t = cuda.grid(1)
    x[t] = in_step(WHOLE, t, 3)


@cuda.jit(device=True)
def fibonacci(n):
    """Calls itself, twice."""
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


again = fibonacci


@cuda.jit
def recursive(x):
    """By another name than its own."""
    i = cuda.grid(1)
    x[i] = again(i)


@cuda.jit
def records(x):
    """Records of a type from outside."""
    held = cuda.shared.array(8, POINT)
    t = cuda.threadIdx.x
    held[t].x = x[t]
    held[t].n = t
    grids = cuda.shared.array(8, GRID)
    grids[t].cells[2, 1] = t
    cuda.syncthreads()
    x[t] = held[7 - t].x + held[t].n + grids[7 - t].cells[2, 1]


@cuda.jit(device=True)
def filled(row, first):
    """Writes to an array, or to a row of one."""
    for i in range(row.shape[0]):
        row[i] = first + i


@cuda.jit(device=True)
def filled_by_rows(rows, first):
    """Rows of a row."""
    for i in range(len(rows)):
        filled(rows[i], first + 10 * i)


@cuda.jit
def rows(x):
    """A row of a local array under another name, and as an argument; the index may change."""
    t = cuda.threadIdx.x
    own = cuda.local.array((2, 3, 4), float32)
    filled_by_rows(own[0], x[t])
    filled_by_rows(own[t % 2], x[t])
    which = t % 2
    block = own[which]
    which = 7
    row = block[2]
    cuda.syncthreads()
    x[t] = row[3] + row.size + block.ndim + own[which - 7, 1][-1]


twice = cuda.jit(lambda v, n=2: v * n, device=True)
more, most = (cuda.jit(f, device=True) for f in (lambda v: v + Config.STEP, lambda v: v + 100))


@cuda.jit(device=True)
def applied(function, v):
    """Calls what it is given."""
    return function(function(v))


@cuda.jit(device=True)
def counted(x, shape, kind, change, cast):
    """Changes shared memory by an atomic that it is given."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(shape, kind)
    tile[t // 4, t % 4] = 0
    cuda.syncthreads()
    change(tile, (0, cast(x[t]) % 4), 1)
    cuda.syncthreads()
    x[t] = tile[t // 4, t % 4] + applied(more, applied(twice, x[t]))


@cuda.jit
def given_functions(x):
    """CUDA's own functions, device functions, dtypes and shapes are arguments."""
    counted(x, (2, 4), np.int32, cuda.atomic.add, numba.int32)


@cuda.jit
def vectors(x):
    """Vectors are their numbers; some are kept across a barrier."""
    t = cuda.threadIdx.x
    v = cuda.float32x4(x[t], 1.5, 2, t)
    small = cuda.uchar2(300, t)
    cuda.syncthreads()
    if t > 3:
        v = cuda.float4(v.y, v.x, v.w, small.y)
    cuda.syncthreads()
    x[t] = v.x + 10 * v.y + 100 * v.w + small.x


@cuda.jit
def one_record(x, point, both):
    """A record is an argument, alone or in tuples of tuples."""
    i = cuda.grid(1)
    (scale, other), shift = both
    x[i] = x[i] * scale + point.x + shift + other["n"]
    if i == 0:
        point.n = 5


RECORDS = np.rec.fromarrays([np.float32([0, 0.5]), np.int64([4, 0])], dtype=POINT.dtype)


def run(kernel: Any, *arguments: Any) -> np.ndarray:
    """What a kernel makes of `X`, the same when it is checked."""
    found = []
    for look in (False, True):
        x = X.copy()
        with checked(look):
            kernel[2 if kernel is names else 1, 4 if kernel is names else 8](x, *arguments)
        found.append(x)
    np.testing.assert_array_equal(*found)
    return found[0]


SUM = 2 * (1 * 2 + 4 * 3 + 7 * 4)  # of `zip`, times 2


@pytest.mark.parametrize(
    ("kernel", "arguments", "wanted"),
    [
        (names, (), X + 3 + 5),
        (tiles, (), X[::-1] + SUM),
        (functions, (np.zeros(1, np.int64),), np.sqrt(X) + np.exp(X) + 5),
        (defaults, (), X + 3 + 2 * X + 10),
        (items, ((2, 3), np.float32(2), (0, 0, 7)), 2 * X + 6 + 7 + 5),
        (named_items, (Path(Point(2, 0.5), (7, 3)), (Point(np.zeros(8), 0),)), 2 * X + 0.5 + 3 * 2),
        (iterators, (), np.array([in_step(WHOLE, t, 3) for t in range(8)])),
        (recursive, (), np.array([0, 1, 1, 2, 3, 5, 8, 13])),
        (records, (), X[::-1] + X + X[::-1]),
        (rows, (), X + 23 + 4 + 2 + X + 13),
        (given_functions, (), 4 * X + 6 + 2 * (X < 4)),
        (vectors, (), 44 + np.where(X > 3, 1.5 + 110 * X, 101 * X + 15)),
        (one_record, (RECORDS[1], ((3, RECORDS[0]), 2.5)), 3 * X + 0.5 + 2.5 + 4),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_written_otherwise_gives_the_same(
    kernel: Any, arguments: tuple[Any, ...], wanted: np.ndarray
) -> None:
    np.testing.assert_allclose(run(kernel, *arguments), wanted, rtol=1e-6)


SIGNATURES = [
    "void(float32[:], int32)",
    "(float32[::1], int32)",
    numba.void(float32[:], int32),
    (float32[:], int32),
    ["void(float64[:], int32)", "void(float32[:], int32)"],
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
def test_signatures_convert_numbers(signature: Any) -> None:
    @cuda.jit(signature)
    def kernel(x, n):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += n

    x = X.copy()
    kernel[1, 8](x, 2.75)  # an int32 by the signature
    np.testing.assert_array_equal(x, X + 2)


def test_of_several_signatures_the_nearest_holds() -> None:
    @cuda.jit([f"void(float64[:], {kind}, {kind})" for kind in ("float32", "float64", "int64")])
    def kernel(out, a, b):
        out[0] = a + b

    for a, b, total in (
        (1.0, 3e-8, 1.00000003),
        (np.float64(1), np.float32(2), 3.0),
        (np.float32(1), np.float32(3e-8), 1.0),
        (2**40, 1, 2**40 + 1),
    ):
        out = np.zeros(1)
        kernel[1, 1](out, a, b)
        assert out[0] == total


def test_signatures_are_of_arrays_as_they_are() -> None:
    @cuda.jit("void(float32[:], int32)", fastmath=True)
    def kernel(x, n):
        x[0] = n

    expected = r"takes \(float32\[:\], int32\) by its signature, got \(float64\[:\], int\); convert"
    with pytest.raises(KernelError, match=expected):
        kernel[1, 1](np.zeros(1), 3)
    with pytest.raises(KernelError, match=r"the number 4294967296 has no place in int32"):
        kernel[1, 1](X.copy(), 2**32)


def test_numbers_as_wide_as_the_type_go_by_their_bits() -> None:
    @cuda.jit("void(int64[:], int32, uint8)")
    def kernel(out, wide, byte):
        out[0], out[1] = wide, byte

    cases = {0xFFFFFFFF: -1, 2**31: -(2**31), 2**31 - 1: 2**31 - 1, -(2**31): -(2**31)}
    for wide, (byte, kept) in zip(cases, [(-1, 255), (-128, 128), (255, 255), (0, 0)], strict=True):
        out = np.zeros(2, np.int64)
        kernel[1, 1](out, np.int64(wide), byte)
        assert out.tolist() == [cases[wide], kept]
    for beyond in (256, -129, 255 + 1.5, -1.0):
        with pytest.raises(KernelError, match=f"the number {beyond} has no place in uint8"):
            kernel[1, 1](np.zeros(2, np.int64), 0, beyond)


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("void(float99[:])", r"which makes no sense \(name 'float99' is not defined\)"),
        ("void(float32[:]", "which makes no sense"),
        ("float32(float32[:])", "but a kernel returns nothing; write void"),
    ],
)
def test_signatures_that_make_no_sense(signature: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):

        @cuda.jit(signature)
        def kernel(x):
            x[0] = 1


def test_a_device_functions_signature_converts_its_numbers() -> None:
    @cuda.jit("int32(int32, float32)", device=True)
    def whole(v, factor):
        """Whole on its way in, and on its way out."""
        return v * factor

    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)] += whole(3.7, 1.5)

    np.testing.assert_array_equal(run(kernel), X + 4)
    assert whole(2, 1.5) == 3


def test_a_kernel_with_a_tuple_can_be_looked_at() -> None:
    run(items, (2, 3), np.float32(2), (0, 0, 7))
    assert "pair_1" in items.cpu_source()
    report = microscope.inspect(
        items[1, 8], X.copy(), (2, 3), np.float32(2), (0, 0, 7), compiled=False
    )
    assert report.trace.kernel == "items"


def test_a_record_is_written_to_where_it_lies() -> None:
    records = RECORDS.copy()
    one_record[1, 8](X.copy(), records[1], ((3, RECORDS[0]), 2.5))
    assert records.n.tolist() == [4, 5]


def test_the_text_that_exec_gets_is_found() -> None:
    namespace: dict[str, Any] = {"cuda": cuda}
    text = "\n\n@cuda.jit\ndef from_text(x):\n    x[cuda.grid(1)] += 1\n"
    exec(text, namespace)
    np.testing.assert_array_equal(run(namespace["from_text"]), X + 1)


def test_the_text_of_another_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 knows the text of `python -c` by the name that all texts of `exec` have."""
    namespace: dict[str, Any] = {"cuda": cuda}
    other = "@cuda.jit\ndef from_text(x):\n    x[cuda.grid(1)] += 2\n"
    lines = other.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<string>", (len(other), None, lines, "<string>"))
    exec(other.replace("2", "1"), namespace)
    with pytest.raises(KernelError, match="its source text cannot be found"):
        namespace["from_text"][1, 8](X.copy())
    exec(compile(other, "<string>", "exec"), namespace)
    np.testing.assert_array_equal(run(namespace["from_text"]), X + 2)


def test_a_thread_that_fails_is_at_its_end_and_checks_tell_of_it() -> None:
    x = X.copy()
    with checked(False):
        ends[1, 8](x)
    np.testing.assert_array_equal(x, X + np.array([2, 2, 0, 2, 2, 2, 1, 1]))
    for first, told in (
        (0, "assert i + first != 2, 'not this one'"),
        (3, "raise ValueError('too far')"),
    ):
        with checked(), pytest.raises(FailedAssertion, match=re.escape(f"`{told}`. A")) as caught:
            ends[1, 8 - first](X[first:].copy(), first)
        assert caught.value.threads == (((3 if first else 2), 0, 0),)


def test_a_name_in_the_condition_of_a_loop_with_an_else() -> None:
    @cuda.jit
    def counts(x):
        i = cuda.grid(1)
        k = n = 0
        while (k := k + 1) < 4:
            n += 1
            if i == 5:
                break
        else:
            n += 5
        x[i] = n

    np.testing.assert_array_equal(run(counts), [8, 8, 8, 8, 8, 1, 8, 8])


def test_with_debug_each_launch_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITRANSFORMER_CHECK")

    @cuda.jit(debug=True, opt=False)
    def positive(x):
        assert x[cuda.grid(1)] > 0

    for _ in range(2):
        positive[1, 8](X + 1)
    with pytest.raises(FailedAssertion, match=r"thread \(0, 0, 0\) fails: `assert"):
        positive[1, 8](X)


def test_raise_stays_out_of_device_functions() -> None:
    @cuda.jit(device=True)
    def fails(v):
        if v > 3:
            raise ValueError("large")
        return v

    @cuda.jit
    def kernel(x):
        x[0] = fails(x[0])

    with pytest.raises(UnsupportedKernel, match="device function 'fails': `raise` cannot be part"):
        kernel[1, 1](X.copy())


def test_an_item_of_a_tuple_is_named() -> None:
    with pytest.raises(KernelError, match=r"'items': argument 'pair\[1\]' is a str; expected"):
        items[1, 8](X.copy(), (1, "b"), 2, (0, 0, 7))


def test_names_of_what_emitted_code_calls() -> None:
    @cuda.jit(device=True)
    def max(a, b):
        return a + b

    @cuda.jit
    def kernel(x, divergence, min):
        range = cuda.grid(1)
        len = x[range] if x[range] > min else min
        if x[0] > divergence:
            cuda.syncthreads()
        if range < divergence:
            x[range] = max(len, 1)

    before = np.arange(64, dtype=np.float32)
    x = before.copy()
    with checked(False):
        kernel[2, 32](x, 40, 5)
    np.testing.assert_array_equal(x, np.where(before < 40, np.maximum(before, 5) + 1, before))


def test_keywords_whose_parameters_are_renamed() -> None:
    @cuda.jit(device=True)
    def times(v, block=2):
        return v * block

    @cuda.jit(device=True)
    def odd(v):
        return v + times(v, block=2)

    @cuda.jit
    def kernel(x):
        y = x[cuda.grid(1)]
        y += times(odd(x[cuda.grid(1)]), block=5)
        while times(y, block=3) < 40:
            y += 1
        x[cuda.grid(1)] = y

    np.testing.assert_array_equal(run(kernel), np.maximum(16 * X, 14))


def test_walrus_after_what_it_does_not_change() -> None:
    @cuda.jit
    def kernel(x):
        if x.shape[0] > (i := cuda.grid(1)):
            x[i] = x[i] + (y := math.sqrt(x[i]) * (two := 2)) + y * two

    np.testing.assert_allclose(run(kernel), X + 6 * np.sqrt(X), rtol=1e-6)
