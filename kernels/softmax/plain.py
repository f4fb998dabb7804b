"""The kernels that a learner writes first: a thread owns a query or a key, and asks all others.

    forward          (1), (2), (12); the keys are walked twice: for the maximum, and for the sums
    query_gradient   (7)-(9), (11), (13), dq and db. It also leaves delta for the next
    key_gradient     (6), (7), (9), (12), (13), dk and dv

Who sees whom is a device function, a constant of the compiler: `softmax` has that of lengths and
causality, `local` its own. Whether there are relative scores (`biased`) or dropout (`dropping`) is
one, too.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ..arrays import Array, a_thread_each, array_module, constant, kernel_dtype
from ..cuda import DeviceFunction, Kernel, cuda
from ..layers.dropout import random_word

NOTHING = np.empty(0, np.int64)  # in place of a pattern's arrays


@cuda.jit(device=True)
def all_see(i, j, last_query, last_key, offset, causal, pattern):  # type: ignore[no-untyped-def]
    """w_ij, where there is no pattern."""
    return i < last_query and j < last_key and (j <= i + offset or not causal)


@cuda.jit(device=True)
def column(distance, furthest):  # type: ignore[no-untyped-def]
    """Where the relative scores of a query have that of a distance (10)."""
    return min(max(distance, -furthest), furthest) + furthest


@cuda.jit(device=True)
def at_one_end(least, most, furthest):  # type: ignore[no-untyped-def]
    """Whether distances from `least` to `most` all have one column (10), an end; and which."""
    first = most <= -furthest
    return first or least >= furthest, 0 if first else 2 * furthest


@cache
def _score(real: Any, biased: bool) -> DeviceFunction:
    """s_ij. Backward must find these very bits again: exp(s - h) is off by what s is off by."""

    @cuda.jit(device=True)
    def score(query, key, relative_scores, n, h, i, j, offset, scale):  # type: ignore[no-untyped-def]
        s = real(0)
        for e in range(query.shape[3]):
            s += scale * query[n, h, i, e] * key[n, h, j, e]
        return s

    @cuda.jit(device=True)
    def biased_score(query, key, relative_scores, n, h, i, j, offset, scale):  # type: ignore[no-untyped-def]
        s = score(query, key, relative_scores, n, h, i, j, offset, scale)
        r = column(j - i - offset, relative_scores.shape[3] // 2)
        return s + scale * relative_scores[n, h, i, r]  # (10)

    return biased_score if biased else score


@cache
def _kept(real: Any, dropping: bool) -> DeviceFunction:
    """m_ij."""

    @cuda.jit(device=True)
    def kept(seed, n, h, i, j, dropped, survivor):  # type: ignore[no-untyped-def]
        return survivor if random_word(seed, n, h, i, j) >= dropped else real(0)  # (12)

    @cuda.jit(device=True)
    def all_kept(seed, n, h, i, j, dropped, survivor):  # type: ignore[no-untyped-def]
        return real(1)

    return kept if dropping else all_kept


@cache
def _forward_kernel(real: Any, biased: bool, dropping: bool, sees: DeviceFunction) -> Kernel:
    score, kept = _score(real, biased), _kept(real, dropping)

    @cuda.jit
    def forward(  # type: ignore[no-untyped-def]
        query, key, value, relative_scores, window, global_queries, gathered, landmarks, below,
        query_lengths, key_lengths, causal, offset, scale, seed, dropped, survivor, output, highest,
        inverse,
    ):  # fmt: skip
        """Takes what `fast.forward` takes, and writes the last three."""
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        pattern = window, global_queries, gathered, landmarks, below
        if i < output.shape[2]:
            h_i, d_i = real(-math.inf), real(0)
            for j in range(key.shape[2]):
                if sees(i, j, query_lengths[n], key_lengths[n], offset, causal, pattern):
                    s = score(query, key, relative_scores, n, h, i, j, offset, scale)
                    h_i = max(h_i, s)  # (1)
            for m in range(value.shape[3]):
                output[n, h, i, m] = real(0)
            for j in range(key.shape[2]):
                if sees(i, j, query_lengths[n], key_lengths[n], offset, causal, pattern):
                    s = score(query, key, relative_scores, n, h, i, j, offset, scale)
                    p = math.exp(s - h_i)
                    d_i += p  # (1)
                    p *= kept(seed, n, h, i, j, dropped, survivor)
                    for m in range(value.shape[3]):
                        output[n, h, i, m] += p * value[n, h, j, m]  # (12)
            inverse_i = real(1) / d_i if d_i > real(0) else real(0)
            for m in range(value.shape[3]):
                output[n, h, i, m] *= inverse_i  # (2)
            highest[n, h, i], inverse[n, h, i] = h_i, inverse_i

    return forward


@cache
def _query_gradient_kernel(real: Any, biased: bool, dropping: bool, sees: DeviceFunction) -> Kernel:
    score, kept = _score(real, biased), _kept(real, dropping)

    @cuda.jit
    def query_gradient(  # type: ignore[no-untyped-def]
        grad_output, output, highest, inverse, query, key, value, relative_scores, window,
        global_queries, gathered, landmarks, below, query_lengths, key_lengths, causal, offset,
        scale, seed, dropped, survivor, dq, delta, drelative,
    ):  # fmt: skip
        """Writes delta, and adds to dq and drelative."""
        i = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        pattern = window, global_queries, gathered, landmarks, below
        if i < query.shape[2]:
            delta_i = real(0)
            for m in range(value.shape[3]):
                delta_i += grad_output[n, h, i, m] * output[n, h, i, m]  # (8)
            delta[n, h, i] = delta_i
            for j in range(key.shape[2]):
                if sees(i, j, query_lengths[n], key_lengths[n], offset, causal, pattern):
                    s = score(query, key, relative_scores, n, h, i, j, offset, scale)
                    p = math.exp(s - highest[n, h, i]) * inverse[n, h, i]  # (2)
                    product = real(0)
                    for m in range(value.shape[3]):
                        product += grad_output[n, h, i, m] * value[n, h, j, m]
                    product *= kept(seed, n, h, i, j, dropped, survivor)
                    ds = p * (product - delta_i)  # (13)
                    for e in range(query.shape[3]):
                        dq[n, h, i, e] += scale * ds * key[n, h, j, e]  # (9)
                    if biased:
                        r = column(j - i - offset, relative_scores.shape[3] // 2)
                        drelative[n, h, i, r] += scale * ds  # (11)

    return query_gradient


@cache
def _key_gradient_kernel(real: Any, biased: bool, dropping: bool, sees: DeviceFunction) -> Kernel:
    score, kept = _score(real, biased), _kept(real, dropping)

    @cuda.jit
    def key_gradient(  # type: ignore[no-untyped-def]
        grad_output, highest, inverse, delta, query, key, value, relative_scores, window,
        global_queries, gathered, landmarks, below, query_lengths, key_lengths, causal, offset,
        scale, seed, dropped, survivor, dk, dv,
    ):  # fmt: skip
        """Adds to dk and dv."""
        j = cuda.grid(1)
        h, n = cuda.blockIdx.y, cuda.blockIdx.z
        pattern = window, global_queries, gathered, landmarks, below
        if j < key.shape[2]:
            for i in range(query.shape[2]):
                if sees(i, j, query_lengths[n], key_lengths[n], offset, causal, pattern):
                    s = score(query, key, relative_scores, n, h, i, j, offset, scale)
                    p = math.exp(s - highest[n, h, i]) * inverse[n, h, i]  # (2)
                    product = real(0)
                    for m in range(value.shape[3]):
                        product += grad_output[n, h, i, m] * value[n, h, j, m]
                    m_ij = kept(seed, n, h, i, j, dropped, survivor)
                    ds = p * (m_ij * product - delta[n, h, i])  # (13)
                    for m in range(value.shape[3]):
                        dv[n, h, j, m] += m_ij * p * grad_output[n, h, i, m]  # (12)
                    for e in range(query.shape[3]):
                        dk[n, h, j, e] += scale * ds * query[n, h, i, e]  # (9)

    return key_gradient


def forward(
    inputs: tuple[Array, ...], options: Any, pattern: Any, results: tuple[Array, ...]
) -> None:
    """Launch (1) and (2); arguments are those of `fast.forward`."""
    query, key, *_ = inputs
    batch, heads, length, _ = query.shape
    made = _forward_kernel(*kind(inputs, options), _sees(pattern))
    kernel = a_thread_each(made, length, heads, batch)
    kernel(*inputs, *pattern_arguments(pattern, key), *options, *results)


def backward(
    inputs: tuple[Array, ...], saved: tuple[Array, ...], options: Any, pattern: Any, dq: Array,
    dk: Array, dv: Array, drelative: Array,
) -> None:  # fmt: skip
    """Launch (6) to (9); arguments are those of `fast.backward`, the last four full of zeros."""
    g, output, *sums = saved
    query, key, *_ = inputs
    batch, heads, length, _ = query.shape
    constants = *kind(inputs, options), _sees(pattern)
    delta = array_module(g).empty_like(sums[0])
    arguments = *inputs, *pattern_arguments(pattern, key), *options
    of_queries = a_thread_each(_query_gradient_kernel(*constants), length, heads, batch)
    of_queries(g, output, *sums, *arguments, dq, delta, drelative)
    of_keys = a_thread_each(_key_gradient_kernel(*constants), key.shape[2], heads, batch)
    of_keys(g, *sums, delta, *arguments, dk, dv)


def kind(inputs: tuple[Array, ...], options: Any) -> tuple[Any, bool, bool]:
    """What all kernels are made for: numbers, with relative scores or without, and dropout."""
    query, *_, relative_scores = inputs
    return kernel_dtype(query), bool(relative_scores.size), bool(options.survivor != 1)


def pattern_arguments(pattern: Any, key: Array, rows: int = 1) -> tuple[Any, ...]:
    """A pattern as a kernel takes it; without one, what none reads."""
    if pattern is None:
        nothing = constant(NOTHING, key)
        return 0, 0, 0, nothing, nothing
    return pattern.arguments(key, rows)


def _sees(pattern: Any) -> DeviceFunction:
    return all_see if pattern is None else pattern.sees
