"""How the kernels of local attention are launched on an example."""

from __future__ import annotations

from functools import partial

from ..softmax.example import few_values, passes
from . import Pattern

WINDOW = Pattern(window=32)
HOSTS = {"local": partial(passes, pattern=WINDOW)}
MORE = {
    "local_dropped": partial(passes, pattern=WINDOW, relative=True, dropout=0.1),
    "local_few_values": partial(few_values, pattern=WINDOW),
    "local_plain": partial(passes, pattern=WINDOW, version="plain"),
}
