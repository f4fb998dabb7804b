"""Random kernels give what the plain interpreter gives, to the bit."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings

from .oracle import expected
from .programs import Random, arguments, programs

GRID = 3
# Each step of shrinking compiles a kernel: a failing one is reduced by hand.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
numbers = itertools.count()


def kernel_of(text: str, folder: Path) -> Any:
    """The kernel of a module with this text, from a file, where its source can be found again."""
    path = folder / f"program_{next(numbers)}.py"
    path.write_text(text)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.program


@settings(max_examples=settings().max_examples * 5 // 2, phases=PHASES)
@given(programs())
def test_random_program(tmp_path_factory: Any, program: Random) -> None:
    text, block, shared_bytes = program
    kernel = kernel_of(text, tmp_path_factory.getbasetemp())
    wanted = expected(kernel, GRID, block, arguments(block, GRID), shared_bytes)
    found = arguments(block, GRID)
    kernel[GRID, block, 0, shared_bytes](*found)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
