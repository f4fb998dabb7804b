"""What a kernel cannot hold is refused in a sentence or two, with the line and the way out."""

from __future__ import annotations

import math
import random
from math import comb
from typing import Any

import numba
import numpy as np
import pytest
from numba import float32, float64

from minitransformer_kernels.cpu import KernelError, UnsupportedKernel
from minitransformer_kernels.cuda import cuda

from .wrong import Wrong, assert_readable, catalogue

SETTINGS = {"rate": 0.5}
SIZE = 4
wrong, REFUSED = catalogue()


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_file_and_line(case: Wrong) -> None:
    text = case.text()
    assert text.startswith(case.message)
    assert_readable(text)


# What Python has and kernels have not


@wrong("a list cannot be part of a kernel. Use a tuple for what is constant, and cuda.local.array")
@cuda.jit
def a_list(x):
    y = [1, 2]  # here
    x[0] = y[0]


@wrong("a dict cannot be part of a kernel. Use a tuple for what is constant, and cuda.local.array")
@cuda.jit
def a_dict(x):
    y = {0: 1.0}  # here
    x[0] = y[0]


@wrong("a set cannot be part of a kernel. Use a tuple")
@cuda.jit
def a_set(x):
    x[0] = 3 in {1, 2}  # here


@wrong("a list comprehension cannot be part of a kernel. Write a `for` loop that fills a cuda.loc")
@cuda.jit
def list_comprehension(x):
    y = [v for v in x]  # here
    x[0] = y[0]


@wrong("a dict comprehension cannot be part of a kernel. Write a `for` loop")
@cuda.jit
def dict_comprehension(x):
    y = {i: 0 for i in range(3)}  # here
    x[0] = y[0]


@wrong("a generator cannot be part of a kernel. Write a `for` loop")
@cuda.jit
def generator_expression(x):
    x[0] = max(v for v in x)  # here


@wrong("`yield` cannot be part of a kernel. A kernel returns nothing: write results to an array")
@cuda.jit
def generator(x):
    yield x[0]  # here


@wrong("`try` cannot be part of a kernel. A GPU's thread has nobody to tell: test with `if`, and")
@cuda.jit
def try_block(x):
    try:  # here
        x[0] = 1
    finally:
        x[1] = 2


@wrong("`raise` cannot be part of a kernel. A GPU's thread has nobody to tell: test with `if`, and")
@cuda.jit
def raises(x):
    if x[0] > 0:
        raise ValueError("too large")  # here


@wrong("`assert` cannot be part of a kernel. A GPU's thread has nobody to tell: test with `if`")
@cuda.jit
def asserts(x):
    assert x[0] > 0  # here


@wrong("`with` cannot be part of a kernel. Write the statements alone")
@cuda.jit
def with_block(x):
    with np.errstate(all="ignore"):  # here
        x[0] = 1


@wrong("a `lambda` cannot be part of a kernel. Define it outside the kernel, with @cuda.jit(device")
@cuda.jit
def anonymous_function(x):
    x[0] = (lambda v: v + 1)(x[0])  # here


@wrong("a function definition cannot be part of a kernel. Define it outside the kernel, with @cuda")
@cuda.jit
def inner_function(x):
    def twice(v):  # here
        return v * 2

    x[0] = twice(x[0])


@wrong("a class cannot be part of a kernel. Use arrays and numbers, or a NumPy record")
@cuda.jit
def inner_class(x):
    class Point:  # here
        pass

    x[0] = 1


@wrong("`import` cannot be part of a kernel. Import at the top of the file")
@cuda.jit
def inner_import(x):
    import math  # here

    x[0] = math.pi


@wrong("`global` cannot be part of a kernel. Pass what changes as an array argument")
@cuda.jit
def global_variable(x):
    global SIZE  # here
    SIZE = 5


@wrong("`del` cannot be part of a kernel. Leave it out: nothing is freed in a kernel")
@cuda.jit
def deletes(x):
    y = x[0]
    del y  # here


@wrong("an f-string cannot be part of a kernel. Print text and numbers apart: print('x is', x[0])")
@cuda.jit
def f_string(x):
    print(f"{x[0]}")  # here


