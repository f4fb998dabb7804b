"""Signatures: `@cuda.jit("void(float32[:], int32)")` fixes the types of a kernel's arguments.

Numbers are converted to them, as Numba does; an array must have its dtype and dimensions already.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numba import typeof
from numba.core import sigutils, types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.typeconv import Conversion

from ..cpu.errors import KernelError

Kinds = tuple[types.Type, ...]


def is_signature(value: Any) -> bool:
    """Whether what `cuda.jit` got is a signature, or a list of them."""
    return isinstance(value, list) or sigutils.is_signature(value)


def of_device(given: Any) -> tuple[Kinds, types.Type | None]:
    """The types of a device function's arguments, and of its result; of several signatures, none.

    Raises:
        KernelError: Numba does not understand it.
    """
    if isinstance(given, list) and len(given) != 1:
        return (), None
    return _normalized(given[0] if isinstance(given, list) else given)


def _normalized(signature: Any) -> tuple[Kinds, types.Type | None]:
    try:
        kinds, result = sigutils.normalize_signature(signature)
    except (NumbaError, TypeError, NameError, SyntaxError, AttributeError) as error:
        raise KernelError(
            f"@cuda.jit got the signature {signature!r}, which makes no sense ({error}); write "
            '"void(float32[:], int32)", or leave it out'
        ) from None
    return tuple(kinds), result


def parsed(given: Any) -> list[Kinds]:
    """The types of the arguments, by each signature.

    Raises:
        KernelError: Numba does not understand one of them, or it returns something.
    """
    found = []
    for signature in given if isinstance(given, list) else [given]:
        kinds, result = _normalized(signature)
        if result not in (None, types.none):
            raise KernelError(
                f"@cuda.jit got the signature {signature!r}, but a kernel returns nothing; write "
                "void, and let it write to an array"
            )
        found.append(kinds)
    return found


def converted(name: str, signatures: list[Kinds], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in the types of the signature that takes them with the least conversion.

    Raises:
        KernelError: none does.
    """
    fit = [k for k in signatures if len(k) == len(arguments) and all(map(_takes, k, arguments))]
    if fit:
        kinds = fit[0] if len(fit) == 1 else min(fit, key=lambda kinds: _cost(kinds, arguments))
        return tuple(map(_as, kinds, arguments))
    expected = " or ".join(f"({', '.join(map(_text, kinds))})" for kinds in signatures)
    got = ", ".join(map(_kind, arguments))
    raise KernelError(
        f"kernel {name!r} takes {expected} by its signature, got ({got}); convert the arrays with "
        ".astype, or leave the signature out"
    )


def _takes(kind: types.Type, argument: Any) -> bool:
    if isinstance(kind, types.Array):
        fits = getattr(argument, "dtype", None) == _dtype(kind.dtype)
        flags = getattr(argument, "flags", None)
        ordered = kind.layout != "C" or flags is None or flags.c_contiguous
        return fits and getattr(argument, "ndim", None) == kind.ndim and ordered
    if isinstance(kind, types.Number | types.Boolean):
        return isinstance(argument, bool | int | float | complex | np.generic)
    return True  # what launches look at anyway


def _cost(kinds: Kinds, arguments: tuple[Any, ...]) -> list[int]:
    """How many numbers are converted, the worst kind of conversion first: what Numba goes by."""
    convert = cpu_target.typing_context.can_convert
    found = Counter(
        convert(typeof(argument), kind)
        for kind, argument in zip(kinds, arguments, strict=True)
        if isinstance(kind, types.Number | types.Boolean)
    )
    return [found[conversion] for conversion in sorted(Conversion, reverse=True)]


def _as(kind: types.Type, argument: Any) -> Any:
    if not isinstance(kind, types.Number | types.Boolean):
        return argument
    dtype = _dtype(kind)
    try:
        if dtype.kind not in "iu":
            return dtype.type(argument)
        limits, number = np.iinfo(dtype), int(argument)
        fits = limits.min <= number <= limits.max
        as_wide = -(1 << limits.bits - 1) <= number < 1 << limits.bits
        if not fits and not (as_wide and isinstance(argument, int | np.integer)):
            raise OverflowError
        # A whole number as wide as the type goes by its bits, as on a GPU: 0xFFFFFFFF is -1.
        return dtype.type((number - limits.min) % (1 << limits.bits) + limits.min)
    except (OverflowError, ValueError, TypeError):
        raise KernelError(
            f"the number {argument!r} has no place in {kind}, which the kernel's signature gives it"
        ) from None


def _dtype(kind: types.Type) -> np.dtype[Any]:
    record = getattr(kind, "dtype", None)  # of a record
    return np.dtype(
        record if isinstance(record, np.dtype) else str(kind).replace("boolean", "bool")
    )


def _text(kind: types.Type) -> str:
    if isinstance(kind, types.Array):
        return f"{kind.dtype}[{', '.join(':' * kind.ndim)}]"
    return str(kind)


def _kind(argument: Any) -> str:
    if hasattr(argument, "ndim") and hasattr(argument, "dtype") and argument.ndim:
        return f"{argument.dtype}[{', '.join(':' * argument.ndim)}]"
    return type(argument).__name__
