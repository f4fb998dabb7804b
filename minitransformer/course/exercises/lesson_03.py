"""A tape in fifty lines: the walk back, what broadcasting stretched, and a check that refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..exercise import Array, Case, Exercise, NotYet, Random, Wrong

SUM, PRODUCT, SINE = range(3)  # what a row (operation, operand, operand) of a program does
BEHIND = 2  # values whose gradients are looked at, beside those of leaves and root

CHAIN = [(SINE, 0, 0), (PRODUCT, 1, 1)]  # two operands that are one value
DIAMOND = [(PRODUCT, 0, 1), (SINE, 2, 2), (SUM, 2, 1), (SINE, 4, 4), (PRODUCT, 3, 5)]
SUMS = [(SUM, 0, 1), (SUM, 2, 0), (SUM, 3, 2), (SUM, 4, 1)]
DOUBLINGS = [(SUM, at, at) for at in range(16)]
DEEP = [step for at in range(1, 3001, 2) for step in ((SUM, at - 1, 0), (SINE, at, at))]


class _Value:
    """A value as the lesson's tape has it."""

    def __init__(self, order: int, data: Array, *edges: tuple[_Value, Callable[..., Array]]):
        self.order, self.data, self.edges = order, data, edges
        self.grad: Array | None = None


def _tape_cases(random: Random) -> Iterator[Case]:
    for name, program, inputs, hint in (
        ("a value times itself", CHAIN, 1, "the value has two edges to the same place: both count"),
        (
            "a diamond on a stem",
            DIAMOND,
            2,
            "who passes on before all terms have arrived, or twice?",
        ),
        ("sums of sums", SUMS, 2, "both edges of a sum get the same array: is it written into?"),
        ("16 doublings", DOUBLINGS, 1, "is each value visited once?"),
        ("3,000 deep", DEEP, 1, "no function may call itself 3,000 times"),
    ):
        x = random.uniform(0.2, 0.9, (inputs, 2))
        cotangent = random.standard_normal(2)
        yield Case(name, {"program": np.array(program), "x": x, "cotangent": cotangent}, hint)


def _made(order: int, operation: int, a: _Value, b: _Value) -> _Value:
    if operation == SUM:
        return _Value(order, a.data + b.data, (a, lambda g: g), (b, lambda g: g))
    if operation == PRODUCT:
        return _Value(order, a.data * b.data, (a, lambda g: g * b.data), (b, lambda g: g * a.data))
    return _Value(order, np.sin(a.data), (a, lambda g: g * np.cos(a.data)))


def _taped(answer: Any, program: Array, x: Array, cotangent: Array) -> tuple[Any, ...] | None:
    values = [_Value(order, row) for order, row in enumerate(x)]
    for operation, first, second in program.tolist():
        values.append(_made(len(values), operation, values[first], values[second]))
    edges, pulls = sum(len(value.edges) for value in values), itertools.count(1)

    def counted(pull: Callable[..., Array]) -> Callable[..., Array]:
        def once(g: Array) -> Array:
            if next(pulls) > edges:
                raise NotYet(f"there are {edges} edges, and more calls of pull: pass on once, when "
                             "all terms have come")  # fmt: skip
            return pull(g)

        return once

    for value in values:
        value.edges = tuple((operand, counted(pull)) for operand, pull in value.edges)
    answer(values[-1], cotangent)
    leaves, behind = values[: len(x)], values[len(x) : len(x) + BEHIND]
    if all(value.grad is None for value in leaves):
        return None
    for value in (*leaves, *behind, values[-1]):
        if value.grad is None:
            which = (
                "a leaf" if value in leaves else "the root" if value is values[-1] else "a value"
            )
            raise NotYet(f"{which} has no .grad: each value gets one, leaves and root as well")
    return tuple(np.array([v.grad for v in own]) for own in (leaves, behind, values[-1:]))


