"""No call crashes, is wrong, takes what does not fit, or ends in an error that explains nothing."""

import sys

import pytest

from . import fuzz
from .fuzz import FINDINGS, Found, judged

QUARTERS = [
    pytest.param(first, 2500, marks=pytest.mark.nightly) for first in range(0, 10_000, 2500)
]


@pytest.mark.parametrize(("first", "cases"), [(0, 100), *QUARTERS])
def test_calls_at_random(first: int, cases: int) -> None:
    found = list(fuzz.fuzz(0, cases, first, every=cases > 1000))
    assert [x.number for x in found] == list(range(first, first + cases))
    assert not [x for x in found if x.verdict in FINDINGS], fuzz.table(found)


def raised(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("call", "spoiled", "verdict"),
    [
        (lambda: None, False, "right"),
        (lambda: None, True, "taken"),
        (lambda: raised(ValueError("f: x must be 1, got 2")), True, "refused"),
        (lambda: raised(ValueError("f: x must be 1, got 2")), False, "raw"),
        (lambda: raised(AttributeError("'list' object has no attribute 'ndim'")), True, "raw"),
        (lambda: raised(ZeroDivisionError("division by zero")), True, "raw"),
        (lambda: raised(AssertionError("off")), False, "wrong"),
    ],
)
def test_verdicts(call, spoiled, verdict) -> None:
    assert judged(0, "case", call, spoiled).verdict == verdict


def test_a_crash_is_a_finding_and_not_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """A child that ends in the middle of a case is followed by another."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "first = int(sys.argv[sys.argv.index('--first') + 1])\n"
        "for number in range(first, 4):\n"
        "    print(number, flush=True)\n"
        "    if number == 1: os.kill(os.getpid(), 11)\n"
        '    print(f\'[{number}, "right", "", ""]\', flush=True)\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(fuzz.sys, "executable", str(script))
    found = list(fuzz.fuzz(0, 4))
    assert found == [
        Found(0, "right", ""), Found(1, "crash", "ended with -11"),
        *(Found(number, "right", "") for number in (2, 3)),
    ]  # fmt: skip
    assert "1: crash: ended with -11" in fuzz.table(found)
