"""The engine on one page is a page, needs nothing beside it, learns, and would notice a mistake."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "tutorials" / "whole_engine.py"


def run(program, *arguments):
    command = [sys.executable, program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_is_a_page_that_imports_the_door_alone():
    text = PAGE.read_text()
    assert len(text.splitlines()) <= 300
    assert max(map(len, text.splitlines())) <= 100
    imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imports} == {
        "math", "sys", "time", "numpy", "numba", "minitransformer_kernels.cuda",
    }  # fmt: skip


@pytest.mark.parametrize(
    "attention", ["linear", pytest.param("softmax", marks=pytest.mark.nightly)]
)
def test_it_learns_to_copy(attention):
    ran = run(PAGE, attention)
    assert ran.returncode == 0, ran.stderr
    first, *_, given, copied = ran.stdout.splitlines()
    assert first == f"{attention} attention: its gradients are right"
    assert "step 150  loss 0.000" in ran.stdout and "symbols right 100%" in ran.stdout
    assert given.startswith("given ") and len(given.split()) == 9
    assert given.split()[1:] == copied.split()[1:]


@pytest.mark.parametrize(
    ("attention", "right", "wrong"),
    [
        ("softmax", "(value[n, j, m] - out[n, i, m])", "value[n, j, m]"),
        ("softmax", "for i in range(j, query.shape[1])", "for i in range(j + 1, query.shape[1])"),
        ("linear", "scan(v, g, q, -1)", "scan(v, g, q)"),
        ("linear", "-(g * out)", "(g * out)"),
        ("linear", "dk * np.minimum(k, 1)", "dk"),
    ],
)
def test_a_mistake_in_a_backward_is_noticed(tmp_path, attention, right, wrong):
    text = PAGE.read_text()
    assert text.count(right) == 1
    (tmp_path / PAGE.name).write_text(text.replace(right, wrong))
    ran = run(tmp_path / PAGE.name, attention)
    assert "Not equal to tolerance" in ran.stderr
    assert "step" not in ran.stdout
