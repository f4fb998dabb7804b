"""Attention, forward and forward with backward, beside PyTorch and flash-linear-attention.

N H L = 2^19 tokens in 8 heads or more, E = M, all numbers random. Our side is the public
differentiable function on float32, and so is every other's but where the precision says otherwise:
`TF32` is float32 whose products keep 10 bits, as Triton's do unless told otherwise; `bfloat16` is
what a kernel insists on. flash-linear-attention (fla-core) gets its own layout, (N, L, H, E), and
features that PyTorch makes; it tunes each kernel among some six of its configurations. Errors are
those of the output and the gradients of query, key and value in the last rows of the last head,
which hang on all keys. A set of inputs is several times the L2 cache. *GB* and *GFLOP* are the
fewest that the case needs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import normalize, scaled_dot_product_attention, softplus

from minitransformer import Tensor, no_grad
from minitransformer.attention import (
    delta_attention,
    fourier_linear_attention,
    linear_attention,
    local_attention,
    relative_linear_attention,
    softmax_attention,
)
from minitransformer.nn import DPFP, CosFormerAttention, Favor

from .. import features, harness, peers
from . import floors
from .clock import NOT_RUN, Array, Contestant, Device, Row, Run, deferred, race, reason, row
from .floors import Shape

HEADS, DISTANCE, WINDOW, RANDOM = 8, 32, 128, 128
CHECKED = 64  # rows
TOKENS = {"full": 2**19, "rehearsal": 2**10}
LENGTHS = {"full": (2048, 8192, 512, 32_768, 65_536), "rehearsal": (128,)}
WIDTHS = 64, 128
COMPILED = 2048, 8192  # lengths; each takes PyTorch many seconds to compile
TOO_LONG = "left out: too slow or too large at this length"
TRIED = 6  # about so many of the configurations that a Triton kernel may be tuned to

Arrays = list[Array]
Attend = Callable[..., Any]


class Peer(NamedTuple):
    """A contestant that is not ours.

    Attributes:
        make: Returns what it calls, with PyTorch's tensors; what it needs is imported then.
        precision: A key of `clock.ALLOWED`.
        longest: The length above which it is left out, as too slow or too large.
        compiled: Whether PyTorch compiles it, which takes long: at `COMPILED` lengths alone.
        tokens_first: Whether it takes (N, L, H, E).
    """

    make: Callable[[], Attend]
    precision: str = "float32"
    longest: int = 2**30
    compiled: bool = False
    tokens_first: bool = False


class Variant(NamedTuple):
    """An attention.

    Attributes:
        ours: Our function, by the name of the contestant; of query, key, value and the extras.
        exact: The output in float64 from its definition: of query, key, value, the first row that
            counts, and the extras.
        need: What the passes need.
        peers: The others.
        extras: Further inputs, for a shape.
        learned: Whether the extras get a gradient.
        causal: Whether queries see no later keys.
    """

    ours: Mapping[str, Attend]
    exact: Attend
    need: Callable[[Shape], dict[str, floors.Need]]
    peers: Mapping[str, Peer]
    extras: Callable[[Shape, np.random.Generator], Arrays] = lambda shape, random: []
    learned: bool = True
    causal: bool = True


# -- What is compared ----------------------------------------------------------------------------


def sdpa(backend: SDPBackend) -> Attend:
    """PyTorch's fused attention, by one of its kernels."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def softmax_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(Q K^T / sqrt(E)) V below the diagonal, one operation after the other."""
    above = q.new_ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(above, -torch.inf), -1) @ v


def softmax_masked(mask: Attend) -> Attend:
    """PyTorch's fused attention, given which query sees which key."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        return scaled_dot_product_attention(q, k, v, mask(place[:, None] - place))

    return attend


def in_window(distance: torch.Tensor) -> torch.Tensor:
    """Whether a key so far behind a query is seen."""
    return (distance >= 0) & (distance <= WINDOW)


def fla(name: str, **options: Any) -> Callable[[], Attend]:
    """Return what makes fla-core's function, of features, without a scale of the scores."""

    def make() -> Attend:
        if find_spec("fla") is None:
            raise ModuleNotFoundError("fla-core is missing; pip install fla-core")
        module = "delta_rule" if "delta" in name else "linear_attn"
        function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
        fewer_configurations()
        return lambda *inputs: function(*inputs, scale=1.0, **options)[0]

    return make


