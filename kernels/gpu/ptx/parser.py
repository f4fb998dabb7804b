"""From the text of a PTX module to rows of numbers, which the machine runs.

A module has one kernel (`.entry`), the functions that it calls (`.func`), and tables. All their
instructions come into one list, and the registers of all into one row for each thread; constants
are registers that are set from the beginning. What is not known is refused with its line.

So a function has its variables at one place, and its registers once. Where one calls itself, each
call has a frame of its own: variables stand one frame further on than those of the caller, and the
registers of the function are kept until it returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...cpu.errors import KernelError
from .arithmetic import (
    CODES,
    COMPARISONS,
    NEAREST,
    OPPOSITES,
    OTHER_NAMES,
    ROUNDINGS,
    ROW,
    TESTS,
    TO_WHOLE,
)  # fmt: skip

SIZES = {
    "b8": 1, "s8": 1, "u8": 1, "b16": 2, "s16": 2, "u16": 2, "f16": 2, "b32": 4, "s32": 4,
    "u32": 4, "f32": 4, "b64": 8, "s64": 8, "u64": 8, "f64": 8, "pred": 1, "tf32": 4,
}  # fmt: skip
PRINT = "vprintf"  # CUDA's own function
DEEPEST = 32  # functions that call one another
WIDEST = 14  # registers of one instruction, mma.m16n8k8
SPACES = {"generic": 0, "global": 1, "shared": 2, "local": 3, "param": 4, "const": 5}
WINDOW = 1 << 24  # bytes that a space but the global has
WINDOWS = (
    1 << 60
)  # where the first of them begins, one after the other; no process has memory there
SHARED, LOCAL, PARAM = (WINDOWS + SPACES[name] * WINDOW for name in ("shared", "local", "param"))
GLOBAL, COUNT = SPACES["global"], len(SPACES)
ATOMICS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
MEETINGS = ("sync", "arrive", "popc", "and", "or")  # at a barrier
SHUFFLES, VOTES = ("up", "down", "bfly", "idx"), ("any", "all", "uni", "ballot")
# What the machine does itself, after the instructions that only compute.
_OWN = (
    "load", "store", "jump", "end", "return", "call", "barrier", "warp_barrier", "shuffle", "vote",
    "match", "matrix", "atomic", "pack", "unpack", "nothing", "trap", "active", "print",
)  # fmt: skip
OWN = {name: len(CODES) + number for number, name in enumerate(_OWN)}
SPECIAL = re.compile(
    r"%n?(?:tid|ctaid)\.[xyz]|%(?:lane|n?warp|n?sm|grid)id|%lanemask_\w+|WARP_SZ|%\w*(?:smem|cluster)[\w.]*"
    r"|%(?:clock|globaltimer|pm|envreg|reserved_|current_)\w*"
)
# What points part in the names of instructions that only compute.
WORDS = {
    *SIZES, *ROUNDINGS, "ftz", "sat", "approx", "full", "lo", "hi", "wide", "to", "generic",
    "global", "shared", "local", "const", "param", "l", "r", "wrap", "shiftamt", "rna",
}  # fmt: skip
_NAME = r"[\w$]+"


class PtxError(KernelError):
    """PTX that the machine does not know, or that did something wrong."""


class Line(NamedTuple):
    """An instruction as it stands in the text."""

    text: str
    number: int  # of the line in the PTX
    source: int  # of the line in the kernel's Python, where the PTX says so; 0: it does not
    function: str  # whose it is
    file: str = ""  # of that Python


class Variable(NamedTuple):
    """Memory that a module declares."""

    name: str
    size: int
    align: int


class Program:
    """A kernel's PTX as rows of numbers.

    Attributes:
        name: The kernel's.
        target: The architecture that it was compiled for, such as "sm_80".
        parameters: Where each of its parameters begins in memory, and how long it is.
        parameter_bytes: Of all of them.
        rows: An instruction each, as a `ROW`.
        vectors: The registers of those that have vectors of them.
        lines: What each row was made of.
        names: Of the registers, as in the text; of those of functions with the function's before.
        read: The registers that each row reads.
        written: Those that it writes.
        registers: The number of registers of a thread.
        constants: Those that have a value from the beginning.
        specials: Those that hold a thread's place, by the name of the special register.
        shared_bytes: Of the shared arrays of known size.
        shared_arrays: Where each shared array begins.
        dynamic: The address of the shared array whose size the launch decides; None: there is none.
        local_bytes: Of each thread's own memory.
        frame_bytes: Of a call's part of it; 0: no function calls itself.
        kept_registers: Of the function that has most, where functions call themselves.
        tables: Arrays that the module holds, and the registers that hold their addresses.
        find_sources: What finds out the lines of the source, where the text does not tell them.
    """

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
        self.text = re.sub(r"//[^\n]*", "", text)
        self.target = "".join(re.findall(r"\.target\s+(\w+)", self.text)[:1])
        self.constants: dict[int, int] = {}
        self.specials: dict[str, int] = {}
        self.tables: list[tuple[int, np.ndarray]] = []
        self.find_sources: Callable[[], None] = lambda: None
        self._slots: dict[str, int] = {}
        self._widths: dict[str, int] = {}  # of registers, by name or by what it has before a number
        self._inner: list[dict[str, str]] = []  # of each block of a block: its own registers
        self._rows: list[dict[str, int]] = []
        self._vectors: list[list[int]] = []
        self.lines: list[Line] = []
        self._jumps: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        self._parameters: dict[str, list[Variable]] = {}
        self._turns: list[tuple[int, str]] = []  # calls and returns, and of which function
        self._place_variables()
        self._files = dict(re.findall(r'\.file\s+(\d+)\s+"(.*?)"', text))
        functions = list(self._functions())
        kernels = [name for kind, name, *_ in functions if kind == "entry"]
        if len(kernels) != 1:
            raise PtxError(f"expected one kernel in a module, got {kernels}")
        (self.name,) = kernels
        self._defined = {name for _, name, *_ in functions}
        self.frame_bytes = self.kept_registers = 0
        if _recurs({name: body for _, name, _, body, _ in functions}):
            self.frame_bytes = self.local_bytes
            self.local_bytes *= 2 + DEEPEST  # also of the call that is refused
            self._frame = self._slot("(frame)")  # how far on the variables stand
            self.constants[self._frame] = 0
        registers: dict[str, tuple[int, int]] = {}
        for _, name, _, body, begins in sorted(
            functions, key=lambda found: found[0]
        ):  # entry first
            self._labels[name] = len(self._rows)
            first = len(self._slots)
            self._read(name, body, begins)
            self._leave(Line("", 0, 0, name))
            registers[name] = first, len(self._slots)
        for row, label in self._jumps:
            if label not in self._labels:
                raise self._refused(
                    self.lines[row], f"names {label.split()[-1]!r}, which is nothing"
                )
            self._rows[row]["place"] = self._labels[label]
        for row, name in self._turns if self.frame_bytes else ():
            self._rows[row]["size"] = self.frame_bytes
            self._vectors[row] = [self._frame, *registers[name]]
            self.kept_registers = max(self.kept_registers, registers[name][1] - registers[name][0])
        self.rows = np.zeros(len(self._rows), ROW)
        self.vectors = np.zeros((len(self._rows), WIDEST), np.int64)
        for number, (columns, vector) in enumerate(zip(self._rows, self._vectors, strict=True)):
            for name, value in columns.items():
                self.rows[number][name] = value
            self.vectors[number, : len(vector)] = vector
        self.registers, self.names = len(self._slots), list(self._slots)
        named = list(zip(self._rows, self._vectors, strict=True))
        self.written = [_outputs(row, vector) for row, vector in named]
        self.read = [_inputs(row, vector) for row, vector in named]

    # Memory ---------------------------------------------------------------------------------------

    def _place_variables(self) -> None:
        """Give an address to what the module declares, aligned no better than it says."""
        self.shared_bytes, self.dynamic = 0, None
        self.shared_arrays: dict[str, int] = {}
        kinds = r"(\.extern\s+)?(?:\.visible\s+|\.weak\s+)?\.(shared|global|const)\s+"
        shape = r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[\d*\])?\s*(?:=\s*(\{[^}]*\}|[^;]*))?;"
        dynamic: list[Variable] = []  # all of them begin at one address
        for extern, space, align, kind, name, count, values in re.findall(kinds + shape, self.text):
            elements = int(count[1:-1] or 0) if count else 1
            aligned = int(align or SIZES[kind])
            if space != "shared":
                self._place_table(name, kind, elements, values)
            elif extern or not elements:
                dynamic.append(Variable(name, 0, aligned))
            else:
                self._addresses[name] = self._placed(elements * SIZES[kind], aligned)
                self.shared_arrays[name] = self._addresses[name] % WINDOW
        if dynamic:
            self.dynamic = self._placed(0, max(variable.align for variable in dynamic))
            self._addresses |= {variable.name: self.dynamic for variable in dynamic}

    def _placed(self, size: int, align: int) -> int:
        begin = -(-self.shared_bytes // align) * align
        if begin % (2 * align) == 0 and align >= 4:
            begin += align
        self.shared_bytes = begin + size
        return SHARED + begin

    def _place_table(self, name: str, kind: str, elements: int, values: str) -> None:
        numbers = [int(x, 0) for x in values.strip("{} \n").split(",") if x.strip()]
        dtype = np.dtype(f"{'f' if kind[0] == 'f' else 'u'}{SIZES[kind]}")
        table = np.zeros(elements, dtype)
        table[: len(numbers)] = np.array(numbers, object).astype(dtype)
        slot = self._slot(name)
        self.tables.append((slot, table))

    # Functions ------------------------------------------------------------------------------------

    def _functions(self) -> Iterator[tuple[str, str, str, str, int]]:
        """Yield kind, name, parameters, body and first line of each function that has a body."""
        self.parameters: list[tuple[int, int]] = []
        self.parameter_bytes = local = 0
        head = re.compile(
            rf"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?({_NAME})\s*\(([^)]*)\)([^{{;]*)([{{;])"
        )
        for found in head.finditer(self.text):
            kind, returned, name, given, _, opened = found.groups()
            declared = [*_declared(returned or ""), *_declared(given)]
            self._parameters[name] = declared
            if opened == ";":
                continue
            begin, depth = found.end(), 1
            for brace in re.finditer(r"[{}]", self.text[begin:]):
                depth += 1 if brace[0] == "{" else -1
                if not depth:
                    break
            body = self.text[begin : begin + brace.start()]
            if kind == "entry":
                for variable in declared:
                    place = -(-self.parameter_bytes // variable.align) * variable.align
                    self._addresses[f"{name} {variable.name}"] = PARAM + place
                    self.parameters.append((place, variable.size))
                    self.parameter_bytes = place + variable.size
            for variable in (*_declared(body, "local"), *_declared(body, "param"),
                             *(declared if kind == "func" else ())):  # fmt: skip
                local = -(-local // variable.align) * variable.align
                self._addresses[f"{name} {variable.name}"] = LOCAL + local
                local += variable.size
            yield kind, name, given, body, self.text[:begin].count("\n") + 1
        self.local_bytes = -(-local // 16) * 16

    def _read(self, function: str, body: str, begins: int) -> None:
        """Make rows of a function's body."""
        source, file = 0, ""
        statement, number = "", begins
        for offset, text in enumerate(body.split("\n")):
            text = text.strip()
            if location := re.match(r"\.loc\s+(\d+)\s+(\d+)", text):
                file, source = self._files.get(location[1], ""), int(location[2])
                continue
            if not statement:
                number = begins + offset
            statement = f"{statement} {text}".strip()
            while True:
                if match := re.match(rf"[{{}}]|({_NAME}):", statement):
                    if match[0] == "{":
                        self._inner.append({})
                    elif match[0] == "}":
                        self._inner.pop()
                    else:
                        self._labels[f"{function} {match[1]}"] = len(self._rows)
                    statement = statement[match.end() :].strip()
                elif ";" in statement:
                    one, statement = (part.strip() for part in statement.split(";", 1))
                    if declared := re.match(r"\.reg\s+\.(\w+)\s+(.*)", one):
                        for name in re.findall(r"[%\w$]+(?=\s*(?:<|,|$))", declared[2]):
                            if name[0] == "%" and self._inner:
                                own = self._inner[-1][name] = f"{name} of line {number}"
                                name = own
                            self._widths[f"{function} {name}"] = 8 * SIZES[declared[1]]
                            if name[0] != "%":
                                self._slot(f"{function} {name}")
                    elif one and not one.startswith("."):
                        text = re.sub(r"\s+", " ", one)
                        self._instruction(Line(text, number, source, function, file))
                else:
                    break

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _row(
        self, operation: str, line: Line, vector: Sequence[int] = (), /, **columns: int
    ) -> None:
        code = OWN.get(operation, CODES.get(operation))
        if code is None:
            raise self._refused(line, "is not known to the PTX machine")
        self._rows.append({"code": code, "guard": -1, "count": len(vector), **columns})
        self._vectors.append(list(vector))
        self.lines.append(line)

    def _refused(self, line: Line, why: str) -> PtxError:
        source = f", {line.file}:{line.source}" * bool(line.source)
        where = f"line {line.number} of the PTX of {line.function}{source}"
        return PtxError(f"{where}: `{line.text}` {why}")

    def _width(self, name: str, line: Line, otherwise: int) -> int:
        """The bits of a register, as it is declared."""
        known = f"{line.function} {self._innermost(name.strip('{} '))}"
        found = self._widths.get(known, self._widths.get(known.rstrip("0123456789")))
        return otherwise if found is None else found

    def _innermost(self, name: str) -> str:
        """The name of the register that a name means here, in a block of a block."""
        return next((names[name] for names in reversed(self._inner) if name in names), name)

    # Instructions ---------------------------------------------------------------------------------

    def _operand(self, text: str, line: Line, kind: str = "b64") -> int:
        """The register of an operand: a register, a constant, or the address of a variable."""
        text = text.strip()
        if SPECIAL.fullmatch(text):
            return self.specials.setdefault(text.lstrip("%"), self._slot(text))
        text = self._innermost(text)
        if text[0] == "%" or text == "_" or f"{line.function} {text}" in self._slots:
            return self._slot(f"{line.function} {text}")
        value: int | None = None
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
            value = int(text[2:], 16)
        elif re.fullmatch(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)U?", text):
            value = int(text.rstrip("U"), 0) & ((1 << 8 * SIZES.get(kind, 8)) - 1)
        elif text in ("true", "false"):
            value = int(text == "true")
        else:
            for name in (f"{line.function} {text}", text):
                if name in self._addresses:
                    return self._address(name, line)
            if text in self._slots:  # a table
                return self._slots[text]
        if value is None:
            raise self._refused(line, f"names {text!r}, which is nothing")
        return self._constant(value)

    def _constant(self, value: int) -> int:
        slot = self._slot(f"={value}")
        self.constants[slot] = value
        return slot

    def _address(self, name: str, line: Line, ahead: int = 0) -> int:
        """The register with the address of a variable, of a call `ahead` of this one."""
        address = self._addresses[name] + ahead * self.frame_bytes
        if not self.frame_bytes or space_at(address) != SPACES["local"]:
            return self._constant(address)
        out, silent = self._slot(f"{line.function} (at {address:#x})"), line._replace(text="")
        begin = self._constant(address)
        self._row("add.int", silent, out=out, a=begin, b=self._frame, bits=64)
        return out

    def _memory(self, text: str, line: Line) -> dict[str, int]:
        """The columns of an address such as `[%rd1+8]`."""
        found = re.fullmatch(r"\[\s*(.+?)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        assert found is not None, line
        return {"a": self._operand(found[1], line), "place": int(found[2] or "0", 0)}

    def _registers(self, text: str, line: Line, kind: str = "b64") -> list[int]:
        """Those of a vector such as `{%f1, %f2}`, or of one operand."""
        return [self._operand(name, line, kind) for name in text.strip("{} ").split(",")]

    def _instruction(self, line: Line) -> None:
        text, guard, negated = line.text, -1, 0
        if guarded := re.match(r"@(!?)(%\w+)\s+(.*)", text):
            negated, guard = int(bool(guarded[1])), self._operand(guarded[2], line)
            text = guarded[3]
        name, _, rest = text.partition(" ")
        words = name.split(".")
        operands = [
            x.strip() for x in re.findall(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{}\[\]()]+", rest)
        ]
        operands = [x for x in operands if x]
        first = len(self._rows)
        try:
            self._decode(words, operands, line)
        except (AssertionError, LookupError, StopIteration, ValueError) as error:
            raise self._refused(line, "is not known to the PTX machine") from error
        for row in self._rows[first:]:
            row |= {"guard": guard, "negated": negated}

    def _decode(self, words: list[str], operands: list[str], line: Line) -> None:
        """Make the row of an instruction; `words` are what points part in its name."""
        base, kind = words[0], words[-1]
        if own := _FORMS.get(base):
            return own(self, words, operands, line)
        if "cc" in words or base in ("addc", "subc", "madc"):
            return self._carry(words, operands, line)
        if not WORDS.issuperset(words[1:]):
            raise self._refused(line, "is not known to the PTX machine")
        columns = _modifiers(words)
        columns["out"] = self._operand(operands[0], line)
        for column, operand in zip("abcd", operands[1:], strict=False):
            shift = base in ("shl", "shr") and column == "b"
            wide = "wide" in words and column == "c"
            of = (
                "u32"
                if shift
                else "b64"
                if wide
                else "b32"
                if base in ("bfe", "bfi") and (column in "cd" or (base == "bfe" and column == "b"))
                else kind
            )
            columns[column] = self._operand(operand, line, of)
        operation = _operation(words)
        result = operation.split(".")[1]
        if result in ("float16", "float64") and NEAREST < columns["rounding"] < TO_WHOLE:
            raise self._refused(
                line, f"rounds {result} in a way that is not known to the PTX machine"
            )
        self._row(operation, line, **columns)
        bits = columns["bits"]
        wider = self._width(operands[0], line, max(bits, 16))
        if base == "cvt" and words[-2][0] == "s" and bits < wider:  # its sign goes to the end
            columns |= {"a": columns["out"], "given_bits": bits, "bits": wider}
            self._row("cvt.signed.signed", line._replace(text=""), **columns)

    def _carry(self, words: list[str], operands: list[str], line: Line) -> None:
        """A sum whose carry the next one takes, such as `mad.lo.cc` and `madc.hi`; or `subc`."""
        base, kind = words[0].removesuffix("c"), words[-1]
        if base not in ("add", "sub", "mad") or kind != "u32":
            raise self._refused(line, "is not known to the PTX machine")
        out, *terms = (self._operand(each, line, kind) for each in operands)
        total, carry = (self._slot(f"{line.function} ({name})") for name in ("sum", "carry"))
        silent, wide, narrow = line._replace(text=""), {"bits": 64}, {"bits": 32}
        if base == "mad":
            factors = {"a": terms[0], "b": terms[1]}
            product = "mul.hi.unsigned" if "hi" in words else "mul.lo"
            self._row(product, silent, out=total, **factors, **narrow)
            terms = [total, terms[2]]
        if words[0] != base:
            terms.append(carry)
        first, *others = terms
        for other in others:  # in 64 bits, where nothing is lost
            how = "sub.int" if base == "sub" else "add.int"
            self._row(how, silent, out=total, a=first, b=other, **wide)
            first = total
        if "cc" in words:
            beyond = self._operand("63" if base == "sub" else "32", line, "u32")
            self._row("shr.unsigned", silent, out=carry, a=total, b=beyond, **wide)
        zero = self._operand("0", line, "u32")
        self._row("add.int", line, out=out, a=total, b=zero, **narrow)

    def _mov(self, words: list[str], operands: list[str], line: Line) -> None:
        kind, (out, given) = words[-1], operands
        if out.startswith("{"):
            vector = self._registers(out, line)
            whole = self._operand(given, line, kind)
            self._row("unpack", line, vector, a=whole, bits=8 * SIZES[kind] // len(vector))
        elif given.startswith("{"):
            vector = self._registers(given, line)
            whole = self._operand(out, line)
            self._row("pack", line, vector, out=whole, bits=8 * SIZES[kind] // len(vector))
        else:
            operation = "mov.pred" if kind == "pred" else "mov.int"
            value = self._operand(given, line, kind)
            self._row(operation, line, out=self._operand(out, line), a=value)

    def _ld(self, words: list[str], operands: list[str], line: Line) -> None:
        registers, address = operands
        self._access("load", words, registers, address, line)

    def _st(self, words: list[str], operands: list[str], line: Line) -> None:
        address, registers = operands
        self._access("store", words, registers, address, line)

    def _access(
        self, operation: str, words: list[str], registers: str, address: str, line: Line
    ) -> None:
        kind = words[-1]
        self._row(
            operation, line, self._registers(registers, line, kind), **self._memory(address, line),
            space=_space(words), size=SIZES[kind], signed=int(kind[0] == "s"),
            bits=self._width(registers.split(",")[0], line, 32),
        )  # fmt: skip

    def _setp(self, words: list[str], operands: list[str], line: Line) -> None:
        outs, *given = operands
        first, _, second = (x.strip() for x in outs.partition("|"))
        kind, operation = words[-1], f"setp.{_kind(words[-1])}"
        columns = _modifiers(words)
        columns |= {
            "a": self._operand(given[0], line, kind),
            "b": self._operand(given[1], line, kind),
        }
        columns["which"] = COMPARISONS.index(OTHER_NAMES.get(words[1], words[1]))
        if len(given) > 2:
            columns["combine"] = 1 + ("and", "or", "xor").index(words[2])
            columns["combine"] += 4 * given[2].startswith("!")
            columns["c"] = self._operand(given[2].lstrip("!"), line, "pred")
        if not second:
            return self._row(operation, line, out=self._operand(first, line), **columns)
        # Either result may be read by the other, or by the guard: both are there before any is set.
        silent = line._replace(text="")
        word, *both = (self._slot(f"{line.function} (setp {x})") for x in range(3))
        self._row(operation, silent, out=both[0], **columns)
        columns["which"] = OPPOSITES[columns["which"]]
        self._row(operation, silent, out=both[1], **columns)
        self._row("pack", silent, both, out=word, bits=1)
        self._row("unpack", line, self._registers(f"{first}, {second}", line), a=word, bits=1)

    def _testp(self, words: list[str], operands: list[str], line: Line) -> None:
        out, given = (self._operand(x, line) for x in operands)
        which = TESTS.index(words[1])
        bits = 8 * SIZES[words[-1]]
        self._row(f"testp.{_kind(words[-1])}", line, out=out, a=given, which=which, bits=bits)

    def _bra(self, words: list[str], operands: list[str], line: Line) -> None:
        self._row("jump", line)
        self._jumps.append((len(self._rows) - 1, f"{line.function} {operands[0]}"))

    def _ret(self, words: list[str], operands: list[str], line: Line) -> None:
        self._leave(line, for_good=words[0] == "exit")

    def _leave(self, line: Line, for_good: bool = False) -> None:
        """Return from a function; from the kernel, or for good, the thread ends."""
        if line.function == self.name or for_good:
            return self._row("end", line)
        self._turns.append((len(self._rows), line.function))
        self._row("return", line)

    def _call(self, words: list[str], operands: list[str], line: Line) -> None:
        """Copy what is given, go there, and copy what comes back."""
        name = next(x for x in operands if not x.startswith("("))
        actual = [x.strip() for part in operands if part.startswith("(")
                  for x in part.strip("()").split(",") if x.strip()]  # fmt: skip
        if name == PRINT and name not in self._defined:
            return self._print(actual[-2:], line)
        if name not in self._defined:
            raise self._refused(line, f"calls {name!r}, which is not in this module")
        formal = self._parameters[name]
        results = 1 if operands[0].startswith("(") else 0
        pairs = list(zip(actual, formal, strict=True))
        places = [
            (self._address(f"{line.function} {one}", line),
             self._address(f"{name} {variable.name}", line, ahead=1), variable.size)
            for one, variable in pairs
        ]  # fmt: skip
        for ours, theirs, size in places[results:]:
            self._copy(ours, theirs, size, line)
        self._jumps.append((len(self._rows), name))
        self._turns.append((len(self._rows), name))
        self._row("call", line)
        for ours, theirs, size in places[:results]:
            self._copy(theirs, ours, size, line)

    def _print(self, given: list[str], line: Line) -> None:
        """Print a text with the numbers that stand at an address; both are parameters."""
        registers = [self._slot(f"{line.function} (print {x})") for x in range(2)]
        for register, name in zip(registers, given, strict=True):
            address = self._address(f"{line.function} {name}", line)
            silent = line._replace(text="")
            self._row("load", silent, [register], a=address, size=8, space=SPACES["local"])
        self._row("print", line, a=registers[0], b=registers[1])

    def _copy(self, source: int, target: int, size: int, line: Line) -> None:
        """Copy a parameter of a call, 8 bytes at a time, or as many as there are."""
        passed = self._slot(f"{line.function} (passed)")
        silent = line._replace(text="")
        for offset in range(0, size, 8):
            part = min(8, size - offset)
            common = {"size": part, "space": SPACES["local"], "place": offset}
            for operation, address in (("load", source), ("store", target)):
                self._row(operation, silent, [passed], a=address, **common)

    def _bar(self, words: list[str], operands: list[str], line: Line) -> None:
        """A barrier: its number, how many threads it is for, and what they tell one another."""
        if "warp" in words:
            return self._row("warp_barrier", line, a=self._operand(operands[0], line, "b32"))
        how = next((word for word in words if word in MEETINGS), "sync")
        out, negated = -1, False
        if "red" in words:
            out, negated = self._operand(operands[0], line), operands[-1].startswith("!")
            rest = dict(zip("ab", operands[1:-1], strict=False)) | {"c": operands[-1].lstrip("!")}
        else:
            rest = dict(zip("ab", operands, strict=False))
        columns = {name: self._operand(operand, line, "b32") for name, operand in rest.items()}
        self._row("barrier", line, out=out, combine=int(negated), which=MEETINGS.index(how),
                  **{"b": -1} | columns)  # fmt: skip

    def _alone(self, words: list[str], operands: list[str], line: Line) -> None:
        self._row("trap" if words[0] == "trap" else "nothing", line)

    def _results(self, text: str, line: Line) -> dict[str, int]:
        """The columns of a result and a predicate, such as `%r1|%p1`, or of a result alone."""
        first, _, second = text.partition("|")
        other = self._operand(second, line) if second else -1
        return {"out": self._operand(first, line), "d": other}

    def _shfl(self, words: list[str], operands: list[str], line: Line) -> None:
        value, lane, clamp, mask = (self._operand(x, line, "b32") for x in operands[1:])
        self._row("shuffle", line, **self._results(operands[0], line), a=mask, b=value, c=lane,
                  given_bits=clamp, which=SHUFFLES.index(words[2]))  # fmt: skip

    def _vote(self, words: list[str], operands: list[str], line: Line) -> None:
        out, given, mask = operands
        self._row("vote", line, out=self._operand(out, line), a=self._operand(mask, line, "b32"),
                  b=self._operand(given.lstrip("!"), line), combine=int(given.startswith("!")),
                  which=VOTES.index(words[2]))  # fmt: skip

    def _match(self, words: list[str], operands: list[str], line: Line) -> None:
        value, mask = (self._operand(x, line, words[-1]) for x in operands[1:])
        self._row("match", line, **self._results(operands[0], line), a=mask, b=value,
                  which=("any", "all").index(words[1]))  # fmt: skip

    def _activemask(self, words: list[str], operands: list[str], line: Line) -> None:
        self._row("active", line, out=self._operand(operands[0], line))

    def _mma(self, words: list[str], operands: list[str], line: Line) -> None:
        if words[3:] != ["m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"]:
            raise self._refused(line, "is not known to the PTX machine, which has m16n8k8 of tf32")
        vector = [slot for part in operands for slot in self._registers(part, line)]
        self._row("matrix", line, vector)

    def _atom(self, words: list[str], operands: list[str], line: Line) -> None:
        address, *given = operands[words[0] == "atom" :]
        kind, how = words[-1], next(word for word in words[1:] if word in ATOMICS)
        columns = self._memory(address, line) | _modifiers(words)
        columns |= dict(zip("bc", (self._operand(x, line, kind) for x in given), strict=False))
        out = self._operand(operands[0], line) if words[0] == "atom" else -1
        self._row("atomic", line, **columns | {
            "out": out, "space": _space(words), "size": SIZES[kind], "which": ATOMICS.index(how),
            "signed": "usf".index({"b": "u"}.get(kind[0], kind[0])),
        })  # fmt: skip


# The instructions that do not only compute, or whose operands are written in a way of their own.
_FORMS: dict[str, Callable[[Program, list[str], list[str], Line], None]] = {
    "mov": Program._mov, "ld": Program._ld, "ldu": Program._ld, "st": Program._st,
    "setp": Program._setp, "testp": Program._testp, "bra": Program._bra, "ret": Program._ret,
    "exit": Program._ret, "call": Program._call, "bar": Program._bar, "barrier": Program._bar,
    "trap": Program._alone, "membar": Program._alone, "fence": Program._alone,
    "shfl": Program._shfl, "vote": Program._vote, "match": Program._match,
    "activemask": Program._activemask, "mma": Program._mma, "atom": Program._atom,
    "red": Program._atom,
}  # fmt: skip


def _recurs(bodies: dict[str, str]) -> bool:
    """Whether a function comes back to itself by its calls."""
    calls = {
        name: {*re.findall(_NAME, " ".join(re.findall(r"\bcall\b[^;]*", body)))} & bodies.keys()
        for name, body in bodies.items()
    }
    for _ in bodies:
        calls = {name: found.union(*(calls[x] for x in found)) for name, found in calls.items()}
    return any(name in found for name, found in calls.items())


def _outputs(row: dict[str, int], vector: list[int]) -> list[int]:
    """The registers that a row writes."""
    code = row["code"]
    if code in (OWN["load"], OWN["unpack"]):
        return vector
    if code == OWN["matrix"]:
        return vector[:4]
    also = [row.get("d", -1)] if code in (OWN["shuffle"], OWN["match"]) else []
    return [slot for slot in (row.get("out", -1), *also) if slot >= 0]


def _inputs(row: dict[str, int], vector: list[int]) -> list[int]:
    """The registers that a row reads, its guard last."""
    code = row["code"]
    columns = "abc" if code in (OWN["shuffle"], OWN["match"]) else "abcd"
    slots = [row[column] for column in columns if column in row]
    if code in (OWN["store"], OWN["pack"]):
        slots += vector
    if code == OWN["matrix"]:
        slots += vector[4:]
    if code == OWN["shuffle"]:
        slots.append(row["given_bits"])
    return [slot for slot in (*slots, row["guard"]) if slot >= 0]


def _declared(text: str, space: str = "param") -> list[Variable]:
    """The variables of a space that a list or a body declares."""
    space_of = r"(?:\.(?:global|shared|local|const)\s+)?"
    pointer = rf"(?:\.ptr\s+{space_of}(?:\.align\s+\d+\s+)?)?"  # from sm_100 on
    kind = r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    pattern = rf"\.{space}\s+{kind}{pointer}({_NAME})(?:\[(\d+)\])?"
    return [
        Variable(name, SIZES[kind] * int(count or 1), max(int(align or 1), SIZES[kind]))
        for align, kind, name, count in re.findall(pattern, text)
    ]


def _kind(kind: str) -> str:
    if kind in ("f16", "f32", "f64"):
        return f"float{kind[1:]}"
    if kind in ("pred", "tf32"):
        return kind
    return "signed" if kind[0] == "s" else "unsigned"


def space_at(address: int) -> int:
    """The space in whose window an address lies; that of global memory, if in none."""
    number = address // WINDOW - WINDOWS // WINDOW
    return number if 0 <= number < COUNT else GLOBAL


def _space(words: list[str]) -> int:
    """The space that an access names. Parameters of calls lie in a thread's own memory."""
    found = [word.split("::")[0] for word in words[1:]]
    named = next((word for word in found if word in SPACES), "generic")
    return SPACES["generic" if named == "param" else named]


def _operation(words: list[str]) -> str:
    """The name in `INSTRUCTIONS` of what an instruction computes."""
    base, kind = words[0], _kind(words[-1])
    if base == "cvt":
        return f"cvt.{_kind(words[-2])}.{kind}"
    if "shiftamt" in words:
        return f"{base}.shiftamt.{kind}"
    if base == "shf":
        return ".".join(words[:3])
    if base in ("mul", "mad") and kind in ("signed", "unsigned"):
        return f"{base}.lo" if "lo" in words else f"{base}.{words[1]}.{kind}"
    exact = f"{base}.{kind}"
    return exact if exact in CODES or kind == "float16" else f"{base}.int"


def _modifiers(words: list[str]) -> dict[str, int]:
    """The columns that say how."""
    kind = words[-1]
    rounding = next((word for word in words if word in ROUNDINGS), "rn")
    whole = TO_WHOLE if rounding.endswith("i") else 0
    found = {
        "bits": 1 if kind == "pred" else 8 * SIZES.get(kind, 4),
        "rounding": ROUNDINGS[rounding] + whole,
        "flush": int("ftz" in words),
        "saturate": int("sat" in words),
        "approximate": 2 if "approx" in words else int("full" in words),
    }
    if words[0] == "cvt":
        found |= {"given_bits": found["bits"], "bits": 8 * SIZES[words[-2]]}
    return found
