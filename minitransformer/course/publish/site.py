"""The site: lessons, derivations, equations and the API, for a browser without a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import pkgutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_markdown_cell
from sphinx.application import Sphinx
from sphinx.util.console import strip_colors
from sphinx.util.docutils import docutils_namespace, patch_docutils

import minitransformer

from ...errors import UserError
from ..lesson import Lesson
from .derivations import Room, anchor, page, rooms
from .reading import FOLDED_CODE, FOLDED_SOLUTION, SOLUTION, as_read, pointing
from .table import table

STATIC = Path(__file__).parent / "static"
STUDENTS, NOTEBOOKS = "students", "notebooks"  # folders of the site, beside its pages
KERNELS = ("minitransformer_kernels", "minitransformer_kernels.cuda")  # beside what has equations

SETTINGS: dict[str, Any] = {
    "project": "minitransformer",
    "html_title": "minitransformer",
    "extensions": [
        "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax",
        "minitransformer.course.publish.extension",
    ],
    "nb_execution_mode": "off",
    "nb_code_prompt_show": FOLDED_CODE,
    "nb_code_prompt_hide": FOLDED_CODE,
    "myst_enable_extensions": ["dollarmath"],
    "myst_heading_anchors": 3,
    "default_role": "code",
    # A name that several classes have is no link; a heading may be two steps below another.
    "suppress_warnings": ["ref.python", "myst.header"],
    "napoleon_use_ivar": True,
    "autodoc_typehints": "none",
    "autodoc_member_order": "bysource",
    "autodoc_preserve_defaults": True,
    "html_theme": "furo",
    "html_css_files": ["course.css"],
    "html_favicon": str(STATIC / "favicon.svg"),
    "html_show_search_summary": False,  # needs a server, and fails with an error on file://
    "html_show_sourcelink": False,
    "html_copy_source": False,
    "html_show_copyright": False,
    "mathjax_path": "tex-svg.js",
    "mathjax3_config": {"tex": {"tags": "none"}},
    "toc_object_entries": False,
}  # fmt: skip


def build_site(notebooks: Mapping[Lesson, Any], out: Path) -> None:
    """Write the site.

    Args:
        notebooks: What `executed` returned for each lesson, in order.
        out: The folder of `index.html`.

    Raises:
        UserError: A page has a mistake: a link to nowhere, text that does not parse.
    """
    with tempfile.TemporaryDirectory(prefix="minitransformer-site-") as temporary:
        source, doctrees = Path(temporary, "source"), Path(temporary, "doctrees")
        source.mkdir()
        others = _others(notebooks)
        links = {name: name for name in others}
        for lesson in notebooks:
            for name in (lesson.path.name, f"pages/{lesson.name}.md"):
                links[name] = f"{lesson.name}.ipynb"
        for name, file in others.items():
            text = file.read_text(encoding="utf-8")
            _write(source / name, pointing(text, links.get) if file.suffix == ".md" else text)
        alternatives: dict[str, str] = {}
        for lesson, notebook in notebooks.items():
            read = _page(notebook, lesson, links)
            alternatives |= _alternatives(read)
            nbformat.write(read, source / f"{lesson.name}.ipynb")
        known = rooms()
        modules = [*sorted({*KERNELS, *_homes(known)}), *_engine()]
        for module in modules:
            _write(source / f"{page(module)}.rst", _module(module))
        _write(source / "equations.md", _equations(known))
        _write(source / "index.md", _index(list(notebooks), sorted(others), modules))
        settings = SETTINGS | {
            "alternatives": alternatives,
            "html_static_path": [str(STATIC / "course.css"), str(_mathjax())],
        }
        _sphinx(source, out, doctrees, settings)


def _sphinx(source: Path, out: Path, doctrees: Path, settings: dict[str, Any]) -> None:
    said = io.StringIO()
    with patch_docutils(), docutils_namespace(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # between Sphinx and extensions
        app = Sphinx(
            source, None, out, doctrees, "html", settings, status=None, warning=said,
            warningiserror=True,
        )  # fmt: skip
        app.build(force_all=True)
    if app.statuscode:
        raise UserError(f"the site has mistakes:\n{strip_colors(said.getvalue()).strip()}")


def _mathjax() -> Path:
    """The one file of MathJax 3.2.2 that a page needs, from a package that carries it."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise UserError('the site needs more libraries: pip install "minitransformer[docs]"')
    return Path(spec.origin).parent / "static" / "mathjax" / "tex-svg.js"


