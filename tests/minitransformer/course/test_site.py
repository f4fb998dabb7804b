"""The site, as a browser shows it: nothing leaves, nothing is broken, everything can be read.

It has one tiny lesson, and all derivations. `python -m tests.browser` opens every page of a site.
"""

import json

import pytest

from tests import browser

from . import tiny

for library in ("myst_nb", "furo", "nbclient", "ipykernel"):
    pytest.importorskip(library, reason="the site: pip install -e .[docs]")

PAGES = [
    "index.html",
    "03_tiny.html",
    "glossary.html",
    "equations.html",
    "api/minitransformer_kernels.softmax.html",
    "api/minitransformer.nn.html",
]
needs_a_browser = pytest.mark.skipif(
    browser.missing() is not None, reason=f"a browser: {browser.missing()}"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from minitransformer.course.publish import build

    tutorials, out = tmp_path_factory.mktemp("tutorials"), tmp_path_factory.mktemp("site")
    tiny.write(tutorials)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tutorials / "cache"))
        patch.setattr("minitransformer.course.lesson.folder", lambda: tutorials)
        written = list(build([], out, fast=True))
    assert all(path.exists() for path in written)
    return out


def test_students_get_no_solution(site):
    student = (site / "students" / "03_tiny.ipynb").read_text()
    assert "return 2 * x" not in student and "your turn" in student
    ran = json.loads((site / "notebooks" / "03_tiny.ipynb").read_text())
    assert "return 2 * x" in str(ran) and "abracadabra" in str(ran)


def test_equations_lead_to_their_derivations(site):
    text = (site / "equations.html").read_text()
    assert 'href="api/minitransformer_kernels.softmax.html#softmax-8"' in text
    page = (site / "api" / "minitransformer_kernels.softmax.html").read_text()
    assert '<span class="equation" id="softmax-8">delta_i = g_i . o_i' in page


@needs_a_browser
def test_a_reader_stumbles_over_nothing(site):
    assert list(browser.findings(site, PAGES)) == []


@needs_a_browser
def test_search_finds_a_word(site):
    titles, problems = browser.hits(site, "abracadabra")
    assert titles == ["A tiny lesson"]
    assert not problems


BAD = r"""<!doctype html><html><body style="margin: 0"><article>
<p>Raw \alpha here, and $x_i$ there.</p>
<div class="math">\[never drawn\]</div>
<p><span class="math"><mjx-container><svg width="2000" height="20"></svg></mjx-container></span></p>
<div class="math" style="overflow-x: auto; overflow-y: hidden; height: 10px">
<mjx-container><svg width="20" height="40"></svg></mjx-container></div>
<mjx-container><svg data-mml-node="merror"></svg></mjx-container>
<img src="missing.png" alt="lost"><img src="https://example.com/a.png">
<a href="nowhere.html">a</a><a href="#nowhere">b</a><a href="bad.html#there" id="there">c</a>
<p style="color: #999">Pale.</p><script>console.error("oh"); undefined.x</script>
</article></body></html>"""


@needs_a_browser
def test_whatever_is_wrong_is_found(tmp_path):
    (tmp_path / "bad.html").write_text(BAD)
    found = {text for where, text in browser.findings(tmp_path) if "390, light" in where}
    starts = (
        r"raw TeX: Raw \alpha", "a formula not drawn", "a formula wider than its page",
        "a formula cut above or below", "a formula with an error", "no picture: file:",
        "a picture without alt: https:", "a request leaves: https://example.com/a.png",
        "a request fails: file:", "the page scrolls by", "hard to read (2.8): Pale.",
        "an error on the console: oh", "an error: Cannot read",
    )  # fmt: skip
    for start in starts:
        assert any(text.startswith(start) for text in found), (start, found)
    dead = {text.rpartition("/")[2] for text in found if text.startswith("a dead link")}
    assert dead == {"nowhere.html", "bad.html#nowhere"}
