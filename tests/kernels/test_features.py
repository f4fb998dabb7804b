"""Feature maps: of single numbers inside kernels, and of whole rows by kernels of their own."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer_kernels import DataRace, checked, features, reference
from minitransformer_kernels.arrays import kernel_dtype
from minitransformer_kernels.cuda import cuda
from minitransformer_kernels.feature_maps import FEATURE_MAPS, feature_map
from tests.cases import LAYOUTS, Array
from tests.properties import (
    Check,
    Operation,
    array_library,
    assert_all_equal,
    assert_within,
    derive,
    examine,
    to_numpy,
)
from tests.rounding import allowed_rows

from .mutants import Mutant, bugs, hunt, without_barriers
from .operations import NO_MEAN, Variant, bidirectional, naive, recurrent

DTYPES = ("float32", "float64")

# -- Maps of single numbers ------------------------------------------------------------------------


@cache
def map_kernel(name: str, real: Any) -> Any:
    phi, slope = feature_map(name, real)

    @cuda.jit(fastmath=True)
    def apply(x, value, derivative):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            value[i] = phi(x[i])
            derivative[i] = slope(x[i])

    return apply


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_map_has_all_its_digits(name: str, dtype: str, device: str) -> None:
    """Value and slope are right to a few units of the last place, however far from zero x is."""
    xp = array_library(device)
    x = np.concatenate([np.linspace(-80, 80, 1999), [0.0, -0.0, 1e-6, -1e-6]]).astype(dtype)
    found = {name: xp.empty(x.shape, dtype) for name in ("value", "slope")}
    map_kernel(name, kernel_dtype(x))[-(-x.size // 64), 64](xp.asarray(x), *found.values())
    wide = x.astype(np.longdouble)
    wanted = {"value": reference.phi(wide, name), "slope": reference.phi_slope(wide, name)}
    for what, array in to_numpy(found).items():
        np.testing.assert_allclose(array, wanted[what], rtol=8 * np.finfo(dtype).eps, err_msg=what)


def test_relu_has_no_slope_at_zero() -> None:
    assert reference.phi_slope(np.zeros(2) * [1, -1], "relu").tolist() == [0, 0]


def with_map(operation: Operation, name: str) -> Operation:
    """The operation with another map; in float64, as small denominators magnify any rounding.

    Where a row of relu is zeros, so is the denominator, and cotangents are divided by 1e-300:
    those of 1e9 would be infinite. Such rows weigh nothing: their output is no mean.
    """
    variant = Variant("float64", 3, 5, {"feature_map": name, "guard": "clamp"})
    domain = replace(operation.domain, variants=(variant,))
    if name == "relu":
        operation = replace(operation, exempt=NO_MEAN)
        domain = replace(domain, grads=(1.0, 1e-6))
    return replace(operation, domain=domain)


PAIRS = [
    pytest.param(
        operation,
        check,
        id=f"{make.__name__}-{name}-{check}",
        marks=[] if make is recurrent and name == "softplus" else pytest.mark.nightly,
    )
    for make in (recurrent, bidirectional, naive)
    for name in ("softplus", "relu", "exp")
    for operation in [with_map(make(), name)]
    for check in derive(operation)
]


@pytest.mark.parametrize(("operation", "check"), PAIRS)
def test_attention_with_the_map(operation: Operation, check: Check, device: str) -> None:
    examine(operation.on(device), check)


# -- Maps of whole rows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows of numbers, and the map that is to take them."""

    map: str
    size: int  # R or nu
    normalised: bool = False
    dtype: str = "float64"
    shape: tuple[int, ...] = (1, 2, 5, 3)
    seed: int = 0
    spread: float = 1.0
    layout: str = "contiguous"
    version: str = "fast"

    def arrays(self) -> dict[str, Array]:
        """Builds x, the cotangent g of the features, and for FAVOR+ the projection."""
        rng = np.random.default_rng(self.seed)
        head_dim = self.shape[-1]
        x = self.spread * rng.normal(size=self.shape)
        arrays = {"x": x * (rng.random(self.shape) > 0.05)}  # a few exact zeros
        width = self.size if self.map == "favor" else 2 * head_dim * self.size
        arrays["g"] = rng.normal(size=(*self.shape[:-1], width))
        if self.map == "favor":
            arrays["projection"] = features.orthogonal_projection(self.size, head_dim, rng)
        return {name: array.astype(self.dtype) for name, array in arrays.items()}

    def reference(self, x: Array, projection: Array | None = None) -> Array:
        """The features in plain NumPy."""
        if projection is not None:
            return reference.favor(x, projection, normalised=self.normalised)
        return reference.dpfp(x, self.size)

    def kernels(self, module: Any, g: Array, x: Array, *projection: Array) -> dict[str, Array]:
        """The features by the kernels of a module, and the gradients."""
        if self.map == "favor":
            options: Any = {"normalised": self.normalised, "version": self.version}
            phi = module.favor_forward(x, *projection, **options)
            dx, dw = module.favor_backward(
                g, x, *projection, phi, **options, projection_needs_gradient=True
            )
            return {"phi": phi, "dx": dx, "dw": dw}
        options = {"nu": self.size, "version": self.version}
        phi = module.dpfp_forward(x, **options)
        return {"phi": phi, "dx": module.dpfp_backward(g, x, **options)}


