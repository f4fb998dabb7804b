"""Every planted bug is found; without one, the same hunt finds nothing."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from minitransformer_kernels import DataRace, checked

from ..cases import Variant
from ..properties import Operation
from .mutants import Mutant, killer, without_barriers
from .operations import (
    WIDE,
    bidirectional,
    chunked,
    delta,
    distances,
    fourier,
    fourier_causal,
    fourier_plain,
    local,
    naive,
    narrowed,
    ragged,
    recurrent,
    relative,
    relative_causal,
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
    import_module(f"{package}.chunked").__dict__["FEWEST_TOKENS"] = 8
    return chunked(package)


MUTANTS = [
    Mutant(
        "mix_not_rescaled",
        softmax,
        "softmax.py",
        "sums[c] = shrink * n_own[t + c]",
        "sums[c] = n_own[t + c]",
    ),
    Mutant(
        "causal_mask_off_by_one",
        softmax,
        "softmax.py",
        "score = sums[c] if start + j + c < seen",
        "score = sums[c] if start + j + c <= seen",
    ),
    Mutant(
        "ragged_tile_not_masked",
        softmax,
        "softmax.py",
        "score = sums[c] if start + j + c < seen",
        "score = sums[c] if not causal or start + j + c < seen",
    ),
    Mutant(
        "delta_dropped",
        softmax,
        "softmax.py",
        "ds[j + c, x] *= kept * sums[c] - delta_i",
        "ds[j + c, x] *= kept * sums[c]",
    ),
    Mutant(
        "scale_forgotten_in_dq",
        softmax,
        "softmax.py",
        "= scale * dq_own[t]",
        "= dq_own[t]",
    ),
    Mutant(
        "key_forgets_the_query_at_its_own_place",
        softmax,
        "softmax.py",
        "seen_from = j - offset if causal",
        "seen_from = j - offset + 1 if causal",
    ),
    Mutant(
        "another_mask_in_the_gradient_of_the_values",
        softmax_dropped,
        "softmax.py",
        "word = random_word(seed, n, h, i, j)",
        "word = random_word(seed, n, h, j, i)",
    ),
    Mutant(
        "survivors_not_scaled_up",
        softmax_dropped,
        "softmax.py",
        "word = random_word(seed, n, h, i, start + j)\n                    kept = survivor if",
        "word = random_word(seed, n, h, i, start + j)\n                    kept = real(1) if",
    ),
    Mutant(
        "dropped_from_the_sum_of_weights_too",
        softmax_dropped,
        "softmax.py",
        "                s[j, x] = kept * p  # (12)",
        "                s[j, x] = kept * p\n                total += p * (kept - real(1))",
    ),
    Mutant(
        "dropped_weight_keeps_its_gradient",
        softmax_dropped,
        "softmax.py",
        "ds[j + c, x] *= kept * sums[c] - delta_i",
        "ds[j + c, x] *= sums[c] - delta_i",
    ),
    Mutant(
        "distance_off_by_one",
        softmax_dropped,
        "softmax.py",
        "column = _column(j - i - offset, furthest)",
        "column = _column(j - i - offset - 1, furthest)",
    ),
    Mutant(
        "one_distance_as_two_ends",
        softmax_at_one_distance,
        "softmax.py",
        "if distance <= -furthest or furthest == 0:",
        "if distance <= -furthest:",
    ),
    Mutant(
        "gradient_of_an_end_not_scaled",
        softmax_dropped,
        "softmax.py",
        "= scale * total  # (11)",
        "= total",
    ),
    Mutant(
        "padded_keys_summed",
        bidirectional,
        "linear.py",
        "end = min(begin + span, lengths[n])",
        "end = min(begin + span, B.shape[2])",
    ),
    Mutant(
        "normaliser_missing_in_dk",
        bidirectional,
        "linear.py",
        "_gradient(value, R.X_transposed, ones,",
        "_gradient(value, R.X_transposed, zeros,",
    ),
    Mutant(
        "naive_causal_mask_off_by_one",
        naive,
        "linear.py",
        "if r < hidden:",
        "if r <= hidden:",
    ),
    Mutant(
        "gradient_of_the_mask_off_by_one",
        naive,
        "linear.py",
        "if i < last_a and j < last_b and way * (j - i) <= reach:",
        "if i < last_a and j < last_b and way * (j - i) < reach:",
    ),
    Mutant(
        "query_does_not_see_its_own_key",
        recurrent,
        "recurrent.py",
        "totals[u] += s * q_tile[t + u, first_row + r]  # (3)",
        "totals[u] += (s - k_tile[t + u, first_row + r] * v_tile[t + u, x])"
        " * q_tile[t + u, first_row + r]",
    ),
    Mutant(
        "values_masked_instead_of_keys",
        recurrent,
        "recurrent.py",
        "if is_key and e < E else real(0)",
        "if 0 <= p < key.shape[2] and e < E else real(0)",
    ),
    Mutant(
        "keys_after_the_last_query_forgotten",
        recurrent,
        "recurrent.py",
        "max(last_key, query_room + offset)",
        "query_room + offset",
    ),
    Mutant(
        "recurrent_normaliser_missing_in_dk",
        recurrent,
        "recurrent.py",
        "value, gn, query, ones_k, gd,",
        "value, gn, query, none_k, gd,",
    ),
    Mutant(
        "initial_state_missing_in_dq",
        recurrent,
        "recurrent.py",
        "_transposed(first.S)",
        "_transposed(0 * first.S)",
    ),
    Mutant(
        "reverse_scan_started_from_zero",
        recurrent,
        "recurrent.py",
        "_transposed(last.S)",
        "_transposed(0 * last.S)",
    ),
    Mutant(
        "reverse_scan_forgets_the_lag",
        recurrent,
        "recurrent.py",
        "reverse = Lq - Lk + query_offset",
        "reverse = query_offset",
    ),
    Mutant(
        "step_answers_before_it_learns",
        recurrent,
        "recurrent.py",
        "total += q * s  # (3)",
        "total += q * S[n, h, e, m]",
    ),
    Mutant(
        "chunk_mask_off_by_one",
        chunked,
        "chunked.py",
        "if past + j > tile + x:\n                                    a_own[r] = real(0)",
        "if past + j >= tile + x:\n                                    a_own[r] = real(0)",
    ),
    Mutant(
        "chunk_gradient_sees_the_future",
        chunked,
        "chunked.py",
        "if past + j > tile + x:\n                                    w_tile[j, x] = real(0)",
        "if past > tile:\n                                    w_tile[j, x] = real(0)",
    ),
    Mutant(
        "tile_reaches_into_the_next_chunk",
        chunked_by_24,
        "chunked.py",
        "is_key = 0 <= j < last_key and j < stop",
        "is_key = 0 <= j < last_key",
    ),
    Mutant(
        "state_answers_once_for_each_tile_of_a_chunk",
        chunked_by_24,
        "chunked.py",
        "if answers and past == start:\n                            for d in range(slice_):",
        "if answers:\n                            for d in range(slice_):",
    ),
    Mutant(
        "state_takes_in_the_last_tile_of_a_chunk_only",
        chunked_by_24,
        "chunked.py",
        "if tile + step >= stop:\n" + 28 * " " + "for first in range(0, group, at_once):\n"
        "                                e =",
        "if past + step >= stop:\n" + 28 * " " + "for first in range(0, group, at_once):\n"
        "                                e =",
    ),
    Mutant(
        "segment_starts_without_the_initial_state",
        chunked_in_segments,
        "chunked.py",
        "start[i] = start[i - 1] + end[i - 1]",
        "start[i] = (start[i - 1] if i > 1 else 0) + end[i - 1]",
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
        "relative.py",
        "embedding[:, k + low : k + high + 1]",
        "embedding[:, ::-1][:, k + low : k + high + 1]",
    ),
    Mutant(
        "near_keys_begin_too_late",
        relative_causal,
        "relative.py",
        "below=-FAR if naive else low + 1",
        "below=-FAR if naive else low + 2",
    ),
    Mutant(
        "far_sums_overlap",
        only_one_distance,
        "relative.py",
        "else FAR if naive else high,",
        "else FAR if naive else high - TILE,",
    ),
    Mutant(
        "one_distance_forgets_an_end",
        only_one_distance,
        "relative.py",
        "at_low += at_high",
        "at_low += real(0)",
    ),
    Mutant(
        "far_keys_not_counted_after",
        relative,
        "relative.py",
        "at_low * real(count_before) + at_high * real(count_after)",
        "at_low * real(count_before)",
    ),
    Mutant(
        "far_keys_without_their_normaliser",
        relative,
        "relative.py",
        "at_low = gd[b, h, row + i] * real(count_before)",
        "at_low = real(0)",
    ),
    Mutant(
        "embedding_gradient_forgets_an_end",
        relative,
        "relative.py",
        "dB[b, h, row + i, R - 1] = at_high * slope(F[b, h, row + i, R - 1])",
        "dB[b, h, row + i, R - 1] = real(0)",
    ),
    Mutant(
        "query_gradient_forgets_the_features",
        relative,
        "relative.py",
        "u_own[m, r] * slope(query[b, h, i, e])",
        "u_own[m, r]",
    ),
    Mutant(
        "values_forget_queries_before",
        relative,
        "relative.py",
        "total += high_before[n, h, begin, c]",
        "total += real(0) * high_before[n, h, begin, c]",
    ),
    Mutant(
        "weights_with_the_slope_of_exp",
        relative,
        "relative.py",
        "return -math.expm1(-f)",
        "return f",
    ),
    Mutant(
        "tail_off_by_one",
        relative_causal,
        "relative.py",
        "tile * TILE, oldest), fallen):",
        "tile * TILE, oldest), fallen - 1):",
    ),
    Mutant(
        "window_off_by_one",
        relative_causal,
        "relative.py",
        "j = fallen + w",
        "j = fallen + w - 1",
    ),
    Mutant(
        "tail_forgets_its_gradient",
        relative_causal,
        "relative.py",
        "d_tail = grad_tail + low_after[:, :, 0]",
        "d_tail = low_after[:, :, 0]",
    ),
    Mutant(
        "window_and_tail_exchange_a_gradient",
        relative_causal,
        "relative.py",
        "if j < last_key - window:",
        "if j <= last_key - window:",
    ),
    Mutant(
        "unreal_values_have_gradients",
        relative_causal,
        "relative.py",
        "oldest = -min(past[n], d_recent.shape[2])",
        "oldest = -d_recent.shape[2]",
    ),
    Mutant(
        "step_drops_a_value_early",
        relative_causal,
        "relative.py",
        "elif count > k:",
        "elif count >= k:",
    ),
    Mutant(
        "step_shifts_its_window_twice",
        relative_causal,
        "relative.py",
        "seen = recent[n, h, k - ago, m]",
        "seen = recent[n, h, k - 1 - ago, m]",
    ),
    Mutant(
        "phase_forgotten",
        fourier_causal,
        "fourier.py",
        "angle = phase[h, e]",
        "angle = 0.0",
    ),
    Mutant(
        "sine_forgets_the_amplitude",
        fourier_causal,
        "fourier.py",
        "amplitude[h, e] * q * sin[at, h, i, e]",
        "q * sin[at, h, i, e]",
    ),
    Mutant(
        "angles_of_the_first_sequence",
        fourier_causal,
        "fourier.py",
        "at = n % places.shape[0]",
        "at = 0",
    ),
    Mutant(
        "angle_gradient_mirrored",
        fourier_causal,
        "fourier.py",
        "across = of_sin * cos[at, h, i, e] - of_cos * sin[at, h, i, e]",
        "across = of_cos * sin[at, h, i, e] - of_sin * cos[at, h, i, e]",
    ),
    Mutant(
        "rotated_features_without_their_slope",
        fourier_causal,
        "fourier.py",
        "dq * slope(x[n, h, i, e])",
        "dq",
    ),
    Mutant(
        "frequencies_forget_the_keys",
        fourier_causal,
        "fourier.py",
        "da_of_queries + da_of_keys",
        "da_of_queries",
    ),
    Mutant(
        "shared_positions_of_the_first_sequence",
        fourier,
        "fourier.py",
        "dpositions.sum(axis=0, keepdims=True)",
        "dpositions[:1]",
    ),
    Mutant(
        "plain_denominator_missing_in_dk",
        fourier_plain,
        "fourier.py",
        "dkey + more_dkey",
        "dkey",
    ),
    Mutant(
        "plain_denominator_starts_from_zero",
        fourier_plain,
        "fourier.py",
        "LinearState(Z[..., None],",
        "LinearState(0 * Z[..., None],",
    ),
    Mutant(
        "landmarks_behind_the_window_counted_from_zero",
        local,
        "local.py",
        "return landmarks[u - before - (high - low) + below[high]]",
        "return landmarks[u - before - (high - low)]",
    ),
    Mutant(
        "landmarks_off_by_one",
        local,
        "local.py",
        "landmark |= j % stride == stride - 1",
        "landmark |= j % stride == 0",
    ),
    Mutant(
        "one_global_key_too_many",
        local,
        "local.py",
        "landmark = j < num_global",
        "landmark = j <= num_global",
    ),
    Mutant(
        "local_window_off_by_one",
        local,
        "local.py",
        "FAR if landmark else j + window",
        "FAR if landmark else j + window + 1",
    ),
    Mutant(
        "global_query_sees_the_future",
        local,
        "local.py",
        "FAR if is_global and not causal else p",
        "FAR if is_global else p",
    ),
    Mutant(
        "landmark_has_two_owners",
        local,
        "local.py",
        "mine = j < last_key and below[j] == below[min(j + 1, last_key)]",
        "mine = j < last_key",
    ),
    Mutant(
        "keys_forget_global_queries_before_them",
        local,
        "local.py",
        "before = 0 if causal else _clip(low, 0, global_queries)",
        "before = 0",
    ),
    Mutant(
        "keys_forget_the_last_query_that_sees_them",
        local,
        "local.py",
        "high = _clip(last + 1, low, end)",
        "high = _clip(last, low, end)",
    ),
    Mutant(
        "gathered_landmarks_start_at_the_wrong_query",
        local,
        "local.py",
        "first, last = first_key if causal else -FAR, FAR",
        "first, last = first_key + 1 if causal else -FAR, FAR",
    ),
    Mutant(
        "residual_forgets_the_token_before",
        delta,
        "delta.py",
        "for s in range(t):",
        "for s in range(t - 1):",
    ),
    Mutant(
        "rate_forgotten_inside_a_tile",
        delta,
        "delta.py",
        "writes[t, s] = product * beta_tile[s]",
        "writes[t, s] = product",
    ),
    Mutant(
        "rate_forgotten_from_tile_to_tile",
        delta,
        "delta.py",
        "totals[i] = beta_tile[t + i] * r_tile[t + i, x]",
        "totals[i] = r_tile[t + i, x]",
    ),
    Mutant(
        "padded_keys_write",
        delta,
        "delta.py",
        "is_token = 0 <= j < last",
        "is_token = 0 <= j < room",
    ),
    Mutant(
        "backward_runs_forwards",
        delta,
        "delta.py",
        "cu_seqlens), -1, None)",
        "cu_seqlens), 1, None)",
    ),
    Mutant(
        "key_forgets_its_own_residual",
        delta,
        "delta.py",
        "dk -= of_query",
        "dk -= 0 * of_query",
    ),
    Mutant(
        "key_forgets_later_residuals",
        delta,
        "delta.py",
        "dk -= of_key",
        "dk -= 0 * of_key",
    ),
    Mutant(
        "residual_sees_its_own_write",
        delta,
        "delta.py",
        "query_offset=-1, **keys",
        "query_offset=0, **keys",
    ),
    Mutant(
        "rate_with_the_gradient_of_a_write",
        delta,
        "delta.py",
        'einsum("nhlm,nhlm->nhl", residual, du)',
        'einsum("nhlm,nhlm->nhl", u, du)',
    ),
    Mutant(
        "residuals_missing_in_the_state_gradient",
        delta,
        "delta.py",
        "by_output.S - by_residuals.S",
        "by_output.S",
    ),
    Mutant(
        "step_adds_without_looking",
        delta,
        "delta.py",
        "r -= W[n, h, e, m] * key[n, h, e]  # (1)",
        "r -= real(0)",
    ),
]


# Each needs one of the large kernels again.
SLOW = (
    "dropped_from_the_sum_of_weights_too",
    "dropped_weight_keeps_its_gradient",
    "distance_off_by_one",
    "gradient_of_an_end_not_scaled",
    "tile_reaches_into_the_next_chunk",
    "state_answers_once_for_each_tile_of_a_chunk",
    "state_takes_in_the_last_tile_of_a_chunk_only",
    "chunk_gradient_sees_the_future",
    "chunk_mask_off_by_one",
    "keys_forget_the_last_query_that_sees_them",
    "key_forgets_the_query_at_its_own_place",
    "step_drops_a_value_early",
    "one_distance_forgets_an_end",
    "far_keys_not_counted_after",
    "far_keys_without_their_normaliser",
    "embedding_gradient_forgets_an_end",
    "query_gradient_forgets_the_features",
    "values_forget_queries_before",
    "weights_with_the_slope_of_exp",
    "window_and_tail_exchange_a_gradient",
    "step_shifts_its_window_twice",
    "landmarks_behind_the_window_counted_from_zero",
    "local_window_off_by_one",
    "landmark_has_two_owners",
    "global_query_sees_the_future",
    "keys_forget_global_queries_before_them",
    "gathered_landmarks_start_at_the_wrong_query",
    "phase_forgotten",
    "sine_forgets_the_amplitude",
    "rotated_features_without_their_slope",
    "plain_denominator_missing_in_dk",
    "rate_forgotten_inside_a_tile",
    "rate_forgotten_from_tile_to_tile",
    "padded_keys_write",
    "step_adds_without_looking",
)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=pytest.mark.nightly if mutant.name in SLOW else [])
        for mutant in MUTANTS
    ],
    ids=str,
)
def test_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as operation:
        assert killer(narrowed(operation), examples=60), f"{mutant} passes every check"


BARRIERS = [
    *without_barriers("softmax.py", softmax, "forward|key_gradient"),
    *without_barriers("softmax.py", softmax_dropped, "query_gradient"),
    *without_barriers("linear.py", naive, "naive_.*"),
    *without_barriers("linear.py", bidirectional, "(?!naive_).*"),
    *without_barriers("recurrent.py", recurrent),
    *without_barriers("chunked.py", chunked),
    *without_barriers("guards.py", recurrent),
    *without_barriers("relative.py", relative_causal, "(?!step).*"),
    *without_barriers("fourier.py", fourier_causal),
    *without_barriers("local.py", local),
    *without_barriers("delta.py", delta),
]
# Without one of these, results are still right on the CPU, whose order of threads is one of many.
SURVIVORS = (
    "softmax_forward_4",
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


def test_survivors_are_barriers_of_the_kernels() -> None:
    assert set(SURVIVORS) <= {mutant.name for mutant in BARRIERS}


def test_an_unchanged_copy_survives(tmp_path: Path) -> None:
    same = replace(MUTANTS[0], name="unchanged", new=MUTANTS[0].old)
    with same.imported(tmp_path) as operation:
        assert killer(narrowed(operation), examples=5) is None


@pytest.mark.parametrize("text", ["no such text", "syncthreads"])
def test_a_mutant_that_no_longer_fits_fails_loudly(text: str) -> None:
    with pytest.raises(LookupError, match=r"must occur once in softmax\.py"):
        replace(MUTANTS[0], old=text).source()
