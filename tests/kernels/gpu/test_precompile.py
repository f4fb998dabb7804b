"""What is compiled ahead is what launches ask for, each kernel by one core."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from minitransformer_kernels.gpu import assembler, precompile, specialisations

HOPPER = 9, 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Records what is compiled."""
    found: list[Any] = []
    monkeypatch.setattr(assembler, "cubin", lambda *arguments: found.append(arguments))
    return found  # type: ignore[return-value]


def test_cores_share_the_kernels(compiled: list[Any]) -> None:
    counts = [
        precompile.compile_share([16, 32], ["float32", "float64"], HOPPER, 3, core)
        for core in range(3)
    ]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == len(compiled) == len(set(compiled))
    wanted = {
        (each.kernel, each.types, HOPPER)
        for head_dim in (16, 32)
        for dtype in ("float32", "float64")
        for each in specialisations.specialisations(head_dim, dtype)
    }
    assert set(compiled) == wanted


def test_a_gpu_that_is_too_old_for_a_kernel_is_spared_it(compiled: list[Any]) -> None:
    """Turing's tensor cores multiply neither bfloat16 nor TF32; Ampere's do."""
    found = []
    for architecture in ((7, 5), (8, 0)):
        compiled.clear()
        precompile.compile_share([16], ["float32"], architecture, 1, 0)
        found.append({(kernel, types) for kernel, types, _ in compiled})
    turing, ampere = found
    assert turing < ampere
    assert {assembler.room(kernel) for kernel, _ in ampere - turing} == {"matmul"}


def test_the_command_asks_cupy_for_the_gpu_or_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def note(*asks: Any) -> int:
        asked.append(asks)
        return 5

    monkeypatch.setattr(precompile, "precompile", note)
    monkeypatch.setattr("sys.argv", ["precompile", "64", "128", "--cores", "4"])
    device = type("Device", (), {"compute_capability": "120"})
    cuda = type("cuda", (), {"Device": device})
    monkeypatch.setitem(sys.modules, "cupy", type("cupy", (), {"cuda": cuda}))
    precompile.main()
    monkeypatch.setattr("sys.argv", ["precompile", "--architecture", "9.0", "--cores", "1"])
    precompile.main()
    assert asked == [([64, 128], ["float32"], (12, 0), 4), ([64], ["float32"], HOPPER, 1)]
