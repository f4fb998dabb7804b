"""What the registers of a kernel's PTX are in its source.

The compiler tells for each instruction its line, but forgets the names of variables; a build that
keeps them (`debug=True`) has other instructions. So names are found in the text itself:

1. Parameters are laid out as a launch lays out arguments: of each it is known whether it is the
   address of `x`, `x.shape[0]` or `x.strides[1]`. Special registers are `threadIdx.x` and so on.
2. What sums and products of these are is worked out, as far as it is short.
3. `name = ...` on a line names the one register that the line computes and others read. If there
   are several, none is named, but for what is known by 2, such as `cuda.grid(2)`.
4. A register that is only moved to another is the same variable, and so is what `+=` makes of it.

Where that finds no name, a register is shown as it is called in the PTX. A name says what a
register is for where it is written; later the compiler may use it for more.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from textwrap import dedent
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cpu.branches import decided
from ...cpu.source import lines_of

if TYPE_CHECKING:
    from ...gpu.ptx import Program

LONGEST = 48  # letters of a sum or a product
_AXES = "xyz"
_SPECIAL = {"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}


class _Label(str):
    """A name in place of a number: what a compiler's layout puts where."""

    def __floordiv__(self, other: Any) -> _Label:
        return self


class Names:
    """What registers are, and places in memory.

    Attributes:
        registers: How each is called in the PTX.
        known: What it is in the source, for those where that is known.
        shared: Where shared arrays begin, in bytes, by their names.
    """

    def __init__(self, program: Program, function: FunctionType, arguments: tuple[Any, ...]):
        self.program, self.function = program, function
        self.registers = [name.split()[-1] for name in program.names]
        self._writers: dict[int, list[int]] = defaultdict(list)
        self._readers: dict[int, list[int]] = defaultdict(list)
        for at, (written, read) in enumerate(zip(program.written, program.read, strict=True)):
            for slot in written:
                self._writers[slot].append(at)
            for slot in read:
                self._readers[slot].append(at)
        parameters = inspect.signature(function).parameters
        self._labels = list(_labels(zip(parameters, arguments, strict=True)))
        self._arrays = [(name, each) for name, each in zip(parameters, arguments, strict=True)
                        if isinstance(each, np.ndarray) and each.size]  # fmt: skip
        source, first = lines_of(function)
        (tree,) = ast.parse(dedent("".join(source))).body
        assert isinstance(tree, ast.FunctionDef)
        living = ast.walk(decided(ast.increment_lineno(tree, first - 1), function))
        self._nodes = sorted((node for node in living if isinstance(node, ast.stmt)),
                             key=lambda node: node.lineno)  # fmt: skip
        self._meanings = self._found_meanings()
        named = self._assigned()
        self.shared = self._shared()
        self.known = self._meanings | {
            slot: f"{name} = {self._meanings[slot]}" if slot in self._meanings else name
            for slot, name in named.items()
        }

    def place(self, address: int) -> str:
        """An address as a place in an array, such as "x+64"; "" if it is none."""
        from ...gpu.ptx.parser import SPACES, WINDOW, space_at

        space, offset = space_at(address), address % WINDOW
        if space != SPACES["global"]:
            if space == SPACES["shared"]:
                begins = [(begin, name) for name, begin in self.shared.items() if begin <= offset]
                begin, name = max(begins, default=(0, "shared"))
                return f"{name}+{offset - begin}"
            return f"local+{offset}" if space == SPACES["local"] else ""
        for name, array in self._arrays:
            begin, end = np.lib.array_utils.byte_bounds(array)
            if begin <= address < end:
                return f"{name}+{address - begin}"
        return ""

    # What is exact -------------------------------------------------------------------------------

    def _found_meanings(self) -> dict[int, str]:
        """What registers are that are written once, in terms of arguments and threads."""
        from ...gpu.ptx.parser import OWN, SPACES, WINDOW, space_at

        program, found = self.program, dict[int, str]()
        for name, slot in program.specials.items():
            register, _, axis = name.partition(".")
            found[slot] = f"{_SPECIAL[register]}.{axis}" if axis else register
        for slot, value in program.constants.items():
            if 0 <= value < 1 << 20:
                found[slot] = str(value)
        places = {begin: label for (begin, _), label in
                  zip(program.parameters, self._labels, strict=False)}  # fmt: skip
        for at, row in enumerate(program.rows):
            outs = program.written[at]
            if len(outs) != 1 or len(self._writers[outs[0]]) > 1 or row["guard"] >= 0:
                continue
            base = program.constants.get(int(row["a"]), 0)
            if row["code"] == OWN["load"] and space_at(base) == SPACES["param"]:
                if label := places.get(base % WINDOW + int(row["place"])):
                    found[outs[0]] = label
            elif meaning := self._meaning(at, found):
                found[outs[0]] = meaning
        constants = {*program.constants, *program.specials.values()}
        return {slot: text for slot, text in found.items() if slot not in constants}

    def _meaning(self, at: int, found: dict[int, str]) -> str | None:
        words = self.program.lines[at].text.split(" ")[0].split(".")
        operation, given = words[0], [found.get(slot) for slot in self.program.read[at]]
        if None in given or operation not in _FORMS or {"hi", "f32", "f64"} & {*words}:
            return None
        text = _FORMS[operation](*given)
        if operation in ("mov", "cvt", "cvta"):
            return None if text.isdecimal() else text
        return text if len(text) <= LONGEST else None

    # What lines assign ---------------------------------------------------------------------------

    def _assigned(self) -> dict[int, str]:
        """The registers that assignments name."""
        by_meaning: dict[str, list[int]] = defaultdict(list)
        for slot, text in self._meanings.items():
            by_meaning[text].append(slot)
        named: dict[int, str] = {}
        for node in self._nodes:
            for name, value in _targets(node):
                spelled = _spelled(value)
                slots = by_meaning.get(spelled, []) if spelled else []
                for slot in slots or self._of_line(node):
                    named.setdefault(slot, name)
        added = {
            (node.lineno, node.target.id)
            for node in self._nodes
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }
        return self._spread(named, added)

    def _of_line(self, node: Any) -> list[int]:
        """The one register that a statement computes and that others read; or none."""
        file = self.function.__code__.co_filename
        last = (node.iter if isinstance(node, ast.For) else node).end_lineno or node.lineno
        rows = {at for at, line in enumerate(self.program.lines)
                if line.file == file and node.lineno <= line.source <= last}  # fmt: skip
        leave = {
            slot for at in rows for slot in self.program.written[at]
            if {*self._readers[slot]} - rows and not self.registers[slot].startswith("%p")
        }  # fmt: skip
        if isinstance(node, ast.For):  # its variable is written before the loop, and in it
            leave = {slot for slot in leave if len(self._writers[slot]) > 1}
            leave = {slot for slot in leave if self._kind(slot) in ("%r", "%rd")}
        floats = {slot for slot in leave if self.registers[slot].startswith("%f")}
        chosen = floats or leave
        return [*chosen] if len(chosen) == 1 else []

    def _spread(self, named: dict[int, str], added: set[tuple[int, str]]) -> dict[int, str]:
        """Name what is moved to and from what has a name, and what `+=` makes of it."""
        new = dict(named)
        while new:
            named |= new
            new = {}
            for slot, rows in self._writers.items():
                if slot in named:
                    new |= {source: named[slot] for source in self._moved(rows)
                            if source not in named and len(self._readers[source]) == 1}  # fmt: skip
                    continue
                names = {named.get(source) for source in self._moved(rows) if source != slot}
                if len(names) > 1 or None in names or not self._is_variable(slot):
                    continue
                if names and all(self._is_move(row) for row in rows):
                    new[slot] = names.pop()  # type: ignore[assignment]
                elif name := self._added(slot, named, added):
                    new[slot] = name
        return named

    def _added(self, slot: int, named: dict[int, str], added: set[tuple[int, str]]) -> str | None:
        """The variable that `+=` makes of itself in a register."""
        for row in self._writers[slot]:
            for source in self.program.read[row]:
                name, line = named.get(source, ""), self.program.lines[row].source
                if (line, name) in added and self._kind(source) == self._kind(slot):
                    return name
        return None

    def _kind(self, slot: int) -> str:
        return self.registers[slot].rstrip("0123456789")

    def _is_move(self, row: int) -> bool:
        return self.program.lines[row].text.startswith("mov.") and len(self.program.read[row]) == 1

    def _moved(self, rows: list[int]) -> list[int]:
        """The variables that rows move."""
        sources = (self.program.read[row][0] for row in rows if self._is_move(row))
        return [slot for slot in sources if slot not in self.program.constants]

    def _is_variable(self, slot: int) -> bool:
        return slot not in self.program.constants and slot not in self._meanings and (
            slot not in self.program.specials.values())  # fmt: skip

    def _shared(self) -> dict[str, int]:
        """The shared arrays: those of the source in their order, if there are as many."""
        found = self.program.shared_arrays
        called = [
            node.targets[0].id
            for node in self._nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func).endswith("shared.array")
        ]  # fmt: skip
        names = called if len(called) == len(found) else [name.strip("_") for name in found]
        return dict(zip(names, found.values(), strict=True))