@wrong("a kernel computes with numbers, not with text. Text can be printed: print('x is', x[0])")
@cuda.jit
def formatted(x):
    print("%f" % x[0])  # noqa: UP031 # here


@wrong("a kernel computes with numbers, not with text. Text can be printed")
@cuda.jit
def text_in_a_variable(x):
    mode = "sum"  # here
    if mode == "sum":
        x[0] = 1


@wrong("`:=` cannot be part of a kernel. Write the assignment on a line of its own")
@cuda.jit
def walrus(x):
    if (n := cuda.grid(1)) < 3:  # here
        x[n] = 1


@wrong("`match` cannot be part of a kernel. Write `if` and `elif`")
@cuda.jit
def matches(x):
    match x.size:  # here
        case 1:
            x[0] = 1


@wrong("`@` cannot be part of a kernel. Add up the products of elements in a loop")
@cuda.jit
def matrix_product(x):
    x[0] = x @ x  # here


@wrong("an argument with `*` cannot be part of a kernel. Write the arguments one by one")
@cuda.jit
def starred(x):
    x[0] = max(*x)  # here


@wrong("a loop over `range(3)[::-1]` cannot be part of a kernel. Write `for i in range(...)`")
@cuda.jit
def loop_over_a_reversed_range(x):
    for i in range(3)[::-1]:  # here
        x[i] = 1


@wrong("a loop over `enumerate(zip(x, x))` cannot be part of a kernel. Write `for i in range(...)`")
@cuda.jit
def loop_over_an_iterator_of_an_iterator(x):
    for i, v in enumerate(zip(x, x)):  # here # noqa: B905
        x[i] = v[0]


@wrong("Python's `sum` is not part of a kernel. Write a loop that adds to a variable")
@cuda.jit
def builtin_sum(x):
    x[0] = sum(x)  # here


@wrong("Python's `sorted` is not part of a kernel. Write it with loops, `if` and numbers")
@cuda.jit
def builtin_sorted(x):
    x[0] = sorted(x)[0]  # here


@wrong("Python's `isinstance` is not part of a kernel. Types are known when the kernel is compiled")
@cuda.jit
def builtin_isinstance(x):
    if isinstance(x[0], float):  # here
        x[0] = 1


@wrong("a kernel returns a value. Write it to an array argument")
@cuda.jit
def returns_a_value(x):
    return x[0]  # here


@wrong("an argument has a default value. Give each one in the launch")
@cuda.jit
def default_argument(x, n=3):  # here
    x[0] = n


@wrong("an argument is not positional (`*`, `**`, or after a `*`). Write plain positional argument")
@cuda.jit
def any_arguments(*arrays):  # here
    arrays[0][0] = 1


@wrong("an argument is not positional (`*`, `**`, or after a `*`). Write plain positional argument")
@cuda.jit
def keyword_only(x, *, n):  # here
    x[0] = n


@wrong("2 values for 3 names. Give as many names as values")
@cuda.jit
def too_many_names(x):
    a, b, c = x[0], x[1]  # here
    x[0] = a + b + c


# Names


@wrong("the name 'tread' is not defined. Did you mean 'thread'?")
@cuda.jit
def misspelt(x):
    thread = cuda.grid(1)
    x[tread] = thread  # type: ignore[name-defined] # noqa: F821 # here


@wrong("the name 'total' is not defined. Assign to it first, or pass it as an argument")
@cuda.jit
def never_assigned(x):
    x[0] = total  # type: ignore[name-defined] # noqa: F821 # here


@wrong("the name 'threadIdx' is not defined. In Python it is written cuda.threadIdx.x")
@cuda.jit
def index_of_cuda_c(x):
    x[threadIdx.x] = 1  # type: ignore[name-defined] # noqa: F821 # here


@wrong("the name '__syncthreads' is not defined. In Python it is written cuda.syncthreads()")
@cuda.jit
def barrier_of_cuda_c(x):
    __syncthreads()  # type: ignore[name-defined] # noqa: F821 # here


