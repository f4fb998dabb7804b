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
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)


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
