"""What is made of lessons: runs, Markdown pages, derivations, the table."""

import ast
import re
import textwrap
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import minitransformer
import minitransformer_kernels
from minitransformer.course import quoting
from minitransformer.course.lesson import HEADER, Lesson, folder, solved
from minitransformer.errors import UserError

pytest.importorskip("jupytext", reason="pages need jupytext: pip install -e .[test]")

from minitransformer.course.publish import pages, with_table
from minitransformer.course.publish.derivations import anchor, as_rst, rooms
from minitransformer.course.publish.markdown import prose, shown
from minitransformer.course.publish.reading import as_read, outside_code, pointing, unexecuted

from . import tiny
from .attempts import LESSONS, every

PAGES = folder() / "pages"
# What a page has beside the lesson's own text: what was printed, quoted and drawn.
OUTPUTS = re.compile(
    r"(\s*(```text\n.*?\n```|```python\n.*?\n```|!\[[^]]+\]\(\S+\.png\)))*\s*", re.S
)
INLINE = re.compile(r"(?<!\\)\$([^$\n]+)\$")


def renew(lesson):
    return f"`minitransformer course pages {lesson.number}` renews the page"


def on_the_page(lesson):
    """Each cell's source, and what the page has between it and the next; first, what is above."""
    page, source = (PAGES / f"{lesson.name}.md").read_text(encoding="utf-8"), ""
    at = page.index("-->") + 3
    for cell in as_read(unexecuted(lesson), lesson).cells:
        text = shown(cell)
        found = page.find(text, at)
        assert found >= 0, f"{renew(lesson)}: it lacks\n{text}"
        yield source, page[at:found]
        source, at = cell.source if cell.cell_type == "code" else "", found + len(text)
    yield source, page[at:]


@every
def test_the_page_says_what_the_lesson_says(lesson):
    """Text and code in order, and nothing else between but outputs, which may differ."""
    for _, below in on_the_page(lesson):
        assert OUTPUTS.fullmatch(below), f"{renew(lesson)}: it still has\n{below}"


@every
def test_the_page_gives_no_guess_away(lesson):
    page = (PAGES / f"{lesson.name}.md").read_text(encoding="utf-8")
    assert not re.findall(r"^.+: you (?:say|said) .*$", page, re.MULTILINE), renew(lesson)
    made = re.findall(r'^guess\(".+$', page, re.MULTILINE)
    assert made and all(call.endswith('", ...)') for call in made), renew(lesson)


@every
def test_the_page_quotes_the_source_as_it_is(lesson):
    """Nothing is run: any definition of the quoted name may be the one that is meant."""
    for source, below in on_the_page(lesson):
        calls = list(quotations(source))
        blocks = re.findall(r"^```python\n(.*?)\n```$", below, re.MULTILINE | re.DOTALL)
        assert len(blocks) == len(calls), f"{renew(lesson)}: not {len(calls)} quotations\n{below}"
        for (function, equations, options), block in zip(calls, blocks, strict=True):
            if function == "quote":
                name = re.search(r"^(?:def|class) (\w+)", block, re.MULTILINE)[1]
                now = list(cut(name, lesson, equations, **options))
                assert block in now, f"{renew(lesson)}: it quotes {name} as it was\n{block}"


def quotations(source):
    """What a cell quotes: `quote` or `quote_loop`, the equations, and the options, in order."""
    tree, names = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        if getattr(call.func, "id", "") in ("quote", "quote_loop"):
            options = {
                option.arg: ast.literal_eval(
                    names.get(getattr(option.value, "id", ""), option.value)
                )
                for option in call.keywords
            }
            yield call.func.id, [ast.literal_eval(node) for node in call.args[1:]], options


def cut(name, lesson, equations, also=(), docstring=False):
    """All definitions of a name, cut to equations, of those that cite them."""
    for text in (*sources(), solved(lesson.text)):
        if not re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(text)):
            if getattr(node, "name", "") == name and hasattr(node, "decorator_list"):
                first = min(part.lineno for part in (node, *node.decorator_list))
                lines = text.splitlines()[first - 1 : node.end_lineno]
                with suppress(LookupError):
                    whole = textwrap.dedent("\n".join(lines))
                    yield quoting._cut(whole, equations, also, docstring)


@cache
def sources():
    folders = (*minitransformer.__path__, *minitransformer_kernels.__path__)
    files = (file for folder in folders for file in Path(folder).rglob("*.py"))
    return [file.read_text(encoding="utf-8") for file in files]


@every
def test_the_page_has_its_figures_and_no_others(lesson):
    page = (PAGES / f"{lesson.name}.md").read_text(encoding="utf-8")
    named = re.findall(rf"^!\[[^]]+\]\({lesson.name}/(\S+)\)$", page, re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (PAGES / lesson.name).iterdir())
    assert all(path.stat().st_size < 150_000 for path in (PAGES / lesson.name).iterdir())


