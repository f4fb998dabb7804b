"""Lesson 18's checks know no formula: any gate passes, with its own backward and kernel."""

from typing import NamedTuple

import numpy as np
import pytest

from minitransformer.course.exercise import NotYet, find

from .attempts import LESSONS, first_failure

LESSON = LESSONS["18_yours"]
GATE = """    x = key @ w / math.sqrt(len(w))
    return 1 / (1 + np.exp(-4 - x))
"""
BACK = """    dx = dg * g * (1 - g) / math.sqrt(len(w))
    return dq, dk + np.outer(dx, w), dv, dx @ k, R
"""
SEEDS = 25
KERNEL = """            x = float32(4)
            for e in range(WIDTH):
                x += float32(0.25) * w[e] * key[h, i, e]  # 1 / sqrt(E)
            g = float32(1) / (float32(1) + math.exp(-x))  # (1)
"""


class Invention(NamedTuple):
    """What takes the place of the lesson's own gate, in its three solutions."""

    gate: str
    back: str
    kernel: str


INVENTIONS = {
    "the size of the value": Invention(
        "    return 1 / (1 + (value**2).mean(axis=1))\n",
        "    dx = -dg * g**2 * 2 / v.shape[1]\n    return dq, dk, dv + dx[:, None] * v, 0 * w, R\n",
        """            x = float32(0)
            for c in range(value.shape[2]):
                x += value[h, i, c] * value[h, i, c]
            g = float32(1) / (float32(1) + x / float32(value.shape[2]))
""",
    ),
    "the place": Invention(
        "    place = at + np.arange(len(key))\n    return place / (place + 1.0)\n",
        "    return dq, dk, dv, 0 * w, R\n",
        "            g = float32(at + i) / float32(at + i + 1)\n",
    ),
    "the length of the key": Invention(
        "    return np.exp(-(key**2).mean(axis=1))\n",
        "    return dq, dk - (dg * g * 2 / len(w))[:, None] * k, dv, 0 * w, R\n",
        """            x = float32(0)
            for e in range(WIDTH):
                x += key[h, i, e] * key[h, i, e]
            g = math.exp(-x / float32(WIDTH))
""",
    ),
    "hard, of key, value and place": Invention(
        "    x = 0.5 + key @ w / 4 + value.sum(axis=1) / 8 + 1 / (2 + at + np.arange(len(key)))\n"
        "    return np.clip(x, 0, 1)\n",
        "    dx = dg * ((g > 0) & (g < 1))\n"
        "    return dq, dk + np.outer(dx, w) / 4, dv + dx[:, None] / 8, dx @ k / 4, R\n",
        """            x = float32(0.5) + float32(1) / float32(2 + at + i)
            for e in range(WIDTH):
                x += w[e] * key[h, i, e] / float32(4)
            for c in range(value.shape[2]):
                x += value[h, i, c] / float32(8)
            g = min(max(x, float32(0)), float32(1))
""",
    ),
}
every = pytest.mark.parametrize("name", INVENTIONS)
# Each is a kernel that is compiled: by day one stands for all.
kernels = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n != "the place")) for n in INVENTIONS]
)


def invented(name, **edits):
    """The lesson's text with an invention in it, and edits of that."""
    text = LESSON.text
    for old, new in zip((GATE, BACK, KERNEL), INVENTIONS[name], strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    for old, new in edits.values():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@every
def test_an_invention_passes(name):
    for exercise in ("gate", "gated-backward"):
        assert first_failure(invented(name), find(exercise)) is None


@kernels
def test_its_kernel_passes(name):
    assert first_failure(invented(name), find("gated-kernel")) is None


@every
def test_what_comes_through_its_gate_is_missed(name):
    text = invented(name, edit=("        dg[i] = (R * states[i]).sum()\n", "        dg[i] = 0\n"))
    failure = first_failure(text, find("gated-backward"))
    if name == "the place":  # nothing does
        assert failure is None
    else:
        assert "nothing comes through the gate" in failure[1]


def test_mistakes_of_any_invention_are_named():
    place = "float32(at + i) / float32(at + i + 1)"
    for new, told in (
        ("float32(i) / float32(i + 1)", "It looks like this mistake: places are counted from 0"),
        ("float32(2) / float32(3)", "Token 0 fades by 0.6667 in the kernel, and by 0 in `gate`"),
    ):
        failure = first_failure(invented("the place", edit=(place, new)), find("gated-kernel"))
        assert failure is not None and told in failure[1]


def test_a_walk_is_the_sum_over_all_earlier_tokens():
    """The judge's own truth, against equation (4): products of later gates."""
    from minitransformer.course.exercises.lesson_18 import _walk

    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 2, 7, 4))
    S, g = random.standard_normal((2, 4, 4)), random.random((2, 7))
    left = np.array([[[np.prod(own[j + 1 : i + 1]) * (j <= i) for j in range(7)] for i in range(7)]
                     for own in g])  # fmt: skip
    begun = np.cumprod(g, axis=1)[..., None] * (q @ S)
    out, last = _walk(q, k, v, g, S)
    np.testing.assert_allclose(out, begun + (left * (q @ k.swapaxes(1, 2))) @ v)
    np.testing.assert_allclose(
        last, np.cumprod(g, axis=1)[:, -1, None, None] * S
        + (k * left[:, -1, :, None]).swapaxes(1, 2) @ v,
    )  # fmt: skip


