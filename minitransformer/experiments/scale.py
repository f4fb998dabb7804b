"""Beyond one machine: what a rank holds and sends, and what that says of 1,024 GPUs.

Memory is measured on this machine, bytes and messages are counted: both are the same whatever else
it does. A model of latency and bandwidth makes times of the counts; a message of b bytes takes

    t(b) = alpha + b / beta                                                                    (1)

With s bytes of a state, c = L / P rows of N = H E numbers on a rank, w bytes a number, a layer's
forward and backward together take

    scan of states      2 ceil(log2 P) t(s)                                                    (2)
    gather of states    2 (ceil(log2 P) alpha + (P - 1) s / beta)                              (3)
    ring of keys        (3 P - 2) t(2 c N w)                                                   (4)
    all-to-all          8 ((P - 1) alpha + (P - 1) / P c N w / beta)        P <= H             (5)

(2) is a scan that doubles its reach at each step. (3) is LASP-2's. In (4) keys and values make
P - 1 turns forward and as many backward, where their gradients make P. In (5), DeepSpeed-Ulysses,
query, key, value and output change between whole sequences of some heads and slices of all. How
many seconds the layer computes is no part of it, nor what of the messages hides behind that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..plots import line, picture
from .experiment import Case, Experiment, Report, Row, supported, table
from .shared.on_ranks import HEADS, E, start

LIMIT = 1024  # MiB
LENGTHS = {"smoke": (2**10,), "default": (2**17, 2**18, 2**19, 2**20)}
RANKS = {"smoke": (1, 2), "default": (1, 2, 4)}
COUNTED = {"smoke": ("linear",), "default": ("linear", "delta", "local", "softmax")}
COUNTED_LENGTHS = {"smoke": (256, 512), "default": (1024, 4096)}
COUNTED_RANKS = {"smoke": (2,), "default": (2, 4, 8)}
STEPS = {"smoke": (("data", 2),), "default": (("data", 2), ("data", 4), ("sequence", 2),
                                              ("sequence", 4), ("2x2", 4))}  # fmt: skip

GPUS = (8, 64, 256, 1024)
ROWS, MODEL_HEADS, HEAD_DIM, WIDE = 2**21, 16, 128, 2  # what is predicted: 16 bits a number
DENSE = 989e12  # NVIDIA H100 SXM, bfloat16 without sparsity, products a second times two


class Network(NamedTuple):
    """A network between GPUs: equation (1).

    Attributes:
        bandwidth: beta, bytes a second out of one GPU, as published.
        latency: alpha, seconds; assumed.
        source: of the bandwidth.
    """

    bandwidth: float
    latency: float
    source: str


NETWORKS = {
    "NVLink 4": Network(450e9, 5e-6, "NVIDIA H100 SXM: 900 GB/s, half of it each way"),
    "InfiniBand NDR": Network(50e9, 5e-6, "NVIDIA ConnectX-7: 400 Gb/s a port, one for each GPU"),
    "Ethernet 100G": Network(12.5e9, 20e-6, "100 Gb/s by its standard, IEEE 802.3"),
}
WAYS = ("scan of states", "gather of states", "ring of keys", "all-to-all")


def cases(scale: str) -> list[Case]:
    """Return memory by length and ranks, then counts of attentions, then those of a step."""
    at = "smoke" if scale == "smoke" else "default"
    held = [{"what": "memory", "attention": "linear", "length": n, "ranks": ranks, "limit": LIMIT}
            for n in LENGTHS[at] for ranks in RANKS[at]]  # fmt: skip
    sent = [{"what": "counts", "attention": name, "length": n, "ranks": ranks}
            for name in COUNTED[at] for n in COUNTED_LENGTHS[at]
            for ranks in COUNTED_RANKS[at]]  # fmt: skip
    steps = [{"what": "step", "parallel": way, "ranks": ranks} for way, ranks in STEPS[at]]
    return [*held, *sent, *steps]


def run(case: Case) -> Iterator[Row]:
    """Yield what the ranks of a case found."""
    yield start(case)


def seconds(way: str, ranks: int, network: Network, length: int = ROWS) -> float:
    """Return how long the messages of a layer's forward and backward take, by (2) to (5)."""
    beta, alpha, steps = network.bandwidth, network.latency, math.ceil(math.log2(ranks))
    state = WIDE * MODEL_HEADS * HEAD_DIM * (HEAD_DIM + 1)
    slice_ = WIDE * MODEL_HEADS * HEAD_DIM * length / ranks
    if way == "scan of states":
        return 2 * steps * (alpha + state / beta)  # (2)
    if way == "gather of states":
        return 2 * (steps * alpha + (ranks - 1) * state / beta)  # (3)
    if way == "ring of keys":
        return (3 * ranks - 2) * (alpha + 2 * slice_ / beta)  # (4)
    return 8 * (ranks - 1) * (alpha + slice_ / ranks / beta)  # (5)