@wrong("the name 'atomicAdd' is not defined. In Python it is written cuda.atomic.add(array, index,")
@cuda.jit
def atomic_of_cuda_c(x):
    atomicAdd(x, 0, 1)  # type: ignore[name-defined] # noqa: F821 # here


@wrong("the name 'expf' is not defined. In Python it is written math.exp, which takes float32 too")
@cuda.jit
def function_of_cuda_c(x):
    x[0] = expf(x[0])  # type: ignore[name-defined] # noqa: F821 # here


@wrong("the name 'syncthreads' is not defined. Write cuda.syncthreads()")
@cuda.jit
def without_cuda(x):
    syncthreads()  # type: ignore[name-defined] # noqa: F821 # here


def twice(v: float) -> float:
    """Not a device function."""
    return 2 * v


@wrong("'twice' is an ordinary Python function. Decorate it with @cuda.jit(device=True), and kern")
@cuda.jit
def calls_python(x):
    x[0] = twice(x[0])  # here


@cuda.jit
def clears(x):
    """A kernel like any other."""
    x[cuda.grid(1)] = 0


@wrong("'clears' is a kernel, and a kernel cannot launch another. To call it here, decorate it wit")
@cuda.jit
def calls_a_kernel(x):
    clears(x)  # here


@wrong("'clears' is a kernel, and a kernel cannot launch another. To call it here, decorate it wit")
@cuda.jit
def launches_a_kernel(x):
    clears[1, 8](x)  # here


@wrong("the name 'SETTINGS' is bound to a dict. Make it a tuple of numbers or a NumPy array, or pa")
@cuda.jit
def python_object(x):
    x[0] = SETTINGS["rate"]  # here


@wrong("the module 'random' cannot be used in a kernel. Use `math`, or NumPy's functions of single")
@cuda.jit
def another_module(x):
    x[0] = random.random()  # here


@wrong("kernels have no math.sqr. Did you mean math.sqrt?")
@cuda.jit
def misspelt_function(x):
    x[0] = math.sqr(x[0])  # type: ignore[attr-defined] # here


@wrong("kernels have no math.factorial. Write its formula")
@cuda.jit
def function_that_cuda_lacks(x):
    x[0] = math.factorial(3)  # here


@wrong("kernels have no math.comb. Write its formula")
@cuda.jit
def imported_function_that_cuda_lacks(x):
    x[0] = comb(3, 2)  # here


@wrong("kernels have no math.cbrt. Write cuda.cbrt(x)")
@cuda.jit
def cube_root(x):
    x[0] = math.cbrt(x[0])  # here


@wrong("NumPy has no 'softmax'. Write its formula")
@cuda.jit
def function_that_numpy_lacks(x):
    x[0] = np.softmax(x)  # type: ignore[attr-defined] # here


@wrong("kernels have no numpy.zeros. Declare one with cuda.local.array or cuda.shared.array, or")
@cuda.jit
def new_array(x):
    own = np.zeros(8)  # here
    x[0] = own[0]


@wrong("kernels have no numpy.random. Draw random numbers before the launch, and pass them as an")
@cuda.jit
def random_number(x):
    x[0] = np.random.rand()  # here


@wrong("kernels have no numpy.dot. Write a loop over the elements")
@cuda.jit
def numpy_dot(x):
    x[0] = np.dot(x, x)  # here


@wrong("kernels have no numpy.where. Write `a if condition else b`")
@cuda.jit
def numpy_where(x):
    x[0] = np.where(x[0] > 0, 1, 2)  # here


@wrong("kernels have no numba.prange. They use Numba's dtypes, such as numba.float32")
@cuda.jit
def numba_prange(x):
    for i in numba.prange(3):  # here
        x[i] = 1


@cuda.jit(device=True)
def factorial(n):
    """Call itself."""
    return 1 if n < 2 else n * factorial(n - 1)  # here


@wrong("'factorial' calls itself, which kernels do not support. Write a loop", inside=factorial)
@cuda.jit
def recursive(x):
    x[0] = factorial(5)


@cuda.jit(device=True)
def half(v):
    """A half of v."""
    return v / 2


