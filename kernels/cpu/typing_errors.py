"""What Numba says about the types in a kernel, in one sentence about the kernel's own line.

Numba types the text that `typed.as_one_thread` writes. Its errors name lines of that text, and run
to dozens of lines. `explained` finds the statement that such a line was written from, and says in
plain words what the usual causes are; Numba's own error stays behind it.
"""

from __future__ import annotations

import ast
import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from numba.core import types
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype

from . import hints
from .errors import UnsupportedKernel, line_of
from .form import Canonical
from .paths import indices_of
from .source import Source, place
from .trees import walk

Sentence = tuple[str, str]  # what is wrong, and the way out
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^", "matmul": "@",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "contains": "in",
    "neg": "-", "pos": "+", "invert": "~", "not_": "not",
}  # fmt: skip
ONE = "one element, with an index for each dimension"
BITWISE = {"<<", ">>", "&", "|", "^", "~"}
ATTRIBUTES = ("shape", "size", "ndim", "dtype", "strides", "T", "real", "imag")
NEW_ARRAY = {"copy", "astype", "flatten", "repeat", "nonzero", "argsort", "sort", "cumsum", "dot",
             "ravel"}  # fmt: skip
OF_THIS_PACKAGE = re.escape(str(Path(__file__).parent))
COLOURS = r"\x1b\[[\d;]*m"
IN_THE_TEXT = re.compile(r'<types of \w+>(?:", line | \()(\d+)')


def explained(form: Canonical, text: str, error: Exception) -> UnsupportedKernel:
    """The error to raise for one of Numba's, about the module `text` that types were sought in."""
    statement = origin(form, text, _line(error)) or form.source.tree
    what, way_out = _sentence(error)
    written = linecache.getline(*place(statement)).partition("  #")[0].strip()
    return form.source.refuse(statement, f"{_quoted(written)}{what}", way_out)


def uncompiled(source: Source, kinds: Iterable[types.Type], error: Exception) -> UnsupportedKernel:
    """The error to raise where types were found, but Numba cannot make machine code."""
    given = ", ".join(readable(str(kind)) for kind in kinds)
    what, way_out = _sentence(error)
    return source.refuse(
        source.tree, f"Numba cannot compile it for the arguments ({given}): {what}", way_out
    )


def of_function(function: FunctionType, error: NumbaError) -> UnsupportedKernel:
    """The error to raise where Numba cannot compile a function as it stands."""
    file, what = function.__code__.co_filename, _sentence(error)
    said = re.sub(COLOURS, "", str(error))
    lines = re.findall(rf'File "[^"\n]*{re.escape(Path(file).name)}", line (\d+)', said)
    line = int(lines[0]) if lines else function.__code__.co_firstlineno
    written = _quoted(linecache.getline(file, line).strip())
    return UnsupportedKernel(
        f"{line_of(file, line)}: function {function.__name__!r}: {written}{what[0]}. {what[1]}"
    )


def _quoted(line: str) -> str:
    """Where something is wrong; nothing, where the text of a function cannot be found."""
    return f"in `{line}`, " if line else ""


def not_a_number(form: Canonical, variable: str, kind: types.Type | None) -> UnsupportedKernel:
    """The error to raise for a variable that a thread would have to keep, but cannot."""
    statement = next(_assignments(form.body, variable), form.source.tree)
    if variable in form.sent:
        what = f"what a thread shows to others is {_a(readable(str(kind)))}"
        return form.source.refuse(statement, what, f"Pass {ONE}")
    if isinstance(kind, types.Optional):
        what = f"the variable {variable!r} is sometimes None, sometimes {readable(str(kind.type))}"
        return form.source.refuse(statement, what, "Start from a number instead of None")
    what = f"the variable {variable!r} is {readable(str(kind)) if kind else 'of several types'}"
    return form.source.refuse(
        statement, f"{what}, and across a barrier or a loop a thread can keep numbers only",
        "Index the array itself instead of keeping a view of it",
    )  # fmt: skip


def _assignments(body: list[ast.stmt], variable: str) -> Iterator[ast.AST]:
    for node in walk(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == variable for t in targets):
            yield node


# Where


def _line(error: Exception) -> int:
    """The line of the typed text that an error is about, the innermost if it has several."""
    named = IN_THE_TEXT.search(str(error))
    if named:
        return int(named[1])
    line = 0
    for frame, _ in traceback.walk_tb(error.__traceback__):  # what Numba was typing at the time
        location: Any = getattr(frame.f_locals.get("self"), "loc", None)
        if str(getattr(location, "filename", "")).startswith("<types of"):
            line = location.line
    return line


