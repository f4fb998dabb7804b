"""The delta rule, fast weights that are corrected, and its step."""

from typing import Any

from minitransformer_kernels import algorithms, delta
from minitransformer_kernels.checks import flag, one_of
from minitransformer_kernels.delta import DeltaState
from minitransformer_kernels.features import normalised
from minitransformer_kernels.features.normalised import NORMALISERS
from minitransformer_kernels.visible import Visible

from ..device import Array
from ..function import Context, Function
from ..tensor import Tensor
from .algorithms import KernelizedAttention, attend, attend_token, features_of, token_features
from .checks import Lengths, check_sequences, check_token, without_padding
from .features import FeatureMap

ALGORITHMS = "auto", *(name for name, each in algorithms.ALGORITHMS.items() if each.has_states)


class DeltaAttention(KernelizedAttention):
    """W_t^T q_t with W_t = W_{t-1} + beta_t k_t (v_t - W_{t-1}^T k_t)^T."""

    kernels = delta
    axes = 2, 2, 2, 2
    state = DeltaState
    letters = ("N H E M",)


class NormalizedFeatures(Function):
    """φ(x) over its sum or its length, row by row."""

    @staticmethod
    def forward(ctx: Context, x: Array, **options: Any) -> Array:
        """Return the features, of the shape of x."""
        features, inverse = normalised.forward(x, **options)
        # Slopes are those of x; what a row was divided by is one number, and is not summed again.
        ctx.save(x, features, inverse, options)
        return features

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array:
        """Return dx."""
        *saved, options = ctx.saved
        return normalised.backward(gradient, *saved, **options)


def delta_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    *,
    feature_map: FeatureMap = "elu",
    normalize: str = "sum",
    causal: bool = True,
    query_offset: int = 0,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    cu_seqlens: Any = None,
    algorithm: str = "auto",
    initial_state: DeltaState | None = None,
    return_state: bool = False,
) -> Any:
    """Write to a state only what it does not hold yet: the delta rule of fast weight programmers.

        r_t = v_t - W_{t-1}^T k_t        W_t = W_{t-1} + beta_t k_t r_t^T        o_t = W_t^T q_t

    with q = φ(query) / |φ(query)|, and k of the key likewise. Where linear attention adds a second
    value to the first, this replaces it: as far as beta says, and as the new key is the old one.

    Args:
        query: (N, H, Lq, E), float32 or float64.
        key: (N, H, Lk, E), of the query's dtype, as all floating inputs.
        value: (N, H, Lk, M).
        beta: (N, H, Lk), the rate of each write, from 0, write nothing, to 1. Where beta |k|^2 is
            above 2, states grow without bound.
        feature_map: φ, as in `linear_attention`.
        normalize: what a row of features is divided by: "sum", which should be above zero; "l2",
            its length; "none", where it has been done. The defaults are those of the source. With
            "identity" and "l2" (Yang et al. 2024) keys have any sign, so that more of them can be
            at right angles, where no write moves what another wrote.
        causal: must be True: what a key writes depends on those before it. For every query to read
            what all keys have written, as from another sequence, let `query_offset` be Lk.
        query_offset: query i reads the state after key i + query_offset.
        query_lengths: (N,) integers; later queries give zeros. None: all count.
        key_lengths: (N,) integers; later keys write nothing. None: all count.
        cu_seqlens: (N + 1,) integers for packed sequences, as in `linear_attention`.
        algorithm: of the sums that are linear attention, "recurrent" or "chunked"; "auto" lets the
            planner choose.
        initial_state: where the sequence continues from. None: zeros.
        return_state: whether to return the state after the last key too.

    Returns:
        (N, H, Lq, M); with `return_state` that and a DeltaState, W (N, H, E, M), through which
        gradients flow.

    Raises:
        TypeError: an input is not floating, or lengths or offset are not integers.
        ValueError: shapes, dtypes or devices do not fit, or a choice is unknown.

    Source: Schlag et al. 2021, "Linear transformers are secretly fast weight programmers",
    section 4.2.

    >>> same_keys = Tensor([[[[1.0, 0.0]] * 3]])
    >>> value = Tensor([[[[3.0], [6.0], [9.0]]]])
    >>> beta = Tensor([[[1.0, 1.0, 0.5]]])
    >>> options = {"feature_map": "identity", "normalize": "l2"}
    >>> delta_attention(same_keys, same_keys, value, beta, **options).tolist()
    [[[[3.0], [6.0], [7.5]]]]
    """
    name = "delta_attention"
    if not flag(name, "causal", causal):
        raise ValueError(
            f"{name}: the delta rule goes from left to right and needs causal=True; for every "
            f"query to read what all keys wrote, give query_offset={key.shape[2]}, the keys' "
            "length; for both directions at once, use linear_attention"
        )
    check_sequences(name, query, key, value, beta=(beta, "N H Lk"))
    one_of(name, "algorithm", algorithm, ALGORITHMS)
    visible = Visible(True, query_offset, query_lengths, key_lengths, cu_seqlens)
    seen = visible.settled(name, query.data, key.data)
    options = {"visible": seen, "algorithm": "linear" if algorithm == "auto" else algorithm}
    scalable = normalize != "none"
    query = without_padding(query, seen.query_lengths)
    key = without_padding(key, seen.key_lengths)
    query, key, in_kernel = features_of(name, feature_map, query, key, scalable)
    query, key = (_normalized(name, x, in_kernel, normalize) for x in (query, key))
    inputs = query, key, value, beta
    return attend(name, DeltaAttention, inputs, initial_state, return_state, options)


def delta_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    state: DeltaState | None = None,
    *,
    feature_map: FeatureMap = "elu",
    normalize: str = "sum",
) -> tuple[Tensor, DeltaState]:
    """Decode one token: correct the state by it, and read it, at a cost that no past token adds to.

        W' = W + beta k (v - W^T k)^T        o = W'^T q

    Args:
        query: (N, H, E), float32 or float64.
        key: (N, H, E).
        value: (N, H, M).
        beta: (N, H).
        state: W (N, H, E, M), which is not changed; None: zeros.
        feature_map, normalize: as in `delta_attention`.

    Returns and raises what `linear_attention_step` does.

    Source: Schlag et al. 2021, section 4.2.

    >>> token, beta = Tensor([[[0.0, 0.0]]]), Tensor([[1.0]])
    >>> output, state = delta_attention_step(token, token, Tensor([[[3.0]]]), beta)
    >>> output.tolist()
    [[[1.5]]]
    >>> output, state = delta_attention_step(token, token, Tensor([[[3.0]]]), beta, state)
    >>> output.tolist()
    [[[2.25]]]
    """
    name = "delta_attention_step"
    check_token(name, query, key, value, beta=(beta, "N H"))
    scalable = normalize != "none"
    query, key, in_kernel = token_features(name, feature_map, query, key, scalable)
    query, key = (_normalized(name, x, in_kernel, normalize) for x in (query, key))
    return attend_token(name, DeltaAttention, (query, key, value, beta), state, {})


def _normalized(function: str, x: Tensor, feature_map: str, normalize: str) -> Tensor:
    """Return the features of x by a map that kernels apply, normalized."""
    one_of(function, "normalize", normalize, NORMALISERS)
    if feature_map == "identity" and normalize == "none":
        return x
    features: Tensor = NormalizedFeatures.apply(x, feature_map=feature_map, normalize=normalize)
    return features
