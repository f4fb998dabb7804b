"""What is promised to kernels, which trust their arguments: arrays that fit one another.

A host function says by letters which shapes belong together:

    @host(query="N H Lq E", key="N H Lk E", value="N H Lk M")
    def forward(query, key, value, visible=EVERYTHING, *, scale=None): ...

Equal letters are equal sizes; a first "N?" may be 1 as well. Arrays are of one dtype, float32 or
float64, and of one library; "N any" may hold any numbers, "N int" whole ones. What is None is left
out. A state has letters for each of its parts, with B for the number of sequences, which packed
ones do not show in their shape. Arguments `visible` and `edges` know sizes themselves; the first is
settled, see `Visible.settled`.

A GPU's grid has at most 65,535 blocks along an axis. A larger batch is worked off in parts: what a
part returns for each of its sequences is put together again, and the gradients of what a batch
shares are added up.
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
KINDS = {"any": "fiu", "int": "iu"}  # of dtypes, where it need not be that of the other arrays
NOT_EMPTY = frozenset("HEM")
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
        TypeError: what should be an array is none, or does not hold such numbers.
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
    """Whether a value is a NumPy array, or a CuPy one."""
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
        raise ValueError(
            f"{function}: {name} is {array.dtype}, but {first} is {like.dtype}; "
            f"convert it: {name}.{convert.format(f'{first}.dtype')}"
        )
    here, there = array_module(array).__name__, array_module(like).__name__
    if here != there:
        raise ValueError(
            f"{function}: {name} is an array of {here}, but {first} is one of {there}; "
            f"convert it: {there}.asarray"
        )


def _wrong_shape(
    function: str,
    name: str,
    shape: tuple[int, ...],
    text: str,
    sizes: dict[str, int],
) -> ValueError:
    letters, _, shared = _parsed(text)
    each = [f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters]
    expected = ", ".join([f"{each[0]} or 1", *each[1:]] if shared else each)
    got = f"{function}: {name} must have the shape ({expected}), got {shape}"
    if len(shape) == len(letters):
        got += "; H, E and M are above 0, and a letter means one size in all arguments"
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
        order = tuple(parameters)
        name = f"{function.__module__.partition('.')[2]}.{function.__name__}"
        optional = {n for n, p in parameters.items() if "None" in str(p.annotation)}
        knows = next((n for n in ("visible", "edges") if n in parameters), None)

        @wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            if len(arguments) > len(order) or not keywords.keys() <= parameters.keys():
                return function(*arguments, **keywords)  # Python says what is wrong
            given = dict(zip(order, arguments, strict=False)) | keywords
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
            if parts and sizes.get("N", 0) > MOST_BLOCKS:
                return _in_parts(checked, given, shapes, sizes["N"])
            return function(**given)

        checked.shapes = shapes  # type: ignore[attr-defined]
        return cast(Function, checked)

    return declare


def _in_parts(
    function: Callable[..., Any],
    given: dict[str, Any],
    shapes: dict[str, str | dict[str, str]],
    batch: int,
) -> Any:
    """Call a host function for some sequences of a batch at a time."""

    def of(rows: slice, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name == "visible":
            lengths = {n: getattr(value, n) for n in ("query_lengths", "key_lengths")}
            return value._replace(**{n: x if x is None else x[rows] for n, x in lengths.items()})
        if isinstance(value, tuple) and name in shapes:
            return type(value)(*(x[rows] if len(x) == batch else x for x in value))
        return value[rows] if name in shapes and len(value) == batch else value

    firsts = range(0, batch, MOST_BLOCKS)
    spans = [slice(first, min(first + MOST_BLOCKS, batch)) for first in firsts]
    results = [function(**{n: of(rows, n, x) for n, x in given.items()}) for rows in spans]
    return _joined(results, [rows.stop - rows.start for rows in spans])


def _joined(results: list[Any], counts: list[int]) -> Any:
    """The results of parts as one: rows of the batch in order, and sums of what it shares."""
    first = results[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        parts = [_joined(list(each), counts) for each in zip(*results, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if [len(x) for x in results] == counts:
        return array_module(first).concatenate(results)
    return sum(results[1:], start=first)


# ------------------------------------------------------------------------------------------ numbers


def whole(function: str, name: str, number: Any, least: int | None = None) -> int:
    """A whole number as an int.

    Raises:
        TypeError: it is none; True and False are none.
        ValueError: it is below `least`.
    """
    if not isinstance(number, int | np.integer) or isinstance(number, bool):
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
    if isinstance(value, bool) or not isinstance(value, int | float | np.number | np.ndarray):
        raise TypeError(f"{function}: {name} must be {what}, got {value!r}{way_out}")
    if np.ndim(value) or not math.isfinite(value):
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
