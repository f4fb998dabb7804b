"""What is promised to kernels, which trust their arguments: arrays that fit one another.

A host function says by letters which shapes belong together:

    @host(query="N H Lq E", key="N H Lk E", value="N H Lk M")
    def forward(query, key, value, visible=EVERYTHING, *, scale=None): ...

These three of most attentions are `QKV`. Equal letters are equal sizes; a first "N?" may be 1 as
well. Arrays are of one dtype, float32 or float64, and of one library; "N any" may hold any numbers,
"N int" whole ones. What is None is left out. A state has letters for each of its parts, with B for
the number of sequences, which packed ones do not show in their shape. Arguments `visible` and
`edges` know sizes themselves; the first is settled, see `Visible.settled`.

A GPU's grid has at most 65,535 blocks along its second and its third axis. A larger batch is worked
off in parts: what a part returns for each of its sequences is put together again, and the gradients
of what a batch shares are added up. So it is with packed sequences, whose rows are put together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache, wraps
from inspect import signature
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from .arrays import Array, array_module

FLOATING = np.dtype(np.float32), np.dtype(np.float64)
QKV: dict[str, Any] = {"query": "N H Lq E", "key": "N H Lk E", "value": "N H Lk M"}
KINDS = {"any": "fiu", "int": "iu"}  # of dtypes, where it need not be that of the other arrays
NOT_EMPTY = frozenset("HEM")
REAL = int, float, np.integer, np.floating, np.ndarray
MOST_BLOCKS = 65535  # along the second and the third axis of a grid
Named = tuple[str, Any, str]  # an argument's name, itself, and the letters of its shape
Function = TypeVar("Function", bound=Callable[..., Any])


# ------------------------------------------------------------------------------------------- arrays


@cache
def _parsed(text: str) -> tuple[tuple[str, ...], str, bool]:
    """The letters of a shape; the kind of its numbers, "" for that of the others; who may be 1."""
    letters = text.split()
    kind = letters.pop() if letters and letters[-1] in KINDS else ""
    shared = text.partition(" ")[0].endswith("?")
    if shared:
        letters[0] = letters[0][:-1]
    return tuple(letters), kind, shared


def fit(
    function: str,
    arrays: Iterable[Named],
    sizes: dict[str, int],
    model: tuple[str, Array] | None = None,
    *,
    convert: str = "astype({})",
) -> dict[str, int]:
    """Check that arrays fit one another.

    Args:
        function: the name that errors begin with.
        arrays: names, arrays and letters.
        sizes: what some letters stand for; those of the arrays are added.
        model: the array whose dtype and device count, and its name before it; None: the first.
        convert: how an array gets another dtype, for errors.

    Returns:
        The sizes of all letters.

    Raises:
        TypeError: what should be an array is not one, or does not hold such numbers.
        ValueError: shapes, dtypes or devices differ.
    """
    for name, array, text in arrays:
        letters, kind, shared = _parsed(text)
        like = array if model is None else model[1]
        if model is None or kind or type(array) is not type(like) or array.dtype != like.dtype:
            model = model or (name, array)
            _check_kind(function, name, array, model, kind, convert)
        shape, known = array.shape, len(sizes)
        if shared and shape[:1] == (1,):
            letters = ("1", *letters[1:])
        if len(shape) == len(letters):
            for letter, size in zip(letters, shape, strict=True):
                if sizes.setdefault(letter, size) != size or (not size and letter in NOT_EMPTY):
                    break
            else:
                if "2k+1" not in letters:
                    continue
                sizes["k"], odd = divmod(sizes["2k+1"], 2)
                if odd:
                    continue
                raise ValueError(
                    f"{function}: {name} must have an odd number of rows, 2k + 1 for the distances "
                    f"-k to k, got {shape}"
                )
        raise _wrong_shape(function, name, shape, text, dict(islice(sizes.items(), known)))
    return sizes


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array, or a CuPy one; no matrix, and none with a mask."""
    if type(value) is np.ndarray:
        return True
    if isinstance(value, np.matrix | np.ma.MaskedArray):
        return False  # they compute in their own way, which kernels do not know
    return isinstance(value, np.ndarray) or array_module(value) is not np


