"""What CuPy has: its functions, methods and keywords, written down from an installed CuPy.

    python -m tests.stand_in_cupy.names > tests/stand_in_cupy/names.txt

needs CuPy but no GPU. A line is a ufunc, `ufunc exp 1 1` (arrays in, arrays out), a function,
`def stack(tup, axis=0, ...)`, or a method, `method sum(axis=None, ...)`. Only names that NumPy has
too are written down: the stand-in computes with NumPy.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

NAMES = Path(__file__).with_name("names.txt")
_EXTRA_METHODS = ("get", "set", "reduced_view", "scatter_add")  # CuPy's alone
_NO_NEED = ("fuse", "memoize", "save", "load", "fromfile", "tofile", "dump")


def written_down(cupy: ModuleType) -> Iterator[str]:
    """The lines for an installed CuPy."""
    yield f"version {cupy.__version__}"
    for name in sorted(set(dir(cupy)) & set(dir(np))):
        it = getattr(cupy, name)
        if name.startswith(("_", *_NO_NEED)) or isinstance(it, type):
            continue
        if type(it).__name__ == "ufunc":
            yield f"ufunc {name} {it.nin} {it.nout}"
        elif callable(it) and (signature := signature_of(it)):
            yield f"def {name}{signature}"
    methods = {*dir(np.ndarray), *_EXTRA_METHODS} & set(dir(cupy.ndarray))
    for name in sorted(methods):
        it = getattr(cupy.ndarray, name)
        if not name.startswith(("_", *_NO_NEED)) and callable(it):
            yield f"method {name}{signature_of(it)}"


def signature_of(it: Any) -> str | None:
    """A callable's signature in Python's words, without types and without `self`."""
    try:
        signature = inspect.signature(it)
    except (TypeError, ValueError):  # compiled by Cython: its first line says it, with types of C
        text = re.search(r"\((.*?)\)(?: ->.*)?$", (it.__doc__ or "").strip().split("\n")[0])
        if text is None:
            return None
        parameters = [re.sub(r"^(?:\w+ )+(?=\w)", "", p) for p in text[1].split(", ")]
    else:
        parameters = str(signature.replace(return_annotation=signature.empty))[1:-1].split(", ")
    parameters = [re.sub(r": '.*'(?= =)|: '.*?'$", "", p).replace(" = ", "=") for p in parameters]
    plain = ", ".join(p for p in parameters if p != "self")
    return "(" + re.sub(r"<class '(?:numpy\.)?(\w+)'>", r"'\1'", plain) + ")"


def read() -> dict[str, dict[str, str]]:
    """What is written down: for each kind of line, names and what follows them."""
    found: dict[str, dict[str, str]] = {"version": {}, "ufunc": {}, "def": {}, "method": {}}
    for line in NAMES.read_text().splitlines():
        kind, rest = line.split(" ", 1)
        name, after = re.fullmatch(r"([\w.]+)(.*)", rest).groups()
        found[kind][name] = after.strip()
    return found


if __name__ == "__main__":
    import cupy

    print(*written_down(cupy), sep="\n")
