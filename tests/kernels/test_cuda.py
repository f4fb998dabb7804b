"""The door to CUDA: what `@cuda.jit` returns, and what it refuses before a launch."""

import copy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.cpu import KernelError
from minitransformer_kernels.cuda import DeviceFunction, Kernel, cuda


@cuda.jit
def add_one(x):
    """Add one to each element."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


class FakeCupyArray:
    """As much of a CuPy array as the door looks at."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `cupy` whose arrays are fake."""
    module: Any = ModuleType("cupy")
    module.ndarray = FakeCupyArray
    monkeypatch.setitem(sys.modules, "cupy", module)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records what is launched on the GPU: grid, block, arguments, shared bytes and stream."""
    launches: list[Any] = []
    recorder = SimpleNamespace(launch=lambda *launch: launches.append(launch))
    monkeypatch.setitem(add_one.__dict__, "on_cuda", recorder)
    return launches


def test_decorators_keep_the_documentation() -> None:
    assert isinstance(add_one, Kernel)
    assert (add_one.__name__, add_one.__doc__) == ("add_one", "Add one to each element.")
    assert repr(add_one) == "<kernel add_one>"


def test_options_may_be_given_without_a_device_function() -> None:
    @cuda.jit(fastmath=True, max_registers=64)
    def fast(x):
        x[0] = 1

    assert fast.options == {"fastmath": True, "max_registers": 64}
    assert fast.on_cpu.fastmath
    assert not add_one.on_cpu.fastmath


def test_device_function_can_be_called_from_python() -> None:
    @cuda.jit(device=True)
    def square(x):
        """The square."""
        return x * x

    assert isinstance(square, DeviceFunction)
    assert square(3) == 9
    assert square.__doc__ == "The square."


@pytest.mark.parametrize("blocks", [3, (3,), (3, 1), (3, 1, 1), (np.int64(3), 1)])
@pytest.mark.parametrize("threads", [4, (2, 2)])
def test_launch_configurations(blocks: Any, threads: Any) -> None:
    x = np.zeros(12)
    add_one[blocks, threads](x)
    add_one[blocks, threads, 0](x)
    add_one[blocks, threads, 0, 0](x)
    covered = 3 * (threads if isinstance(threads, int) else threads[0])
    assert (x > 0).sum() == covered
    assert set(x[:covered]) == {3 * 4 / (covered / 3)}


def test_launch_can_be_kept() -> None:
    launch, x = add_one[1, 4], np.zeros(4)
    launch(x)
    launch(x)
    assert x.tolist() == [2] * 4


@pytest.mark.parametrize(
    ("size", "tpb", "blocks"), [(1000, 0, 4), (64, 32, 2), (65, 32, 3), (0, 0, 0)]
)
def test_forall_has_a_thread_for_each_task(size: int, tpb: int, blocks: int) -> None:
    x = np.zeros(size)
    launch = add_one.forall(size, tpb=tpb)
    assert launch.grid == (blocks, 1, 1)
    launch(x)
    np.testing.assert_array_equal(x, 1)


def test_forall_runs_nothing_without_tasks() -> None:
    x = np.zeros(3)
    add_one.forall(0)(x)
    assert not x.any()


def test_configure_is_another_way_to_write_a_launch() -> None:
    x = np.zeros(3)
    add_one.configure(griddim=1, blockdim=(3, 1))(x)
    assert x.all()


@pytest.mark.parametrize("option", ["devcie", "cheked", "fast_math", "max_register"])
def test_an_option_that_is_almost_one_is_refused(option: str) -> None:
    with pytest.raises(TypeError, match=f"@cuda.jit has no option '{option}'; did you mean '"):
        cuda.jit(**{option: True})(lambda x: None)


def test_extensions_are_refused() -> None:
    with pytest.raises(KernelError, match="extensions, which convert arguments for Numba's"):
        cuda.jit(extensions=[object()])(lambda x: None)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ((1, 2, 3, 4, 5), r"needs \[blocks, threads\]"),
        ((1, -4), "threads must be one to three whole numbers from 1 up, got -4"),
        ((1, (1, 1, 1, 1)), "threads must be one to three whole numbers"),
        ((1, ()), r"threads must be one to three whole numbers from 1 up, got \(\)"),
        ((1, (32, 33)), r"\(32, 33\) threads a block; .* Use more, smaller blocks"),
        ((1, (1, 1, 65)), r"\(1, 1, 65\) threads a block"),
    ],
)
def test_bad_configuration_is_refused(configuration: Any, message: str) -> None:
    with pytest.raises(KernelError, match=f"kernel 'add_one'.*{message}"):
        add_one[configuration]


def test_no_blocks_are_right_for_empty_arrays_only() -> None:
    add_one[0, 4](np.zeros(0))
    add_one[(1, 0), 4](np.zeros(0))
    with pytest.raises(KernelError, match=r"'add_one': blocks must be .* up, got \(0, 1, 1\)"):
        add_one[0, 4](np.zeros(4))


def test_shared_memory_that_nobody_uses_is_no_error() -> None:
    x = np.zeros(4)
    add_one[1, 4, 0, 1024](x)
    assert x.tolist() == [1] * 4


def test_cpu_source_needs_a_launch() -> None:
    with pytest.raises(KernelError, match="'add_one' has not run on the CPU yet"):
        cuda.jit(add_one.function).cpu_source()


def test_what_only_a_gpus_compiler_knows_is_told_so() -> None:
    with pytest.raises(AttributeError, match=r"'add_one' has no 'inspect_asm': cpu_source\(\) and"):
        _ = add_one.inspect_asm
    assert copy.copy(add_one).function is add_one.function


@pytest.mark.usefixtures("cupy")
def test_cupy_arrays_are_launched_on_the_gpu(gpu: list[Any]) -> None:
    x = FakeCupyArray((4,))
    add_one[2, (3, 4)](x)
    add_one[2, 3, "my stream", 64](x)
    first, second = gpu
    assert first == ((2, 1, 1), (3, 4, 1), (x,), 0, 0)
    assert second == ((2, 1, 1), (3, 1, 1), (x,), 64, "my stream")


@pytest.mark.usefixtures("cupy")
def test_mixed_arrays_are_refused(gpu: list[Any]) -> None:
    @cuda.jit
    def copies(x, out):
        out[0] = x[0]

    with pytest.raises(KernelError, match=r"'copies': argument 'out' is a NumPy array.*cupy.asarr"):
        copies[1, 1](FakeCupyArray((4,)), np.zeros(4))
    assert not gpu


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("argument", [None, "text", [1.0], {}, object()])
def test_what_no_kernel_takes_is_refused(gpu: list[Any], argument: Any) -> None:
    @cuda.jit
    def copies(x, out):
        out[0] = x[0]

    kind = type(argument).__name__
    with pytest.raises(KernelError, match=f"'copies': argument 'x' is a {kind}.*cupy.asarray"):
        copies[1, 1](argument, FakeCupyArray((4,)))
    assert not gpu


@pytest.mark.usefixtures("cupy")
def test_numpy_arrays_run_on_the_cpu_though_cupy_is_there(gpu: list[Any]) -> None:
    x = np.zeros(4)
    add_one[1, 4](x)
    assert x.tolist() == [1] * 4
    assert not gpu
