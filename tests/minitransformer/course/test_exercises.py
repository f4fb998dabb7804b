"""Every exercise of every lesson: the solution passes, the blank and each planted mistake fail."""

import runpy
import time

import numpy as np
import pytest

from minitransformer.course import NotYet, check
from minitransformer.course.answers import File
from minitransformer.course.exercise import Case, Exercise, exercises, find, launched
from minitransformer.course.lesson import blanked
from minitransformer.course.mistakes import edited
from minitransformer.errors import UserError
from minitransformer_kernels.cuda import cuda

from .attempts import LESSONS, blank, first_failure, unnamed

FOUND = {
    exercise.name: (lesson, exercise)
    for exercise in exercises()
    for lesson in LESSONS.values()
    if exercise.name in lesson.exercises
}
TASKS = [
    pytest.param(lesson, exercise, id=f"{lesson.name}-{name}")
    for name, (lesson, exercise) in FOUND.items()
]


def is_kernel(lesson, exercise):
    return "@cuda.jit" in lesson.solution(exercise.name).source


def mistakes():
    """Those planted in a kernel are compiled, in all modes: by day one stands for the others."""
    for name, (lesson, exercise) in FOUND.items():
        for number, wrong in enumerate(exercise.wrong):
            marks = [pytest.mark.nightly] * bool(is_kernel(lesson, exercise) and number)
            yield pytest.param(
                lesson, exercise, wrong, marks=marks, id=f"{lesson.name}-{name}-{wrong.name}"
            )


def test_lessons_and_exercises_know_each_other():
    in_lessons = [name for lesson in LESSONS.values() for name in lesson.exercises]
    assert sorted(in_lessons) == sorted(exercise.name for exercise in exercises())
    assert len(set(in_lessons)) == len(in_lessons)


@pytest.mark.parametrize(("lesson", "exercise"), TASKS)
def test_the_solution_passes(lesson, exercise):
    assert first_failure(lesson.text, exercise) is None


@pytest.mark.parametrize(("lesson", "exercise"), TASKS)
def test_the_blank_fails(lesson, exercise):
    case, message = first_failure(blank(lesson, exercise), exercise, unnamed)
    assert case == exercise.drawn(7)[0].name
    assert message


@pytest.mark.parametrize(("lesson", "exercise", "wrong"), list(mistakes()))
def test_the_mistake_is_caught_and_named(lesson, exercise, wrong):
    """By its name, or by what a launch or a count says of it: never by a hint at something else."""
    text = lesson.solution(exercise.name).source
    for right, mistaken in wrong.edits.items():
        assert text.count(right) == 1, f"{right!r} stands {text.count(right)} times"
        text = text.replace(right, mistaken)
    failure = first_failure(edited(lesson, exercise.name, wrong.edits), exercise)
    assert failure is not None, "nobody noticed"
    assert failure[0] == wrong.case, failure
    assert "Hint: " not in failure[1]
    assert ("It looks like" in failure[1]) == (wrong.name in failure[1])


@pytest.mark.parametrize(("lesson", "exercise"), TASKS)
def test_cases_come_from_a_seed_alone(lesson, exercise):
    for first, again in zip(exercise.drawn(3), exercise.drawn(3), strict=True):
        assert first.name == again.name and first.hint == again.hint
        for x, y in zip(first.inputs.values(), again.inputs.values(), strict=True):
            np.testing.assert_array_equal(x, y)
    names = [case.name for case in exercise.drawn(3)]
    assert len(set(names)) == len(names)
    assert {wrong.case for wrong in exercise.wrong} <= set(names)


DOUBLED = Exercise(
    "doubled", "double", 1,
    lambda random: [Case("two", {"x": np.arange(4.0).reshape(2, 2)}, "add")],
    lambda x: 2 * x, ("y",),
)  # fmt: skip


@pytest.fixture(autouse=True)
def found_by_name(monkeypatch):
    """An exercise of this file, or one of a lesson."""
    own = {"doubled": DOUBLED, "shared": SHARED}
    monkeypatch.setattr("minitransformer.course.steps.find", lambda x: own.get(x) or find(x))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: None, "nothing is returned yet: it is your turn"),
        (lambda x: x, r"y\[0, 1\] is 1, should be 2 \(3 of 4 numbers are off\). Hint: add"),
        (lambda x: 2 * x[0], r"y should have the shape \(2, 2\), got \(2,\)"),
        (lambda x: x * np.nan, "y is nan everywhere"),
        (lambda x: np.where(x == 3, np.nan, 2 * x), r"y\[1, 1\] is nan, should be 6"),
        (lambda x: (2 * x).astype(str), "y should hold numbers"),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_differences_are_told(answer, message):
    with pytest.raises(NotYet, match=rf"^double, case 'two' \(x \(2, 2\)\): {message}"):
        check("doubled", answer)


