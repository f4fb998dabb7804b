"""Every lesson keeps its budget, runs as a script, and says what the course needs to know of it."""

import io
import itertools
import os
import re
import subprocess
import sys
import tokenize

import pytest
from matplotlib.image import imread

from minitransformer.course.lesson import BLANK, HEADER, Cell, blanked, cells, chosen

from .attempts import LESSONS, every

WORDS, CODE_LINES, CELL_LINES, COLUMNS, FIGURES, EXERCISES = 1800, 200, 25, 79, 4, 3


def words(text):
    """How many words a reader reads: formulas, hints, links' targets and markup are none."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"<details>.*?</details>|\$\$.*?\$\$|\$[^$]*\$", " ", text, flags=re.DOTALL)
    return len(re.findall(r"\w[\w'-]*", text))


def code_lines(cell):
    return [line for line in cell.source.splitlines() if line.strip()]


def prose(lesson):
    return [cell for cell in lesson.cells if cell.is_text]


def shown(lesson):
    return [
        cell
        for cell in lesson.cells
        if not (cell.is_text or "hide-input" in cell.metadata.get("tags", ()))
    ]


@every
def test_it_keeps_the_budget(lesson):
    assert sum(words(cell.source) for cell in prose(lesson)) <= WORDS
    assert sum(len(code_lines(cell)) for cell in shown(lesson)) <= CODE_LINES
    for cell in shown(lesson):
        assert len(code_lines(cell)) <= CELL_LINES, f"line {cell.line}"
        assert all(len(line) <= COLUMNS for line in cell.source.splitlines()), f"line {cell.line}"
    figures = sum(cell.source.count("alt=") for cell in lesson.cells if not cell.is_text)
    assert 1 <= figures <= FIGURES


@every
def test_it_gives_something_to_do_soon(lesson):
    assert len(lesson.exercises) >= EXERCISES
    read = [
        words(cell.source) if cell.is_text else 4 * len(code_lines(cell)) for cell in lesson.cells
    ]
    first = next(at for at, cell in enumerate(lesson.cells) if cell.metadata.get("exercise"))
    assert sum(read[:first]) <= 0.4 * sum(read)
    assert "\nguess(" in "\n".join("\n" + cell.source for cell in lesson.cells)


@every
def test_it_has_the_parts_of_a_lesson(lesson):
    assert lesson.text.startswith(HEADER + "# %% [markdown] question=")
    assert lesson.cells[0].source.startswith("# ")
    assert all(number < lesson.number for number in lesson.after)
    assert lesson.question.endswith("?") and 20 <= lesson.minutes <= 120
    for name in lesson.exercises:
        texts = [c for c in prose(lesson) if c.metadata.get("exercise") == name]
        assert len(texts) == 1, f"{name}: no text"
        assert texts[0].source.startswith("### Exercise")
        assert re.findall(r"<summary>Hint (\d) of 3</summary>", texts[0].source) == ["1", "2", "3"]
        solution = lesson.solution(name).source
        assert solution.count("# BEGIN SOLUTION") == solution.count("# END SOLUTION") == 1
        checks = [c for c in lesson.cells if c.metadata.get("check") == name]
        assert len(checks) == 1 and f'check("{name}", ' in checks[0].source
    guessed = re.findall(r'^guess\("([^"]+)", ', lesson.text, re.MULTILINE)
    revealed = re.findall(r'^ *reveal\("([^"]+)", ', lesson.text, re.MULTILINE)
    assert set(guessed) == set(revealed)


@every
def test_equations_stand_in_the_order_of_their_numbers(lesson):
    """A section with the numbers of another derivation begins at (1) again."""
    numbers = [int(number) for number in re.findall(r"\\tag\{(\d+)\}", lesson.text)]
    letters = re.findall(r"\\tag\{([A-Z])\}", lesson.text)
    assert letters == sorted(set(letters))
    assert all(here in (before + 1, 1) for before, here in itertools.pairwise([0, *numbers]))


@every
def test_a_student_gets_no_solution_and_no_guess(lesson):
    blank = blanked(lesson.text)
    assert blank.count(BLANK) == len(lesson.exercises)
    assert "SOLUTION" not in blank
    assert len(re.findall(r'^guess\("[^"]+", \.\.\.\)$', blank, re.MULTILINE)) == blank.count(
        'guess("'
    )


@every
def test_it_runs_as_a_script_anywhere(lesson, tmp_path):
    """At small size, from a folder of its own; its figures are pictures of something."""
    ran = subprocess.run(
        [sys.executable, lesson.path], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "LESSON_FAST": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    figures = re.findall(r"^\[figure: (.+)\]$", ran.stdout, re.MULTILINE)
    assert len(figures) == len(list(tmp_path.rglob("*.png"))) >= 1
    for figure in figures:
        assert 0.01 < imread(tmp_path / figure)[..., :3].std() < 0.5
    assert "no guess" not in ran.stdout


@every
def test_comments_are_sentences_of_their_own(lesson):
    """No line of code is commented out."""
    for cell in shown(lesson):
        for token in tokenize.generate_tokens(io.StringIO(cell.source).readline):
            if token.type == tokenize.COMMENT:
                assert not re.match(
                    r"# (import|from|def|for|if|return|\w+ = )\b.*[:)]$", token.string
                )


def test_cells_are_read_with_their_metadata():
    text = '# ---\n# %% [markdown] question="Why?" minutes=5\n# # T\n#\n# x\n\n'
    text += '# %% tags=["a"]\ny = 1\n'
    first, second = cells(text)
    assert first == Cell(True, {"question": "Why?", "minutes": 5}, "# T\n\nx", 3)
    assert second == Cell(False, {"tags": ["a"]}, "y = 1", 8)


def test_markers_come_in_pairs():
    for text in ("# BEGIN SOLUTION\n", "# END SOLUTION\n# BEGIN SOLUTION\n"):
        with pytest.raises(ValueError, match="blanked: expected pairs of '# BEGIN SOLUTION'"):
            blanked(text)


def test_lessons_are_found_by_number_and_name():
    for lesson in LESSONS.values():
        assert chosen(str(lesson.number)).path == chosen(lesson.name).path == lesson.path
