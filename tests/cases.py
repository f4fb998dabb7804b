"""How the inputs of an attention operation are drawn.

Hypothesis draws a `Case`, a short description that prints on a few lines and can be pasted into a
test. `Case.problem()` builds the arrays from its seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from minitransformer_kernels import reference
from minitransformer_kernels.visible import Visible, inside

Array = NDArray[Any]
Arrays = dict[str, Array]


Extras = Callable[["Case", np.random.Generator], Arrays]


@dataclass(frozen=True)
class Problem:
    """The arguments of one call of an operation, and the cotangents of its results."""

    inputs: Arrays  # query, key, value, the operation's own; with an initial state S, Z, ...
    cotangents: Arrays  # output; S, Z, ... where the final state has a gradient
    keywords: dict[str, Any]
    layout: str = "contiguous"
    state: tuple[str, ...] = ("S", "Z")  # the names of its arrays

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every floating array."""
        return self.inputs["query"].dtype

    @property
    def visible(self) -> Visible:
        """Who sees whom, of the keywords."""
        return Visible(**{x: self.keywords[x] for x in Visible._fields if x in self.keywords})

    @property
    def options(self) -> dict[str, Any]:
        """All other keywords."""
        return {name: x for name, x in self.keywords.items() if name not in Visible._fields}

    @property
    def initial_state(self) -> tuple[Array, ...] | None:
        """The arrays of a state where the operation is given one."""
        names = self.state
        return tuple(self.inputs[x] for x in names) if names[0] in self.inputs else None

    @property
    def grad_state(self) -> tuple[Array, ...] | None:
        """The cotangents of the final state where it has any; whole numbers have none."""
        if self.state[0] not in self.cotangents:
            return None
        return tuple(self.cotangents[name] for name in self.state if name in self.cotangents)


@dataclass(frozen=True)
class Case:
    """A description of a `Problem`; see `Domain` for what an operation takes."""

    dtype: str = "float64"
    batch: int = 1
    heads: int = 1
    query_length: int = 5
    key_length: int = 5
    head_dim: int = 3
    value_dim: int = 2
    causal: bool = False
    query_offset: int = 0
    query_lengths: tuple[int, ...] | None = None
    key_lengths: tuple[int, ...] | None = None
    initial_state: bool = False
    grad_state: bool = False
    guard_bites: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    spread: float = 1.0
    shift: float = 0.0
    grad: float = 1.0
    layout: str = "contiguous"
    extras: Extras | None = None
    states: Extras | None = None

    def problem(self) -> Problem:
        """Builds the arrays."""
        rng = np.random.default_rng(self.seed)
        inputs = {
            "query": self._scores(rng, self.query_length) * self._signs(rng),
            "key": self._scores(rng, self.key_length),
            "value": self.spread * rng.normal(size=self._shape(self.key_length, self.value_dim)),
        }
        cotangents = {"output": rng.normal(size=self._shape(self.query_length, self.value_dim))}
        if self.extras:
            inputs |= self.extras(self, rng)
        draw_state = self.states or linear_state
        state = tuple(draw_state(self, np.random.default_rng(0)))
        if self.initial_state:
            inputs |= draw_state(self, rng)
        if self.grad_state:
            cotangents |= without_whole_numbers(draw_state(self, rng))
        cotangents = {name: self.grad * x for name, x in cotangents.items()}
        keywords = self._keywords()
        if self.guard_bites:
            keywords["eps"] = biting_eps(inputs, keywords)
        return Problem(self._cast(inputs), self._cast(cotangents), keywords, self.layout, state)

    def _shape(self, *rest: int) -> tuple[int, ...]:
        return (self.batch, self.heads, *rest)

    def _scores(self, rng: np.random.Generator, length: int) -> Array:
        x = self.shift + self.spread * rng.normal(size=self._shape(length, self.head_dim))
        return 0.1 + np.abs(x) if self.options.get("feature_map") == "identity" else x

    def _signs(self, rng: np.random.Generator) -> Array:
        """Whole rows of negative queries, whose denominators are negative: for a signed guard."""
        signs = rng.choice([-1.0, 1.0], size=self._shape(self.query_length, 1))
        return signs if self.options.get("guard") == "signed" else np.ones_like(signs)

    def _cast(self, arrays: Arrays) -> Arrays:
        return {
            name: x if name.endswith("_positions") or x.dtype.kind == "i" else x.astype(self.dtype)
            for name, x in arrays.items()
        }

    def _keywords(self) -> dict[str, Any]:
        keywords = dict(self.options)
        if self.causal:
            keywords |= {"causal": True, "query_offset": self.query_offset}
        elif "window" in self.options or "k" in self.sizes:
            keywords["query_offset"] = self.query_offset  # distances depend on it all the same
        for name in ("query_lengths", "key_lengths"):
            if (lengths := getattr(self, name)) is not None:
                keywords[name] = np.array(lengths, np.int64)
        return keywords