def truth(rows: Rows, arrays: dict[str, Array], dtype: Any) -> dict[str, Array]:
    """Features, and the gradients of <g, features> by the complex step: no backward is needed.

    Rows do not see each other, so one step moves a number of each of them at once.
    """
    g, *inputs = (arrays[name].astype(dtype) for name in ("g", "x", "projection") if name in arrays)
    step = 1e-20j

    def moved(which: int, index: Any) -> Array:
        shifted = [x.astype(np.result_type(x.dtype, np.complex64)) for x in inputs]
        shifted[which][index] += step
        return g * (rows.reference(*shifted).imag / abs(step)).astype(dtype)

    dx = [moved(0, (..., e)).sum(axis=-1) for e in range(inputs[0].shape[-1])]
    found = {"phi": rows.reference(*inputs), "dx": np.stack(dx, axis=-1)}
    if rows.map == "favor":
        shape = inputs[1].shape
        dw = [moved(1, index).sum() for index in np.ndindex(*shape)]
        found["dw"] = np.reshape(dw, shape).astype(dtype)
    return found


def allowed(rows: Rows, arrays: dict[str, Array], runs: int) -> dict[str, Array]:
    """What each row may be off by."""

    def compute(make: Callable[[Array], Array]) -> dict[str, Array]:
        return truth(rows, {name: make(x) for name, x in arrays.items()}, np.float64)

    return allowed_rows(compute, rows.dtype, runs=runs)


def assert_right(rows: Rows, device: str = "cpu", module: Any = features) -> None:
    """The kernels give the truth, in the dtype of their inputs, and leave these alone; twice."""
    xp, given = array_library(device), rows.arrays()
    laid_out = {name: LAYOUTS[rows.layout](x, xp) for name, x in given.items()}
    arguments = [laid_out[name] for name in ("g", "x", "projection") if name in laid_out]
    found, again = (to_numpy(rows.kernels(module, *arguments)) for _ in range(2))
    assert_all_equal(to_numpy(laid_out), given, "its input")
    assert_all_equal(again, found, "in a second call")
    assert {x.dtype for x in found.values()} == {np.dtype(rows.dtype)}
    right = truth(rows, given, np.float64)
    assert_within(found, right, partial(allowed, rows, given))


SIZES = {"favor": (1, 5, 32, 37), "dpfp": (1, 2, 5)}
VERSIONS = "fast", "plain"


@st.composite
def drawn_rows(draw: st.DrawFn, name: str, version: str) -> Rows:
    """Draws rows around every tile size of the kernels."""
    favor = name == "favor"
    return Rows(
        map=name,
        size=draw(st.sampled_from(SIZES[name])),
        normalised=favor and draw(st.booleans()),
        dtype=draw(st.sampled_from(DTYPES)),
        shape=(draw(st.integers(1, 2)), draw(st.integers(1, 2)),
               draw(st.sampled_from([1, 7, 8, 9, 32, 35])), draw(st.sampled_from([3, 8]))),
        seed=draw(st.integers(0, 2**32 - 1)),
        spread=draw(st.sampled_from([1.0, 0.1, 3.0])),
        layout=draw(st.sampled_from(sorted(LAYOUTS))),
        version=version,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SIZES)