def _check_kind(
    function: str, name: str, array: Any, model: tuple[str, Any], kind: str, convert: str
) -> None:
    first, like = model
    if not is_array(array):
        raise TypeError(
            f"{function}: {name} must be a NumPy or a CuPy array, got {type(array).__name__}; "
            f"convert it: numpy.asarray({name})"
        )
    if kind and array.dtype.kind not in KINDS[kind]:
        what = "integers" if kind == "int" else "numbers"
        raise TypeError(f"{function}: {name} must be {what}, got {array.dtype}")
    if not kind and array.dtype not in FLOATING:
        raise TypeError(
            f"{function}: {name} must be float32 or float64, got {array.dtype}; "
            f"convert it: {name}.{convert.format('numpy.float32')}"
        )
    if not kind and array.dtype != like.dtype:
        wanted = f"{first}.dtype" if first.isidentifier() else f"numpy.{like.dtype}"
        raise ValueError(
            f"{function}: {name} is {array.dtype}, but {first} is {like.dtype}; "
            f"convert it: {name}.{convert.format(wanted)}"
        )
    here, there = array_module(array).__name__, array_module(like).__name__
    if here != there:
        raise ValueError(
            f"{function}: {name} is an array of {here}, but {first} is one of {there}; "
            f"convert it: {there}.asarray"
        )


def _wrong_shape(
    function: str, name: str, shape: tuple[int, ...], text: str, sizes: dict[str, int]
) -> ValueError:
    letters, _, shared = _parsed(text)
    each = [f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters]
    expected = ", ".join([f"{each[0]} or 1", *each[1:]] if shared else each)
    got = f"{function}: {name} must have the shape ({expected}), got {shape}"
    if len(shape) == len(letters):
        empty = [x for x, size in zip(letters, shape, strict=True) if not size and x in NOT_EMPTY]
        rule = f"{empty[0]} is above 0" if empty else "a letter means one size in all arguments"
        got += f"; {rule}"
    elif len(letters) == 4:
        got += "; split the heads: (N, L, H * E) becomes x.reshape(N, L, H, E).transpose(1, 2)"
    return ValueError(got)


# ----------------------------------------------------------------------------------- host functions


def host(*, parts: bool = True, **shapes: str | dict[str, str]) -> Callable[[Function], Function]:
    """Declare the shapes of a host function's arrays by letters, and check them in each call.

    Args:
        parts: whether a batch larger than a grid is worked off in parts.
        shapes: of each argument the letters; of a state, those of its parts.
    """

    def declare(function: Function) -> Function:
        parameters = signature(function).parameters
        rest = {n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD}
        order = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        required = {n for n, p in parameters.items() if p.default is p.empty} - rest
        name = f"{function.__module__.partition('.')[2]}.{function.__name__}"
        optional = {n for n, p in parameters.items() if "None" in str(p.annotation)}
        knows = next((n for n in ("visible", "edges") if n in parameters), None)

        @wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            given = dict(zip(order, arguments, strict=False)) | keywords
            all_known = rest or given.keys() <= parameters.keys()
            each_once = len(given) == len(arguments) + len(keywords)
            if not (all_known and each_once and required <= given.keys()):
                return function(*arguments, **keywords)  # Python says what is wrong
            sizes: dict[str, int] = {}
            if knows is not None:
                who = given.setdefault(knows, parameters[knows].default)
                if not hasattr(who, "known_sizes"):
                    kind = knows.capitalize()
                    raise TypeError(f"{name}: {knows} must be {kind}, got {type(who).__name__}")
                sizes |= who.known_sizes
            arrays: list[Named] = []
            for argument, letters in shapes.items():
                value = given.get(argument)
                if value is None and (argument in optional or argument not in given):
                    continue
                if isinstance(letters, str):
                    arrays.append((argument, value, letters))
                    continue
                if getattr(value, "_fields", None) != tuple(letters):
                    raise TypeError(
                        f"{name}: {argument} must be a state of {', '.join(letters)}, got "
                        f"{type(value).__name__}"
                    )
                for array, (part, text) in zip(cast(Any, value), letters.items(), strict=True):
                    if array is None and text.endswith("int"):
                        continue  # a gradient has none of whole numbers
                    text = text if "B" in sizes else text.replace("B", "N")
                    arrays.append((f"{argument}.{part}", array, text))
            fit(name, arrays, sizes)
            if knows == "visible" and "Lk" in sizes:
                given["visible"] = who.settled(name, arrays[0][1], given["key"])
            if parts and sizes.get("B", sizes.get("N", 0)) > MOST_BLOCKS:
                return _in_parts(checked, given, shapes, sizes)
            return function(**given)

        @wraps(function)
        def trusting(*arguments: Any, **keywords: Any) -> Any:
            large = len(arguments[0]) > MOST_BLOCKS
            return (checked if large else function)(*arguments, **keywords)

        checked.shapes = shapes  # type: ignore[attr-defined]
        checked.trusting = trusting  # type: ignore[attr-defined]
        return cast(Function, checked)

    return declare