def origin(form: Canonical, text: str, line: int) -> ast.stmt | None:
    """The kernel's statement that a line of the typed text was written from."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    bodies = [*_device_functions(form.source), form.body]
    functions[-1].body = functions[-1].body[len(form.arrays) :]  # after their declarations
    found = None
    for function, body in zip(functions, bodies, strict=True):
        for written, origin in zip(_in_order(function.body), _in_order(body), strict=False):
            if written.lineno <= line <= (written.end_lineno or 0):
                found = origin
    return found


def _device_functions(source: Source) -> Iterator[list[ast.stmt]]:
    """The bodies of the device functions, in the order in which they are emitted."""
    for inner in source.device_functions.values():
        yield from _device_functions(inner)
        yield inner.tree.body[1:] if ast.get_docstring(inner.tree) else inner.tree.body


def _in_order(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for part in ("body", "orelse"):
            yield from _in_order(getattr(statement, part, []))


# What


def _sentence(error: Exception) -> Sentence:
    """Numba's error in plain words: its usual causes, or else the first line that says a thing."""
    message = re.sub(COLOURS, "", str(error))
    if isinstance(error, KeyError) and isinstance(error.args[0], tuple):
        what = "the function calls itself with other types than it was called with"
        return what, "A number that is written down has a type of its own: f(int64(5)) for f(5)"
    if isinstance(error, KeyError):
        return f"a record has no field {message}", "See the fields of its dtype: x.dtype.names"
    for pattern, say in _CAUSES:
        if not (found := pattern.search(message)):
            continue
        if callable(say):
            return say(*found.groups())
        given = list(map(readable, found.groups()))
        return say[0].format(*given, a=_a("".join(given))), say[1]
    lines = [line.strip() for line in message.splitlines()]
    said = next((s for s in lines if s and not s.startswith("Failed in")), type(error).__name__)
    return f"Numba finds: {readable(said)}", "Kernels compute with numbers and with arrays of them"


def _indices(array: str, count: str) -> Sentence:
    kind = readable(array)
    if kind.startswith("0-d"):
        return f"a {kind} gets an index", "Pass an array of 1 dimension, or a number"
    return f"a {kind} gets {count} indices", (
        "Give one index for each dimension at most; cuda.grid(2) is for arrays of 2 dimensions"
    )


def _signature(name: str, arguments: str) -> Sentence:
    """Numba knows the function, but not for arguments of these types."""
    kinds = [readable(kind) for kind in _split(arguments)]
    if name == "setitem":
        return _store(*kinds)
    if name in ("getitem", "static_getitem"):
        return _load(*kinds)
    name = name.removeprefix("npy_").removeprefix("array_")
    name = name.removeprefix("i") if name.removeprefix("i") in OPERATORS else name
    if name in OPERATORS:
        return _operator(OPERATORS[name], kinds)
    if name == "bool":
        what = f"a condition has the type {kinds[0]}"
        return what, f"A condition is about a number: {ONE}"
    given = ", ".join(kinds)
    if any("array" in kind for kind in kinds):
        return f"`{name}` gets ({given})", f"Call it for {ONE}"
    if any("tuple" in kind for kind in kinds):
        return f"`{name}` gets ({given})", "Take one item of the tuple: x.shape[0]"
    return f"`{name}` cannot take ({given})", "Check how many arguments it has, and their types"


def _store(array: str, index: str, value: str) -> Sentence:
    if "array" not in array:
        return f"an element of a {array} is assigned to", "Only elements of arrays can be"
    if value == "None":
        what = f"None is stored in a {array}"
        return what, "Store a number; a device function gives one with `return`"
    if "array" in value or "tuple" in value:
        what = f"one element of a {array} is set to a whole {value}"
        return what, f"Store {ONE}"
    what = f"{_a(value)} is stored in a {array}, which it does not fit"
    return what, "Convert it first, or use an array of another dtype"


def _load(thing: str, index: str) -> Sentence:
    if "tuple" in thing:
        what = f"a {thing}, of different types, gets an index that varies"
        return what, "Use a constant index, or items of one type"
    if "dtype" in thing:
        return f"a {thing} gets an index", "Convert numbers with ( ): float32(x[i])"
    if thing.startswith("range"):
        return "a range gets an index", "Write range(start, stop, step)"
    what = f"{_a(thing)} gets an index, or is taken apart, but it is one number"
    return what, "Arrays and tuples have items; cuda.grid(2) is a tuple of two"


