"""Every attention on an example: each room says in its `example.py` how its kernels are launched.

There `HOSTS` and `MORE` hold functions by name. Each takes query, key and value, arrays
(N, H, L, E), and calls host functions of the room, forward and backward: `HOSTS` those that the
microscope shows and that are compiled for every head dim, `MORE` the same kernels with other
options, for one. The rooms are found in the folder: nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

Host = Callable[[Any, Any, Any], None]

_PACKAGE = import_module(__package__)


def rooms() -> Iterator[ModuleType]:
    """The modules `example` of all rooms."""
    for _, room, is_folder in iter_modules(_PACKAGE.__path__, f"{_PACKAGE.__name__}."):
        if is_folder and find_spec(f"{room}.example"):
            yield import_module(f"{room}.example")


HOSTS: dict[str, Host] = {name: host for room in rooms() for name, host in room.HOSTS.items()}
MORE: dict[str, Host] = {name: host for room in rooms() for name, host in room.MORE.items()}
