"""Every planted bug is found; without one, the same hunt finds nothing."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from minitransformer_kernels import DataRace, OutOfBounds, checked

from ..cases import Variant
from ..properties import Operation
from .mutants import Mutant, killer, without_barriers
from .operations import (
    NARROW,
    WIDE,
    bidirectional,
    bidirectional_plain,
    chunked,
    chunked_plain,
    delta,
    delta_plain,
    distances,
    fourier,
    fourier_causal,
    fourier_causal_plain,
    fourier_plain_denominator,
    local,
    naive,
    naive_plain,
    narrowed,
    ragged,
    recurrent,
    recurrent_plain,
    relative,
    relative_causal,
    relative_causal_plain,
    relative_plain,
    softmax,
    softmax_dropped,
)


def softmax_at_one_distance(package: str) -> Operation:
    """Softmax attention with k = 0."""
    operation = softmax_dropped(package)
    variants = tuple(each for each in operation.domain.variants if each.sizes["k"] == 0)
    return replace(operation, domain=replace(operation.domain, variants=variants))


def only_one_distance(package: str) -> Operation:
    """Relative attention with k = 0."""
    operation = relative(package)
    variant = Variant("float64", 5, 3, **distances(0, "softplus", "feature"))
    return replace(operation, domain=replace(operation.domain, variants=(variant,)))


def chunked_by_24(package: str) -> Operation:
    """Chunks of a tile and a half."""
    return chunked(package, chunk_size=24)


def chunked_in_segments(package: str) -> Operation:
    """Even short sequences shared out among several blocks."""
    import_module(f"{package}.chunked.fast").__dict__["FEWEST_TOKENS"] = 8
    return chunked(package)


MUTANTS = [
    Mutant(
        "mix_not_rescaled",
        softmax,
        "softmax/fast.py",
        "sums[c] = shrink * n_own[t + c]",
        "sums[c] = n_own[t + c]",
    ),
    Mutant(
        "causal_mask_off_by_one",
        softmax,
        "softmax/fast.py",
        "score = sums[c] if sees else",
        "score = sums[c] if sees or j == seen else",
    ),
    Mutant(
        "ragged_tile_not_masked",
        softmax,
        "softmax/fast.py",
        "score = sums[c] if sees else",
        "score = sums[c] if sees or not causal else",
    ),
    Mutant(
        "delta_dropped",
        softmax,
        "softmax/fast.py",
        "ds[r + c, x] *= kept * sums[c] - delta_i",
        "ds[r + c, x] *= kept * sums[c]",
    ),
    Mutant(
        "scale_forgotten_in_dq",
        softmax,
        "softmax/fast.py",
        "= scale * dq_own[t]",
        "= dq_own[t]",
    ),
    Mutant(
        "key_forgets_the_query_at_its_own_place",
        softmax,
        "softmax/fast.py",
        "seen_from = j - offset if causal",
        "seen_from = j - offset + 1 if causal",
    ),
    Mutant(
        "another_mask_in_the_gradient_of_the_values",
        softmax_dropped,
        "softmax/fast.py",
        """word = random_word(seed, n, h, i, j)
                        kept = survivor if word >= dropped else real(0)
                    ds[r + c, x] = p""",
        """word = random_word(seed, n, h, j, i)
                        kept = survivor if word >= dropped else real(0)
                    ds[r + c, x] = p""",
    ),
    Mutant(
        "survivors_not_scaled_up",
        softmax_dropped,
        "softmax/fast.py",
        "word = random_word(seed, n, h, i, j)\n                    kept = survivor if",
        "word = random_word(seed, n, h, i, j)\n                    kept = real(1) if",
    ),
    Mutant(
        "dropped_from_the_sum_of_weights_too",
        softmax_dropped,
        "softmax/fast.py",
        "                s[r, x] = kept * p  # (12)",
        "                s[r, x] = kept * p\n                d_i += p * (kept - real(1))",
    ),
    Mutant(
        "dropped_weight_keeps_its_gradient",
        softmax_dropped,
        "softmax/fast.py",
        "ds[r + c, x] *= kept * sums[c] - delta_i",
        "ds[r + c, x] *= sums[c] - delta_i",
    ),
    Mutant(
        "distance_off_by_one",
        softmax_dropped,
        "softmax/fast.py",
        """near = min(i, query.shape[2] - 1)
                        column = _column(j - i - offset,""",
        """near = min(i, query.shape[2] - 1)
                        column = _column(j - i - offset - 1,""",
    ),
    Mutant(
        "one_distance_as_two_ends",
        softmax_at_one_distance,
        "softmax/fast.py",
        "if distance <= -furthest or furthest == 0:",
        "if distance <= -furthest:",
    ),
    Mutant(
        "gradient_of_an_end_not_scaled",
        softmax_dropped,
        "softmax/fast.py",
        "= scale * of_end  # (11)",
        "= of_end",
    ),
    Mutant(
        "padded_keys_summed",
        bidirectional,
        "linear/fast.py",
        "end = min(begin + span, lengths[n])",
        "end = min(begin + span, B.shape[2])",
    ),
    Mutant(
        "normaliser_missing_in_dk",
        bidirectional,
        "linear/__init__.py",
        "gradient(value, R_transposed, ones,",
        "gradient(value, R_transposed, zeros,",
    ),
    Mutant(
        "naive_causal_mask_off_by_one",
        naive,
        "linear/fast.py",
        "if r < hidden:",
        "if r <= hidden:",
    ),
    Mutant(
        "gradient_of_the_mask_off_by_one",
        naive,
        "linear/fast.py",
        "if i < last_a and j < last_b and way * (j - i) <= reach:",
        "if i < last_a and j < last_b and way * (j - i) < reach:",
    ),
    Mutant(
        "query_does_not_see_its_own_key",
        recurrent,
        "recurrent/fast.py",
        "totals[u] += s * q_tile[t + u, first_row + r]  # (3)",
        "totals[u] += (s - k_tile[t + u, first_row + r] * v_tile[t + u, x])"
        " * q_tile[t + u, first_row + r]",
    ),
    Mutant(
        "values_masked_instead_of_keys",
        recurrent,
        "recurrent/fast.py",
        "if is_key and e < E else real(0)",
        "if 0 <= p < key.shape[2] and e < E else real(0)",
    ),
    Mutant(
        "keys_after_the_last_query_forgotten",
        recurrent,
        "recurrent/fast.py",
        "max(last_key, query_room + offset)",
        "query_room + offset",
    ),
    Mutant(
        "recurrent_normaliser_missing_in_dk",
        recurrent,
        "recurrent/__init__.py",
        "value, gn, query, ones_k, gd,",
        "value, gn, query, none_k, gd,",
    ),
    Mutant(
        "initial_state_missing_in_dq",
        recurrent,
        "recurrent/__init__.py",
        "_transposed(S)",
        "_transposed(0 * S)",
    ),
    Mutant(
        "reverse_scan_started_from_zero",
        recurrent,
        "recurrent/__init__.py",
        "_transposed(dS)",
        "_transposed(0 * dS)",
    ),
    Mutant(
        "reverse_scan_forgets_the_lag",
        recurrent,
        "recurrent/__init__.py",
        "reverse = query.shape[2] - key.shape[2] + offset",
        "reverse = offset",
    ),
    Mutant(
        "step_answers_before_it_learns",
        recurrent,
        "recurrent/plain.py",
        "total += q * s  # (3)",
        "total += q * S[n, h, e, m]",
    ),
    Mutant(
        "chunk_mask_off_by_one",
        chunked,
        "chunked/fast.py",
        "if past + j > tile + x:\n                                    a_own[r] = real(0)",
        "if past + j >= tile + x:\n                                    a_own[r] = real(0)",
    ),
    Mutant(
        "chunk_gradient_sees_the_future",
        chunked,
        "chunked/fast.py",
        "if past + j > tile + x:\n                                    w_tile[j, x] = real(0)",
        "if past > tile:\n                                    w_tile[j, x] = real(0)",
    ),
    Mutant(
        "tile_reaches_into_the_next_chunk",
        chunked_by_24,
        "chunked/fast.py",
        "is_key = 0 <= j < last_key and j < stop",
        "is_key = 0 <= j < last_key",
    ),
    Mutant(
        "state_answers_once_for_each_tile_of_a_chunk",
        chunked_by_24,
        "chunked/fast.py",
        "if answers and past == start:\n                            for d in range(slice_):",
        "if answers:\n                            for d in range(slice_):",
    ),
    Mutant(
        "state_takes_in_the_last_tile_of_a_chunk_only",
        chunked_by_24,
        "chunked/fast.py",
        "if tile + step >= stop:\n" + 28 * " " + "for first in range(0, group, at_once):\n"
        "                                e =",
        "if past + step >= stop:\n" + 28 * " " + "for first in range(0, group, at_once):\n"
        "                                e =",
    ),
    Mutant(
        "segment_starts_without_the_initial_state",
        chunked_in_segments,
        "chunked/fast.py",
        "start[i] = start[i - 1] + end[i - 1]",
        "start[i] = (start[i - 1] if i > 1 else 0) + end[i - 1]",
    ),
    Mutant(
        "blind_queries_are_divided_by_the_guard",
        recurrent,
        "guards.py",
        "-visible.query_offset if visible.causal and only_keys else 0",
        "0",
    ),
    Mutant(
        "plain_causal_mask_off_by_one",
        naive_plain,
        "linear/plain.py",
        "min(key_lengths[n], i + reach + 1)",
        "min(key_lengths[n], i + reach)",
    ),
    Mutant(
        "plain_gradient_of_the_mask_off_by_one",
        naive_plain,
        "linear/plain.py",
        "and way * (j - i) <= reach",
        "and way * (j - i) < reach",
    ),
    Mutant(
        "plain_padded_keys_summed",
        bidirectional_plain,
        "linear/plain.py",
        "for j in range(lengths[n]):",
        "for j in range(C.shape[2]):",
    ),
    Mutant(
        "plain_normaliser_missing_in_the_gradient",
        bidirectional_plain,
        "linear/plain.py",
        "total = a[n, h, i] * z[n, h, c]",
        "total = real(0)",
    ),
    Mutant(
        "plain_normaliser_starts_from_zero",
        recurrent_plain,
        "recurrent/plain.py",
        "z[e] = Z[n, h, e]",
        "z[e] = real(0)",
    ),
    Mutant(
        "plain_keys_after_the_last_query_forgotten",
        recurrent_plain,
        "recurrent/plain.py",
        "max(last_key, room + offset)",
        "room + offset",
    ),
    Mutant(
        "plain_scan_forgets_its_extra_vector",
        recurrent_plain,
        "recurrent/plain.py",
        "total = a[batch, h, first_a + i] * x[n, h, c]",
        "total = real(0)",
    ),
    Mutant(
        "plain_chunk_mask_off_by_one",
        chunked_plain,
        "chunked/plain.py",
        "min(i + offset + 1, last_key)",
        "min(i + offset, last_key)",
    ),
    Mutant(
        "plain_state_takes_in_its_own_chunk",
        chunked_plain,
        "chunked/plain.py",
        "stop = begin + number * chunk",
        "stop = begin + (number + 1) * chunk",
    ),
    Mutant(
        "plain_chunk_gradient_without_the_state",
        chunked_plain,
        "chunked/plain.py",
        "total = a[batch, h, row] * x[number, n, h, c]",
        "total = a[batch, h, row] * x[0, n, h, c]",
    ),
    Mutant(
        "gradient_through_a_closed_guard",
        recurrent,
        "guards.py",
        "return real(1) if d > eps else real(0)  # (1)",
        "return real(1)",
    ),
    Mutant(
        "features_with_the_slope_of_the_identity",
        recurrent,
        "feature_maps.py",
        "return real(1) if x > real(0) else math.exp(x)  # (2)",
        "return real(1)",
    ),
    Mutant(
        "distances_mirrored",
        relative,
        "relative/setting.py",
        "embedding[:, k + low : k + high + 1]",
        "embedding[:, ::-1][:, k + low : k + high + 1]",
    ),
    Mutant(
        "near_keys_begin_too_late",
        relative_causal,
        "relative/setting.py",
        "below=-FAR if naive else low + 1",
        "below=-FAR if naive else low + 2",
    ),
    Mutant(
        "far_sums_overlap",
        only_one_distance,
        "relative/setting.py",
        "else FAR if naive else high,",
        "else FAR if naive else high - 32,",
    ),
    Mutant(
        "one_distance_forgets_an_end",
        only_one_distance,
        "relative/fast.py",
        "at_low += at_high",
        "at_low += real(0)",
    ),
    Mutant(
        "far_keys_not_counted_after",
        relative,
        "relative/fast.py",
        "at_low * real(count_before) + at_high * real(count_after)",
        "at_low * real(count_before)",
    ),
    Mutant(
        "far_keys_without_their_normaliser",
        relative,
        "relative/fast.py",
        "at_low = gd[b, h, row + i] * real(count_before)",
        "at_low = real(0)",
    ),
    Mutant(
        "embedding_gradient_forgets_an_end",
        relative,
        "relative/fast.py",
        "dB[b, h, row + i, R - 1] = at_high * slope(F[b, h, row + i, R - 1])",
        "dB[b, h, row + i, R - 1] = real(0)",
    ),
    Mutant(
        "query_gradient_forgets_the_features",
        relative,
        "relative/fast.py",
        "u_own[m, r] * slope(query[b, h, i, e])",
        "u_own[m, r]",
    ),
    Mutant(
        "values_forget_queries_before",
        relative,
        "relative/fast.py",
        "total += high_before[n, h, begin, c]",
        "total += real(0) * high_before[n, h, begin, c]",
    ),
    Mutant(
        "weights_with_the_slope_of_exp",
        relative,
        "relative/score_maps.py",
        "return -math.expm1(-f)",
        "return f",
    ),
    Mutant(
        "tail_off_by_one",
        relative_causal,
        "relative/fast.py",
        "tile * TILE, oldest), fallen):",
        "tile * TILE, oldest), fallen - 1):",
    ),
    Mutant(
        "window_off_by_one",
        relative_causal,
        "relative/fast.py",
        "j = fallen + w",
        "j = fallen + w - 1",
    ),
    Mutant(
        "tail_forgets_its_gradient",
        relative_causal,
        "relative/fast.py",
        "return grad_state[0] + far[0][:, :, 0]",
        "return far[0][:, :, 0]",
    ),
    Mutant(
        "window_and_tail_exchange_a_gradient",
        relative_causal,
        "relative/fast.py",
        "if j < last_key - window:",
        "if j <= last_key - window:",
    ),
    Mutant(
        "unreal_values_have_gradients",
        relative_causal,
        "relative/fast.py",
        "oldest = -min(past[n], d_recent.shape[2])",
        "oldest = -d_recent.shape[2]",
    ),
    Mutant(
        "step_drops_a_value_early",
        relative_causal,
        "relative/fast.py",
        "elif count > k:",
        "elif count >= k:",
    ),
    Mutant(
        "step_shifts_its_window_twice",
        relative_causal,
        "relative/fast.py",
        "seen = recent[n, h, k - ago, m]",
        "seen = recent[n, h, k - 1 - ago, m]",
    ),
    Mutant(
        "plain_distance_off_by_one",
        relative_plain,
        "relative/plain.py",
        "distance - low, 0",
        "distance - low - 1, 0",
    ),
    Mutant(
        "plain_weights_without_their_slope",
        relative_plain,
        "relative/plain.py",
        "ds * slope(F[b, h, row, r])",
        "ds",
    ),
    Mutant(
        "plain_window_off_by_one",
        relative_causal_plain,
        "relative/plain.py",
        "if place < 0:",
        "if place <= 0:",
    ),
    Mutant(
        "phase_forgotten",
        fourier_causal,
        "fourier/plain.py",
        "angle = phase[h, e]",
        "angle = 0.0",
    ),
    Mutant(
        "sine_forgets_the_amplitude",
        fourier_causal,
        "fourier/plain.py",
        "amplitude[h, e] * q * sin[at, h, i, e]",
        "q * sin[at, h, i, e]",
    ),
    Mutant(
        "angles_of_the_first_sequence",
        fourier_causal,
        "fourier/fast.py",
        "at = n % places.shape[0]",
        "at = 0",
    ),
    Mutant(
        "angle_gradient_mirrored",
        fourier_causal,
        "fourier/plain.py",
        "across = of_sin * cos[at, h, i, e] - of_cos * sin[at, h, i, e]",
        "across = of_cos * sin[at, h, i, e] - of_sin * cos[at, h, i, e]",
    ),
    Mutant(
        "rotated_features_without_their_slope",
        fourier_causal,
        "fourier/plain.py",
        "dq * slope(x[n, h, i, e])",
        "dq",
    ),
    Mutant(
        "plain_places_of_the_first_sequence",
        fourier_causal_plain,
        "fourier/plain.py",
        "places[n % places.shape[0], i, p]",
        "places[0, i, p]",
    ),
    Mutant(
        "plain_positions_forget_a_head",
        fourier_causal_plain,
        "fourier/plain.py",
        "for h in range(dangle.shape[1]):",
        "for h in range(1):",
    ),
    Mutant(
        "frequencies_forget_the_keys",
        fourier_causal,
        "fourier/__init__.py",
        "da_of_queries + da_of_keys",
        "da_of_queries",
    ),
    Mutant(
        "shared_positions_of_the_first_sequence",
        fourier,
        "fourier/__init__.py",
        "dpositions.sum(axis=0, keepdims=True)",
        "dpositions[:1]",
    ),
    Mutant(
        "plain_denominator_missing_in_dk",
        fourier_plain_denominator,
        "fourier/__init__.py",
        "dkey + more_dkey",
        "dkey",
    ),
    Mutant(
        "plain_denominator_starts_from_zero",
        fourier_plain_denominator,
        "fourier/__init__.py",
        "LinearState(Z[..., None],",
        "LinearState(0 * Z[..., None],",
    ),
    Mutant(
        "landmarks_behind_the_window_counted_from_zero",
        local,
        "local/__init__.py",
        "j = landmarks[j - high + below[high]]",
        "j = landmarks[j - high]",
    ),
    Mutant(
        "landmarks_off_by_one",
        local,
        "local/__init__.py",
        "landmark |= j % self.stride == self.stride - 1",
        "landmark |= j % self.stride == 0",
    ),
    Mutant(
        "one_global_key_too_many",
        local,
        "local/__init__.py",
        "landmark = j < self.num_global",
        "landmark = j <= self.num_global",
    ),
    Mutant(
        "local_window_off_by_one",
        local,
        "local/__init__.py",
        "FAR if landmark else j + window",
        "FAR if landmark else j + window + 1",
    ),
    Mutant(
        "global_query_sees_the_future",
        local,
        "local/__init__.py",
        "FAR if is_global and not causal else p",
        "FAR if is_global else p",
    ),
    Mutant(
        "landmark_has_two_owners",
        local,
        "local/__init__.py",
        "if 0 <= j < last_key and below[j] == below[j + 1]:",
        "if 0 <= j < last_key:",
    ),
    Mutant(
        "keys_forget_global_queries_before_them",
        local,
        "local/__init__.py",
        "before = 0 if causal else _clip(low, 0, global_queries)",
        "before = 0",
    ),
    Mutant(
        "keys_forget_the_last_query_that_sees_them",
        local,
        "local/__init__.py",
        "high = _clip(last + 1, low, end)",
        "high = _clip(last, low, end)",
    ),
    Mutant(
        "gathered_landmarks_start_at_the_wrong_query",
        local,
        "local/__init__.py",
        "first, last = key if causal else -FAR, FAR",
        "first, last = key + 1 if causal else -FAR, FAR",
    ),
    Mutant(
        "plain_residual_as_if_nothing_were_held",
        delta_plain,
        "delta/plain.py",
        "r_t -= W[n, h, e, m] * key[b, h, t, e]",
        "r_t -= real(0)",
    ),
    Mutant(
        "plain_padded_keys_write",
        delta_plain,
        "delta/plain.py",
        "if j < last:",
        "if j < room:",
    ),
    Mutant(
        "residual_forgets_the_token_before",
        delta,
        "delta/fast.py",
        "for s in range(t):",
        "for s in range(t - 1):",
    ),
    Mutant(
        "rate_forgotten_inside_a_tile",
        delta,
        "delta/fast.py",
        "writes[t, s] = product * beta_tile[s]",
        "writes[t, s] = product",
    ),
    Mutant(
        "rate_forgotten_from_tile_to_tile",
        delta,
        "delta/fast.py",
        "totals[i] = beta_tile[t + i] * r_tile[t + i, x]",
        "totals[i] = r_tile[t + i, x]",
    ),
    Mutant(
        "padded_keys_write",
        delta,
        "delta/fast.py",
        "is_token = 0 <= j < last",
        "is_token = 0 <= j < room",
    ),
    Mutant(
        "backward_runs_forwards",
        delta,
        "delta/__init__.py",
        "way=-1)",
        "way=1)",
    ),
    Mutant(
        "key_forgets_its_own_residual",
        delta,
        "delta/__init__.py",
        "dk -= of_query",
        "dk -= 0 * of_query",
    ),
    Mutant(
        "key_forgets_later_residuals",
        delta,
        "delta/__init__.py",
        "dk -= of_key",
        "dk -= 0 * of_key",
    ),
    Mutant(
        "residual_sees_its_own_write",
        delta,
        "delta/__init__.py",
        "query_offset=-1)",
        "query_offset=0)",
    ),
    Mutant(
        "rate_with_the_gradient_of_a_write",
        delta,
        "delta/__init__.py",
        'einsum("nhlm,nhlm->nhl", residual, du)',
        'einsum("nhlm,nhlm->nhl", u, du)',
    ),
    Mutant(
        "residuals_missing_in_the_state_gradient",
        delta,
        "delta/__init__.py",
        "by_output.S - by_residuals.S",
        "by_output.S",
    ),
    Mutant(
        "step_adds_without_looking",
        delta,
        "delta/fast.py",
        "r -= W[n, h, e, m] * key[n, h, e]  # (1)",
        "r -= real(0)",
    ),
]


# A bug in a kernel is a kernel to compile: by default the first of each file stands for all.
FIRST = {mutant.file: mutant for mutant in reversed(MUTANTS)}


def planted(mutant: Mutant) -> Any:
    """A bug, and whether only nightly runs hunt it."""
    always = mutant is FIRST[mutant.file] or "@cuda.jit" not in mutant.source()
    return pytest.param(mutant, marks=[] if always else pytest.mark.nightly)


@pytest.mark.parametrize("mutant", map(planted, MUTANTS), ids=str)
def test_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as operation:
        assert killer(narrowed(operation), examples=60), f"{mutant} passes every check"


# Barriers of a list of rows, which the kernels have only where they walk one.
LISTED = "softmax_forward_1", "softmax_query_gradient_2", "softmax_key_gradient_1"

SOFTMAX_BARRIERS = [
    *without_barriers("softmax/fast.py", softmax, "forward|key_gradient"),
    *without_barriers("softmax/fast.py", softmax_dropped, "query_gradient"),
]
BARRIERS = [
    *(replace(x, operation=local) if x.name in LISTED else x for x in SOFTMAX_BARRIERS),
    *without_barriers("linear/fast.py", naive, "naive_.*"),
    *without_barriers("linear/fast.py", bidirectional, "(?!naive_).*"),
    *without_barriers("recurrent/fast.py", recurrent),
    *without_barriers("chunked/fast.py", chunked),
    *without_barriers("guards.py", recurrent),
    *without_barriers("relative/fast.py", relative_causal, "(?!step).*"),
    *without_barriers("fourier/fast.py", fourier_causal),
    *without_barriers("delta/fast.py", delta),
]
# Without one of these, results are still right on the CPU, whose order of threads is one of many.
SURVIVORS = (
    "softmax_forward_5",
    "linear_naive_forward_6",
    "linear_gradient_2",
    "recurrent_forward_3",
    "guards_normaliser_1",
    "delta_residual_3",
)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=[] if mutant.name in SURVIVORS[::3] else pytest.mark.nightly)
        for mutant in BARRIERS
    ],
    ids=str,
)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as operation, checked(), pytest.raises(DataRace) as caught:
        widest = max(operation.domain.variants[: WIDE + 2], key=lambda v: v.value_dim)
        operation.run(ragged(operation, widest).problem())
    assert f"_{caught.value.kernel}_" in mutant.name


UNGUARDED = [
    Mutant(
        "values_read_beyond_their_width",
        naive,
        "linear/fast.py",
        "if start + s + t < last_key and m < M:",
        "if start + s + t < last_key:",
    ),
    Mutant(
        "values_of_landmarks_read_beyond_their_width",
        local,
        "softmax/fast.py",
        "if j < last_key and m < M:\n                        v[r, m] = value[n, h, j, m]\n"
        "            cuda.syncthreads()\n\n            own_highest",
        "if j < last_key:\n                        v[r, m] = value[n, h, j, m]\n"
        "            cuda.syncthreads()\n\n            own_highest",
    ),
]


@pytest.mark.parametrize("mutant", UNGUARDED, ids=str)
def test_mutant_reads_out_of_bounds(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as operation, checked(), pytest.raises(OutOfBounds):
        operation.run(ragged(operation, operation.domain.variants[NARROW]).problem())


def test_survivors_are_barriers_of_the_kernels() -> None:
    assert set(SURVIVORS) <= {mutant.name for mutant in BARRIERS}


def test_an_unchanged_copy_survives(tmp_path: Path) -> None:
    same = replace(MUTANTS[0], name="unchanged", new=MUTANTS[0].old)
    with same.imported(tmp_path) as operation:
        assert killer(narrowed(operation), examples=5) is None


@pytest.mark.parametrize("text", ["no such text", "syncthreads"])
def test_a_mutant_that_no_longer_fits_fails_loudly(text: str) -> None:
    with pytest.raises(LookupError, match=f"must occur once in {MUTANTS[0].file}"):
        replace(MUTANTS[0], old=text).source()
