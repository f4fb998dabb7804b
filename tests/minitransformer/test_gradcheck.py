"""The checker is checked: what is right passes, what is slightly wrong does not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Context, Function, GradientError, Tensor, gradcheck, manual_seed
from minitransformer import functions as F

Spoil = Callable[[Any], Any]


def product(spoil: Spoil) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns ``x * y``, with the gradient of ``y`` spoilt."""

    class Product(Function):
        @staticmethod
        def forward(ctx: Context, x: Any, y: Any) -> Any:
            ctx.save(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Context, gradient: Any) -> Any:
            x, y = ctx.saved
            return gradient * y, spoil(gradient * x)

    return Product.apply


def one_element(gradient: Any) -> Any:
    wrong = gradient.copy()
    wrong[1, 2] *= 1.001
    return wrong


SPOILS: dict[str, Spoil] = {
    "0.1% too large": lambda g: g * 1.001,
    "0.1% too small": lambda g: g * 0.999,
    "one element": one_element,
    "zero": lambda g: g * 0,
    "None": lambda g: None,
    "sign": lambda g: -g,
    "shifted": lambda g: np.roll(g, 1, axis=0),
    "NaN": lambda g: g * np.nan,
    "offset": lambda g: g + 1e-4,
}


def inputs(seed: int) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [np.copysign(0.2, x) + x for x in generator.standard_normal((2, 3, 4))]


@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-2, 1.0, 1e2]))
def test_a_right_gradient_passes(seed: int, scale: float) -> None:
    assert gradcheck(product(lambda g: g), [scale * x for x in inputs(seed)], seed=seed)
    assert gradcheck(F.gelu, inputs(seed)[:1], seed=seed)


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@given(seed=st.integers(0, 1000))
def test_a_wrong_gradient_fails(spoil: Spoil, seed: int) -> None:
    with pytest.raises(GradientError, match="the gradient of input 1 is wrong at"):
        gradcheck(product(spoil), inputs(seed), seed=seed)


@pytest.mark.parametrize("name", sorted(set(SPOILS) - {"one element"}))
def test_directions_alone_find_it_too(name: str) -> None:
    with pytest.raises(GradientError, match="the gradient along a random direction is wrong"):
        gradcheck(product(SPOILS[name]), inputs(3), elementwise=False, directions=8)


def test_the_report_names_the_worst_element() -> None:
    with pytest.raises(GradientError) as caught:
        gradcheck(product(one_element), inputs(1), directions=0)
    assert "input 1 is wrong at [1, 2]: backward gives " in str(caught.value)
    assert "1 of 12 wrong" in str(caught.value)


def test_a_gradient_that_vanishes_under_a_sum_is_found() -> None:
    class NoSoftmax(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            e = np.exp(x)
            return e / e.sum(-1, keepdims=True)

        @staticmethod
        def backward(ctx: Context, gradient: Any) -> Any:
            return np.zeros_like(gradient)

    with pytest.raises(GradientError):
        gradcheck(NoSoftmax.apply, inputs(0)[:1])


def test_unused_outputs_must_stand_for_zero() -> None:
    class Careless(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Context, first: Any, second: Any) -> Any:
            if first is None or second is None:
                return np.zeros(3)
            return 2 * first + 3 * second

    with pytest.raises(GradientError, match="outputs at once differs from the sum of one at a"):
        gradcheck(Careless.apply, [np.ones(3)])


def test_a_function_that_writes_to_its_input_is_found() -> None:
    def careless(x: Tensor) -> Tensor:
        x.data[0] = 5.0
        return x * 2

    with pytest.raises(GradientError, match="the function changes its input 0"):
        gradcheck(careless, [np.ones(2)])


def test_a_random_function_is_found() -> None:
    with pytest.raises(GradientError, match="two results for one input; call manual_seed"):
        gradcheck(F.dropout, [np.ones(64)])

    def seeded(x: Tensor) -> Tensor:
        manual_seed(1)
        return F.dropout(x)

    assert gradcheck(seeded, [np.ones(64)])


def test_float32_inside_is_found() -> None:
    with pytest.raises(GradientError, match=r"float64 outputs for float64 inputs, got \['float32'"):
        gradcheck(lambda x: x.to(dtype=np.float32), [np.ones(2)])


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [(F.exp, [np.ones(2, int)], "among the inputs"), (lambda x: 3.0, [np.ones(2)], "must return")],
)
def test_nothing_to_check_is_no_success(function: Any, inputs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        gradcheck(function, inputs)


def test_nested_outputs_constants_and_other_inputs() -> None:
    def function(x: Tensor, power: int, indices: Any, unused: Tensor) -> Any:
        return [x**power, (F.exp(x)[indices], Tensor(np.ones(2))), None, Tensor([1])]

    point = [Tensor(np.ones(3, np.float32)), 2, np.array([0, 0, 1]), np.float64(2.0)]
    assert gradcheck(function, point)
