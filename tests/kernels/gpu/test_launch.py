"""A launch on CUDA, down to the bytes that the driver finds, on a stand-in for the driver."""

import ctypes
import importlib.util
import math
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from minitransformer_kernels import guards
from minitransformer_kernels.cpu import KernelError
from minitransformer_kernels.cuda import Kernel, cuda
from minitransformer_kernels.gpu import assembler, compilers
from minitransformer_kernels.gpu import launch as launching
from minitransformer_kernels.gpu.compilers import numba_cuda

from ...conftest import why_no_cuda

with_assembler = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="needs the extra gate"
)


@cuda.jit
def add(x, y, step):
    """Add `step` of y to x."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += y[i] * step


@cuda.jit
def nothing(x, y, z, a, b, c, d, e):
    """Takes one of everything."""


class FakeArray:
    """A CuPy array over host memory; what could make a launch wait is out of its reach."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)
        self.data = SimpleNamespace(ptr=self._array.ctypes.data)

    def __getattr__(self, name: str) -> Any:
        if name not in ("dtype", "ndim", "flags", "size", "itemsize", "shape", "strides"):
            raise AttributeError(f"a launch has no business with {name}")
        return getattr(self._array, name)


class Launched(NamedTuple):
    """What the driver is told, and the 8 bytes that it finds for each argument."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    slots: list[bytes]
    shared: int
    stream: Any


class DriverError(RuntimeError):
    """CuPy's `CUDADriverError`."""


class FakeCupy:
    """As much of the module `cupy` as a launch touches: nothing of it can wait for a GPU."""

    ndarray = FakeArray

    def __init__(self) -> None:
        self.launched: list[Launched] = []
        self.modules: list[bytes] = []
        self.gpu = 0  # the current one
        self.before_copying: Callable[[], None] = lambda: None
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: self.gpu),
            Device=lambda: SimpleNamespace(compute_capability="90"),
            function=SimpleNamespace(
                Module=lambda: SimpleNamespace(
                    load=self.modules.append, get_function=self.get_function
                ),
                CPointer=lambda ptr: SimpleNamespace(ptr=ptr),
            ),
            driver=SimpleNamespace(
                CUDADriverError=DriverError,
                CU_FUNC_ATTRIBUTE_NUM_REGS=4,
                funcGetAttribute=lambda attribute, function: 168,
            ),
            ExternalStream=lambda ptr: SimpleNamespace(ptr=ptr),
            get_current_stream=lambda: SimpleNamespace(ptr=7),
        )

    def get_function(self, name: str) -> Any:
        """Return what launches a kernel."""

        def launch(grid: Any, block: Any, places: Any, shared: int, stream: Any) -> None:
            self.before_copying()
            slots = [ctypes.string_at(place.ptr, launching.SLOT) for place in places]
            self.launched.append(Launched(name, grid, block, slots, shared, stream))

        launch.ptr = 0  # type: ignore[attr-defined]
        return launch


@pytest.fixture
def own_launches(request: pytest.FixtureRequest) -> None:
    """Skips where launches are not the package's own."""
    if request.config.getoption("--stand-in-cupy"):
        pytest.skip("on the stand-in for CuPy, what is tested here is replaced")


