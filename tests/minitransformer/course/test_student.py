"""A student's folder: what is handed out, what is kept, and what is found there."""

import contextlib
import io
import sys
import types

import pytest

from minitransformer.course import student
from minitransformer.course.answers import File
from minitransformer.course.exercise import exercises
from minitransformer.course.lesson import HEADER, Lesson, blanked, cells, chosen, folder
from minitransformer.course.worker import defined
from minitransformer.errors import UserError

pytest.importorskip("jupytext", reason='notebooks need jupytext: pip install -e ".[course]"')
import nbformat

from minitransformer.course.publish.reading import outside_code, pointing

from .attempts import LESSONS


@pytest.fixture
def lesson(tmp_path):
    path = tmp_path / "07_lesson.py"
    path.write_text(
        '# %% [markdown] question="Why?" minutes=9\n# # Title\n\n'
        '# %% exercise="double"\ndef double(x):\n    """Twice."""\n'
        "    # BEGIN SOLUTION\n    return 2 * x\n    # END SOLUTION\n\n"
        '# %% check="double"\ncheck("double", double)\n'
    )
    return Lesson(path)


def test_a_notebook_keeps_cells_and_their_metadata(lesson, tmp_path):
    made = student.notebook(lesson.text)
    nbformat.validate(made)
    title, setup, exercise, check = made.cells
    assert title.cell_type == "markdown" and title.source == "# Title"
    assert "google.colab" in setup.source and "hide-cell" in setup.metadata["tags"]
    assert exercise.metadata["exercise"] == "double" and check.source == 'check("double", double)'
    assert [cell["id"] for cell in made.cells] == [f"cell-{n}" for n in range(4)]
    assert made == student.notebook(lesson.text)
    student.write(lesson.text, tmp_path / "new" / "7.ipynb")
    assert File(tmp_path / "new" / "7.ipynb").names() == {"double"}


@pytest.mark.parametrize("on_colab", [False, True])
def test_the_cell_for_colab_installs_there_alone(lesson, monkeypatch, on_colab):
    source = student.notebook(lesson.text).cells[1].source
    installed = []
    if on_colab:
        monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    source = source.replace("%pip install --quiet minitransformer", "pip()")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source, {"pip": lambda: installed.append("minitransformer")})
    assert installed == ["minitransformer"] * on_colab
    assert printed.getvalue().strip().endswith(("cpu", "cuda"))


@pytest.mark.parametrize("scripts", [False, True])
def test_what_a_student_has_is_kept(tmp_path, monkeypatch, lesson, scripts):
    monkeypatch.setattr(student, "lessons", lambda: [lesson])
    ((path, is_new, _),) = student.hand_out(tmp_path / "mine", scripts=scripts)
    assert is_new and path.name == ("07_lesson.py" if scripts else "07_lesson.ipynb")
    file = File(path)
    assert file.is_blank("double") and "return 2 * x" not in file.text
    path.write_text("mine")
    assert student.hand_out(tmp_path / "mine", scripts=scripts) == [(path, False, False)]
    assert path.read_text() == "mine"


@pytest.mark.parametrize("scripts", [False, True])
def test_a_lesson_that_has_changed_since_is_told(tmp_path, monkeypatch, lesson, scripts):
    text = HEADER + lesson.text
    lesson.path.write_text(text)
    monkeypatch.setattr(student, "lessons", lambda: [Lesson(lesson.path)])
    ((path, _, _),) = student.hand_out(tmp_path / "mine", scripts=scripts)
    path.write_text(path.read_text().replace("pass  # your turn", "return x + x"))
    mine = path.read_text()
    for told, edit in (
        (False, ("return 2 * x", "return x + x  # another solution")),
        (True, ("Title", "Another title")),
    ):
        lesson.path.write_text(text.replace(*edit))
        assert student.hand_out(tmp_path / "mine", scripts=scripts) == [(path, False, told)]
        assert path.read_text() == mine


def test_programs_beside_lessons_are_the_students_and_pages_are_renewed(tmp_path):
    student.hand_out(tmp_path, "0", scripts=True)
    program, page = tmp_path / "first_kernel.py", tmp_path / "first_kernel.md"
    given = page.read_text()
    assert program.read_text() == (folder() / program.name).read_text()
    assert "](first_kernel.py)" in given and f"\npython {program.name}\n" in given
    program.write_text("mine")
    page.write_text("mine")
    student.hand_out(tmp_path, "0", scripts=True)
    assert (program.read_text(), page.read_text()) == ("mine", given)


