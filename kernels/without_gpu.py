"""Run programs for GPUs without one: `numba.cuda` becomes our door, in this process.

    minitransformer run script.py                      a script, unchanged
    pytest -p minitransformer_kernels.without_gpu      tests, unchanged

What says `from numba import cuda`, or `from numba_cuda_mlir import cuda`, gets kernels that run on
the CPU and device arrays of their own (`host/`). Only this process sees it, and a GPU is left alone
if there is one. A process that is started anew, as `multiprocessing` does by "spawn", sees Numba
as it is. `host/README.md` says what is there, and what differs from a GPU.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from itertools import count
from types import ModuleType
from typing import Any

import numba

from . import host
from .cuda import cuda
from .gpu.compilers import compiler
from .host import arrays, devices, functions

SUCCESSOR = "numba_cuda_mlir"
FUTURES = 0x1FF0000  # the flags of `from __future__ import ...` in a code object


class Cover(ModuleType):
    """A module over another: its names are ours where we have them."""

    def __init__(self, original: ModuleType, ours: Any, name: str = "") -> None:
        super().__init__(name or original.__name__, original.__doc__)
        self.__path__ = getattr(original, "__path__", [])
        self.__spec__, self.__file__ = original.__spec__, original.__file__
        self.original, self.ours = original, ours

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.ours, name)
        except AttributeError:
            if self.ours is cuda:
                raise
        return getattr(self.original, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.original), *dir(self.ours)})


@cache
def install() -> None:
    """Put the door in the place of `numba.cuda`, for whoever imports it from now on."""
    host.stay_on_cpu()
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)  # Numba's simulator has nothing to do
    numba.config.ENABLE_CUDASIM = 0
    original, random = compiler("numba-cuda").namespace(), import_module(f"{host.__name__}.random")
    covered = {
        "": (original, cuda),
        ".random": (import_module("numba.cuda.random"), random),
        ".cudadrv.devicearray": (import_module("numba.cuda.cudadrv.devicearray"), arrays),
        ".cudadrv.devices": (import_module("numba.cuda.cudadrv.devices"), devices),
        ".cudadrv.driver": (import_module("numba.cuda.cudadrv.driver"), devices),
    }
    for name, (module, ours) in covered.items():
        cover = Cover(module, ours)
        for package in ("numba", SUCCESSOR):
            sys.modules[f"{package}.cuda{name}"] = cover
        parent, _, leaf = f"numba.cuda{name}".rpartition(".")
        setattr(sys.modules[parent], leaf, cover)
    sys.modules[SUCCESSOR] = Cover(numba, None, SUCCESSOR)
    builtins.exec = _keeping_text(builtins.exec)
    for name in ("vectorize", "guvectorize"):
        setattr(numba, name, _by_target(getattr(functions, name), getattr(numba, name)))


def _keeping_text(run: Callable[..., None]) -> Callable[..., None]:
    """`exec` that leaves a text where `inspect` finds it: there may be a kernel in it."""
    texts = count()

    @wraps(run)
    def keeping(source: Any, /, globals: Any = None, locals: Any = None, **others: Any) -> None:
        around = sys._getframe(1)
        if globals is None:
            globals, locals = around.f_globals, around.f_locals if locals is None else locals
        if isinstance(source, str) and "def " in source:
            name = f"<text {next(texts)}>"
            linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
            source = compile(source, name, "exec", around.f_code.co_flags & FUTURES, True)
        run(source, globals, locals, **others)

    return keeping


def _by_target(ours: Callable[..., Any], numbas: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(numbas)
    def decorator(*arguments: Any, **options: Any) -> Any:
        return (ours if options.get("target") == "cuda" else numbas)(*arguments, **options)

    return decorator


def pytest_load_initial_conftests() -> None:
    """Come before every conftest and every test."""
    pytest_configure()


def pytest_configure() -> None:
    """Come at least now, where another plugin or a conftest brings this one.

    What passes on a GPU passes here: kernels are checked where `MINITRANSFORMER_CHECK` asks for it.
    """
    os.environ.setdefault("MINITRANSFORMER_CHECK", "0")
    install()


def pytest_report_header() -> str:
    """Say what the tests run on."""
    checked = os.environ["MINITRANSFORMER_CHECK"] == "1"
    how = "every launch is checked" if checked else "MINITRANSFORMER_CHECK=1 checks every launch"
    return f"numba.cuda: minitransformer's, on the CPU; {how}"
