"""What each launch asks of a kernel's canonical form, kept on disk.

The form takes longer to make than all that a process does to start a kernel that is compiled. So
what a launch looks at is kept beside the compiled code: what is written to, and how much shared
memory is declared.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.np.numpy_support import as_dtype

from . import cache
from .form import Canonical
from .source import Source
from .trees import names_in, walk
from .uniformity import written_arrays, written_in


class Outline(NamedTuple):
    """What a launch looks at. `parameters` are those of the form; `written` holds their places.

    Of each shared array it has how many elements it has, its dtype as a text (`float32`, `np.int8`,
    `x.dtype`), and the texts of what names in that stand for.
    """

    parameters: list[str]
    written: list[int]
    shared: list[tuple[int, str, dict[str, str]]]

    def declared(self, arguments: tuple[Any, ...]) -> int:
        """Bytes of the shared arrays that the kernel declares."""
        given = dict(zip(self.parameters, arguments, strict=False))  # dtype=x.dtype
        return sum(count * _itemsize(dtype, given, names) for count, dtype, names in self.shared)


def outline(source: Source, form: Callable[[], Canonical]) -> Outline:
    """Load a kernel's outline from the cache, or make it of its form and keep it.

    Raises:
        UnsupportedKernel: the kernel writes to an array from outside.
    """
    path = cache.place(source.name, ".json", source.text)
    kept = None if source.takes_arrays else cache.read(path)
    if kept is not None:
        return Outline(**json.loads(kept))
    found = _of(form())
    if not source.takes_arrays:
        cache.write(path, json.dumps(found._asdict()).encode())
    return found


def _of(form: Canonical) -> Outline:
    """The outline of a kernel in canonical form."""
    names, source = written_arrays(form), form.source
    for constant in sorted(names & source.arrays.keys()):
        uses = [node for node in walk(form.body) if constant in names_in(node)]
        writes = [node for node in uses if constant in written_in([node], source)]
        raise source.refuse(
            [*writes, *uses][0],
            f"the array {source.original(constant)!r}, which is no argument, is written to",
            "Arrays from outside are constants in a kernel: pass it as an argument",
        )
    shared = []
    for array in form.arrays.values():
        if array.space == "shared":
            used = names_in(ast.parse(array.dtype)) & source.constants.keys()
            texts = {name: source.constants[name] for name in sorted(used)}
            shared.append((prod(array.shape), array.dtype, texts))
    written = [i for i, name in enumerate(form.parameters) if name in names]
    return Outline(form.parameters, written, shared)


def _itemsize(text: str, given: Mapping[str, Any], names: Mapping[str, str]) -> int:
    """Bytes of an element of a dtype."""
    known = {"numba": numba, "numpy": np}
    meant = {name: eval(each, known) for name, each in names.items()}
    dtype = eval(text, known, {**given, **meant})
    return int(np.dtype(as_dtype(dtype) if isinstance(dtype, numba.types.Type) else dtype).itemsize)
