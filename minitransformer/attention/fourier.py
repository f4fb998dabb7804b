"""Linear attention with Fourier relative positions."""

from typing import Any

import numpy as np

from minitransformer_kernels import fourier
from minitransformer_kernels.checks import one_of
from minitransformer_kernels.fourier import DENOMINATORS, PARTS, FourierState

from ..device import as_array
from ..tensor import Tensor
from .algorithms import KernelizedAttention, attend, attend_token, prepared, token_features
from .checks import Lengths, check_inputs, check_state, check_token, guard_options
from .features import FeatureMap


class FourierLinearAttention(KernelizedAttention):
    """Linear attention whose features turn with their positions, by learned frequencies."""

    kernels = fourier
    axes = 2, 2, 2, 1, 1, None, None, None
    state = FourierState

    @classmethod
    def check(cls, name: str, state: Any, count: int, *inputs: Tensor, **options: Any) -> None:
        """Check the state, whose features are those of turned keys."""
        key, value = inputs[1:3]
        turned = PARTS[options["form"]] * key.shape[-1]
        Z = "N H E" if options["denominator"] == "plain" else "N H D"
        check_state(name, state, {"S": "N H D M", "Z": Z}, key, value, N=count, D=turned)


def fourier_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Any,
    key_positions: Any,
    frequency: Tensor,
    phase: Tensor,
    amplitude: Tensor,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: FeatureMap = "elu",
    causal: bool = False,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    cu_seqlens: Any = None,
    algorithm: str = "auto",
    initial_state: FourierState | None = None,
    return_state: bool = False,
    guard: str | None = None,
    eps: float | None = None,
) -> Any:
    """Linear attention in which each feature weighs by a harmonic of the distance, in linear cost.

        o_i = sum_j s_ij v_j / guard(sum_j s_ij)
        s_ij = sum_e φ(q_i)_e φ(k_j)_e (1 + c_e cos(b_e + a_e . (p_i - r_j)))

    over the keys j that query i sees; without the 1 in the form "cos".

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs but positions.
        value: (N, H, Lk, M).
        query_positions: p, a Tensor or array (N, Lq, P), or (1, Lq, P) for the whole batch; taken
            as float64. Times, or places in a space of P dimensions, in any unit.
        key_positions: r, (N, Lk, P) or (1, Lk, P).
        frequency: a, (H, E, P), in radians per unit of position.
        phase: b, (H, E), in radians.
        amplitude: c, (H, E); up to 1 in size, the weights of "one_plus_cos" are positive.
        form: "one_plus_cos", or "cos", S2's literal one, whose denominator can vanish.
        denominator: "rotated" for the sum above, "plain" for sum_j φ(q_i).φ(k_j) (Su et al. 2021),
            "none" for S2's own formula, a sum over the keys that nothing divides.
        feature_map: φ, as in `linear_attention`; with features of your own, E is their number.
        causal: whether query i sees only the keys j <= i + query_offset, wherever they stand.
        query_offset: the index of the first query among the keys.
        query_lengths, key_lengths, algorithm: as in `linear_attention`.
        initial_state, return_state: as there.
        cu_seqlens: as there; positions are then (1, T, P).
        guard: as there; by default "signed" for a "rotated" denominator of the form
            "cos", else "clamp". Without a denominator there is nothing to guard.
        eps: the guard's constant.

    Returns:
        (N, H, Lq, M); with `return_state` that and a FourierState, S (N, H, D, M) and Z, with
        D = 3E, or 2E for "cos".

    Raises what `linear_attention` does.

    Source: S2; with a = pi / (2 T), b = 0, c = 1, form "cos" and "relu" it is cosFormer (Qin et al.
    2022).

    >>> same = Tensor([[[[0.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> places = [[[0.0], [1.0], [2.0]]]
    >>> wave = Tensor([[[3.14159265]]]), Tensor([[0.0]]), Tensor([[1.0]])  # 1 + cos(pi (i - j))
    >>> output = fourier_linear_attention(same, same, value, places, places, *wave)
    >>> [round(o, 4) for o in output.numpy().ravel().tolist()]
    [6.0, 6.0, 6.0]
    >>> output = fourier_linear_attention(same, same, value, places, places, *wave, causal=True)
    >>> [round(o, 4) for o in output.numpy().ravel().tolist()]
    [3.0, 6.0, 6.0]
    """
    name = "fourier_linear_attention"
    query, key, options = prepared(
        name, query, key, value, causal=causal, query_offset=query_offset,
        query_lengths=query_lengths, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        feature_map=feature_map, algorithm=algorithm, eps=eps,
        guard=guard or _fourier_guard(form, denominator), fraction=denominator != "none",
        carries="initial_state and return_state" if initial_state or return_state else "",
    )  # fmt: skip
    places = [
        _positions(name, "query_positions", query_positions, query.shape[0], query.shape[2], query),
        _positions(name, "key_positions", key_positions, key.shape[0], key.shape[2], query),
    ]
    wave = frequency, phase, amplitude
    options |= _fourier_options(name, query, places, wave, form, denominator)
    inputs = query, key, value, *places, *wave
    how = initial_state, return_state, options
    return attend(name, FourierLinearAttention, inputs, *how, fourier=form)


