"""What a lesson launches, noted while it happens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from minitransformer_kernels.cuda import Kernel, Launch


class Launched(NamedTuple):
    """A launch: the kernel, its blocks, the threads of each, and the arguments."""

    kernel: Kernel
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    arguments: tuple[Any, ...]

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernel was compiled for: the sizes in the function around it."""
        return dict(inspect.getclosurevars(self.kernel.function).nonlocals)


@contextmanager
def watch() -> Iterator[list[Launched]]:
    """Note every kernel launch of this context, as it happens.

    >>> import numpy as np
    >>> from minitransformer_kernels import softmax
    >>> x = np.ones((1, 1, 6, 4), np.float32)
    >>> with watch() as launched:
    ...     _ = softmax.forward(x, x, x)
    >>> [launch.kernel.__name__ for launch in launched]
    ['forward']
    """
    launched: list[Launched] = []
    launch = Launch.__call__

    def noting(self: Launch, *arguments: Any) -> None:
        launched.append(Launched(self.kernel, self.grid, self.block, arguments))
        launch(self, *arguments)

    with patch.object(Launch, "__call__", noting):
        yield launched
