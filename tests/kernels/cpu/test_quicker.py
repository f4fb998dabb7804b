"""What stands in place of parts of Numba gives what those give; trees are walked as by `ast`."""

import ast
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import analysis, ssa
from numba.core.compiler import Flags
from numba.core.registry import cpu_target
from numba.core.targetconfig import Option

from minitransformer_kernels import softmax
from minitransformer_kernels.cpu import quicker
from minitransformer_kernels.cpu.compiler import in_haste, inferred
from minitransformer_kernels.cpu.trees import copied, nodes

MATRIX = numba.types.Array(numba.float32, 2, "C")


def sums(a: Any, out: Any, n: int) -> int:
    """Variables that several blocks assign and read, in loops and branches, some of them never."""
    total, last = np.float32(0), 0
    for i in range(n):
        row = np.float32(0)
        for j in range(a.shape[1]):
            if a[i, j] > 0:
                row += a[i, j]
                last = j
            elif a[i, j] < -1:
                continue
            else:
                row -= a[i, j]
                if row < -100:
                    break
        total += row
        out[i, last] = total
    while n > 3 and total > 0:
        n, last = n // 2, n
        total -= 1
    return n + last


def straight(a: Any, out: Any, n: int) -> None:
    n = n + 1
    n = n * n
    out[0, 0] = a[n % 2, 0] + n


def seen(function: Callable[..., Any]) -> tuple[str, str]:
    """A function after type inference, and the types of its variables."""
    state = inferred(function, (MATRIX, MATRIX, numba.int64))
    text = io.StringIO()
    with redirect_stdout(text):
        state.func_ir.dump()
    return text.getvalue(), "\n".join(sorted(f"{n}: {t}" for n, t in state.typemap.items()))


@pytest.mark.parametrize("function", [sums, straight])
def test_inference_ends_the_same(function: Callable[..., Any]) -> None:
    wanted = seen(function)
    with in_haste():
        assert ssa._run_ssa is quicker.run_ssa
        found = seen(function)
    assert ssa._run_ssa is not quicker.run_ssa
    assert found == wanted


@pytest.mark.parametrize("function", [sums, straight])
def test_uses_and_definitions_and_what_lives(function: Callable[..., Any]) -> None:
    state = inferred(function, (MATRIX, MATRIX, numba.int64))
    blocks = state.func_ir.blocks
    wanted = analysis.compute_use_defs(blocks)
    assert quicker.use_defs(blocks) == wanted
    graph = analysis.compute_cfg_from_blocks(blocks)
    lives = analysis.compute_live_map(graph, blocks, wanted.usemap, wanted.defmap)
    assert quicker.live_map(graph, blocks, wanted.usemap, wanted.defmap) == lives


def test_flags() -> None:
    one, other = Flags(), Flags()
    one.error_model, other.nrt = "numpy", True
    unset, same = Flags(), Flags()
    unset.error_model = "python"  # as it is where nobody sets it
    same.error_model = "numpy"
    for a in (one, other, unset, same, Flags()):
        assert quicker.hash_of_flags(a) == hash(a)
        for b in (one, other, unset, same, Flags(), cpu_target):
            assert quicker.same_flags(a, b) is type(a).__eq__(a, b)


def test_flags_of_another_kind_are_others() -> None:
    class More(Flags):  # type: ignore[misc]
        more = Option(type=bool, default=False, doc="one more")

    for a, b in ((Flags(), More()), (More(), Flags())):
        assert a != b
        assert not quicker.same_flags(a, b)


SOURCE = Path(softmax.fast.__file__).read_text()


def test_a_walk_meets_all_nodes_but_contexts_in_the_order_of_ast() -> None:
    tree = ast.parse(SOURCE)
    wanted = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert len(wanted) > 5000
    assert list(map(id, nodes(tree))) == list(map(id, wanted))


def test_a_copy_says_the_same_and_shares_nothing_that_changes() -> None:
    tree = ast.parse(SOURCE)
    copy = copied(tree)
    assert ast.dump(copy, include_attributes=True) == ast.dump(tree, include_attributes=True)
    both = {*map(id, nodes(tree))} & {*map(id, nodes(copy))}
    shared = {type(node) for node in nodes(tree) if id(node) in both}
    assert all(
        issubclass(kind, ast.operator | ast.unaryop | ast.cmpop | ast.boolop) for kind in shared
    )
    assert copied([1, tree.body[0]])[0] == 1
