"""What the page on GPUs shows is what its commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from minitransformer import commands as cli
from minitransformer_kernels import gpu
from minitransformer_kernels.microscope import transpose
from minitransformer_kernels.microscope.stepping import LIMIT

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the extra gate")

PAGE = (Path(gpu.__file__).parent / "README.md").read_text(encoding="utf-8")


def test_the_shown_lines_are_printed(capsys) -> None:
    section = PAGE.split("## What a line becomes")[1]
    command = re.search(r"minitransformer (.*:tiled)", section)[1]
    target = f"{transpose.__file__}:tiled"
    words = [target if "transpose.py" in word else word for word in shlex.split(command)]
    assert cli.main(words) == 0
    (shown,) = re.findall(r"```\n(  .*?)```", section.split("## ")[0], re.S)
    assert shown in capsys.readouterr().out


def test_the_limit_is_the_one_that_is_told() -> None:
    assert f"{LIMIT:,} steps" in PAGE.replace("\n", " ")