def _labels(arguments: Iterator[tuple[str, Any]]) -> Iterator[str]:
    """What each parameter of the PTX is, in the order of a launch's layout."""
    from ...gpu import compilers

    for name, argument in arguments:
        if isinstance(argument, tuple):
            yield from _labels((f"{name}[{i}]", each) for i, each in enumerate(argument))
        elif not isinstance(argument, np.ndarray):
            yield name
        else:
            axes = range(argument.ndim)
            given = SimpleNamespace(
                size=_Label(f"{name}.size"), itemsize=_Label(f"{name}.itemsize"),
                dtype=argument.dtype, data=SimpleNamespace(ptr=_Label(name)),
                shape=[_Label(f"{name}.shape[{axis}]") for axis in axes],
                strides=[_Label(f"{name}.strides[{axis}]") for axis in axes],
            )  # fmt: skip
            yield from (str(label) for label in compilers.compiler().words(given))


def _sum(*parts: str) -> str:
    return " + ".join(sorted((part for part in parts if part != "0"), key=_order)) or "0"


def _product(*parts: str) -> str:
    wrapped = [f"({part})" if re.search(r" [-+] ", part) else part for part in parts]
    return " * ".join(sorted(wrapped, key=_order))


def _order(part: str) -> tuple[bool, str]:
    """Products before what is added to them, numbers last."""
    return part.isdecimal(), f"{' * ' not in part}{part}"


