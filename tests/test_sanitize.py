"""The command that runs tests under compute-sanitizer, with a stand-in for that."""

import os
import sys
from pathlib import Path

import pytest

from . import sanitize

SANITIZER = """\
#!{python}
import os, subprocess, sys
command = sys.argv[1:]
program = command.index({python!r})
options = dict(zip(command[:program:2], command[1:program:2]))
status = subprocess.run(command[program:]).returncode
open(options["--log-file"], "w").write(" ".join(command[:program]))
sys.exit(int(options["--error-exitcode"]) if options["--tool"] == "racecheck" else status)
"""
CUPY = """\
import builtins
from types import SimpleNamespace
def set_allocator(allocator):
    builtins.pool = allocator
cuda = SimpleNamespace(set_allocator=set_allocator, is_available=lambda: True)
"""
TEST = """\
import builtins, os, time
from hypothesis import given, settings, strategies
drawn = []
@given(strategies.integers())
def test_few(number):
    drawn.append(number)
def test_last():
    assert len(drawn) <= 2
    assert builtins.pool is None
    assert os.environ["MINITRANSFORMER_LINEINFO"]
    {more}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a compute-sanitizer and a CuPy of no worth, which come first."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(SANITIZER.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sanitize, "why_no_cuda", lambda: "")
    return tmp_path


def run(folder: Path, *options: str, more: str = "") -> int:
    """Sanitize one small test."""
    test = folder / "test_small.py"
    test.write_text(TEST.format(more=more))
    return sanitize.main(["--logs", str(folder / "logs"), *options, "--", str(test)])


@pytest.mark.nightly
def test_tools_run_after_the_tests_and_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--tools", "memcheck", "racecheck") == 1
    report = capsys.readouterr().out.splitlines()
    verdicts = [(line.split()[0], "nothing found" in line) for line in report[:3]]
    assert verdicts[0] == ("tests", True)
    assert sorted(verdicts[1:]) == [("memcheck", True), ("racecheck", False)]
    assert all("2 passed" in line for line in report[:3])
    memcheck = (folder / "logs" / "memcheck.txt").read_text()
    assert "--tool memcheck --error-exitcode 99 --target-processes application-only" in memcheck
    assert memcheck.endswith("--padding 256 --report-api-errors no")


@pytest.mark.nightly
def test_it_ends_well_where_nothing_is_found(folder: Path) -> None:
    assert run(folder, "--tools", "synccheck") == 0


@pytest.mark.nightly
def test_tests_that_fail_without_it_are_not_sanitized(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, more="assert False") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tests")
    assert "FAILED" in line
    assert "1 failed" in line


def test_a_run_has_its_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--seconds", "1", more="time.sleep(600)") == 1
    assert "NOT DONE in 1 s" in capsys.readouterr().out


def test_without_a_sanitizer_or_a_gpu_it_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    assert run(folder) == 2
    assert "compute-sanitizer was not found: pip install" in capsys.readouterr().err
    monkeypatch.setattr(sanitize, "why_no_cuda", lambda: "no GPU at all")
    assert run(folder) == 2
    assert "python -m tests.sanitize: no GPU at all" in capsys.readouterr().err