def trusted(host_function: Function) -> Function:
    """A host function without its checks, for arguments that have passed some.

    So the tape calls it: the public function has checked what came, with a name that its user
    knows, and nobody else has had these arrays since. `visible` must be given, and have been
    settled; of packed sequences there may be no more than a grid has blocks.
    """
    return cast(Function, host_function.trusting)  # type: ignore[attr-defined]


def _in_parts(
    function: Callable[..., Any],
    given: dict[str, Any],
    shapes: dict[str, str | dict[str, str]],
    sizes: dict[str, int],
) -> Any:
    """Call a host function for some sequences of a batch at a time."""
    packed = "B" in sizes
    count = sizes["B"] if packed else sizes["N"]
    parts = [slice(at, min(at + MOST_BLOCKS, count)) for at in range(0, count, MOST_BLOCKS)]
    ends = given["visible"].cu_seqlens if packed else range(count + 1)
    rows = [slice(int(ends[part.start]), int(ends[part.stop])) for part in parts]

    def of_array(at: int, array: Any, text: str) -> Any:
        letters, _, _ = _parsed(text)
        if array is None:
            return None
        if packed and letters[0] != "B":
            along = [letter in ("Lq", "Lk") for letter in letters]
            return array[tuple(rows[at] if tokens else slice(None) for tokens in along)]
        return array[parts[at]] if letters[0] in "NB" and len(array) == count else array

    def of(at: int, name: str, value: Any) -> Any:
        letters = shapes.get(name)
        if name == "visible":
            return _visible_part(value, parts[at])
        if value is None or letters is None:
            return value
        if isinstance(letters, str):
            return of_array(at, value, letters)
        return type(value)(
            *(of_array(at, *each) for each in zip(value, letters.values(), strict=True))
        )

    results = [function(**{n: of(at, n, x) for n, x in given.items()}) for at in range(len(parts))]
    return _joined(results, *([x.stop - x.start for x in each] for each in (parts, rows)))


def _visible_part(visible: Any, part: slice) -> Any:
    """Who sees whom, of some sequences."""
    if visible.cu_seqlens is not None:
        ends = visible.cu_seqlens[part.start : part.stop + 1]
        return visible._replace(cu_seqlens=ends - ends[0])
    lengths = {n: getattr(visible, n) for n in ("query_lengths", "key_lengths")}
    return visible._replace(**{n: x if x is None else x[part] for n, x in lengths.items()})


def _joined(results: list[Any], counts: list[int], rows: list[int]) -> Any:
    """The results of parts as one: sequences, or rows of packed ones, in order; else their sum."""
    first = results[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        each = [_joined(list(part), counts, rows) for part in zip(*results, strict=True)]
        return type(first)(*each) if hasattr(first, "_fields") else tuple(each)
    if [len(x) for x in results] == counts:
        return array_module(first).concatenate(results)
    if first.ndim > 2 and [x.shape[2] for x in results] == rows:
        return array_module(first).concatenate(results, axis=2)
    return sum(results[1:], start=first)


# ------------------------------------------------------------------------------------------ numbers


def whole(function: str, name: str, number: Any, least: int | None = None) -> int:
    """A whole number as an int.

    Raises:
        TypeError: it is not one; True and False are not.
        ValueError: it is below `least`.
    """
    if type(number) is not int and (
        not isinstance(number, int | np.integer) or isinstance(number, bool)
    ):
        raise TypeError(f"{function}: {name} must be a whole number, got {number!r}")
    if least is not None and number < least:
        raise ValueError(f"{function}: {name} must be at least {least}, got {number}")
    return int(number)


def flag(function: str, name: str, value: Any) -> bool:
    """True or False.

    Raises:
        TypeError: it is neither; "False", 0 and None are not.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}")
    return bool(value)


def finite(
    function: str, name: str, value: Any, what: str = "a finite number", way_out: str = ""
) -> float:
    """A number that is neither infinite nor NaN.

    Raises:
        TypeError: it is no number.
        ValueError: it is not finite.
    """
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, REAL):
        raise TypeError(f"{function}: {name} must be {what}, got {value!r}{way_out}")
    try:
        is_finite = not np.ndim(value) and math.isfinite(value)
    except (TypeError, ValueError, OverflowError):  # no number, or more than a float holds
        is_finite = False
    if not is_finite:
        raise ValueError(f"{function}: {name} must be {what}, got {value}{way_out}")
    return value  # type: ignore[return-value]


def one_of(function: str, name: str, choice: Any, choices: Iterable[str]) -> None:
    """Check that a choice is one of those that there are.

    Raises:
        ValueError: it is not.
    """
    names = tuple(choices)
    if not isinstance(choice, str) or choice not in names:
        raise ValueError(
            f"{function}: {name} must be one of {', '.join(map(repr, names))}, got {choice!r}"
        )
