"""Transformers from scratch: hand-written kernels, a tape, and the models on top.

    from minitransformer import Tensor, nn, optim, functions as F

Submodules are imported when they are first used, so ``import minitransformer`` costs NumPy only.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

# Tensor comes first: the tape and the functions are built on it.
from .tensor import Tensor  # isort: skip
from . import functions
from .function import Context, Function, is_grad_enabled, no_grad
from .gradcheck import GradientError, gradcheck
from .random import manual_seed

if TYPE_CHECKING:
    import minitransformer_kernels as kernels

    from . import attention, generation, nn, optim
    from .attention import multi_head

try:
    __version__ = metadata.version("minitransformer")
except metadata.PackageNotFoundError:
    __version__ = "0+unknown"

__all__ = [
    "Context",
    "Function",
    "GradientError",
    "Tensor",
    "__version__",
    "attention",
    "functions",
    "generation",
    "gradcheck",
    "is_grad_enabled",
    "kernels",
    "manual_seed",
    "multi_head",
    "nn",
    "no_grad",
    "optim",
]


def __getattr__(name: str) -> ModuleType:
    """Import a submodule on first use; ``kernels`` is the package ``minitransformer_kernels``."""
    paths = {"kernels": "minitransformer_kernels", "multi_head": f"{__name__}.attention.multi_head"}
    if name not in ("attention", "generation", "nn", "optim", *paths):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = paths.get(name, f"{__name__}.{name}")
    module = globals()[name] = importlib.import_module(path)
    return module


def __dir__() -> list[str]:
    return __all__
