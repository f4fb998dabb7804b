"""What a kernel cannot hold is refused in a sentence or two, with the line and the way out."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import complex128, float64, njit

from minitransformer_kernels.cpu import KernelError, UnsupportedKernel
from minitransformer_kernels.cuda import cuda

from .wrong import Wrong, catalogue


def twice(v: float) -> float:
    """Not a device function."""
    return 2 * v


@cuda.jit
def clears(x):
    """A kernel like any other."""
    x[cuda.grid(1)] = 0


@cuda.jit(device=True)
def even(n):
    """Call what calls it."""
    return n == 0 or odd(n - 1)


@cuda.jit(device=True)
def odd(n):
    """As above."""
    return n != 0 and even(n - 1)  # here


@cuda.jit(device=True)
def half(v):
    """A half of v."""
    return v / 2


@cuda.jit(device=True)
def waits():
    """Wait, and return nothing."""
    cuda.syncthreads()


settings = ModuleType("settings")
settings.__dict__["SIZE"] = 4

wrong, lines, REFUSED = catalogue(
    SETTINGS={"rate": 0.5},
    SIZE=4,
    WIDE=np.int64(4),
    settings=settings,
    twice=twice,
    signed=njit("float64(float64)")(twice),
    clears=clears,
    half=half,
    waits=waits,
    TABLE=np.arange(8),
)

lines(
    # What Python has and kernels have not
    a_list=("y = [1, 2]\nx[0] = y[0]",
        "a list cannot be part of a kernel. Use a tuple for what is constant, and cuda.local.arra"),
    a_dict=("y = {0: 1.0}\nx[0] = y[0]",
        "a dict cannot be part of a kernel. Use a tuple for what is constant, and cuda.local.arra"),
    a_set=("x[0] = 3 in {1, 2}", "a set cannot be part of a kernel. Use a tuple"),
    list_comprehension=("y = [v for v in x]\nx[0] = y[0]",
        "a list comprehension cannot be part of a kernel. Write a `for` loop that fills a cuda.lo"),
    dict_comprehension=("y = {i: 0 for i in range(3)}\nx[0] = y[0]",
        "a dict comprehension cannot be part of a kernel. Write a `for` loop"),
    generator_expression=("x[0] = max(v for v in x)",
        "a generator cannot be part of a kernel. Write a `for` loop"),
    generator=("yield x[0]",
        "`yield` cannot be part of a kernel. A kernel returns nothing: write results to an array"),
    try_block=("try:\n    x[0] = 1\nfinally:\n    x[1] = 2",
        "`try` cannot be part of a kernel. A GPU's thread has nobody to tell: test with `if`, and"),
    with_block=('with np.errstate(all="ignore"):\n    x[0] = 1',
        "`with` cannot be part of a kernel. Write the statements alone"),
    anonymous_function=("x[0] = (lambda v: v + 1)(x[0])",
        "a `lambda` cannot be part of a kernel. Define it outside the kernel, with @cuda.jit(devi"),
    inner_function=("def twice(v):\n    return v * 2\n\nx[0] = twice(x[0])",
        "a function definition cannot be part of a kernel. Define it outside the kernel, with @cu"),
    inner_class=("class Point:\n    pass\n\nx[0] = 1",
        "a class cannot be part of a kernel. Use arrays and numbers, or a NumPy record"),
    inner_import=("import math\n\nx[0] = math.pi",
        "`import` cannot be part of a kernel. Import at the top of the file"),
    global_variable=("global SIZE\nSIZE = 5",
        "`global` cannot be part of a kernel. Pass what changes as an array argument"),
    deletes=("y = x[0]\ndel y  # here",
        "`del` cannot be part of a kernel. Leave it out: nothing is freed in a kernel"),
    f_string=('print(f"{x[0]}")',
        "an f-string cannot be part of a kernel. Print text and numbers apart: print('x is', x[0]"),
    formatted=('print("%f" % x[0])',
        "a kernel computes with numbers, not with text. Text can be printed: print('x is', x[0])"),
    text_in_a_variable=('mode = "sum"\nif mode == "sum":\n    x[0] = 1',
        "a kernel computes with numbers, not with text. Text can be printed"),
    walrus=("if x[0] > 0 and (n := cuda.grid(1)) < 3:\n    x[n] = 1",
        "`:=` where it may be skipped, or after what it changes cannot be part of a kernel. Write"),
    walrus_after_the_name=("i = 1\nx[0] = i + (i := 2)  # here",
        "`:=` where it may be skipped, or after what it changes cannot be part of a kernel. Write"),
    walrus_beside_its_target=("i = 1\ni += (i := 5)  # here\nx[0] = i",
        "`:=` where it may be skipped, or after what it changes cannot be part of a kernel. Write"),
    walrus_after_an_element=("x[1] = x[0] + (n := cuda.atomic.add(x, 0, 1))\nx[2] = n",
        "`:=` where it may be skipped, or after what it changes cannot be part of a kernel. Write"),
    matches=("match x.size:\n    case 1:\n        x[0] = 1",
        "`match` cannot be part of a kernel. Write `if` and `elif`"),
    matrix_product=("x[0] = x @ x",
        "`@` cannot be part of a kernel. Add up the products of elements in a loop"),
    starred=("x[0] = max(*x)",
        "an argument with `*` cannot be part of a kernel. Write the arguments one by one"),
    loop_over_a_reversed_range=("for i in range(3)[::-1]:\n    x[i] = 1",
        "a loop over `range(3)[::-1]` cannot be part of a kernel. Write `for i in range(...)`"),
    ranges_of_unknown_steps=("for i, j in zip(range(4), range(0, 9, x.size)):\n    x[i] = j",
        "a loop over `zip(range(4), range(0, 9, x.size))` cannot be part of a kernel. Write `for "),
    enumerates_from_a_keyword=("for i, v in enumerate(x, start=1):\n    x[i] = v",
        "a loop over `enumerate(x, start=1)` cannot be part of a kernel. Write `for i in range("),
    zip_with_a_keyword=("for a, b in zip(x, x, strict=True):\n    x[0] = a + b",
        "a loop over `zip(x, x, strict=True)` cannot be part of a kernel. Write `for i in range("),
    builtin_sum=("x[0] = sum(x)",
        "Python's `sum` is not part of a kernel. Write a loop that adds to a variable"),
    builtin_sorted=("x[0] = sorted(x)[0]",
        "Python's `sorted` is not part of a kernel. Write it with loops, `if` and numbers"),
    builtin_isinstance=("if isinstance(x[0], float):\n    x[0] = 1",
        "Python's `isinstance` is not part of a kernel. Types are known when the kernel is compil"),
    returns_a_value=("return x[0]", "a kernel returns a value. Write it to an array argument"),
    too_many_names=("a, b, c = x[0], x[1]\nx[0] = a + b + c",
        "2 values for 3 names. Give as many names as values"),
    # Names
    misspelt=("thread = cuda.grid(1)\nx[tread] = thread  # here",
        "the name 'tread' is not defined. Did you mean 'thread'?"),
    never_assigned=("x[0] = total",
        "the name 'total' is not defined. Assign to it first, or pass it as an argument"),
    index_of_cuda_c=("x[threadIdx.x] = 1",
        "the name 'threadIdx' is not defined. In Python it is written cuda.threadIdx.x"),
    barrier_of_cuda_c=("__syncthreads()",
        "the name '__syncthreads' is not defined. In Python it is written cuda.syncthreads()"),
    atomic_of_cuda_c=("atomicAdd(x, 0, 1)",
        "the name 'atomicAdd' is not defined. In Python it is written cuda.atomic.add(array, inde"),
    function_of_cuda_c=("x[0] = expf(x[0])",
        "the name 'expf' is not defined. In Python it is written math.exp, which takes float32 to"),
    without_cuda=("syncthreads()",
        "the name 'syncthreads' is not defined. Write cuda.syncthreads()"),
    calls_a_function_with_a_signature=("x[0] = signed(x[0])",
        "'signed' is compiled for the CPU alone, by its signature. Leave the signature out, or d"),
    calls_python=("x[0] = twice(x[0])",
        "'twice' is an ordinary Python function. Decorate it with @cuda.jit(device=True), and ker"),
    launches_a_kernel=("clears[1, 8](x)",
        "'clears' is a kernel, and a kernel cannot launch another. Call it as a device function, "),
    writes_to_a_constant=("i = cuda.grid(1)\nx[i] = TABLE[i]\nTABLE[i] = 2  # here",
        "the array 'TABLE', which is no argument, is written to. Arrays from outside are co"),
    writes_to_a_part_of_a_constant=(
        "part = TABLE[2:]  # here\nx[0] = 1\ncuda.atomic.add(part, 0, 1)",
        "the array 'TABLE', which is no argument, is written to. Arrays from outside are co"),
    python_object=('x[0] = SETTINGS["rate"]',
        "the name 'SETTINGS' is bound to a dict. Make it a tuple of numbers or a NumPy array, or"),
    another_module=("x[0] = random.random()",
        "the module 'random' cannot be used in a kernel. A number of it can, under a name of its"),
    misspelt_function=("x[0] = math.sqr(x[0])",
        "kernels have no math.sqr. Did you mean math.sqrt?"),
    function_that_cuda_lacks=("x[0] = math.factorial(3)",
        "kernels have no math.factorial. Write its formula"),
    imported_function_that_cuda_lacks=("x[0] = comb(3, 2)",
        "kernels have no math.comb. Write its formula"),
    cube_root=("x[0] = math.cbrt(x[0])", "kernels have no math.cbrt. Write cuda.cbrt(x)"),
    function_that_numpy_lacks=("x[0] = np.softmax(x)", "NumPy has no 'softmax'. Write its formula"),
    new_array=("own = np.zeros(8)\nx[0] = own[0]",
        "kernels have no numpy.zeros. Declare one with cuda.local.array or cuda.shared.array, or"),
    random_number=("x[0] = np.random.rand()",
        "kernels have no numpy.random. Draw random numbers before the launch, and pass them as an"),
    numpy_dot=("x[0] = np.dot(x, x)", "kernels have no numpy.dot. Write a loop over the elements"),
    numpy_where=("x[0] = np.where(x[0] > 0, 1, 2)",
        "kernels have no numpy.where. Write `a if condition else b`"),
    numba_prange=("for i in numba.prange(3):\n    x[i] = 1",
        "kernels have no numba.prange. They use Numba's dtypes, such as numba.float32"),
    too_many_arguments=("x[0] = half(x[0], 2)",
        "'half' takes the arguments (v), but is called as `half(x[0], 2)`. Give each argument onc"),
    too_few_arguments=("x[0] = half()",
        "'half' takes the arguments (v), but is called as `half()`. Give each argument once"),
    unknown_keyword=("x[0] = half(w=x[0])",
        "'half' takes the arguments (v), but is called as `half(w=x[0])`. Give each argument once"),
    value_of_nothing=("x[0] = waits()",
        "'waits' returns nothing, but its value is used. End it with `return` and a value, or cal"),
    without_math=("x[0] = exp(x[0])",
        "the name 'exp' is not defined. Write math.exp, after `import math`"),
    largest_of_math=("x[0] = math.max(x[0], x[1])", "kernels have no math.max. Write max(a, b)"),
    old_dtype=("x[0] = np.float(x[0])", "NumPy has no 'float'. Did you mean numpy.float64?"),
    # CUDA
    misspelt_index=("x[cuda.threadidx.x] = 1",
        "cuda.threadidx.x is unknown. Did you mean cuda.threadIdx.x, .y or .z?"),
    misspelt_barrier=("cuda.syncThreads()",
        "cuda.syncThreads is unknown. Did you mean cuda.syncthreads()?"),
    index_without_axis=("x[cuda.threadIdx] = 1",
        "`cuda.threadIdx` is not how it is written. Write cuda.threadIdx.x, .y or .z"),
    fourth_axis=("x[cuda.threadIdx.w] = 1",
        "`cuda.threadIdx.w` is not how it is written. Write cuda.threadIdx.x, .y or .z"),
    grid_of_nothing=("x[cuda.grid()] = 1",
        "`cuda.grid()` does not say how many dimensions with a constant. Write cuda.grid(1), (2)"),
    barrier_not_called=("cuda.syncthreads\nx[0] = 1",
        "`cuda.syncthreads` is not how it is written. Write cuda.syncthreads()"),
    barrier_with_an_argument=("cuda.syncthreads(0)",
        "`cuda.syncthreads(0)`: it has no value. Write cuda.syncthreads() on a line of its own"),
    barrier_with_a_value=("x[0] = cuda.syncthreads()",
        "`cuda.syncthreads()`: it has no value. Write cuda.syncthreads() on a line of its own"),
    host_synchronize=("cuda.synchronize()",
        "cuda.synchronize belongs to the program around a kernel. Call it outside the kernel"),
    host_copy=("cuda.to_device(x)",
        "cuda.to_device belongs to the program around a kernel. Call it outside the kernel"),
    grid_sync=("grid = cuda.cg.this_grid()\ngrid.sync()",
        "cuda.cg.this_grid is not supported on the CPU. Blocks cannot wait for each other inside"),
    tensor_cores=("cuda.wmma.load_matrix(x)",
        "cuda.wmma.load_matrix is not supported on the CPU. Tensor cores are out of reach: add up"),
    vector_of_a_vector=("v = cuda.float32x2(1, 2)\nw = cuda.float32x4(v, v)  # here\nx[0] = w.x",
        "`cuda.float32x4` is not how a vector is made of 4 numbers. Write v = cuda.float32x"),
    vector_made_as_in_c=("v = cuda.make_float4(1, 2, 3, 4)\nx[0] = v.x",
        "`cuda.make_float4` is not how a vector is made of 4 numbers. Write v = cuda.float32x"),
    atomic_without_arguments=("cuda.atomic.add",
        "`cuda.atomic.add` is not how it is written. Write cuda.atomic.add(array, index, value)"),
    texture=("x[0] = cuda.tex2D(x, 0, 0)",
        "cuda.tex2D is not supported on the CPU. There are no textures: read the array by its ind"),
    library_of_cuda=("x[0] = cuda.libdevice.brevll(3)",
        "cuda.libdevice.brevll is not supported on the CPU. Use the functions of `math`"),
    half_precision=("x[0] = cuda.fp16.hadd(x[0], x[1])",
        "cuda.fp16.hadd is not supported on the CPU. float16 has operators and functions"),
    unheard_of=("cuda.quantum(x)",
        "cuda.quantum is not supported on the CPU. Kernels have what structured Numba CUDA has"),
    alias_of_cuda=("c = cuda\nx[c.threadIdx.x] = 1",
        "`cuda` alone is no value. Write what of it is wanted: cuda.threadIdx.x"),
    assigns_the_index=("cuda.threadIdx.x = 3\nx[cuda.threadIdx.x] = 1",
        "`cuda.threadIdx.x` is assigned to. What CUDA gives cannot be changed: use a variable"),
    atomic_product=("cuda.atomic.mul(x, 0, 2)",
        "cuda.atomic.mul is not an atomic operation. There are add, and_, cas,"),
    atomic_without_index=("cuda.atomic.add(x, 1)",
        "`cuda.atomic.add(x, 1)` does not have the arguments of cuda.atomic.add(array, index, val"),
    shuffle_without_mask=("x[0] = cuda.shfl_down_sync(x[0], 1)",
        "`cuda.shfl_down_sync(x[0], 1)` does not have the arguments of cuda.shfl_down_sync(mask,"),
    bits_of_two=("x[0] = cuda.popc(x[0], x[1])",
        "`cuda.popc(x[0], x[1])` does not have the arguments of cuda.popc(x). Pass exactly these"),
    # Shared and local arrays
    shared_array_of_runtime_size=(
        "n = x.size\ntile = cuda.shared.array((4, n), float32)  # here\ntile[0, 0] = x[0]",
        "the size `n` of shared array 'tile' is not a constant. Its shape must be known when the"),
    shared_array_of_block_size=(
        "tile = cuda.shared.array(cuda.blockDim.x, float32)\ntile[0] = x[0]",
        "the size `cuda.blockDim.x` of shared array 'tile' is not a constant. Its shape must be k"),
    local_array_of_runtime_size=("own = cuda.local.array(x.size, float32)\nown[0] = x[0]",
        "the size `x.size` of local array 'own' is not a constant. Its shape must be known when t"),
    shared_array_of_a_fraction=("tile = cuda.shared.array(SIZE / 2, float32)\ntile[0] = x[0]",
        "the size `SIZE / 2` of shared array 'tile' is neither a whole number nor the name of one"),
    shared_array_of_a_sum=("tile = cuda.shared.array((4, SIZE + 1), float32)\ntile[0, 0] = x[0]",
        "the size `SIZE + 1` of shared array 'tile' is neither a whole number nor the name of one,"
        " and Numba takes nothing else for a GPU. Name one outside the kernel: SIZE = int(SIZE + 1"
        ")"),
    local_array_of_a_product=("own = cuda.local.array(shape=2 * SIZE, dtype=float32)\nown[0] = 1",
        "the size `2 * SIZE` of local array 'own' is neither a whole number nor the name of one,"),
    local_array_of_a_sum_with_a_name=(
        "both = SIZE + 1\nown = cuda.local.array(both, float32)  # here\nown[0] = 1",
        "the size `both` of local array 'own' is not a constant. Its shape must be known when the"),
    shared_array_of_a_module=(
        "tile = cuda.shared.array(settings.SIZE, float32)\ntile[0] = x[0]",
        "the size `settings.SIZE` of shared array 'tile' is neither a whole number nor the name o"),
    shared_array_of_numpy_size=("tile = cuda.shared.array(WIDE, float32)\ntile[0] = x[0]",
        "the size `WIDE` of shared array 'tile' is neither a whole number nor the name of one,"),
    shared_array_of_less_than_nothing=("tile = cuda.shared.array(2 - 4, float32)\ntile[0] = 1",
        "shared array 'tile' has the shape -2. Give it constant whole numbers from 1 up, or the s"),
    shared_array_of_a_truth=("tile = cuda.shared.array(True, float32)\ntile[0] = x[0]",
        "shared array 'tile' has the shape True. Give it constant whole numbers from 1 up, or the"),
    shared_array_without_dimensions=("tile = cuda.shared.array((), float32)\ntile[0] = x[0]",
        "shared array 'tile' has the shape (). Give it constant whole numbers from 1 up, or the s"),
    dynamic_without_memory=("tile = cuda.shared.array(0, float32)\ntile[0] = x[0]",
        "shared array 'tile' is dynamic (shape 0), but the launch gives it no memory. Give the by"),
    array_declared_twice=(
        "tile = cuda.shared.array(4, float32)\ntile[0] = 1\n"
        "tile = cuda.shared.array(8, float32)  # here\nx[0] = tile[0]",
        "array 'tile' is declared twice, differently. Use two names"),
    shared_array_without_dtype=("tile = cuda.shared.array(4)\ntile[0] = x[0]",
        "`cuda.shared.array(4)`: cuda.shared.array takes a shape and a dtype. Write cuda.shared.a"),
    python_type_as_dtype=("tile = cuda.shared.array(4, float)\ntile[0] = x[0]",
        "`float` is not the dtype of an array. Write float32, after `from numba import float32`"),
    misspelt_dtype=('tile = cuda.shared.array(4, "flaot32")\ntile[0] = x[0]',
        "`'flaot32'` is not the dtype of an array. Write float32, after `from numba import float3"),
    local_array_as_a_whole=(
        "own = cuda.local.array(3, float32)\nother = own if x[0] else x  # here\nx[0] = other[0]",
        "local array 'own' is used as a whole. Pass its elements, or the array itself to a device"),
    local_array_replaced=(
        "own = cuda.local.array(3, float32)\nown[0] = x[0]\nown = x[1]  # here\nx[0] = own",
        "the name of local array 'own' is used for something else. Use two names, or write to its"),
    a_view_of_a_view=(
        "rest = x[int(x[cuda.threadIdx.x]) :]\npart = rest[1:]  # here\ncuda.syncthreads()\n"
        "x[cuda.threadIdx.x] = part[0]",
        "the variable 'part' is 1-d array of float32, and across a barrier or a loop a thread can"),
    slice_of_a_local_array=(
        "own = cuda.local.array(4, float32)\npart = own[1:3]  # here\nx[0] = part[0]",
        "`own[1:3]` is a slice of a local array. Write a loop over its elements"),
    row_of_a_local_array=("own = cuda.local.array((3, 4), float32)\nx[0] = min(own[0], 1)  # here",
        "local array 'own' has 2 dimensions, `own[0]` gives 1. Give one index for each"),
    atomic_on_a_local_array=(
        "own = cuda.local.array(3, float32)\ncuda.atomic.add(own, 0, x[0])  # here",
        "an atomic operation on local array 'own' is of no use. No other thread sees it: use a pl"),
)  # fmt: skip


@wrong("an argument is not positional (`*`, `**`, or after a `*`). Write plain positional argument")
@cuda.jit
def any_arguments(*arrays):  # here
    arrays[0][0] = 1


@wrong("an argument is not positional (`*`, `**`, or after a `*`). Write plain positional argument")
@cuda.jit
def keyword_only(x, *, n):  # here
    x[0] = n


@wrong("'even' calls itself by way of another, which kernels do not support. Write a", inside=odd)
@cuda.jit
def recursive(x):
    x[0] = even(5)


@cuda.jit(device=True)
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)  # here


@wrong("in `return n * factorial(n - 1)`, the function calls itself with other", inside=factorial)
@cuda.jit
def of_five(x):
    x[0] = factorial(5)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_file_and_line(case: Wrong, tmp_path: Path) -> None:
    case.assert_explained(tmp_path)


# What has no line


def test_arrays_that_do_not_fit_a_stack_are_refused() -> None:
    @cuda.jit
    def greedy(x):
        own = cuda.local.array(2048, float64)
        own[cuda.threadIdx.x] = 1
        x[0] = own[0]

    @cuda.jit
    def greedy_of_wide_numbers(x):
        own = cuda.local.array(500, complex128)
        own[cuda.threadIdx.x % 500] = 1
        x[0] = own[0].real

    for kernel, bytes_ in (greedy, "16,777,216"), (greedy_of_wide_numbers, "8,192,000"):
        with pytest.raises(KernelError, match=rf" {bytes_} bytes a block of 1024 threads"):
            kernel[1, 1024](np.zeros(1))


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
    exec("@cuda.jit\ndef from_text(x):\n    x[0] = " + str(1), namespace)
    with pytest.raises(KernelError, match=r"'from_text': its source text cannot be found.*exec"):
        namespace["from_text"][1, 1](np.zeros(1))


def test_line_that_no_file_has_is_not_quoted() -> None:
    namespace: dict[str, Any] = {"cuda": cuda}
    exec("@cuda.jit\ndef adds_up(x):\n    x[0] = x[0].cumsum()\n", namespace)
    with pytest.raises(UnsupportedKernel, match=r":3: kernel 'adds_up': `cumsum` gets \(1-d array"):
        namespace["adds_up"][1, 1](np.zeros((1, 2)))


def test_kernel_that_is_no_def_is_refused() -> None:
    async def waits(x):
        x[0] = 1

    with pytest.raises(KernelError, match="is not a plain `def`"):
        cuda.jit(waits)[1, 1](np.zeros(1))


def test_lambda_whose_text_is_gone_is_refused() -> None:
    anonymous = eval("lambda x: None")
    with pytest.raises(KernelError, match=r"'<lambda>': its source text cannot be found"):
        cuda.jit(anonymous)[1, 1](np.zeros(1))
