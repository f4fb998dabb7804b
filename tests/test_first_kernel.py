"""The page of the first kernel quotes its program, and what that prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

TUTORIALS = Path(__file__).parents[1] / "tutorials"
PROGRAM = TUTORIALS / "first_kernel.py"


def blocks(kind: str) -> list[str]:
    """The blocks of a kind on the page."""
    page = PROGRAM.with_suffix(".md").read_text()
    return re.findall(rf"^```{kind}\n(.*?\n)```$", page, re.MULTILINE | re.DOTALL)


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """As a reader runs it: the tests' own launches are not checked, a reader's first ones are."""
    readers = {key: value for key, value in os.environ.items() if key != "MINITRANSFORMER_CHECK"}
    command = [sys.executable, program.name]
    return subprocess.run(
        command, cwd=program.parent, env=readers, capture_output=True, text=True, check=False
    )


def test_the_page_says_what_the_program_does() -> None:
    ran = run(PROGRAM)
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.replace(f"{TUTORIALS}/", "")
    program = PROGRAM.read_text()
    assert len(blocks("python")) == 8 and len(blocks("text")) == 5
    for block in blocks("python"):
        assert block in program
    for block in blocks("text"):
        assert block in printed
    assert "as NumPy computes it: True\n" in printed


def test_the_mistake_that_the_page_invites_to_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / PROGRAM.name
    wrong.write_text(PROGRAM.read_text().replace("grad.size - j)", "grad.size - j - 1)"))
    assert re.search(r"GradientError: .* at \[1\d\]: backward gives", run(wrong).stderr)
