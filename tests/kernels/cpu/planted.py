"""Mistakes that people make in kernels: each is a right kernel, and an edit of its text.

The kernels are those of `right.py`. A data race is between two accesses, so there one or two lines
are meant, and the error names them in either order: which thread came first is what nobody knows.
"""

import inspect
import linecache
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minitransformer_kernels import DataRace, DivergentBarrier, OutOfBounds, UninitializedRead
from minitransformer_kernels.cuda import cuda

from . import right
from .launches import Case, counts, floats, integers, ints, with_steps, zeros

Place3 = tuple[int, int, int]


class Text(NamedTuple):
    """A function's text, and the name of the file that it seems to come from."""

    text: str
    filename: str

    def function(self, **outside: Any) -> Any:
        """The plain function, which sees what the right kernels see, and `outside`."""
        linecache.cache[self.filename] = (
            len(self.text), None, self.text.splitlines(keepends=True), self.filename,
        )  # fmt: skip
        namespace = vars(right) | outside
        exec(compile(self.text, self.filename, "exec"), namespace)
        return namespace[re.findall(r"def (\w+)", self.text)[0]]


def text_of(kernel: Any) -> str:
    """The text of a kernel without its decorators and its description."""
    text = inspect.getsource(kernel.function)
    return re.sub(r'\n    """.*?"""', "", text[text.index("def ") :], flags=re.DOTALL)


def replaced(text: str, old: str, new: str) -> str:
    """Text with an edit; `old` occurs once, indented in any way, `new` is indented like it."""
    (found,) = re.finditer(r"\n *".join(re.escape(line.strip()) for line in old.split("\n")), text)
    *_, line = text[: found.start()].split("\n")
    indent = " " * (len(line) - len(line.lstrip()))
    return text[: found.start()] + new.replace("\n", f"\n{indent}") + text[found.end() :]


class Mistake:
    """A launch of a kernel with a mistake, and what is to be said about it; None: anything.

    Args:
        kernel: A right kernel.
        name: What its copy is called, after its own name.
        edits: What becomes what in the text, of the kernel or of the device function `inside`.
        error: What the checked mode raises.
        arrays: The array is one of these; none: the mistake concerns no array.
        here: What the lines that the error names contain: the text of the last edit, as a rule.
        index, at, thread: The element, the block and the thread; numbers that are left out are 0.
        launch: What is not as in the launch of the right kernel, `block` for instance.
    """

    def __init__(
        self, kernel: Any, name: str, edits: dict[str, str], error: type[Exception], *arrays: str,
        here: Sequence[str] = (), index: Any = None, at: Any = None, thread: Any = None,
        inside: Any = None, fastmath: bool = False, **launch: Any,
    ) -> None:  # fmt: skip
        self.kernel, self.edits, self.error, self.arrays = kernel, edits, error, arrays
        self.name = f"{kernel.__name__}_{name}"
        self.here = here or [list(edits.values())[-1].rpartition("\n")[2].strip()]
        self.index = index if index is None or isinstance(index, tuple) else (index,)
        self.at, self.thread = map(_place, (at, thread))
        self.inside, self.fastmath, self.launch = inside, fastmath, launch

    @property
    def edited(self) -> Text:
        """The text with the mistake: of the device function, or of the kernel."""
        text = text_of(self.inside or self.kernel)
        for old, new in self.edits.items():
            text = replaced(text, old, new)
        text = text.replace(f"def {self.kernel.__name__}(", f"def {self.name}(")
        return Text(text, f"<{self.name}>")

    @cached_property
    def case(self) -> Case:
        """The wrong kernel, and a launch of it."""
        like = next(case for case in right.CASES.values() if case.kernel is self.kernel)
        text, outside = self.edited, {}
        if self.inside:
            outside[self.inside.function.__name__] = cuda.jit(device=True)(text.function())
            named = text_of(self.kernel).replace(self.kernel.__name__, self.name, 1)
            text = Text(named, f"<{self.name} itself>")
        kernel = cuda.jit(fastmath=self.fastmath)(text.function(**outside))
        return like._replace(kernel=kernel, **self.launch)

    def lines(self) -> set[int]:
        """The lines that the error is to name."""
        text = self.edited.text
        ends = (found.end() for part in self.here for found in re.finditer(re.escape(part), text))
        return {text[:end].count("\n") + 1 for end in ends}


