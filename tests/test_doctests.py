"""Every example in a docstring, and in README.md, runs as it is printed."""

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import minitransformer
import minitransformer_kernels
from minitransformer_kernels import DataRace

MODULES = [
    module.name
    for package in (minitransformer, minitransformer_kernels)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", ["minitransformer", "minitransformer_kernels", *MODULES])
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed


def test_readme(tmp_path):
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    *examples, mistaken = re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)
    exec("".join(examples), {})
    (tmp_path / "reverse.py").write_text(mistaken)
    with pytest.raises(DataRace) as race:
        runpy.run_path(str(tmp_path / "reverse.py"))
    message = f"DataRace: {race.value}".replace(f"{tmp_path}/", "")
    assert f"`{message}`" in " ".join(readme.split())
