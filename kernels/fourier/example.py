"""How the kernels of Fourier positions are launched on an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..algorithms import ALGORITHMS
from ..visible import Visible
from . import backward, features, features_backward, forward, step


def _waves(query: Any) -> tuple[Any, Any, Any, Any]:
    """Positions, frequency, phase and amplitude."""
    (N, H, L, E), dtype = query.shape, query.dtype
    phase, amplitude = np.zeros((2, H, E), dtype)
    return np.zeros((N, L, 2)), np.zeros((H, E, 2), dtype), phase, amplitude


def _features(query: Any, key: Any, value: Any, **how: str) -> None:
    positions, frequency, phase, amplitude = _waves(query)
    saved = features(query, positions, frequency, phase, amplitude)
    features_backward(saved.rows, query, positions, frequency, amplitude, saved, **how)


def _attention(query: Any, key: Any, value: Any, *, algorithm: str, **options: Any) -> None:
    positions, frequency, phase, amplitude = _waves(query)
    inputs = query, key, value, positions, positions, frequency, phase, amplitude
    visible, how = Visible(causal=algorithm != "linear"), {"algorithm": algorithm, **options}
    output, d, saved, state = forward(*inputs, visible, **how)
    backward(output, state, *inputs, output, d, saved, visible, **how)
    if state is not None:
        (q, k, v), place = (x[:, :, 0] for x in (query, key, value)), positions[:, 0]
        step(q, k, v, place, place, frequency, phase, amplitude, state, **options)


HOSTS = {"fourier": _features}

# Features are 3 times as wide as the head dim; the plain denominator is an attention to values of
# one column.
MORE = {
    f"fourier_{algorithm}": partial(_attention, algorithm=algorithm, denominator="plain")
    for algorithm in ALGORITHMS
} | {"fourier_plain": partial(_features, version="plain")}