def _place(given: Any) -> Place3 | None:
    if given is None:
        return None
    numbers = given if isinstance(given, tuple) else (given,)
    return (*numbers, 0, 0)[:3]


# fmt: off
LOOP = "while cuda.syncthreads_or(1 if left > 1 else 0):\nif left > 1:\nleft //= 2\ncount += 1"
UNTIL_DONE = "while left > 1:\n    left //= 2\n    count += 1\n    cuda.syncthreads()"
PAIR = "pair = tile[t] + tile[t + stride]\ncuda.syncwarp()\ntile[t] = pair"
SHUFFLE = "shfl_sync(ALL, t, 0)"
FIRST_WRITE = "tile[t] = x[i] if i < x.size else float32(0)"

MISTAKES = (
    # One thread, one element: the guard
    Mistake(right.scaled, "without_guard", {"if i < x.size:\nout": "out"}, OutOfBounds, "x",
            here=["out[i] ="], index=100, at=1, thread=36),
    Mistake(right.scaled, "with_one_too_many", {"i < x.size": "i <= x.size"}, OutOfBounds, "x",
            here=["out[i] ="], index=100, at=1, thread=36),
    Mistake(right.scaled, "by_a_stride_with_one_too_many",
            {"i = cuda.grid(1)\nif i < x.size":
             "for i in range(cuda.grid(1), x.size + 1, cuda.gridsize(1))"},
            OutOfBounds, "x", here=["out[i] ="], index=100, at=1, thread=36),
    Mistake(right.scaled, "without_guard_in_fast_mode", {"if i < x.size:\nout": "out"},
            OutOfBounds, "x", here=["out[i] ="], index=100, at=1, thread=36, fastmath=True),
    Mistake(right.scaled, "beyond_every_other_element", {"i < x.size": "i < out.size"},
            OutOfBounds, "x", here=["out[i] ="], index=50, at=0, thread=50,
            makers=(with_steps(2, floats(100)), zeros(100))),
    Mistake(right.scaled, "without_any_numbers", {"i < x.size": "i < out.size"}, OutOfBounds, "x",
            here=["out[i] ="], index=0, at=0, thread=0, makers=(floats(0), zeros(100))),
    Mistake(right.scaled, "from_the_end", {"out[i]": "out[x.size - i]"}, OutOfBounds, "out",
            index=100, at=0, thread=0),
    # Two dimensions
    Mistake(right.transposed, "with_indices_swapped", {"out[column, row]": "out[row, column]"},
            OutOfBounds, "out", index=(0, 11), at=1, thread=3),
    Mistake(right.transposed, "with_guards_swapped",
            {"row < a.shape[0]": "row < a.shape[1]", "column < a.shape[1]": "column < a.shape[0]"},
            OutOfBounds, "a", here=["out[column"], index=(11, 0), at=(0, 2), thread=(0, 3)),
    Mistake(right.flattened, "with_the_wrong_pitch",
            {"row * a.shape[1] + column": "column * a.shape[1] + row"}, OutOfBounds, "out",
            index=154, at=1, thread=3),
    Mistake(right.flattened, "with_the_number_of_rows", {"row * a.shape[1]": "row * a.shape[0]"},
            DataRace, "out"),
    Mistake(right.negated, "with_layers_of_blocks_on_each_other",
            {"out[z,": "out[cuda.threadIdx.z,"}, DataRace, "out",
            index=(0, 0, 0), at=(0, 0, 1)),
    Mistake(right.rolled, "with_one_line_for_all_rows",
            {"array((4, 8)": "array(8", "line[y, (x": "line[(x", "line[y, x]": "line[x]"},
            DataRace, "line"),
    Mistake(right.rolled, "with_room_for_the_first_row", {"(4, 8)": "(1, 8)"}, OutOfBounds, "line",
            here=["line[y, x]"], index=(1, 0), at=0, thread=(0, 1)),
    # Views and slices
    Mistake(right.row_sums, "with_one_too_many", {"row.size": "row.size + 1"},
            OutOfBounds, "row", "a", here=["total +="], at=0, thread=0),
    Mistake(right.row_sums, "below_the_last_row",
            {"out[cuda": "if cuda.grid(1) < out.size:\n    out[cuda"}, OutOfBounds, "a",
            here=["row = a"], index=24, at=3, thread=0, grid=4),
    Mistake(right.moved, "with_one_too_many", {"i < a.shape[0]": "i <= a.shape[0]"},
            OutOfBounds, "a", here=["row = a"], index=20, at=1, thread=4),
    Mistake(right.ends, "one_row_too_high", {"a[i][-1]": "a[i - 1][-1]"}, OutOfBounds, "a",
            index=(-1, 2), at=0, thread=0),
    Mistake(right.zeroed, "one_row_too_low", {"a[i] = 0": "a[i + 32] = 0"}, OutOfBounds,
            "a", index=32, at=0, thread=0),
    Mistake(right.zeroed, "all_in_the_first_row", {"a[i, 2:] = 1": "a[0, 2:] = i"}, DataRace, "a",
            index=0),
    # Tiles in shared memory
    Mistake(right.mirrored, "without_barrier", {"cuda.syncthreads()": "pass"}, DataRace, "tile",
            here=["tile[t] =", "out["]),
    Mistake(right.mirrored, "with_a_barrier_for_warps_only", {"syncthreads": "syncwarp"},
            DataRace, "tile", here=["tile[t] =", "out["]),
    Mistake(right.mirrored, "in_too_small_a_tile", {"array(64": "array(32"}, OutOfBounds, "tile",
            here=["tile[t] ="], index=32, at=0, thread=32),
    Mistake(right.mirrored, "from_one_too_far", {"63 - t": "64 - t"}, OutOfBounds, "tile",
            index=64, at=0, thread=0),
    Mistake(right.transposed_by_tiles, "from_the_padding", {"tile[x, y]": "tile[x, y + 1]"},
            UninitializedRead, "tile", index=(0, 8), thread=(0, 7)),
    Mistake(right.transposed_by_tiles, "within_the_first_column_of_blocks",
            {"out[cuda.blockIdx.x * 8 + y": "out[y"}, DataRace, "out"),
    Mistake(right.distances, "to_a_tile_not_yet_there", {"cuda.syncthreads()\nfor": "for"},
            DataRace, "tile", here=["tile[t] =", "total +="]),
    Mistake(right.distances, "to_a_tile_no_longer_there",
            {"tile[j])\ncuda.syncthreads()": "tile[j])"}, DataRace, "tile",
            here=["tile[t] =", "total +="]),
    Mistake(right.distances, "beyond_the_last_tile", {"min(start + t, last)": "start + t"},
            OutOfBounds, "x", index=83, at=0, thread=19),
    Mistake(right.product, "beyond_the_last_tile", {" and column < matrix.shape[1]": ""},
            OutOfBounds, "a", "matrix", here=["return matrix"], inside=right.element,
            index=(0, 13), at=0, thread=5),
    Mistake(right.product, "with_a_row_of_a_tile_missing",
            {"b_tile[y, x]": "if y < 7:\n    b_tile[y, x]"}, UninitializedRead, "b_tile",
            here=["total +="], index=(7, 0), at=0),
    # Stencils
    Mistake(right.smoothed, "with_half_a_halo", {"array(34": "array(33"}, OutOfBounds, "tile",
            here=["tile[33]"], index=33, at=0, thread=31),
    Mistake(right.smoothed, "beyond_the_left_edge", {"max(i - 1, 0)": "i - 1"}, OutOfBounds, "x",
            index=-1, at=0, thread=0),
    Mistake(right.smoothed, "beyond_the_right_edge", {"min(i + 1, last)": "i + 1"},
            OutOfBounds, "x", index=96, at=2, thread=31),
    Mistake(right.smoothed, "without_the_left_halo",
            {"if t == 0:\ntile[0] = x[max(i - 1, 0)]": "pass"}, UninitializedRead, "tile",
            here=["out[i] ="], index=0, at=0, thread=0),
    Mistake(right.smoothed, "with_a_gap_in_the_last_block",
            {"tile[t + 1] = x[min(i, last)]": "if i < x.size:\n    tile[t + 1] = x[i]"},
            UninitializedRead, "tile", here=["out[i] ="], index=27, at=2, thread=25),
    Mistake(right.smoothed, "with_the_halo_after_the_barrier",
            {"if t == 0:\ntile[0] = x[max(i - 1, 0)]": "pass",
             "if i <": "if t == 1:\n    tile[0] = x[max(i - 2, 0)]\nif i <"},
            DataRace, "tile", here=["tile[0]", "out[i] ="]),
    Mistake(right.summed_with_the_row_above, "in_place", {"out[row, t]": "a[row, t]"},
            DataRace, "a"),
    # Sums of a block
    Mistake(right.sums, "with_the_barrier_in_the_if",
            {"cuda.syncthreads()\nstride //": "    cuda.syncthreads()\nstride //"},
            DivergentBarrier, here=["            cuda.syncthreads()"]),
    Mistake(right.sums, "after_an_early_return",
            {FIRST_WRITE: "if i >= x.size:\n    return\ntile[t] = x[i]",
             "t < stride": "t < stride and i + stride < x.size"},
            DivergentBarrier, here=["x[i]\n    cuda.syncthreads()"], at=2),
    Mistake(right.sums, "without_barriers_between_the_halves",
            {"cuda.syncthreads()\nstride //": "stride //"}, DataRace, "tile", here=["tile[t] +="]),
    Mistake(right.sums, "by_threads_that_need_not_stop", {"t < stride": "t + stride < 64"},
            DataRace, "tile", here=["tile[t] +="]),
    Mistake(right.sums, "beyond_what_is_there", {FIRST_WRITE: "if i < x.size:\n    tile[t] = x[i]"},
            UninitializedRead, "tile", here=["tile[t] +="], index=32, at=2, thread=0),
    Mistake(right.sums, "from_too_large_a_stride", {"stride = 32": "stride = 64"},
            OutOfBounds, "tile", here=["tile[t] +="], index=64, at=0, thread=0),
    Mistake(right.sums, "of_blocks_that_do_not_halve",
            {"array(64": "array(48", "t == 0": "t == 0 and cuda.blockIdx.x < out.size"},
            OutOfBounds, "tile", here=["tile[t] +="], index=48, thread=16, grid=4, block=48),
    Mistake(right.sums, "of_all_blocks_in_one_place", {"out[cuda.blockIdx.x]": "out[0]"},
            DataRace, "out", index=0, at=1),
    Mistake(right.sums, "that_the_wrong_thread_hands_over",
            {"cuda.syncthreads()\nstride //": "stride //", "t == 0": "t == 63",
             "while stride > 0:": "while stride > 0:\n    cuda.syncthreads()"},
            DataRace, "tile", here=["tile[t] +=", "out["], at=0),
    Mistake(right.totals, "from_anything",
            {"if cuda.threadIdx.x == 0:\ntotal[0] = 0\ncuda.syncthreads()": "pass"},
            UninitializedRead, "total", here=["cuda.atomic"], index=0, at=0, thread=0),
    Mistake(right.totals, "with_plain_additions",
            {"cuda.atomic.add(total, 0, x[cuda.grid(1)])": "total[0] += x[cuda.grid(1)]"},
            DataRace, "total", index=0),
    Mistake(right.means, "of_sums_that_others_still_add_to",
            {"x[cuda.grid(1)])\ncuda.syncthreads()": "x[cuda.grid(1)])"}, DataRace, "total",
            here=["cuda.atomic", "out[block] ="]),
    # Warps
    Mistake(right.sums_by_one_warp, "taken_to_be_in_step",
            {f"{PAIR}\ncuda.syncwarp()": "tile[t] += tile[t + stride]"}, DataRace, "tile"),
    Mistake(right.sums_by_one_warp, "that_waits_after_writing_only",
            {PAIR: "tile[t] += tile[t + stride]"}, DataRace, "tile"),
    Mistake(right.sums_by_one_warp, "that_waits_by_a_shuffle",
            {f"{PAIR}\ncuda.syncwarp()": PAIR.replace("syncwarp()", SHUFFLE) + f"\ncuda.{SHUFFLE}"},
            DataRace, "tile", here=["pair =", "tile[t] = pair"]),
    Mistake(right.sums_of_warps, "that_do_not_wait", {"cuda.syncthreads()": "pass"},
            DataRace, "partial", here=["partial[t", "out["], index=1),
    Mistake(right.sums_of_warps, "that_wait_for_themselves", {"syncthreads": "syncwarp"},
            DataRace, "partial", here=["partial[t", "out["], index=1),
    # Counting
    Mistake(right.histogram, "with_plain_additions",
            {"cuda.atomic.add(bins, x[cuda.grid(1)], 1)": "bins[x[cuda.grid(1)]] += 1"},
            DataRace, "bins"),
    Mistake(right.histogram, "handed_over_too_early", {"1)\ncuda.syncthreads()": "1)"},
            DataRace, "bins", here=["add(bins", "add(counts"]),
    Mistake(right.histogram, "begun_too_early",
            {"if t < 8:\nbins[t] = 0\ncuda.syncthreads()": "if t >= 24:\n    bins[t - 24] = 0"},
            DataRace, "bins", here=["bins[t - 24]", "add(bins"]),
    Mistake(right.histogram, "not_begun_at_all",
            {"if t < 8:\nbins[t] = 0\ncuda.syncthreads()": "pass"}, UninitializedRead, "bins",
            here=["add(bins"]),
    Mistake(right.histogram, "of_one_number_more", {}, OutOfBounds, "bins",
            here=["add(bins"], index=8, makers=(integers(9, 96), ints(8))),
    Mistake(right.histogram, "summed_up_by_plain_additions",
            {"cuda.atomic.add(counts, t, bins[t])": "counts[t] += bins[t]"}, DataRace, "counts",
            at=1),
    Mistake(right.counted, "with_plain_additions",
            {"cuda.atomic.add(count, 0, 1)": "count[0] += 1"}, DataRace, "count", index=0),
    Mistake(right.counted, "from_a_zero_that_may_come_late",
            {"if x": "if cuda.grid(1) == 0:\n    count[0] = 0\nif x"}, DataRace, "count",
            here=["count[0] =", "cuda.atomic"], index=0,
            makers=(floats(64), lambda rng: np.full(1, 9))),
    Mistake(right.counted, "up_to_a_limit_that_is_not_kept", {"> 0": "> 0 and count[0] < 10"},
            DataRace, "count", here=["count[0]", "cuda.atomic"], index=0),
    Mistake(right.any_positive, "by_number", {"found[0] = 1": "found[0] = cuda.grid(1)"},
            DataRace, "found", index=0),
    # Running sums
    Mistake(right.running_sums, "in_place",
            {"total = rows[now, t]\nif": "if", "total += rows[now,": "rows[0, t] += rows[0,",
             "now = 1 - now\nrows[now, t] = total\nstep": "step"},
            DataRace, "rows", here=["rows[0, t] +="]),
    Mistake(right.running_sums, "in_the_same_row", {"now = 1 - now\nrows": "rows"},
            DataRace, "rows", here=["total +=", "= total"]),
    Mistake(right.running_sums, "from_the_other_row", {"total = rows[now": "total = rows[1 - now"},
            UninitializedRead, "rows", index=(1, 0), at=0),
    # Shared memory that is used again
    Mistake(right.standardised, "in_a_hurry", {"tile[j]\ncuda.syncthreads()": "tile[j]"},
            DataRace, "tile", here=["tile[cuda", "total +="], inside=right.total_of),
    Mistake(right.waited, "for_a_flag_that_falls_too_early", {"cuda.syncthreads()  #": "pass  #"},
            DataRace, "busy", here=["while", "busy[0] = 0"], index=0),
    Mistake(right.exchanged, "with_too_few_bytes", {}, OutOfBounds, "factors",
            here=["factors[t] ="], index=16, at=0, thread=16, shared_bytes=192),
    Mistake(right.exchanged, "over_each_other", {"[32:]": "[16:]"}, DataRace, "numbers", "factors",
            here=["numbers[t] =", "factors[t] ="]),
    # Local and constant arrays, records
    Mistake(right.powers, "of_three_of_four", {"range(4):\nown": "range(3):\n    own"},
            UninitializedRead, "own", here=["own[3"], index=3, at=0, thread=0),
    Mistake(right.powers, "from_one_too_far", {"own[3 - k]": "own[4 - k]"}, OutOfBounds, "own",
            index=4, at=0, thread=0),
    Mistake(right.powers, "that_the_last_thread_lacks",
            {"own[k] =": "if 4 * i + k + 4 < a.size:\n    own[k] =", "own[3 - k]": "own[k]\n"},
            UninitializedRead, "own", here=["2) + own[k]"], index=0, at=1, thread=31),
    Mistake(right.filtered, "with_a_fourth_weight", {"range(3)": "range(4)"},
            OutOfBounds, "weights", "WEIGHTS", here=["total +="], index=3, thread=0),
    Mistake(right.momenta, "without_guard", {"if i < out.size:\nout": "out"}, OutOfBounds, "bodies",
            here=["out[i] ="], index=50, at=1, thread=18),
    Mistake(right.exchanged_by_fields, "of_which_two_are_one", {'["speed"]': '["mass"]'},
            DataRace, "bodies", here=['["mass"] =', '["mass"][']),
    Mistake(right.exchanged_by_fields, "of_bodies_that_are_not_there", {"[i // 2] =": "[i] ="},
            OutOfBounds, "bodies", index=33, at=1, thread=1),
    Mistake(right.slowed, "without_guard", {"i < bodies.size": "i < 64"}, OutOfBounds, "bodies",
            here=["body ="], index=50, at=1, thread=18),
    Mistake(right.slowed, "all_as_one", {"bodies[i]\nwhile": "bodies[0]\nwhile"}, DataRace,
            "body", "bodies", here=["while abs", "body.speed *="]),
    Mistake(right.put_off, "by_two", {"dates[i] =": "dates[i // 2] ="}, DataRace, "dates"),
    # Barriers that not all threads reach
    Mistake(right.halvings, "that_end_at_different_times", {LOOP: UNTIL_DONE}, DivergentBarrier),
    Mistake(right.halvings, "that_break_off",
            {LOOP: "while True:\n    if left <= 1:\n        break\n    left //= 2\n    count += 1\n"
                   "    cuda.syncthreads()"},
            DivergentBarrier, here=["cuda.syncthreads()"]),
    Mistake(right.halvings, "that_leave_turns_out",
            {LOOP: "for _ in range(7):\n    if left <= 1:\n        continue\n    left //= 2\n"
                   "    cuda.syncthreads()"},
            DivergentBarrier, here=["cuda.syncthreads()"]),
    Mistake(right.halvings, "that_return_early",
            {LOOP: "for count in range(7):\n    if left <= 1:\n        out[cuda.grid(1)] = count\n"
                   "        return\n    left //= 2\n    cuda.syncthreads()"},
            DivergentBarrier, here=["cuda.syncthreads()"]),
    Mistake(right.halvings, "with_a_wait_for_each_unit",
            {LOOP: "for _ in range(left):\n    cuda.syncthreads()"}, DivergentBarrier,
            here=["cuda.syncthreads()"]),
    Mistake(right.halvings, "with_a_barrier_for_each_branch",
            {LOOP: "if left > 1:\n    count = 1\n    cuda.syncthreads()\n"
                   "else:\n    cuda.syncthreads()"},
            DivergentBarrier, here=["cuda.syncthreads()"]),
    Mistake(right.halvings, "with_a_vote_of_the_large",
            {LOOP: "if left > 8:\n    count = cuda.syncthreads_count(left & 16)"},
            DivergentBarrier, here=["cuda.syncthreads_count"]),
    Mistake(right.halvings, "that_differ_in_the_second_block", {LOOP: UNTIL_DONE},
            DivergentBarrier, at=1,
            makers=(lambda rng: np.r_[np.full(32, 9), rng.permutation(32)], counts(64))),
    Mistake(right.standardised, "with_a_wait_for_the_positive",
            {"cuda.syncthreads()  #": "if value > 0:\n    cuda.syncthreads()  #"},
            DivergentBarrier, here=["cuda.syncthreads()  #"], inside=right.total_of, at=0),
    # Rows of shared arrays
    Mistake(right.counted_in_rows, "without_the_second_barrier",
            {"1)\ncuda.syncthreads()": "1)",
             "table[0, t] + 10 * table[1, t] + 100 * last[t]": "last[t]"},
            DataRace, "own", "last", here=["cuda.atomic", "= last[t]"]),
)
# fmt: on
PLANTED = {mistake.name: mistake for mistake in MISTAKES}