def unpadded(case: Case, length: int, **changes: Any) -> Case:
    """The same of so many tokens, each a query and a key, without padding; no guard bites."""
    sizes: dict[str, Any] = {"query_length": length, "key_length": length, "query_offset": 0}
    sizes |= {"query_lengths": None, "key_lengths": None, "guard_bites": False}
    return replace(case, **sizes | changes)


def linear_state(case: Case, rng: np.random.Generator) -> Arrays:
    """S (N, H, E, M) and Z (N, H, E)."""
    shape = case.batch, case.heads, case.head_dim
    S = rng.normal(size=(*shape, case.value_dim))
    return {"S": S, "Z": rng.uniform(0.5, 2.0, size=shape)}


def fourier_inputs(case: Case, rng: np.random.Generator) -> Arrays:
    """Positions of `sizes["P"]` numbers, frequencies, phases and amplitudes.

    With `sizes["shared"]` positions are those of the whole batch. Under form "cos", angles are
    small, so that denominators keep their sign.
    """
    narrow = case.options["form"] == "cos"
    batch, P = 1 if case.sizes.get("shared") else case.batch, case.sizes["P"]
    shape = case.heads, case.head_dim
    frequency = rng.uniform(-1, 1, (*shape, P)) / (3 * P if narrow else 1)
    return {
        "query_positions": 3 * rng.uniform(size=(batch, case.query_length, P)),
        "key_positions": 3 * rng.uniform(size=(batch, case.key_length, P)),
        "frequency": frequency,
        "phase": rng.uniform(-1, 1, shape) * (0.3 if narrow else np.pi),
        "amplitude": rng.uniform(0.3 if narrow else -0.9, 0.9, shape),
    }


def fourier_state(case: Case, rng: np.random.Generator) -> Arrays:
    """S (N, H, D, M) at random; Z (N, H, D) of one key, or (N, H, E) for "plain"."""
    shape = case.batch, case.heads, case.head_dim
    k, angle = rng.uniform(0.5, 2.0, shape), rng.uniform(0, 0.3, shape)
    parts = [k * np.cos(angle), k * np.sin(angle), k]
    features = np.concatenate(parts[: 2 if case.options["form"] == "cos" else 3], axis=-1)
    S = rng.normal(size=(*features.shape, case.value_dim))
    return {"S": S, "Z": k if case.options["denominator"] == "plain" else features}


def relative_inputs(case: Case, rng: np.random.Generator) -> Arrays:
    """Embeddings of the distances up to `sizes["k"]`.

    Those whose scores are weights themselves are positive, so that denominators keep their sign.
    """
    e = 0.7 * rng.normal(size=(case.heads, 2 * case.sizes["k"] + 1, case.head_dim))
    positive = case.options["score_map"] == "identity"
    return {"relative_embedding": 0.1 + np.abs(e) if positive else e}


def relative_scores(case: Case, rng: np.random.Generator) -> Arrays:
    """A score for each query and distance up to `sizes["k"]`."""
    shape = case.batch, case.heads, case.query_length, 2 * case.sizes["k"] + 1
    return {"relative_scores": 2 * rng.normal(size=shape)}


def relative_state(case: Case, rng: np.random.Generator) -> Arrays:
    """A state after a few keys, fewer or more than the window holds.

    Of a window that is not full the rest is random, and nothing has fallen out of it: a tail
    without keys would be a numerator without a denominator.
    """
    k, shape = case.sizes["k"], (case.batch, case.heads)
    state = {
        **linear_state(case, rng),
        "tail": rng.normal(size=(*shape, case.value_dim)),
        "recent": rng.normal(size=(*shape, k, case.value_dim)),
        "length": rng.integers(0, 2 * k + 3, case.batch),
    }
    state["tail"] *= (state["length"] > k)[:, None, None]
    return state


def delta_inputs(case: Case, rng: np.random.Generator) -> Arrays:
    """Keys of length 1, and beta in (0, 1): a write never overshoots."""
    key = rng.normal(size=(case.batch, case.heads, case.key_length, case.head_dim))
    return {
        "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "beta": rng.uniform(size=key.shape[:3]),
    }


def delta_state(case: Case, rng: np.random.Generator) -> Arrays:
    """W (N, H, E, M)."""
    shape = case.batch, case.heads, case.head_dim, case.value_dim
    return {"W": rng.normal(size=shape)}


def without_whole_numbers(arrays: Arrays) -> Arrays:
    """The arrays that can have gradients."""
    return {name: x for name, x in arrays.items() if x.dtype.kind == "f"}


