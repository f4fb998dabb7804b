"""A recording in a terminal, by Textual."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, Static

from ...gpu.gpus import BANKS, WARP
from .recording import Recording, Step

NOW, NEW, SOFT = "black on yellow", "yellow", "dim"
PLAIN, HELD, HIT = "grey19", "steel_blue", "dark_orange"  # words of shared memory


class Screen(App[None]):
    """Goes forward and back in a recording."""

    CSS = """
    Static { text-wrap: nowrap; text-overflow: ellipsis; }
    #where { height: 2; padding: 0 1; }
    .box { border: round $primary; padding: 0 1; height: 1fr; }
    #lanes { height: auto; }
    #memory { height: auto; max-height: 45%; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding(keys, action, text, priority=True)
        for keys, action, text in (
            ("right,n", "go(1)", "on"),
            ("left,p", "go(-1)", "back"),
            ("l", "line(1)", "next line"),
            ("k", "line(-1)", "line back"),
            ("w", "warp", "one warp"),
            ("down,j", "lane(1)", "next lane"),
            ("up,i", "lane(-1)", "lane before"),
            ("home", "end(0)", "first"),
            ("end", "end(1)", "last"),
            ("q", "quit", "quit"),
        )
    ]

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording, self.position, self.lane = recording, 0, 0
        self.only: int | None = None

    def compose(self) -> ComposeResult:
        """What stands where."""
        yield Static(id="where")
        with Horizontal():
            with Vertical():
                yield self._box("source", "Source")
                yield self._box("ptx", "PTX")
            with Vertical():
                yield self._box("lanes", "Lanes")
                yield self._box("these", "This instruction")
                yield VerticalScroll(Static(id="registers"), classes="box", id="held")
                if self.recording.words:
                    memory = VerticalScroll(Static(id="banks"), classes="box", id="memory")
                    memory.border_title = "Shared memory, by banks"
                    yield memory
        yield Footer()

    @staticmethod
    def _box(name: str, title: str) -> Static:
        made = Static(id=name, classes="box")
        made.border_title = title
        return made

    def on_mount(self) -> None:
        """Show the first step."""
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        """Show as much as there is room for."""
        self.call_after_refresh(self.show)

    # Where to -------------------------------------------------------------------------------------

    def action_go(self, by: int) -> None:
        """To the next step of the warp that is looked at, or the one before."""
        self._go(by, lambda step: True)

    def action_line(self, by: int) -> None:
        """On to where the warp or the line is another."""
        step = self.recording.steps[self.position]
        here = step.warp, self.recording.rows[step.row].line
        self._go(by, lambda one: (one.warp, self.recording.rows[one.row].line) != here)

    def _go(self, by: int, fits: Any) -> None:
        steps, at = self.recording.steps, self.position + by
        while 0 <= at < len(steps):
            if self.only in (None, steps[at].warp) and fits(steps[at]):
                self.position = at
                break
            at += by
        self.show()

    def action_warp(self) -> None:
        """Stay with this warp, or look at all again."""
        self.only = self.recording.steps[self.position].warp if self.only is None else None
        self.show()

    def action_lane(self, by: int) -> None:
        """Look at the registers of another lane."""
        self.lane = (self.lane + by) % WARP
        self.show()

    def action_end(self, which: int) -> None:
        """To the first step, or the last."""
        self.position = -1 if which == 0 else len(self.recording.steps)
        self._go(-1 if which else 1, lambda step: True)

    # What is shown --------------------------------------------------------------------------------

    def show(self) -> None:
        """Show the step where we are."""
        recording, step = self.recording, self.recording.steps[self.position]
        row = recording.rows[step.row]
        lanes = min(WARP, recording.threads - WARP * step.warp)
        self.lane = min(self.lane, lanes - 1)
        line = f"line {row.line}" if row.line else "of no line"
        following = f", following warp {self.only}" if self.only is not None else ""
        self._put("where", Text.assemble(
            (recording.title, "bold"), f"\nstep {self.position + 1:,} of {len(recording.steps):,}: "
            f"warp {step.warp} of {recording.warps}{following}, {line}, {row.label}; "
            f"{step.made.bit_count()} of {lanes} lanes make it",
        ))  # fmt: skip
        source = [f"{n:4} {text}" for n, text in enumerate(recording.source, recording.first)]
        self._list("source", source, row.line - recording.first if row.line else None)
        ptx = [f"{each.line or '':4} {each.text}" for each in recording.rows]
        self._list("ptx", ptx, step.row)
        self._put("lanes", self._lanes(step, lanes))
        before = recording.held(self.position - 1, step.warp)
        self._put("these", self._these(step, before))
        self.query_one("#held").border_title = f"Registers of warp {step.warp}, lane {self.lane}"
        self._put("registers", self._registers(step, before | step.written))
        if recording.words:
            self._put("banks", self._banks(step))

    def _put(self, name: str, shown: Any) -> None:
        self.query_one(f"#{name}", Static).update(shown)

    def _list(self, name: str, texts: list[str], now: int | None) -> None:
        """As many lines as there is room for, around one of them."""
        room = max(3, self.query_one(f"#{name}").content_size.height)
        begin = max(0, min((now or 0) - room // 3, len(texts) - room))
        shown = Text()
        for at, text in enumerate(texts[begin : begin + room], begin):
            shown.append(f"{text}\n", NOW if at == now else "")
        self._put(name, shown)

    def _letters(self, name: str) -> int:
        """How many letters there are for a lane or a bank."""
        return 2 if self.query_one(f"#{name}").content_size.width >= 2 * BANKS else 1

    def _lanes(self, step: Step, lanes: int) -> Text:
        shown = Text()
        for lane in range(lanes):
            made, came = step.made >> lane & 1, step.came >> lane & 1
            letter = "█" if made else "▒" if came else "·"
            shown.append(
                letter * self._letters("lanes"), "bold yellow" if lane == self.lane else ""
            )
        shown.append("\n█ made it  ▒ came, and its guard keeps it or it waits  · elsewhere", SOFT)
        return shown

    def _these(self, step: Step, before: dict[int, tuple[str, ...]]) -> Table:
        row = self.recording.rows[step.row]
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
        for how, slots, held, style in (
            ("reads", row.read, before, ""), ("writes", row.written, step.written, NEW),
        ):  # fmt: skip
            for slot in slots:
                if slot in held:
                    table.add_row(how, *self._named(slot), brief(held[slot]), style=style)
        return table

    def _named(self, slot: int) -> tuple[str, str]:
        return self.recording.registers[slot], self.recording.names.get(slot, "")

    def _registers(self, step: Step, held: dict[int, tuple[str, ...]]) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0))
        for head in ("register", "in the source", "holds"):
            table.add_column(head, header_style=SOFT, no_wrap=head != "in the source")
        for slot in sorted(held, key=lambda slot: (slot not in self.recording.names, slot)):
            texts = held[slot]
            text = texts[self.lane] if len(texts) > 1 else texts[0]
            table.add_row(*self._named(slot), text, style=NEW if slot in step.written else "")
        return table

    def _banks(self, step: Step) -> Text:
        """A column for each bank; a letter is two words, one above the other."""
        held, wanted = self.recording.memory(self.position), wanted_words(step)
        in_bank = [sum(word % BANKS == bank for word in wanted) for bank in range(BANKS)]
        letters = self._letters("memory")
        heads = (f"{bank:<{4 * letters}}" for bank in range(0, BANKS, 4))
        shown = Text("".join(heads) + "\n", SOFT)
        for count in in_bank:
            text = "" if not count else str(count) if count < 10**letters else "+"
            shown.append(f"{text:>{letters}}", HIT if count > step.width else SOFT)
        shown.append("\n")

        def colour(word: int) -> str:
            return HIT if word in wanted else HELD if word in held else PLAIN

        for top in range(0, self.recording.words, 2 * BANKS):
            for word in range(top, top + BANKS):
                shown.append("▀" * letters, f"{colour(word)} on {colour(word + BANKS)}")
            shown.append("\n")
        return shown


def wanted_words(step: Step) -> set[int]:
    """The words of shared memory that an access wants."""
    return {word + i for word in step.words if word >= 0 for i in range(step.width)}


def brief(texts: tuple[str, ...]) -> str:
    """What lanes hold; of numbers that rise evenly the first two and the last.

    >>> brief(("7",)), brief(("x+0", "x+4", "x+8", "x+12"))
    ('7 in all', 'x+0, x+4, ... x+12')
    """
    if len(texts) == 1:
        return f"{texts[0]} in all"
    parts = [text.rpartition("+") for text in texts]
    try:
        rises = {int(b) - int(a) for (*_, a), (*_, b) in pairwise(parts)}
    except ValueError:
        return ", ".join(texts)
    even = len(rises) == 1 and len({begin for begin, *_ in parts}) == 1 and len(texts) > 3
    return f"{texts[0]}, {texts[1]}, ... {texts[-1]}" if even else ", ".join(texts)


def show(recording: Recording) -> None:
    """Show a recording in the terminal, until its user has seen enough."""
    Screen(recording).run()
