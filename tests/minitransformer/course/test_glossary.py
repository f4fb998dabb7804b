"""The glossary has every word that a lesson looks up, and its kernels do what it says."""

import re
from pathlib import Path

import numpy as np
import pytest
from numba import float32

from minitransformer.course.lesson import folder
from minitransformer.course.student import hand_out
from minitransformer_kernels import DataRace, checked, microscope
from minitransformer_kernels.cuda import cuda

from .attempts import every

TEXT = (folder() / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
ANCHORS = {re.sub(r"[^\w -]", "", term.lower()).replace(" ", "-") for term in TERMS}
KERNELS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
X = np.random.default_rng(0).random(64, np.float32)
PAIRS = X.reshape(2, 32)

# What each kernel leaves in `out`, which is zero before.
RESULTS = {
    "everybody_adds": np.r_[X.sum(), np.zeros(63)],
    "a_column": X,
    "reverse": PAIRS[:, ::-1].reshape(-1),
    "every_other": np.r_[X[::2], X[::2]],
    "two_sides": np.where(np.arange(64) % 2, X, -X),
    "guarded": 2 * X,
    "neighbour": (PAIRS + np.roll(PAIRS, -1, axis=1)).reshape(-1),
    "warp_sum": np.r_[PAIRS.sum(axis=1), np.zeros(62)],
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernels by name, imported from a file."""
    file = tmp_path_factory.mktemp("glossary") / "kernels.py"
    file.write_text("\n\n".join(KERNELS))
    known = {"cuda": cuda, "float32": float32}
    exec(compile(file.read_text(), str(file), "exec"), known)
    return known


def test_terms_are_in_order_and_short():
    assert sorted(TERMS, key=str.lower) == TERMS
    assert len(set(TERMS)) == len(TERMS)
    for kernel in KERNELS:
        assert len(kernel.splitlines()) <= 11


@pytest.mark.parametrize(
    "page", [*folder().glob("[0-9][0-9]_*.py"), *folder().glob("*.md")], ids=lambda page: page.name
)
def test_every_term_that_is_looked_up_is_here(page: Path):
    text = page.read_text(encoding="utf-8")
    wanted = set(re.findall(r"glossary\.md#([\w-]+)", text))
    if page.name == "glossary.md":
        wanted |= set(re.findall(r"\]\(#([\w-]+)\)", text))
    assert wanted <= ANCHORS


ELSEWHERE = {("*", "recall"), ("*", "walk"), ("02", "mask")}  # words that mean something else, too
# Words that lessons say in passing before the one from which on they are looked up.
SINCE = dict.fromkeys(("batch", "dropout", "layer", "loss", "parameter", "room"), 5)
SINCE |= dict.fromkeys(("graph", "window"), 13)
SOURCES = r"^\*Sources?\.\*.*?(?=\n\n)"  # titles of papers


@every
def test_a_term_is_looked_up_where_a_lesson_first_has_it(lesson):
    """In running text: not in headings, formulas, code, hints and titles of papers."""
    prose = "\n\n".join(cell.source for cell in lesson.cells if cell.is_text)
    hidden = r"<details>.*?</details>", SOURCES, r"^#.*?$", r"`[^`]*`", r"\$\$.*?\$\$|\$[^$]*\$"
    for text in hidden:
        prose = re.sub(text, " ", prose, flags=re.DOTALL | re.MULTILINE)
    for term in TERMS:
        if ELSEWHERE & {("*", term), (lesson.name[:2], term)} or lesson.number < SINCE.get(term, 0):
            continue
        forms = {"owner": "owner|owns", "backward": "backward"}.get(term, f"{term}(s|es)?")
        forms = forms.replace(" ", r"\s+")
        first = re.search(rf"\b({forms})\b", prose, re.IGNORECASE)
        anchor = re.sub(r"[^\w -]", "", term.lower()).replace(" ", "-")
        assert first is None or re.match(
            rf"[^\]]*\]\(glossary\.md#{anchor}\)", prose[first.end() :]
        ), prose[first.start() - 40 : first.end() + 40]


def test_the_kernels_give_what_they_say(kernels):
    names = set(re.findall(r"^def (\w+)", "\n".join(KERNELS), re.MULTILINE))
    assert names == {*RESULTS, "racing"}
    for name, expected in RESULTS.items():
        out = np.zeros(64, np.float32)
        with checked():
            kernels[name][2, 32](X, out)
        np.testing.assert_allclose(out, expected, rtol=1e-6, err_msg=name)
    with checked(), pytest.raises(DataRace):
        kernels["racing"][2, 32](X.copy(), X.copy())


def test_what_they_cost_is_as_they_say(kernels):
    def inspected(name):
        return microscope.inspect(kernels[name][2, 32], X, X.copy(), compiled=False)

    assert inspected("a_column").total("shared").worst == 32
    sites = {s.traffic.writes > 0: s.traffic.worst for s in inspected("every_other").traffic}
    assert sites == {False: 8, True: 4}
    assert min(line.share for line in inspected("two_sides").lines if line.reached) == 0.5


def test_students_get_the_pages_that_lessons_link_to(tmp_path):
    hand_out(tmp_path, "1", scripts=True)
    text = (tmp_path / "01_first_kernel.py").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w.]+\.md)", text))
    assert linked == {"glossary.md", "first_kernel.md"}
    assert linked <= {path.name for path in tmp_path.iterdir()}
