"""What lines become in PTX: counted exactly, with and without hints, and beside one another."""

from __future__ import annotations

import numpy as np
import pytest

from minitransformer import commands as cli
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.gpu import codegen
from minitransformer_kernels.microscope import (
    Instructions,
    compare_ptx,
    inspect_ptx,
    targets,
    transpose,
)

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

FILE = transpose.__file__


@cuda.jit(device=True)
def power(x, n):
    product = x
    for _ in range(1, n):
        product *= x
    return product


@cuda.jit
def powers(x, n, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = power(x[i], n)


@pytest.fixture(scope="module")
def found() -> dict[str, Instructions]:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    out = np.zeros_like(x)
    kernels = transpose.naive, transpose.tiled
    made = {k.__name__: inspect_ptx(k[(2, 2), (32, 32)], x, out) for k in kernels}
    assert not out.any()  # what it was
    return made


def test_each_line_has_its_instructions(found) -> None:
    tiled = found["tiled"]
    lines = {line.text.strip(): line for line in tiled.lines}
    assert [row.text for row in lines["cuda.syncthreads()"].rows] == ["bar.sync 0"]
    (load,) = lines["tile[ty, tx] = x[row, column]"].kinds["load global 4 B"]
    assert (load.executions, load.warps, load.sectors) == (4096, 128, 512)
    assert sum(line.issued for line in tiled.lines) == tiled.issued
    assert tiled.issued == tiled.profile.instructions // 32  # no lane is idle
    text = str(tiled)
    assert "tiled  (" in text
    assert "load shared 4 B: ld.shared.f32" in text
    assert "32 wavefronts" in text


def test_hints_save_instructions(found) -> None:
    for each in found.values():
        assert each.unhinted is not None
        assert each.issued < each.unhinted.issued
        assert f"{each.unhinted.issued:,}" in str(each)


def test_hints_save_a_quarter_of_a_transposition(found) -> None:
    """As the page on GPUs says."""
    tiled = found["tiled"]
    assert 0.2 < 1 - tiled.issued / tiled.unhinted.issued < 0.3


@pytest.mark.nightly
def test_hints_save_half_of_softmax() -> None:
    (forward,) = targets.reports("softmax.forward", look=inspect_ptx).values()
    assert forward.issued < 0.5 * forward.unhinted.issued


def test_a_device_function_is_compiled_without_hints_too() -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    made = inspect_ptx(powers[2, 32], x, 5, y)
    assert made.unhinted is not None
    assert made.issued < made.unhinted.issued
    assert codegen.told() == codegen.HINTS
    again = inspect_ptx(powers[2, 32], x, 5, y, hints=False)
    assert again.unhinted is None
    assert again.issued == made.issued
    # Half of the lanes have work, the other half of the blocks' are beyond the array.
    half = inspect_ptx(powers[2, 32], x[:48], 5, y, hints=False)
    (store,) = (row for row in half.profile.rows if (row.kind, row.space) == ("store", "global"))
    assert (store.executions, store.warps) == (48, 2)


def test_kernels_beside_each_other(found) -> None:
    table = compare_ptx(found).splitlines()
    assert table[0].split() == ["naive", "tiled", "last", "/", "first"]
    rows = [line.split() for line in table]
    assert ["sectors", "4,608", "1,024", "0.222"] in rows
    assert ["issued:", "barrier", "0", "128"] in rows
    with pytest.raises(ValueError, match="two kernels or more, got 1"):
        compare_ptx({"tiled": found["tiled"]})


def test_the_command(capsys) -> None:
    assert cli.main(["inspect", "--ptx", f"{FILE}:naive", f"{FILE}:tiled"]) == 0
    out = capsys.readouterr().out
    assert "store global 4 B: st.global.f32" in out
    assert ["naive", "tiled", "last", "/", "first"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FILE, "--picture", "x.png"], "--picture: it shows no PTX"),
        ([FILE, "--architecture", "eight"], "architecture must be one of 7.5, 8.0,"),
        ([f"{FILE}:none"], "kernel 'none' was not launched; launched were: naive (1 times)"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys) -> None:
    assert cli.main(["inspect", "--ptx", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_without_the_extra(monkeypatch, capsys) -> None:
    monkeypatch.setattr("minitransformer_kernels.gpu.cubins.available", lambda: False)
    assert cli.main(["inspect", "--ptx", FILE]) == 2
    assert "pip install 'minitransformer[gate]'" in capsys.readouterr().err