@wrong("'half' takes the arguments (v), but is called as `half(x[0], 2)`. Give each argument once")
@cuda.jit
def too_many_arguments(x):
    x[0] = half(x[0], 2)  # here


@wrong("'half' takes the arguments (v), but is called as `half()`. Give each argument once")
@cuda.jit
def too_few_arguments(x):
    x[0] = half()  # here


@wrong("'half' takes the arguments (v), but is called as `half(w=x[0])`. Give each argument once")
@cuda.jit
def unknown_keyword(x):
    x[0] = half(w=x[0])  # here


@cuda.jit(device=True)
def waits():
    """Wait, and return nothing."""
    cuda.syncthreads()


@wrong("'waits' returns nothing, but its value is used. End it with `return` and a value, or call")
@cuda.jit
def value_of_nothing(x):
    x[0] = waits()  # here


@wrong("the name 'exp' is not defined. Write math.exp, after `import math`")
@cuda.jit
def without_math(x):
    x[0] = exp(x[0])  # type: ignore[name-defined] # noqa: F821 # here


@wrong("kernels have no math.max. Write max(a, b)")
@cuda.jit
def largest_of_math(x):
    x[0] = math.max(x[0], x[1])  # type: ignore[attr-defined] # here


@wrong("NumPy has no 'float'. Did you mean numpy.float64?")
@cuda.jit
def old_dtype(x):
    x[0] = np.float(x[0])  # here


# CUDA


@wrong("cuda.threadidx.x is unknown. Did you mean cuda.threadIdx.x, .y or .z?")
@cuda.jit
def misspelt_index(x):
    x[cuda.threadidx.x] = 1  # here


@wrong("cuda.syncThreads is unknown. Did you mean cuda.syncthreads()?")
@cuda.jit
def misspelt_barrier(x):
    cuda.syncThreads()  # here


@wrong("`cuda.threadIdx` is not how it is written. Write cuda.threadIdx.x, .y or .z")
@cuda.jit
def index_without_axis(x):
    x[cuda.threadIdx] = 1  # here


@wrong("`cuda.threadIdx.w` is not how it is written. Write cuda.threadIdx.x, .y or .z")
@cuda.jit
def fourth_axis(x):
    x[cuda.threadIdx.w] = 1  # here


@wrong("`cuda.grid()` does not say how many dimensions with a constant. Write cuda.grid(1), (2)")
@cuda.jit
def grid_of_nothing(x):
    x[cuda.grid()] = 1  # here


@wrong("`cuda.syncthreads` is not how it is written. Write cuda.syncthreads()")
@cuda.jit
def barrier_not_called(x):
    cuda.syncthreads  # noqa: B018 # here
    x[0] = 1


@wrong("`cuda.syncthreads(0)`: it has no value. Write cuda.syncthreads() on a line of its own")
@cuda.jit
def barrier_with_an_argument(x):
    cuda.syncthreads(0)  # here


@wrong("`cuda.syncthreads()`: it has no value. Write cuda.syncthreads() on a line of its own")
@cuda.jit
def barrier_with_a_value(x):
    x[0] = cuda.syncthreads()  # here


@wrong("cuda.synchronize belongs to the program around a kernel. Call it outside the kernel")
@cuda.jit
def host_synchronize(x):
    cuda.synchronize()  # here


@wrong("cuda.to_device belongs to the program around a kernel. Call it outside the kernel")
@cuda.jit
def host_copy(x):
    cuda.to_device(x)  # here


@wrong("cuda.cg.this_grid is not supported on the CPU. Blocks cannot wait for each other inside a")
@cuda.jit
def grid_sync(x):
    grid = cuda.cg.this_grid()  # here
    grid.sync()


@wrong("cuda.wmma.load_matrix is not supported on the CPU. Tensor cores are out of reach: add up")
@cuda.jit
def tensor_cores(x):
    cuda.wmma.load_matrix(x)  # here


@wrong("cuda.tex2D is not supported on the CPU. There are no textures: read the array by its index")
@cuda.jit
def texture(x):
    x[0] = cuda.tex2D(x, 0, 0)  # here


