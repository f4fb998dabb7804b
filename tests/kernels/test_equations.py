"""Every numbered equation of a derivation is cited where it is computed."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
ROOMS = sorted(path.parent.name for path in KERNELS.glob("*/reference.py"))
STEPS = {"chunked": {1, 2, 7}}  # of one token: (4), (5), (9) and (10) are they for a whole chunk


def derivation(room):
    """The numbers of a room's equations, and its text behind them."""
    text = (KERNELS / room / "__init__.py").read_text()
    docstring = ast.get_docstring(ast.parse(text), clean=False)
    numbers = re.findall(r"\s\((\d{1,2})\)$", docstring, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    return set(map(int, numbers)), text.replace(docstring, "", 1)


def cited(text):
    """The numbers that comments and docstrings name: (3), (4)-(6), (4) to (6)."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for first, last in re.findall(
                r"\((\d{1,2})\)(?:(?:-| to )\((\d{1,2})\))?", token.string
            ):
                found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_each_equation_is_cited_in_its_room(room):
    numbers, rest = derivation(room)
    others = [path.read_text() for path in (KERNELS / room).glob("*.py")]
    texts = [rest, *(text for text in others if not text.endswith(rest))]
    missing = numbers - set().union(*map(cited, texts))
    assert missing == STEPS.get(room, set())


def test_a_citation_is_a_comment_or_a_docstring():
    assert cited('f(1)  # (2), then (4)-(6)\n"""Equations (8) to (9)."""\n') == {2, 4, 5, 6, 8, 9}