def _operator(symbol: str, kinds: list[str]) -> Sentence:
    what = f"`{symbol}` is not defined for {' and '.join(kinds)}"
    if any("text" in kind for kind in kinds):
        return what, "A kernel computes with numbers; print takes text and numbers apart"
    if any("None" in kind for kind in kinds):
        return what, "Start from a number, such as -math.inf or 0, instead of None"
    if any("array" in kind for kind in kinds):
        return what, f"Write it for {ONE}"
    if any("tuple" in kind for kind in kinds):
        return what, "Take one item of the tuple: x.shape[0]"
    if symbol in BITWISE:
        return what, "Bits are those of whole numbers: convert with int32(...) first"
    return what, "Convert one of them first, with float32(...) or int32(...)"


def _attribute(name: str, kind: str) -> Sentence:
    kind = readable(kind)
    meant = hints.closest(name, ATTRIBUTES)
    what = f"{_a(kind)} has no attribute {name!r}"
    if meant and "array" in kind:
        return what, f"Did you mean {meant!r}?"
    if name in ("append", "extend", "insert"):
        return what, "An array keeps its size: count in a variable, and write x[count]"
    if "array" in kind:
        return what, f"Kernels know {', '.join(ATTRIBUTES[:5])} of an array, and its elements"
    if "tuple" in kind:
        return what, "Take its items by their places: p[0], p[1]"
    return what, "Convert a number with int32(...) or float32(...), compute with `math`"


def _two_types(one: str, other: str, variable: str) -> Sentence:
    name = variable.split(".")[0]
    which = "a value" if name.startswith("$") else f"the variable {name!r}"
    return f"{which} is sometimes {readable(other)}, sometimes {readable(one)}", (
        "It must have one type: use two names, or convert"
    )


def _undefined(name: str) -> Sentence:
    return f"the variable {name!r} is used before it has a value", "Assign to it first"


# What Numba says, and what is to be said: a function of what the pattern finds, or a sentence with
# these in their places, {a} with its article.
_CAUSES: list[tuple[re.Pattern[str], Callable[..., Sentence] | Sentence]] = [
    (re.compile(pattern, re.DOTALL), say)
    for pattern, say in (
        (rf"TypingError: ([^\n]*)\n\s*raised from {OF_THIS_PACKAGE}",  # while Numba asked for types
         ("{}", "Convert what it is given, or use an array of another dtype")),
        (r"Unsupported array index type ([^\n]+?) in ",
         ("an index has the type {}",
          "An index is a whole number: divide with `//` instead of `/`, or convert with int(...)")),
        (r"cannot index (\w* ?array\([^\n]*\)) with (\d+) indices", _indices),
        (r"print\(\) function implementation does not support keyword",
         ("print gets a keyword", "Pass what to print, and nothing else: print('x is', x[0])")),
        (r"Unknown attribute '(\w+)' of type ([^\n]+)", _attribute),
        (r"Can't unify return type from the following types: ([^\n]+), ([^\n]+)",
         ("a device function returns sometimes {}, sometimes {}",
          "It must return one type: convert")),
        (r"No conversion from ([^\n]+) to none for",
         ("{a} is returned", "Write it to an array argument")),
        (r"tuple index out of range",
         ("a tuple has fewer items than the index asks for",
          "An array of one dimension has x.shape[0] only, one of two has x.shape[1] as well")),
        (r"NRT required",
         ("an operation in it makes a new array, for which a thread has no memory",
          f"Write a loop, with one statement for {ONE}")),
        (r"No definition for lowering <built-in function (\w+)>",
         ("Numba has no machine code for `{}` of these types",
          "Index arrays with a whole number for each dimension, and compute with numbers")),
        (r"Cannot unify ([^\n]+) and ([^\n]+) for '([^']+)'", _two_types),
        (r"Variable '([\w.]+)' is not defined", _undefined),
        (r"Invalid use of ([^\n]+) with parameters [^\n]*\nNo type info available",
         ("{a} is called like a function",
          "Leave out ( ) if it is a value, or write [ ] for an index")),
        (r">>> (\w+)\(([^\n]*)\)", _signature),
    )
]  # fmt: skip


def readable(kind: str) -> str:
    """The name of one of Numba's types in plain words."""
    for pattern, plain in _PLAIN:
        kind = pattern.sub(plain, kind)
    return kind.strip()


def _a(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeio" else f"a {kind}"


def _tuple(found: re.Match[str]) -> str:
    return f"tuple ({', '.join([found[1]] * int(found[2]))})"


_PLAIN = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"(?:Literal|literal)\[int\]\(-?\d+\)", "int64"),
        (r"(?:Literal|literal)\[bool\]\(\w+\)", "bool"),
        (r"(?:Literal|literal)\[str\]\([^)]*\)|unicode_type", "text"),
        (r"Record\(.*?;\d+;(?:True|False)\)", "record"),
        (r"\bnone\b", "None"),
        (r"(?:unaligned |readonly |mutable )*array\((\w+), (\d)d, \w+(?:, \w+)*\)",
         r"\2-d array of \1"),
        (r"OptionalType\((\w+)\)", r"\1 or None"),
        (r"UniTuple\((.+?) x (\d+)\)", _tuple),
        (r"Tuple\(", "tuple ("),
        (r"class\((\w+)\)", r"dtype \1"),
        (r"type\(CPUDispatcher\(.*\)\)", "device function"),
        (r"(?:Module|Function|BoundFunction)\(<?(.*?)>?\)", r"\1"),
        (r"range_\w+", "range"),
    )
]  # fmt: skip


