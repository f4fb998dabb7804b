"""Forty mistakes that beginners make, each in its first launch, and the sentence that they read.

Nothing else is asked for: no checked mode, no debugger. What the sentence must not hold are the
insides of compilers; what must not stand above it are frames that nobody wrote.
"""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import numba
import numpy as np
import pytest

from minitransformer_kernels.cpu import DataRace, KernelError
from minitransformer_kernels.cuda import cuda

from .wrong import assert_readable

LEAKS = re.compile(
    r"NRT|npy_|_of\b|run__|typeinfer|CPUDispatcher|object at 0x|numba\.core|Traceback|lowering"
)


def helper(v: float) -> float:
    """Not a device function."""
    return 2 * v


def floats(*shape: int) -> np.ndarray:
    """An array of different numbers: who writes what is there already disturbs nobody."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


Launch = Callable[[Any], Any]
X = floats(100)
i = "i = cuda.grid(1)\n"
tile = "tile = cuda.shared.array(32, float32)\nt = cuda.threadIdx.x\n" + i
each: Launch = lambda k: k[4, 25](X, floats(100))  # noqa: E731 -- a column of the table
block: Launch = lambda k: k[1, 32](floats(32), floats(32))  # noqa: E731

# What goes wrong: the kernel of `x` and `out`, its launch, and what the sentence must say.
MISTAKES: dict[str, tuple[str, Launch, str]] = {
    # Which elements
    "no guard": (
        "out[cuda.grid(1)] = x[cuda.grid(1)]", lambda k: k[4, 32](X, floats(100)),
        "reads global array 'x' at [100], which is outside its shape (100,). On a GPU that is ano"),
    "no guard, and a grid far too large": (
        "out[cuda.grid(1)] = 1", lambda k: k[40_000, 256](X, floats(100)),
        "writes to global array 'out' at [100], which is outside its shape (100,). On a GPU that"),
    "a guard of one axis": (
        "r, c = cuda.grid(2)\nif r < out.shape[0]:\n    out[r, c] = 1",
        lambda k: k[(1, 1), (8, 8)](X, floats(6, 6)),
        "writes to global array 'out' at [0, 6], which is outside its shape (6, 6)"),
    "rows for columns": (
        "r, c = cuda.grid(2)\nif r < out.shape[0] and c < out.shape[1]:\n    out[c, r] = 1",
        lambda k: k[(1, 1), (8, 8)](X, floats(4, 8)), "at [4, 0], which is outside its shape (4, "),
    "one too many": (
        i + "if i <= x.size:\n    out[i] = x[i]", lambda k: k[4, 32](X, floats(100)),
        "reads global array 'x' at [100], which is outside its shape (100,)"),
    "the neighbour of the last": (
        i + "out[i] = x[i + 1]", each, "reads global array 'x' at [100], which is outside"),
    "the neighbour of the first": (i + "out[i] = x[i - 1]", each, "global array 'x' at [-1]"),
    "a tile smaller than the block": (
        tile + "tile[t] = x[i]", lambda k: k[1, 64](X, X.copy()),
        "writes to shared array 'tile' at [32], which is outside its shape (32,)"),
    # Who waits for whom
    "no barrier": (
        tile + "tile[t] = x[i]\nout[i] = tile[31 - t]", block,
        "nothing orders the two. Put cuda.syncthreads() between them, or use cuda.atomic"),
    "a sum without an atomic": (
        i + "out[0] += x[i]", each,
        "writes to in the same line, and nothing orders the two. Let each thread write to an elem"),
    "all write to one element": (
        i + "out[0] = i", each, "of its own, or one thread alone, or use cuda.atomic"),
    "blocks that write to the same elements": (
        i + "out[cuda.threadIdx.x] = i", each,
        "of block (0, 0, 0) writes to in line 4, and blocks run in any order. Let each block writ"),
    "a neighbour that has changed already": (
        i + "if i < 31:\n    x[i] = x[i + 1]", block,
        "reads in the same line, and nothing orders the two. Read into a variable, put cuda.sync"),
    "a barrier in a branch": (
        tile + "tile[t] = x[i]\nif t < 16:\n    cuda.syncthreads()\nout[i] = tile[t]", block,
        "which thread (16, 0, 0) never reaches. Every thread of a block must reach every barrier"),
    "a return before a barrier": (
        tile + "if i >= 20:\n    return\ntile[t] = x[i]\ncuda.syncthreads()\nout[i] = tile[0]",
        block, "thread (0, 0, 0) waits at cuda.syncthreads(), which thread (20, 0, 0) never reac"),
    "a tile that nobody fills": (
        tile + "out[i] = tile[t]", block,
        "which no thread of the block has written. What is there on a GPU is left over"),
    "a sum that begins nowhere": (
        "own = cuda.local.array(1, float32)\n" + i + "own[0] += x[i]\nout[i] = own[0]", each,
        "reads local array 'own' at [0], which it has not written"),
    # The launch
    "no configuration": (
        "x[0] = 1", lambda k: k(X, X), "was called without a launch configuration; write wrong[bl"),
    "threads alone": ("x[0] = 1", lambda k: k[32](X, X), "needs [blocks, threads], got [32]"),
    "a quotient for blocks": (
        "x[0] = 1", lambda k: k[100 / 25, 25](X, X), "got 4.0; divide with `//`: (n + 255) // 256"),
    "one block of all": (
        "x[0] = 1", lambda k: k[1, 2048](X, X), "2048 threads a block; a GPU allows 1024 in all"),
    "a block less than none": (
        "x[0] = 1", lambda k: k[-1, 32](X, X), "blocks must be one to three whole numbers from 1"),
    "rows along y": (
        "x[0] = 1", lambda k: k[(1, 100_000), 32](X, X), "a GPU allows 65535 along y and z"),
    "the result left out": (
        "x[0] = 1", lambda k: k[1, 1](X), "takes 2 arguments (x, out), got 1; give out as well"),
    "an argument too many": (
        "x[0] = 1", lambda k: k[1, 1](X, X, X), "takes 2 arguments (x, out), got 3; leave out the"),
    "a list": (
        "x[0] = 1", lambda k: k[1, 1]([1.0, 2.0], X),
        "argument 'x' is a list; expected a NumPy array or a number. Convert it with numpy.array("),
    "nothing for the result": (
        "x[0] = 1", lambda k: k[1, 1](X, None), "argument 'out' is None; expected a NumPy array"),
    "shared memory in the stream's place": (
        "x[0] = 1", lambda k: k[1, 32, 1024](X, X), "bytes of shared memory come fourth: wrong[b"),
    "a tile of no size": (
        "tile = cuda.shared.array(0, float32)\ntile[0] = x[0]", block,
        "is dynamic (shape 0), but the launch gives it no memory. Give the bytes of shared memory"),
    "a tile too large": (
        "tile = cuda.shared.array((128, 128), float32)\ntile[0, 0] = x[0]", block,
        "its shared arrays come to 65,536 bytes a block; a kernel can declare 49,152"),
    # The kernel
    "an index by a quotient": (
        i + "out[i / 2] = x[i]", each, "an index has the type float64. An index is a whole number"),
    "an index of two for one axis": (
        "i = cuda.grid(2)\nout[i] = 1", each, "a 1-d array of float32 gets 2 indices"),
    "an index without its axis": ("x[cuda.threadIdx] = 1", each, "Write cuda.threadIdx.x, .y or"),
    "a small letter": ("x[cuda.threadidx.x] = 1", each, "Did you mean cuda.threadIdx.x, .y or .z?"),
    "as in C": ("x[threadIdx.x] = 1", each, "In Python it is written cuda.threadIdx.x"),
    "whole arrays": ("out[:] = x", each, "`out[:] = x` works on whole arrays. Write it for one el"),
    "a new array": (
        "y = np.zeros(4)\nx[0] = y[0]", each,
        "kernels have no numpy.zeros. Declare one with cuda.local.array or cuda.shared.array"),
    "a list in a kernel": ("y = [1, 2]\nx[0] = y[0]", each, "a list cannot be part of a kernel"),
    "a Python function": (
        i + "out[i] = helper(x[i])", each,
        "'helper' is an ordinary Python function. Decorate it with @cuda.jit(device=True)"),
    "a result": (i + "return x[i]", each, "a kernel returns a value. Write it to an array"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, launch, phrase = MISTAKES[name]
    file = tmp_path / "wrong.py"
    file.write_text(f"@cuda.jit\ndef wrong(x, out):\n{indent(text, '    ')}\n")
    known = {"cuda": cuda, "np": np, "float32": numba.float32, "helper": helper}
    exec(compile(file.read_text(), str(file), "exec"), known)
    monkeypatch.setenv("MINITRANSFORMER_CHECK", "")
    with pytest.raises(KernelError) as caught:
        launch(known["wrong"])
    said = str(caught.value)
    assert phrase in said, said
    assert "kernel 'wrong'" in said
    assert_readable(said)
    assert not LEAKS.search(said), said
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == isinstance(caught.value, DataRace)
    assert len(traceback.format_exception(caught.value)) == len(frames) + 2 + len(notes)


def test_there_are_forty() -> None:
    assert len(MISTAKES) == 40
