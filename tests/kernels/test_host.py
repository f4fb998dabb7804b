"""What surrounds a launch without a GPU: device arrays, streams, events, random numbers."""

import asyncio
import inspect
import math
import operator
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from minitransformer_kernels import host
from minitransformer_kernels.cpu import KernelError, UnsupportedKernel
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.host.arrays import DeviceNDArray, MappedNDArray


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a GPU, most of these names are Numba's own."""
    monkeypatch.setattr(host, "_stays_on_cpu", True)


@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


def on_device(*shape: int, order: Any = "C") -> Any:
    return cuda.to_device(np.arange(math.prod(shape), dtype=float).reshape(shape, order=order))


def test_nobody_sees_what_a_kernel_wrote_before_the_copy() -> None:
    x = np.zeros(4)
    there = cuda.to_device(x)
    add_one[1, 4](there)
    assert x.tolist() == [0] * 4
    assert there.copy_to_host().tolist() == [1] * 4
    x[:] = 7
    assert there.copy_to_host().tolist() == [1] * 4


def test_plain_arrays_are_still_taken() -> None:
    x = np.zeros(4)
    add_one[1, 4](x)
    assert x.tolist() == [1] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int8, np.uint16])
def test_what_nobody_wrote_is_no_result(dtype: Any) -> None:
    for array in (cuda.device_array(3, dtype), cuda.device_array_like(np.zeros(3, dtype))):
        values = array.copy_to_host()
        assert values.dtype == dtype
        assert np.isnan(values).all() or (values == np.array(-1).astype(dtype)).all()


@given(st.data())
def test_indices_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(npst.array_shapes(max_dims=3, max_side=4))
    index = data.draw(npst.basic_indices(shape, allow_newaxis=False))
    expected = np.arange(math.prod(shape)).reshape(shape)
    there = cuda.to_device(expected)
    found, numbers = there[index], expected[index]
    assert isinstance(found, DeviceNDArray) == isinstance(numbers, np.ndarray)
    if isinstance(found, np.generic) or min(found.strides, default=0) >= 0:
        np.testing.assert_array_equal(np.asarray(found), numbers)
    there[index] = -1
    expected[index] = -1
    np.testing.assert_array_equal(there.copy_to_host(), expected)
    if isinstance(found, DeviceNDArray):
        np.testing.assert_array_equal(found.memory, -1)  # it is a view


def test_a_kernel_writes_through_a_view() -> None:
    there = on_device(3, 4)
    add_one[1, 32](there[1])
    assert there.copy_to_host()[:, 0].tolist() == [0, 5, 8]


@pytest.mark.parametrize("index", [[0, 1], np.array([True, False]), None, 1.5])
def test_other_indices_are_refused(index: Any) -> None:
    with pytest.raises(TypeError, match=r"takes whole numbers and slices as indices.*copy_to_host"):
        on_device(2)[index]
    with pytest.raises(TypeError, match="takes whole numbers and slices as indices"):
        on_device(2)[index] = 1


@pytest.mark.parametrize("operation", [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.lt, operator.ge, operator.iadd, operator.and_,
])  # fmt: skip
def test_arithmetic_is_refused(operation: Any) -> None:
    with pytest.raises(TypeError, match=r"device array does no arithmetic.*copy_to_host"):
        operation(on_device(2), 2)
    with pytest.raises(TypeError, match="device array does no arithmetic"):
        operation(2, on_device(2))
    with pytest.raises(TypeError, match="device array does no arithmetic, such as `-`"):
        -on_device(2)


def test_methods_of_numpy_are_refused() -> None:
    with pytest.raises(AttributeError, match="device array has no 'mean': copy_to_host"):
        on_device(2).mean()
    with pytest.raises(AttributeError, match=r"device array has no 'maen'$"):
        on_device(2).maen()


