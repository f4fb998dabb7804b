"""What all tests share: how hard hypothesis tries, and the devices to run on."""

import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from .parts import PARTS, killed, part_of, room_of

pytest.register_assert_rewrite("tests.properties")

# Numba keeps millions of objects for what it compiled. To look through them for garbage again and
# again took a tenth of the time, and to get memory for them in pages of 4 KiB another.
gc.set_threshold(100_000, 50, 1000)
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # of the processes that follow
# The cores are shared out among the processes: in each, BLAS's second thread would only wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Kernels are launched wrong on purpose, and compared with what they give when nobody looks.
os.environ.setdefault("MINITRANSFORMER_CHECK", "0")

# Compiling a kernel takes seconds, so no example has a deadline.
settings.register_profile(
    "dev", max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=400)
# In ci a failure must fail again, so nothing is random and no time goes into shrinking.
settings.register_profile(
    "ci", settings.get_profile("dev"), derandomize=True, max_examples=6, database=None,
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
settings.load_profile(PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the choice of what CUDA's tests run on, and of a part of all tests."""
    parser.addoption(
        "--stand-in-cupy",
        action="store_true",
        help="run the tests that want CUDA on a stand-in for CuPy; nothing runs on a GPU",
    )
    parser.addoption(
        "--as-ptx",
        action="store_true",
        help="with --stand-in-cupy: run kernels as PTX, on the machine of kernels/gpu/ptx",
    )
    parser.addoption("--part", choices=PARTS, help="run one of the parts of a nightly run")


def pytest_configure(config: pytest.Config) -> None:
    """Puts the stand-in in CuPy's place before anything looks for CuPy."""
    if config.getoption("--stand-in-cupy"):
        from .stand_in_cupy import install

        install(config.getoption("--as-ptx"))


def pytest_report_header(config: pytest.Config) -> str:
    """Says what CUDA's tests run on."""
    if config.getoption("--stand-in-cupy"):
        how = "the PTX machine" if config.getoption("--as-ptx") else "NumPy"
        return f"device cuda: a stand-in for CuPy, on {how}; nothing runs on a GPU"
    return f"device cuda: {why_no_cuda() or 'the GPU'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the chosen part, and notes whose mutants are hunted."""
    part = config.getoption("--part")
    if part:
        config.hook.pytest_deselected(items=[x for x in items if part_of(x.nodeid) != part])
        items[:] = [x for x in items if part_of(x.nodeid) == part]
    for item in items:
        if room := room_of(item):
            item.user_properties.append(("room", room))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says which mutants were killed, and, where tests run in this process, what was launched."""
    stats = terminalreporter.stats
    if report := killed(x for outcome in ("passed", "failed") for x in stats.get(outcome, ())):
        terminalreporter.write_line(report)
    if config.getoption("--stand-in-cupy") and not config.getoption("numprocesses", None):
        from .stand_in_cupy import report as launched

        terminalreporter.write_line(f"On the stand-in for CuPy: {launched()}.")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what only the nightly profile runs."""
    if PROFILE != "nightly" and item.get_closest_marker("nightly"):
        pytest.skip("one of many that show the same; HYPOTHESIS_PROFILE=nightly runs them all")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Calls a test as pytest does, with room on Python's stack for what it compiles and runs."""
    from minitransformer_kernels.cpu.compiler import with_room

    plugin: Any = pyfuncitem.config.pluginmanager.get_plugin("python")
    return with_room(plugin.pytest_pyfunc_call, pyfuncitem)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Whole folders are shared out among the cores; a file runs in this process, as `-n0` does.

    So what a test prints is seen, and a debugger works.
    """
    return 0 if any(".py" in argument for argument in config.args) else None


def why_no_cuda() -> str:
    """Returns why tests cannot run on CUDA here, or an empty string."""
    if find_spec("cupy") is None:
        return "CuPy is not installed: pip install minitransformer[cuda12] or [cuda13]"
    import cupy

    return "" if cupy.cuda.is_available() else "CuPy finds no CUDA device"


def device_id(name: str) -> str:
    """The device in a test's name: the stand-in never goes by the name of CUDA alone."""
    standing_in = "stand.in" in getattr(sys.modules.get("cupy"), "__version__", "")
    return "cuda-stand-in" if name == "cuda" and standing_in else name


@pytest.fixture(params=["cpu", "cuda"], ids=device_id)
def device(request: pytest.FixtureRequest) -> str:
    """Runs a test on the CPU, and on CUDA or with a visible skip."""
    if request.param == "cuda" and (reason := why_no_cuda()):
        pytest.skip(f"{reason}; --stand-in-cupy runs it without")
    return str(request.param)


@pytest.fixture
def one_thread_of_torch() -> Iterator[None]:
    """Keeps PyTorch to one thread: the tests share the cores out among themselves."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
