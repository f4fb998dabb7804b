"""The checked mode finds nothing in right kernels, and changes nothing that they compute."""

import pytest

from minitransformer_kernels import OutOfBounds, checked

from .launches import Case, sampled
from .test_corpus import CASES, assert_same

# They count from the end of an array, as Numba allows; CUDA C has no such indices.
NEGATIVE = [
    name for name in CASES if name.startswith(("strided_and_read_only-", "indices_from_the_end-"))
]
RIGHT = {name: case for name, case in CASES.items() if name not in NEGATIVE}


@pytest.mark.parametrize("case", sampled(RIGHT, 12, "moving_particles-3-7"))
def test_corpus(case: Case) -> None:
    wanted, found = case.arguments(), case.arguments()
    with checked(False):
        case.launch(*wanted)
    with checked():
        case.launch(*found)
    assert_same(found, wanted)


@pytest.mark.parametrize("name", NEGATIVE)
def test_indices_from_the_end_are_out_of_bounds(name: str) -> None:
    with pytest.raises(OutOfBounds) as caught, checked():
        CASES[name].launch(*CASES[name].arguments())
    assert caught.value.index is not None and min(caught.value.index) < 0