def products(ranks: int, length: int = ROWS) -> float:
    """Return the least seconds that a rank takes to multiply by a layer's weights, both ways."""
    width = MODEL_HEADS * HEAD_DIM
    return 6 * 12 * width**2 * length / ranks / DENSE


def counted(attention: str, ranks: int, length: int) -> int | None:
    """Return the bytes that a rank sends by (2) and (4), of the sizes that are counted here."""
    if attention == "linear":
        return 2 * 4 * HEADS * (E * E + E)
    if attention == "softmax":
        return (3 * ranks - 2) * 2 * 4 * HEADS * E * length // ranks
    return None


# -- What it says ----------------------------------------------------------------------------------


def report(rows: list[Row]) -> Report:
    """Return what was held and sent, and what follows for many GPUs."""
    held = [row for row in rows if row["what"] == "memory"]
    sent = [row for row in rows if row["what"] == "counts"]
    steps = [row for row in rows if row["what"] == "step"]
    return Report(
        f"""
## Memory

The most MiB that a rank holds beyond what it began with, in a causal forward and backward of linear
attention, float32, {HEADS} heads of {E}. The system allows each process {LIMIT:,} MiB more than it
began with (RLIMIT_DATA); what it refused has a dash.

{table(["L", *(f"P = {n}" for n in _each(held, "ranks"))], _memory(held))}

{_held(held)}

## Bytes and messages

What one rank hands to MPI in a layer's forward and backward: the most that one of them does.

{table(["attention", "L", "P", "calls of rank 0", "bytes of a rank", "by (2), (4)"],
       map(_sent, sent))}

Equations are those of [`scale.py`](../../minitransformer/experiments/scale.py). A scan
hands its state to MPI once forward and once backward; how often it travels on, (2) says.

{_independent(sent)}

And in a step of `train copy`, with its default model of {steps[0]["parameters"]:,} parameters:

{table(["--parallel", "P", "messages", "bytes"],
       ([r["parallel"], r["ranks"], r["messages"], f"{r['bytes']:,}"] for r in steps))}

## On 8 to 1,024 GPUs: a prediction

Milliseconds that a layer's messages take, forward and backward, by (1) to (5), at L = {ROWS:,},
{MODEL_HEADS} heads of {HEAD_DIM}, 16 bits a number; nothing overlaps.

{table(["network", "P", *WAYS, "products"], _predicted())}

*Products* is the least that a rank takes to multiply by the layer's weights, at the
{DENSE / 1e12:.0f} TFLOP/s of an H100 in bfloat16. A dash: more ranks than heads.

{table(["network", "beta, GB/s", "alpha, µs (assumed)", "source of beta"],
       ([name, n.bandwidth / 1e9, n.latency * 1e6, n.source] for name, n in NETWORKS.items()))}

{_compared()}

![memory of a rank, bytes of a layer, and predicted times](scale.png)
""",
        {"scale.png": partial(plot, rows=rows)},
    )  # fmt: skip


def _each(rows: Sequence[Row], name: str) -> list[Any]:
    return sorted({row[name] for row in rows})


def _memory(rows: Sequence[Row]) -> Iterator[list[object]]:
    for length in _each(rows, "length"):
        found = {r["ranks"]: r for r in rows if r["length"] == length}
        cells = [f"{r['MiB']:,.0f}" if r["fits"] else "-" for _, r in sorted(found.items())]
        yield [f"{length:,}", *cells]


def _held(rows: Sequence[Row]) -> str:
    fits = [row for row in rows if row["fits"]]
    rate = [row["MiB"] * 2**20 / (row["length"] / row["ranks"]) for row in fits]
    refused = [row for row in rows if not row["fits"]]
    only = {row["length"] for row in refused if row["ranks"] == 1}
    carried = [row for row in fits if row["length"] in only]
    most = max((row["length"] for row in carried), default=0)
    least = min((row["ranks"] for row in carried if row["length"] == most), default=0)
    beyond = (
        f" {most:,} rows, which one process cannot hold within the limit, {least} ranks can."
        if carried
        else ""
    )
    return (
        f"Memory goes with L / P: {min(rate):,.0f} to {max(rate):,.0f} bytes for each row of a "
        f"rank, where a row of query, key, value, output and their gradients is "
        f"{8 * 4 * HEADS * E:,}.{beyond}"
    )


