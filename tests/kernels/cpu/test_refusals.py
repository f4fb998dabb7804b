"""What a kernel may not do on the CPU is refused: in one sentence, with the file and the line."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from numba import float32, float64

from minitransformer_kernels.cpu import DivergentBarrier, KernelError, UnsupportedKernel
from minitransformer_kernels.cuda import cuda

MARK = "# here"
SETTINGS = {"rate": 0.5}
refused: list[Any] = []


def refuse(message: str, error: type[KernelError] = UnsupportedKernel) -> Any:
    """Expect the decorated kernel, of one array, to be refused at the line marked `# here`."""

    def record(kernel: Any) -> Any:
        refused.append(pytest.param(kernel, message, error, id=kernel.__name__))
        return kernel

    return record


def marked_line(kernel: Any) -> str:
    """`file:line` of the marked line in the kernel's source."""
    lines, first = inspect.getsourcelines(kernel.function)
    number = next(n for n, line in enumerate(lines) if MARK in line)
    return f"{inspect.getsourcefile(kernel.function)}:{first + number}"


@refuse("under a condition, or in a loop, that threads of one block may decide", DivergentBarrier)
@cuda.jit
def barrier_under_varying_if(x):
    if cuda.threadIdx.x < 3:
        x[0] = 1
        cuda.syncthreads()  # here


@refuse("Every thread must reach every barrier", DivergentBarrier)
@cuda.jit
def barrier_in_varying_loop(x):
    for _ in range(cuda.threadIdx.x):
        cuda.syncthreads()  # here


@refuse("Every thread must reach every barrier", DivergentBarrier)
@cuda.jit
def barrier_in_shared_out_loop(x):
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        x[i] = 1
        cuda.syncthreads()  # here


@refuse("Every thread must reach every barrier", DivergentBarrier)
@cuda.jit
def barrier_in_while_that_reads_the_array(x):
    while x[cuda.grid(1)] > 0:
        x[cuda.grid(1)] -= 1
        cuda.syncthreads()  # here


@refuse("Every thread must reach every barrier", DivergentBarrier)
@cuda.jit
def barrier_after_varying_break(x):
    for k in range(4):
        if x[cuda.grid(1)] > k:
            break
        cuda.syncthreads()  # here


@refuse("Every thread must reach every barrier", DivergentBarrier)
@cuda.jit
def barrier_after_guard(x):
    if cuda.grid(1) >= x.size:
        return
    cuda.syncthreads()  # here


@refuse("Every thread must reach every barrier", DivergentBarrier)
@cuda.jit
def barrier_in_uniform_loop_under_varying_if(x):
    if cuda.threadIdx.x > 1:
        for _ in range(3):
            cuda.syncthreads()  # here


@refuse("a `return` inside a loop")
@cuda.jit
def return_in_loop(x):
    for k in range(3):  # here
        if x[k] > 0:
            return


@refuse("a kernel returns a value. Write it to an array argument")
@cuda.jit
def returns_a_value(x):
    return x[0]  # here


@refuse("shared array 'tile' has the shape 0. Give it constant whole numbers from 1 up")
@cuda.jit
def dynamic_shared_array(x):
    tile = cuda.shared.array(0, float32)  # here
    tile[0] = x[0]


@refuse("the size 'n' of shared array 'tile' is not a constant")
@cuda.jit
def shared_array_of_runtime_size(x):
    n = x.size
    tile = cuda.shared.array((4, n), float32)  # here
    tile[0, 0] = x[0]


@refuse("the size 'x' of local array 'own' is not a constant")
@cuda.jit
def local_array_of_runtime_size(x):
    own = cuda.local.array(x.size, float32)  # here
    own[0] = x[0]


@refuse("array 'tile' is declared twice. Use two names")
@cuda.jit
def array_declared_twice(x):
    tile = cuda.shared.array(4, float32)
    tile[0] = 1
    tile = cuda.shared.array(8, float32)  # here
    x[0] = tile[0]


@refuse("cuda.shared.array takes a shape and a dtype")
@cuda.jit
def shared_array_without_dtype(x):
    tile = cuda.shared.array(4)  # here
    tile[0] = x[0]


