"""Every function of the table in `function_cases.py`, checked in every way that it allows."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minitransformer import Tensor
from minitransformer import functions as F
from tests.cases import LAYOUTS
from tests.minitransformer.function_cases import CASES, Array, Example, FunctionCase

# Small arrays and no kernels: three times the examples that a kernel can afford.
more = settings(max_examples=3 * settings().max_examples)
STEP = 1e-5  # of differences
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def run(
    case: FunctionCase, arrays: list[Array], options: dict[str, Any], device: str = "cpu"
) -> tuple[list[Array], list[Array]]:
    """Returns the outputs, and the gradients for cotangents that depend on the shapes only."""
    leaves = [Tensor(array, requires_grad=True, device=device) for array in arrays]
    result = case.operation(*leaves, **options)
    outputs = result if isinstance(result, tuple) else (result,)
    generator = np.random.default_rng(5)
    for output in outputs:
        output.backward(generator.standard_normal(output.shape))
    return [y.numpy() for y in outputs], [
        np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves
    ]


def slope(
    case: FunctionCase, arrays: list[Array], options: dict[str, Any], direction: list[Array]
) -> tuple[float, float]:
    """The reference's derivative along a direction, for the cotangents of `run`, and its scale.

    A central difference: it knows nothing of the function's own forward or backward.
    """
    ahead, behind = (
        references(case, [x + h * v for x, v in zip(arrays, direction, strict=True)], options)
        for h in (STEP, -STEP)
    )
    generator = np.random.default_rng(5)
    rises = [
        generator.standard_normal(y.shape) * (y - z) / (2 * STEP)
        for y, z in zip(ahead, behind, strict=True)
    ]
    return sum(float(x.sum()) for x in rises), 1 + sum(float(abs(x).sum()) for x in rises)


def references(case: FunctionCase, arrays: list[Array], options: dict[str, Any]) -> list[Array]:
    result = case.reference(*arrays, **options)
    return [np.asarray(y) for y in (result if isinstance(result, list) else [result])]


def check_all(actual: list[Array], expected: list[Array], rtol: float, atol: float) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert x.shape == y.shape, (x.shape, y.shape)
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


@every_case
@settings(more, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equals_its_reference(case: FunctionCase, device: str, data: st.DataObject) -> None:
    equals_its_reference(case, data.draw(case.examples), device)


def equals_its_reference(case: FunctionCase, example: Example, device: str = "cpu") -> None:
    arrays = example.inputs(case.values)
    outputs, gradients = run(case, arrays, example.options, device)
    check_all(outputs, references(case, arrays, example.options), 1e-11, 1e-13)
    direction = [np.random.default_rng(example.seed).standard_normal(x.shape) for x in arrays]
    expected, scale = slope(case, arrays, example.options, direction)
    actual = sum(np.vdot(g, v) for g, v in zip(gradients, direction, strict=True))
    assert actual == pytest.approx(expected, rel=3e-5, abs=3e-7 * scale)


@every_case
@more
@given(data=st.data())
def test_float32_stays_float32_and_accurate(case: FunctionCase, data: st.DataObject) -> None:
    """The error is at most twice that of the naive float32 computation, plus a floor."""
    example: Example = data.draw(case.examples)
    narrow = [x.astype(np.float32) for x in example.inputs(case.values)]
    wide = [x.astype(np.float64) for x in narrow]
    outputs, gradients = run(case, narrow, example.options)
    assert {y.dtype for y in outputs} == {np.dtype(np.float32)}
    truths = references(case, wide, example.options)
    for actual, naive, truth in zip(
        outputs, references(case, narrow, example.options), truths, strict=True
    ):
        floor = 4e-7 * (1 + abs(truth).max(initial=0))
        allowed = 2 * abs(naive - truth).max(initial=0) + floor
        assert abs(actual - truth).max(initial=0) <= allowed
    for actual, truth in zip(gradients, run(case, wide, example.options)[1], strict=True):
        assert actual.dtype == np.float32 or not actual.any()
        np.testing.assert_allclose(
            actual, truth, rtol=2e-3, atol=2e-5 * (1 + abs(truth).max(initial=0))
        )


@every_case
@more
@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)))
def test_strides_do_not_matter(case: FunctionCase, data: st.DataObject, layout: str) -> None:
    example: Example = data.draw(case.examples)
    arrays = example.inputs(case.values)
    plain = run(case, arrays, example.options)
    placed = [LAYOUTS[layout](x[None, None], np)[0, 0] for x in arrays]
    strided = run(case, placed, example.options)
    for actual, expected in zip(strided, plain, strict=True):
        check_all(actual, expected, 1e-11, 1e-13)


@every_case
@more
@given(data=st.data())
def test_no_array_is_written_or_shared(case: FunctionCase, data: st.DataObject) -> None:
    example: Example = data.draw(case.examples)
    arrays = example.inputs(case.values)
    leaves = [Tensor(array, requires_grad=True) for array in arrays]
    result = case.operation(*leaves, **example.options)
    outputs = result if isinstance(result, tuple) else (result,)
    cotangents = [np.random.default_rng(1).standard_normal(y.shape) for y in outputs]
    for array in (*arrays, *cotangents, *(y.data for y in outputs if y.data.base is None)):
        array.flags.writeable = False
    for output, cotangent in zip(outputs, cotangents, strict=True):
        output.backward(cotangent)
    gradients = [leaf.grad.data for leaf in leaves if leaf.grad is not None]
    assert not any(np.shares_memory(x, y) for x in gradients for y in (*arrays, *cotangents))
    assert not any(np.shares_memory(x, y) for x, y in itertools.combinations(gradients, 2))
    assert all(gradient.flags.writeable for gradient in gradients)


@every_case
@more
@given(data=st.data())
def test_each_gradient_alone_equals_all_together(case: FunctionCase, data: st.DataObject) -> None:
    """A backward that skips an input's work must not change the others'."""
    example: Example = data.draw(case.examples)
    arrays = example.inputs(case.values)
    together = run(case, arrays, example.options)[1]
    for number, expected in enumerate(together):

        def alone(x: Tensor, number: int = number) -> Any:
            others = [Tensor(array) for array in arrays]
            others[number] = x
            return case.operation(*others, **example.options)

        single = FunctionCase(case.name, alone, case.reference, case.examples)
        check_all(run(single, [arrays[number]], {})[1], [expected], 1e-12, 1e-14)


def test_float16_holds_means_of_more_than_it_counts() -> None:
    size = 70_000  # float16 ends at 65,504
    signs = Tensor(np.tile(np.float16([-1, 1]), size // 2), requires_grad=True)
    for loss, slopes in (
        (F.mean(signs), 1 / size),
        (F.var(signs, correction=0), 2 / size),
        (F.mse_loss(signs, Tensor(np.zeros(size, np.float16))), 2 / size),
    ):
        signs.grad = None
        loss.backward()
        assert loss.dtype == signs.grad.dtype == np.float16
        np.testing.assert_allclose(abs(signs.grad.numpy()), np.float16(slopes), rtol=1e-2)
        assert loss.item() in (0, 1)
    shares = F.softmax(Tensor(np.zeros(size, np.float16))).numpy()
    np.testing.assert_allclose(shares, 1 / size, rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gelu_by_tanh_of_large_numbers(dtype: Any) -> None:
    x = Tensor(np.array([-1e3, -20, 0, 20, 1e3], dtype), requires_grad=True)
    y = F.gelu(x, "tanh")
    y.sum().backward()
    assert y.tolist() == [0, 0, 0, 20, 1000]
    assert x.grad.tolist() == [0, 0, 0.5, 1, 1]


def test_gradients_at_the_edges() -> None:
    x = Tensor([np.nan, 1.0, -1.0], requires_grad=True)
    F.relu(x).sum().backward()
    assert x.grad.tolist() == [1, 1, 0]
    y = Tensor([-1.5, 0.0, 2.0], requires_grad=True)
    with np.errstate(divide="ignore"):
        F.power(Tensor([0.0, 0.0, 0.0]), y).sum().backward()
    assert y.grad.tolist() == [-np.inf, 0, 0]