def _by_tangents(program: Array, x: Array, cotangent: Array) -> Array:
    """The other way through the chain rule: the influence of each value goes forward."""
    data, nudged = list(x), len(x) + BEHIND
    nudges = np.eye(len(x) + len(program), nudged)[:, :, None] * np.ones(x.shape[1])
    tangents = list(nudges[: len(x)])
    for operation, a, b in program.tolist():
        if operation == SUM:
            data.append(data[a] + data[b])
            tangents.append(tangents[a] + tangents[b])
        elif operation == PRODUCT:
            data.append(data[a] * data[b])
            tangents.append(tangents[a] * data[b] + data[a] * tangents[b])
        else:
            data.append(np.sin(data[a]))
            tangents.append(tangents[a] * np.cos(data[a]))
        tangents[-1] = tangents[-1] + nudges[len(tangents) - 1]
    gradients = cotangent * tangents[-1]
    return gradients[: len(x)], gradients[len(x) :], cotangent[None]


def _shape_cases(random: Random) -> Iterator[Case]:
    rows = int(random.integers(3, 7))
    for name, of_result, shape, hint in (
        ("a row for all", (rows, 3), (3,), "an axis was added on the left"),
        ("a column for all", (2, rows), (2, 1), "an axis of size 1 was repeated, and has to stay"),
        ("nothing stretched", (2, 1), (2, 1), "nothing is to be done"),
        ("a number", (2, 3), (), "all axes were added"),
        ("both ways", (2, rows, 3), (1, 3), "one axis was added, another repeated"),
        ("no rows", (0, 3), (3,), "a sum of nothing is 0"),
    ):
        g = random.standard_normal(of_result)
        yield Case(name, {"g": g, "shape": np.array(shape, np.int64)}, hint)


def _shrunk(answer: Any, g: Array, shape: Array) -> Array:
    return answer(g, tuple(shape.tolist()))


def _collected(g: Array, shape: Array) -> Array:
    """Each number of the operand collects from wherever broadcasting took it."""
    shape = tuple(shape.tolist())
    result = np.zeros(shape)
    origin = np.broadcast_to(np.arange(result.size).reshape(shape), g.shape)
    np.add.at(result.reshape(-1), origin, g)
    return result


def _softmax(x: Array) -> Array:
    terms = np.exp(x)
    return terms / terms.sum(axis=-1, keepdims=True)


def _softmax_gradient(x: Array, c: Array) -> Array:
    p = _softmax(x)
    return p * (c - (c * p).sum(axis=-1, keepdims=True))


SOFTMAX, SQUARES, ROWS, CLIPPED = range(4)
FUNCTIONS: tuple[tuple[Any, Any], ...] = (
    (_softmax, _softmax_gradient),
    (np.square, lambda x, c: 2 * x * c),
    (lambda x: x.sum(axis=1) ** 3, lambda x, c: (3 * x.sum(axis=1) ** 2 * c)[:, None] + 0 * x),
    (lambda x: np.maximum(x, 0), lambda x, c: c * (x > 0)),
)


def _claims(random: Random) -> Iterator[Case]:
    x = random.uniform(0.3, 0.9, (3, 4))
    spoiled, right = np.ones((3, 4)), np.ones((3, 4))
    spoiled[1, 2] = 1.001
    for name, function, point, factors, hint in (
        ("a right gradient", SOFTMAX, x, right, "how large is the step, and is it divided by 2 h?"),
        ("0.1 % off", SQUARES, x, 1.001 * right, "is a tenth of a per cent tolerated?"),
        ("one number off", SQUARES, x, spoiled, "is every number compared?"),
        ("zeros for a softmax", SOFTMAX, x, 0 * right, "which cotangent does not see that?"),
        ("rows to numbers", ROWS, x, right, "the cotangent has the shape of the result"),
        ("a gradient of zero", CLIPPED, -x, right, "what is a share of nothing?"),
        ("large numbers", SQUARES, 1000 * x, right, "is the step lost in rounding?"),
        ("small numbers", SQUARES, x / 100, 1.001 * right, "a small number may be wrong, too"),
    ):
        yield Case(name, {"function": function, "x": point, "factors": factors}, hint)


def _asked(answer: Any, function: int, x: Array, factors: Array) -> Any:
    f, gradient = FUNCTIONS[int(function)]
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    verdict = answer(f, lambda x, c: factors * gradient(x, c), x, random)
    if verdict is not None and random.bit_generator.state == before:
        raise NotYet("nothing was drawn from `random`: a cotangent that is chosen may be blind")
    return verdict


