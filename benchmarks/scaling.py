"""Time and memory against length, and where each linear variant overtakes fused softmax.

Forward and backward of the public functions, N=8, H=8, E=M=64, relative positions with k=32, over
lengths from 2^8 to 2^15: the median of nine to three rounds after a first, above 8,192 of one.
"linear" is what the planner chooses, "chunked" the same by chunks. *Slope* is that of the
least-squares line through the logarithms: 1 is linear, 2 quadratic. Memory is the high-water mark
of NumPy's arrays (tracemalloc), inputs left out, with gradients, from 2^8 to 2^14. *Overtakes
softmax at* is the length from which the variant takes less time than fused softmax attention in the
same direction, interpolated between measured lengths from 2^4 to 2^12. The curves are a picture.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer import Tensor
from minitransformer.attention import (
    fourier_linear_attention,
    linear_attention,
    relative_linear_attention,
    softmax_attention,
)
from minitransformer.course.measuring import peak_bytes
from minitransformer.course.measuring import slope as exponent
from minitransformer.experiments.copy_times import crossing

from . import harness

N, H, E, FURTHEST = 8, 8, 64, 32
LENGTHS = [2**power for power in range(8, 16)]
HEAVY = LENGTHS[::2]  # of which memory is measured
SHORT = [2**power for power in range(4, 13)]  # on which softmax is measured too
MIB = 2**20

Attend = Callable[..., Any]


class Variant(NamedTuple):
    """An attention: its function, and what it takes besides query, key and value."""

    attend: Attend
    options: dict[str, Any]
    extras: Callable[[int], list[Tensor]] = lambda length: []

    def passes(self, length: int) -> Callable[[], None]:
        """Return a forward and a backward of one length."""
        generator = np.random.default_rng(0)
        *qkv, grad = (generator.standard_normal((N, H, length, E), np.float32) for _ in range(4))
        inputs = [*(Tensor(x, requires_grad=True) for x in qkv), *self.extras(length)]

        def run() -> None:
            for tensor in inputs:
                tensor.grad = None
            self.attend(*inputs, **self.options).backward(grad)

        return run


def embedding(length: int) -> list[Tensor]:
    """Return embeddings of distances."""
    table = np.random.default_rng(1).normal(0, 0.1, (H, 2 * FURTHEST + 1, E))
    return [Tensor(table.astype(np.float32), requires_grad=True)]


def waves(length: int) -> list[Tensor]:
    """Return positions, frequencies, phases and amplitudes."""
    generator = np.random.default_rng(1)
    positions = Tensor(np.arange(length, dtype=np.float64)[None, :, None])
    shapes = (H, E, 1), (H, E), (H, E)
    wave = (generator.uniform(-0.9, 0.9, shape).astype(np.float32) for shape in shapes)
    return [positions, positions, *(Tensor(x, requires_grad=True) for x in wave)]


def variants(causal: bool) -> dict[str, Variant]:
    """Return the variants of one direction, softmax first."""
    way = {"causal": causal}
    found = {
        "softmax": Variant(softmax_attention, way),
        "linear": Variant(linear_attention, way),
        "Shaw": Variant(relative_linear_attention, way, embedding),
        "Fourier": Variant(fourier_linear_attention, way, waves),
    }
    if causal:
        for name in ("favor", "dpfp"):
            found[name] = Variant(linear_attention, {**way, "feature_map": name})
        found["chunked"] = Variant(linear_attention, {**way, "algorithm": "chunked"})
    return found


def rows() -> Iterator[harness.Row]:
    """Yield a row for each variant: slopes, and where it overtakes softmax."""
    curves = []
    for causal in (True, False):
        everyone = variants(causal)
        softmax = everyone.pop("softmax")
        short = {length: seconds(softmax, length) for length in SHORT}
        curves.append(("softmax", causal, short, {n: peak(softmax, n) for n in HEAVY[:3]}))
        for name, variant in everyone.items():
            times = {length: seconds(variant, length) for length in sorted({*SHORT, *LENGTHS})}
            peaks = {length: peak(variant, length) for length in HEAVY}
            curves.append((name, causal, times, peaks))
            yield {
                "variant": name,
                "direction": "causal" if causal else "both",
                "slope_of_time": slope({n: times[n] for n in LENGTHS}),
                "slope_of_memory": slope(peaks),
                "overtakes_softmax_at": crossover(times, short),
                **{f"ms_at_{n:,}": 1e3 * times[n] for n in (256, 2048, 32768)},
                "MiB_at_16,384": peaks[16384],
            }
    draw(curves)


def seconds(variant: Variant, length: int) -> float:
    """Return the median time of forward and backward."""
    run = variant.passes(length)
    run()
    rounds = 9 if length <= 1024 else 3 if length <= 8192 else 1
    return float(np.median([harness.elapsed(run) for _ in range(rounds)]))


def peak(variant: Variant, length: int) -> float:
    """Return the high-water mark of arrays in forward and backward, in MiB above the inputs."""
    return peak_bytes(variant.passes(length)) / MIB


def slope(curve: dict[int, float]) -> float:
    """Return the exponent of the power law that fits a curve best."""
    return exponent(list(curve), list(curve.values()))


def crossover(mine: dict[int, float], softmax: dict[int, float]) -> float | None:
    """Return the length from which `mine` takes less; None where it never does."""
    found = crossing(softmax, mine)
    return found if np.isfinite(found) else None


def draw(curves: Iterable[tuple[str, bool, dict[int, float], dict[int, float]]]) -> None:
    """Write the curves of time and memory beside the rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for name, causal, times, peaks in curves:
        style = {"color": "black", "ls": "--"} if name == "softmax" else {}
        for row, curve in enumerate((times, peaks)):
            axes = panels[row, 0 if causal else 1]
            x, y = zip(*((n, v) for n, v in sorted(curve.items()) if n >= 32), strict=True)
            axes.loglog(x, y, marker="o", ms=3, label=name, base=2, **style)
            axes.grid(alpha=0.3)
    for axes, title in zip(panels[0], ("causal", "both directions"), strict=True):
        axes.set_title(f"{title}, forward and backward")
        axes.legend(frameon=False)
    panels[0, 0].set_ylabel("seconds")
    panels[1, 0].set_ylabel("MiB of arrays above the inputs")
    for axes in panels[1]:
        axes.set_xlabel("length L")
    harness.RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(harness.own_file(".png"), dpi=110)


if __name__ == "__main__":
    harness.main("scaling", rows)
