"""The parts of a nightly run, and the count of mutants."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from .kernels.mutants import Mutant
from .parts import PARTS, killed, part_of, room_of


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ("tests/minitransformer/test_local.py::test_properties[cpu-hides_the_future]", "public"),
        ("tests/minitransformer/parallel/test_world.py::test_ranks", "engine"),
        ("tests/test_packaging.py::test_wheel", "engine"),
        ("tests/test_fuzz.py::test_calls_at_random[0-100]", "fuzz"),
        ("tests/kernels/test_properties.py::test_property[cpu-local-stays_finite]", "softmax"),
        ("tests/kernels/test_properties.py::test_property[cpu-naive-stays_finite]", "linear"),
        ("tests/kernels/test_properties.py::test_a_long_sequence[cpu-delta-True]", "fourier"),
        ("tests/kernels/test_checked.py::test_attention[relative_naive-0-all]", "relative"),
        ("tests/kernels/test_features.py::test_attention_with_the_map[cpu-naive-elu]", "features"),
        ("tests/kernels/test_checked.py::test_attention[naive-0-float64-all]", "linear"),
        ("tests/kernels/cpu/test_launch.py::test_empty_arrays", "machinery"),
        ("tests/kernels/gpu/ptx/test_operations.py::test_property[naive-stays_finite]", "ptx"),
        ("tests/kernels/test_mutants.py::test_mutant_is_killed[phase_forgotten]", "mutants"),
        ("tests/kernels/test_mutants.py::test_every_planted_text_is_in_its_file", "mutants"),
        ("tests/kernels/layers/test_matmul.py::test_missing_barrier_is_a_race[x]", "mutants"),
    ],
)
def test_a_test_is_in_one_part(test: str, part: str) -> None:
    assert part_of(test) == part


def test_every_part_has_tests(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("file_or_dir") or request.config.getoption("part"):
        pytest.skip("some of the tests only")
    assert {part_of(item.nodeid) for item in request.session.items} == set(PARTS)


def test_mutants_are_counted_by_room() -> None:
    found = [
        SimpleNamespace(user_properties=properties, passed=passed)
        for properties, passed in [
            ([("room", "softmax")], True), ([("room", "linear")], True), ([], False),
            ([("room", "softmax")], False),
        ]
    ]  # fmt: skip
    assert killed(found) == "Mutants killed: 2/3 (linear 1/1, softmax 1/2)"
    assert killed(found[2:3]) == ""


def test_rooms_of_mutants() -> None:
    def room(name: str, **parameters: object) -> str | None:
        item = SimpleNamespace(nodeid=f"tests/kernels/test_graph.py::{name}")
        item.callspec = SimpleNamespace(params=parameters)
        return room_of(item)

    mutant = Mutant("x", lambda package: None, "layers/matmul/fast.py", "", "")  # type: ignore
    assert room("test_mutant_is_killed", mutant=mutant) == "matmul"
    with pytest.raises(ValueError, match="not enough values"):
        room("test_mutant_is_killed", bug="x")
    assert room("test_wide_heads", size=3) is None


def test_the_readme_tells_of_every_part() -> None:
    readme = Path(__file__).with_name("README.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \| [^|]*\|$", readme, re.M)) == sorted(PARTS)