@wrong("cuda.libdevice.sqrtf is not supported on the CPU. Use the functions of `math`")
@cuda.jit
def library_of_cuda(x):
    x[0] = cuda.libdevice.sqrtf(x[0])  # here


@wrong("cuda.fp16.hadd is not supported on the CPU. Use float32")
@cuda.jit
def half_precision(x):
    x[0] = cuda.fp16.hadd(x[0], x[1])  # here


@wrong("cuda.quantum is not supported on the CPU. Kernels have what structured Numba CUDA has")
@cuda.jit
def unheard_of(x):
    cuda.quantum(x)  # here


@wrong("`cuda` alone is no value. Write what of it is wanted: cuda.threadIdx.x")
@cuda.jit
def alias_of_cuda(x):
    c = cuda  # here
    x[c.threadIdx.x] = 1


@wrong("`cuda.threadIdx.x` is assigned to. What CUDA gives cannot be changed: use a variable")
@cuda.jit
def assigns_the_index(x):
    cuda.threadIdx.x = 3  # here
    x[cuda.threadIdx.x] = 1


@wrong("cuda.atomic.mul is not an atomic operation. There are add, and_, cas,")
@cuda.jit
def atomic_product(x):
    cuda.atomic.mul(x, 0, 2)  # here


@wrong("`cuda.atomic.add(x, 1)` does not have the arguments of cuda.atomic.add(array, index, value")
@cuda.jit
def atomic_without_index(x):
    cuda.atomic.add(x, 1)  # here


@wrong("`cuda.shfl_down_sync(x[0], 1)` does not have the arguments of cuda.shfl_down_sync(mask, va")
@cuda.jit
def shuffle_without_mask(x):
    x[0] = cuda.shfl_down_sync(x[0], 1)  # here


@wrong("`cuda.popc(x[0], x[1])` does not have the arguments of cuda.popc(x). Pass exactly these")
@cuda.jit
def bits_of_two(x):
    x[0] = cuda.popc(x[0], x[1])  # here


# Shared and local arrays


@wrong("the size `n` of shared array 'tile' is not a constant. Its shape must be known when the ke")
@cuda.jit
def shared_array_of_runtime_size(x):
    n = x.size
    tile = cuda.shared.array((4, n), float32)  # here
    tile[0, 0] = x[0]


@wrong("the size `cuda.blockDim.x` of shared array 'tile' is not a constant. Its shape must be kno")
@cuda.jit
def shared_array_of_block_size(x):
    tile = cuda.shared.array(cuda.blockDim.x, float32)  # here
    tile[0] = x[0]


@wrong("the size `x.size` of local array 'own' is not a constant. Its shape must be known when the")
@cuda.jit
def local_array_of_runtime_size(x):
    own = cuda.local.array(x.size, float32)  # here
    own[0] = x[0]


@wrong("shared array 'tile' has the shape 2.0. Give it constant whole numbers from 1 up, or the sh")
@cuda.jit
def shared_array_of_a_fraction(x):
    tile = cuda.shared.array(SIZE / 2, float32)  # here
    tile[0] = x[0]


@wrong("shared array 'tile' has the shape (). Give it constant whole numbers from 1 up, or the sha")
@cuda.jit
def shared_array_without_dimensions(x):
    tile = cuda.shared.array((), float32)  # here
    tile[0] = x[0]


@wrong("shared array 'tile' is dynamic (shape 0), but the launch gives it no memory. Give the byte")
@cuda.jit
def dynamic_without_memory(x):
    tile = cuda.shared.array(0, float32)  # here
    tile[0] = x[0]


@wrong("array 'tile' is declared twice, differently. Use two names")
@cuda.jit
def array_declared_twice(x):
    tile = cuda.shared.array(4, float32)
    tile[0] = 1
    tile = cuda.shared.array(8, float32)  # here
    x[0] = tile[0]


@wrong("`cuda.shared.array(4)`: cuda.shared.array takes a shape and a dtype. Write cuda.shared.arr")
@cuda.jit
def shared_array_without_dtype(x):
    tile = cuda.shared.array(4)  # here
    tile[0] = x[0]


