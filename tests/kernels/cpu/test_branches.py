"""What constants decide is decided before anything is compiled, and nothing else is."""

import ast
import inspect
from textwrap import indent
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.cpu import branches

# What kernels see: of the module, and of the factory around them, which comes first.
GLOBALS = {"yes": True, "off": False, "turned": True}
CLOSURE = {"no": False, "turned": False, "count": 1, "flag": np.bool_(True), "none": None}
# Of each kernel of x and y its text, and what is left of it.
KERNELS = {
    "taken": ("if yes:\n    x = 1\nelse:\n    x = 2", "x = 1"),
    "not taken": ("if no:\n    x = 1\nelse:\n    x = 2\n    y = 3", "x = 2\ny = 3"),
    "of the module": ("if off:\n    x = 1\nelse:\n    x = 2", "x = 2"),
    "the closure comes first": ("if turned:\n    x = 1\nelse:\n    x = 2", "x = 2"),
    "nothing is left": ("if no:\n    x = 1", "pass"),
    "nothing left in a loop": ("for i in x:\n    if no:\n        y = i", "for i in x:\n    pass"),
    "elif": ("if no:\n    x = 1\nelif yes:\n    x = 2\nelse:\n    x = 3", "x = 2"),
    "elif of a test": ("if y:\n    x = 1\nelif no:\n    x = 2\nelse:\n    x = 3",
                       "if y:\n    x = 1\nelse:\n    x = 3"),
    "one in another": ("if yes:\n    if no:\n        x = 1\n    x = 2", "x = 2"),
    "in a branch that stays": ("if y:\n    if yes:\n        x = 1", "if y:\n    x = 1"),
    "an expression": ("x = (1 if no else 2) + (3 if yes else 4)", "x = 2 + 3"),
    "not": ("if not no:\n    x = 1\nelse:\n    x = 2", "x = 1"),
    "not a test": ("if not y:\n    x = 1", "if not y:\n    x = 1"),
    "and": ("if no and y:\n    x = 1", "pass"),
    "or": ("if yes or y:\n    x = 1", "x = 1"),
    "and that goes on": ("if yes and y:\n    x = 1", "if yes and y:\n    x = 1"),
    "or that goes on": ("if no or y:\n    x = 1", "if no or y:\n    x = 1"),
    "behind a test": ("if y or yes:\n    x = 1", "if y or yes:\n    x = 1"),
    "an argument": ("if y:\n    x = 1", "if y:\n    x = 1"),
    "a variable": ("off = y\nif off:\n    x = 1", "off = y\nif off:\n    x = 1"),
    "a number": ("if count:\n    x = 1", "if count:\n    x = 1"),
    "a number that is compared": ("if count > 3:\n    x = 1", "if count > 3:\n    x = 1"),
    "NumPy's": ("if flag:\n    x = 1", "if flag:\n    x = 1"),
    "None": ("if none:\n    x = 1", "if none:\n    x = 1"),
    "no value yet": ("if later:\n    x = 1", "if later:\n    x = 1"),
}  # fmt: skip
# For each mistake in the module a piece of its text, and another.
MISTAKES = {
    "the other branch": ("node.body if truth else node.orelse",
                         "node.orelse if truth else node.body"),
    "numbers too": ("isinstance(value, bool)", "isinstance(value, int)"),
    "variables too": (" and name not in function.__code__.co_varnames", ""),
    "the module first": ("known[name] = cell.cell_contents",
                         "known.setdefault(name, cell.cell_contents)"),
    "not forgotten": ("None if truth is None else not truth", "truth"),
    "and as or": ("isinstance(op, ast.Or)", "isinstance(op, ast.And)"),
    "the whole by its first": ("decides if self.truth(first) is decides else None",
                               "self.truth(first)"),
    "an empty branch": ("== []", "== [None]"),
    "cells without a value": ("with suppress(ValueError)", "if True"),
}  # fmt: skip


def left_of(text: str, module: Any = branches) -> str:
    """What is left of a kernel's text."""
    kernel = f"def kernel(x, y):\n{indent(text, '    ')}\n"
    factory = f"def factory({', '.join(CLOSURE)}):\n{indent(kernel, '    ')}\n    return kernel\n"
    factory += "    later = True\n"
    known = dict(GLOBALS)
    exec(factory, known)
    (tree,) = ast.parse(kernel).body
    return ast.unparse(module.decided(tree, known["factory"](**CLOSURE)).body)


@pytest.mark.parametrize("name", KERNELS)
def test_what_constants_decide(name: str) -> None:
    text, left = KERNELS[name]
    assert left_of(text) == left


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    old, new = MISTAKES[mistake]
    module, source = ModuleType("with_a_mistake"), inspect.getsource(branches)
    assert old in source
    exec(source.replace(old, new), vars(module))
    with pytest.raises((AssertionError, ValueError)):
        for text, left in KERNELS.values():
            assert left_of(text, module) == left
