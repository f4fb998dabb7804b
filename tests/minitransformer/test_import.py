"""What `import minitransformer` offers, and what it does not cost."""

import subprocess
import sys
from pathlib import Path

import pytest

import minitransformer

ROOT = Path(__file__).parents[2]


def test_the_import_brings_numpy_only() -> None:
    code = (
        "import sys, minitransformer as mt; mt.functions.relu(mt.Tensor([1.0]));"
        "print(sorted({'numba', 'cupy', 'matplotlib', 'tqdm', 'safetensors',"
        "'minitransformer_kernels', 'minitransformer.nn'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("name", minitransformer.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(minitransformer, name) is not None
    assert name in dir(minitransformer)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'minitransformer' has no attribute 'tensors'"):
        minitransformer.tensors  # noqa: B018
