"""Matrix products: every version is as close as it says, on both machines; planted bugs are not."""

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import float32
from numpy.testing import assert_array_equal

from minitransformer_kernels import DataRace, checked
from minitransformer_kernels.gpu import assembler, cubins
from minitransformer_kernels.layers.matmul import matmul, tiled
from minitransformer_kernels.layers.matmul.fast import SLICE, TILE_COLUMNS, TILE_ROWS, matmul_kernel

from ...properties import array_library
from ..mutants import Mutant, without_barriers


class Kind(NamedTuple):
    """A way to multiply, and sizes around which its tiles end: of n, k and m."""

    version: str
    dtype: str = "float32"
    precise: bool = False
    tiles: tuple[int, int, int] = (TILE_ROWS, SLICE, TILE_COLUMNS)

    def __str__(self) -> str:
        return f"{self.version}-{self.dtype}{'-precise' * self.precise}"

    def multiply(self, a: Any, b: Any, product: Any = matmul) -> Any:
        """The product, by this way."""
        return product(a, b, precise=self.precise, version=self.version)

    def bound(self, a: Any, b: Any) -> Any:
        """What the product of two matrices may be off by, as `matmul` documents."""
        k = a.shape[1]
        if self.version != "fast":
            share = k * float(np.finfo(self.dtype).eps)
        elif self.precise:
            share = 2.0**-20 + 2.0**-21 * k
        else:
            share = 2.0**-10 + 2.0**-22 * k
        return share * (abs(a).astype(np.float64) @ abs(b).astype(np.float64))


TENSOR_CORES = Kind("fast"), Kind("fast", precise=True)
KINDS = (
    *TENSOR_CORES,
    *(Kind("tiled", dtype, tiles=(tiled.TILE,) * 3) for dtype in ("float32", "float64")),
    *(Kind("plain", dtype, tiles=(2, 7, 64)) for dtype in ("float32", "float64")),
)
kinds = pytest.mark.parametrize("kind", KINDS, ids=str)
needs_the_extra = pytest.mark.skipif(not cubins.available(), reason="needs the extra gate")


def around(size: int) -> Any:
    """Sizes from 0 to more than two tiles."""
    return st.sampled_from([0, 1, size - 1, size, size + 1, 2 * size + 3])


@kinds
def test_matmul(kind: Kind, device: str) -> None:
    xp = array_library(device)

    @given(*map(around, kind.tiles), st.integers(0, 2**32 - 1))
    def multiplies(n: int, k: int, m: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        a = rng.normal(size=(n, 2 * k)).astype(kind.dtype)[:, ::2]  # not contiguous
        b = rng.normal(size=(k, m)).astype(kind.dtype)
        found = kind.multiply(xp.asarray(a), xp.asarray(b))
        c = found if device == "cpu" else found.get()
        assert c.shape == (n, m)
        assert c.dtype == kind.dtype
        truth = a.astype(np.longdouble) @ b.astype(np.longdouble)
        assert (abs(c - truth) <= kind.bound(a, b)).all()
        again = kind.multiply(xp.asarray(a), xp.asarray(b))
        assert bool((found == again).all())

    multiplies()


def test_numbers_are_rounded_not_cut(device: str) -> None:
    """All are just below a TF32 number: cut off, they would lose a share of 2^-10 each."""
    xp = array_library(device)
    below = np.nextafter(np.float32(1 + 2**-10), np.float32(0))
    a = xp.full((5, 40), below)
    c = matmul(a, a.T)
    truth = 40 * np.float64(below) ** 2
    assert abs(float(c[0, 0]) - truth) < 1e-5 * truth


def test_precise_is_closer(device: str) -> None:
    rng, xp = np.random.default_rng(1), array_library(device)
    a, b = (xp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in [(9, 70), (70, 9)])
    truth = a.astype(np.float64) @ b.astype(np.float64)
    errors = [float(abs(matmul(a, b, precise=p) - truth).max()) for p in (False, True)]
    assert errors[1] < errors[0] / 100


@pytest.mark.parametrize(
    "kind",
    [pytest.param(x, marks=pytest.mark.nightly if x in TENSOR_CORES else []) for x in KINDS],
    ids=str,
)
def test_kernels_are_clean(kind: Kind) -> None:
    n, k, _ = kind.tiles
    a = np.ones((n + 1, k + 3), kind.dtype)
    with checked():
        c = kind.multiply(a, np.ascontiguousarray(a.T))
    assert_array_equal(c, np.full((len(a), len(a)), a.shape[1]))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [((2, 3), (4, 5), r"\(n, k\) and \(k, m\), got \(2, 3\) and \(4, 5\)"), ((3,), (3, 2), "got")],
)
def test_what_cannot_be_multiplied_is_refused(a: Any, b: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matmul(np.zeros(a, np.float32), np.zeros(b, np.float32))


def test_other_numbers_and_versions_are_refused() -> None:
    single, double = np.zeros((2, 2), np.float32), np.zeros((2, 2))
    with pytest.raises(TypeError, match="of one dtype, got float32 and float64"):
        matmul(single, double)
    with pytest.raises(TypeError, match=r"tensor cores take float32 arrays .* got float64"):
        matmul(double, double)
    with pytest.raises(TypeError, match="kernels take float32 or float64 arrays, got int64"):
        matmul(np.ones((2, 2), int), np.ones((2, 2), int), version="plain")
    with pytest.raises(ValueError, match=r"version must be one of \['fast', 'plain', 'tiled'\]"):
        matmul(single, single, version="slow")


# For GPUs, on a machine without one ---------------------------------------------------------------

MATRIX = float32[:, ::1]


def machine_code(kernel: Any, types: Any, architecture: Any) -> tuple[str, Any]:
    """The PTX of a kernel, and what it needs."""
    return assembler.ptx(kernel, types, architecture), cubins.needs(kernel, types, architecture)


@needs_the_extra
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("architecture", [(8, 0), (9, 0), (10, 0)], ids=str)
def test_matmul_on_gpus(architecture: tuple[int, int], precise: bool) -> None:
    text, needs = machine_code(matmul_kernel(precise), (MATRIX,) * 3, architecture)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in text
    assert "cvt.rna.tf32.f32" in text
    assert "shfl" not in text  # which is for the CPU
    assert needs.spills == needs.local == needs.float64 == 0
    assert needs.registers <= 255
    assert needs.shared == 4 * (TILE_ROWS * (SLICE + 4) + SLICE * (TILE_COLUMNS + 8)) <= 48 * 1024


# Planted bugs -------------------------------------------------------------------------------------


def module_of(package: str) -> Any:
    """The module `matmul` of the package or of a mutated copy."""
    return import_module(f"{package}.layers.matmul")


def mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, module_of, f"layers/{file}.py", old, new)


