"""S0's programs compute its terms, their bytes are counted, and the verdicts follow from them."""

import numpy as np
import pytest

from minitransformer.experiments import memory
from minitransformer.experiments.memory import HEADS, PROGRAMS, last_naive, program_bytes
from minitransformer_kernels.planner import Sizes
from minitransformer_kernels.planner import memory as planned


@pytest.mark.parametrize("form", ["naive", "linear"])
@pytest.mark.parametrize("causal", [True, False])
def test_programs_compute_the_kernelized_term(form, causal):
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 9, 4))
    weights = np.einsum("hie,hje->hij", q, k)
    expected = (np.tril(weights) if causal else weights) @ v
    np.testing.assert_allclose(PROGRAMS["kernelized"][form](q, k, v, causal), expected, atol=1e-12)


@pytest.mark.parametrize("form", ["naive", "linear"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("k", [1, 3, 8, 30])
def test_programs_compute_the_relative_term(form, causal, k):
    rng = np.random.default_rng(0)
    q, e, v = (
        rng.normal(size=(2, 9, 4)),
        rng.normal(size=(2 * k + 1, 4)),
        rng.normal(size=(2, 9, 3)),
    )
    expected = np.zeros_like(v)
    for i in range(9):
        for j in range(i + 1 if causal else 9):
            weight = q[:, i] @ e[min(max(j - i, -k), k) + k]
            expected[:, i] += weight[:, None] * v[:, j]
    np.testing.assert_allclose(PROGRAMS["relative"][form](q, e, v, causal), expected, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_programs_hold_what_the_seed_counts(causal):
    """The scores, or the states; and beside them the output and little else."""
    length, d = 96, 12
    output = 4 * HEADS * length * d
    for form, numbers in (("naive", length**2), ("linear", d * d * (length if causal else 1))):
        held = program_bytes("kernelized", form, causal, length, d, d) - output
        assert held == pytest.approx(4 * HEADS * numbers, rel=0.02, abs=2500)


@pytest.mark.parametrize("last", [0, 1, 2, 37, 64])
def test_the_last_length_is_found(last):
    assert last_naive(lambda length: length > last) == last


def test_the_kernels_hold_what_the_planner_says():
    sizes = Sizes(256, 256, memory.E, memory.E, causal=True, heads=HEADS)
    for backward in (False, True):
        found = memory.kernel_bytes(sizes, "recurrent", backward)
        assert planned(sizes, "recurrent", backward) == pytest.approx(found, rel=0.1)


def test_verdicts_follow_from_the_crossovers():
    def verdict(printed: int, measured: int) -> str:
        row = {"term": "kernelized", "causal": True, "size": 8, "columns": 8,
               "printed": printed, "measured": measured}  # fmt: skip
        return next(memory._verdicts([row]))

    assert verdict(64, 60) == (
        "*Supported*: L > d² for the kernelized term, masked; measured at 0.94 to 0.94 times it."
    )
    assert "*Not supported*" in verdict(64, 71)
    assert "*Supported*" in verdict(4, 6)