@wrong("`float` is not the dtype of an array. Write float32, after `from numba import float32`")
@cuda.jit
def python_type_as_dtype(x):
    tile = cuda.shared.array(4, float)  # here
    tile[0] = x[0]


@wrong("`'flaot32'` is not the dtype of an array. Write float32, after `from numba import float32`")
@cuda.jit
def misspelt_dtype(x):
    tile = cuda.shared.array(4, "flaot32")  # here
    tile[0] = x[0]


@wrong("local array 'own' is used as a whole. Pass its elements, or the array itself to a device")
@cuda.jit
def local_array_as_a_whole(x):
    own = cuda.local.array(3, float32)
    other = own  # here
    x[0] = other[0]


@wrong("the name of local array 'own' is used for something else. Use two names, or write to its")
@cuda.jit
def local_array_replaced(x):
    own = cuda.local.array(3, float32)
    own[0] = x[0]
    own = x[1]  # here
    x[0] = own


@wrong(
    "the variable 'part' is 1-d array of float32, and across a barrier or a loop a thread can keep"
)
@cuda.jit
def a_view_of_a_view(x):
    rest = x[int(x[cuda.threadIdx.x]) :]
    part = rest[1:]  # here
    cuda.syncthreads()
    x[cuda.threadIdx.x] = part[0]


@wrong("`own[1:3]` is a slice of a local array. Write a loop over its elements")
@cuda.jit
def slice_of_a_local_array(x):
    own = cuda.local.array(4, float32)
    part = own[1:3]  # here
    x[0] = part[0]


@wrong("local array 'own' has 2 dimensions, `own[0]` gives 1. Give one index for each")
@cuda.jit
def row_of_a_local_array(x):
    own = cuda.local.array((3, 4), float32)
    x[0] = own[0][1]  # here


@wrong("an atomic operation on local array 'own' is of no use. No other thread sees it: use a plai")
@cuda.jit
def atomic_on_a_local_array(x):
    own = cuda.local.array(3, float32)
    cuda.atomic.add(own, 0, x[0])  # here


# What has no line


def test_arrays_that_do_not_fit_a_stack_are_refused() -> None:
    @cuda.jit
    def greedy(x):
        own = cuda.local.array(2048, float64)
        own[cuda.threadIdx.x] = 1
        x[0] = own[0]

    with pytest.raises(KernelError, match=r"'greedy': .* 16,777,216 bytes a block of 1024 threads"):
        greedy[1, 1024](np.zeros(1))


def test_object_in_a_closure_is_refused() -> None:
    table = [1.0, 2.0]

    @cuda.jit
    def looks_up(x):
        x[0] = table[1]

    with pytest.raises(UnsupportedKernel, match=r"'table' is bound to a list\. Make it a tuple of"):
        looks_up[1, 1](np.zeros(1))


def test_name_that_gets_its_value_later_is_refused() -> None:
    @cuda.jit
    def early(x):
        x[0] = later

    with pytest.raises(UnsupportedKernel, match=r"'later' has no value yet\. Assign"):
        early[1, 1](np.zeros(1))
    later = 3


def test_name_that_is_renamed_for_us_is_named_as_it_was_written() -> None:
    stack = {"a": 1}  # emitted code has a function of this name

    @cuda.jit
    def renamed(x):
        x[0] = stack["a"]

    with pytest.raises(UnsupportedKernel, match="the name 'stack' is bound to a dict"):
        renamed[1, 1](np.zeros(1))


def test_kernel_without_a_source_file_is_refused() -> None:
    namespace: dict[str, Any] = {"cuda": cuda}
    exec("@cuda.jit\ndef from_text(x):\n    x[0] = 1\n", namespace)
    with pytest.raises(KernelError, match=r"'from_text': its source text cannot be found.*exec"):
        namespace["from_text"][1, 1](np.zeros(1))


def test_kernel_that_is_no_def_is_refused() -> None:
    anonymous = cuda.jit(lambda x: None)
    with pytest.raises(KernelError, match="is not a plain `def`"):
        anonymous[1, 1](np.zeros(1))
