"""A recording as a page: one file, which needs neither a server nor a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from .recording import Recording


def page(recording: Recording) -> str:
    """Return a page that shows a recording: HTML, with its script and all that it shows."""
    template = (files(__package__) / "page.html").read_text(encoding="utf-8")
    text = json.dumps(_data(recording), separators=(",", ":"), ensure_ascii=False)
    filled = template.replace("{{title}}", escape(recording.title))
    return filled.replace("{{data}}", text.replace("<", "\\u003c"))


def _data(recording: Recording) -> dict[str, Any]:
    """What the script reads. Of 32 numbers that rise evenly only two are told."""
    steps = [
        [step.warp, step.row, step.came, step.made,
         {slot: " ".join(texts) for slot, texts in step.written.items()},
         *([_short(step.words), step.width, dict(step.stored)] if step.words else [])]
        for step in recording.steps
    ]  # fmt: skip
    parts = "first", "source", "rows", "registers", "names", "warps", "threads", "shared"
    return {part: getattr(recording, part) for part in parts} | {"steps": steps}


def _short(words: Sequence[int]) -> list[int] | dict[str, int]:
    rise = words[1] - words[0] if len(words) > 1 else 0
    even = words[0] >= 0 and all(
        word == words[0] + lane * rise for lane, word in enumerate(words)
    )  # fmt: skip
    return {"first": words[0], "rise": rise, "lanes": len(words)} if even else list(words)
