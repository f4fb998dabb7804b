"""What is launched next is compiled in a copy of the process, which leaves nothing else behind."""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import checked
from minitransformer_kernels.cpu import rehearsal, rehearsed
from minitransformer_kernels.cuda import cuda

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a process is copied on Linux alone")


@cuda.jit(checked=False)
def doubles(x: Any) -> None:
    x[cuda.grid(1)] *= 2


@cuda.jit(checked=False)
def negates(x: Any) -> None:
    x[cuda.grid(1)] *= -1


def test_a_play_is_noted_and_launches_do_nothing() -> None:
    x = np.ones(4)

    def play() -> None:
        doubles[1, 4](x)
        negates[2, 2](x)
        doubles[4, 4](x)
        doubles[1, 4](np.ones(4, np.float32))
        with checked():
            doubles[1, 4](x)
        raise ArithmeticError("arbitrary numbers do harm")

    found = [(kernel.function.__name__, block[0], a.dtype.char, mode.name)
             for kernel, block, (a,), _, mode in rehearsal.noted(play)]  # fmt: skip
    assert found == [("doubles", 4, "d", "plain"), ("negates", 2, "d", "plain"),
                     ("doubles", 4, "f", "plain"), ("doubles", 4, "d", "checked")]  # fmt: skip
    assert (x == 1).all()


@on_linux
def test_what_comes_next_is_compiled_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "2")
    x, played = np.ones(4), []

    def play() -> None:
        doubles[1, 3](x)
        negates[1, 3](x)
        played.append(True)

    with rehearsed(play):
        doubles[1, 3](x)
        for copy in multiprocessing.active_children():
            copy.join()
    assert list(tmp_path.glob("negates_*.code"))
    assert (x == [2, 2, 2, 1]).all()
    assert not played

    monkeypatch.setattr(multiprocessing, "get_context", None)  # a second copy would be an error
    with rehearsed(play):
        negates[1, 3](x)
    assert (x == [-2, -2, -2, 1]).all()


@on_linux
def test_one_core_has_nobody_to_rehearse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MINITRANSFORMER_NUM_THREADS", "1")
    with rehearsed(lambda: negates[1, 5](np.ones(5))):
        doubles[1, 5](np.ones(5))
        assert not multiprocessing.active_children()
