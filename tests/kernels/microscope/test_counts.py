"""Known facts of GPUs, against what the microscope counts in traces that are written by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer_kernels.gpu import gpus
from minitransformer_kernels.microscope.report import Report
from minitransformer_kernels.microscope.warps import Traffic, number, requests
from tests.kernels.microscope.traces import Access, Run, by_hand

# Arrays (64, 64), and what one request of 32 threads along x costs: sectors, and the fewest.
GLOBAL = {
    "row": (Access(lambda x, y: (5, x)), 4, 4),
    "column": (Access(lambda x, y: (x, 5)), 32, 4),
    "every other": (Access(lambda x, y: (5, 2 * x)), 8, 4),
    "row, one element on": (Access(lambda x, y: (5, x + 1)), 5, 4),
    "backwards": (Access(lambda x, y: (5, 31 - x)), 4, 4),
    "broadcast": (Access(lambda x, y: (5, 5)), 1, 1),
    "eight lanes": (Access(lambda x, y: (5, x) if x < 8 else None), 1, 1),
    "nine lanes": (Access(lambda x, y: (5, x) if x < 9 else None), 2, 2),
    "one lane": (Access(lambda x, y: (5, x) if x == 9 else None), 1, 1),
    "row of float64": (Access(lambda x, y: (5, x), itemsize=8), 8, 8),
    "column of float64": (Access(lambda x, y: (x, 5), itemsize=8), 32, 8),
    "row of float16": (Access(lambda x, y: (5, x), itemsize=2), 2, 2),
    "row of bytes": (Access(lambda x, y: (5, x), itemsize=1), 1, 1),
    "row of complex128": (Access(lambda x, y: (5, x), itemsize=16), 16, 16),
    "records of 12 bytes": (Access(lambda x, y: (0, x), itemsize=12), 12, 12),
    "column of records": (Access(lambda x, y: (x, 2), itemsize=12), 64, 12),
}

# Shared arrays, and the wavefronts of a request: those it takes, and without conflicts.
SHARED = {
    "row": (Access(lambda x, y: (5, x), (32, 32)), 1, 1),
    "column of 32": (Access(lambda x, y: (x, 5), (32, 32)), 32, 1),
    "column of 33": (Access(lambda x, y: (x, 5), (32, 33)), 1, 1),
    "column of 36": (Access(lambda x, y: (x, 5), (32, 36)), 4, 1),
    "broadcast": (Access(lambda x, y: (5, 5), (32, 32)), 1, 1),
    "two words of a bank": (Access(lambda x, y: (x % 2, 0), (32, 32)), 2, 1),
    "stride 2": (Access(lambda x, y: 2 * x, (64,)), 2, 1),
    "row of float64": (Access(lambda x, y: (5, x), (32, 32), itemsize=8), 2, 2),
    "column of float64": (Access(lambda x, y: (x, 5), (32, 32), itemsize=8), 32, 2),
    "column of 33 float64": (Access(lambda x, y: (x, 5), (32, 33), itemsize=8), 2, 2),
    "row of bytes": (Access(lambda x, y: x, (32,), itemsize=1), 1, 1),
    "row of complex128": (Access(lambda x, y: x, (32,), itemsize=16), 4, 4),
    "atomics on one word": (Access(lambda x, y: 3, (32,), kind="atomic"), 32, 1),
    "one lane": (Access(lambda x, y: 3 if x == 9 else None, (32,)), 1, 1),
    "atomics apart": (Access(lambda x, y: x, (32,), kind="atomic"), 1, 1),
}


def only(access: Access, block: tuple[int, int] = (32, 1)) -> Traffic:
    (found,) = requests(by_hand([access], block=block))
    return found.traffic


@pytest.mark.parametrize("name", GLOBAL)
def test_sectors(name):
    access, sectors, fewest = GLOBAL[name]
    found = only(access)
    assert (found.transactions, found.fewest, found.requests) == (sectors, fewest, 1)
    assert found.worst == sectors


@pytest.mark.parametrize("name", SHARED)
def test_wavefronts(name):
    access, wavefronts, fewest = SHARED[name]
    found = only(access._replace(space="shared"))
    assert (found.transactions, found.fewest, found.requests) == (wavefronts, fewest, 1)
    assert found.worst == wavefronts // fewest


def test_warps_are_made_of_threads_with_x_first():
    access = Access(lambda x, y: (y, x))
    found = only(access, block=(8, 8))  # a warp is four rows of eight
    assert (found.requests, found.transactions, found.fewest) == (2, 8, 8)
    found = only(access, block=(48, 2))  # 96 threads: the second warp spans both rows
    assert (found.requests, found.transactions, found.fewest) == (3, 12, 12)


def test_a_warp_of_which_no_lane_takes_part_makes_no_request():
    found = only(Access(lambda x, y: (0, x) if y == 1 else None), block=(32, 4))
    assert (found.requests, found.reads) == (1, 32)


def test_local_arrays_are_listed_and_cost_no_transactions():
    found = only(Access(lambda x, y: x, (32,), space="local", kind="write"))
    assert (found.writes, found.transactions, found.fewest) == (32, 0, 0)


@given(st.data())
def test_sectors_and_wavefronts_by_the_book(data):
    """Against sets of sectors and words, lane by lane."""
    itemsize = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    kind = data.draw(st.sampled_from(["read", "write", "atomic"]))
    index = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=64, max_size=64))
    taken = [(t, i * itemsize) for t, i in enumerate(index) if i is not None]
    if not taken:
        return
    access = Access(lambda x, y: index[x], (100,), kind=kind, itemsize=itemsize)
    sectors = fewest = waves = parts = 0
    for warp in (0, 1):
        mine = [(t % 32, a) for t, a in taken if t // 32 == warp]
        sectors += len({b // 32 for _, a in mine for b in range(a, a + itemsize)})
        fewest += -(-len({a for _, a in mine}) * itemsize // 32)
        width = 32 // max(1, itemsize // 4)
        for part in range(32 // width):
            words = [
                w
                for lane, a in mine
                if lane // width == part
                for w in range(a // 4, (a + itemsize - 1) // 4 + 1)
            ]
            words = words if kind == "atomic" else list(set(words))
            waves += max((sum(w % 32 == b for w in words) for b in range(32)), default=0)
            parts += bool(words)
    found = only(access, block=(64, 1))
    assert (found.transactions, found.fewest) == (sectors, fewest)
    found = only(access._replace(space="shared"), block=(64, 1))
    assert (found.transactions, found.fewest) == (waves, parts)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_numbers_of_rows(rows):
    first, second = np.array(rows).T
    ranks = {row: rank for rank, row in enumerate(sorted(set(rows)))}
    assert number(first, second).tolist() == [ranks[row] for row in rows]


def test_total_adds_up_and_keeps_the_worst():
    a, b = Traffic(reads=1, bytes=4, requests=1, worst=9), Traffic(writes=2, bytes=8, worst=3)
    assert Traffic.total([a, b]) == Traffic(1, 2, 0, 12, 1, 0, 0, 9)
    assert Traffic.total([]) == Traffic()


def test_strides():
    def stride(access: Access) -> int | None:
        (found,) = requests(by_hand([access]))
        return found.stride

    assert stride(Access(lambda x, y: (5, x))) == 4
    assert stride(Access(lambda x, y: (x, 5))) == 256
    assert stride(Access(lambda x, y: (5, 5))) == 0
    assert stride(Access(lambda x, y: (x * x % 61, 5))) is None
    assert stride(Access(lambda x, y: (5, x) if x % 2 else None)) == 8  # of active neighbours
    assert stride(Access(lambda x, y: (5, x) if x == 9 else None)) is None  # one lane has none


def report(*arguments, **options) -> Report:
    return Report(by_hand(*arguments, **options), gpus.find("H100"), 4, "not asked for")


def test_divergence():
    every, odd, even, late = report(
        runs=[
            Run(lambda x, y: True),
            Run(lambda x, y: x % 2 == 1),
            Run(lambda x, y: x % 2 == 0),
            Run(lambda x, y: x >= 32),
        ],
        block=(48, 1),
    ).lines
    assert (every.share, odd.share, even.share) == (1, 0.5, 0.5)
    # The first warp does not come here at all, and the second has 16 lanes.
    assert (late.active, late.lanes, late.share) == (16, 16, 1)


def test_flops_and_roofline_of_saxpy():
    found = report(
        [
            Access(lambda x, y: x, (32,), array="x"),
            Access(lambda x, y: x, (32,), array="y"),
            Access(lambda x, y: x, (32,), array="y", kind="write"),
        ],
        [Run(lambda x, y: True, flops=2)],
    )
    roof = found.roofline
    assert (found.lines[0].flops, roof.flops) == (64, 64)
    assert (roof.moved, roof.needed) == (3 * 128, 3 * 128)
    assert roof.intensity(roof.moved) == pytest.approx(1 / 6)
    assert roof.bound(roof.moved) == pytest.approx(3350e9 / 6)
    assert roof.limit(roof.moved) == "memory"
    assert roof.ridge == pytest.approx(20)


def test_much_arithmetic_is_bound_by_the_peak():
    roof = report([Access(lambda x, y: (0, x))], [Run(lambda x, y: True, flops=1000)]).roofline
    assert roof.limit(roof.moved) == "compute"
    assert roof.bound(roof.moved) == 67e12


def test_each_element_is_needed_once():
    twice = Access(lambda x, y: (0, x))
    roof = report([twice, twice, twice._replace(array="b")], block=(32, 2)).roofline
    assert (roof.moved, roof.needed) == (6 * 128, 2 * 128)


def test_advice_names_line_array_and_stride():
    (text,) = report([Access(lambda x, y: (x, 5), (64, 1024), array="weights")]).advice
    assert text.startswith("line 1: reading 'weights' moves 8 times the bytes that it has to")
    assert "4096 bytes apart" in text


def test_advice_to_pad_a_tile():
    column = Access(lambda x, y: (x, 5), (32, 32), "shared", array="tile")
    (text,) = report([column]).advice
    assert "line 1: reading 'tile' is a 32-way bank conflict" in text
    assert "words 32 apart" in text
    assert "Rows of 33 elements instead of 32" in text
    assert report([column._replace(shape=(32, 33))]).advice == []


def matrix(columns: int, index=lambda x, y: (y, x)) -> Access:
    return Access(index, (64, columns))


# What a block of threads does, and the cause that the advice must name.
CAUSES = {
    "short rows": ((8, 8), matrix(60), "a warp spans 4 rows of 8 threads"),
    "short rows that fill sectors": ((8, 8), matrix(64), None),
    "a halo": ((32, 4), matrix(64, lambda x, y: (y, x + 1)), "in the middle of a sector"),
    "the edge of a halo": ((32, 4), matrix(64, lambda x, y: (y, x - 1) if x else None), None),
    "a pitch": ((32, 8), matrix(35), "Rows of 40 elements, the last of them unused"),
    "a column": ((32, 2), matrix(64, lambda x, y: (x, y)), "addresses 256 bytes apart"),
    "every other thread": ((32, 1), matrix(64, lambda x, y: (y, x) if x % 2 else None),
                           "15 lanes of the warp sit out"),
    "a gather": ((32, 1), matrix(64, lambda x, y: (x * x % 61, 5)), "scattered addresses"),
    "pieces of any length": ((32, 1), matrix(64, lambda x, y: (x // 12, x + 3)), "for 3 pieces"),
    "rows that share banks": ((16, 2), Access(lambda x, y: (y, x), (16, 33), "shared"),
                              "a warp spans 2 rows of 16 threads, 33 words apart"),
    "rows that share none": ((16, 2), Access(lambda x, y: (y, x), (16, 48), "shared"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_advice_names_the_cause(name):
    block, access, cause = CAUSES[name]
    advice = [text for text in report([access], block=block).advice if "lanes are" not in text]
    assert len(advice) == (cause is not None)
    assert cause is None or cause in advice[0]


def test_the_picture_is_of_the_worst_warp():
    """The second warp's columns, not the first one's row."""
    access = matrix(64, lambda x, y: (x, 5) if y else (5, x))
    (found,) = requests(by_hand([access], block=(32, 2)))
    worst = found.worst().traffic
    assert (worst.requests, worst.transactions, worst.fewest) == (1, 32, 4)
    (found,) = requests(by_hand([access._replace(space="shared")], block=(32, 2)))
    assert found.worst().traffic.worst == 32


def test_advice_on_atomics_that_meet():
    (text,) = report([Access(lambda x, y: 0, (8,), "shared", "atomic")]).advice
    assert "up to 32 of a warp" in text


def test_advice_on_what_is_asked_for_again():
    (text,) = report([Access(lambda x, y: (0, x), array="b")], block=(32, 16)).advice
    assert "'b' is asked for again: 2 KiB, where each element once would be 128 B" in text


def test_one_element_is_not_asked_for_again_because_its_sector_is_larger():
    assert report([Access(lambda x, y: (0, 0) if x == 0 else None)]).advice == []


def test_advice_on_divergence():
    (text,) = report(runs=[Run(lambda x, y: x % 4 == 0), Run(lambda x, y: True)]).advice
    assert text.startswith("line 1: 25% of the lanes")
    few, most, every = (Run(lambda x, y, n=n: x < n) for n in (4, 30, 32))
    texts = report(runs=[every, few, few, most, few, every, few, few, few]).advice
    places = [text.partition(":")[0] for text in texts]
    assert places == ["line 7 to 9", "line 2 to 3", "line 5"]


def test_good_access_needs_no_advice():
    assert report([Access(lambda x, y: (0, x))], [Run(lambda x, y: True)]).advice == []


# -- GPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "expected"),
    [
        ((8, 0), 256, 32, 0, (8, 1.0, "warps")),
        ((8, 0), 1024, 32, 0, (2, 1.0, "warps")),
        ((8, 0), 32, 32, 0, (32, 0.5, "blocks")),
        ((8, 0), 256, 64, 0, (4, 0.5, "registers")),
        ((8, 0), 256, 65, 0, (3, 0.375, "registers")),  # 65 registers take the room of 72
        ((8, 0), 256, 32, 48 * 1024, (3, 0.375, "shared memory")),  # each takes 49 KiB of 164
        ((7, 5), 256, 32, 32 * 1024, (2, 0.5, "shared memory")),  # nothing is reserved
        ((7, 5), 1024, 64, 0, (1, 1.0, "warps")),
        ((9, 0), 128, 255, 0, (2, 0.125, "registers")),
        ((8, 6), 1024, 40, 0, (1, 2 / 3, "warps")),
        ((8, 0), 1024, 255, 0, (0, 0.0, "registers")),
        ((8, 0), 33, 32, 0, (32, 1.0, "warps")),  # 33 threads are two warps
    ],
)
def test_occupancy(capability, threads, registers, shared, expected):
    found = gpus.occupancy(capability, (threads,), registers, shared)
    assert tuple(found) == expected


def test_gpus_are_found_by_any_spelling():
    assert gpus.find("rtx4090") is gpus.find("RTX 4090") is gpus.find("4090")
    with pytest.raises(ValueError, match="no GPU 'H900' is known here; expected one of T4, A100"):
        gpus.find("H900")


def test_float64_runs_at_the_architecture_s_rate():
    assert gpus.find("H100").peak(8) == pytest.approx(33.5e12)
    assert gpus.find("RTX 4090").peak(8) == pytest.approx(82.6e12 / 64)


# -- Odd launches ----------------------------------------------------------------------------------

ODD = {
    "nothing at all": ([], []),
    "no memory": ([], [Run(lambda x, y: True, flops=3)]),
    "no thread comes here": ([Access(lambda x, y: None)], [Run(lambda x, y: False)]),
    "only local memory": ([Access(lambda x, y: x, (32,), "local")], []),
    "backwards from the end": ([Access(lambda x, y: (63, 63 - x))], []),
    "three dimensions": ([Access(lambda x, y: (1, x % 4, x), (4, 4, 64), "shared")], []),
    "one element": ([Access(lambda x, y: (0, 0), (1, 1))], []),
    "one lane": ([Access(lambda x, y: (0, 0) if x == 0 else None)], []),
    "a scattered gather": ([Access(lambda x, y: x * x * 997 % 65521, (65521,))], []),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_launches_have_a_table_and_a_picture(name):
    found = report(*ODD[name])
    assert "roofline, H100" in str(found)
    assert found.picture().startswith(b"\x89PNG")
