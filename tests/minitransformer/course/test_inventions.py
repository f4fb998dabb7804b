"""Lesson 18's checks know no formula: any gate passes, with its own backward and kernel."""

from typing import NamedTuple

import numpy as np
import pytest

from minitransformer.course.exercise import find

from .attempts import LESSONS, first_failure

LESSON = LESSONS["18_yours"]
GATE = """    x = key @ w / math.sqrt(len(w))
    return 1 / (1 + np.exp(-4 - x))
"""
BACK = """    dx = dg * g * (1 - g) / math.sqrt(len(w))
    return dq, dk + np.outer(dx, w), dv, dx @ k, R
"""
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
