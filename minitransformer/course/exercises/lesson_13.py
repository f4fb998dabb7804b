"""Only some keys: who sees whom, a graph in rows, its attention's backward, a kernel of edges."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minitransformer_kernels.graph.reference import (
    edge_counts,
    graph_attention_backward,
    graph_weights,
    leaky_relu,
)

from ..exercise import (
    Array,
    Case,
    Exercise,
    NotYet,
    Random,
    Wrong,
    in_bytes,
    launched,
    without_loops,
)

THREADS = 32  # of a block of the edges
LARGE = 1500  # nodes of a graph whose pairs would be seen in memory


def _patterns(random: Random) -> Iterator[Case]:
    L, some, far = (int(size) for size in random.integers((9, 80, 20), (14, 120, 30)))
    for name, queries, keys, begin, window, landmarks, everywhere, causal, hint in (
        ("a window", L, L, 0, 2, 0, 0, False, "compare with (3), second line, first column"),
        ("a causal window", L, L, 0, 3, 0, 0, True, "compare with (3), first line, first column"),
        ("landmarks", L, L, 0, 1, 2, 0, False, "from where is a landmark seen? See (3)"),
        ("causal landmarks", L, L, 0, 1, 3, 0, True, "a landmark is seen from its own place on"),
        ("global queries", L, L, 0, 1, 0, 4, False, "a global query sees every key"),
        ("causal global queries", L, L, 0, 1, 0, 4, True, "a global query sees no later key"),
        ("a text that goes on", 5, far + 3, far, 4, 2, 2, True, "at says where queries stand"),
        ("anything", some, some + 9, 5, 6, 7, 8, False, "one array (Lq, Lk) has all pairs"),
    ):
        landmark = np.zeros(keys, bool)
        landmark[random.permutation(np.arange(2, keys - 1))[:landmarks]] = True
        yield Case(
            name,
            {
                "at": np.arange(begin, begin + queries), "landmark": landmark, "window": window,
                "global_queries": everywhere, "causal": causal,
            },
            hint,
        )  # fmt: skip


def _seen(at: Array, landmark: Array, window: int, global_queries: int, causal: bool) -> Array:
    """By distances."""
    back = at[:, None] - np.arange(len(landmark))
    seen = (abs(back) <= window) | landmark | (at < global_queries)[:, None]
    return seen & (back >= 0) if causal else seen


def _true_or_false(answer: Any, *inputs: Any) -> Any:
    mask = without_loops(answer, *inputs)
    if mask is not None and np.asarray(mask).dtype.kind in "iuf":
        raise NotYet("the mask holds numbers: return true and false")
    return mask


def _pairs(random: Random) -> Iterator[Case]:
    nodes, some, many = (int(size) for size in random.integers((6, 60, 400), (10, 80, 500)))
    each, few, large = np.arange(nodes), np.array([3, 1, 3, 1]), random.integers(80, size=(2, many))
    crowd = random.integers(3, size=some), random.integers(9, size=some)
    for name, queries, keys, count, hint in (
        ("an edge each", np.roll(each, 1), random.permutation(nodes), nodes,
         "offsets are 0, 1, 2 ...; a key moves with its query"),
        ("many edges", *crowd, 3, "edges of a node stay in the order given, equal ones, too"),
        ("nodes without edges", few, np.array([4, 0, 2, 5]), 6, "nodes 0, 2, 4 and 5 have none"),
        ("no edges", few[:0], few[:0], 3, "three nodes: offsets are four zeros"),
        ("a large graph", *large, 80, "arrays need no loop"),
    ):  # fmt: skip
        yield Case(name, {"queries": queries, "keys": keys, "count": count}, hint)


def _rows(queries: Array, keys: Array, count: int) -> tuple[Array, Array]:
    """Node by node."""
    lists = [keys[queries == node] for node in range(count)]
    return np.cumsum([0, *map(len, lists)]), np.concatenate(lists)


def _whole(answer: Any, *inputs: Any) -> Any:
    found = without_loops(answer, *inputs)
    if isinstance(found, tuple | list) and len(found) == 2:
        for name, numbers in zip(("offsets", "columns"), found, strict=True):
            if np.asarray(numbers).dtype.kind == "f":
                raise NotYet(f"{name} are indices: make them integers")
    return found


def _edges(random: Random, queries: int, keys: int, each: int) -> tuple[Array, Array]:
    """So many edges of each query, sorted by query; of its first two keys one is odd."""
    columns = [random.permutation(keys) for _ in range(queries)]
    for row in columns:
        other = int(np.argmax(row % 2 != row[0] % 2))
        row[[1, other]] = row[[other, 1]]
    return np.arange(queries).repeat(each), np.concatenate([row[:each] for row in columns])


def _graphs(random: Random) -> Iterator[Case]:
    Tq, Tk = (int(size) for size in random.integers((3, 7), (6, 12)))
    slope = float(random.uniform(0.1, 0.3))
    for name, queries, keys, each, hint in (
        ("six nodes", 6, 6, 3, "compare with (5) to (8): which node does each index mean?"),
        ("more keys than queries", Tq, Tk, 3, "da has a number for each query, db for each key"),
        ("an edge twice", 4, 5, 3, "each of the two edges has its own p, and is in every sum"),
        ("nodes without edges", 5, 9, 2, "their gradients are 0, and must be there"),
        ("a large graph", LARGE, LARGE, 3, "work with arrays of edges, not of pairs of nodes"),
    ):
        rows, columns = _edges(random, queries, keys, each)
        if name == "an edge twice":
            columns[2] = columns[0]
        if name == "nodes without edges":
            kept = rows % 2 == 1
            rows, columns = rows[kept], columns[kept]
        a, b = random.uniform(-1, 1, queries), random.uniform(0.5, 2, keys)
        b[::2] *= -1  # so that ds, whose sum is 0, has both slopes
        g, v = random.standard_normal((queries, 3)), random.standard_normal((keys, 3))
        p = _weights(a, b, rows, columns, slope)
        o = np.zeros_like(g)
        np.add.at(o, rows, p[:, None] * v[columns])
        given = {"g": g, "o": o, "p": p, "a": a, "b": b, "v": v}
        yield Case(name, {**given, "rows": rows, "columns": columns, "slope": slope}, hint)


def _weights(a: Array, b: Array, rows: Array, columns: Array, slope: float) -> Array:
    """The weight of each edge, of the weights of all pairs."""
    counts = edge_counts(_offsets(rows, len(a)), columns, len(b))
    pairs = graph_weights(leaky_relu(a[:, None] + b, slope), counts)
    return (pairs / np.maximum(counts, 1))[rows, columns]


def _offsets(rows: Array, count: int) -> Array:
    return np.searchsorted(rows, np.arange(count + 1))


def _by_edges(answer: Any, *inputs: Any) -> Any:
    looped = partial(_counted, partial(without_loops, answer))
    if len(inputs[0]) < LARGE:
        return looped(*inputs)
    told = "does one of them hold all pairs of nodes?"
    return in_bytes(4 * LARGE * LARGE, told, looped, *inputs)


def _counted(answer: Any, *inputs: Any) -> Any:
    """Try an answer; where its `sums` has too few rows, say on which line of its own."""
    try:
        return answer(*inputs)
    except IndexError as error:
        steps = itertools.pairwise(traceback.extract_tb(error.__traceback__))
        calls = [frame for frame, called in steps if called.name == "sums"]
        if not calls:
            raise
        told = "sums is told a count that is too small: is it that of queries, or that of keys?"
        raise NotYet(f"`{calls[-1].line}`: {told}") from None


def _gradients(
    g: Array, o: Array, p: Array, a: Array, b: Array, v: Array, rows: Array, columns: Array,
    slope: float,
) -> tuple[Array, ...]:  # fmt: skip
    """By all pairs."""
    found = graph_attention_backward(
        g[None], a[None], b[None], v[None], _offsets(rows, len(a)), columns, negative_slope=slope
    )
    return tuple(x[0] for x in found)


def _threads(random: Random) -> Iterator[Case]:
    for name, heads, queries, keys, each, hint in (
        ("one edge", 1, 1, 2, 1, "only thread 0 has an edge; compare with (6) and (7)"),
        ("six nodes", 1, 6, 6, 3, "compare with (6) and (7): which node does each index mean?"),
        ("two heads", 2, 4, 7, 2, "all but the edges is a head's own"),
        ("more than a block", 1, int(random.integers(20, 30)), 9, 2, "edges count on over blocks"),
    ):
        rows, columns = _edges(random, queries, keys, each)
        a, g = random.standard_normal((heads, queries)), random.standard_normal((heads, queries, 3))
        b, v = random.standard_normal((heads, keys)), random.standard_normal((heads, keys, 3))
        given = {
            "g": g, "v": v, "a": a, "b": b, "p": random.uniform(0.1, 0.9, (heads, len(rows))),
            "delta": random.standard_normal((heads, queries)),
        }  # fmt: skip
        if name == "one edge":
            a[:], b[:], given["delta"][:] = -1, -2, -9  # z is below 0, and ds above
        real = {name: x.astype(np.float32) for name, x in given.items()}
        slope = np.float32(random.uniform(0.1, 0.3))
        yield Case(name, {**real, "rows": rows, "columns": columns, "slope": slope}, hint)


def _launch(answer: Any, *inputs: Any) -> Array:
    out = inputs[4].shape  # that of p
    return launched(answer, (-(-out[1] // THREADS), len(inputs[4])), THREADS, *inputs, out=out,
                    share=1)  # fmt: skip


def _through_edges(
    g: Array, v: Array, a: Array, b: Array, p: Array, delta: Array, rows: Array, columns: Array,
    slope: Any,
) -> Array:  # fmt: skip
    """By all pairs."""
    g, v, a, b, delta = (x.astype(np.float64) for x in (g, v, a, b, delta))
    products = (g @ v.swapaxes(1, 2) - delta[..., None])[:, rows, columns]
    return p * products * np.where(a[:, rows] + b[:, columns] > 0, 1, slope)


EXERCISES = (
    Exercise(
        "sees", "sees", 3, _patterns, _seen, ("the mask",), 1e-9, _true_or_false,
        wrong=(
            Wrong("ranges that touch in one place meet, too: the key w places after is not seen",
                  {"since <= last": "since < last"}, "a window"),
            Wrong("ranges that touch in one place meet, too: the key w places before is not seen",
                  {"[:, None] <= until": "[:, None] < until"}, "a window"),
            Wrong("ranges that touch in one place meet, too: no key is seen w places away", {
                  "since <= last": "since < last", "[:, None] <= until": "[:, None] < until"},
                  "a window"),
            Wrong("the window goes back one place too far",
                  {"inf, j + window)": "inf, j + window + 1)"}, "a window"),
            Wrong("there must be an *and*, not an *or*: ranges meet where each begins before the "
                  "other ends", {") & (first": ") | (first"}, "a window"),
            Wrong("no query sees an earlier key", {"inf, j + window)": "inf, j)"}, "a window"),
            Wrong("no query sees a later key, causal or not",
                  {"since = j if causal else np.where(landmark, -inf, j - window)": "since = j"},
                  "a window"),
            Wrong("a causal query sees later keys", {"j if causal else np": "np"},
                  "a causal window"),
            Wrong("rows are keys, columns are queries", {
                  "return (since": "return ((since", "<= until)": "<= until)).T"},
                  "a causal window"),
            Wrong("landmarks are seen only from their window on the right",
                  {"np.where(landmark, inf, j + window)": "j + window"}, "landmarks"),
            Wrong("landmarks are seen only from their window on the left",
                  {"np.where(landmark, -inf, j - window)": "j - window"}, "landmarks"),
            Wrong("all but the landmarks are landmarks",
                  {"    j, inf =": "    landmark = ~landmark\n    j, inf ="}, "a window"),
            Wrong("causal queries see landmarks to come", {
                  "j if causal else np.where(landmark, -inf, j - window)":
                  "np.where(landmark, -inf, j if causal else j - window)"}, "causal landmarks"),
            Wrong("a global query sees no far key before it",
                  {"np.where(everywhere, -inf, at)": "at"}, "global queries"),
            Wrong("a global query sees no far key after it",
                  {"np.where(everywhere & (not causal), inf, at)": "at"}, "global queries"),
            Wrong("a global query need not be a landmark: it sees all, but not all see it", {
                  "landmark, inf, j": "landmark | (j < global_queries), inf, j",
                  "landmark, -inf, j": "landmark | (j < global_queries), -inf, j"},
                  "global queries"),
            Wrong("the first keys are seen from everywhere, in place of the first queries seeing "
                  "every key", {
                  "landmark, inf, j": "landmark | (j < global_queries), inf, j",
                  "landmark, -inf, j": "landmark | (j < global_queries), -inf, j",
                  "    everywhere = at < global_queries": "    everywhere = at < 0"},
                  "global queries"),
            Wrong("there is one global query too many",
                  {"at < global_queries": "at <= global_queries"}, "a window"),
            Wrong("a causal global query sees later keys",
                  {"everywhere & (not causal)": "everywhere"}, "causal global queries"),
            Wrong("no query is global where attention is causal",
                  {"at < global_queries": "(at < global_queries) & (not causal)"},
                  "causal global queries"),
            Wrong("a query's row decides whether it is global, not its position",
                  {"at < global_queries": "np.arange(len(at)) < global_queries"},
                  "a text that goes on"),
            Wrong("rows stand in for positions",
                  {"    j, inf =": "    at = np.arange(len(at))\n    j, inf ="},
                  "a text that goes on"),
            Wrong("numbers, not true and false", {
                  "return (since": "return ((since", "<= until)": "<= until)).astype(float)"},
                  "a window"),
            Wrong("a loop over queries", {
                  "(since <= last[:, None]) & (first[:, None] <= until)":
                  "np.array([(since <= b) & (a <= until) for a, b in zip(first, last)])"},
                  "anything"),
        ),
    ),
    Exercise(
        "csr", "csr", 2, _pairs, _rows, ("offsets", "columns"), 1e-9, _whole,
        wrong=(
            Wrong("offsets that are no integers",
                  {"return np": "ends[0] = [0.0]\n    return np"}, "an edge each"),
            Wrong("offsets and columns are swapped", {
                  "np.concatenate(ends), keys[order]": "keys[order], np.concatenate(ends)"},
                  "an edge each"),
            Wrong("the 0 before the first row is missing", {"[[0], np": "[np"}, "an edge each"),
            Wrong("the end of the last row is missing",
                  {".cumsum()]": ".cumsum()[:-1]]"}, "an edge each"),
            Wrong("offsets are numbers of edges, not sums of them",
                  {".cumsum()": ""}, "an edge each"),
            Wrong("each row begins where it ends",
                  {"[[0], np": "[np", ".cumsum()]": ".cumsum(), [len(keys)]]"}, "an edge each"),
            Wrong("rows are keys, columns are queries", {
                  "np.argsort(queries": "np.argsort(keys", "keys[order]": "queries[order]",
                  "np.bincount(queries": "np.bincount(keys"}, "an edge each"),
            Wrong("columns are the numbers of edges, not their keys",
                  {"keys[order]": "order"}, "an edge each"),
            Wrong("columns are queries", {"keys[order]": "queries[order]"}, "an edge each"),
            Wrong("keys are sorted, and know no more whose they were",
                  {"np.argsort(queries": "np.argsort(keys"}, "an edge each"),
            Wrong("keys stay where they were", {"keys[order]": "keys"}, "an edge each"),
            Wrong("the order is turned around: it says which edge comes first, not where one goes",
                  {"keys[order]": "keys[order.argsort()]"}, "an edge each"),
            Wrong("the edges of a node have lost their order: sort by kind='stable'",
                  {', kind="stable"': ""}, "many edges"),
            Wrong("the edges of a node are turned around", {
                  'np.argsort(queries, kind="stable")':
                  'len(keys) - 1 - np.argsort(queries[::-1], kind="stable")'}, "many edges"),
            Wrong("the edges of a node are sorted by key", {
                  'np.argsort(queries, kind="stable")': "np.lexsort((keys, queries))"},
                  "many edges"),
            Wrong("an edge that is there twice counts once", {"    order =":
                  "    queries, keys = np.unique([queries, keys], axis=1)\n    order ="},
                  "many edges"),
            Wrong("nodes without edges get no row", {
                  "np.bincount(queries, minlength=count)":
                  "np.unique(queries, return_counts=True)[1]"}, "nodes without edges"),
            Wrong("rows end with the last node that has an edge", {", minlength=count": ""},
                  "nodes without edges"),
            Wrong("a loop over nodes", {"keys[order]":
                  "np.concatenate([keys[queries == i] for i in range(count)])"}, "a large graph"),
        ),
    ),
    Exercise(
        "graph-backward", "graph_backward", 4, _graphs, _gradients, ("da", "db", "dv"), 1e-9,
        _by_edges,
        wrong=(
            Wrong("dv is summed by query", {"g[rows], columns, len(v)": "g[rows], rows, len(v)"},
                  "six nodes"),
            Wrong("dv takes the g of the key's node",
                  {"p[:, None] * g[rows]": "p[:, None] * g[columns]"}, "six nodes"),
            Wrong("dv lacks the weights", {"p[:, None] * g[rows]": "g[rows]"}, "six nodes"),
            Wrong("dv is an average, not a sum", {"  # (5)":
                  " / np.maximum(sums(p, columns, len(v)), 1e-9)[:, None]"}, "six nodes"),
            Wrong("delta is forgotten", {" - delta[rows])": ")"}, "six nodes"),
            Wrong("delta is the key's, not the query's", {"delta[rows]": "delta[columns]"},
                  "six nodes"),
            Wrong("g . v takes the g of the key's node",
                  {"(g[rows] * v[columns])": "(g[columns] * v[columns])"}, "six nodes"),
            Wrong("g . v takes the v of the query's node", {"v[columns]": "v[rows]"}, "six nodes"),
            Wrong("ds lacks p", {"ds = p * (": "ds = ("}, "six nodes"),
            Wrong("delta lacks p", {
                  "p * ((g[rows] * v[columns]).sum(axis=1) - delta[rows])":
                  "p * (g[rows] * v[columns]).sum(axis=1) - delta[rows]"}, "six nodes"),
            Wrong("delta has the wrong sign", {" - delta[rows]": " + delta[rows]"}, "six nodes"),
            Wrong("LeakyReLU is forgotten", {
                  "np.where(a[rows] + b[columns] > 0, ds, slope * ds)": "ds"}, "six nodes"),
            Wrong("nothing passes where a + b is below 0: that is ReLU",
                  {"slope * ds)": "0 * ds)"}, "six nodes"),
            Wrong("the slope is on the wrong side", {"ds, slope * ds": "slope * ds, ds"},
                  "six nodes"),
            Wrong("the sign of ds decides, not that of a + b",
                  {"a[rows] + b[columns] > 0": "ds > 0"}, "six nodes"),
            Wrong("the sign of a alone decides", {"a[rows] + b[columns] > 0": "a[rows] > 0"},
                  "six nodes"),
            Wrong("da and db are exchanged", {
                  "sums(dz, rows, len(a)), sums(dz, columns, len(b))":
                  "sums(dz, columns, len(b)), sums(dz, rows, len(a))"}, "six nodes"),
            Wrong("x[columns] += dz adds one edge to each node, the last: use sums", {
                  "    return sums(dz, rows, len(a)), sums(dz, columns, len(b)), dv":
                  "    da, db = np.zeros_like(a), np.zeros_like(b)\n    da[rows] += dz\n"
                  "    db[columns] += dz\n    return da, db, dv"}, "six nodes"),
            Wrong("dv[columns] += x adds one edge to each key, the last: use sums", {
                  "    dv = sums(p[:, None] * g[rows], columns, len(v))":
                  "    dv = np.zeros_like(v)\n    dv[columns] += p[:, None] * g[rows]"},
                  "six nodes"),
            Wrong("x[columns] += y adds one edge to each node, the last: use sums for all three", {
                  "    dv = sums(p[:, None] * g[rows], columns, len(v))":
                  "    dv = np.zeros_like(v)\n    dv[columns] += p[:, None] * g[rows]",
                  "    return sums(dz, rows, len(a)), sums(dz, columns, len(b)), dv":
                  "    da, db = np.zeros_like(a), np.zeros_like(b)\n    da[rows] += dz\n"
                  "    db[columns] += dz\n    return da, db, dv"}, "six nodes"),
            Wrong("there is a dv for each query", {"columns, len(v))": "columns, len(g))"},
                  "more keys than queries"),
            Wrong("there is a db for each query", {"columns, len(b))": "columns, len(a))"},
                  "more keys than queries"),
            Wrong("a loop over edges", {"(g[rows] * v[columns]).sum(axis=1)":
                  "np.array([g[i] @ v[j] for i, j in zip(rows, columns)])"}, "a large graph"),
            Wrong("all pairs at once", {
                  "(g[rows] * v[columns]).sum(axis=1)": "(g @ v.T)[rows, columns]"},
                  "a large graph"),
        ),
    ),
    Exercise(
        "edge-kernel", "edge_kernel", 3, _threads, _through_edges, ("dz",), 1e-5, _launch,
        wrong=(
            Wrong("no guard", {"if e < rows.size:": "if True:"}, "one edge"),
            Wrong("the slope is forgotten", {"ds if z > 0 else slope * ds": "ds"}, "one edge"),
            Wrong("the slope is on the wrong side",
                  {"ds if z > 0 else slope * ds": "slope * ds if z > 0 else ds"}, "one edge"),
            Wrong("dz is z through LeakyReLU, not ds",
                  {"ds if z > 0 else slope * ds": "z if z > 0 else slope * z"}, "one edge"),
            Wrong("the sign of ds decides, not that of z",
                  {"ds if z > 0": "ds if ds > 0"}, "one edge"),
            Wrong("p is forgotten", {"p[h, e] * (": "("}, "one edge"),
            Wrong("delta is forgotten", {" - delta[h, i])": ")"}, "one edge"),
            Wrong("delta lacks p", {"p[h, e] * (product - delta[h, i])":
                  "p[h, e] * product - delta[h, i]"}, "one edge"),
            Wrong("dz is added to, and holds nothing before: set it",
                  {"dz[h, e] = ds": "dz[h, e] += ds"}, "one edge"),
            Wrong("only the first column counts", {"range(v.shape[2])": "range(1)"}, "one edge"),
            Wrong("query and key are exchanged", {"i, j = rows[e], columns[e]":
                  "j, i = rows[e], columns[e]"}, "six nodes"),
            Wrong("delta is the key's, not the query's", {"delta[h, i]": "delta[h, j]"},
                  "six nodes"),
            Wrong("g . v takes the v of the query's node", {"v[h, j, m]": "v[h, i, m]"},
                  "six nodes"),
            Wrong("a is asked for the key", {"a[h, i] + b": "a[h, j] + b"}, "six nodes"),
            Wrong("e is taken for a node", {"i, j = rows[e], columns[e]": "i, j = e, columns[e]"},
                  "six nodes"),
            Wrong("the head is forgotten", {", cuda.blockIdx.y": ", 0"}, "two heads"),
            Wrong("the block's number is forgotten", {"cuda.grid(1)": "cuda.threadIdx.x"},
                  "more than a block"),
            Wrong("one thread for all edges", {
                  "    e, h = cuda.grid(1), cuda.blockIdx.y\n    if e < rows.size:":
                  "    h = cuda.blockIdx.y\n    for e in range(0 if cuda.grid(1) else rows.size):"},
                  "six nodes"),
        ),
    ),
)  # fmt: skip