def _sent(row: Row) -> list[object]:
    expected = counted(row["attention"], row["ranks"], row["length"])
    return [
        row["attention"], f"{row['length']:,}", row["ranks"], row["calls"], f"{row['bytes']:,}",
        "" if expected is None else f"{expected:,}",
    ]  # fmt: skip


def _independent(rows: Sequence[Row]) -> str:
    lines = []
    for name in dict.fromkeys(row["attention"] for row in rows):
        found: dict[int, set[int]] = {}
        for row in rows:
            if row["attention"] == name:
                found.setdefault(row["ranks"], set()).add(row["bytes"])
        alike = all(len(sizes) == 1 for sizes in found.values())
        claim = "independent of L" if name != "softmax" else "growing with L"
        lines.append(f"- {supported(alike == (name != 'softmax'))}: bytes of {name} {claim}.")
    return "\n".join(lines)


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _predicted() -> Iterator[list[object]]:
    for name, network in NETWORKS.items():
        for ranks in GPUS[:1] if name == "NVLink 4" else GPUS:
            times = [
                _digits(1e3 * seconds(way, ranks, network))
                if way != "all-to-all" or ranks <= MODEL_HEADS
                else "-"
                for way in WAYS
            ]
            yield [name, ranks, *times, f"{1e3 * products(ranks):.3g}"]


def _compared() -> str:
    network = NETWORKS["InfiniBand NDR"]
    scan, gather, ring = (1e3 * seconds(way, 64, network) for way in WAYS[:3])
    return (
        "NVLink joins the eight GPUs of a machine, and has no row beyond. LASP-2 (arXiv "
        "2502.07563, abstract) reports for 2048K tokens on 64 GPUs a training 36.6% faster than by "
        "ring attention and 15.2% faster than by LASP, which sends states from rank to rank, one "
        f"after the other. At that length and number the model has {scan:.2g} ms a layer for a "
        f"scan and {gather:.2g} ms for a gather of states, beside {1e3 * products(64):.2g} ms of "
        f"products, so that neither is what a step waits for; and {ring:,.0f} ms for a ring. The "
        "order is the reported one. The size is not: (4) knows nothing of messages that go while a "
        "rank computes, so it says the most that can be lost; and those runs had other models and "
        "GPUs. LASP (arXiv 2404.02882, abstract) reports 4096K tokens on 128 GPUs, 8 times what "
        "other ways hold; memory that goes with L / P is what that rests on. Their tables are not "
        "used here."
    )


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw memory against L / P, bytes against L, and predicted times against P."""
    with picture(path, (10.8, 3.6)) as figure:
        memory, bytes_, times = figure.subplots(1, 3)
        held = [r for r in rows if r["what"] == "memory" and r["fits"]]
        for number, ranks in enumerate(_each(held, "ranks")):
            found = [r for r in held if r["ranks"] == ranks]
            memory.plot([r["length"] / ranks for r in found], [r["MiB"] for r in found], "o",
                        color=line(number)["color"], markersize=8 - 2 * number,
                        label=f"P = {ranks}")  # fmt: skip
        memory.set_xlabel("L / P, rows of a rank")
        memory.set_ylabel("MiB of a rank, measured")
        sent = [r for r in rows if r["what"] == "counts"]
        most = max(_each(sent, "ranks"))
        for number, name in enumerate(dict.fromkeys(r["attention"] for r in sent)):
            found = [r for r in sent if (r["attention"], r["ranks"]) == (name, most)]
            bytes_.plot([r["length"] for r in found], [r["bytes"] / 1024 for r in found],
                        marker="o", **line(number), label=name)  # fmt: skip
        bytes_.set_xlabel(f"L, P = {most}")
        bytes_.set_ylabel("KiB sent by a rank, counted")
        network = NETWORKS["InfiniBand NDR"]
        for number, way in enumerate(WAYS):
            ranks = [n for n in (8, 16, 32, *GPUS[1:]) if way != "all-to-all" or n <= MODEL_HEADS]
            predicted = [1e3 * seconds(way, n, network) for n in ranks]
            times.plot(ranks, predicted, marker="o", **line(number), label=way)
        times.plot(GPUS, [1e3 * products(n) for n in GPUS], color="0.6", label="products")
        times.set_xlabel("GPUs, InfiniBand NDR")
        times.set_ylabel("ms of a layer's messages, predicted")
        times.set_ylim(0.05, 1e6)  # above, the legend has room
        for axis in (memory, bytes_, times):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.legend(fontsize=7.5)


EXPERIMENT = Experiment(
    "scale",
    "Beyond one machine: memory, bytes and messages of a rank, and a prediction for 1,024 GPUs",
    "Sun et al. 2024, LASP, arXiv 2404.02882; Sun et al. 2025, LASP-2, arXiv 2502.07563.",
    cases,
    run,
    report,
)