def test_views() -> None:
    there = on_device(4, 6)
    views = {
        "reshape": there.reshape(2, 12), "tuple": there.reshape((24,)), "ravel": there.ravel(),
        "view": there.view(np.int64), "squeeze": there.reshape(1, 24).squeeze(),
        "bind": there.bind(),
    }  # fmt: skip
    assert {name: view.shape for name, view in views.items()} == {
        "reshape": (2, 12), "tuple": (24,), "ravel": (24,), "view": (4, 6), "squeeze": (24,),
        "bind": (4, 6),
    }  # fmt: skip
    there[0, 0] = 9
    assert all(np.asarray(view).flat[0] in (9, np.float64(9).view(int)) for view in views.values())


def test_an_array_that_repeats_itself_is_copied_to() -> None:
    rows = np.arange(6).reshape(2, 3)
    there = cuda.to_device(np.broadcast_to(rows, (4, 2, 3)))
    assert there.is_c_contiguous()
    there.copy_to_device(np.broadcast_to(rows + 1, (4, 2, 3)))
    np.testing.assert_array_equal(there.copy_to_host()[3], rows + 1)


def test_split_and_transpose() -> None:
    assert [part.copy_to_host().tolist() for part in on_device(5).split(2)] == [[0, 1], [2, 3], [4]]
    there = on_device(2, 3)
    np.testing.assert_array_equal(there.T.copy_to_host(), there.copy_to_host().T)
    assert there.transpose((0, 1)) is there
    with pytest.raises(NotImplementedError, match="has 2 axes; this one has 3"):
        on_device(1, 2, 3).transpose()
    with pytest.raises(ValueError, match="split takes an array of one axis, in one piece"):
        list(on_device(8)[::2].split(2))


@pytest.mark.parametrize("way", [lambda x: x.reshape(6), lambda x: x.ravel()])
def test_views_that_need_a_copy_are_refused(way: Any) -> None:
    with pytest.raises(NotImplementedError, match="needs a copy, which a device array does not"):
        way(on_device(3, 4)[:, :2])


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_is_kept(order: Any) -> None:
    there = on_device(3, 4, order=order)
    assert (there.is_c_contiguous(), there.is_f_contiguous()) == (order == "C", order == "F")
    for other in (cuda.device_array_like(there), cuda.to_device(there.copy_to_host())):
        assert other.strides == there.strides
    assert cuda.device_array((3, 4), order=order).strides == there.strides
    assert cuda.device_array((3, 4), strides=there.strides).strides == there.strides


def test_what_does_not_lie_in_one_piece_is_refused() -> None:
    with pytest.raises(ValueError, match=r"to_device must lie in one piece.*ascontiguousarray"):
        cuda.to_device(np.zeros((4, 4))[:, ::2])
    with pytest.raises(ValueError, match="copied to must lie in one piece"):
        on_device(4, 4)[:, ::2].copy_to_device(np.zeros((4, 2)))


def test_a_view_that_runs_backwards_is_not_copied() -> None:
    with pytest.raises(NotImplementedError, match="runs backwards is not copied"):
        on_device(4)[::-1].copy_to_host()