def test_rows(name: str, version: str, device: str) -> None:
    @given(drawn_rows(name, version))
    def are_right(rows: Rows) -> None:
        assert_right(rows, device)

    are_right()


WIDE = [
    Rows("favor", size, normalised, dtype, (1, 1, 70, head_dim))
    for size, head_dim in [(100, 64), (40, 20), (70, 128), (33, 256)]
    for normalised in (False, True)
    for dtype in DTYPES
]


@pytest.mark.nightly
@pytest.mark.parametrize("rows", WIDE, ids=str)
def test_wide_rows(rows: Rows, device: str) -> None:
    """Of each compiled size: the features, and the gradient along a direction."""
    g, x, projection = (rows.arrays()[name] for name in ("g", "x", "projection"))
    xp = array_library(device)
    found = to_numpy(rows.kernels(features, *map(xp.asarray, (g, x, projection))))
    np.testing.assert_allclose(
        found["phi"], rows.reference(*(a.astype(np.float64) for a in (x, projection))),
        rtol=1e-11 if rows.dtype == "float64" else 1e-4,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=a.shape) for a in (x, projection)]
    nudged = [a + 1e-20j * u for a, u in zip((x, projection), directions, strict=True)]
    slopes = g * rows.reference(*nudged).imag * 1e20
    claimed = [np.sum(found[d] * u) for d, u in zip(("dx", "dw"), directions, strict=True)]
    tolerance = 1e-11 if rows.dtype == "float64" else 1e-4
    assert abs(sum(claimed) - slopes.sum()) <= tolerance * np.abs(slopes).sum()


def test_many_rows_are_shared_out(device: str) -> None:
    """Several blocks sum the gradient of the projection, each over its span of the rows."""
    assert_right(Rows("favor", 5, shape=(2, 3, 500, 3)), device)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SIZES)
def test_no_rows(name: str, version: str, device: str) -> None:
    assert_right(Rows(name, SIZES[name][-1], shape=(2, 1, 0, 3), version=version), device)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("far", [30.0, -30.0, 1e3])
def test_far_rows_stay_finite(far: float, normalised: bool, version: str) -> None:
    rows = Rows("favor", 8, normalised, "float32", version=version)
    given = rows.arrays() | {"x": np.full(rows.shape, far, np.float32)}
    found = rows.kernels(features, *(given[name] for name in ("g", "x", "projection")))
    assert all(np.isfinite(x).all() for x in found.values())
    if normalised:
        np.testing.assert_allclose(found["phi"].sum(axis=-1), 1, rtol=1e-6)


def test_projection_is_orthogonal_and_normal() -> None:
    """Blocks of orthogonal rows; over many, every number is standard normal."""
    rng = np.random.default_rng(0)
    for num_features, head_dim in ((8, 8), (5, 8), (20, 8), (3, 1)):
        w = features.orthogonal_projection(num_features, head_dim, rng)
        assert w.shape == (num_features, head_dim)
        for start in range(0, num_features, head_dim):
            products = w[start : start + head_dim] @ w[start : start + head_dim].T
            assert np.allclose(products, np.diag(np.diag(products)))
    many = np.stack([features.orthogonal_projection(4, 4, rng) for _ in range(4000)])
    standard_error = 1 / math.sqrt(len(many))
    assert np.abs(many.mean(axis=0)).max() < 4.5 * standard_error
    assert np.abs((many**2).mean(axis=0) - 1).max() < 4.5 * math.sqrt(2) * standard_error


def estimates(num_features: int, draws: int) -> tuple[Array, Array]:
    """phi(q).phi(k) for many projections, (draws, Lq, Lk), and exp(q.k / sqrt(E)) itself."""
    rng = np.random.default_rng(0)
    q, k = 0.7 * rng.normal(size=(2, 1, 1, 4, 4))
    found = []
    for _ in range(draws):
        w = features.orthogonal_projection(num_features, 4, rng)
        phi_q, phi_k = (features.favor_forward(x, w)[0, 0] for x in (q, k))
        found.append(phi_q @ phi_k.T)
    return np.stack(found), np.exp(q[0, 0] @ k[0, 0].T / 2)


