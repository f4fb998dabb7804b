"""The page about the lowering shows what is really emitted."""

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels.cpu import DivergentBarrier

from .launches import defined

PAGE = Path(__file__).parents[3] / "kernels" / "cpu" / "README.md"
PICTURE = PAGE.with_name("regions.svg")
IMPORTS = "from numba import float32\nfrom minitransformer_kernels.cuda import cuda\n\n"
# Kernels, each followed by what is emitted for it, or the part that the page talks about.
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
KERNELS, EMITTED = BLOCKS[::2], BLOCKS[1::2]


def numbers() -> Any:
    """Two blocks of 64."""
    return np.random.default_rng(0).random(128, np.float32)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Those on the page."""
    file = tmp_path_factory.mktemp("page") / "page.py"
    return SimpleNamespace(**defined(file, IMPORTS + "\n\n".join(KERNELS), {}))


def test_mirror(kernels: Any) -> None:
    x, out = numbers(), np.zeros(128, np.float32)
    kernels.mirror[2, 64](x, out, 3)
    assert kernels.mirror.cpu_source().endswith(EMITTED[0])
    wanted = x.reshape(2, 64)
    for _ in range(3):
        wanted = (wanted + wanted[:, ::-1]) / np.float32(2)
    np.testing.assert_allclose(out.reshape(2, 64), wanted)


def test_total(kernels: Any) -> None:
    x, out = numbers(), np.zeros(1, np.float32)
    kernels.total[2, 64](x, out)
    source = kernels.total.cpu_source()
    assert EMITTED[1] in source
    (taken,) = re.findall(r"`(kept = .*?)`", PAGE.read_text())
    assert taken in source.partition(EMITTED[1])[2]
    np.testing.assert_allclose(out, [x.sum()], rtol=1e-6)


def test_climb(kernels: Any) -> None:
    x, steps = np.repeat(np.array([1, 60, 200], np.float32), 2), np.zeros(6, np.int64)
    kernels.climb[1, 6](x, steps)
    assert EMITTED[2] in kernels.climb.cpu_source()
    assert steps.tolist() == [7, 7, 1, 1, 0, 0]


def test_neighbours(kernels: Any) -> None:
    marks, out = np.arange(1, 65), np.zeros(64)
    kernels.neighbours[1, 64](marks, out)
    assert EMITTED[3] in kernels.neighbours.cpu_source()
    assert out.reshape(32, 2).tolist() == marks.reshape(32, 2)[:, ::-1].tolist()
    marks[5] = 0
    with pytest.raises(DivergentBarrier, match=r"thread \(5, 0, 0\) never reaches"):
        kernels.neighbours[1, 64](marks, out)


def test_the_picture_shows_what_the_page_says() -> None:
    assert f"]({PICTURE.name})" in PAGE.read_text()
    texts = [unescape(text) for text in re.findall(r"<text .*?>(.*?)</text>", PICTURE.read_text())]
    for line in (KERNELS[0] + EMITTED[0]).splitlines():
        assert line in texts


def test_every_module_is_on_the_page() -> None:
    modules = {path.stem for path in PAGE.parent.rglob("*.py")} - {"__init__"}
    named = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+)`", PAGE.read_text())}
    assert modules <= named
