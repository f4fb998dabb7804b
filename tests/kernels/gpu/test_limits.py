"""What a GPU refuses of a launch is refused without one, in both modes and before anything runs."""

import math
from typing import Any

import numpy as np
import pytest
from numba import float32, float64

import minitransformer_kernels as mk
from minitransformer_kernels.arrays import SHARED_BYTES
from minitransformer_kernels.cuda import Kernel, cuda
from minitransformer_kernels.gpu import limits
from minitransformer_kernels.gpu.gpus import ARCHITECTURES, GPUS, occupancy

KIB = 1024
WHOLE = 48 * KIB


def declaring(size: int, dtype: Any) -> Kernel:
    """A kernel with a shared array of so many elements."""

    @cuda.jit
    def declares(x):
        tile = cuda.shared.array(size, dtype)
        tile[0] = math.sqrt(x[0])
        x[0] = tile[0]

    return declares  # type: ignore[no-any-return]


@cuda.jit
def like_its_argument(x):
    """An array whose dtype the launch decides."""
    tile = cuda.shared.array((2, 6145), x.dtype)
    tile[0, 0] = x[0]
    x[0] = tile[0, 0]


@cuda.jit
def both(x):
    """1 KiB declared, and what the launch gives."""
    tile = cuda.shared.array(256, float32)
    more = cuda.shared.array(0, float32)
    more[0] = x[0]
    tile[0] = more[0]
    x[0] = tile[0]


@pytest.mark.parametrize("checked", [False, True])
def test_declared_shared_memory(checked: bool) -> None:
    x = np.ones(1)
    with mk.checked(checked):
        declaring(WHOLE // 4, float32)[1, 1](x)
        declaring(WHOLE // 2, np.int16)[1, 1](x)
        for kernel, bytes_ in (
            (declaring(WHOLE // 4 + 1, float32), "49,156"),
            (declaring(WHOLE // 4, float64), "98,304"),
            (declaring(WHOLE // 4, np.dtype("f8")), "98,304"),
            (like_its_argument, "98,320"),
        ):
            name = kernel.__name__
            message = f"'{name}': its shared arrays come to {bytes_} bytes a block; .* 49,152 for"
            with pytest.raises(mk.KernelError, match=message):
                kernel[1, 1](x)
        like_its_argument[1, 1](x.astype(np.int16))
    assert x == 1


@pytest.mark.parametrize("checked", [False, True])
def test_dynamic_shared_memory(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)
    x = np.ones(1, np.float32)
    with mk.checked(checked):
        both[1, 1, 0, WHOLE - KIB](x)
        message = r"1,024 bytes of declared and 49,152 of dynamic shared memory; every GPU has 49,1"
        with pytest.raises(mk.KernelError, match=message):
            both[1, 1, 0, WHOLE](x)
        for size in 48.5, 500:
            with pytest.raises(mk.KernelError, match=r"'both': .* every GPU has 49,152"):
                both[1, 1, 0, int(size * KIB)]


def test_a_gpu_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in ("T4", 64), ("rtx 4090", 99), ("A100", 163), ("H200", 227):
        monkeypatch.setenv(limits.VARIABLE, name)
        assert both[1, 1, 0, most * KIB]
        with pytest.raises(mk.KernelError, match=f"(?i)the GPU {name} has {most * KIB:,}"):
            both[1, 1, 0, most * KIB + 1]
        with pytest.raises(mk.KernelError, match=r"can declare 49,152 for any GPU"):
            declaring(WHOLE, float32)[1, 1](np.ones(1))
    monkeypatch.setenv(limits.VARIABLE, "S3")
    assert both[1, 1, 0, WHOLE]
    with pytest.raises(mk.KernelError, match=r"MINITRANSFORMER_GPU: no GPU 'S3'.* one of T4, A100"):
        both[1, 1, 0, WHOLE + 1]


def test_what_one_gpu_has_another_may_not_have_less_of() -> None:
    assert min(has.shared - has.reserved for has in ARCHITECTURES.values()) >= SHARED_BYTES
    assert {gpu.capability for gpu in GPUS.values()} <= set(ARCHITECTURES)


@pytest.mark.parametrize(
    "registers, threads, most",
    [
        (64, 1024, None), (65, 1024, 64), (255, 257, 168), (255, 256, None), (9999, (16, 32), 128),
        (120, 544, 96), (72, 900, 64),
    ],
)  # fmt: skip
def test_registers(registers: int, threads: Any, most: int | None) -> None:
    @cuda.jit(max_registers=registers)
    def declares(x):
        x[0] = 1

    count = math.prod(np.atleast_1d(threads))
    for capability in ARCHITECTURES:
        fits = occupancy(capability, (count,), min(registers, 255), 0).blocks > 0
        assert fits == (most is None)
        assert occupancy(capability, (count,), most or registers, 0).blocks > 0
    if most is None:
        assert declares[1, threads]
    else:
        with pytest.raises(mk.KernelError, match=rf"'declares': {count} threads .*={most}$"):
            declares[1, threads]


@pytest.mark.parametrize("registers", [0, -1, 32.0, "32"])
def test_no_number_of_registers(registers: Any) -> None:
    kernel = cuda.jit(max_registers=registers)(both.function)
    with pytest.raises(mk.KernelError, match=r"'both': max_registers is .*; a thread has 1 to 255"):
        kernel[1, 1]


@pytest.mark.parametrize("blocks", [2**31, (1, 2**16), (1, 1, 2**16), (2**31, 1, 1)])
def test_blocks(blocks: Any) -> None:
    assert both[2**31 - 1, 1] and both[(1, 65535, 65535), 1]
    with pytest.raises(mk.KernelError) as caught:
        both[blocks, 1]
    said = f"kernel 'both': {blocks if blocks != (2**31, 1, 1) else 2**31} blocks; a GPU allows"
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("tasks", [-1, 2.0, "many", None])
def test_tasks(tasks: Any) -> None:
    with pytest.raises(mk.KernelError, match="'both': forall takes how many tasks there are, a wh"):
        both.forall(tasks)


def test_dimensions_of_the_grid_in_a_variable() -> None:
    @cuda.jit
    def varies(x, n):
        i = cuda.grid(n)
        x[i] = 1

    for checked in False, True:
        message = r"`cuda.grid\(n\)` does not say .* Write cuda.grid\(1\), \(2\) or \(3\)"
        with mk.checked(checked), pytest.raises(mk.KernelError, match=message):
            varies[1, 1](np.ones(1), 1)