def test_a_missing_result_is_told():
    both = Exercise("both", "double", 1, DOUBLED.cases, lambda x: (x, 2 * x), ("x", "y"))
    for answer, count in (
        (lambda x: 2 * x, "1 result is"),
        (lambda x: (x, x, x), "3 results are"),
    ):
        with pytest.raises(NotYet, match=f"^{count} returned, expected 2: x, y$"):
            both.tried(answer, both.drawn(0)[0])


def test_an_output_has_its_own_hint_and_a_limit_is_told_as_one():
    case = DOUBLED.drawn(0)[0]
    counted = Exercise(
        "counted", "double", 1, lambda random: [case], lambda x: (2 * x, 8), ("y", "the count"),
        hints={"the count": "is it fetched twice?"}, at_most=("the count",),
    )  # fmt: skip
    y = 2 * case.inputs["x"]
    assert counted.problem(case, (y, np.array(9))) == "the count is 9, should be at most 8"
    assert counted.hint(case, (y, np.array(9))) == "is it fetched twice?"
    assert counted.hint(case, (y + 1, np.array(9))) == case.hint == "add"


SHARED = Exercise(
    "shared", "double", 1,
    lambda random: [Case("two", {"x": np.arange(64, dtype=np.float32)}, "add")],
    lambda x: 2 * x, run=lambda answer, x: launched(answer, 2, 32, x, out=x.shape, share=1),
)  # fmt: skip


@cuda.jit
def by_all(x, out):
    i = cuda.grid(1)
    out[i] = 2 * x[i]


@cuda.jit
def by_one(x, out):
    if cuda.grid(1) == 0:
        for i in range(x.size):
            out[i] = 2 * x[i]


def test_a_thread_may_write_its_share():
    check("shared", by_all)
    with pytest.raises(NotYet, match="a thread writes 64 numbers; it owns 1: does one do the"):
        check("shared", by_one)


def test_right_answers_are_told(capsys):
    check("doubled", lambda x: x + x)
    assert capsys.readouterr().out == "doubled: right, in 1 case\n"


def test_answers_cannot_change_the_inputs_of_the_truth():
    def spoil(x):
        x *= 0
        return x

    with pytest.raises(NotYet, match="should be 2"):
        check("doubled", spoil)


def test_an_exercise_that_is_none_is_refused():
    with pytest.raises(UserError, match="there is no exercise 'x'"):
        find("x")


def test_a_blank_is_told_before_it_is_tried(tmp_path):
    name, (lesson, exercise) = next(iter(FOUND.items()))
    path = tmp_path / "blank.py"
    path.write_text(f"{blank(lesson, exercise)}")
    answer = tmp_path / "answer.py"
    ((_, text),) = File(path).needed(exercise.symbol)
    answer.write_text(text)
    names = runpy.run_path(str(answer))
    with pytest.raises(
        NotYet, match=f"^{exercise.symbol}: nothing is written yet: it is your turn$"
    ):
        check(name, names[exercise.symbol])


def test_what_an_answer_calls_may_still_be_blank(tmp_path):
    path = tmp_path / "answer.py"
    earlier = blanked(FOUND["far-sums"][0].solution("far-sums").source)
    path.write_text(f"{earlier}\n\n\ndef double(x):\n    return far_sums(x, 1)[0]\n")
    double = runpy.run_path(str(path))["double"]
    with pytest.raises(NotYet, match=r"^far_sums: nothing is written yet: it is your turn$"):
        check("doubled", double)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((-55, 0), "you drew -55 for `query`: nothing is promised beyond -20 to 1,000,000"),
        (
            (0, np.nan),
            "you drew nan for `value`: nothing is promised beyond -1,000,000 to 1,000,000",
        ),
    ],
)
def test_who_draws_beyond_what_a_kernel_promises_is_told_so(inputs, message):
    lowest, value = (np.full((1, 5, 4), x, np.float32) for x in inputs)
    with pytest.raises(NotYet, match=f"{message}$"):
        check("lies", lambda attend: attend(lowest, lowest, value).any())


def test_who_waits_long_is_told_why(monkeypatch, capsys):
    monkeypatch.setattr("minitransformer.course.steps.PATIENCE", 0.01)
    check("doubled", lambda x: (time.sleep(0.3), 2 * x)[1])
    assert "a loop without an end? Stop it" in capsys.readouterr().out