def fourier_linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_position: Any,
    key_position: Any,
    frequency: Tensor,
    phase: Tensor,
    amplitude: Tensor,
    state: FourierState | None = None,
    *,
    form: str = "one_plus_cos",
    denominator: str = "rotated",
    feature_map: FeatureMap = "elu",
    guard: str | None = None,
    eps: float | None = None,
) -> tuple[Tensor, FourierState]:
    """Decode one token with Fourier positions, from a state that no past token adds to.

    Args:
        query: (N, H, E), float32 or float64.
        key: (N, H, E).
        value: (N, H, M).
        query_position: (N, P), or (1, P) for the whole batch.
        key_position: (N, P) or (1, P).
        frequency: (H, E, P).
        phase: (H, E).
        amplitude: (H, E).
        state: what the token before left behind, which is not changed; None: no keys yet.
        form: this and the rest as in `fourier_linear_attention`.

    Returns and raises what `linear_attention_step` does.
    """
    name = "fourier_linear_attention_step"
    check_token(name, query, key, value)
    guard = guard or _fourier_guard(form, denominator)
    scalable = guard != "add" and denominator != "none"
    query, key, features = token_features(name, feature_map, query, key, scalable)
    places = [
        _positions(name, "query_position", query_position, query.shape[0], None, query),
        _positions(name, "key_position", key_position, key.shape[0], None, query),
    ]
    wave = frequency, phase, amplitude
    options = {
        **_fourier_options(name, query, places, wave, form, denominator),
        **guard_options(name, guard, eps),
        "feature_map": features,
    }
    inputs = query, key, value, *places, *wave
    return attend_token(name, FourierLinearAttention, inputs, state, options)


def _fourier_guard(form: str, denominator: str) -> str:
    """Return the guard that suits denominators of one sign, or of both."""
    return "signed" if (form, denominator) == ("cos", "rotated") else "clamp"


def _positions(
    name: str, argument: str, positions: Any, batch: int, length: int | None, query: Tensor
) -> Tensor:
    """Return positions as a float64 Tensor, (N or 1, L, P), or (N or 1, P) of a token.

    An array is copied: backward needs what it holds now.
    """
    places: Tensor = positions
    if not isinstance(positions, Tensor):
        places = Tensor(as_array(positions, query.device, np.float64).copy())
    rows = () if length is None else (length,)
    shape = places.shape
    if len(shape) != 2 + len(rows) or shape[0] not in (1, batch) or shape[1:-1] != rows:
        expected = ", ".join([f"{batch} or 1", *map(str, rows), "P"])
        raise ValueError(
            f"{name}: {argument} must have the shape ({expected}), P numbers for each place, got "
            f"{shape}; places on a line are numpy.arange(L)[None, :, None]"
        )
    if places.dtype != np.float64:
        raise ValueError(
            f"{name}: {argument} must be float64, got {places.dtype}: an angle of float32 is "
            f"wrong where positions are large; convert it: {argument}.to(dtype=numpy.float64)"
        )
    return places


def _fourier_options(
    name: str,
    query: Tensor,
    places: list[Tensor],
    wave: tuple[Tensor, Tensor, Tensor],
    form: str,
    denominator: str,
) -> dict[str, Any]:
    """Check what only Fourier attention has; return its options."""
    one_of(name, "form", form, PARTS)
    one_of(name, "denominator", denominator, DENOMINATORS)
    sizes = {"H": query.shape[1], "E": query.shape[-1], "P": places[0].shape[-1]}
    letters = {"frequency": "H E P", "phase": "H E", "amplitude": "H E"}
    layout = {n: (x, text) for (n, text), x in zip(letters.items(), wave, strict=True)}
    check_inputs(name, layout, ("query", query), sizes)
    if places[1].shape[-1] != sizes["P"]:
        raise ValueError(
            f"{name}: positions of queries and keys must have as many dimensions, got "
            f"{places[0].shape} and {places[1].shape}"
        )
    return {"form": form, "denominator": denominator}
