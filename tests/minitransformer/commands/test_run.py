"""`minitransformer run`: a script ends as it does under Python."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FAILS = """
import helper


def fail():
    helper.open_it()


fail()
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minitransformer", "run", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_an_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "fails.py").write_text(FAILS)
    (tmp_path / "inner" / "helper.py").write_text("def open_it():\n    open('nowhere')\n")
    ran = run(tmp_path, "inner/fails.py")
    plain = subprocess.run(
        [sys.executable, "inner/fails.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (plain.returncode, plain.stdout) == (1, "")
    assert ran.stderr.replace("/inner/inner", "/inner") == plain.stderr.replace(
        f'"{tmp_path}/inner/fails.py"', '"inner/fails.py"'
    )


@pytest.mark.parametrize(
    ("text", "code"), [("import sys; sys.exit(3)", 3), ("raise SystemExit", 0), ("x = (", 1)]
)
def test_exit_codes(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "script.py").write_text(text)
    assert run(tmp_path, "script.py").returncode == code


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    ran = run(tmp_path, "nowhere.py")
    message = "minitransformer run: error: argument SCRIPT.py: there is no file 'nowhere.py'\n"
    assert (ran.returncode, ran.stderr) == (2, message)


@pytest.mark.parametrize("option", ["--kernel=scaled", "--launch=2", "--gpu=H200"])
def test_what_only_the_microscope_looks_at(
    complaint: Callable[..., str], tmp_path: Path, option: str
) -> None:
    (tmp_path / "script.py").write_text("")
    name = option.partition("=")[0]
    expected = f"minitransformer run: error: argument {name}: it needs --inspect"
    assert complaint(2, "run", option, str(tmp_path / "script.py")) == expected


LAUNCHES = """
import sys
import numpy as np
from numba import cuda


@cuda.jit
def scaled(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


x = cuda.to_device(np.ones(64, np.float32))
for size in 1, 2:
    scaled[size, 32](x, np.float32(3))
print(x.copy_to_host().sum())
sys.exit(3)
"""


def test_the_launches_of_a_script_under_the_microscope(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LAUNCHES)
    ran = run(tmp_path, "--inspect", "--kernel", "scaled", "--launch", "2", "script.py")
    assert (ran.returncode, ran.stderr) == (3, "")
    printed, report = ran.stdout.split("\n", 1)
    assert printed == str(32 * 9.0 + 32 * 3.0)
    assert "scaled  (script.py:7)  grid 2, block 32" in report
    ran = run(tmp_path, "--inspect", "--kernel", "twice", "script.py")
    message = "script.py: kernel 'twice' was not launched; launched were: scaled (2 times)"
    assert (ran.returncode, ran.stderr) == (2, f"minitransformer run: error: {message}\n")


def test_what_was_seen_before_a_script_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LAUNCHES.replace("sys.exit(3)", "1 / 0"))
    ran = run(tmp_path, "--inspect", "script.py")
    assert "scaled  (script.py:7)  grid 1, block 32" in ran.stdout
    assert ran.returncode == 1
    assert ran.stderr.endswith("ZeroDivisionError: division by zero\n")
