"""Every example in a docstring, and in README.md, runs as it is printed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import minitransformer
import minitransformer_kernels

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


def test_readme():
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    exec("".join(re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)), {})