def fla_linear(name: str, **options: Any) -> Callable[[], Attend]:
    """The same, of queries and keys: phi(x) = elu(x) + 1 is left to PyTorch."""

    def make() -> Attend:
        attend = fla(name, **options)()
        return lambda q, k, v: attend(peers.features(q), peers.features(k), v)

    return make


def fewer_configurations() -> None:
    """Have fla-core try fewer configurations of its kernels, each for a shorter time.

    It has up to 48 of a kernel, and tunes some anew for each batch size: minutes in all.
    """
    for kernel in tuned_kernels():
        if kernel._do_bench is not quick_bench:
            step = max(1, len(kernel.configs) // TRIED)
            kernel.configs, kernel._do_bench = kernel.configs[::step], quick_bench


def tune_again() -> None:
    """Have fla-core choose configurations once more: it chose them for a rehearsal's few tokens."""
    for kernel in tuned_kernels():
        kernel.cache.clear()


def tuned_kernels() -> Iterator[Any]:
    """Yield fla-core's kernels that Triton tunes, as far as they are imported."""
    for module in [module for name, module in sys.modules.items() if name.startswith("fla.")]:
        for kernel in vars(module).values():
            while kernel is not None and not isinstance(kernel, triton_autotuner()):
                kernel = vars(kernel).get("fn") if hasattr(kernel, "__dict__") else None
            if kernel is not None:
                yield kernel


def triton_autotuner() -> type:
    """Triton's class of kernels that it tunes."""
    from triton.runtime import Autotuner

    return Autotuner


def quick_bench(run: Callable[[], Any], **options: Any) -> Any:
    """Time a kernel's configuration."""
    import triton

    return triton.testing.do_bench(run, warmup=2, rep=10, **options)


@cache
def compiled(form: Attend) -> Attend:
    """PyTorch's compiler's version of a function, for each shape that it gets."""
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(form, dynamic=False)


def mapped(phi: Attend) -> dict[str, Peer]:
    """PyTorch's contestants for linear attention with features of whole rows."""
    return {
        "PyTorch eager, all chunks at once": Peer(
            lambda: (
                lambda q, k, v, *extras: peers.linear_at_once(
                    q, k, v, phi=lambda x: phi(x, *extras)
                )
            )
        ),
    }


def weighted(weights: Attend) -> Attend:
    """The exact output of causal attention, by the definition of its weights.

    Args:
        weights: Returns them, not yet normalized, (N, H, rows, L): of query, key, the distance
            i - j (rows, L), and the extras.
    """

    def exact(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, *extras: torch.Tensor
    ) -> torch.Tensor:
        place = torch.arange(k.shape[2], device=k.device)
        distance = place[first:, None] - place
        seen = weights(q[:, :, first:], k, distance, *extras) * (distance >= 0)
        return seen @ v / seen.sum(-1, keepdim=True)

    return exact


def softmax_weights(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """exp(q . k / sqrt(E)); float64 has room for it."""
    return torch.exp(q @ k.mT * q.shape[-1] ** -0.5)


def window_weights(q: torch.Tensor, k: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """The same in a window."""
    return softmax_weights(q, k, distance) * in_window(distance)


def linear_weights(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """phi(q) . phi(k)."""
    return peers.features(q) @ peers.features(k).mT


def relative_weights(
    q: torch.Tensor, k: torch.Tensor, distance: torch.Tensor, embedding: torch.Tensor
) -> torch.Tensor:
    """phi(q) . phi(k) + softplus(phi(q) . e_r), r = clip(j - i, -k, k)."""
    row = (DISTANCE - distance).clamp(0, 2 * DISTANCE)
    scores = softplus(peers.features(q) @ embedding.mT)
    return linear_weights(q, k, distance) + scores.gather(3, row.expand(*q.shape[:2], -1, -1))


def fourier_weights(
    q: torch.Tensor, k: torch.Tensor, distance: torch.Tensor,
    frequency: torch.Tensor, phase: torch.Tensor, amplitude: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """sum_e phi(q)_e phi(k)_e (1 + c_e cos(b_e + a_e (i - j))), the cosine split in two."""
    queries, keys = distance[:, 0], distance[0, 0] - distance[0]  # i and j, as distance = i - j
    turn_q, turn_k = (x[:, None] * frequency[..., 0][:, None] for x in (queries, keys))
    q, k = peers.features(q), peers.features(k)
    angle = turn_q + phase[:, None]
    wave = amplitude[:, None] * q
    cosines = (wave * angle.cos()) @ (k * turn_k.cos()).mT
    return q @ k.mT + cosines + (wave * angle.sin()) @ (k * turn_k.sin()).mT


def of_maps(phi: Attend) -> Attend:
    """The weights of linear attention with features of whole rows."""
    return lambda q, k, _, *extras: phi(q, *extras) @ phi(k, *extras).mT


def cosformer_weights(q: torch.Tensor, k: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """relu(q) . relu(k) cos(pi (i - j) / (2 L))."""
    return q.relu() @ k.relu().mT * torch.cos(distance.to(q.dtype) * (torch.pi / (2 * k.shape[2])))


def linear_exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> torch.Tensor:
    """Linear attention to all keys."""
    return peers.linear_bidirectional(q[:, :, first:], k, v)


def delta_exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, beta: torch.Tensor
) -> torch.Tensor:
    """The delta rule, chunk by chunk."""
    return peers.delta_chunkwise(unit(q), unit(k), v, beta)[:, :, first:]


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length 1."""
    return normalize(x, dim=-1)


def embedding(shape: Shape, random: np.random.Generator) -> Arrays:
    """Embeddings of distances."""
    return [random.normal(0, 0.3, (shape.heads, 2 * DISTANCE + 1, shape.width))]


def waves(shape: Shape, random: np.random.Generator) -> Arrays:
    """Frequencies, phases and amplitudes."""
    sizes = (shape.heads, shape.width, 1), *[(shape.heads, shape.width)] * 2
    return [random.uniform(-0.9, 0.9, size) for size in sizes]


def rates(shape: Shape, random: np.random.Generator) -> Arrays:
    """Rates of the writes of the delta rule."""
    return [random.uniform(0, 1, shape[:3])]


def projection(shape: Shape, random: np.random.Generator) -> Arrays:
    """The projection of FAVOR+."""
    return [Favor(shape.width, RANDOM, seed=0).projection.numpy()]


def our_favor(query: Tensor, key: Tensor, value: Tensor, _: Tensor) -> Tensor:
    """Causal linear attention with the random features whose projection is the extra input."""
    phi = random_features(query.shape[3], query.device)
    output: Tensor = linear_attention(query, key, value, feature_map=phi, causal=True)
    return output


@cache
def random_features(width: int, device: str) -> Favor:
    """FAVOR+ with its projection on a device."""
    return Favor(width, RANDOM, seed=0).to(device)


def our_cosformer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal linear attention whose features fade over the whole length."""
    _, heads, length, width = query.shape
    variant = CosFormerAttention(longest=length, algorithm="chunked")
    variant.prepare(heads, width)
    return variant(query, key, value, causal=True)


def our_fourier(query: Tensor, key: Tensor, value: Tensor, *wave: Tensor) -> Tensor:
    """Causal linear attention with Fourier positions."""
    places = positions(query.shape[2], query.device)
    output: Tensor = fourier_linear_attention(
        query, key, value, places, places, *wave, causal=True, algorithm="chunked"
    )
    return output


@cache
def positions(length: int, device: str) -> Tensor:
    """Where tokens stand: (1, L, 1) float64, on a device."""
    return Tensor(np.arange(length, dtype=np.float64)[None, :, None], device=device)


def flex() -> Attend:
    """PyTorch's attention that compiles a kernel for a mask."""
    from torch.nn.attention.flex_attention import flex_attention

    attend = compiled(flex_attention)
    return lambda q, k, v: attend(q, k, v, block_mask=blocks_in_window(q.shape[2], q.device))


@cache
def blocks_in_window(length: int, device: torch.device) -> Any:
    """Which blocks of queries and keys it visits."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(
        lambda batch, head, i, j: in_window(i - j), None, None, length, length, device=str(device)
    )


CHUNK = "fla-core chunk"
SOFTMAX = {
    "PyTorch, memory-efficient": Peer(lambda: sdpa(SDPBackend.EFFICIENT_ATTENTION)),
    "PyTorch, flash, bfloat16": Peer(lambda: sdpa(SDPBackend.FLASH_ATTENTION), "bfloat16"),
    "PyTorch, cuDNN, bfloat16": Peer(lambda: sdpa(SDPBackend.CUDNN_ATTENTION), "bfloat16"),
    "PyTorch, math": Peer(lambda: sdpa(SDPBackend.MATH), longest=2048),
    "PyTorch eager": Peer(lambda: softmax_causal, longest=2048),
    "PyTorch compiled": Peer(lambda: compiled(softmax_causal), longest=2048, compiled=True),
}
LINEAR = {
    f"{CHUNK}, TF32": Peer(fla_linear("chunk_linear_attn"), "TF32", tokens_first=True),
    f"{CHUNK}, bfloat16": Peer(fla_linear("chunk_linear_attn"), "bfloat16", tokens_first=True),
    "fla-core fused chunk, TF32": Peer(
        fla_linear("fused_chunk_linear_attn"), "TF32", tokens_first=True
    ),
    "fla-core fused recurrent": Peer(
        fla_linear("fused_recurrent_linear_attn", normalize=True), tokens_first=True
    ),
    "PyTorch eager, all chunks at once": Peer(lambda: peers.linear_at_once),
    "PyTorch compiled, all chunks at once": Peer(
        lambda: compiled(peers.linear_at_once), compiled=True
    ),
    "PyTorch eager, chunk by chunk": Peer(lambda: peers.linear_chunkwise, longest=2048),
    "PyTorch eager, all scores": Peer(lambda: peers.linear_quadratic, longest=512),
}


RECURRENT = f"{harness.OURS}, recurrent"
ALGORITHMS = {harness.OURS: "chunked", RECURRENT: "recurrent"}


def by_algorithm(attend: Attend, **options: Any) -> dict[str, Attend]:
    """Both causal algorithms of an attention; the chunkwise one is who others are compared with."""
    return {
        name: partial(attend, causal=True, algorithm=algorithm, **options)
        for name, algorithm in ALGORITHMS.items()
    }


VARIANTS = {
    "causal softmax attention": Variant(
        {harness.OURS: partial(softmax_attention, causal=True)},
        weighted(softmax_weights),
        lambda shape: floors.pairs(shape, (shape.length + 1) / 2),
        SOFTMAX,
    ),
    "causal linear attention": Variant(
        by_algorithm(linear_attention),
        weighted(linear_weights),
        floors.sums,
        LINEAR,
    ),
    "linear attention": Variant(
        {harness.OURS: partial(linear_attention, algorithm="linear")},
        linear_exact,
        partial(floors.sums, causal=False),
        {
            "PyTorch eager": Peer(lambda: peers.linear_bidirectional),
            "PyTorch compiled": Peer(lambda: compiled(peers.linear_bidirectional), compiled=True),
        },
        causal=False,
    ),
    "delta rule": Variant(
        by_algorithm(delta_attention, feature_map="identity", normalize="l2"),
        delta_exact,
        floors.delta,
        {
            f"{CHUNK}, bfloat16": Peer(
                fla("chunk_delta_rule", use_qk_l2norm_in_kernel=True), "bfloat16", tokens_first=True
            ),
            "fla-core fused recurrent": Peer(
                fla("fused_recurrent_delta_rule", use_qk_l2norm_in_kernel=True), tokens_first=True
            ),
            "PyTorch eager, chunk by chunk": Peer(
                lambda: lambda q, k, v, beta: delta_exact(q, k, v, 0, beta), longest=2048
            ),
        },
        extras=rates,
    ),
    "Shaw's relative positions": Variant(
        by_algorithm(relative_linear_attention),
        weighted(relative_weights),
        partial(floors.sums, distances=DISTANCE + 1),
        {"PyTorch eager, all scores": Peer(lambda: peers.relative_quadratic, longest=2048)},
        extras=embedding,
    ),
    "Fourier positions": Variant(
        {harness.OURS: our_fourier},
        weighted(fourier_weights),
        partial(floors.sums, wider=3),
        {"PyTorch eager, all scores": Peer(lambda: peers.fourier_quadratic, longest=2048)},
        extras=waves,
    ),
    "local attention": Variant(
        {harness.OURS: partial(local_attention, window=WINDOW, causal=True)},
        weighted(window_weights),
        lambda shape: floors.pairs(shape, seen_in_window(shape.length)),
        {
            "PyTorch, a mask": Peer(lambda: softmax_masked(in_window), longest=8192),
            "PyTorch compiled flex_attention": Peer(flex, compiled=True),
        },
    ),
    "FAVOR+": Variant(
        {harness.OURS: our_favor},
        weighted(of_maps(features.their_favor)),
        lambda shape: floors.sums(shape, wider=RANDOM / shape.width, maps=True),
        mapped(features.their_favor),
        extras=projection,
        learned=False,
    ),
    "DPFP": Variant(
        {harness.OURS: partial(linear_attention, feature_map=DPFP(nu=1), causal=True)},
        weighted(of_maps(partial(features.their_dpfp, nu=1))),
        partial(floors.sums, wider=2),
        mapped(partial(features.their_dpfp, nu=1)),
    ),
    "cosFormer": Variant(
        {harness.OURS: our_cosformer},
        weighted(cosformer_weights),
        partial(floors.sums, wider=2),
        mapped(features.their_cosformer),
    ),
}


def seen_in_window(length: int) -> float:
    """How many keys a query sees on average: it and `WINDOW` before it, fewer at the start."""
    full = min(WINDOW + 1, length)
    return full - full * (full - 1) / 2 / length


# -- The races -----------------------------------------------------------------------------------


def rows(
    device: Device,
    size: str,
    names: tuple[str, ...] = tuple(VARIANTS),
    widths: tuple[int, ...] = WIDTHS,
) -> Iterator[Row]:
    """Yield a row for each length, width, variant, pass and contestant.

    Args:
        device: Where to run.
        size: "full" or "rehearsal"; on a GPU that one compiles whatever the full one needs.
        names: Of the variants.
        widths: E, but 16 to rehearse on a CPU.
    """
    rehearsal = size == "rehearsal"
    tune_again()
    for length in LENGTHS[size]:
        for width in (16,) if rehearsal and device.name == "cpu" else widths:
            for name in names:
                yield from compare(device, name, shape_of(TOKENS[size], length, width))
    if rehearsal and device.name == "cuda":
        for name in names:
            compile_ahead(device, VARIANTS[name], widths)


def shape_of(tokens: int, length: int, width: int) -> Shape:
    """As many sequences as there are tokens for."""
    return Shape(max(1, tokens // HEADS // length), HEADS, length, width)


def compare(device: Device, name: str, shape: Shape) -> Iterator[Row]:
    """Yield the rows of a variant with one shape, both passes."""
    variant, data, problem = VARIANTS[name], None, None
    try:
        if device.seconds_left() > 0:
            data = Data(device, variant, shape)
    except Exception as exception:
        problem = reason(exception)
    for which, need in variant.need(shape).items():
        case = f"{name}, {which}, L={shape.length:,}, E={shape.width}"
        for line in races(device, case, variant, shape, data, which, problem):
            yield line | need.columns()
    del data
    device.free()


def races(
    device: Device,
    case: str,
    variant: Variant,
    shape: Shape,
    data: Data | None,
    which: str,
    problem: str | None,
) -> Iterator[Row]:
    """Yield the rows of a case; without data, those that say why there are no times."""
    peers = {
        name: peer
        for name, peer in variant.peers.items()
        if not peer.compiled or (device.name == "cuda" and shape.length in COMPILED)
    }
    short = {name: peer for name, peer in peers.items() if shape.length <= peer.longest}
    if data is None:
        precisions = dict.fromkeys(variant.ours, "float32")
        precisions |= {name: peer.precision for name, peer in short.items()}
        for name, precision in precisions.items():
            yield row(case, name, precision, problem or NOT_RUN)
    else:
        contestants = {
            name: Contestant(data.ours(which, attend)) for name, attend in variant.ours.items()
        }
        for name, peer in short.items():
            run = deferred(partial(data.theirs, which, peer))
            contestants[name] = Contestant(run, peer.precision)
        yield from race(device, case, contestants, data.error)
    for name, peer in peers.items():
        if name not in short:
            yield row(case, name, peer.precision, TOO_LONG)


class Data:
    """The inputs of a case, and what is right.

    Args:
        device: Where the inputs are.
        variant: Of attention.
        shape: Their sizes.
    """

    def __init__(self, device: Device, variant: Variant, shape: Shape) -> None:
        N, H, L, E = shape
        *self.inputs, self.grad = (device.random(N, H, L, E, seed=seed) for seed in range(4))
        extras = variant.extras(shape, np.random.default_rng(4))
        self.inputs += [device.array(x.astype(np.float32)) for x in extras]
        self.device, self.learned = device, 3 + variant.learned * len(extras)
        self.first = max(0, L - CHECKED) if variant.causal else 0
        self.truth = self._truth(variant.exact)

    def _truth(self, exact: Attend) -> list[torch.Tensor]:
        """The output and the gradients of query, key and value, of what is checked, in float64."""
        q, k, v, *extras = (self._last_head(x).double() for x in self.inputs)
        qkv = [x.requires_grad_() for x in (q, k, v)]
        output = exact(*qkv, self.first, *extras)
        grad = self._last_head(self.grad)[:, :, self.first :].double()
        gradients = torch.autograd.grad(output, qkv, grad)
        return [output.detach(), *(x[:, :, self.first :] for x in gradients)]

    def _last_head(self, array: Array) -> torch.Tensor:
        """PyTorch's copy of the last head's part of an input, which may be one for all batches."""
        tensor = self.device.tensor(array)
        N, H = self.grad.shape[:2]
        if tensor.shape[:2] == (N, H) and tensor.ndim > 2:
            return tensor[-1:, -1:]
        return tensor[-1:] if tensor.shape[0] == H else tensor

    def error(self, answer: list[Any]) -> float:
        """The largest relative error of the output and the gradients, of what is checked."""
        errors = []
        for got, right in zip(answer, self.truth, strict=False):
            part = self.device.tensor(got[-1:, -1:, self.first :]).double()
            errors.append(torch.linalg.vector_norm(part - right) / torch.linalg.vector_norm(right))
        return float(torch.stack(errors).max())

    def ours(self, which: str, attend: Attend) -> Run:
        """What computes our output, and the gradients."""
        tensors = [
            Tensor(x, requires_grad=place < self.learned) for place, x in enumerate(self.inputs)
        ]

        @no_grad()
        def forward(call: int) -> list[Array]:
            return [attend(*tensors).data]

        def passes(call: int) -> list[Array]:
            output = attend(*tensors)
            output.backward(self.grad)
            gradients = [x.grad.data for x in tensors[:3] if x.grad is not None]
            for tensor in tensors:
                tensor.grad = None
            return [output.data, *gradients]

        return forward if which == "forward" else passes

    def theirs(self, which: str, peer: Peer) -> Run:
        """What computes a peer's output, and the gradients."""
        attend = peer.make()
        tensors = [self._placed(x, peer).requires_grad_() for x in self.inputs]
        grad = self._placed(self.grad, peer)
        learned = tensors[: self.learned]

        def forward(call: int) -> list[torch.Tensor]:
            with torch.no_grad():
                return [self._ours_again(attend(*tensors), peer)]

        def passes(call: int) -> list[torch.Tensor]:
            output = attend(*tensors)
            gradients = torch.autograd.grad(output, learned, grad)
            return [self._ours_again(x, peer) for x in (output.detach(), *gradients[:3])]

        return forward if which == "forward" else passes

    def _placed(self, array: Array, peer: Peer) -> torch.Tensor:
        """A copy of an input in a peer's precision and layout."""
        tensor = self.device.tensor(array)
        if peer.precision == "bfloat16":
            tensor = tensor.bfloat16()
        if peer.tokens_first and tensor.shape[:3] == self.grad.shape[:3]:
            tensor = tensor.transpose(1, 2)
        return tensor.clone(memory_format=torch.contiguous_format)

    def _ours_again(self, tensor: torch.Tensor, peer: Peer) -> torch.Tensor:
        """A view in our layout."""
        return tensor.transpose(1, 2) if peer.tokens_first else tensor


def compile_ahead(device: Device, variant: Variant, widths: tuple[int, ...]) -> None:
    """Have PyTorch compile what it is to compile, for the shapes of the full size."""
    compiled = [peer for peer in variant.peers.values() if peer.compiled]
    for peer, length, width in product(compiled, COMPILED, widths):
        if length <= peer.longest and device.seconds_left() > 0:
            with suppress(Exception):  # the race will meet it too, and record it
                data = Data(device, variant, shape_of(TOKENS["full"], length, width))
                for which in floors.PASSES:
                    data.theirs(which, peer)(0)
            device.free()
