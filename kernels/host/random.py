"""Random numbers in kernels: `numba.cuda.random`, with its states in our device arrays.

The generators are Numba's own functions, so the numbers are the same on a GPU. A state each thread:

    states = create_xoroshiro128p_states(blocks * threads, seed=1)

and in a kernel `xoroshiro128p_uniform_float32(states, cuda.grid(1))`.

Source: D. Blackman and S. Vigna, xoroshiro128+, https://prng.di.unimi.it
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cuda.random import (
    init_xoroshiro128p_state,
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_jump,
    xoroshiro128p_next,
    xoroshiro128p_normal_float32,
    xoroshiro128p_normal_float64,
    xoroshiro128p_type,
    xoroshiro128p_uniform_float32,
    xoroshiro128p_uniform_float64,
)

from .arrays import DeviceNDArray, device_array

__all__ = [
    "create_xoroshiro128p_states", "init_xoroshiro128p_state", "init_xoroshiro128p_states",
    "init_xoroshiro128p_states_cpu", "xoroshiro128p_dtype", "xoroshiro128p_jump",
    "xoroshiro128p_next", "xoroshiro128p_normal_float32", "xoroshiro128p_normal_float64",
    "xoroshiro128p_type", "xoroshiro128p_uniform_float32", "xoroshiro128p_uniform_float64",
]  # fmt: skip


def init_xoroshiro128p_states(
    states: Any, seed: int, subsequence_start: int = 0, stream: Any = 0
) -> None:
    """Set generators 2**64 numbers apart from each other in the sequence of a seed."""
    on_host = np.empty(states.shape, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(on_host, seed, subsequence_start)
    states.copy_to_device(on_host, stream)


def create_xoroshiro128p_states(
    n: int, seed: int, subsequence_start: int = 0, stream: Any = 0
) -> DeviceNDArray:
    """A device array `(n,)` of generators, which no two threads share numbers of.

    Args:
        n: how many.
        seed: decides all numbers.
        subsequence_start: how many times 2**64 numbers to leave out at first.
        stream: what the copy is queued on.
    """
    states = device_array(n, xoroshiro128p_dtype, stream=stream)
    init_xoroshiro128p_states(states, seed, subsequence_start, stream)
    return states
