"""Nothing that a kernel computes depends on what `codegen.py` tells the compiler.

Every launch of an example runs twice from the same arrays, as PTX that was compiled with these
hints and without, or with wrong ones in their place.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from minitransformer_kernels.cuda import Launch
from minitransformer_kernels.gpu.launch import types_of

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

from minitransformer_kernels.gpu.ptx import PtxError, launch
from minitransformer_kernels.gpu.ptx.driver import arrays, prepared

from .hints import ARCHITECTURE, EXAMPLES, HEAD_DIM, WRONG, program


def compare(hints: str, example: str, seed: int = 0) -> list[str]:
    """Run an example's launches with our hints and with others; what differed, launch by launch."""
    said: list[str] = []

    def call(self: Launch, *arguments: Any) -> None:
        if 0 in self.grid:
            return
        given = self.kernel.completed(arguments)
        others = copy.deepcopy(given)
        other = program(hints, example, self.kernel, types_of(given))
        ours, *how = prepared(self, given, ARCHITECTURE)
        launch(ours, self.grid, self.block, *how, self.shared, seed=seed)
        try:
            _, *how = prepared(self, others, ARCHITECTURE)
            launch(other, self.grid, self.block, *how, self.shared, seed=seed)
        except PtxError as error:
            said.append(str(error))
            return
        for x, y in zip(arrays(given), arrays(others), strict=True):
            if x.tobytes() != y.tobytes():
                said.append(f"{other.name}: {np.count_nonzero(x != y)} of {x.size} differ")

    inputs = np.random.default_rng(0).normal(size=(3, 1, 2, 37, HEAD_DIM)).astype(np.float32)
    with patch.object(Launch, "__call__", call):
        EXAMPLES[example](*inputs)
    return said


@pytest.mark.parametrize("example", EXAMPLES)
def test_with_and_without_hints_the_bits_are_the_same(example: str) -> None:
    assert compare("without", example) == []


@pytest.mark.parametrize(
    ("wrong", "example"), [(name, shows) for name, (_, shows) in WRONG.items()]
)
def test_a_wrong_hint_is_seen(wrong: str, example: str) -> None:
    assert compare(wrong, example)
