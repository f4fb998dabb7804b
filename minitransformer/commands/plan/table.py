"""`minitransformer plan`: what each algorithm costs as a table, and the crossovers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minitransformer_kernels import planner
from minitransformer_kernels.arrays import processors
from minitransformer_kernels.planner import Sizes

_BYTES = "B", "KiB", "MiB", "GiB", "TiB", "PiB"


class Question(NamedTuple):
    """What is asked: of which attention, and by what it is judged."""

    sizes: Sizes  # the attention
    cost_model: str = "kernel"  # or "seed"
    device: str = "cpu"  # for the kernels' model: or "cuda", this machine's GPU, or a GPU's name
    backward: bool = False  # whether the kernels' memory is that of both passes

    @property
    def processors(self) -> int:
        """How many blocks run at once.

        Raises:
            RuntimeError: the device is "cuda", and this machine has no GPU.
            ValueError: there is no such device.
        """
        if self.device == "cpu":
            return 1
        if self.device == "cuda":
            from ...device import as_array

            return processors(as_array(0.0, "cuda"))
        from minitransformer_kernels.gpu import gpus

        return gpus.find(self.device).multiprocessors

    def choice(self, sizes: Sizes) -> dict[str, str]:
        """Return what is taken for some sizes."""
        return planner.plan(sizes, cost_model=self.cost_model, processors=self.processors)

    def crossovers(self, sizes: Sizes) -> dict[str, list[tuple[int, str]]]:
        """Return from which length on what is taken."""
        return planner.crossovers(sizes, cost_model=self.cost_model, processors=self.processors)


def report(asked: Question) -> list[str]:
    """Return the costs, the choice and the crossovers, in lines of text."""
    sizes, starts = asked.sizes, asked.crossovers(asked.sizes)
    if asked.cost_model == "seed":
        return [
            _title(sizes),
            "What array programs keep in memory, by the seed's cost model:",
            "",
            *_columns(_seed_table(asked)),
            "",
            "Where Lq = Lk = L:",
            *(f"  {term}: {_stretches(starts[term], formula(sizes, term))}" for term in starts),
            "",
            f"To compute it so: algorithm={asked.choice(sizes)}",
        ]
    passes = "forward and backward" if asked.backward else "forward"
    return [
        _title(sizes),
        f"What the kernels take, {passes}: arrays beyond the inputs, blocks that run at once, and "
        f"effort on {asked.device}:",
        "",
        *_columns(_kernel_table(asked)),
        "",
        f"* {asked.choice(sizes)['kernelized']} takes the least effort.",
        f"Where Lq = Lk = L: {_stretches(starts['kernelized'])}.",
    ]


def _title(sizes: Sizes) -> str:
    kind = "causal" if sizes.causal else "bidirectional"
    offset = f", query offset {sizes.query_offset}" if sizes.query_offset else ""
    distance = "" if sizes.max_distance is None else f", k={sizes.max_distance}"
    waves = "" if sizes.fourier is None else f", Fourier {sizes.fourier}"
    return (
        f"Linear attention, {kind}: Lq={sizes.queries}, Lk={sizes.keys}, E={sizes.head_dim}, "
        f"M={sizes.value_dim}{offset}{distance}{waves}, N={sizes.batch}, H={sizes.heads}, "
        f"float{8 * sizes.itemsize}"
    )


def _seed_table(asked: Question) -> list[list[str]]:
    each, taken = asked.sizes.all_heads * asked.sizes.itemsize, asked.choice(asked.sizes)
    rows = [
        [term, *(_human_bytes(each * numbers) for numbers in forms.values()), taken[term]]
        for term, forms in planner.seed_numbers(asked.sizes).items()
    ]
    return [["term", "naive", "linear", "taken"], *rows]


def _kernel_table(asked: Question) -> list[list[str]]:
    sizes, several, taken = asked.sizes, asked.processors, asked.choice(asked.sizes)["kernelized"]
    least = planner.effort(sizes, taken, several)
    rows = [
        [
            f"{name} *" if name == taken else name,
            _human_bytes(planner.memory(sizes, name, asked.backward)),
            f"{planner.blocks(sizes, name, several):,}",
            f"{planner.effort(sizes, name, several) / least:,.3g}",
        ]
        for name in planner.algorithms(sizes)
    ]
    plain = sizes._replace(max_distance=None, fourier=None)
    softmax = _human_bytes(planner.memory(plain, "softmax", asked.backward))
    return [["algorithm", "memory", "blocks", "effort"], *rows, ["softmax", softmax, "", ""]]


def _stretches(starts: Sequence[tuple[int, str]], formula: str = "") -> str:
    (_, first), *others = starts
    parts = [f"{name} above L = {start - 1:,}{formula}" for start, name in others]
    return ", ".join([first, *parts])


def formula(sizes: Sizes, term: str) -> str:
    """How S0 prints a crossover; d is both dims."""
    if term == "relative":
        return " = 2k + 5"
    if sizes.head_dim != sizes.value_dim:
        return ""
    return " = d²" if sizes.causal else " = d"


def _columns(rows: list[list[str]]) -> list[str]:
    """Rows as text, the first column flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "   ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for name, *cells in rows
    ]


def _human_bytes(count: float) -> str:
    """Three digits, and the largest unit of which there is one."""
    power = 0
    while count >= 999.5 and power < len(_BYTES) - 1:
        count /= 1024
        power += 1
    return f"{count:.3g} {_BYTES[power]}"
