"""Every planted bug is found; without one, the same hunt finds nothing."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from minitransformer_kernels import DataRace, OutOfBounds, checked

from ..cases import Variant
from ..properties import Operation
from . import operations
from .mutants import Mutant, bugs, hunts, killer, misfits, without_barriers
from .operations import NARROW, distances, in_several_tiles, narrowed, ragged


def softmax_at_one_distance(package: str) -> Operation:
    """Softmax attention with k = 0."""
    operation = operations.softmax_dropped(package)
    variants = tuple(each for each in operation.domain.variants if each.sizes["k"] == 0)
    return replace(operation, domain=replace(operation.domain, variants=variants))


def softmax_dropped_on_lanes(package: str) -> Operation:
    """The same in blocks made for a CPU, several tiles long."""
    return operations.on_lanes(operations.softmax_dropped(package), package)


def softmax_of_large_scores(package: str) -> Operation:
    """The plain kernels where exponentials overflow, but for a maximum."""
    operation = operations.softmax_plain(package)
    variant = replace(operation.domain.variants[0], options={"scale": 1e4})
    return replace(operation, domain=replace(operation.domain, variants=(variant,)))


def only_one_distance(package: str) -> Operation:
    """Relative attention with k = 0."""
    operation = operations.relative(package)
    variant = Variant("float64", 5, 3, **distances(0, "softplus", "feature"))
    return replace(operation, domain=replace(operation.domain, variants=(variant,)))


def chunked_by_24(package: str) -> Operation:
    """Chunks of a tile and a half."""
    return operations.chunked(package, chunk_size=24)


def chunked_in_segments(package: str) -> Operation:
    """Even short sequences shared out among several blocks."""
    import_module(f"{package}.chunked.fast").__dict__["FEWEST_TOKENS"] = 8
    return operations.chunked(package)


# For each bug a piece of text, which its file has once, and what takes its place.
MUTANTS = [
    *bugs(operations.softmax, "softmax/fast.py",
        mix_not_rescaled=("sums[c] = shrink * n_own[t + c]", "sums[c] = n_own[t + c]"),
        causal_mask_off_by_one=(
            "score = sums[c] if sees else", "score = sums[c] if sees or j == seen else"),
        ragged_tile_not_masked=(
            "score = sums[c] if sees else", "score = sums[c] if sees or not causal else"),
        delta_dropped=(
            "ds[r + c, x] * (kept * sums[c] - delta_i)", "ds[r + c, x] * (kept * sums[c])"),
        future_values_times_zero=(
            "sums[c] = cuda.selp(s[r, x] != real(0), more, sums[c])", "sums[c] = more"),
        scale_forgotten_in_dq=("= scale * dq_own[t]", "= dq_own[t]"),
        key_forgets_the_query_at_its_own_place=(
            "seen_from = j - offset if causal", "seen_from = j - offset + 1 if causal"),
    ),
    *bugs(operations.softmax_on_lanes, "softmax/fast.py",
        last_key_of_a_tile_forgotten_in_dq=("for u in range(rows):", "for u in range(rows - 1):"),
        dq_of_the_last_tile_alone=("e] += scale * sums[c]", "e] = scale * sums[c]"),
        tile_of_dq_not_scaled=("e] += scale * sums[c]", "e] += sums[c]"),
        keys_unseen_times_zero=(
            "cuda.selp(k[e, r] - k[e, r] == real(0), k[e, r], real(0))", "k[e, r]"),
        values_all_taken_for_finite=(
            """n_own[t]
            careful = cuda.syncthreads_or(int32(odd != real(0)))""",
            """n_own[t]
            careful = cuda.syncthreads_or(int32(odd > real(0)))"""),
        second_walk_adds_to_the_first=(
            "n_own[t] = real(0)\n            h_i, d_i = real",
            "n_own[t] = n_own[t] if careful else real(0)\n            h_i, d_i = real"),
    ),
    *bugs(operations.softmax_few, "softmax/few.py",
        query_sees_the_next_key=("j <= i + offset or", "j <= i + offset + 1 or"),
        last_key_forgotten=("sees = r_own < end and", "sees = r_own < end - 1 and"),
        span_mixed_at_its_own_scale=(
            "n_i += shrink * mixed[n, h, span, i, m]", "n_i += mixed[n, h, span, i, m]"),
        span_counted_at_its_own_scale=(
            "d_i += shrink * total[n, h, span, i]", "d_i += total[n, h, span, i]"),
        distances_of_the_span_alone=(
            "column(j - i - offset, furthest)", "column(r_own - i - offset, furthest)"),
    ),
    *bugs(operations.softmax_dropped, "softmax/fast.py",
        another_mask_in_the_gradient_of_the_values=(
            """word = random_word(seed, n, h, i, j)
                            kept = survivor if word >= dropped else real(0)
                        slope = p""",
            """word = random_word(seed, n, h, j, i)
                            kept = survivor if word >= dropped else real(0)
                        slope = p"""),
        survivors_not_scaled_up=(
            "kept = survivor if word >= dropped else real(0)\n                    s[r, x] =",
            "kept = real(1) if word >= dropped else real(0)\n                    s[r, x] ="),
        dropped_from_the_sum_of_weights_too=(
            "s[r, x] = kept * p  # (12)",
            "s[r, x] = kept * p\n                    d_i += p * (kept - real(1))"),
        dropped_weight_keeps_its_gradient=(
            "ds[r + c, x] * (kept * sums[c] - delta_i)", "ds[r + c, x] * (sums[c] - delta_i)"),
        distance_off_by_one=(
            "else:\n                            r_ij = column(j - i - offset,",
            "else:\n                            r_ij = column(j - i - offset - 1,"),
        gradient_of_an_end_not_scaled=("= scale * of_end  # (11)", "= of_end"),
    ),
    *bugs(softmax_dropped_on_lanes, "softmax/fast.py",
        near_keys_of_a_tile_taken_for_far=(
            "apart + step - 1, furthest)\n                    end_i",
            "apart, furthest)\n                    end_i"),
        near_keys_of_a_tile_have_the_gradient_of_far_ones=(
            "apart - rows + 1, apart + step - 1, furthest)\n                end_i",
            "apart, apart + step - 1, furthest)\n                end_i"),
        near_queries_of_a_tile_taken_for_far=(
            "at_one_end(apart - step + 1,", "at_one_end(apart + 1,"),
    ),
    *bugs(softmax_at_one_distance, "softmax/fast.py",
        one_distance_as_two_ends=(
            "if distance <= -furthest or furthest == 0:", "if distance <= -furthest:"),
    ),
    *bugs(operations.softmax_plain, "softmax/plain.py",
        plain_delta_dropped=("ds = p * (product - delta_i)", "ds = p * product"),
        plain_query_sees_the_next_key=("j <= i + offset or", "j <= i + offset + 1 or"),
        plain_scale_forgotten_in_dk=(
            "+= scale * ds * query[n, h, i, e]", "+= ds * query[n, h, i, e]"),
        plain_output_not_divided=("output[n, h, i, m] *= inverse_i", "output[n, h, i, m] *= 1"),
    ),
    *bugs(softmax_of_large_scores, "softmax/plain.py",
        plain_maximum_forgotten=("h_i = max(h_i, s)", "h_i = real(0)"),
        plain_maximum_is_the_last_score=("h_i = max(h_i, s)", "h_i = s"),
    ),
    *bugs(operations.softmax_dropped_plain, "softmax/plain.py",
        plain_another_mask_for_the_values=(
            "m_ij = kept(seed, n, h, i, j,", "m_ij = kept(seed, n, h, j, i,"),
        plain_dropped_from_the_sum_of_weights_too=(
            '''                    d_i += p  # (1)
                    p *= kept(seed, n, h, i, j, dropped, survivor)''',
            '''                    p *= kept(seed, n, h, i, j, dropped, survivor)
                    d_i += p'''),
        plain_distance_mirrored=("_scores[n, h, i, r]", "_scores[n, h, i, -1 - r]"),
        plain_gradient_of_distances_not_scaled=("r] += scale * ds", "r] += ds"),
    ),
    *bugs(operations.bidirectional, "linear/fast.py",
        padded_keys_summed=(
            "end = min(begin + span, lengths[n])", "end = min(begin + span, B.shape[2])"),
    ),
    *bugs(operations.bidirectional, "linear/__init__.py",
        normaliser_missing_in_dk=(
            "gradient(value, R_transposed, ones,", "gradient(value, R_transposed, zeros,"),
    ),
    *bugs(operations.naive, "linear/fast.py",
        naive_causal_mask_off_by_one=("if r < hidden:", "if r <= hidden:"),
        naive_future_values_times_zero=(
            "n_own[m, r] = cuda.selp(a != real(0), more, n_own[m, r])", "n_own[m, r] = more"),
        naive_future_keys_times_zero=(
            "y_own[m, r] = cuda.selp(w != real(0), more, y_own[m, r])", "y_own[m, r] = more"),
        gradient_of_the_mask_off_by_one=(
            "if i < last_a and j < last_b and way * (j - i) <= reach:",
            "if i < last_a and j < last_b and way * (j - i) < reach:"),
    ),
    *bugs(operations.recurrent, "recurrent/fast.py",
        query_does_not_see_its_own_key=(
            "totals[u] += s * q_tile[t + u, first_row + r]  # (3)",
            "totals[u] += (s - k_tile[t + u, first_row + r] * v_tile[t + u, x])"
            " * q_tile[t + u, first_row + r]"),
        values_masked_instead_of_keys=(
            "if is_key and e < E else real(0)", "if 0 <= p < key.shape[2] and e < E else real(0)"),
        keys_after_the_last_query_forgotten=(
            "max(last_key, query_room + offset)", "query_room + offset"),
    ),
    *bugs(operations.recurrent, "recurrent/__init__.py",
        recurrent_normaliser_missing_in_dk=(
            "value, gn, query, ones_k, gd,", "value, gn, query, none_k, gd,"),
        initial_state_missing_in_dq=("_transposed(S)", "_transposed(0 * S)"),
        reverse_scan_started_from_zero=("_transposed(dS)", "_transposed(0 * dS)"),
        reverse_scan_forgets_the_lag=(
            "reverse = query.shape[2] - key.shape[2] + offset", "reverse = offset"),
    ),
    *bugs(operations.recurrent, "recurrent/plain.py",
        step_answers_before_it_learns=("total += q * s  # (3)", "total += q * S[n, h, e, m]"),
    ),
    *bugs(operations.chunked, "chunked/fast.py",
        chunk_of_future_values_times_zero=(
            "n_own[w, r] = more if past + t <= tile + row else n_own[w, r]", "n_own[w, r] = more"),
        chunk_mask_off_by_one=(
            "if past + j > tile + x:\n                                    a_own[r] = real(0)",
            "if past + j >= tile + x:\n                                    a_own[r] = real(0)"),
        chunk_gradient_sees_the_future=(
            "y_own[w, r] = more if past + t <= tile + row else y_own[w, r]", "y_own[w, r] = more"),
    ),
    *bugs(chunked_by_24, "chunked/fast.py",
        tile_reaches_into_the_next_chunk=(
            "is_key = 0 <= j < last_key and j < stop", "is_key = 0 <= j < last_key"),
        state_answers_once_for_each_tile_of_a_chunk=(
            "if answers and past == start:\n                            for d in range(slice_):",
            "if answers:\n                            for d in range(slice_):"),
        state_takes_in_the_last_tile_of_a_chunk_only=(
            """if tile + step >= stop:
                            for first in range(0, group, at_once):
                                e =""",
            """if past + step >= stop:
                            for first in range(0, group, at_once):
                                e ="""),
    ),
    *bugs(chunked_in_segments, "chunked/fast.py",
        segment_starts_without_the_initial_state=(
            "start[i] = start[i - 1] + end[i - 1]",
            "start[i] = (start[i - 1] if i > 1 else 0) + end[i - 1]"),
    ),
    *bugs(operations.recurrent, "guards.py",
        gradient_through_a_closed_guard=(
            "return real(1) if d > eps else real(0)  # (1)", "return real(1)"),
    ),
    *bugs(operations.naive_plain, "linear/plain.py",
        plain_causal_mask_off_by_one=(
            "min(key_lengths[n], i + reach + 1)", "min(key_lengths[n], i + reach)"),
        plain_gradient_of_the_mask_off_by_one=(
            "and way * (j - i) <= reach", "and way * (j - i) < reach"),
    ),
    *bugs(operations.bidirectional_plain, "linear/plain.py",
        plain_padded_keys_summed=("for j in range(lengths[n]):", "for j in range(C.shape[2]):"),
        plain_normaliser_missing_in_the_gradient=(
            "total = a[n, h, i] * z[n, h, c]", "total = real(0)"),
    ),
    *bugs(operations.recurrent_plain, "recurrent/plain.py",
        plain_normaliser_starts_from_zero=("Z0[..., None].copy()", "0 * Z0[..., None]"),
        plain_keys_after_the_last_query_forgotten=("max(last_key, room + offset)", "room + offset"),
        plain_scan_forgets_its_extra_vector=(
            "total = a[batch, h, first_a + i] * x[n, h, c]", "total = real(0)"),
    ),
    *bugs(operations.chunked_plain, "chunked/plain.py",
        plain_chunk_mask_off_by_one=("min(i + offset + 1, last_key)", "min(i + offset, last_key)"),
        plain_state_takes_in_its_own_chunk=(
            "stop = begin + number * chunk", "stop = begin + (number + 1) * chunk"),
        plain_chunk_gradient_without_the_state=(
            "total = a[batch, h, row] * x[number, n, h, c]",
            "total = a[batch, h, row] * x[0, n, h, c]"),
    ),
    *bugs(operations.recurrent, "feature_maps.py",
        features_with_the_slope_of_the_identity=(
            "return real(1) if x > real(0) else math.exp(x)  # (2)", "return real(1)"),
    ),
    *bugs(operations.relative, "relative/setting.py",
        distances_mirrored=(
            "embedding[:, k + low : k + high + 1]",
            "embedding[:, ::-1][:, k + low : k + high + 1]"),
    ),
    *bugs(operations.relative_causal, "relative/setting.py",
        near_keys_begin_too_late=(
            "below=-FAR if naive else low + 1", "below=-FAR if naive else low + 2"),
    ),
    *bugs(only_one_distance, "relative/setting.py",
        far_sums_overlap=("else FAR if naive else high,", "else FAR if naive else high - 32,"),
    ),
    *bugs(only_one_distance, "relative/fast.py",
        one_distance_forgets_an_end=("at_low += at_high", "at_low += real(0)"),
    ),
    *bugs(operations.relative, "relative/fast.py",
        far_keys_not_counted_after=(
            "at_low * real(count_before) + at_high * real(count_after)",
            "at_low * real(count_before)"),
        far_keys_without_their_normaliser=(
            "at_low = gd[b, h, row + i] * real(count_before)", "at_low = real(0)"),
        embedding_gradient_forgets_an_end=(
            "dB[b, h, row + i, R - 1] = at_high * slope(F[b, h, row + i, R - 1])",
            "dB[b, h, row + i, R - 1] = real(0)"),
        values_forget_queries_before=(
            "total += high_before[n, h, begin, c]",
            "total += real(0) * high_before[n, h, begin, c]"),
    ),
    *bugs(operations.relative, "relative/__init__.py",
        query_gradient_forgets_the_features=(
            "raw=query, feature_map=query_map,", 'raw=query, feature_map="identity",'),
    ),
    *bugs(operations.relative, "relative/score_maps.py",
        weights_with_the_slope_of_exp=("return -math.expm1(-f)", "return f"),
    ),
    *bugs(operations.relative_causal, "relative/fast.py",
        tail_off_by_one=("tile * TILE, oldest), fallen):", "tile * TILE, oldest), fallen - 1):"),
        window_off_by_one=("j = fallen + w", "j = fallen + w - 1"),
        tail_forgets_its_gradient=(
            "return grad_state[0] + far[0][:, :, 0]", "return far[0][:, :, 0]"),
        window_and_tail_exchange_a_gradient=(
            "if j < last_key - window:", "if j <= last_key - window:"),
        unreal_values_have_gradients=(
            "oldest = -min(past[n], d_recent.shape[2])", "oldest = -d_recent.shape[2]"),
        step_drops_a_value_early=("elif count > k:", "elif count >= k:"),
        step_shifts_its_window_twice=(
            "seen = recent[n, h, k - ago, m]", "seen = recent[n, h, k - 1 - ago, m]"),
    ),
    *bugs(operations.relative_plain, "relative/plain.py",
        plain_distance_off_by_one=("distance - low, 0", "distance - low - 1, 0"),
        plain_weights_without_their_slope=("ds * slope(F[b, h, row, r])", "ds"),
    ),
    *bugs(operations.relative_causal_plain, "relative/plain.py",
        plain_window_off_by_one=("if place < 0:", "if place <= 0:"),
    ),
    *bugs(operations.fourier_causal, "fourier/plain.py",
        phase_forgotten=("angle = phase[h, e]", "angle = 0.0"),
        sine_forgets_the_amplitude=(
            "amplitude[h, e] * q * sin[at, h, i, e]", "q * sin[at, h, i, e]"),
        angle_gradient_mirrored=(
            "across = of_sin * cos[at, h, i, e] - of_cos * sin[at, h, i, e]",
            "across = of_cos * sin[at, h, i, e] - of_sin * cos[at, h, i, e]"),
        rotated_features_without_their_slope=("dq * slope(x[n, h, i, e])", "dq"),
    ),
    *bugs(operations.fourier_causal, "fourier/fast.py",
        angles_of_the_first_sequence=("at = n % places.shape[0]", "at = 0"),
    ),
    *bugs(operations.fourier_causal_plain, "fourier/plain.py",
        plain_places_of_the_first_sequence=("places[n % places.shape[0], i, p]", "places[0, i, p]"),
        plain_positions_forget_a_head=("for h in range(dangle.shape[1]):", "for h in range(1):"),
    ),
    *bugs(operations.fourier_causal, "fourier/__init__.py",
        frequencies_forget_the_keys=("da_of_queries + da_of_keys", "da_of_queries"),
    ),
    *bugs(operations.fourier, "fourier/__init__.py",
        shared_positions_of_the_first_sequence=(
            "dpositions.sum(axis=0, keepdims=True)", "dpositions[:1]"),
    ),
    *bugs(operations.fourier_plain_denominator, "fourier/__init__.py",
        plain_denominator_missing_in_dk=("dkey + more_dkey", "dkey"),
        plain_denominator_starts_from_zero=(
            "LinearState(Z[..., None],", "LinearState(0 * Z[..., None],"),
    ),
    *bugs(operations.fourier_sum, "fourier/__init__.py",
        sums_are_divided=('return "none" if denominator', 'return guard if denominator'),
        sums_have_the_gradient_of_a_fraction=(
            "guard=_guard(denominator, guard), eps=eps,\n    )", "guard=guard, eps=eps,\n    )"),
    ),
    *bugs(operations.local, "local/__init__.py",
        landmarks_off_by_one=(
            "landmark |= j % stride == stride - 1", "landmark |= j % stride == 0"),
        landmarks_behind_the_window_counted_from_zero=(
            "j = landmarks[j - high + below[high]]", "j = landmarks[j - high]"),
        one_global_key_too_many=(
            "landmark = j < self.num_global", "landmark = j <= self.num_global"),
        local_window_off_by_one=(
            "FAR if landmark else j + window", "FAR if landmark else j + window + 1"),
        global_query_sees_the_future=(
            "FAR if is_global and not causal else p", "FAR if is_global else p"),
        landmark_has_two_owners=(
            "if 0 <= j < last_key and below[j] == below[j + 1]:", "if 0 <= j < last_key:"),
        keys_forget_global_queries_before_them=(
            "before = 0 if causal else _clip(low, 0, global_queries)", "before = 0"),
        keys_forget_the_last_query_that_sees_them=(
            "high = _clip(last + 1, low, end)", "high = _clip(last, low, end)"),
        gathered_landmarks_start_at_the_wrong_query=(
            "first, last = key if causal else -FAR, FAR",
            "first, last = key + 1 if causal else -FAR, FAR"),
    ),
    *bugs(operations.local_plain, "local/__init__.py",
        plain_query_misses_a_range_that_ends_there=(
            "return since <= last and", "return since < last and"),
        plain_keys_of_padding_are_seen=("if j >= last_key:", "if j > last_key:"),
    ),
    *bugs(operations.delta_plain, "delta/plain.py",
        plain_residual_as_if_nothing_were_held=(
            "r_t -= W[n, h, e, m] * key[b, h, t, e]", "r_t -= real(0)"),
        plain_padded_keys_write=("if j < last:", "if j < room:"),
    ),
    *bugs(operations.delta, "delta/fast.py",
        residual_forgets_the_token_before=("for s in range(t):", "for s in range(t - 1):"),
        rate_forgotten_inside_a_tile=(
            "writes[t, s] = product * beta_tile[s]", "writes[t, s] = product"),
        rate_forgotten_from_tile_to_tile=(
            "totals[i] = beta_tile[t + i] * r_tile[t + i, x]", "totals[i] = r_tile[t + i, x]"),
        padded_keys_write=("is_token = 0 <= j < last", "is_token = 0 <= j < room"),
        tokens_answer_before_they_write=("answers[i] += w * q_tile", "answers[i] += W[e] * q_tile"),
        step_adds_without_looking=("r -= W[n, h, e, m] * key[n, h, e]  # (1)", "r -= real(0)"),
        key_misses_its_own_query_inside_a_tile=("for s in range(t + 1):", "for s in range(t):"),
        queries_forgotten_from_tile_to_tile=(
            "write -= q_tile[first_row + e, t + i] * g_own[i]", "write -= real(0)"),
        queries_before_all_keys_forgotten=(
            "low, high = min(0, offset), max(query_room + offset, room)\n        begin, way",
            "low, high = 0, max(query_room + offset, room)\n        begin, way"),
        query_misses_the_write_of_its_token=(
            "of_query[i] += w * g_tile", "of_query[i] += W[m] * g_tile"),
        key_forgets_its_write=("total += dk[b, h, first + j, e]", "total += real(0)"),
        last_loss_of_a_group_forgotten=("W[m] = w - lost", "W[m] = w"),
    ),
    *bugs(operations.delta_plain, "delta/__init__.py",
        backward_runs_forwards=("way=-1)", "way=1)"),
        key_forgets_its_own_residual=("dk -= of_query", "dk -= 0 * of_query"),
        key_forgets_later_residuals=("dk -= of_key", "dk -= 0 * of_key"),
        residual_sees_its_own_write=("query_offset=-1)", "query_offset=0)"),
        residuals_missing_in_the_state_gradient=("by_output.S - by_residuals", "by_output.S"),
    ),
    *bugs(operations.delta, "delta/__init__.py",
        rate_with_the_gradient_of_a_write=("residual, du)  # (11)", "residual, dr)  # (11)"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mutant", hunts(MUTANTS, "room"), ids=str)
def test_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as operation:
        assert killer(narrowed(operation), examples=60), f"{mutant} passes every check"


# Barriers of a list of rows, which the kernels have only where they walk one.
LISTED = "softmax_forward_1", "softmax_query_gradient_2", "softmax_key_gradient_1"

SOFTMAX_BARRIERS = [
    *without_barriers("softmax/fast.py", operations.softmax, "forward|key_gradient"),
    *without_barriers("softmax/fast.py", operations.softmax_dropped, "query_gradient"),
]
BARRIERS = [
    *(replace(x, operation=operations.local) if x.name in LISTED else x for x in SOFTMAX_BARRIERS),
    *without_barriers("softmax/few.py", operations.softmax_few),
    *without_barriers("linear/fast.py", operations.naive, "naive_.*"),
    *without_barriers("linear/fast.py", operations.bidirectional, "(?!naive_).*"),
    *without_barriers("recurrent/fast.py", operations.recurrent),
    *without_barriers("chunked/fast.py", operations.chunked),
    *without_barriers("guards.py", operations.recurrent),
    *without_barriers("relative/fast.py", operations.relative_causal, "(?!step).*"),
    *without_barriers("fourier/fast.py", operations.fourier_causal),
    *without_barriers("delta/fast.py", operations.delta),
]
# Without one of these, results are still right on the CPU, whose order of threads is one of many.
SURVIVORS = (
    "recurrent_forward_3", "softmax_forward_5", "linear_naive_forward_6", "linear_gradient_2",
    "guards_normaliser_1", "delta_residual_3",
)  # fmt: skip


@pytest.mark.nightly  # by day matmul's barriers stand for all
@pytest.mark.parametrize("mutant", BARRIERS, ids=str)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as operation, checked(), pytest.raises(DataRace) as caught:
        operation.run(ragged(operation, in_several_tiles(operation)).problem())
    assert f"_{caught.value.kernel}_" in mutant.name


UNGUARDED = [
    *bugs(operations.naive, "tiles.py",
        values_read_beyond_their_width=(
            "if first + t < last and column + c < rows.shape[3]:", "if first + t < last:"),
    ),
    *bugs(operations.local, "softmax/fast.py",
        values_of_landmarks_read_beyond_their_width=(
            """if j < last_key and m < M:
                                v[r, m] = value[n, h, j, m]
                    cuda.syncthreads()""",
            """if j < last_key:
                                v[r, m] = value[n, h, j, m]
                    cuda.syncthreads()"""),
    ),
]  # fmt: skip


@pytest.mark.nightly
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


def test_every_planted_text_is_in_its_file(request: pytest.FixtureRequest) -> None:
    """In whichever list of whichever test, by day or by night; one more is not, and is found."""
    wrong = replace(MUTANTS[0], old="no such text")
    test = SimpleNamespace(callspec=SimpleNamespace(params={"mutant": wrong}))
    with pytest.raises(LookupError) as told:
        wrong.source()
    assert [*misfits([*request.session.items, test])] == [str(told.value)]


@pytest.mark.parametrize("text", ["no such text", "syncthreads"])
def test_a_mutant_that_no_longer_fits_fails_loudly(text: str) -> None:
    with pytest.raises(LookupError, match=f"must occur once in {MUTANTS[0].file}"):
        replace(MUTANTS[0], old=text).source()