@refuse("`ListComp` is not part of a kernel. Write it with assignments")
@cuda.jit
def list_comprehension(x):
    y = [v for v in x]  # here
    x[0] = y[0]


@refuse("`Dict` is not part of a kernel")
@cuda.jit
def dictionary(x):
    y = {0: 1.0}  # here
    x[0] = y[0]


@refuse("`Try` is not part of a kernel")
@cuda.jit
def try_block(x):
    try:  # here
        x[0] = 1
    finally:
        x[1] = 2


@refuse("`Lambda` is not part of a kernel")
@cuda.jit
def anonymous_function(x):
    x[0] = (lambda v: v + 1)(x[0])  # here


@refuse("`NamedExpr` is not part of a kernel")
@cuda.jit
def walrus(x):
    if (n := cuda.grid(1)) < 3:  # here
        x[n] = 1


@refuse("a loop has an `else`. Use a flag instead")
@cuda.jit
def loop_with_else(x):
    for k in range(3):  # here
        x[k] = 1
    else:
        x[0] = 2


@refuse("a loop over `x`. Write `for i in range(...)`")
@cuda.jit
def loop_over_array(x):
    for v in x:  # here
        x[0] = v


@refuse("a chained assignment. Write one assignment a line")
@cuda.jit
def chained_assignment(x):
    a = b = x[0]  # here
    x[1] = a + b


@refuse("this assignment to a tuple. Write one assignment a line")
@cuda.jit
def swap(x):
    a, b = x[0], x[1]
    a, b = b, a  # here
    x[0] = a - b


@refuse("cuda.grid(2) inside an expression. Write `x, y = cuda.grid(2)`")
@cuda.jit
def grid_as_a_tuple(x):
    at = cuda.grid(2)  # here
    x[at[0]] = at[1]


@refuse("cuda.shfl_down_sync is not supported on the CPU")
@cuda.jit
def warp_shuffle(x):
    x[0] = cuda.shfl_down_sync(0xFFFFFFFF, x[0], 1)  # here


@refuse("cuda.ballot_sync is not supported on the CPU")
@cuda.jit
def warp_vote(x):
    x[0] = cuda.ballot_sync(0xFFFFFFFF, x[0] > 0)  # here


@refuse("cuda.syncwarp is not supported on the CPU. Use shared memory and cuda.syncthreads()")
@cuda.jit
def warp_barrier(x):
    cuda.syncwarp()  # here
    x[0] = 1


@refuse("cuda.laneid is not supported on the CPU")
@cuda.jit
def lane(x):
    x[0] = cuda.laneid  # here


@refuse("cuda.atomic.inc is not supported on the CPU")
@cuda.jit
def atomic_increment(x):
    cuda.atomic.inc(x, 0, 3)  # here


@cuda.jit(device=True)
def half(v):
    return v / 2


@refuse("'half' is called with keywords. Use positions")
@cuda.jit
def keyword_argument(x):
    x[0] = half(v=x[1])  # here


@cuda.jit(device=True)
def own_index():
    return cuda.threadIdx.x


@refuse("the slice `x[1:3]`. Write a loop over elements")
@cuda.jit
def slice_of_an_array(x):
    part = x[1:3]  # here
    x[0] = part[0]


@refuse("local array 'own' is used as a whole. Pass its elements")
@cuda.jit
def local_array_as_a_whole(x):
    own = cuda.local.array(3, float32)
    own[0] = 1
    x[0] = len(own)  # here


@refuse("shared array 'tile' has 2 dimensions, `tile[0]` gives 1. Give one index for each")
@cuda.jit
def row_of_a_shared_array(x):
    tile = cuda.shared.array((3, 4), float32)
    x[0] = tile[0][1]  # here


@refuse("an atomic on local array 'own'. No other thread sees it: use a plain assignment")
@cuda.jit
def atomic_on_a_local_array(x):
    own = cuda.local.array(3, float32)
    cuda.atomic.add(own, 0, x[0])  # here


