"""Kernels under the microscope: why the second version is faster."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

from minitransformer_kernels import microscope
from minitransformer_kernels.cpu import KernelError
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.gpu import cubins
from minitransformer_kernels.gpu.gpus import SECTOR
from minitransformer_kernels.microscope import Report, stepping, targets, transpose
from minitransformer_kernels.microscope.warps import Traffic
from tests.kernels.cpu.right import histogram
from tests.kernels.layers.test_tensor_cores import MULTIPLY
from tests.kernels.microscope import kernels

PNG = b"\x89PNG\r\n\x1a\n"
FILE = transpose.__file__
GRID, BLOCK = (2, 2), (kernels.TILE, kernels.TILE)
MATRIX = np.random.default_rng(0).standard_normal((kernels.SIDE, kernels.SIDE), np.float32)
ELEMENTS = MATRIX.size
REQUESTS = ELEMENTS // 32

needs_cuda = pytest.mark.skipif(not cubins.available(), reason="needs the extra gate")


def look(kernel, *arguments, grid=GRID, block=BLOCK, **options) -> Report:
    return microscope.inspect(kernel[grid, block], *arguments, compiled=False, **options)


def at(report: Report, text: str, space: str) -> Traffic:
    """The traffic of the line that holds a text."""
    (line,) = (line for line in report.lines if text in line.text)
    return line.memory(space)


def test_a_naive_transpose_writes_columns():
    report = look(transpose.naive, MATRIX, np.zeros_like(MATRIX))
    found = report.total("global")
    assert (found.reads, found.writes) == (ELEMENTS, ELEMENTS)
    assert found.requests == 2 * REQUESTS
    assert found.transactions == REQUESTS * (4 + 32)
    assert found.fewest == REQUESTS * (4 + 4)
    assert found.worst == 32
    (advice,) = report.advice
    assert "writing 'out' moves 8 times" in advice
    assert "256 bytes apart" in advice


def test_a_tile_moves_whole_rows_but_its_columns_conflict():
    report = look(transpose.tiled, MATRIX, np.zeros_like(MATRIX))
    total = report.total("global")
    assert total.transactions == total.fewest == 2 * REQUESTS * 4
    assert at(report, "tile[ty, tx] = x", "shared").worst == 1
    column = at(report, "= tile[tx, ty]", "shared")
    assert (column.worst, column.transactions, column.fewest) == (32, 32 * REQUESTS, REQUESTS)
    (advice,) = report.advice
    assert "reading 'tile' is a 32-way bank conflict" in advice
    assert "33 elements instead of 32" in advice


def test_a_padded_tile_has_no_conflicts():
    report = look(transpose.padded, MATRIX, np.zeros_like(MATRIX))
    assert report.total("shared").waste == report.total("global").waste == 1
    assert report.total("shared").worst == 1
    assert report.advice == []


def test_a_transpose_does_no_arithmetic():
    roof = look(transpose.naive, MATRIX, np.zeros_like(MATRIX)).roofline
    assert roof.flops == 0
    assert roof.moved == REQUESTS * (4 + 32) * SECTOR
    assert roof.needed == 2 * ELEMENTS * 4


def test_a_tiled_product_asks_global_memory_for_less():
    arguments = MATRIX, MATRIX.copy(), np.zeros_like(MATRIX)
    naive = look(kernels.matmul_naive, *arguments)
    tiled = look(kernels.matmul_tiled, *arguments)
    side, tile = kernels.SIDE, kernels.TILE
    assert naive.roofline.flops == tiled.roofline.flops == 2 * side**3
    assert naive.total("global").reads == 2 * side**3
    assert tiled.total("global").reads == 2 * side**3 // tile
    # A request for a[y, k] is a broadcast, one sector; one for b[k, x] is a row, four.
    assert naive.total("global").transactions == REQUESTS * (side * (1 + 4) + 4)
    assert tiled.total("global").transactions == REQUESTS * (side // tile * (4 + 4) + 4)
    assert naive.roofline.needed == tiled.roofline.needed == 3 * ELEMENTS * 4
    assert tiled.total("shared").worst == 1
    assert any("'b' is asked for again" in text for text in naive.advice)


def test_saxpy_makes_two_operations_an_element():
    x = np.ones(100, np.float32)
    report = look(kernels.saxpy, np.float32(3), x, x.copy(), grid=4, block=32)
    assert report.roofline.flops == 200
    (line,) = (line for line in report.lines if "alpha * x[i]" in line.text)
    assert (line.flops, line.active, line.lanes) == (200, 100, 128)
    assert report.roofline.needed == 3 * 400


def test_float64_has_a_lower_roof():
    x = np.ones(32)
    report = look(kernels.saxpy, 3.0, x, x.copy(), grid=1, block=32, gpu="RTX 4090")
    assert report.roofline.peak == pytest.approx(82.6e12 / 64)
    assert at(report, "alpha * x[i]", "global").worst == 8


def test_half_of_the_lanes_take_each_branch():
    report = look(kernels.branches, np.ones(64, np.float32), grid=1, block=64)
    shares = {line.text.strip(): line.share for line in report.lines if line.lanes}
    assert shares["x[t] = math.sqrt(x[t])"] == shares["x[t] = -x[t]"] == 0.5
    assert shares["if t % 2:"] == 1


def test_atomics_that_meet():
    values = np.zeros(64, np.int64)
    report = look(histogram, values, np.zeros(8, np.int32), grid=2, block=32)
    found = at(report, "cuda.atomic.add(bins", "shared")
    assert (found.atomics, found.requests, found.worst) == (64, 2, 32)
    assert at(report, "cuda.atomic.add(counts", "global").atomics == 16


def test_local_arrays_are_listed():
    x = np.ones(67, np.float32)
    report = look(kernels.moving_sums, x, np.zeros(64, np.float32), grid=2, block=32)
    assert report.total("local").writes == report.total("local").reads == 4 * 64
    assert "local array 'last' (16 B a thread)" in str(report)


def test_dynamic_shared_memory():
    x = np.ones(64, np.float32)
    launch = kernels.reversed_in_a_block[2, 32, 0, 128]
    report = microscope.inspect(launch, x, np.zeros_like(x), compiled=False)
    assert report.total("shared").accesses == 128
    assert report.total("shared").worst == 1


def test_arguments_are_not_modified():
    out = np.zeros_like(MATRIX)
    look(transpose.padded, MATRIX, out)
    assert not out.any()


def test_the_table_shows_every_line_and_the_totals():
    text = str(look(transpose.tiled, MATRIX, np.zeros_like(MATRIX)))
    for line in inspect.getsource(transpose.tiled.function).splitlines():
        assert line in text
    assert re.search(r"16 KiB +4/4 +4096w +16 KiB +1/1 +    tile\[ty, tx\]", text)
    assert re.search(r"4096r +16 KiB +32/1 +    out\[cuda", text)
    assert "roofline, H100: 67 TFLOP/s in float32, 3.35 TB/s" in text
    assert "32-way bank conflict" in text
    assert all(len(line) < 200 for line in text.splitlines())


@pytest.mark.parametrize(
    "name", [pytest.param("naive", marks=pytest.mark.nightly), "tiled", "saxpy"]
)
def test_the_picture(name, tmp_path):
    arguments = MATRIX, np.zeros_like(MATRIX)
    if name == "saxpy":
        report = look(kernels.saxpy, 3.0, MATRIX[0], MATRIX[1].copy(), grid=2, block=32)
    else:
        report = look(getattr(transpose, name), *arguments)
    png = report.picture(tmp_path / "kernel.png")
    assert png.startswith(PNG)
    assert (tmp_path / "kernel.png").read_bytes() == png
    assert report._repr_png_() == png


def test_the_picture_of_an_array():
    report = look(transpose.tiled, MATRIX, np.zeros_like(MATRIX))
    assert report.picture(array="tile") != report.picture(array="x")
    with pytest.raises(ValueError, match="no access to an array 'b' was made; expected one of"):
        report.picture(array="b")


# -- Targets ---------------------------------------------------------------------------------------


def test_an_example_is_watched():
    reports = targets.reports(FILE, compiled=False)
    assert list(reports) == ["naive", "tiled", "padded"]
    assert reports["tiled"].total("shared").worst == 32


def test_one_kernel_of_an_example():
    reports = targets.reports(f"{FILE}:padded", compiled=False)
    assert list(reports) == ["padded"]


def test_a_launch_on_random_arrays():
    specs = ["float32[64,64]", "float32[64,64]"]
    target = f"{FILE}:naive"
    found = targets.launched(target, GRID, BLOCK, specs, gpu="A100", compiled=False)
    report = found["naive"]
    assert report.total("global").worst == 32
    assert report.roofline.gpu.name == "A100"


@pytest.mark.parametrize(
    "target", ["layer_norm.parameters", pytest.param("softmax.forward", marks=pytest.mark.nightly)]
)
def test_kernels_of_the_package(target):
    (report,) = targets.reports(target, compiled=False).values()
    assert report.trace.kernel == target.partition(".")[2]
    assert report.roofline.flops > 0
    assert report.total("shared").accesses > 0


def test_watch_runs_the_kernels_too():
    out = np.zeros_like(MATRIX)

    def run():
        transpose.naive[GRID, BLOCK](MATRIX, out)

    microscope.watch(run, compiled=False)
    np.testing.assert_array_equal(out, MATRIX.T)


def test_watch_looks_at_the_launch_that_is_asked_for():
    def run():
        for size in 32, 64:
            x = np.ones(size, np.float32)
            kernels.saxpy[size // 32, 32](np.float32(3), x, x.copy())

    first, second = (microscope.watch(run, number=n, compiled=False)["saxpy"] for n in (1, 2))
    assert (first.roofline.flops, second.roofline.flops) == (64, 128)
    with pytest.raises(microscope.NotLaunched, match=r"'saxpy' was not launched 3 times; .*saxpy "):
        microscope.watch(run, "saxpy", 3, compiled=False)


def test_kernels_beside_each_other():
    out = np.zeros_like(MATRIX)
    naive, padded = transpose.naive, transpose.padded
    reports = {"naive": look(naive, MATRIX, out), "padded": look(padded, MATRIX, out)}
    found = microscope.compare(reports)
    head, *rows = ([cell for cell in re.split("  +", row) if cell] for row in found.splitlines())
    assert head == ["naive", "padded", "last / first"]
    cells = {name: rest for name, *rest in rows}
    assert cells["global: sectors"] == [str(36 * REQUESTS), str(8 * REQUESTS), "0.222"]
    assert cells["shared: wavefronts"] == ["0", str(2 * REQUESTS)]
    assert cells["bytes, each element once"] == ["32 KiB", "32 KiB", "1"]
    times = (f"{r.roofline.moved / 3.35e12 * 1e9:.3g} ns" for r in reports.values())
    assert cells["at least, on H100"] == [*times, "0.222"]


def test_one_kernel_has_none_beside_it():
    report = look(transpose.naive, MATRIX, np.zeros_like(MATRIX))
    with pytest.raises(ValueError, match="compare needs two reports or more of one GPU, got 1"):
        microscope.compare({"naive": report})
    other = look(transpose.naive, MATRIX, np.zeros_like(MATRIX), gpu="A100")
    with pytest.raises(ValueError, match="got 2 of A100, H100"):
        microscope.compare({"naive": report, "again": other})


def test_arguments_of_a_command_line():
    matrix, index, flag, rate, count, tiny = targets.arguments(
        ["float32[3, 4]", "int32[50]", "bool[9]", "float32(0.5)", "-7", "1e-3"], seed=1
    )
    assert (matrix.shape, matrix.dtype) == ((3, 4), np.float32)
    assert (index.dtype, index.min(), index.max()) == (np.int32, 0, 2)
    assert flag.dtype == np.bool_
    assert (rate, type(rate)) == (0.5, np.float32)
    assert (count, type(count), tiny) == (-7, int, 1e-3)
    again = targets.arguments(["float32[3,4]"], seed=1)
    np.testing.assert_array_equal(again[0], matrix)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("float32[3", r"argument 'float32\[3' makes no sense; expected an array like"),
        ("float99[3]", "no dtype 'float99' for kernels"),
        ("complex64[3]", "no dtype 'complex64' for kernels"),
        ("three", "argument 'three' makes no sense"),
        ("", "argument '' makes no sense"),
    ],
)
def test_arguments_that_make_no_sense(spec, message):
    with pytest.raises(ValueError, match=message):
        targets.arguments([spec])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "hardmax",
            "no target 'hardmax'; expected one of .*linear, recurrent, chunked, .*softmax, ",
        ),
        (
            "layer_norm.fast",
            r"kernel 'fast' was not launched; launched were: normalise \(1 times\), ",
        ),
        ("nowhere.py", "no file nowhere.py"),
        (f"{FILE}:tile", "kernel 'tile' was not launched; launched were: naive"),
        (kernels.__file__, r"kernels.py has no function example\(\)"),
    ],
)
def test_targets_that_do_not_exist(target, message):
    with pytest.raises(ValueError, match=message):
        targets.reports(target, compiled=False)


def test_a_file_that_fails(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import numpy\nnumpy.nonsense\n")
    with pytest.raises(
        ValueError, match=r"broken.py cannot be imported: AttributeError: .*nonsense"
    ):
        targets.reports(str(path))


def test_an_example_that_fails(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("def example():\n    return 1 / 0\n")
    with pytest.raises(ValueError, match=r"fails.py: example\(\) ended in ZeroDivisionError: div"):
        targets.reports(str(path))


def test_a_launch_needs_a_kernel():
    with pytest.raises(ValueError, match=r"transpose.py has no kernel 'TILE'; its kernels: naive"):
        targets.launched(f"{FILE}:TILE", (1,), (1,), [])
    with pytest.raises(ValueError, match=r"need a kernel FILE.py:KERNEL, got 'softmax'"):
        targets.launched("softmax", (1,), (1,), [])
    with pytest.raises(KernelError, match="takes 2 arguments"):
        targets.launched(f"{FILE}:naive", (1,), (1,), ["7"], compiled=False)


# -- The compiled kernel ---------------------------------------------------------------------------


def test_without_the_extra_the_table_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(cubins, "available", lambda: False)
    x = np.ones(32, np.float32)
    report = microscope.inspect(kernels.saxpy[1, 32], np.float32(3), x, x.copy())
    assert "pip install 'minitransformer[gate]'" in str(report)


def _line(module: ModuleType, text: str) -> int:
    lines = Path(str(module.__file__)).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@needs_cuda
def test_needs_of_the_compiled_kernel():
    launch = transpose.padded[GRID, BLOCK]
    report = microscope.inspect(launch, MATRIX, np.zeros_like(MATRIX))
    assert not isinstance(report.compiled, str)
    assert list(report.compiled.needs) == [(7, 5), (8, 0), (9, 0), (10, 0)]
    for needs, fits in report.compiled.needs.values():
        assert needs.shared == 32 * 33 * 4
        assert 8 <= needs.registers <= 64
        assert (needs.spills, needs.local, needs.float64) == (0, 0, 0)
        assert fits.limit in ("warps", "registers")
    assert report.compiled.needs[8, 0][1].share == 1.0
    assert re.search(r"sm_80 +\d+ +0 B +0 B +4.125 KiB +100%, 2 blocks, limited by", str(report))


@needs_cuda
def test_an_architecture_without_tensor_cores_is_left_out_and_told():
    arrays = [np.zeros((32, n), np.float32) for n in (4, 2, 4, 4)]
    report = microscope.inspect(MULTIPLY[1, 32], *arrays, 32)
    assert not isinstance(report.compiled, str)
    assert list(report.compiled.needs) == [(8, 0), (9, 0), (10, 0)]
    assert re.search(r"\nnot sm_75: Feature .* requires \.target sm_80 or higher\n", str(report))


@needs_cuda
def test_a_stray_float64_is_found_with_its_line():
    x = np.ones(32, np.float32)
    launch = kernels.saxpy_in_float64[1, 32]
    report = microscope.inspect(launch, np.float32(3), x, x.copy())
    assert not isinstance(report.compiled, str)
    number = _line(kernels, "0.5 * alpha")
    assert [line for _, line in report.compiled.float64] == [number]
    assert f"line {number} (kernels.py) computes in float64" in str(report)
    clean = microscope.inspect(kernels.saxpy[1, 32], np.float32(3), x, x.copy())
    assert not isinstance(clean.compiled, str)
    assert not clean.compiled.float64


class Settings:
    """A constant, as a script keeps it."""

    RATE = 2


@needs_cuda
def test_what_a_gpu_refuses_is_said():
    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x] *= Settings.RATE  # a class is nothing to Numba for GPUs

    report = microscope.inspect(kernel[1, 32], np.ones(32, np.float32))
    assert "Numba cannot compile the kernel for a GPU:\n" in str(report)


@needs_cuda
def test_float64_arrays_may_compute_in_float64():
    x = np.ones(32)
    report = microscope.inspect(kernels.saxpy[1, 32], 3.0, x, x.copy())
    assert "computes in float64" not in str(report)


PAIR = np.dtype([("x", np.float32), ("n", np.int64)], align=True)
OF_PAIR = numba.from_dtype(PAIR)


def test_a_field_of_a_record_is_as_many_bytes_as_it_is():
    @cuda.jit
    def kernel(pairs):
        t = cuda.threadIdx.x
        tile = cuda.shared.array(32, OF_PAIR)
        own = cuda.local.array(2, OF_PAIR)
        tile[t].n = pairs[t].n
        own[0].x = pairs[t].x
        pairs[t].x = own[0].x + tile[t].n

    report = look(kernel, np.zeros(32, PAIR), grid=1, block=32)
    found = {(site.array, site.itemsize) for site in report.trace.sites}
    assert found == {("tile", 8), ("own", 4), ("pairs", 4), ("pairs", 8)}
    assert at(report, "tile[t].n = pairs", "global").fewest == 8


def test_arguments_with_a_default_may_be_left_out():
    @cuda.jit
    def kernel(x, step=2):
        x[cuda.grid(1)] += step

    x = np.zeros(32, np.float32)
    assert at(look(kernel, x, grid=1, block=32), "+= step", "global").requests == 2


def test_the_text_of_exec_is_found():
    namespace = {"cuda": cuda, "__name__": "script"}
    text = "\n\n@cuda.jit\ndef from_text(x):\n    x[cuda.grid(1)] += 1\n"
    exec(text, namespace)
    x = np.zeros(32, np.float32)
    report = look(namespace["from_text"], x, grid=1, block=32)
    assert at(report, "x[cuda.grid(1)] += 1", "global").requests == 2
    if cubins.available():
        launch = namespace["from_text"][1, 32]
        assert "x[cuda.grid(1)] += 1" in str(microscope.inspect_ptx(launch, x))
        assert "x[cuda.grid(1)] += 1" in stepping.page(stepping.record(launch, x))
