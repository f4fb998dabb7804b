"""What the compiler does for speed, part by part: kernels whose text lacks one of them.

For a CPU, `kernels/cpu/emit.py` writes each region of a kernel as a loop over its threads, and
`tuned.py` the same for speed; `kernels/cpu/README.md` says how, part by part. A case shows the
parts that change the text of one of its kernels, each left out alone, and then all of them.
Matrices are 1024 x 1024, and the other textbook kernels get as many numbers; attention gets N=2,
H=8, L=512, E=M=64. Outputs are compared first. *Ours over this* is the whole text's time over that
of the text without the part: 0.5 says that the part halves the time.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from minitransformer_kernels import algorithms, checked, chunked, linear, softmax
from minitransformer_kernels.cpu import tuned
from minitransformer_kernels.cpu.cache import version
from minitransformer_kernels.cpu.form import Shape3
from minitransformer_kernels.cpu.launch import CpuKernel
from minitransformer_kernels.cpu.lowering import Mode
from minitransformer_kernels.cpu.registers import Registers
from minitransformer_kernels.cpu.rows import ALL, Few, Row
from minitransformer_kernels.cpu.runtime import pool
from minitransformer_kernels.cpu.tuned import Tuned
from minitransformer_kernels.cpu.typed import RUNTIME
from minitransformer_kernels.cuda import Launch
from minitransformer_kernels.layers.matmul import matmul
from minitransformer_kernels.visible import CAUSAL

from . import harness, textbook

SIZE = 1024
N, H, L, E = 2, 8, 512, 64
ROUNDS = 15
ALL_PARTS = "all of these"

Array = Any
Body = list[ast.stmt]
Run = Callable[[], Any]


class Absent(NamedTuple):
    """What stands for a function, where a part is left out."""

    owner: Any
    function: str
    instead: Callable[..., Any]


def whole_row(row: Row, body: Body, mask: str | None, **_: bool) -> tuple[Body, str | None, Few]:
    """A loop over all threads of a row, those that do nothing as well."""
    return body, mask, ALL


PARTS = {
    "loops that end early": [Absent(Row, "guarded", whole_row)],
    "a guard asked once": [
        Absent(Tuned, "guard", lambda self, body: None),
        Absent(Tuned, "guard_of_all", lambda self, body: (None, ALL)),
    ],
    "few for few": [Absent(Tuned, "for_few", lambda self, body, mask: ([], "0"))],
    "rows abreast": [Absent(Registers, "rows_abreast", lambda self, body: 1)],
    "pieces": [Absent(Registers, "piece", lambda self, body, row: row)],
    "one store": [Absent(tuned, "stored_once", lambda body, form: body)],
    "reading ahead": [Absent(Tuned, "read_ahead", lambda self, body: None)],
}


def rows() -> Iterator[harness.Row]:
    """Yield a row for each case, and each part that it makes use of."""
    for case, run in cases().items():
        whole = Written(run)
        truth = whole()
        contestants: dict[str, Run] = {harness.OURS: whole}
        for name in PARTS:
            without = Written(run, name)
            if without.texts != whole.texts:
                contestants[f"our text without {name}"] = without
        if len(contestants) > 2:
            contestants[f"our text without {ALL_PARTS}"] = Written(run, *PARTS)
        for contestant in contestants.values():
            for got, wanted in zip(arrays(contestant()), arrays(truth), strict=True):
                harness.error(got, wanted)
        if len(contestants) > 1:
            yield from harness.race(case, contestants, ROUNDS)


class Written:
    """A run of kernels whose text lacks some parts; they are compiled here, outside the race."""

    def __init__(self, run: Run, *lacking: str) -> None:
        self.run, self.text_of = run, dict[Path, str]()
        name = f"lacks {', '.join(lacking)}, by {version(Path(__file__).parent)}"  # in the cache
        self.mode = Mode(name, RUNTIME, Tuned)
        with left_out(*lacking):
            self()

    def __call__(self) -> Any:
        """Run the kernels."""

        def launch(
            kernel: CpuKernel, grid: Shape3, block: Shape3, arguments: Any, shared: int = 0
        ) -> None:
            made = kernel.compiled(block, arguments, shared, self.mode)
            if made.variant.path not in self.text_of:
                self.text_of[made.variant.path] = made.variant.function()[1]
            given = *grid, *kernel.prepared(arguments)

            def blocks(first: int, last: int) -> None:
                made.function(first, last, *given)

            pool.run(blocks, prod(grid))

        with checked(False), patch.object(CpuKernel, "launch", launch):
            return self.run()

    @property
    def texts(self) -> set[str]:
        """The texts of the kernels that have run."""
        return set(self.text_of.values())


@contextmanager
def left_out(*parts: str) -> Iterator[None]:
    """Texts that are written lack some parts."""
    with ExitStack() as stack:
        for absent in (absent for part in parts for absent in PARTS[part]):
            stack.enter_context(patch.object(*absent))
        yield


def arrays(output: Any) -> list[Array]:
    """The arrays that a run gives, without the states that it does not."""
    found = output if isinstance(output, tuple) else (output,)
    return [array for array in found if isinstance(array, np.ndarray)]


def cases() -> dict[str, Run]:
    """Return what is measured, by name."""
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, SIZE, SIZE), np.float32)
    q, k, v, grad = generator.standard_normal((4, N, H, L, E), np.float32)
    softmaxed = q, k, v, *softmax.forward(q, k, v)
    forward = partial(algorithms.forward, q, k, v, CAUSAL, algorithm="recurrent")
    output, denominator, _ = forward()
    backward = partial(algorithms.backward, grad, None, q, k, v, output, denominator, CAUSAL)
    return {
        **{name: partial(filled, *given) for name, given in textbook.launches(SIZE).items()},
        "matmul, plain": partial(matmul, a, b, version="plain"),
        "softmax attention, forward": partial(softmax.forward, q, k, v),
        "softmax attention, backward": partial(softmax.backward, grad, *softmaxed),
        "linear attention, forward": partial(linear.forward, q, k, v),
        "causal linear attention, forward": forward,
        "causal linear attention, backward": partial(backward, algorithm="recurrent"),
        "causal linear attention by chunks, forward": partial(chunked.forward, q, k, v),
    }


def filled(launch: Launch, arguments: tuple[Any, ...]) -> Array:
    """Return what a kernel adds to, or writes to, its last argument, which held zeros."""
    *given, out = arguments
    out = np.zeros_like(out)
    launch(*given, out)
    return out


if __name__ == "__main__":
    harness.main("tuning", rows)