def biting_eps(inputs: Arrays, keywords: dict[str, Any]) -> float:
    """Returns an eps that about half of the denominators are below, and none is near."""
    q, k, v = (inputs[name] for name in ("query", "key", "value"))
    visible = Visible(**{x: keywords[x] for x in Visible._fields if x in keywords})
    seen, alive = visible.mask(q, k), inside(q, visible.query_lengths)
    state = (inputs["S"], inputs["Z"]) if "S" in inputs else None
    _, d = reference.linear_sums(q, k, v, keywords["feature_map"], seen, alive, state)
    sizes = np.unique(np.abs(d[d != 0]))
    middle = sizes[len(sizes) // 3 : 2 * len(sizes) // 3 + 2]
    if len(middle) < 2:
        return 1.0
    widest = int(np.argmax(middle[1:] / middle[:-1]))
    return float(np.sqrt(middle[widest] * middle[widest + 1]))


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for: a dtype, head dims, and options that choose its functions."""

    dtype: str
    head_dim: int
    value_dim: int
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # of the operation's own inputs


@dataclass(frozen=True)
class Domain:
    """What an operation takes.

    Every variant, after its head dims are rounded up, is a kernel to compile, which takes seconds:
    they are few. `tiles` are the numbers of tokens that the kernels take at once. `extras` draws
    the inputs that an operation has besides query, key and value; with them, the order of the keys
    matters. `states` draws a state, of S and Z by default. Where it `follows` its state, no query
    may stand before the first key. `queries` are the numbers of queries, where not all lengths do;
    no length is less than `shortest`. `grads` are the sizes of cotangents.
    """

    variants: tuple[Variant, ...]
    tiles: tuple[int, ...]
    causal: tuple[bool, ...] = (False, True)
    stateful: bool = False
    packed: bool = False
    extras: Extras | None = None
    states: Extras | None = None
    follows: bool = False
    queries: tuple[int, ...] = ()
    shortest: int = 1
    grads: tuple[float, ...] = (1.0, 1e-6, 1e9)

    @property
    def lengths(self) -> list[int]:
        """Lengths around every tile size: the ragged ones are the normal case."""
        around = {n for t in self.tiles for n in (t - 1, t, t + 1, 2 * t + 3)}
        return sorted(n for n in around | {1, 2} if n >= self.shortest)

    def case(self, variant: Variant, **drawn: Any) -> Case:
        """A case of one of its variants."""
        return Case(**vars(variant), extras=self.extras, states=self.states, **drawn)


@st.composite
def cases(draw: st.DrawFn, domain: Domain) -> Case:
    """Draws a case of a domain."""
    variant = draw(st.sampled_from(domain.variants))
    batch, query_length, key_length = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from(domain.queries or domain.lengths)),
        draw(st.sampled_from(domain.lengths)),
    )
    initial_state = domain.stateful and draw(st.booleans())
    query_offset = draw(offsets(query_length, key_length))
    return domain.case(
        variant,
        batch=batch,
        heads=draw(st.integers(1, 2)),
        query_length=query_length,
        key_length=key_length,
        causal=draw(st.sampled_from(domain.causal)),
        query_offset=abs(query_offset) if domain.follows and initial_state else query_offset,
        query_lengths=draw(padding(batch, query_length)),
        key_lengths=draw(padding(batch, key_length)),
        initial_state=initial_state,
        grad_state=domain.stateful and draw(st.booleans()),
        guard_bites=domain.extras is None
        and variant.options.get("guard", "add") != "add"
        and draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
        spread=draw(st.sampled_from([1.0, 0.1, 3.0])),
        shift=draw(st.sampled_from([0.0, 1.0, -6.0])),
        grad=draw(st.sampled_from(domain.grads)),
        layout=draw(st.sampled_from(sorted(LAYOUTS))),
    )


def offsets(query_length: int, key_length: int) -> st.SearchStrategy[int]:
    """Draws a query offset: mostly 0 or the end of the keys, now and then out of their range."""
    return st.sampled_from([0, key_length - query_length]) | st.integers(
        -query_length - 1, key_length + 1
    )


def padding(batch: int, length: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """Draws the lengths of a batch, or None; a sequence may be empty."""
    return st.none() | st.tuples(*[st.integers(0, length)] * batch)


def permuted(x: Array, xp: Any) -> Array:
    """The same values, the last two axes swapped in memory."""
    return xp.asarray(x.swapaxes(-1, -2).copy()).swapaxes(-1, -2)  # type: ignore[no-any-return]


def sliced(x: Array, xp: Any) -> Array:
    """The same values, every second row of a larger array full of NaN."""
    frame = np.full((*x.shape[:-2], 2 * x.shape[-2] + 1, x.shape[-1] + 3), np.nan, x.dtype)
    frame[..., 1::2, 2:-1] = x
    return xp.asarray(frame)[..., 1::2, 2:-1]  # type: ignore[no-any-return]


def backwards(x: Array, xp: Any) -> Array:
    """The same values, stored from the last to the first: negative strides."""
    return xp.asarray(x[..., ::-1, ::-1].copy())[..., ::-1, ::-1]  # type: ignore[no-any-return]


def frozen(x: Array, xp: Any) -> Array:
    """The same values, not writeable where the library knows that."""
    copy = xp.array(x)
    if xp is np:
        copy.flags.writeable = False
    return copy  # type: ignore[no-any-return]


LAYOUTS = {
    "contiguous": lambda x, xp: xp.array(x),
    "permuted": permuted,
    "sliced": sliced,
    "backwards": backwards,
    "frozen": frozen,
}