def linear(scale, begin=0.0):
    """Sigma of begin + scale k.w, and what comes through it."""

    def gate(key, value, w, at):
        return 1 / (1 + np.exp(-begin - scale * (key @ w)))

    def back(g, dg, k, v, w):
        dx = scale * dg * g * (1 - g)
        return np.outer(dx, w), 0 * v, dx @ k

    return gate, back


def crowded():
    """Sigma of a product of all there is."""

    def gate(key, value, w, at):
        return 1 / (1 + np.exp(-4 - (key @ w) * (value**2).sum(axis=1)))

    def back(g, dg, k, v, w):
        dx, size = dg * g * (1 - g), (v**2).sum(axis=1)
        return np.outer(dx * size, w), 2 * (dx * (k @ w))[:, None] * v, (dx * size) @ k

    return gate, back


def clipped(mask=True):
    """A straight line with two ends; where those are not looked at, backward is wrong."""

    def gate(key, value, w, at):
        return np.clip(0.5 + key @ w / 4, 0, 1)

    def back(g, dg, k, v, w):
        dx = dg / 4 * ((g > 0) & (g < 1) if mask else 1)
        return np.outer(dx, w), 0 * v, dx @ k

    return gate, back


def whole(gate, back):
    """The lesson's scans, and a gate's own part."""
    text = LESSON.solution("gated-backward").source
    own = text[text.index("    dx = dg") : text.index("    # END")]
    text = text.replace(own, "    dk_, dv_, dw = back(g, dg, k, v, w)\n"
                        "    return dq, dk + dk_, dv + dv_, dw, R\n")  # fmt: skip
    space = {"np": np, "gate": gate, "back": back}
    exec(text, space)
    return space["gated_backward"]


def refused(exercise, answer, seeds=SEEDS):
    """In which of the seeds: the first that is said of each."""
    told = {}
    for seed in range(seeds):
        for case in exercise.drawn(seed):
            try:
                with np.errstate(all="ignore"):
                    got = exercise.tried(answer, case)
                    problem = exercise.problem(case, got)
                    problem = problem and f"{problem}. {exercise.advice(case, got)}"
            except NotYet as error:
                problem = str(error)
            if problem:
                told[seed] = problem
                break
    return told


STEEP = {
    "5": linear(5), "20": linear(20), "100": linear(100), "4 at its end": linear(1, 8),
    "all at their end": linear(1, 20), "at the other": linear(5, -30), "crowded": crowded(),
    "clipped": clipped(),
}  # fmt: skip


@pytest.mark.parametrize("name", STEEP)
def test_a_right_backward_of_a_steep_gate_passes_with_any_numbers(name):
    """Where a gate is at its end, its slope is smaller than what rounding makes of a nudge."""
    assert not refused(find("gated-backward"), whole(*STEEP[name]))


@pytest.mark.parametrize("near", [0, 1e-6, 3e-5, 7e-5, 1e-4, 1.5e-4, 3e-4])
def test_a_kink_near_a_number_is_no_mistake(near):
    """Its slope has two sides, and a nudge goes beyond."""

    def gate(key, value, w, at):
        return 1 / (1 + abs(value).max(axis=1))

    def back(g, dg, k, v, w):
        largest = abs(v).argmax(axis=1)[:, None] == np.arange(v.shape[1])
        return 0 * k, (-dg * g**2)[:, None] * largest * np.sign(v), 0 * w

    exercise = find("gated-backward")
    case = exercise.drawn(0)[-1]
    case.inputs["v"][:] = [1 + near, -0.2, 1]
    assert not exercise.problem(case, exercise.tried(whole(gate, back), case))


