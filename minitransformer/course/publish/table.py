"""The table of lessons, which stands in several places and is made in one."""

from __future__ import annotations

from collections.abc import Iterable

from ..lesson import Lesson

NEEDED = {2: (1,), 3: (0,), 4: (0, 1, 3), 5: (3, 4), 6: (0, 1, 3), 7: (6,), 8: (7,)}
"""The lessons that each builds on; none where it is not listed."""


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
        after = ", ".join(map(str, NEEDED.get(lesson.number, ()))) or "-"
        cells = (
            lesson.number, f"[{lesson.title}]({folder}{lesson.name}{ending})", lesson.question,
            lesson.minutes, after, ", ".join(f"`{name}`" for name in lesson.exercises),
        )  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)