@refuse("an argument has a default, or is not positional. Write plain positional arguments")
@cuda.jit
def default_argument(x, n=3):  # here
    x[0] = n


@refuse("the name 'SETTINGS' is bound to a dict. A kernel can use numbers, dtypes, tuples of them")
@cuda.jit
def python_object(x):
    x[0] = SETTINGS["rate"]  # here


@refuse("the name 'print' is bound to a builtin_function_or_method")
@cuda.jit
def prints(x):
    print(x[0])  # here


@pytest.mark.parametrize(("kernel", "message", "error"), refused)
def test_refused_with_file_and_line(kernel: Any, message: str, error: type[KernelError]) -> None:
    with pytest.raises(error) as refusal:
        kernel[1, 8](np.ones(8, np.float32))
    assert str(refusal.value).startswith(f"{marked_line(kernel)}: kernel {kernel.__name__!r}: ")
    assert message in str(refusal.value)


def test_device_function_that_asks_for_its_thread_is_refused() -> None:
    @cuda.jit
    def asks(x):
        x[own_index()] = 1

    with pytest.raises(UnsupportedKernel, match="a device function uses `cuda` itself"):
        asks[1, 2](np.zeros(2))


def test_recursion_is_refused() -> None:
    @cuda.jit(device=True)
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    @cuda.jit
    def recursive(x):
        x[0] = factorial(5)

    with pytest.raises(UnsupportedKernel, match=r"'factorial' calls itself\. Write"):
        recursive[1, 1](np.zeros(1))


def test_arrays_that_do_not_fit_a_stack_are_refused() -> None:
    @cuda.jit
    def greedy(x):
        own = cuda.local.array(2048, float64)
        own[cuda.threadIdx.x] = 1
        x[0] = own[0]

    with pytest.raises(KernelError, match=r"'greedy': .* 16,777,216 bytes a block of 1024 threads"):
        greedy[1, 1024](np.zeros(1))


def test_array_argument_that_becomes_another_is_refused() -> None:
    @cuda.jit
    def narrows(x):
        x = x[cuda.blockIdx.x]
        cuda.syncthreads()
        x[0] = 1

    with pytest.raises(KernelError, match=r"'narrows': the variable 'x' is not a number"):
        narrows[1, 1](np.zeros((2, 2)))


def test_object_in_a_closure_is_refused() -> None:
    table = [1.0, 2.0]

    @cuda.jit
    def looks_up(x):
        x[0] = table[1]

    with pytest.raises(UnsupportedKernel, match="the name 'table' is bound to a list"):
        looks_up[1, 1](np.zeros(1))


def test_unknown_name_is_refused() -> None:
    @cuda.jit
    def misspelt(x):
        x[0] = tread_index  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(KernelError, match="uses the name 'tread_index', which is not defined"):
        misspelt[1, 1](np.zeros(1))


def test_kernel_without_a_source_file_is_refused() -> None:
    namespace: dict[str, Any] = {"cuda": cuda}
    exec("@cuda.jit\ndef from_text(x):\n    x[0] = 1\n", namespace)
    with pytest.raises(KernelError, match=r"'from_text': its source text cannot be found.*exec"):
        namespace["from_text"][1, 1](np.zeros(1))


def test_kernel_that_is_no_def_is_refused() -> None:
    anonymous = cuda.jit(lambda x: None)
    with pytest.raises(KernelError, match="is not a plain `def`"):
        anonymous[1, 1](np.zeros(1))


def test_types_that_do_not_fit_are_refused() -> None:
    @cuda.jit
    def float_as_index(x):
        x[x[0]] = 1

    with pytest.raises(KernelError, match=r"'float_as_index': Numba cannot type it"):
        float_as_index[1, 1](np.zeros(1))


def test_view_across_a_barrier_is_refused() -> None:
    @cuda.jit
    def keeps_a_row(x):
        row = x[cuda.threadIdx.x]
        cuda.syncthreads()
        row[0] = 1

    with pytest.raises(KernelError, match="a thread can keep numbers only"):
        keeps_a_row[1, 2](np.zeros((2, 2)))
