"""How the kernels of the corpus are launched: on grids, blocks, and arguments of these kinds."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from minitransformer_kernels.cuda import Kernel, cuda

Maker = Callable[[np.random.Generator], Any]


class Case(NamedTuple):
    """A kernel and one launch of it."""

    kernel: Any
    grid: Any
    block: Any
    makers: tuple[Any, ...]
    shared_bytes: int = 0

    @property
    def launch(self) -> Any:
        """The kernel with its launch configuration."""
        return self.kernel[self.grid, self.block, 0, self.shared_bytes]

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the launch, the same at each call."""
        rng = np.random.default_rng(0)
        return tuple(maker(rng) if callable(maker) else maker for maker in self.makers)


class Cases(dict[str, Case]):
    """The launches of a file's kernels, by name."""

    def launched(
        self, grid: Any, block: Any, *makers: Any, shared_bytes: int = 0
    ) -> Callable[[Any], Any]:
        """Record a launch of the decorated function as a kernel, or of a kernel with options.

        Arguments are values, or made by a generator.
        """

        def record(function: Any) -> Any:
            kernel = function if isinstance(function, Kernel) else cuda.jit(function)
            name = f"{kernel.__name__}-{grid}-{block}".replace(" ", "")
            self[name] = Case(kernel, grid, block, makers, shared_bytes)
            return kernel

        return record


def sampled(items: Mapping[str, Any], every: int, *always: str) -> list[Any]:
    """Items as a test's parameters, each a kernel to compile: by default one of `every` few."""
    return [
        pytest.param(
            item, id=name,
            marks=[] if number % every == 0 or name in always else pytest.mark.nightly,
        )
        for number, (name, item) in enumerate(items.items())
    ]  # fmt: skip


def defined(file: Path, text: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """What a text defines, from a file, where its source can be found again."""
    file.write_text(text)
    names = dict(known)
    exec(compile(text, str(file), "exec"), names)
    return names


def floats(*shape: int, dtype: Any = np.float32) -> Maker:
    """Normal numbers."""
    return lambda rng: rng.standard_normal(shape).astype(dtype)


def integers(high: int, *shape: int, dtype: Any = np.int64) -> Maker:
    """Whole numbers from 0 below `high`."""
    return lambda rng: rng.integers(0, high, shape).astype(dtype)


def zeros(*shape: int, dtype: Any = np.float32) -> Maker:
    """Room for a result."""
    return lambda rng: np.zeros(shape, dtype)


doubles, unsigned = partial(floats, dtype=np.float64), partial(integers, dtype=np.uint32)
counts, ints = partial(zeros, dtype=np.int64), partial(zeros, dtype=np.int32)


def with_steps(step: int, maker: Maker) -> Maker:
    """Every `step`-th element of what another makes, as a view."""
    return lambda rng: maker(rng)[::step]


def transposed(maker: Maker) -> Maker:
    """The transposed view of what another makes."""
    return lambda rng: maker(rng).T


def read_only(maker: Maker) -> Maker:
    """What another makes, and nobody may write to."""

    def make(rng: np.random.Generator) -> Any:
        made = maker(rng)
        made.flags.writeable = False
        return made

    return make
