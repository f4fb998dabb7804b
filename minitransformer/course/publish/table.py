"""The table of lessons, which stands in several places and is made in one."""

from __future__ import annotations

from collections.abc import Iterable

from ..lesson import Lesson


def table(lessons: Iterable[Lesson], ending: str, folder: str = "") -> str:
    """Return the table as Markdown.

    Args:
        lessons: What it lists.
        ending: Of the files that it links to, as ".md".
        folder: Where they are.
    """
    rows = [
        "| | lesson | what it answers | minutes | after | exercises |",
        "|---|---|---|---|---|---|",
    ]
    for lesson in lessons:
        after = ", ".join(map(str, lesson.after)) or "-"
        cells = (
            lesson.number, f"[{lesson.title}]({folder}{lesson.name}{ending})", lesson.question,
            lesson.minutes, after, ", ".join(f"`{name}`" for name in lesson.exercises),
        )  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)