def test_without_jupytext_the_way_out_is_told(tmp_path, monkeypatch, lesson):
    monkeypatch.setattr(student, "lessons", lambda: [lesson])
    monkeypatch.setitem(sys.modules, "jupytext", None)
    with pytest.raises(
        UserError, match=r'pip install "minitransformer\[course\]", or .* --scripts'
    ):
        student.hand_out(tmp_path)
    assert student.hand_out(tmp_path, scripts=True)


def test_files_are_those_of_a_folder_and_its_students(tmp_path):
    for name in (
        "b.py", "a.ipynb", "notes.md", ".hidden.py", "ada/a.py", "ada/deep/a.py", "out.py/x.png",
        "first_kernel.py", "ada/first_kernel.py",
        ".ipynb_checkpoints/a.ipynb", "ada/.ipynb_checkpoints/a.ipynb",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    found = [path.relative_to(tmp_path).as_posix() for path in student.files(tmp_path)]
    assert found == ["a.ipynb", "ada/a.py", "b.py"]
    assert student.files(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", LESSONS)
def test_code_is_handed_out_as_the_lesson_has_it(tmp_path, name):
    expected = [blanked(cell.source) for cell in LESSONS[name].cells if not cell.is_text]
    ((script, *_),) = student.hand_out(tmp_path, name, scripts=True)
    text = script.read_text()
    assert [cell.source for cell in cells(text) if not cell.is_text] == expected
    compile(text, script.name, "exec")
    ((path, *_),) = student.hand_out(tmp_path, name)
    assert File(path).names() == set(LESSONS[name].exercises)
    made = nbformat.read(path, as_version=4)
    nbformat.validate(made)
    setup, *sources = (cell.source for cell in made.cells if cell.cell_type == "code")
    assert sources == expected
    for source in (setup.replace("%pip", "pass  #"), *sources):
        compile(source, path.name, "exec")


@pytest.mark.parametrize(
    ("link", "made"),
    [
        ("[All\n# steps](../kernels/cpu/README.md#a)", "All\n# steps (kernels/cpu/README.md)"),
        ("[Six](pages/00_six.md)", "Six (tutorials/pages/00_six.md)"),
        ("[`kernels/a.py`](../kernels/a.py)", "`kernels/a.py`"),
        ("[word](glossary.md#word)", "[word](glossary.md#word)"),
        ("x[0], [a](https://b.org/c.md)", "x[0], [a](https://b.org/c.md)"),
    ],
)
def test_a_link_to_what_a_student_has_not_says_where_it_stands(tmp_path, monkeypatch, link, made):
    path = tmp_path / "07_lesson.py"
    path.write_text(f'# %% [markdown] question="Why?" minutes=9\n# # Title\n#\n# {link}\n')
    monkeypatch.setattr(student, "lessons", lambda: [Lesson(path)])
    ((handed, *_),) = student.hand_out(tmp_path / "mine", scripts=True)
    assert handed.read_text().endswith(f"# {made}\n")


def test_code_on_the_pages_beside_lessons_is_as_it_was(tmp_path):
    student.hand_out(tmp_path, "0", scripts=True)
    for path in tmp_path.glob("*.md"):
        had, has = (
            outside_code(file.read_text(), lambda prose: "")
            for file in (folder() / path.name, path)
        )
        assert has == had


@pytest.mark.parametrize("name", LESSONS)
def test_every_solution_is_found_in_a_notebook(tmp_path, name):
    student.write(LESSONS[name].text, tmp_path / "solved.ipynb")
    file = File(tmp_path / "solved.ipynb")
    for exercise in exercises():
        if exercise.name in LESSONS[name].exercises:
            needed = file.needed(exercise.symbol)
            assert all(place.startswith("solved.ipynb, ") for place, _ in needed)
            found = defined(needed, exercise.symbol)
            assert getattr(found, "__name__", exercise.symbol) == exercise.symbol


def test_no_link_leads_out_of_a_students_folder(tmp_path):
    student.hand_out(tmp_path, scripts=True)
    for path in (*tmp_path.glob("*.md"), *tmp_path.glob("[0-9]*.py")):
        text, targets = path.read_text(), []
        is_page = path.suffix == ".md"
        for prose in [text] if is_page else [cell.source for cell in cells(text) if cell.is_text]:
            pointing(prose, targets.append)
        for target in targets:
            assert (tmp_path / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("which", ["0", "00", "00_six_tokens", "six_tokens", "Six tokens"])
def test_a_lesson_has_several_names(which):
    assert chosen(which).number == 0