_FORMS: dict[str, Any] = {
    "mov": lambda x: x,
    "cvt": lambda x: x,
    "cvta": lambda x: x,
    "add": _sum,
    "mul": _product,
    "mad": lambda x, y, z: _sum(_product(x, y), z),
    "shl": lambda x, y: _product(x, str(1 << int(y))) if y.isdecimal() else f"({x}) << {y}",
}  # what an instruction makes of its operands


def _targets(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The names that a statement assigns, each with its value; None where it is unknown."""
    if isinstance(node, (ast.AugAssign, ast.For)) and isinstance(node.target, ast.Name):
        yield node.target.id, None
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        targets, value = node.targets[0].elts, node.value
        for axis, target in enumerate(targets):
            if isinstance(target, ast.Name):
                one = value.elts[axis] if isinstance(value, ast.Tuple) else (value, axis)
                yield target.id, one


def _spelled(value: Any) -> str | None:
    """A value as the meaning of a register is spelled: `cuda.threadIdx.x`, `cuda.grid(2)`."""
    axis = 0
    if isinstance(value, tuple):
        value, axis = value
    if value is None:
        return None
    text = ast.unparse(value)
    if re.fullmatch(r"cuda\.grid\([123]\)", text):
        of = _AXES[axis]
        return f"blockDim.{of} * blockIdx.{of} + threadIdx.{of}"
    return text.removeprefix("cuda.")
