"""What the site asks of Sphinx beyond its settings."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from docutils import nodes

from .derivations import as_rst


def setup(app: Any) -> dict[str, bool]:
    """Connect to a build."""
    app.add_config_value("alternatives", {}, "env")  # of pictures: texts by file name
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon reads it
    app.connect("autodoc-skip-member", _told_elsewhere)
    app.connect("doctree-read", _whole_formulas)
    app.connect("doctree-read", _described_pictures)
    return {"parallel_read_safe": True}


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    module = name if what == "module" else getattr(thing, "__module__", None) or name
    lines[:] = as_rst(module, lines)


def _told_elsewhere(
    app: Any, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out kernels' names that the engine passes on, and fields, told of with their class."""
    if str(getattr(thing, "__doc__", "")).startswith("Alias for field number"):
        return True
    package = PurePath(app.env.docname).name.partition(".")[0]
    home = str(getattr(thing, "__module__", None) or package).partition(".")[0]
    return True if home.startswith("minitransformer") and home != package else None


def _whole_formulas(app: Any, tree: Any) -> None:
    """A formula goes to MathJax as it is: Sphinx would wrap one of several lines, and its tag."""
    for node in tree.findall(nodes.math_block):
        text = rf"\[{node.astext()}\]"
        node.replace_self(nodes.math_block(text, text, nowrap=True, number=None))


def _described_pictures(app: Any, tree: Any) -> None:
    for node in tree.findall(nodes.image):
        name = PurePath(node["uri"]).name
        node["alt"] = app.config.alternatives.get(name, node.get("alt", ""))
