"""The page about the lowering shows what is really emitted."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[3] / "kernels" / "cpu" / "README.md"
IMPORTS = "from numba import float32\nfrom minitransformer_kernels.cuda import cuda\n\n"


def test_emitted_source_on_the_page(tmp_path: Path) -> None:
    kernel_text, emitted = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "page.py"
    file.write_text(IMPORTS + kernel_text)
    specification: Any = importlib.util.spec_from_file_location("page", file)
    page = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(page)

    x, out = np.random.default_rng(0).random((2, 64), np.float32), np.zeros((2, 64), np.float32)
    page.smooth[2, 64](x.ravel(), out.ravel(), 3)

    assert page.smooth.cpu_source().endswith(emitted)
    for _ in range(3):
        x = (x + x[:, ::-1]) / np.float32(2)
    np.testing.assert_allclose(out, x)