def _is_right(function: int, x: Array, factors: Array) -> bool:
    return bool((factors == 1).all())


GRADIENTS = "the leaves' gradients", "those of the first values", "the root's"

EXERCISES = (
    Exercise(
        "tape-backward", "backward", 4, _tape_cases, _by_tangents, GRADIENTS, 1e-9, _taped,
        wrong=(
            Wrong("a term that comes later replaces the earlier ones",
                  {"g if value.grad is None else value.grad + g": "g"},
                  "a value times itself"),
            Wrong("the cotangent is all ones", {"root.grad = cotangent": "root.grad = np.ones(2)"},
                  "a value times itself"),
            Wrong("the oldest value is visited first",
                  {"(-value.order": "(value.order"}, "a diamond on a stem"),
            Wrong("a value passes on twice",
                  {"if value not in known": "if True"}, "a value times itself"),
            Wrong("`+=` writes into an array that others hold",
                  {"value.grad = g if value.grad is None else value.grad + g":
                  "value.grad = g if value.grad is None else value.grad.__iadd__(g)"},
                  "a diamond on a stem"),
            Wrong("gradients are dropped when they are used", {
                  "heapq.heappush(waiting, (-value.order, value))":
                  "heapq.heappush(waiting, (-value.order, value))\n"
                  "        if node.edges:\n            node.grad = None"}, "a value times itself"),
            Wrong("each path by itself", {"    root.grad = cotangent\n": """\
    todo = [(root, cotangent)]
    while todo:
        node, g = todo.pop()
        node.grad = g if node.grad is None else node.grad + g
        todo += [(value, pull(g)) for value, pull in node.edges]
    return
"""}, "a value times itself"),
            Wrong("it calls itself", {"    root.grad = cotangent\n": """\
    found = {}

    def visit(node):
        if node not in found:
            for value, _ in node.edges:
                visit(value)
            found[node] = True

    visit(root)
    root.grad = cotangent
    for node in reversed(found):
        for value, pull in node.edges:
            g = pull(node.grad)
            value.grad = g if value.grad is None else value.grad + g
    return
"""}, "3,000 deep"),
        ),
    ),
    Exercise(
        "unbroadcast", "unbroadcast", 3, _shape_cases, _collected, tolerance=1e-12, run=_shrunk,
        wrong=(
            Wrong("axes are summed on the right, which were added on the left",
                  {"range(added)": "range(-added, 0)"}, "a row for all"),
            Wrong("the axis of size 1 is lost", {", keepdims=True": ""}, "a column for all"),
            Wrong("axes of size 1 are not summed", {"if n == 1": "if n == 0"}, "a column for all"),
            Wrong("the mean in place of the sum", {"g = g.sum(": "g = g.mean("}, "a row for all"),
        ),
    ),
    Exercise(
        "gradcheck", "agrees", 4, _claims, _is_right, ("the verdict",), run=_asked,
        wrong=(
            Wrong("divided by h, not by 2 h", {"/ 2e-5": "/ 1e-5"}, "a right gradient"),
            Wrong("the step is so small that rounding swallows it",
                  {"= 1e-5\n": "= 1e-14\n", "/ 2e-5": "/ 2e-14"},
                  "a right gradient"),
            Wrong("an error of one per cent is tolerated", {"rtol=1e-5": "rtol=1e-2"}, "0.1 % off"),
            Wrong("no cotangent is drawn",
                  {"random.standard_normal(f(x).shape)": "np.ones(f(x).shape)"},
                  "a right gradient"),
            Wrong("all of the cotangent is one number", {"random.standard_normal(f(x).shape)":
                  "np.full(f(x).shape, random.standard_normal())"}, "zeros for a softmax"),
            Wrong("the cotangent has the shape of x",
                  {"standard_normal(f(x).shape)": "standard_normal(x.shape)"},
                  "rows to numbers"),
            Wrong("what is small is not looked at", {"atol=1e-7": "atol=1e-4"}, "small numbers"),
            Wrong("only one row is compared", {"allclose(pulled(x, c), measured":
                  "allclose(pulled(x, c)[0], measured[0]"}, "one number off"),
        ),
    ),
)  # fmt: skip
