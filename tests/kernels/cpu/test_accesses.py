"""The checked mode sees an access however it is written, in every kind of memory.

Each way to an element makes one kernel, and each mistake is an argument of it: so what is seen of
the right launch and of the wrong ones is seen of the same text.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from minitransformer_kernels import DataRace, OutOfBounds, UninitializedRead, checked
from minitransformer_kernels.cuda import cuda

from .launches import defined, sampled

THREADS = 8
BODY = np.dtype(
    [("kind", np.int8), ("mass", np.float32), ("place", np.float32, 2), ("hits", np.int64)],
    align=True,
)

# How an element is written: what goes before, and the element. `{i}` is the number of its row.
ROWS = {
    "all_indices": ("", "a[{i}, 1]"),
    "a_chain": ("", "a[{i}][1]"),
    "a_row": ("row = a[{i}]", "row[1]"),
    "a_slice": ("", "a[:, 1][{i}]"),
    "a_slice_of_a_row": ("", "a[{i}, 1:][0]"),
    "transposed": ("", "a.T[1][{i}]"),
    "one_of_two": ("", "(a if t < 9 else a[:])[{i}][1]"),
}
FIELDS = {
    "field_of_a_record": ("", 'a[{i}]["mass"]'),
    "attribute_of_a_record": ("", "a[{i}].mass"),
    "record_of_a_field": ("", 'a["mass"][{i}]'),
    "record_of_an_attribute": ("", "a.mass[{i}]"),
    "column": ('masses = a["mass"]', "masses[{i}]"),
    "record_by_name": ("row = a[{i}]", 'row["mass"]'),
    "record_by_name_and_attribute": ("row = a[{i}]", "row.mass"),
    "array_in_a_record": ("", "a[{i}].place[1]"),
    "array_in_a_record_by_name": ("row = a[{i}]", 'row["place"][1]'),
    "array_of_a_field": ("", 'a["place"][{i}][1]'),
    "array_of_a_field_at_once": ("", 'a["place"][{i}, 1]'),
}
ATOMICS = {
    "all_indices": ("", "a, ({i}, 1)", "a[{i}, 1]"),
    "a_row_at_once": ("", "a[{i}], 1", "a[{i}][1]"),
    "a_row": ("row = a[{i}]", "row, 1", "row[1]"),
    "a_slice": ("", "a[:, 1], {i}", "a[:, 1][{i}]"),
}
ATOMICS_IN_RECORDS = {
    "field": ("", 'a["hits"], {i}', 'a[{i}]["hits"]'),
    "attribute": ("", "a.hits, {i}", "a[{i}].hits"),
    "array_in_a_record": ("", "a[{i}].place, 1", "a[{i}].place[1]"),
    "array_of_a_record": ("row = a[{i}]", "row.place, 1", "row.place[1]"),
}
DECLARED = {
    "global": "",
    "shared": "a = cuda.shared.array((8, 4), np.float32)",
    "local": "a = cuda.local.array((8, 4), np.float32)",
}
KERNEL = """\
def kernel({given}out, far, skipped, together, wait):
    {declared}
    t = cuda.threadIdx.x
    if t >= skipped:
        i = t
        {before}
        {element} = t
    cuda.syncthreads()
    j = t // together + far
    {before_change}
    {change}
    if wait == 1:
        cuda.syncthreads()
    k = t
    {before_read}
    out[t] = {read}
