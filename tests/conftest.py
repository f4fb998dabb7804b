"""What all tests share: how hard hypothesis tries, and the devices to run on."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.register_assert_rewrite("tests.properties")

# Compiling a kernel takes seconds, so no example has a deadline.
settings.register_profile(
    "dev", max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=400)
# In ci a failure must fail again, so nothing is random and no time goes into shrinking.
settings.register_profile(
    "ci",
    settings.get_profile("dev"),
    derandomize=True,
    max_examples=8,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
settings.load_profile(PROFILE)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what only the nightly profile runs."""
    if PROFILE != "nightly" and item.get_closest_marker("nightly"):
        pytest.skip("one of many that show the same; HYPOTHESIS_PROFILE=nightly runs them all")


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


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Runs a test on the CPU, and on CUDA or with a visible skip."""
    if request.param == "cuda" and (reason := why_no_cuda()):
        pytest.skip(reason)
    return str(request.param)