@pytest.fixture
def cupy(own_launches: None, monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """A stand-in for CuPy, and kernels that are compiled to nothing."""
    module: Any = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(assembler, "cubin", lambda *arguments: b"code")
    for kernel in (add, nothing):
        monkeypatch.setitem(kernel.__dict__, "on_cuda", launching.CudaKernel(kernel))
    return module  # type: ignore[no-any-return]


def arrays(*shapes: Any) -> list[FakeArray]:
    """Float32 arrays."""
    return [FakeArray(np.zeros(shape, np.float32)) for shape in shapes]


def test_the_driver_finds_the_arguments_as_c_has_them(cupy: FakeCupy) -> None:
    x = np.zeros((5, 6), np.float32)
    row, turned = FakeArray(x[2]), FakeArray(x.T[1:])
    numbers = (True, 7, (2.5, np.int32(-3)), np.float32(0.1), 1 << 63)
    nothing[(2, 3), (8, 4), None, 64](row, turned, FakeArray(np.zeros(())), *numbers)
    (launched,) = cupy.launched
    assert launched[:3] == ("test_launch_nothing", (2, 3, 1), (8, 4, 1))
    assert launched[4:] == (64, None)
    base = x.ctypes.data
    integers = [0, 0, 6, 4, base + 48, 6, 4, 0, 0, 25, 4, base + 4, 5, 5, 4, 24]
    slots = launched.slots
    assert [struct.unpack("q", slot)[0] for slot in slots[: len(integers)]] == integers
    assert struct.unpack("qqqqq", b"".join(slots[16:21]))[2:4] == (1, 8)
    bools, whole, real, int32, float32, unsigned = slots[21:]
    assert bools[:1] == b"\x01"
    assert struct.unpack("q", whole) == (7,)
    assert struct.unpack("d", real) == (2.5,)
    assert struct.unpack("i", int32[:4]) == (-3,)
    assert struct.unpack("f", float32[:4]) == (np.float32(0.1),)
    assert struct.unpack("Q", unsigned) == (1 << 63,)


def test_a_kernel_is_loaded_once_for_each_gpu_and_kind_of_arguments(cupy: FakeCupy) -> None:
    x, y = arrays(4, 4)
    for _ in range(2):
        add[1, 4](x, y, 1)
        add[2, 8](x, *arrays(3), 2)
    assert len(cupy.modules) == 1
    add[1, 4](x, y, 1.0)
    add[1, 4](x, FakeArray(np.zeros(4)), 1)
    add[1, 4](x, FakeArray(np.zeros(8, np.float32)[::2]), 1)
    assert len(cupy.modules) == 4
    cupy.gpu = 1
    add[1, 4](x, y, 1)
    assert len(cupy.modules) == 5
    assert len(cupy.launched) == 8


@pytest.mark.parametrize("stream", [None, 0])
def test_without_a_stream_it_is_cupys_current_one(cupy: FakeCupy, stream: Any) -> None:
    add[1, 4, stream](*arrays(4, 4), 1)
    assert cupy.launched[0].stream is None


def test_streams_are_cupys_or_numbas(cupy: FakeCupy) -> None:
    class NumbaStream:
        def __int__(self) -> int:
            return 42

    ours = SimpleNamespace(ptr=3)
    for stream in (ours, NumbaStream()):
        add[1, 4, stream](*arrays(4, 4), 1)
    assert [launched.stream.ptr for launched in cupy.launched] == [3, 42]


def test_arguments_of_two_threads_do_not_mix(cupy: FakeCupy) -> None:
    x, y = arrays(4, 4)
    add[1, 4](x, y, 0)
    other = threading.Thread(target=lambda: add[1, 4](x, y, 2))

    def meanwhile() -> None:
        cupy.before_copying = lambda: None
        other.start()
        other.join(0.1)

    cupy.before_copying = meanwhile
    add[1, 4](x, y, 1)
    other.join()
    assert [struct.unpack("q", each.slots[-1])[0] for each in cupy.launched] == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "threads", "most"),
    [
        ("LAUNCH_OUT_OF_RESOURCES", 512, 128),
        ("INVALID_VALUE", 512, 128),
        ("INVALID_VALUE", 904, 64),
    ],
)
def test_a_launch_that_the_gpu_cannot_run_says_what_it_asked_for(
    cupy: FakeCupy, error: str, threads: int, most: int
) -> None:
    def fail() -> None:
        raise DriverError(f"CUDA_ERROR_{error}: no")

    cupy.before_copying = fail
    message = (
        rf"'add': the GPU cannot run blocks of {threads} threads with 168 registers each and 1,024 "
        rf"bytes of dynamic shared memory \(CUDA_ERROR_{error}: no\)\. .*max_registers={most}\)"
    )
    with pytest.raises(KernelError, match=message):
        add[1, (threads // 8, 8), 0, 1024](*arrays(4, 4), 1)


def test_an_earlier_failure_is_called_one(cupy: FakeCupy) -> None:
    def fail() -> None:
        raise DriverError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")

    cupy.before_copying = fail
    with pytest.raises(KernelError, match=r"'add' was not launched: .*ILLEGAL.*An earlier kernel"):
        add[1, 4](*arrays(4, 4), 1)


def test_wrong_number_of_arguments_is_refused(cupy: FakeCupy) -> None:
    with pytest.raises(KernelError, match=r"'add' takes 3 arguments \(x, y, step\), got 2"):
        add[1, 4](*arrays(4, 4))
    assert not cupy.launched


def test_what_does_not_compile_names_the_types_and_the_way_out(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> bytes:
        raise TypeError("no such thing")

    monkeypatch.setattr(assembler, "cubin", fail)
    message = (
        r"'add' does not compile for CUDA \(sm_90\): no such thing\nIts arguments are "
        r"array\(float32, 1d, C\), .*, int64\. "
    )
    with pytest.raises(KernelError, match=message) as caught:
        add[1, 4](*arrays(4, 4), 1)
    assert "MINITRANSFORMER_LAUNCH=numba" in str(caught.value)


def test_numba_launches_when_asked_to_and_does_not_wait(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = []
    config = SimpleNamespace(CUDA_ARRAY_INTERFACE_SYNC=True)
    fake: Any = SimpleNamespace(external_stream=lambda ptr: ptr, config=config)
    monkeypatch.setattr(numba_cuda, "namespace", lambda: fake)

    class Recorder:
        def __getitem__(self, configuration: Any) -> Any:
            return lambda *arguments: launches.append((configuration, arguments))

    monkeypatch.setitem(add.__dict__, "_on_gpu", {compilers.asked(): Recorder()})
    monkeypatch.setattr(add.on_cuda, "by_numba", True)
    arguments = (*arrays(4, 4), 1)
    add[2, 4](*arguments)
    add[2, 4, SimpleNamespace(ptr=9), 16](*arguments)
    add[2, 4, SimpleNamespace(ptr=0)](*arguments)
    shape = (2, 1, 1), (4, 1, 1)
    assert launches == [((*shape, *how), arguments) for how in ((7, 0), (9, 16), (1, 0))]
    assert not config.CUDA_ARRAY_INTERFACE_SYNC
    assert not cupy.launched


def test_options_that_only_numba_knows_are_left_to_it() -> None:
    @cuda.jit(fastmath=True, max_registers=64, lineinfo=True)
    def ours(x):
        x[0] = 1

    @cuda.jit(launch_bounds=128)
    def numbas(x):
        x[0] = 1

    assert (ours.on_cuda.by_numba, numbas.on_cuda.by_numba) == (launching.NUMBA, True)


LAYOUTS = {
    "C": lambda x: x,
    "F": lambda x: x.T,
    "sliced": lambda x: x[:, 1::2],
    "reversed": lambda x: x[::-1],
    "broadcast": lambda x: np.lib.stride_tricks.as_strided(x, x.shape, (0, x.itemsize)),
    "one row": lambda x: x[1:2, ::2],
    "one of a row": lambda x: x[1:2, 2:3],
    "empty": lambda x: x[2:2],
    "flat": lambda x: x.reshape(-1),
    "column": lambda x: x[:, 1],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_types_of_arrays_are_numbas(layout: str, dtype: Any) -> None:
    array = LAYOUTS[layout](np.zeros((4, 6), dtype))
    found = launching.types_of((array, FakeArray(array)))
    assert found == (numba.typeof(array),) * 2
    array.flags.writeable = False
    assert launching.types_of((array,)) == found[:1]


class Point(NamedTuple):
    x: Any
    y: Any


def test_types_of_numbers_are_numbas() -> None:
    numbers: tuple[Any, ...] = (True, 3, -3, 1 << 40, 1 << 63, 0.5, (1, (2.0, False)))
    numbers += tuple(dtype(1) for dtype in (np.bool_, np.int32, np.uint8, np.float32, np.float64))
    numbers += 1j, np.complex64(1), Point(1, 2), Point(1, (0.5, Point(2.5, 3)))
    assert launching.types_of(numbers) == tuple(map(numba.typeof, numbers))


# -- machine code ----------------------------------------------------------------------------------


def made(
    size: int = 8, scale: Any = 2.0, power: float = 2.0, dtype: Any = np.float32, above: int = 1,
    **options: Any,
) -> Kernel:  # fmt: skip
    """A kernel with constants in its closure, and in that of a device function."""
    table = np.arange(size, dtype=dtype)

    @cuda.jit(device=True)
    def bent(x, more=above):
        return x**power + more

    @cuda.jit(**options)
    def look_up(x):
        i = cuda.threadIdx.x
        x[i] = bent(table[i % size]) * scale

    return look_up  # type: ignore[no-any-return]


def digest(kernel: Kernel, dtype: Any = numba.float32, architecture: Any = (9, 0)) -> str:
    """What the machine code is filed under."""
    return assembler._digest(kernel, (numba.types.Array(dtype, 1, "C"),), architecture)


def test_machine_code_is_filed_under_all_that_decides_it() -> None:
    same = [digest(made()), digest(made())]
    others = [
        digest(made(size=9)), digest(made(scale=3.0)), digest(made(scale=np.float32(2))),
        digest(made(power=3.0)), digest(made(dtype=np.float64)), digest(made(fastmath=True)),
        digest(made(max_registers=64)), digest(made(), numba.float64), digest(made(above=2)),
        digest(made(), architecture=(8, 0)),
    ]  # fmt: skip
    assert same[0] == same[1]
    assert len({*same, *others}) == 1 + len(others)


def test_the_text_of_an_instruction_decides_it_too() -> None:
    digests = []
    for ptx in ("cvt.rna", "cvt.rn", "cvt.rn"):

        @cuda.jit(device=True)
        def rounded(x):
            return x

        rounded.ptx = ptx

        @cuda.jit
        def each(x):
            x[0] = rounded(x[0])

        digests.append(digest(each))
    assert digests[0] != digests[1] == digests[2]


def test_members_of_modules_and_dimensions_decide_it_too() -> None:
    @cuda.jit
    def across(x):
        x[cuda.threadIdx.x] = 1

    @cuda.jit
    def down(x):
        x[cuda.threadIdx.y] = 1

    @cuda.jit
    def stride(x):
        x[0] = launching.SLOT

    assert digest(across) != digest(down)
    before = digest(stride)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launching, "SLOT", 16)
        assert digest(stride) != before
    assert digest(stride) == before


@pytest.mark.parametrize(
    "package", ["numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12"]
)
def test_another_version_of_what_compiles_files_it_elsewhere(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    def filed(version: str) -> bytes:
        installed = [SimpleNamespace(name=package, version=version)]
        monkeypatch.setattr(assembler.metadata, "distributions", lambda: installed)
        return assembler._compiler.__wrapped__("numba-cuda")

    assert filed("13.4") != filed("13.5")


def test_another_process_files_it_under_the_same_name() -> None:
    code = (
        "import numba; from minitransformer_kernels import guards;"
        "from minitransformer_kernels.gpu import assembler;"
        "kernel = guards._divide_kernel(numba.float32, 'clamp');"
        "print(assembler._digest(kernel, (numba.float32,), (9, 0)))"
    )
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    kernel = guards._divide_kernel(numba.float32, "clamp")
    assert there == assembler._digest(kernel, (numba.float32,), (9, 0))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is compiled."""
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_machine_code_is_assembled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ptx(kernel: Kernel, types: Any, architecture: Any, lineinfo: bool) -> str:
        asked.append((types, architecture, lineinfo))
        return "text"

    monkeypatch.setattr(assembler, "ptx", ptx)
    monkeypatch.setattr(assembler, "assemble", lambda *given: (repr(given).encode(), "log"))
    kernel, types = made(max_registers=64), (numba.float32[::1],)
    for _ in range(2):
        assert assembler.cubin(kernel, types, (9, 0)) == b"('text', (9, 0), 64)"
    assert asked == [(types, (9, 0), False)]
    (file,) = folder.iterdir()
    assert re.fullmatch(r"test_launch_look_up_[0-9a-f]{16}\.cubin", file.name)


EVERYTHING = (
    np.zeros((3, 4), np.float32),
    np.zeros((3, 4), np.float64)[:, ::2],
    np.zeros((4, 2, 3), np.int64).transpose(2, 0, 1),
    True,
    7,
    (2.5, np.int32(-3)),
    np.float32(0.1),
    1 << 63,
)


@with_assembler
def test_types_are_what_numba_cuda_makes_of_the_arguments() -> None:
    assert launching.types_of(EVERYTHING) == tuple(map(nothing.on_gpu.typeof_pyval, EVERYTHING))


@with_assembler
@pytest.mark.usefixtures("own_launches")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cupys_own_arrays_are_like_their_stand_ins(layout: str) -> None:
    """CuPy's arrays over host memory, which works without a GPU as long as nobody reads them."""
    cupy = pytest.importorskip("cupy")
    base = np.zeros((4, 6), np.float32)
    memory = cupy.cuda.UnownedMemory(base.ctypes.data, base.nbytes, base, device_id=0)
    real = cupy.ndarray(base.shape, base.dtype, cupy.cuda.MemoryPointer(memory, 0))
    if layout == "broadcast":
        real, fake = cupy.broadcast_to(real[0], (4, 6)), np.broadcast_to(base[0], (4, 6))
    else:
        real, fake = LAYOUTS[layout](real), LAYOUTS[layout](base)
    assert launching.types_of((real,)) == launching.types_of((FakeArray(fake),))
    numbers, expected = (list(numba_cuda.words(each)) for each in (real, FakeArray(fake)))
    if not real.size:  # then it may be anywhere
        numbers[4] = expected[4]
    assert numbers == expected


@with_assembler
def test_the_driver_finds_what_numba_would_have_it_find(cupy: FakeCupy) -> None:
    from numba.cuda.cudadrv.devicearray import _make_strided_memory_view
    from numba.cuda.dispatcher import _Kernel

    numbas: list[Any] = []
    preparer = SimpleNamespace(extensions=[])
    preparer._prepare_args = lambda *given: _Kernel._prepare_args(preparer, *given)
    for kind, value in zip(launching.types_of(EVERYTHING), EVERYTHING, strict=True):
        if isinstance(value, np.ndarray):
            value = _make_strided_memory_view(value, stream_ptr=0)
        preparer._prepare_args(kind, value, 0, [], numbas)
    ours = [FakeArray(each) if isinstance(each, np.ndarray) else each for each in EVERYTHING]
    nothing[1, 1](*ours)
    slots = cupy.launched[0].slots
    assert len(slots) == len(numbas)
    for slot, value in zip(slots, numbas, strict=True):
        as_c: Any = value if isinstance(value, ctypes._SimpleCData) else AS_C[type(value)](value)
        assert slot[: ctypes.sizeof(as_c)] == bytes(as_c)


AS_C = {bool: ctypes.c_bool, int: ctypes.c_int64}  # what cuda.core makes of Python's numbers
SIZES = {"u8": 1, "u32": 4, "f32": 4, "u64": 8, "f64": 8}


@with_assembler
def test_the_kernel_takes_what_the_driver_finds() -> None:
    types = launching.types_of(EVERYTHING)
    text = assembler.ptx(nothing, types, (9, 0))
    name = assembler.entry_name(nothing)
    head = text[text.index(f".entry {name}(") : text.index("{", text.index(".entry"))]
    taken = [SIZES[kind] for kind in re.findall(r"\.param \.(\w+) ", head)]
    layout = launching.Layout(EVERYTHING).struct.format
    codes = re.findall(r"(\d*)([a-zA-Z?])", re.sub(r"\d+x", "", layout))
    given = [struct.calcsize(code) for count, code in codes for _ in range(int(count or 1))]
    assert given == taken
    assert struct.calcsize(layout) == launching.SLOT * len(taken)


@with_assembler
@pytest.mark.parametrize("architecture", [(7, 5), (9, 0), (10, 0)])
def test_machine_code_is_for_the_architecture(folder: Path, architecture: tuple[int, int]) -> None:
    kernel, types = made(fastmath=True), (numba.float32[::1],)
    code = assembler.cubin(kernel, types, architecture)
    assert code.startswith(b"\x7fELF")
    assert b".text.test_launch_look_up\0" in code
    assert assembler.cubin(kernel, types, architecture) == code
    assert len(list(folder.iterdir())) == 1


@with_assembler
def test_lines_of_the_source_are_kept_on_request() -> None:
    types = (numba.float32[::1],)
    sizes = []
    for lineinfo in (False, True):
        text = assembler.ptx(made(), types, (9, 0), lineinfo)
        assert ("test_launch.py" in text) == lineinfo
        code, log = assembler.assemble(text, (9, 0))
        assert "registers" in log
        sizes.append(len(code))
    assert sizes[0] < sizes[1]


@with_assembler
def test_what_the_assembler_says_is_in_the_error() -> None:
    with pytest.raises(assembler.NotAssembled, match="nonsense") as caught:
        assembler.assemble(".version 8.0\n.target sm_90\nnonsense", (9, 0))
    assert "nonsense" in "".join(caught.value.__notes__)


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.fixture
def real_cupy(own_launches: None) -> Any:
    """CuPy with a GPU, or a visible skip."""
    if reason := why_no_cuda():
        pytest.skip(reason)
    return pytest.importorskip("cupy")


@cuda.jit
def write_down(x, flag, whole, pair, single, unsigned, out):
    """Write each argument down, and the sum of x."""
    if cuda.grid(1) == 0:
        total = 0.0
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                total += x[i, j]
        out[0], out[1], out[2] = total, flag, whole
        out[3], out[4], out[5], out[6] = pair[0], pair[1], single, unsigned


@pytest.mark.parametrize(
    ("layout", "by_numba"),
    [(layout, False) for layout in sorted(LAYOUTS.keys() - {"flat", "column", "broadcast"})]
    + [("C", True), ("sliced", True)],
)
def test_every_kind_of_argument_arrives_on_cuda(
    real_cupy: Any, layout: str, by_numba: bool
) -> None:
    kernel = Kernel(write_down.function, {})
    kernel.on_cuda.by_numba = by_numba
    x = LAYOUTS[layout](real_cupy.arange(24.0).reshape(4, 6))
    out = real_cupy.zeros(7)
    kernel[2, 32](x, True, -7, (2.5, np.int32(-3)), np.float32(0.1), 1 << 63, out)
    expected = [float(x.sum()), 1, -7, 2.5, -3, np.float32(0.1), 2.0**63]
    np.testing.assert_array_equal(real_cupy.asnumpy(out), expected)


def test_a_launch_can_be_captured_in_a_cuda_graph(real_cupy: Any) -> None:
    """What is captured must neither wait nor allocate; then the graph repeats it."""
    x, y = real_cupy.zeros(100, np.float32), real_cupy.ones(100, np.float32)
    stream = real_cupy.cuda.Stream(non_blocking=True)
    with stream:
        add[4, 32](x, y, 1)
        stream.begin_capture()
        add[4, 32](x, y, 2)
        add[4, 32, stream](x, y, 3)
        graph = stream.end_capture()
        for _ in range(10):
            graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(real_cupy.asnumpy(x), 1 + 10 * (2 + 3))


def test_cuda_says_what_it_cannot_run(real_cupy: Any) -> None:
    x = real_cupy.zeros(4, np.float32)
    message = "'add': the GPU cannot run blocks of 4 threads with .* and 1,073,741,824 bytes"
    with pytest.raises(KernelError, match=message):  # past the look at the launch before
        add.on_cuda.launch((1, 1, 1), (4, 1, 1), (x, x, 1), 1 << 30, 0)
    add[1, 4](x, x + 1, 1)  # and is none the worse for it
    assert float(x.sum()) == 4


@cuda.jit
def reverse(x):
    """Reverse the numbers of a block by way of dynamic shared memory."""
    held = cuda.shared.array(0, numba.float64)
    i = cuda.threadIdx.x
    for k in range(i, x.size, cuda.blockDim.x):
        held[k] = x[k]
    cuda.syncthreads()
    for k in range(i, x.size, cuda.blockDim.x):
        x[k] = held[x.size - 1 - k]


def test_a_block_gets_more_shared_memory_than_every_gpu_has(
    real_cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as an A100 has: whoever has less refuses it."""
    monkeypatch.setenv("MINITRANSFORMER_GPU", "A100")
    x = real_cupy.arange(8000.0)
    reverse[1, 128, 0, x.nbytes](x)
    np.testing.assert_array_equal(real_cupy.asnumpy(x), np.arange(8000.0)[::-1])


@cuda.jit(device=True)
def squared(x):
    """Return the square."""
    return x * x


def test_functions_of_arrays_call_ours_on_cuda(real_cupy: Any) -> None:
    """`cuda.vectorize` and its like are Numba's there; the functions in them are ours."""

    @cuda.vectorize(["float64(float64, float64)"])
    def length(x, y):
        return math.sqrt(squared(x) + squared(y))

    @cuda.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")
    def running(x, out):
        total = 0.0
        for i in range(x.shape[0]):
            total += squared(x[i])
            out[i] = total

    x = np.random.default_rng(0).standard_normal((3, 5))
    np.testing.assert_allclose(length(x, x), np.hypot(x, x))
    np.testing.assert_allclose(running(x), (x * x).cumsum(1))
    biggest = cuda.reduce(lambda a, b: max(squared(a), squared(b)) ** 0.5)
    assert biggest(x.ravel()) == np.abs(x).max()