@every
def test_a_code_host_shows_the_formulas(lesson):
    """By the rules that it goes by: what stands beside a dollar, and what Markdown takes first."""
    page = (PAGES / f"{lesson.name}.md").read_text(encoding="utf-8")
    assert not re.search(r"\\(operatorname|newcommand|def|require|href|style|class)\b", page)
    for text in re.split(r"```.*?^ *```|(?<!\$)`[^`\n$]+`(?!\$)", page, flags=re.S | re.M):
        assert "$$" not in text
        for formula in INLINE.finditer(text):
            before, after = text[: formula.start()][-1:], text[formula.end() :][:1]
            assert not before or before in " \n(*-“\"'|>", text[formula.start() - 20 :][:60]
            assert not re.match(r"\w", after), text[formula.start() :][:60]
            if not formula[1].startswith("`"):
                assert not re.search(r"\\[^\w\s]|[*<>|~]|[^\w\s]_", formula[1]), formula[0]


def test_no_page_is_left_of_a_lesson_that_is_gone():
    assert {path.stem for path in PAGES.iterdir()} <= set(LESSONS)


def test_links_lead_somewhere():
    def linked(path):
        (lead if (file.parent / path).exists() else astray).append(f"{file.name}: {path}")

    lead, astray = [], []
    for file in (*folder().glob("*.md"), *PAGES.glob("*.md")):
        pointing(file.read_text(encoding="utf-8"), linked)
    assert not astray
    assert lead


def test_the_table_of_lessons_is_fresh():
    text = (folder() / "README.md").read_text(encoding="utf-8")
    assert with_table(text) == text, "`minitransformer course pages` renews it"
    for lesson in LESSONS.values():
        assert f"| [{lesson.title}](pages/{lesson.name}.md) | {lesson.question} |" in text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (r"of $x_i$ and $y$.", r"of $x_i$ and $y$."),
        (r"of $\{x\}$, $\hat{k}_j$, $a\,b$", r"of $`\{x\}`$, $`\hat{k}_j`$, $`a\,b`$"),
        ("$a\n= b$", "$a = b$"),
        ("$$a \\\\\n= b \\tag{1}$$", "```math\na \\\\\n= b \\tag{1}\n```"),
        ("- x\n\n  $$\n  a\n  $$", "- x\n\n  ```math\n  a\n  ```"),
        ("`$a_i$` and\n```\n$$b$$\n```", "`$a_i$` and\n```\n$$b$$\n```"),
        ("[a](glossary.md#b) [`c`](07_d.py) `[e](f)`",
         "[a](../glossary.md#b) [`c`](07_d.md) `[e](f)`"),
        ("[a](https://b.c) [d](#e) ![f](g.png)", "[a](https://b.c) [d](#e) ![f](g.png)"),
    ],
)  # fmt: skip
def test_prose_for_a_code_host(text, made):
    assert prose(text) == made


def test_code_is_left_alone():
    assert outside_code("a `b` c\n```\nd\n```\ne", str.upper) == "A `b` C\n```\nd\n```\nE"
    assert pointing("[a](b.py), `[a](b.py)`", {}.get) == "a, `[a](b.py)`"


def test_derivations_are_found_with_the_lines_that_compute_them():
    known = {room.module: room for room in rooms()}
    softmax = known["minitransformer_kernels.softmax"]
    assert (
        softmax.title
        == "Fused softmax attention: the matrix of weights never exists in memory (S3)"
    )
    assert list(softmax.equations) == list(range(1, 14))
    assert softmax.equations[8] == "delta_i = g_i . o_i"
    recurrent = known["minitransformer_kernels.recurrent"]
    assert {citation.file for citation in recurrent.citations[1]} >= {"plain.py", "fast.py"}
    linear = known["minitransformer_kernels.linear"]
    assert linear.home[1] == linear.module and linear.home[12] == f"{linear.module}.reference"
    for room in known.values():
        for citations in room.citations.values():
            assert all(re.search(r"\w", citation.code) for citation in citations)


def test_a_citation_is_a_line_of_its_file():
    from importlib.util import find_spec

    for room in rooms():
        home = Path(find_spec(room.module).origin).parent
        for number, citations in room.citations.items():
            for file, line, _ in citations:
                text = (home / file).read_text(encoding="utf-8").splitlines()[line - 1]
                ranges = re.findall(r"\((\d+)\)(?:(?: to |-)\((\d+)\))?", text)
                assert any(int(a) <= number <= int(b or a) for a, b in ranges), text


