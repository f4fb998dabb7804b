"""The one source of randomness: initial weights, dropout and sampling all draw from here.

A run that saves :func:`get_state` and restores it with :func:`set_state` continues bit by bit.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from .device import Array

_STREAMS = 1 << 16  # CuPy would take more on a larger GPU, and give other numbers there
_generator = np.random.default_rng(0)
_parts: ContextVar[tuple[tuple[slice, int], ...]] = ContextVar("parts", default=())


def manual_seed(seed: int) -> None:
    """Restart the engine's randomness: the same seed, from 0 up, gives the same numbers.

    Raises:
        ValueError: The seed is no such number.

    >>> manual_seed(3); first = generator().random()
    >>> manual_seed(3); first == generator().random()
    True
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"manual_seed: seed must be a whole number from 0 up, got {seed!r}")
    _generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def generator() -> np.random.Generator:
    """Return the generator that everything in the engine draws from."""
    return _generator


def get_state() -> dict[str, Any]:
    """Return the generator's state, made of plain integers and strings that JSON can hold."""
    return copy.deepcopy(dict(_generator.bit_generator.state))


def set_state(state: dict[str, Any]) -> None:
    """Continue from what :func:`get_state` returned.

    Raises:
        ValueError: The state is not one of this generator's.
    """
    try:
        _generator.bit_generator.state = copy.deepcopy(state)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"set_state: expected what get_state() returned, got {state!r}") from error


def seed() -> int:
    """Draw a seed for a counter-based generator, so that the state above stays the whole state.

    >>> manual_seed(3); first = seed()
    >>> manual_seed(3); first == seed()
    True
    """
    return int(_generator.integers(2**63))


def uniform(shape: tuple[int, ...], dtype: Any, xp: Any = np) -> Array:
    """Draw from U[0, 1) an array of this shape and dtype, of ``numpy`` or ``cupy``.

    On CUDA the numbers come from a counter-based generator whose key is drawn from the engine's,
    so that the state above is the whole state there too. Inside `part_of` an array is a part of a
    larger one, which is drawn whole.
    """
    parts = _parts.get()
    whole = *(size for _, size in parts), *shape[len(parts) :]
    drawn = _uniform(whole, dtype, xp)[tuple(part for part, _ in parts)]
    if drawn.shape != shape:
        raise ValueError(f"uniform: an array {shape} is not the part {drawn.shape} of one {whole}")
    return drawn


@contextmanager
def part_of(*parts: tuple[slice, int]) -> Iterator[None]:
    """Inside, give each array of `uniform` the numbers that it has as a part of a larger one.

    So a process that has some of a batch's sequences drops from them what one with all would drop.

    Args:
        *parts: For each of the leading dimensions, which part it is, and of how many.

    >>> manual_seed(3); whole = uniform((4, 2), np.float32)
    >>> manual_seed(3)
    >>> with part_of((slice(1, 3), 4)):
    ...     part = uniform((2, 2), np.float32)
    >>> bool((part == whole[1:3]).all())
    True
    """
    token = _parts.set(parts)
    try:
        yield
    finally:
        _parts.reset(token)


def parts() -> tuple[tuple[slice, int], ...]:
    """Return what `part_of` was last given, nothing outside of it."""
    return _parts.get()


def _uniform(shape: tuple[int, ...], dtype: Any, xp: Any) -> Array:
    if xp is np:
        return _generator.random(shape, dtype)
    cupy_random: Any = importlib.import_module("cupy.random")
    bits = cupy_random.Philox4x3210(seed(), size=_STREAMS)
    drawn: Array = cupy_random.Generator(bits).random(shape, dtype)
    return drawn
