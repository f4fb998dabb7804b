"""The lessons run as scripts, their exercises can be failed, and they make valid notebooks."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from numba import float32

from minitransformer_kernels.cuda import cuda

TUTORIALS = Path(__file__).parent.parent / "tutorials"
LESSON = TUTORIALS / "transformers_are_rnns.py"
EXERCISES = (1, 2, 3)


@pytest.fixture(scope="module", autouse=True)
def _as_a_script():
    """Imports are found as they are when a file in that folder is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TUTORIALS)
        patch.setenv("LESSON_FAST", "1")
        yield
    for helper in ("build", "classroom", "counting", "drawings"):
        sys.modules.pop(helper, None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The lesson's names, what it printed, and the folder of its figures."""
    folder = tmp_path_factory.mktemp("figures")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("LESSON_OUT", str(folder))
        names = runpy.run_path(str(LESSON), run_name="__main__")
    return names, printed.getvalue(), folder


def test_the_lesson_runs_and_draws(run):
    _, printed, folder = run
    figures = re.findall(r"^\[figure: (.+)\]$", printed, re.MULTILINE)
    assert len(figures) == 6
    assert sorted(folder.iterdir()) == sorted(map(Path, figures))
    for figure in figures:
        assert 0.01 < imread(figure)[..., :3].std() < 0.5


def test_predictions_come_true(run):
    """The counts are those of the formulas, whatever the machine."""
    _, printed, _ = run
    (off,) = re.findall(r"^global bytes .* (\S+)$", printed, re.MULTILINE)
    assert float(off) == 1
    assert re.search(r"kernel: .*, 1 times the prediction", printed)
    assert "gradcheck: True" in printed
    assert "cross at L = 3149. Leave one out, and it is 2220 to 3239." in printed


def attempt(run, folder, number, answer):
    """Puts an exercise's cell in place, made by `answer` from the lesson's, and checks it."""
    check = run[0][f"check_exercise_{number}"]
    cells = [c for c in LESSON.read_text().split("\n# %%") if "# BEGIN SOLUTION" in c]
    file = folder / f"exercise_{number}.py"  # kernels are compiled from their file
    file.write_text("# %%" + answer(cells[number - 1]))
    kept = dict(check.__globals__)
    try:
        exec(compile(file.read_text(), file, "exec"), check.__globals__)
        check()
    finally:
        check.__globals__.update(kept)


@pytest.mark.parametrize("number", EXERCISES)
def test_solutions_pass(run, tmp_path, number):
    attempt(run, tmp_path, number, answer=str)


@pytest.mark.parametrize("number", EXERCISES)
def test_blanks_fail(run, tmp_path, number):
    import build

    with pytest.raises(AssertionError, match=f"^Exercise {number}, .*(your turn|off by 1,)"):
        attempt(run, tmp_path, number, answer=build.blanked)


@pytest.mark.parametrize(
    ("number", "right", "wrong"),
    [
        (1, "value[:, :, i], state)", "value[:, :, i], None)"),
        (1, "range(split, ", "range(split - 1, "),
        (2, "R = gamma * R +", "R = R +"),
        (2, "S = gamma * S + np.outer(k[i], v[i])\n        dq", "dq"),
        (2, "dk[i] = R @ v[i]", "dk[i] = gamma * R @ v[i]"),
        (3, "S[e] = gamma * S[e]", "S[e] = S[e]"),
        (3, "h = cuda.blockIdx.y", "h = 0"),
    ],
)
def test_wrong_answers_fail(run, tmp_path, number, right, wrong):
    def answer(cell):
        head, marker, solution = cell.partition("# BEGIN SOLUTION")
        assert solution.count(right) == 1
        return head + marker + solution.replace(right, wrong)

    with pytest.raises(AssertionError, match=f"^Exercise {number}, "):
        attempt(run, tmp_path, number, answer)


def test_exercises_run_in_a_folder_of_their_own(tmp_path):
    """As a learner does it: build, run, and stop at the first blank."""
    pytest.importorskip("jupytext", reason="notebooks need jupytext: pip install -e .[docs]")
    command = [sys.executable, TUTORIALS / "build.py", LESSON, "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    ran = subprocess.run(
        [sys.executable, tmp_path / f"{LESSON.stem}_exercises.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "LESSON_FAST": "1"},
    )
    assert "AssertionError: Exercise 1, split at 1: nothing yet; it is your turn" in ran.stderr
    assert len(list((tmp_path / "out" / f"{LESSON.stem}_exercises").glob("*.png"))) == 6


def test_notebooks_are_valid():
    pytest.importorskip("jupytext", reason="notebooks need jupytext: pip install -e .[docs]")
    nbformat = pytest.importorskip("nbformat", reason="jupytext brings nbformat")
    import build

    text = LESSON.read_text()
    for version in (text, build.blanked(text)):
        notebook = nbformat.reads(build.notebook(version), as_version=4)
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3"
        assert len(notebook.cells) == len(re.findall(r"^# %%", text, re.MULTILINE))
        for cell in notebook.cells:
            assert not cell.source.startswith("#") or cell.cell_type == "markdown"
            if cell.cell_type == "code":
                compile(cell.source, "cell", "exec")


def test_blanks_take_the_place_of_solutions():
    import build

    assert build.lessons() == [LESSON]
    blank = build.blanked(LESSON.read_text())
    assert blank.count(build.BLANK) == len(EXERCISES)
    assert "SOLUTION" not in blank
    for text in ("# BEGIN SOLUTION\n", "# END SOLUTION\n# BEGIN SOLUTION\n", "no exercise"):
        with pytest.raises(ValueError, match="blanked: expected pairs of '# BEGIN SOLUTION'"):
            build.blanked(text)


@cuda.jit(device=True)
def doubled(x):
    return x + x


def test_counts_are_exact():
    import classroom
    import counting

    real = float32

    @cuda.jit
    def kernel(x, factor, out):
        staged = cuda.shared.array(4, real)
        i = cuda.threadIdx.x
        staged[i] = x[cuda.blockIdx.x, i]
        cuda.syncthreads()
        out[cuda.blockIdx.x, i] = factor * doubled(staged[i]) + staged[i]

    x, out = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    with classroom.watch() as seen:
        kernel[3, 4](x, np.float32(5), out)
    assert (out == 11).all()
    (launch,) = seen
    assert (launch.blocks, launch.threads) == ((3, 1, 1), (4, 1, 1))
    assert launch.constants["real"] is float32
    assert counting.count(launch) == {
        "global load": 48, "global store": 48, "shared load": 96, "shared store": 48, "flop": 36,
    }  # fmt: skip


def test_checks_say_what_is_wrong():
    import classroom

    with pytest.raises(AssertionError, match="dk: nothing yet; it is your turn"):
        classroom.check("dk", None, np.ones(3), 1e-6)
    with pytest.raises(AssertionError, match=r"dk: expected the shape \(3,\), got \(2,\)"):
        classroom.check("dk", np.ones(2), np.ones(3), 1e-6)
    with pytest.raises(AssertionError, match=r"dk: off by 0\.1, allowed 1e-06"):
        classroom.check("dk", np.full(3, 1.1), np.ones(3), 1e-6)
    with pytest.raises(AssertionError, match="dk: off by nan"):
        classroom.check("dk", np.full(3, np.nan), np.ones(3), 1e-6)
    with pytest.raises(LookupError, match="no line matches 'c'"):
        classroom.excerpt("a\nb", "c", 1, 1)
    assert classroom.excerpt("a\nb\nc\nd", "c", 1, 0) == "b\nc"


def test_measures():
    import classroom

    assert classroom.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert classroom.peak_bytes(np.zeros, 10**6) == pytest.approx(8e6, rel=0.01)
    quantities = [classroom.quantity(x, "B") for x in (1.5e9, 2e4, 7.0, 0.05, 2e-5)]
    assert quantities == ["1.5 GB", "20 kB", "7 B", "50 mB", "20 µB"]