def test_copies_between_arrays() -> None:
    there, host_array = on_device(2, 3), np.zeros((2, 3))
    assert there.copy_to_host(host_array) is host_array
    assert host_array.tolist() == [[0, 1, 2], [3, 4, 5]]
    other = cuda.to_device(host_array, copy=False)
    assert np.isnan(other.copy_to_host()).all()
    other.copy_to_device(there)
    assert cuda.to_device(host_array + 1, to=other) is other
    assert other.copy_to_host().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert cuda.to_device(other) is other


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (np.zeros((2, 3), np.float32), TypeError, "incompatible dtype: float64 on the device, fl"),
        (np.zeros((3, 2)), ValueError, r"incompatible shape: \(2, 3\) on the device, \(3, 2\)"),
        (np.zeros((2, 3), order="F"), ValueError, r"incompatible strides.*same order"),
    ],
)
def test_copies_that_do_not_fit_are_refused(wrong: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        on_device(2, 3).copy_to_host(wrong)
    if error is TypeError or "shape" in message:
        with pytest.raises(error, match=message):
            on_device(2, 3).copy_to_device(wrong)


def test_records() -> None:
    dtype = np.dtype([("x", np.float32), ("n", np.int32, 3)])
    there = cuda.to_device(np.zeros(4, dtype))
    record = there[2]
    record["x"] = 1.5
    record["n"][1] = 7
    found = there.copy_to_host()
    assert found["x"].tolist() == [0, 0, 1.5, 0]
    assert found["n"][2].tolist() == [0, 7, 0]
    assert record.copy_to_host()["x"] == 1.5
    record.copy_to_device(np.array((2.5, (1, 2, 3)), dtype))
    assert there.copy_to_host()["x"].tolist() == [0, 0, 2.5, 0]
    inner = cuda.to_device(np.zeros(2, [("a", [("b", np.int8)])]))
    inner[1]["a"]["b"] = 3
    assert inner.copy_to_host()["a"]["b"].tolist() == [0, 3]
    assert cuda.to_device(there.copy_to_host()[2])["x"] == 2.5
    stream = cuda.stream()
    assert inner[1].getitem("a", stream).stream is record.getitem("n", stream).stream is stream


@pytest.mark.parametrize("name", ["pinned_array", "mapped_array", "managed_array"])
def test_memory_that_host_and_kernels_share(name: str) -> None:
    shared = getattr(cuda, name)((4,), np.float32)
    shared[:] = 2
    add_one[1, 4](shared)
    assert shared.tolist() == [3] * 4
    assert isinstance(shared, MappedNDArray) == (name != "pinned_array")
    if name != "pinned_array":
        stream = cuda.stream()
        assert getattr(cuda, name)(4, stream=stream).stream is stream


def test_arrays_like_others() -> None:
    for make in (cuda.pinned_array_like, cuda.mapped_array_like, cuda.device_array_like):
        assert make(np.zeros((2, 3), np.int8, order="F")).strides == (1, 2)
    x = np.zeros(4)
    with cuda.pinned(x), cuda.mapped(x) as there:
        add_one[1, 4](there)
    assert x.tolist() == [1] * 4


def test_hints_of_arguments() -> None:
    x = np.zeros(4)
    add_one[1, 4](cuda.In(x))
    assert x.tolist() == [0] * 4
    add_one[1, 4](cuda.InOut(x))
    add_one[1, 4](cuda.Out(x))
    assert x.tolist() == [2] * 4


def test_numbas_own_arrays_are_cupys_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = ModuleType("cupy")
    cupy.asarray = lambda array: ("view of", array)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    theirs = SimpleNamespace(__cuda_ndarray__=True)
    assert host.opened((theirs, 2)) == (("view of", theirs), 2)


@pytest.fixture
def numbas(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What is Numba's `cuda`, whose GPU nobody has asked for yet."""
    theirs = SimpleNamespace()
    compiler = SimpleNamespace(namespace=lambda: theirs)
    monkeypatch.setattr(host.compilers, "compiler", lambda: compiler)
    monkeypatch.setattr(host, "_stays_on_cpu", False)
    host._found_gpu.cache_clear()
    yield theirs
    host._found_gpu.cache_clear()


def test_whether_there_is_a_gpu_is_asked_once(numbas: SimpleNamespace) -> None:
    asked = []
    numbas.is_available = lambda: asked.append(1)
    described = SimpleNamespace(__cuda_array_interface__=on_device(4).__cuda_array_interface__)
    for _ in range(3):
        host.opened((described, described))
    assert asked == [1]


def test_where_there_is_a_gpu_the_names_are_numbas(numbas: SimpleNamespace) -> None:
    numbas.to_device, numbas.is_available = "Numba's", lambda: True
    assert host.find("to_device") == "Numba's"
    host.stay_on_cpu()
    assert host.find("to_device") is host.OURS["to_device"]


def test_array_interface() -> None:
    there = on_device(4)
    described = SimpleNamespace(__cuda_array_interface__=there.__cuda_array_interface__)
    other = cuda.as_cuda_array(described)
    other[1] = 9
    assert there[1] == 9
    assert cuda.as_cuda_array(there) is there
    bound = there.bind(cuda.stream()).__cuda_array_interface__
    assert bound["stream"] > 2
    assert int(cuda.from_cuda_array_interface(bound).stream) == bound["stream"]
    assert cuda.device_array(0).__cuda_array_interface__["data"] == (0, False)
    assert cuda.is_cuda_array(there)
    assert not cuda.is_cuda_array(np.zeros(1))
    add_one[1, 4](described)
    assert there.copy_to_host().tolist() == [1, 10, 3, 4]
    apart = length(described, 0.0)
    assert isinstance(apart, DeviceNDArray)
    assert apart.copy_to_host().tolist() == [1, 10, 3, 4]
    assert length(3.0, 4.0, out=described).copy_to_host().tolist() == [5] * 4
    with pytest.raises(TypeError, match="got a ndarray; copy it with to_device"):
        cuda.as_cuda_array(np.zeros(1))


def test_streams() -> None:
    stream, there, called = cuda.stream(), cuda.to_device(np.zeros(4)), []
    with stream.auto_synchronize():
        add_one[1, 4, stream](there)
        stream.add_callback(lambda *given: called.append(given), "argument")
    assert there.copy_to_host(stream=stream).tolist() == [1] * 4
    assert called == [(stream, 0, "argument")]

    async def wait() -> Any:
        return await stream.async_done()

    assert asyncio.run(wait()) is stream


def test_events() -> None:
    first, second = cuda.event(), cuda.event()
    first.record()
    second.record(stream=cuda.default_stream())
    second.synchronize()
    assert second.query()
    milliseconds = cuda.event_elapsed_time(first, second)
    assert 0 <= milliseconds < 60_000
    assert first.elapsed_time(second) == milliseconds


@pytest.mark.parametrize(("timing", "message"), [(True, "not recorded"), (False, "timing=False")])
def test_events_without_a_time(timing: bool, message: str) -> None:
    from numba.cuda.cudadrv.driver import CudaAPIError

    first, second = cuda.event(), cuda.event(timing=timing)
    first.record()
    if not timing:
        second.record()
    with pytest.raises(CudaAPIError, match=f"the second event was .*{message}"):
        cuda.event_elapsed_time(first, second)


def test_the_device() -> None:
    assert cuda.is_available()
    assert cuda.detect()
    assert len(cuda.gpus) == len(cuda.gpus[:3]) == 1
    assert cuda.gpus[1:] == ()
    assert [device.id for device in cuda.list_devices()] == [0]
    assert cuda.select_device(0) is cuda.get_current_device() is cuda.gpus.current
    with cuda.gpus[0]:
        free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total
    device = cuda.get_current_device()
    assert (device.MAX_THREADS_PER_BLOCK, device.WARP_SIZE) == (1024, 32)
    assert device.MULTIPROCESSOR_COUNT >= 1
    with pytest.raises(AttributeError, match="device has no attribute 'MAX_THREADS'"):
        _ = device.MAX_THREADS
    with pytest.raises(IndexError, match="there is no device 1: the CPU is the only one, 0"):
        cuda.select_device(1)
    with cuda.defer_cleanup(), cuda.profiling():
        cuda.synchronize()
    cuda.close()


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match=r"cuda has no 'to_devise'; did you mean cuda.to_dev"):
        _ = cuda.to_devise
    with pytest.raises(NotImplementedError, match=r"set_memory_manager needs a GPU: .*leave it"):
        cuda.set_memory_manager(None)


def test_functions_in_cpp_are_declared_but_not_called() -> None:
    of_cpp = cuda.declare_device("f", "float32(float32)")  # as Numba's own modules do

    @cuda.jit
    def calls(x):
        x[0] = of_cpp(x[0])

    with pytest.raises(UnsupportedKernel, match=r"'of_cpp' is a function in C\+\+, and those"):
        calls[1, 1](np.zeros(1, np.float32))


@pytest.mark.parametrize("name", sorted({*host.OURS} - {"gpus", *host.BEYOND}))
def test_parameters_are_numbas(name: str) -> None:
    """So that what is written here runs there."""
    from numba import cuda as numba_cuda

    theirs, mine = getattr(numba_cuda, name, None), host.OURS[name]
    if theirs is None:
        pytest.skip("this version of Numba does not have it")
    if isinstance(mine, type):
        theirs, mine = theirs.__init__, mine.__init__
    ignored = ("self", "options", "kws", "kwargs")
    given, wanted = (
        [p for p in inspect.signature(f).parameters if p not in ignored] for f in (mine, theirs)
    )
    if name not in ("guvectorize", "mapped"):  # whose are *args and **kws there
        assert given == wanted


@pytest.mark.parametrize("method", [
    "copy_to_host", "copy_to_device", "reshape", "ravel", "transpose", "squeeze", "view", "split",
    "getitem", "setitem", "bind", "is_c_contiguous", "is_f_contiguous",
])  # fmt: skip
def test_methods_are_numbas(method: str) -> None:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray as Theirs

    mine, theirs = (getattr(kind, method) for kind in (DeviceNDArray, Theirs))
    if method != "reshape":  # whose order is among **kws there
        assert [*inspect.signature(mine).parameters] == [*inspect.signature(theirs).parameters]


@given(
    npst.arrays(np.int64, st.integers(0, 300), elements=st.integers(-1000, 1000)), st.integers(0, 9)
)
def test_reduce(numbers: np.ndarray, init: int) -> None:
    assert add(numbers, init=init) == numbers.sum() + init
    assert add(cuda.to_device(numbers), size=7) == numbers[:7].sum()
    assert largest(numbers, init=-2000) == numbers.max(initial=-2000)


@host.OURS["reduce"]
def add(a, b):
    return a + b


largest = host.OURS["reduce"](lambda a, b: max(a, b))


def test_reduce_leaves_the_result_on_the_device() -> None:
    result = cuda.to_device(np.zeros(2))
    assert add(on_device(5), res=result) is None
    assert result.copy_to_host().tolist() == [10, 0]
    with pytest.raises(TypeError, match="reduce takes an array of one axis, got one of 2"):
        add(on_device(2, 2))


@cuda.jit(device=True)
def squared(x):
    return x * x


@host.OURS["vectorize"](["float32(float32, float32)", "float64(float64, float64)"])
def length(x, y):
    return math.sqrt(squared(x) + squared(y))


def test_vectorize() -> None:
    x, y = np.float32([[3], [6]]), np.float32([4, 8])
    result = length(x, y)
    np.testing.assert_allclose(result, np.hypot(x, y))
    assert result.dtype == np.float32
    there = length(cuda.to_device(x), y, stream=cuda.stream())
    assert isinstance(there, DeviceNDArray)
    np.testing.assert_allclose(there.copy_to_host(), result)
    out = cuda.device_array_like(result)
    assert length(x, y, out=out) is out
    np.testing.assert_allclose(out.copy_to_host(), result)


def test_a_function_of_arrays_is_pickled() -> None:
    again = pickle.loads(pickle.dumps(length))
    assert again(3.0, 4.0) == 5


def test_options_of_vectorize() -> None:
    @cuda.vectorize(["int64(int64, int64)"], identity=0, max_blocksize=64)
    def plus(x, y):
        return x + y

    assert plus.identity == 0
    assert plus.reduce(cuda.to_device(np.arange(5))) == 10
    with pytest.raises(TypeError, match="there is no option fastmth; there are boundscheck, cache"):
        cuda.vectorize(["int64(int64)"], fastmth=True)(lambda x: x)
    with pytest.raises(TypeError, match="runs no Python: leave out nopython=False"):
        cuda.guvectorize(["void(int64[:], int64[:])"], "(n)->(n)", nopython=False)


def test_numbers_become_what_the_only_signature_says() -> None:
    @cuda.vectorize(["float32(float32)"])
    def half(x):
        return x / 2

    assert half(np.arange(3.0)).tolist() == [0, 0.5, 1]
    assert half(3).dtype == np.float32
    with pytest.raises(TypeError, match="half takes float32, got a device array of float64, which"):
        half(on_device(3))


def test_guvectorize() -> None:
    @cuda.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")
    def running(x, out):
        total = 0.0
        for i in range(x.shape[0]):
            total += x[i]
            out[i] = total

    x = np.random.default_rng(0).standard_normal((3, 5))
    np.testing.assert_allclose(running(x), x.cumsum(axis=1))
    np.testing.assert_allclose(running(cuda.to_device(x)).copy_to_host(), x.cumsum(axis=1))


def gives_a_row(x, out):
    out[0] = x[0]
    return out  # here


def misspells(x):
    return x.reel  # here


def adds_with_text(x, y):
    return x + y + "1"  # here


@pytest.mark.parametrize(
    ("function", "apply", "message"),
    [
        (gives_a_row, lambda f: cuda.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")(f),
         "in `return out  # here`, a 1-d array of float64 is returned. Write it to an array argum"),
        (misspells, lambda f: cuda.vectorize(["float32(float32)"])(f),
         "a float32 has no attribute 'reel'"),
        (misspells, lambda f: cuda.vectorize(f)(np.ones(3)), "a float64 has no attribute 'reel'"),
        (adds_with_text, lambda f: cuda.reduce(f)(np.ones(3)), "`+` is not defined for float64 a"),
        (cuda.jit(device=True)(adds_with_text), lambda f: cuda.reduce(f)(np.ones(3)), "`+` is not"),
    ],
)  # fmt: skip
def test_a_function_that_numba_cannot_compile_is_told_with_its_line(
    function: Any, apply: Any, message: str
) -> None:
    with pytest.raises(UnsupportedKernel) as refusal:
        apply(function)
    text, plain = str(refusal.value), getattr(function, "function", function)
    lines, first = inspect.getsourcelines(plain)
    line = first + next(n for n, line in enumerate(lines) if "# here" in line)
    assert text.startswith(f"{__file__}:{line}: function {plain.__name__!r}: in `return ")
    assert message in text
    assert "\n" not in text


uniform32, uniform64 = (
    cuda.random.xoroshiro128p_uniform_float32, cuda.random.xoroshiro128p_uniform_float64
)  # fmt: skip
normal32, normal64 = (
    cuda.random.xoroshiro128p_normal_float32, cuda.random.xoroshiro128p_normal_float64
)  # fmt: skip


@cuda.jit
def draw(states, numbers):
    i = cuda.grid(1)
    if i < numbers.shape[0]:
        numbers[i, 0] = uniform32(states, i)
        numbers[i, 1] = uniform64(states, i)
        numbers[i, 2] = normal32(states, i)
        numbers[i, 3] = cuda.random.xoroshiro128p_normal_float64(states, i)


@numba.njit
def drawn(states, numbers):
    for i in range(numbers.shape[0]):
        numbers[i, 0] = uniform32(states, i)
        numbers[i, 1] = uniform64(states, i)
        numbers[i, 2] = normal32(states, i)
        numbers[i, 3] = normal64(states, i)


@pytest.mark.parametrize("subsequence_start", [0, 3])
def test_random_numbers_are_numbas(subsequence_start: int) -> None:
    states = cuda.random.create_xoroshiro128p_states(100, 7, subsequence_start)
    same = np.empty(100, states.dtype)
    cuda.random.init_xoroshiro128p_states_cpu(same, 7, subsequence_start)
    numbers, expected = np.zeros((2, 100, 4))
    for _ in range(2):
        draw[2, 64](states, numbers)
        drawn(same, expected)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(states.copy_to_host(), same)


def fills(x):
    x[cuda.threadIdx.x] = 1


def test_a_function_that_uses_this_cuda_is_compiled_for_a_gpu() -> None:
    pytest.importorskip("numba_cuda")
    ptx, returned = cuda.compile_ptx(fills, "void(float32[:])", cc=(8, 0))
    assert ".visible .entry" in ptx
    assert "%tid.x" in ptx
    assert str(returned) == "none"


def test_compiling_for_a_gpu_behind_a_cover_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_ptx(function: Any) -> None:
        raise NotImplementedError("No definition for lowering Module")

    monkeypatch.setattr(host, "find", lambda name: compile_ptx)
    with pytest.raises(KernelError, match="of 'fills': where `numba"):
        cuda.compile_ptx(fills)