def test_products_estimate_the_softmax_kernel_without_bias() -> None:
    found, wanted = estimates(num_features=6, draws=2000)
    standard_error = found.std(axis=0) / math.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - wanted) < 4.5 * standard_error).all()


def test_error_shrinks_with_the_root_of_the_features() -> None:
    """64 times the features, an eighth of the error."""
    few, many = (
        math.sqrt(np.mean((found - wanted) ** 2))
        for found, wanted in (estimates(8, 300), estimates(512, 300))
    )
    assert 6 < few / many < 10.5


def test_orthogonal_rows_estimate_better_than_independent_ones() -> None:
    rng = np.random.default_rng(0)
    q, k = 0.3 * rng.normal(size=(2, 6, 8))
    wanted = np.exp(q @ k.T / math.sqrt(8))

    def error(draw: Callable[[], Array]) -> float:
        draws = (draw() for _ in range(2000))
        found = [reference.favor(q, w) @ reference.favor(k, w).T for w in draws]
        return float(np.mean((np.stack(found) - wanted) ** 2))

    orthogonal = error(lambda: features.orthogonal_projection(8, 8, rng))
    assert orthogonal < 0.93 * error(lambda: rng.normal(size=(8, 8)))


# -- The checked mode, and planted bugs ------------------------------------------------------------

SAMPLE = {
    "favor": Rows("favor", 37, shape=(1, 2, 70, 3)),
    "normalised": Rows("favor", 37, normalised=True, shape=(1, 2, 70, 3)),
    "dpfp": Rows("dpfp", 2, shape=(1, 2, 9, 33)),
}
SAMPLE |= {f"plain_{name}": replace(rows, version="plain") for name, rows in SAMPLE.items()}


@pytest.mark.parametrize("name", SAMPLE)
def test_kernels_are_clean(name: str) -> None:
    with checked():
        assert_right(SAMPLE[name])


def features_of(package: str) -> Any:
    return import_module(f"{package}.features")


def sample(name: str) -> Callable[[str], Any]:
    """The check that a copy of the package with a bug must fail."""
    return lambda package: lambda: assert_right(SAMPLE[name], module=features_of(package))


# For each bug a piece of text, and what takes its place.
MUTANTS = [
    *bugs(sample("favor"), "features/fast.py",
        square_not_pulled=("if normalised else scale * scale * G_i", ""),
        row_not_squared=("+= real(0.5) * x_tile[e, tx] * x", "+= real(0.5) * x"),
    ),
    *bugs(sample("favor"), "linear/fast.py",
        last_row_forgotten=(
            "end = min(begin + span, lengths[n])", "end = min(begin + span, lengths[n] - 1)"),
    ),
    *bugs(sample("normalised"), "features/fast.py",
        parts_not_rescaled=("* math.exp(highest_of[part, tx] - highest)", ""),
        mean_not_taken_off=("less = G_tile[r] if normalised else", "less ="),
        total_not_rescaled=("total *= math.exp(before - highest)", ""),
    ),
    *bugs(sample("dpfp"), "features/fast.py",
        no_way_round=("later[ty, a] if a >= m else later[ty, a + 2 * E]", "later[ty, a]"),
        neighbour_off_by_one=("* r[ty, a + block + 1]", "* r[ty, a + block]"),
        sign_lost=("else -falls", "else falls"),
    ),
    *bugs(sample("plain_favor"), "features/plain.py",
        square_not_pulled_plainly=("total = -pull * x[i, e]", "total = real(0)"),
    ),
    *bugs(sample("plain_normalised"), "features/plain.py",
        mean_not_taken_off_plainly=("less = G_i if", "less = real(0) if"),
    ),
    *bugs(sample("plain_dpfp"), "features/plain.py",
        no_way_round_plainly=("+ (a - m) % (2 * E)]", "+ max(a - m, 0)]"),
    ),
]  # fmt: skip


test_mutant_is_killed = hunt(MUTANTS, "file", "operation")


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", list(without_barriers("features/fast.py", features_of)), ids=str)
def test_missing_barrier_is_a_race(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.imported(tmp_path) as module, checked(), pytest.raises(DataRace) as caught:
        for name in ("favor", "normalised", "dpfp"):
            assert_right(SAMPLE[name], module=module)
    assert f"_{caught.value.kernel}_" in mutant.name