"""


class Way(NamedTuple):
    """A way to an element, the memory that it is in, and whether an atomic changes it."""

    space: str
    before: str
    element: str
    atomic: str = ""
    records: bool = False

    @property
    def text(self) -> str:
        """The kernel."""
        change = f"cuda.atomic.add({self.atomic}, 1)" if self.atomic else f"{self.element} += 1"
        return KERNEL.format(
            given="a, " if self.space == "global" else "", declared=DECLARED[self.space] or "pass",
            before=self.before.format(i="i") or "pass", element=self.element.format(i="i"),
            before_change=self.before.format(i="j") or "pass", change=change.format(i="j"),
            before_read=self.before.format(i="k") or "pass", read=self.element.format(i="k"),
        )  # fmt: skip

    def arguments(self) -> list[np.ndarray]:
        """The arrays that a launch takes: the global one, if there is one, and room for a row."""
        out = np.zeros(THREADS, np.float32)
        if self.space != "global":
            return [out]
        return [
            np.zeros(THREADS, BODY) if self.records else np.zeros((THREADS, 4), np.float32),
            out,
        ]


WAYS = {
    **{f"{space}-{name}": Way(space, *way) for space in DECLARED for name, way in ROWS.items()
       if space != "local" or name in ("all_indices", "a_chain")},
    **{f"record-{name}": Way("global", *way, records=True) for name, way in FIELDS.items()},
    **{f"{space}-atomic-{name}": Way(space, before, element, at) for space in ("global", "shared")
       for name, (before, at, element) in ATOMICS.items()},
    **{f"record-atomic-{name}": Way("global", before, element, at, records=True)
       for name, (before, at, element) in ATOMICS_IN_RECORDS.items()},
}  # fmt: skip
ways = pytest.mark.parametrize(
    "way", sampled(WAYS, 7, "shared-a_chain", "shared-atomic-a_row", "record-record_by_name")
)


@ways
def test_ways(way: Way, tmp_path: Path) -> None:
    known = {"cuda": cuda, "np": np}
    kernel = cuda.jit(defined(tmp_path / "way.py", way.text, known)["kernel"])

    def run(
        *, far: int = 0, skipped: int = 0, together: int = 1, wait: int = 1
    ) -> list[np.ndarray]:
        arrays = way.arguments()
        kernel[1, THREADS](*arrays, far, skipped, together, wait)
        return arrays

    with checked(False):
        wanted = run()
    np.testing.assert_array_equal(wanted[-1], np.arange(1, THREADS + 1))
    with checked():
        for ours, theirs in zip(run(), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        with pytest.raises(OutOfBounds) as outside:
            run(far=THREADS)
        assert max(outside.value.index or ()) >= THREADS
        if way.space != "global":
            with pytest.raises(UninitializedRead) as early:
                run(skipped=1)
            assert early.value.array.startswith(("a", "row"))
        if way.space != "local":
            with pytest.raises(DataRace) as race:
                run(together=2, wait=int(not way.atomic))
            assert race.value.array.startswith(("a", "row", "masses"))


# Lines of a kernel of floats `a` (8, 4), records `r`, complex `c`, booleans `b`, integers `k`.
LINES = {
    "indices_beside_slices": "out[t] = a[1:, -1][t % 7] + a[-1, 1:][t % 3] + a[..., -2][t]",
    "new_axes": "out[t] = a[None, t][0, 1] + a[t, ...][0]",
    "another_shape": "a.reshape(16, 2)[t, 1] = 1\nout[t] = a.reshape((32,))[2 * t + 1]",
    "other_bits": "a.view(np.int32)[t, 0] = t\nout[t] = a.view(np.int32)[t, 0]",
    "one_row_or_another": "if t % 2:\n    row = a[t]\nelse:\n    row = a[t, :]\n"
        "row[1] = 9\nout[t] = row[1]",
    "two_that_change_places": "one, two = a, a[:, 1:]\nfor i in range(3):\n"
        "    one[t, 0] = two[t, 1] + i\n    one, two = two, one\nout[t] = one[t, 0] + two[t, 0]",
    "rows_of_a_row": "tile = cuda.shared.array((2, 8, 2), np.float64)\nplane = tile[t % 2]\n"
        "plane[t][0] = t\nrow = plane[t]\nrow[0] += 1\nout[t] = tile[t % 2, t][0]",
    "complex_numbers": "c[t] *= 2j\nout[t] = c[t].real + c[t].imag",
    "booleans": "b[t] = not b[t]\nif b[t]:\n    out[t] = 1",
    "a_tuple_of_indices": "at = (t, 0) if far > 3 else (t, 1)\nout[t] = a[at]",
    "items": "for number, item in enumerate(a[t]):\n    out[t] += number * item",
    "a_lock": "out[t] = 1 + cuda.atomic.compare_and_swap(k[t:], 0, 1)",
    "a_record_in_a_record": 'r[t]["inner"]["u"] = t\nr["inner"]["v"][t] = 3\n'
        'inner = r[t]["inner"]\nout[t] = inner["u"] + inner["v"]',
    "a_matrix_in_a_record": 'r[t]["matrix"][1, 0] = 5\nr["matrix"][t, 1, 1] = t\nrow = r[t]\n'
        'out[t] = row["matrix"][1][0] + r[t].matrix[1][1]',
    "a_field_that_changes": "r[t].inner.u = 5\nbefore = r[t].inner.u\nr[t].inner.u = 7\n"
        "out[t] = 10 * before + r[t].inner.u",
    "a_whole_record": "r[t] = r[t + 8]\nout[t] = r[t].inner.u",
}  # fmt: skip
INNER = np.dtype([("u", np.float32), ("v", np.int64)], align=True)
RECORD = np.dtype([("inner", INNER), ("matrix", np.float32, (2, 2))])


def test_a_field_that_changes_is_read_when_it_is() -> None:
    """Where all threads name one record, as a block of one does, it may still change in between."""

    @cuda.jit
    def twice(r, out):
        r[0].mass = 5
        before = r[0].mass
        r[0].mass = 7
        out[0] = 10 * before + r[0].mass

    for on in (False, True):
        out = np.zeros(1)
        with checked(on):
            twice[1, 1](np.zeros(1, BODY), out)
        assert out[0] == 57


@pytest.mark.parametrize("name", sampled({name: name for name in LINES}, 4))
def test_right_lines(name: str, tmp_path: Path) -> None:
    lines = LINES[name].replace("\n", "\n    ")
    text = f"def right(a, r, c, b, k, out, far):\n    t = cuda.threadIdx.x\n    {lines}\n"
    kernel = cuda.jit(defined(tmp_path / "right.py", text, {"cuda": cuda, "np": np})["right"])
    results = []
    for on in (False, True):
        rng = np.random.default_rng(0)
        numbers, given = rng.standard_normal((8, 4)).astype(np.float32), np.zeros(16, RECORD)
        given["inner"]["u"] = rng.standard_normal(16)
        others = rng.standard_normal(8) + 0j, rng.random(8) > 0.5, np.zeros(8, np.int32)
        out = np.zeros(8)
        with checked(on):
            kernel[1, 8](numbers, given, *others, out, 4)
        results.append((numbers, given, *others, out))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert results[0][-1].any()
