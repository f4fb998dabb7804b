"""`minitransformer course`: every screen and every error, as its reader sees it."""

import io
import json
import re
import sys

import pytest

from minitransformer.commands import main
from minitransformer.course import student
from minitransformer.course.judge import Verdict
from minitransformer.course.lesson import lessons

from ..course.attempts import FADING_BACKWARD

BLANK = "def fading_backward(g, q, k, v, gamma):\n    pass  # your turn\n"
BLANK_KERNEL = "def fading_kernel(query, key, value, gamma, out):\n    pass  # your turn\n"


@pytest.fixture
def course(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main(["course", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_a_file_is_judged_line_by_line(course, tmp_path):
    (tmp_path / "renamed.py").write_text(FADING_BACKWARD + BLANK_KERNEL)
    code, out, _ = course("check", "renamed.py", "--seed", 3)
    assert code == 1
    lines = re.sub(r"\[\d+\.\d s\]", "[. s]", out).splitlines()
    assert lines == [
        "passed  fading-backward: 5 of 5 points, 4 cases  [. s]",
        "failed  fading-kernel: 0 of 3 points  [. s]",
        "        nothing is written yet: it is your turn",
        "5 of 8 points; the same cases again: --seed 3",
    ]


def test_a_program_reads_json(course, tmp_path):
    (tmp_path / "mine.py").write_text(BLANK)
    code, out, _ = course("check", "mine.py", "--json", "--seed", 3)
    found = json.loads(out)
    assert code == 1
    (exercise,) = found.pop("exercises")
    assert found == {"file": "mine.py", "seed": 3, "problem": None, "points": 0, "possible": 5}
    assert exercise.pop("seconds") < 1
    assert exercise == {
        "lesson": 7, "exercise": "fading-backward", "passed": False, "points": 0, "possible": 5,
        "message": "nothing is written yet: it is your turn", "case": None,
    }  # fmt: skip


def test_a_folder_gives_a_table(course, tmp_path):
    folder = tmp_path / "all"
    for name, text in {
        "ada/07.py": FADING_BACKWARD + BLANK_KERNEL,
        "bob.py": BLANK,
        "eve.ipynb": "{",
        "no\x1btes.py": "x = 1",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    code, out, _ = course("check", folder, "--seed", 3)
    assert code == 0
    assert out.splitlines() == [
        "file       fading-backward  fading-kernel  points",
        "ada/07.py           5 of 5         0 of 3  5 of 8",
        "bob.py              0 of 5              -  0 of 5",
        "eve.ipynb  this is not a notebook",
        "no?tes.py  there is no exercise of the course in it",
        "the same cases again: --seed 3",
    ]
    code, out, _ = course("check", folder, "--json")
    found = json.loads(out)
    assert code == 0
    assert [report["file"] for report in found[:3]] == ["ada/07.py", "bob.py", "eve.ipynb"]
    assert found[3]["file"] == "no\x1btes.py"
    assert [report["points"] for report in found] == [5, 0, 0, 0]
    assert len({report["seed"] for report in found}) == 1
    assert found[2]["problem"] == "this is not a notebook"


def test_a_table_of_many_exercises_has_a_column_for_each_lesson(course, tmp_path, monkeypatch):
    def judge(path, seed):
        for lesson in (0, 1, 10) if path.stem == "all" else (1,):
            for number in range(7):
                passed = number < 4
                yield Verdict(lesson, f"e{number}", passed, 2 * passed, 2, "", None, 0.0)

    monkeypatch.setattr("minitransformer.course.judge.judge", judge)
    for name in ("all.py", "one.py"):
        (tmp_path / name).write_text("")
    _, out, _ = course("check", ".", "--seed", 3)
    assert out.splitlines() == [
        "file          0        1       10    points",
        "all.py  8 of 14  8 of 14  8 of 14  24 of 42",
        "one.py        -  8 of 14        -   8 of 14",
        "the same cases again: --seed 3",
    ]


def test_who_ends_a_folder_keeps_what_has_been_judged(course, tmp_path, monkeypatch):
    def judge(path, seed):
        if path.stem == "b":
            raise KeyboardInterrupt
        yield Verdict(1, "scale", True, 2, 2, "", None, 0.0)

    monkeypatch.setattr("minitransformer.course.judge.judge", judge)
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("")
    code, out, complaint = course("check", ".", "--seed", 3)
    assert code == 130
    assert "interrupted" in complaint
    assert out.splitlines() == [
        "file   scale  points",
        "a.py  2 of 2  2 of 2",
        "the same cases again: --seed 3",
    ]


def test_what_cannot_be_judged_is_one_line(course, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.py").write_text("x = 1")
    (tmp_path / "x.ipynb").write_text("x = 1")
    for path, message in {
        "nothing.py": "there is no such file",
        "x.py": "there is no exercise of the course in it",
        "x.ipynb": "this is not a notebook",
        "empty": "there are no notebooks and no scripts in it",
    }.items():
        for json_ in ((), ("--json",)):
            code, out, errors = course("check", path, *json_)
            assert (code, out) == (1, "")
            assert errors == f"minitransformer course check: error: {path}: {message}\n"


def test_progress_names_the_next_exercise(course, tmp_path, monkeypatch):
    folder = tmp_path / "minitransformer-course"
    folder.mkdir()
    (folder / "mine.py").write_text(FADING_BACKWARD + BLANK_KERNEL)
    (folder / "notes.py").write_text("x = 1")
    (folder / "torn.ipynb").write_text("{")
    wanted = [
        "mine.py  [#.]  5 of 8 points",
        "        next: fading-kernel: nothing is written yet: it is your turn",
        "torn.ipynb  this is not a notebook",
    ]
    assert course("progress") == (0, "\n".join(wanted) + "\n", "")
    monkeypatch.chdir(folder)  # who is there already means it, too
    assert course("progress")[1].splitlines() == wanted
    code, _, errors = course("progress", "--folder", "elsewhere")
    assert code == 1
    assert errors.startswith(
        "minitransformer course progress: error: elsewhere: there are no lesso"
    )


def test_start_hands_out_and_says_what_comes_next(course, monkeypatch, tmp_path):
    pytest.importorskip("jupytext", reason='notebooks need jupytext: pip install -e ".[course]"')
    lesson = lessons()[0]
    path = f"minitransformer-course/{lesson.name}.ipynb"
    monkeypatch.setattr(student, "can_open", lambda: False)
    code, out, _ = course("start", lesson.number)
    assert code == 0
    head = [path, "", "Do the exercises, then see what is right:"]
    assert out.splitlines()[:4] == [*head, f"  minitransformer course check {path}"]
    assert out.endswith('  pip install "minitransformer[course]"\n')
    before = (tmp_path / path).read_bytes()

    opened = []
    monkeypatch.setattr(student, "can_open", lambda: True)
    monkeypatch.setattr(student, "open_notebooks", lambda first: opened.append(str(first)) or 0)
    code, out, _ = course("start", lesson.name)
    assert (code, opened) == (0, [path])
    assert out.startswith(f"{path}: yours is kept\n")
    assert (tmp_path / path).read_bytes() == before
    (tmp_path / path).write_text(re.sub('"handed_out": ".', '"handed_out": "0', before.decode()))
    _, out, _ = course("start", lesson.name, "--no-open")
    assert out.startswith(f"{path}: yours is kept; the lesson has changed since\n\nTo see a lesson")
    assert course("start", "--no-open", "--scripts")[0] == 0
    assert len(opened) == 1
    scripts = sorted(path.stem for path in (tmp_path / "minitransformer-course").glob("[0-9]*.py"))
    assert scripts == [lesson.name for lesson in lessons()]


def test_a_terminal_of_few_letters(course, monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert course("start", 1, "--scripts", "--folder", "nö tes")[0] == 0
    assert screen.buffer.getvalue().endswith(
        b"  minitransformer course check 'n\\xf6 tes/01_first_kernel.py'\n"
    )


def test_a_lesson_that_is_none_is_one_line(course):
    code, _, errors = course("start", "99")
    assert code == 1
    error = "minitransformer course start: error: there is no lesson '99'; there are 00_six_tokens,"
    assert errors.startswith(error)
    assert errors.count("\n") == 1


def test_the_list_has_every_lesson_and_its_question(course):
    code, out, _ = course("list")
    assert code == 0
    for lesson in lessons():
        assert f"{lesson.number:2}  {lesson.title}  ({lesson.minutes} min, " in out
        assert f"      {lesson.question}\n" in out