def _page(notebook: Any, lesson: Lesson, links: Mapping[str, str]) -> Any:
    """A lesson as the site shows it."""
    made = as_read(notebook, lesson)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = pointing(cell.source, links.get)
        elif SOLUTION in cell.metadata.get("tags", ()):
            cell.metadata["mystnb"] = {
                "code_prompt_show": FOLDED_SOLUTION, "code_prompt_hide": FOLDED_SOLUTION
            }  # fmt: skip
    title, _, rest = made.cells[0].source.partition("\n")
    files = (f"{STUDENTS}/{lesson.name}.ipynb", f"{NOTEBOOKS}/{lesson.name}.ipynb")
    head = (
        f'<p class="lesson">{lesson.minutes} minutes · <a href="{files[0]}" download>notebook to '
        f'fill in</a> · <a href="{files[1]}" download>with solutions</a> · '
        f"<code>minitransformer course start {lesson.number}</code></p>"
    )
    made.cells[0] = new_markdown_cell(f"{title}\n\n{head}\n{rest}", id="cell-0")
    return made


def _alternatives(notebook: Any) -> dict[str, str]:
    """The texts of pictures, by the names that MyST-NB gives their files."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if data := output.get("data", {}).get("image/png"):
                name = hashlib.sha256(base64.b64decode(data)).hexdigest()
                found[f"{name}.png"] = output.metadata["image/png"]["alt"]
    return found


def _others(notebooks: Mapping[Lesson, Any]) -> dict[str, Path]:
    """What stands beside the lessons, by name: texts to read, and programs to download."""
    folders = {lesson.path.parent for lesson in notebooks}
    files = (
        file for folder in folders for file in (*folder.glob("*.md"), *folder.glob("[a-z]*.py"))
    )
    return {file.name: file for file in files if file.name != "README.md"}


def _homes(known: list[Room]) -> set[str]:
    return {module for room in known for module in (room.module, *room.home.values())}


def _engine() -> Iterator[str]:
    """The engine's modules; one that says what is public in it stands for all that is inside."""

    def inside(path: Any, name: str) -> Iterator[str]:
        for found in pkgutil.iter_modules(path, f"{name}."):
            if found.name.rpartition(".")[2] in ("__main__", "commands", "plots", "settings"):
                continue
            module = importlib.import_module(found.name)
            yield found.name
            if found.ispkg and not hasattr(module, "__all__"):
                yield from inside(module.__path__, found.name)

    yield "minitransformer"
    yield from inside(minitransformer.__path__, "minitransformer")


def _module(name: str) -> str:
    module = importlib.import_module(name)
    options = ["members", "show-inheritance"]
    if hasattr(module, "__all__"):
        options.append("imported-members")
    if name == "minitransformer":  # what it has by a shorter name stands where it is defined, too
        options.append("no-index")
    listed = "\n".join(f"   :{option}:" for option in options)
    return f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n{listed}\n"


def _equations(known: list[Room]) -> str:
    """The page that says which line implements which equation."""
    parts = [
        "# Which line implements which equation\n\nEach line of maths in a kernel cites the "
        "equation that it computes. Here they are by equation: where it is derived, and the lines "
        "of code, with file and line number.",
    ]
    for room in known:
        parts.append(f"## {room.title}\n\n[{room.module}]({page(room.module)}.rst)")
        for number, text in sorted(room.equations.items()):
            home = f"{page(room.home[number])}.html#{anchor(room.home[number], number)}"
            parts.append(
                f'<p class="cited"><a href="{home}">({number})</a> <code>{escape(text)}</code></p>'
            )
            cited = room.citations.get(number)
            if not cited:
                parts.append(
                    "No line cites it: a definition, a step between, or a kernel as a whole."
                )
                continue
            width = max(len(f"{c.file}:{c.line}") for c in cited)
            lines = (f"{f'{c.file}:{c.line}':<{width}}  {c.code}" for c in cited)
            parts.append("```python\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts) + "\n"


def _index(found: list[Lesson], others: list[str], modules: list[str]) -> str:
    pages = [lesson.name for lesson in found]
    texts = ["equations", *(name.removesuffix(".md") for name in others if name.endswith(".md"))]
    kernels = [_entry(m) for m in modules if m.startswith("minitransformer_kernels")]
    engine = [_entry(m) for m in modules if not m.startswith("minitransformer_kernels")]

    def tree(caption: str, names: list[str]) -> str:
        listed = "\n".join(names)
        return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```"

    return "\n\n".join((
        "# The course",
        "Attention from a formula to a kernel that trains models: each lesson derives, predicts, "
        "measures, and lets you write. You need Python, NumPy and a year of calculus; no GPU.",
        table(found, ".ipynb"),
        "In a clone of the repository",
        '```sh\npip install -e ".[course]"\nminitransformer course start\n```',
        "puts the notebooks into a folder of yours and opens them; "
        "`minitransformer course progress` says which exercises pass.",
        tree("Lessons", pages), tree("Look up", texts),
        tree("Kernels and derivations", kernels), tree("Engine", engine),
    )) + "\n"  # fmt: skip


def _entry(module: str) -> str:
    return f"{module.partition('.')[2] or module} <{page(module)}>"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
