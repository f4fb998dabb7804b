"""What of a student's file is needed to try an answer, whatever else is broken."""

import inspect
import json
import math

import pytest

from minitransformer.course.answers import LARGEST, File
from minitransformer.course.exercise import NotYet, find
from minitransformer.course.lesson import BLANK, blanked, chosen
from minitransformer.course.worker import defined
from minitransformer.errors import UserError


def script(folder, text):
    path = folder / "mine.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return File(path)


def notebook(folder, *sources):
    path = folder / "mine.ipynb"
    cells = [{"cell_type": "code", "source": source} for source in sources]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, *cells]}))
    return File(path)


def lines(file, symbol="answer"):
    """What is kept, without the empty lines."""
    return [x for _, text in file.needed(symbol) for x in text.split("\n") if x]


NEEDED = {
    "no more than it needs": (
        "import math\nimport os\nprint('no')\nSCALE = 2\nTHINGS = SCALE\n"
        "def answer(x):\n    return math.sqrt(x) * SCALE",
        {1, 4, 6, 7},
    ),
    "names of a function are its own": (
        "S = print('no')\nk = print('no')\n"
        "def answer(x):\n    S = x\n    return [S for k in x], lambda k: k",
        {3, 4, 5},
    ),
    "names of a comprehension are its own": (
        "k = 3\nprint([k for k in range(9)])\ndef answer():\n    return k",
        {1, 3, 4},
    ),
    "the last value before it": (
        "k = 1\nk = 2\ndef answer():\n    return k\nk = print('no')",
        {2, 3, 4},
    ),
    "a helper below": (
        "def answer():\n    return helper()\ndef helper():\n    return 1",
        {1, 2, 3, 4},
    ),
    "the last answer": ("def answer():\n    return 1\ndef answer():\n    return 2", {3, 4}),
    "a helper that calls itself": (
        "def helper(k):\n    return k and helper(k - 1)\ndef answer():\n    return helper(3)\n"
        "def helper():\n    print('no')",
        {1, 2, 3, 4},
    ),
    "what is added to": ("k = 1\nk += 1\nk += 1\ndef answer():\n    return k", {1, 2, 3, 4, 5}),
    "what is filled": (
        "t = {}\nfor i in range(3):\n    t[i] = i\nt['x'] = 1\nu = {}\nu['x'] = print('no')\n"
        "def answer():\n    return t",
        {1, 2, 3, 4, 7, 8},
    ),
    "what is called upon": (
        "import math\nt = []\nt.append(1)\nmath.sqrt(print('no'))\nprint('no')\n"
        "def answer():\n    return t, math.pi\nanswer.cache = print('no')\nanswer()",
        {1, 2, 3, 6, 7, 8},
    ),
    "what shares a line": (
        "a = 1; b = 2\nc = b; answer = lambda: c\nprint('no')",
        {1, 2},
    ),
    "decorators and defaults": (
        "import functools\nk = 1\n@functools.cache\ndef answer(x=k):\n    return x",
        {1, 2, 3, 4, 5},
    ),
    "classes": (
        "import abc\nclass B(abc.ABC):\n    pass\nclass answer(B):\n    k = 1\nk = print('no')",
        {1, 2, 3, 4, 5},
    ),
    "a branch": (
        "try:\n    import cupy\nexcept ImportError:\n    cupy = None\nif cupy:\n    size = 1\n"
        "else:\n    size = 2\ndef answer():\n    return size",
        set(range(1, 11)),
    ),
    "stars": (
        "from math import *\nimport os\ndef answer():\n    return sqrt(4)",
        {1, 3, 4},
    ),
    "a name in many lines": (
        'text = """\nprint(1)\n"""\ndef answer():\n    return (\n        text\n    )',
        {1, 2, 3, 4, 5, 6, 7},
    ),
    "annotations are not run": (
        "from typing import Any\ndef answer(x: Nothing) -> Any:\n    return x",
        {2, 3},
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_is_kept_on_its_line(tmp_path, name):
    text, kept = NEEDED[name]
    ((place, found),) = script(tmp_path, text).needed("answer")
    assert place == "mine.py"
    assert [x if n in kept else "" for n, x in enumerate(text.split("\n"), 1)] == found.split("\n")
    defined([(place, found)], "answer")


def test_cells_are_places(tmp_path):
    file = notebook(
        tmp_path, "import math\nk = 1\n", "print('no')", ["def answer():\n", "    return k"]
    )
    assert file.needed("answer") == [
        ("mine.ipynb, at the top", "\nk = 1\n"),
        ("mine.ipynb, at the top, cell 3", "def answer():\n    return k"),
    ]
    assert defined(file.needed("answer"), "answer")() == 1
    marked = script(
        tmp_path, "k = 1\n# %%\nx = (\n# %% [markdown]\n# text\n# %%\ndef answer():\n    return k"
    )
    ((place, text),) = marked.needed("answer")
    assert (place, text) == ("mine.py", "k = 1\n\n\n\n\n\ndef answer():\n    return k")


@pytest.mark.parametrize(
    "magic",
    [
        "%matplotlib inline",
        "!pip install 'x",
        "np?",
        "?np",
        "files = !ls",
        "if True:\n    %time x = 1",
        "%%time",
    ],
)
def test_what_only_jupyter_understands_is_left_out(tmp_path, magic):
    text = f"{magic}\nx = (7\n     % 4)\ndef answer():\n    return x"
    assert defined(notebook(tmp_path, text).needed("answer"), "answer")() == 3


def test_other_ends_of_lines(tmp_path):
    for text in (
        "k = 1\r\ndef answer():\r\n    return k\r\n",
        "\ufeffk = 1\ndef answer():\n    return k\n",
    ):
        assert lines(script(tmp_path, text)) == ["k = 1", "def answer():", "    return k"]
    assert lines(notebook(tmp_path, "k = 1\r\ndef answer():\r    return k"))[1:] == [
        "def answer():", "    return k",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("def answer(:\n    pass", "mine.ipynb, at the top, cell 2:1: SyntaxError: invalid syntax"),
        ("@cuda.jit\ndef answer():\n  x = 1\n y = 2", "cell 2:4: IndentationError: unindent"),
        ("def answer():\n    break", "cell 2:2: SyntaxError: 'break' outside loop"),
        ("answer = 1 +", "cell 2:1: SyntaxError: invalid syntax"),
        ("def answer():\n    return '\x00'", "cell 2:1: SyntaxError: source code"),
        ("answer = 1" + " + 1" * 50_000, "SyntaxError: "),
        ("answer = " + "(" * 500, "SyntaxError: too many nested parentheses"),
    ],
)
def test_an_answer_that_does_not_parse_is_told(tmp_path, broken, message):
    file = notebook(tmp_path, "def other():\n    return 1", broken)
    assert file.defines("answer")
    with pytest.raises(NotYet) as caught:
        file.needed("answer")
    assert message in str(caught.value)
    assert lines(file, "other") == ["def other():", "    return 1"]


def test_cells_have_the_names_that_a_reader_sees(tmp_path):
    """Of an exercise, or of the heading above: no number that Jupyter does not show."""
    cells = [
        ("markdown", "# A title\ntext\n\n## 1. Who: am `I`?\n", {}), ("code", "a = 1", {}),
        ("markdown", "text\n", {}), ("code", "b = a", {}),
        ("markdown", "### Exercise 1 (2 points): scale", {"exercise": "scale"}),
        ("code", "def answer():\n    return b", {"exercise": "scale"}),
    ]  # fmt: skip
    path = tmp_path / "mine.ipynb"
    keys = "cell_type", "source", "metadata"
    path.write_text(json.dumps({"cells": [dict(zip(keys, cell, strict=True)) for cell in cells]}))
    head = "mine.ipynb, below '1. Who am I'"
    assert [place for place, _ in File(path).needed("answer")] == [
        head, f"{head}, cell 2", "mine.ipynb, exercise scale",
    ]  # fmt: skip


def test_a_helper_that_does_not_parse_is_told(tmp_path):
    file = notebook(tmp_path, "import numpy as np\nx = = 1", "def answer():\n    return np.ones(3)")
    with pytest.raises(NotYet, match="at the top:2: SyntaxError"):
        file.needed("answer")


def test_an_answer_that_is_not_there_is_told(tmp_path):
    file = script(
        tmp_path, "def answers():\n    pass\ndef outer():\n    def answer():\n        pass"
    )
    assert not file.defines("answer")
    with pytest.raises(NotYet, match="there is no answer here: was it renamed"):
        file.needed("answer")
    never = script(tmp_path, "import os\nif not os:\n    answer = 1").needed("answer")
    with pytest.raises(NotYet, match=r"there is no answer$"):
        defined(never, "answer")


@pytest.mark.parametrize(
    ("text", "is_blank"),
    [
        ("def answer():\n    pass  # your turn", True),
        ("def answer():\n    '''Text.'''\n    ...", True),
        ("def answer():\n    return", False),
        ("answer = None", False),
        ("def answer():\n    pass\ndef answer():\n    return 1", False),
        ("", False),
    ],
)
def test_blanks_are_known(tmp_path, text, is_blank):
    assert script(tmp_path, text).is_blank("answer") == is_blank


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ipynb", b"{", "this is not a notebook"),
        ("a.ipynb", b"[]", "this is not a notebook"),
        ("a.ipynb", b'{"cells": 3}', "this is not a notebook"),
        ("a.ipynb", b'{"cells": [{"cell_type": "code"}]}', "this is not a notebook"),
        ("a.ipynb", b'{"cells": [{"cell_type": "code", "source": [1]}]}', "this is not a notebook"),
        ("a.ipynb", b"[" * 10**5, "this is not a notebook"),
        ("a.py", b"\xff\xfe\x00", "cannot be read: this is not UTF-8 text"),
        ("a.py", None, "there is no such file"),
        ("a.py", LARGEST + 1, "too large for a lesson, more than 64 MiB"),
    ],
)
def test_what_is_no_lesson_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        with path.open("wb") as file:
            file.truncate(content)
    with pytest.raises(UserError) as caught:
        File(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        File(tmp_path)


def test_a_file_that_others_keep_is_told(tmp_path, monkeypatch):
    def refused(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.py"
    path.write_text("")
    monkeypatch.setattr("pathlib.Path.read_text", refused)
    with pytest.raises(UserError, match=r"a\.py: cannot be read: Permission denied"):
        File(path)


def test_an_answer_keeps_its_text_and_its_place(tmp_path):
    """So kernels find their source, and errors their line."""
    file = notebook(tmp_path, "import math", "\n\ndef answer(x):\n    return math.sqrt(x)\n")
    answer = defined(file.needed("answer"), "answer")
    assert inspect.getsource(answer) == "def answer(x):\n    return math.sqrt(x)\n"
    assert answer.__code__.co_filename == "mine.ipynb, at the top, cell 2"
    assert answer(4) == math.sqrt(4)


def test_a_name_that_nobody_binds_is_left_to_python(tmp_path):
    path = tmp_path / "answer.py"
    path.write_text("def answer(x):\n    return x * factor + math.pi\n")
    ((place, text),) = File(path).needed("answer")
    assert (place, text.strip()) == ("answer.py", path.read_text().strip())


def test_an_answer_that_needs_a_blank_one_is_told_which(tmp_path):
    lesson = chosen("15")
    earlier = lesson.solution("worst").source
    text = lesson.text.replace(earlier, blanked(earlier))
    with pytest.raises(NotYet, match=r"^worst: nothing is written yet: it is your turn$"):
        script(tmp_path, text).needed("lies")
    helper = "def nothing():\n    pass\n\n\ndef answer():\n    return nothing()\n"
    assert script(tmp_path, helper).needed("answer")


def test_an_answer_as_it_was_handed_out_is_blank(tmp_path):
    """Where code stands around the blank, too; a blank that was left beside an answer is none."""
    lesson = chosen("0")
    path = tmp_path / lesson.path.name
    path.write_text(blanked(lesson.text))
    assert all(File(path).is_blank(find(name).symbol) for name in lesson.exercises)
    path.write_text(lesson.text.replace("# BEGIN SOLUTION", BLANK))
    assert not any(File(path).is_blank(find(name).symbol) for name in lesson.exercises)