def test_docstrings_keep_their_formulas_and_lose_no_sign():
    lines = ["A *b* of |x_|, `c_`s and **d**.", "", "    y = a < b   (3)", "", "(3) is: w_"]
    made = as_rst("package.room", lines)
    assert made[0] == r"A \*b\* of \|x\_\|, `c_`\ s and **d**."
    assert '<span class="equation" id="room-3">y = a &lt; b   (3)</span>' in "\n".join(made)
    assert made[-1] == r"\(3) is: w\_"
    assert anchor("package.layer_norm", 2) == "layer-norm-2"
    example = ["x.", "", "Args:", "    y: `z`, of", "", "        two blocks", "", ">>> 1 * 2", "2"]
    assert as_rst("m", example) == example


class TestRuns:
    """A tiny lesson, run."""

    @pytest.fixture(autouse=True)
    def _can_run(self, tmp_path, monkeypatch):
        for library in ("nbclient", "ipykernel"):
            pytest.importorskip(library, reason="running lessons: pip install -e .[docs]")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def test_pages_are_written(self, tmp_path, monkeypatch):
        tiny.write(tmp_path)
        for module in ("lesson", "publish"):
            monkeypatch.setattr(f"minitransformer.course.{module}.folder", lambda: tmp_path)
        written = [path.relative_to(tmp_path).as_posix() for path in pages(["3"], fast=True)]
        assert written == ["pages/03_tiny.md", "pages/03_tiny/squares.png", "README.md"]
        page = (tmp_path / "pages" / "03_tiny.md").read_text(encoding="utf-8")
        parts = (
            "# A tiny lesson", r"$S_i$, $`\{x_i\}`$ and a [warp](../glossary.md#warp)",
            "stays: `a[i](b)` and `$x$`", "```math\nS_i = S_{i-1}",
            "<details><summary>Code that sets up</summary>\n\n```python\nimport sys",
            '```python\nguess("factor", ...)\n', "```text\nabracadabra\n```",
            "![A curve through 1, 4 and 9.](03_tiny/squares.png)", "```python\ndef guess(",
            "**Your turn.**\n\n```python\ndef double", "pass  # your turn",
            "<details><summary>A solution</summary>", "return 2 * x", "```text\n4\n```",
        )  # fmt: skip
        places = [page.find(part) for part in parts]
        assert all(place >= 0 for place in places) and places == sorted(places)
        assert "to nobody" not in page and "SOLUTION" not in page
        assert "What is a lesson?" in (tmp_path / "README.md").read_text()

    def test_who_reads_sees_no_guess_and_the_run_keeps_it(self, tmp_path):
        from minitransformer.course.publish.execute import executed

        code = 'guess("a.b", 8)\n\n# %%\nprint("axb: you say 8")\nreveal("a.b", 9)\n'
        path = tmp_path / "03_guess.py"
        path.write_text(f"{HEADER}# %%\nfrom minitransformer.course import *\n\n# %%\n{code}")
        ran = executed(Lesson(path), fast=True)
        read = as_read(ran, Lesson(path)).cells
        assert ran.cells[1].source == 'guess("a.b", 8)'
        assert ran.cells[1].outputs[0].text == "a.b: you say 8\n"
        assert read[1].source == 'guess("a.b", ...)' and not read[1].outputs
        assert read[2].outputs[0].text == "axb: you say 8\na.b: it is 9\n"

    @pytest.mark.parametrize(
        ("code", "problem"),
        [
            ("x = 1\n1 / 0", "ZeroDivisionError: division by zero"),
            ("import os\nos._exit(1)", "the process that ran it died"),
        ],
    )
    def test_a_cell_that_fails_is_named(self, tmp_path, code, problem):
        from minitransformer.course.publish.execute import executed

        path = tmp_path / "03_bad.py"
        path.write_text(f"{HEADER}# %% [markdown]\n# # Bad\n\n# %%\n1\n\n# %%\n{code}\n")
        with pytest.raises(UserError, match=rf"^03_bad\.py, cell 3 \(line 20\): {problem}$"):
            executed(Lesson(path), fast=True)

    def test_what_ran_is_kept_until_something_changes(self, tmp_path, monkeypatch):
        from minitransformer.course.publish import execute

        path = tmp_path / "03_clock.py"
        path.write_text(f"{HEADER}# %%\nimport time\n\ntime.time_ns()\n")

        def clock(fast=True):
            return execute.executed(Lesson(path), fast=fast).cells[0].outputs[0].data["text/plain"]

        first = clock()
        assert clock() == first != clock(fast=False)
        monkeypatch.setattr(execute, "_surroundings", lambda: "another kernel")
        changed = clock()
        assert changed != first
        path.write_text(path.read_text() + "# changed\n")
        assert clock() not in (first, changed)
