"""The stand-in for CuPy is as strict as CuPy, and the engine's CUDA side passes on it."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .stand_in_cupy import names
from .stand_in_cupy.array import COUNTS, DeviceSynchronized, Undefined, allow_synchronize
from .stand_in_cupy.modules import modules

pytestmark = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="this CuPy's rules are NumPy 2's"
)
ROOT = Path(__file__).parents[1]
SHORT = (
    "tests/minitransformer/commands/test_cli.py",
    "tests/minitransformer/test_device.py",
    "tests/minitransformer/test_optim.py",
    "tests/minitransformer/test_random.py",
    "tests/minitransformer/test_tensor.py",
    "tests/minitransformer/training/test_loop.py",
)


@pytest.fixture
def cupy() -> Any:
    return modules()["cupy"]


REFUSED: dict[str, tuple[type[Exception], Callable[[Any, Any], Any]]] = {
    "an array of NumPy's made of it": (TypeError, lambda cupy, x: np.asarray(x)),
    "NumPy's beside it": (TypeError, lambda cupy, x: x + np.ones(3)),
    "it beside NumPy's": (TypeError, lambda cupy, x: np.ones(3) * x),
    "a list beside it": (TypeError, lambda cupy, x: x * [1, 2, 3]),
    "a sum where something holds": (TypeError, lambda cupy, x: cupy.sum(x, where=x > 0)),
    "a maximum of nothing": (TypeError, lambda cupy, x: x.max(initial=0)),
    "a ufunc where something holds": (TypeError, lambda cupy, x: cupy.exp(x, where=x > 0)),
    "NumPy's arrays joined": (TypeError, lambda cupy, x: cupy.concatenate([np.ones(3)])),
    "an element as an index": (TypeError, lambda cupy, x: range(cupy.asarray(3))),
    "NumPy's array stored": (ValueError, lambda cupy, x: x.__setitem__(slice(None), np.ones(3))),
    "a name that CuPy lacks": (AttributeError, lambda cupy, x: cupy.errstate),
    "a method that CuPy lacks": (AttributeError, lambda cupy, x: x.itemset(0, 1)),
    "text": (ValueError, lambda cupy, x: cupy.asarray(["a"])),
    "a cast by other rules": (TypeError, lambda cupy, x: x.astype(int, casting="safe")),
    "quicksort": (ValueError, lambda cupy, x: x.argsort(kind="quicksort")),
    "two values in one place": (Undefined, lambda cupy, x: x.__setitem__([0, 0], cupy.arange(2))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cupy_refuses_is_refused(cupy: Any, what: str) -> None:
    error, attempt = REFUSED[what]
    with pytest.raises(error):
        attempt(cupy, cupy.arange(3.0))


def test_scalars_are_arrays(cupy: Any) -> None:
    x = cupy.arange(6, dtype=cupy.float32).reshape(2, 3)
    for each in (x.sum(), x[0, 0], cupy.vdot(x, x), cupy.count_nonzero(x), next(iter(x[0]))):
        assert type(each) is cupy.ndarray and each.shape == ()
    assert (np.float32(2) * x + 1).dtype == np.float32
    assert type(np.exp(x)) is type(np.where(x > 1, x, 0)) is cupy.ndarray


def test_places_beyond_the_end_wrap_around(cupy: Any) -> None:
    assert cupy.arange(3)[[1, 3, -4]].tolist() == [1, 0, 2]


def test_ufuncs_give_c_order(cupy: Any) -> None:
    x = cupy.zeros((2, 3)).T
    assert not x.flags.c_contiguous and (x + 1).flags.c_contiguous


def test_atomics_come_in_another_order_each_time(cupy: Any) -> None:
    x = cupy.asarray(np.random.default_rng(0).normal(size=1000).astype(np.float32))
    sums = []
    for _ in range(5):
        total = cupy.zeros(1, cupy.float32)
        cupy.add.at(total, cupy.zeros(1000, cupy.int64), x)
        sums.append(total.item())
    assert len(set(sums)) > 1


def test_waiting_is_counted_and_can_be_forbidden(cupy: Any) -> None:
    x = cupy.arange(3)
    before = COUNTS["device to host"]
    _ = float(x[1]), bool(x.any()), x.tolist(), x[x > 1], x.get()
    assert COUNTS["device to host"] - before == 5
    with allow_synchronize(False), pytest.raises(DeviceSynchronized):
        float(x[1])


def test_names_are_those_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    written = names.NAMES.read_text().splitlines()
    if written[0] != f"version {cupy.__version__}":
        pytest.skip(f"CuPy {cupy.__version__} is here; written down is {written[0]}")
    offered = {line.split("(")[0]: line for line in names.written_down(cupy)}
    assert [offered.get(line.split("(")[0], line) for line in written] == written
    for name, module in modules().items():
        real = import_module(name)
        assert not [each for each in vars(module) if each[0] != "_" and not hasattr(real, each)]
    runtime = vars(modules()["cupy.cuda"].runtime)
    assert not [each for each in runtime if not hasattr(cupy.cuda.runtime, each)]


@pytest.mark.parametrize(
    "paths", [SHORT, pytest.param(("tests",), marks=pytest.mark.nightly)], ids=["short", "all"]
)
def test_what_wants_cuda_passes_on_the_stand_in(paths: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "--stand-in-cupy", "-k", "stand-in", *paths]
    by_day = os.environ | {"HYPOTHESIS_PROFILE": "dev"}  # for everything, a night is too short
    found = subprocess.run(command, cwd=ROOT, env=by_day, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert "a stand-in for CuPy" in found.stdout