def test_a_wrong_one_never_passes():
    """Nor is a slope at an end, that is not looked at, ever right by luck."""
    gate, right = linear(1, 2)
    for part in range(3):
        for factor in (-1, 0, 1.001):

            def back(*x, part=part, factor=factor):
                return [factor * y if i == part else y for i, y in enumerate(right(*x))]

            told = refused(find("gated-backward"), whole(gate, back))
            assert len(told) == (0 if part == 1 else SEEDS)  # it does not ask the value
    assert len(refused(find("gated-backward"), whole(*clipped(mask=False)), 60)) == 60


def test_an_unused_w_has_gradients_too():
    for none in (0.0, None):
        back = whole(linear(1)[0], lambda g, dg, k, v, w, none=none: (0 * k, 0 * v, none))
        told = refused(find("gated-backward"), back, 1)[0]
        assert told.startswith("dw should have the shape (4,), got ()")
        assert told.endswith("zeros, if nothing comes there, as np.zeros_like(w)")


def places(key, at):
    return at + np.arange(len(key))


RARE = {
    "each 16th place": lambda k, v, w, at: np.float64(places(k, at) % 16 != 0),
    "each 512th place": lambda k, v, w, at: np.float64(places(k, at) % 512 != 511),
    "a large value": lambda k, v, w, at: np.where(abs(v).max(axis=1) > 2.5, 0.0, 1.0),
    "a rare key": lambda k, v, w, at: np.where(k @ w / np.sqrt(len(w)) > 3, 0.0, 1.0),
    "the first places": lambda k, v, w, at: 1 - 0.5 ** (places(k, at) + 1),
}


@pytest.mark.parametrize("name", RARE)
def test_a_page_that_is_rarely_turned_is_turned(name):
    assert not refused(find("gate"), RARE[name])


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (lambda k, v, w, at: list(0 * (k @ w)), "the gate returns no array but list"),
        (lambda k, v, w, at: 0.9, "the gate returns no array but float"),
        (lambda k, v, w, at: np.float32(0 * (k @ w)), "float32, and should be float64"),
        (lambda k, v, w, at: k @ w > 0, "for booleans return 1.0 and 0.0"),
        (lambda k, v, w, at: np.where(k @ w > 0, 0, 1), "return 1.0 and 0.0, not 1 and 0"),
        (lambda k, v, w, at: np.sqrt(0j * (k @ w)), "complex128, and should be float64"),
        (lambda k, v, w, at: np.sqrt(k @ w - 9), "a logarithm of what may be below 0"),
        (lambda k, v, w, at: np.full(len(k), 0.9), "each of 1,100 tokens has the gate 0.9"),
        (lambda k, v, w, at: 0.5 * np.ones(k.shape), "got the shape (6, 4)"),
    ],
)
def test_what_is_no_gate_is_told(gate, told):
    assert told in refused(find("gate"), gate, 1)[0]
    if "float64" in told:
        with pytest.raises(NotYet, match="exercise 1: the gates are"):
            case = find("gated-backward").drawn(0)[0]
            find("gated-backward").tried(whole(gate, linear(1)[1]), case)


def test_a_kernel_may_be_off_by_what_rounding_moves():
    """Where a gate waves fast, its inputs as float32 knows them are too few to know it."""
    from minitransformer.course.exercises.lesson_18 import _moved, _walk

    def gate(key, value, w, at):
        return 0.5 + 0.5 * np.sin(10 * (key @ w))

    exercise, off = find("gated-kernel"), 0
    for seed in range(10):
        case = exercise.drawn(seed)[-1]
        query, key, value, w, at, state = case.inputs.values()
        exact = gate(np.float64(key[0]), None, np.float64(w), at)[None]
        moved = _moved(gate, key[0], value[0], w, at)[None]
        narrow = gate(key[0], None, w, at)[None]
        off = max(off, abs(narrow - exact).max())
        got = [exact, exact, moved, *_walk(query, key, value, narrow, state)]
        assert not exercise.problem(case, got)
        got[3] = got[3] * 1.1
        assert exercise.problem(case, got)
        assert "Or is it rounding? Inputs that differ by 5e-07" in exercise.advice(case, got)
    assert off > exercise.tolerance