MUTANTS = [
    mutant("lanes_of_another_row", "tensor_cores", "EVERYONE, a2, row + k", "EVERYONE, a2, k"),
    mutant("a_right_and_below", "tensor_cores", "tile[g + 8, t], tile[g, t + 4]",
           "tile[g, t + 4], tile[g + 8, t]"),
    mutant("a_row_of_b_twice", "tensor_cores", "tile[t, g], tile[t + 4, g]",
           "tile[t, g], tile[t, g]"),
    mutant("cut_not_rounded", "matmul/fast", "(mma, to_tf32)", "(mma, _as_it_is)"),
    mutant("a_bit_too_few", "tensor_cores", "np.int32(~0x1FFF)", "np.int32(~0x3FFF)"),
    mutant("only_two_products", "tensor_cores", "for part in range(3):",
           "for part in range(1, 3):"),
    mutant("sums_of_the_last_slice", "matmul/fast", "            cuda.syncthreads()\n"
           "            for place in range(thread, TILE_ROWS", "            c_own[0, 0, 0] = "
           "float32(0)\n            for place in range(thread, TILE_ROWS"),
]  # fmt: skip
QUICK_MUTANTS = [
    mutant("first_column_left_out", "matmul/plain", "range(a.shape[1])", "range(1, a.shape[1])"),
    mutant("every_other_row_twice", "matmul/plain", "a[i, k]", "a[i - i % 2, k]"),
    mutant("b_transposed", "matmul/tiled", "b_tile[k, x]", "b_tile[x, k]"),
    mutant("last_column_left_out", "matmul/tiled", "start + x < a.shape[1]:",
           "start + x < a.shape[1] - 1:"),
]  # fmt: skip


def is_wrong(product: Any, kinds: tuple[Kind, ...]) -> bool:
    """Whether a product is off by more than it may be."""
    rng = np.random.default_rng(0)
    below = np.full((7, 40), np.nextafter(np.float32(1 + 2**-10), np.float32(0)))
    drawn = rng.normal(size=(70, 40)).astype(np.float32)
    for kind in kinds:
        for a in (drawn, below):
            truth = a.astype(np.float64) @ a.T.astype(np.float64)
            share = 2.0**-6 if a is below and kind == TENSOR_CORES[0] else 1.0
            error = abs(kind.multiply(a, a.T, product) - truth)
            if not (error <= share * kind.bound(a, a.T)).all():
                return True
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as module:
        assert is_wrong(module.matmul, TENSOR_CORES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mutant", QUICK_MUTANTS, ids=str)
def test_mutant_of_a_simple_version_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as module:
        assert is_wrong(module.matmul, (KINDS[2], KINDS[4]))  # type: ignore[attr-defined]


def test_without_a_bug_nothing_is_wrong() -> None:
    assert not is_wrong(matmul, (*TENSOR_CORES, KINDS[2], KINDS[4]))


@pytest.mark.parametrize(
    "mutant",
    [
        *(
            pytest.param(x, marks=pytest.mark.nightly)
            for x in without_barriers("layers/matmul/fast.py", module_of)
        ),
        *without_barriers("layers/matmul/tiled.py", module_of),
    ],
    ids=str,
)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    a = np.ones((3, 2 * SLICE), np.float32)
    version = Path(mutant.file).stem
    with mutant.imported(tmp_path) as module, checked(), pytest.raises(DataRace):
        module.matmul(a, a.T, version=version)  # type: ignore[attr-defined]
