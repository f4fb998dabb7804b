"""Every example in a docstring, and on the first pages, runs as it is printed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from unittest.mock import patch

import pytest

import minitransformer
import minitransformer_kernels

from .test_first_kernel import run

ROOT = Path(__file__).parent.parent
MISTAKEN = "def reverse(x, out)"
EXTRAS = {"numba_cuda_mlir": "gate-mlir"}
MODULES = [
    module.name
    for package in (minitransformer, minitransformer_kernels)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", ["minitransformer", "minitransformer_kernels", *MODULES])
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        extra = "docs" if ".publish." in name else EXTRAS.get(str(error.name).split(".")[0])
        if extra is None:
            raise
        pytest.skip(f"needs {error.name}: pip install -e .[{extra}]")
    with patch("linecache.checkcache"):  # for each docstring, a look at all files of all kernels
        failed, _ = doctest.testmod(module)
    assert not failed


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize(
    "page", ["README.md", "minitransformer/README.md", "minitransformer/parallel/README.md"]
)
def test_pages(page):
    exec("".join(text for text in examples(page) if MISTAKEN not in text), {})


def test_the_mistake_on_the_first_page_is_told_as_printed(tmp_path):
    """As a reader runs it: a first launch is checked, without asking."""
    (mistaken,) = (text for text in examples("README.md") if MISTAKEN in text)
    (tmp_path / "reverse.py").write_text(mistaken)
    told = run(tmp_path / "reverse.py").stderr.replace(f"{tmp_path}/", "")
    message = re.findall(r"DataRace: .*", told)[-1]
    assert f"`{message}`" in " ".join((ROOT / "README.md").read_text().split())


def test_the_first_page_is_short():
    read = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    assert len(re.findall(r"\w[\w'.-]*", read)) <= 1200
