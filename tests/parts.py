"""The parts of a nightly run, each of at most an hour on two cores, and what its mutants came to.

HYPOTHESIS_PROFILE=nightly pytest --part mutants
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

MUTANT = r"^[^\[]*::test_(mutant_|missing_barrier_)"
# A test is in the first part whose pattern is found in its name.
PARTS = {
    "mutants": rf"{MUTANT}|kernels/test_mutants",  # which looks at all lists of bugs
    "ptx": r"kernels/gpu/ptx/",
    "softmax": r"kernels/test_(softmax|local|graph)|kernels/.*[\[-](softmax|local)",
    "relative": r"kernels/test_relative|kernels/.*[\[-]relative",
    "fourier": r"kernels/test_(fourier|delta)|kernels/.*[\[-](fourier|delta)",
    "features": r"kernels/test_features",
    "linear": r"kernels/test_(properties|algorithms|numerics)|kernels/.*test_attention",
    "machinery": r"kernels/",
    "public": r"minitransformer/test_",
    "fuzz": r"tests/test_fuzz",
    "engine": r"",
}


def part_of(test: str) -> str:
    """The part that a test is in, by its name."""
    return next(part for part, pattern in PARTS.items() if re.search(pattern, test))


def room_of(item: Any) -> str | None:
    """The room whose mutant a test hunts, or None."""
    if not re.search(MUTANT, item.nodeid):
        return None
    (room,) = [x.room for x in item.callspec.params.values() if hasattr(x, "room")]
    return str(room)


def killed(reports: Iterable[Any]) -> str:
    """How many mutants were killed, room by room; nothing where none was hunted."""
    hunts = [(room, x.passed) for x in reports for key, room in x.user_properties if key == "room"]
    hunted, found = Counter(room for room, _ in hunts), Counter(room for room, ok in hunts if ok)
    rooms = ", ".join(f"{room} {found[room]}/{number}" for room, number in sorted(hunted.items()))
    return f"Mutants killed: {found.total()}/{hunted.total()} ({rooms})" if hunts else ""
