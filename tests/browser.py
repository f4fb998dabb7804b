"""Opens a site in a real browser, as its readers do, and says what they would stumble over.

    python -m tests.browser SITE [PAGE ...] [--shots FOLDER] [--search WORD]

Every page is opened from the disk, without a network, at the width of a desk and of a phone, light
and dark. Needs playwright, and a Chromium on the path.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlparse

VIEWS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]

# What only the page itself knows: a list of texts, one for each finding; and its links.
LOOK = r"""async () => {
  if (window.MathJax?.startup?.promise) await MathJax.startup.promise;
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  const found = [];
  const article = document.querySelector("article") ?? document.body;

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (text.parentElement.closest("pre, code, script, style, noscript, mjx-container")) continue;
    if (/\\[a-zA-Z]{2,}|\$\$|\\[([]|\$[^\s$][^$]{0,80}\$/.test(text.data))
      found.push(`raw TeX: ${text.data.trim().slice(0, 60)}`);
  }
  for (const error of document.querySelectorAll("mjx-merror, [data-mml-node=merror]"))
    found.push(`a formula with an error: ${error.textContent.slice(0, 60)}`);

  const scrolls = style => ["auto", "scroll"].includes(style);
  const scroller = element => {
    for (; element && element !== document.body; element = element.parentElement)
      if (scrolls(getComputedStyle(element).overflowX)) return element;
  };
  for (const math of document.querySelectorAll(".math")) {
    const formula = math.querySelector("mjx-container svg");
    if (!formula) { found.push(`a formula not drawn: ${math.textContent.slice(0, 60)}`); continue; }
    const closed = math.closest("details:not([open])");
    if (closed) closed.open = true;
    const box = formula.getBoundingClientRect();
    const outer = scroller(formula) ?? article;
    const edge = outer.getBoundingClientRect();
    if (!scroller(formula) && (box.right > edge.right + 1 || box.left < edge.left - 1))
      found.push(`a formula wider than its page: ${math.textContent.slice(0, 60)}`);
    if (scroller(formula) && (box.top < edge.top - 1 || box.bottom > edge.bottom + 1))
      found.push(`a formula cut above or below: ${math.textContent.slice(0, 60)}`);
    if (!box.width || !box.height) found.push("a formula of no size");
    if (closed) closed.open = false;
  }

  for (const image of document.images) {
    if (!image.naturalWidth) found.push(`no picture: ${image.src}`);
    if (!image.alt) found.push(`a picture without alt: ${image.src}`);
  }
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) found.push(`the page scrolls by ${wide} pixels`);

  const numbers = colour => colour.match(/[\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue]
    .map(x => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, at) => sum + x * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = numbers(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.9) return colour;
    }
    return [255, 255, 255];
  };
  for (const text of article.querySelectorAll("p, pre, td, th, summary, h1, h2, h3")) {
    if (!text.innerText?.trim()) continue;
    const both = [light(numbers(getComputedStyle(text).color)), light(behind(text))];
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (contrast < 4.5)
      found.push(`hard to read (${contrast.toFixed(1)}): ${text.innerText.slice(0, 60)}`);
  }
  return [found, [...document.querySelectorAll("a[href]")].map(link => link.href)];
}"""


def missing() -> str | None:
    """What there is to install before a browser can be opened; None where all is there."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "pip install playwright"
    return None if _chromium() else "a Chromium on the path, as by apt-get install chromium"


def findings(
    site: Path, pages: Sequence[str] = (), shots: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Open pages and yield what is wrong, each with where: page, width, light or dark.

    Args:
        site: The folder of `index.html`.
        pages: Paths in it; all where empty.
        shots: A folder for pictures of the pages, if any.
    """
    site = site.resolve()
    known = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    with _browser() as browser:
        for width, scheme in VIEWS:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            for name in pages or [name for name in known if not name.startswith("_static")]:
                where = f"{name} at {width}, {scheme}"
                page, found = _opened(context, site, site / name)
                seen, links = page.evaluate(LOOK)
                yield from ((where, problem) for problem in [*found, *seen])
                yield from ((where, f"a dead link: {link}") for link in _dead(site, links))
                if shots:
                    shots.mkdir(parents=True, exist_ok=True)
                    shot = f"{name.replace('/', '_')}-{width}-{scheme}.png"
                    page.screenshot(path=shots / shot, full_page=True)
                page.close()
            context.close()


def hits(site: Path, word: str) -> tuple[list[str], list[str]]:
    """Search for a word as a reader does; return the titles found, and what went wrong."""
    site = site.resolve()
    with _browser() as browser:
        page, found = _opened(browser.new_context(), site, site / "index.html")
        page.locator("input[name=q]").first.fill(word)
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html*")
        page.wait_for_function("document.querySelector('#search-results h2 ~ p')?.innerText")
        results = page.locator("#search-results li a")
        return results.all_inner_texts(), found


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


def _chromium() -> str | None:
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, found), None)


def _opened(context: Any, site: Path, file: Path) -> tuple[Any, list[str]]:
    """Open a page, and note what it asks for and complains of from then on."""
    page, found = context.new_page(), []

    def asked(request: Any) -> None:
        if not request.url.startswith((site.as_uri(), "data:", "blob:")):
            found.append(f"a request leaves: {request.url}")

    def said(message: Any) -> None:
        if message.type == "error":
            found.append(f"an error on the console: {message.text[:200]}")

    page.on("request", asked)
    page.on("requestfailed", lambda request: found.append(f"a request fails: {request.url}"))
    page.on("console", said)
    page.on("pageerror", lambda error: found.append(f"an error: {str(error)[:200]}"))
    page.goto(file.as_uri(), wait_until="load")
    return page, found


def _dead(site: Path, links: Sequence[str]) -> Iterator[str]:
    for link in sorted(set(links)):
        address, fragment = urldefrag(link)
        if not address.startswith("file:"):
            continue
        file = Path(unquote(urlparse(address).path))
        is_there = site in file.parents and file.is_file()
        if is_there and fragment and file.suffix == ".html":
            is_there = unquote(fragment) in _anchors(file)
        if not is_there:
            yield link


@cache
def _anchors(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\b(?:id|name)="([^"]+)"', file.read_text(encoding="utf-8")))


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--shots", type=Path, help="a folder for pictures of the pages")
    parser.add_argument("--search", metavar="WORD", help="a word that the search must find")
    options = parser.parse_args()
    if problem := missing():
        sys.exit(f"browser: this needs {problem}")
    problems = [
        f"{where}: {problem}"
        for where, problem in findings(options.site, options.pages, options.shots)
    ]
    if options.search:
        titles, said = hits(options.site, options.search)
        print(f"{options.search} is found on {len(titles)} pages")
        problems += said if titles else [*said, f"{options.search} is not found"]
    print(*problems, f"{len(problems)} findings", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