def _split(arguments: str) -> list[str]:
    """`f(a, b), c` at its outer commas."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([<") - (letter in ")]>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


# What Numba allows, but a GPU does not


def refuse_new_arrays(form: Canonical, kinds: dict[str, types.Type]) -> None:
    """Refuse operations on whole arrays: a thread has no memory to put a new one in.

    Raises:
        UnsupportedKernel: with the operation.
    """
    ndims = {name: kind.ndim for name, kind in kinds.items() if isinstance(kind, types.Array)}

    def is_array(node: ast.expr) -> bool:
        return _dimensions(node, ndims) > 0

    for node in walk(form.body):
        match node:
            case ast.BinOp(left=left, right=right):
                whole = is_array(left) or is_array(right)
            case ast.AugAssign(target=target, value=value):
                whole = is_array(target) or is_array(value)
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                whole = is_array(target) and is_array(value)
            case ast.UnaryOp(operand=operand):
                whole = is_array(operand)
            case ast.Compare(left=left, ops=[op, *_], comparators=others):
                whole = any(map(is_array, [left, *others]))
                whole = whole and not isinstance(op, ast.Is | ast.IsNot)
            case ast.Call(func=ast.Name(id="print"), args=arguments):
                whole = any(map(is_array, arguments))
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=arguments):
                whole = is_array(value) and method in NEW_ARRAY
                is_numpy = isinstance(value, ast.Name) and (
                    form.source.constants.get(value.id) == "numpy"
                )
                whole = whole or (is_numpy and any(map(is_array, arguments)))
            case ast.Attribute(value=value, attr=attribute, ctx=ast.Store()) if is_array(value):
                what = f"the {attribute} of an array is assigned to"
                raise form.source.refuse(node, what, "Reshape it before the launch")
            case _:
                continue
        if whole:
            raise form.source.refuse(
                node,
                f"`{ast.unparse(node)}` works on whole arrays",
                f"Write it for {ONE}, and a loop around it if need be",
            )


def refuse_unaligned_fields(form: Canonical) -> None:
    """Refuse to read or write a field of a record that does not lie at a multiple of its size.

    Raises:
        UnsupportedKernel: with the field.
    """
    for node in walk(form.body):
        field = _field(node)
        record = _record(node.value, form.kinds) if field else None  # type: ignore[attr-defined]
        if record is None or field not in record.fields:
            continue
        kind = record.typeof(field)
        dtype = as_dtype(kind.dtype if isinstance(kind, types.NestedArray) else kind)
        if dtype.names is None and record.offset(field) % dtype.alignment:
            raise form.source.refuse(
                node,
                f"the field {field!r}, {_a(str(dtype))}, starts at byte {record.offset(field)} of "
                "its record, and on a GPU at multiples of its size only",
                "Make the dtype with align=True: np.dtype([...], align=True)",
            )


def _field(node: ast.AST) -> str:
    """The field that an expression names: of `a[i].x`, or of `a[i]["x"]`."""
    match node:
        case ast.Attribute(attr=field) | ast.Subscript(slice=ast.Constant(value=str(field))):
            return field
    return ""


def _record(node: ast.expr, kinds: Mapping[str, types.Type]) -> types.Record | None:
    """The type of the record that an expression is, or an element of."""
    kind: Any = None
    match node:
        case ast.Name(id=name):
            kind = kinds.get(name)
        case ast.Subscript(value=value) | ast.Attribute(value=value):
            kind, field = _record(value, kinds), _field(node)
            if kind is not None and field:
                kind = kind.typeof(field) if field in kind.fields else None
    kind = kind.dtype if isinstance(kind, types.Array) else kind
    return kind if isinstance(kind, types.Record) else None


def _dimensions(node: ast.expr, ndims: dict[str, int]) -> int:
    """How many dimensions what an expression gives has, as far as it is a view of an array."""
    match node:
        case ast.Name(id=name):
            return ndims.get(name, 0)
        case ast.Subscript(value=value):
            taken = sum(not isinstance(i, ast.Slice) for i in indices_of(node))
            return max(_dimensions(value, ndims) - taken, 0)
        case ast.Attribute(value=value, attr="T"):
            return _dimensions(value, ndims)
    return 0
