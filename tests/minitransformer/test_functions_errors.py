"""Every message that a function promises, and the corners that the property tests do not draw."""

import math
from typing import Any

import numpy as np
import pytest

from minitransformer import Tensor, functions
from minitransformer import functions as F
from minitransformer.functions.special import erf


def zeros(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape))


BYTES = Tensor(np.array([0, 255], np.uint8))
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: zeros(2, 3) + zeros(4, 3), ValueError, r"add: shapes \(2, 3\) and \(4, 3\) do not br"),
    (lambda: zeros(2) * zeros(3), ValueError, "multiply: .* one of them 1, got 2 and 3"),
    (lambda: zeros(2, 3) @ zeros(2, 3), ValueError, r"matmul: .* of x, 3, must be y's last .*, 2"),
    (lambda: zeros(2, 2, 3) @ zeros(3, 3, 4), ValueError, r"matmul: shapes \(2,\) and \(3,\)"),
    (lambda: zeros() @ zeros(2), ValueError, r"matmul: expected matrices or vectors, got \(\)"),
    (lambda: zeros(2, 2) @ np.array([[1, "a"]], object), TypeError, "expected numbers"),
    (lambda: zeros(2) + np.array([1j, 2]), TypeError, "expected numbers, got dtype complex128"),
    (lambda: F.linear(zeros(2, 3), zeros(4, 5)), ValueError, r"linear: expected x .* got \(2, 3\)"),
    (lambda: F.linear(zeros(2, 3), zeros(4, 3), zeros(3)), ValueError,
     r"linear: expected bias of shape \(4,\), got \(3,\)"),
    (lambda: zeros(2).sum(1), ValueError, r"sum: dim 1 is out of range .* shape \(2,\)"),
    (lambda: zeros(2).mean(-2), ValueError, "mean: dim -2 is out of range"),
    (lambda: zeros(2).var(3), ValueError, "var: dim 3 is out of range"),
    (lambda: zeros(2).amax((0, 1)), ValueError, "amax: dim 1 is out of range"),
    (lambda: zeros(2).sum([0]), TypeError, r"sum: dim must be a whole number, a tuple .*, got \[0"),
    (lambda: zeros(2).argmax(1), ValueError, "argmax: dim 1 is out of range"),
    (lambda: Tensor([1, 2]).mean(), TypeError, "mean: expected a floating tensor, got int64"),
    (lambda: Tensor([1, 2]).var(), TypeError, "var: expected a floating tensor, got int64"),
    (lambda: F.exp(Tensor([1])), TypeError, r"exp: .* got int64; convert with \.to\(dtype"),
    (lambda: F.softmax(zeros(2), 1), ValueError, "softmax: dim 1 is out of range"),
    (lambda: F.log_softmax(zeros(2), 1), ValueError, "log_softmax: dim 1 is out of range"),
    (lambda: F.softmax(Tensor([1, 2])), TypeError, "softmax: expected a floating tensor"),
    (lambda: F.gelu(zeros(1), "exact"), ValueError, "gelu: expected approximate 'none' or 'tanh'"),
    (lambda: F.layer_norm(zeros(2, 3), 2), ValueError, r"layer_norm: .* \*\(2,\)\), got \(2, 3\)"),
    (lambda: F.layer_norm(zeros(2, 3), 3, zeros(3), zeros(2)), ValueError,
     r"layer_norm: expected bias of shape \(3,\), got \(2,\)"),
    (lambda: F.layer_norm(zeros(2, 3), 3, eps=-1), ValueError, "eps must be 0 or above, got -1"),
    (lambda: F.layer_norm(zeros(2, 0), 0), TypeError, "layer_norm: .* number above 0 .* got 0"),
    (lambda: zeros(2).reshape(2.0), TypeError, "sizes and dimensions must be whole .*, got 2.0"),
    (lambda: zeros(2).to(dtype=complex), TypeError, "to: expected a dtype .*, got complex128"),
    (lambda: zeros(2, 3).reshape(4, -1), ValueError, r"reshape: \(2, 3\) has 6 elements and can"),
    (lambda: zeros(2).reshape(-1, -1), ValueError, "reshape: .* cannot become"),
    (lambda: zeros(2, 3).permute(0, 0), ValueError, "permute: expected each of the 2 dimensions"),
    (lambda: zeros(2).transpose(0, 1), ValueError, "transpose: dim 1 is out of range"),
    (lambda: zeros(2, 3).squeeze(0), ValueError, r"squeeze: dim 0 of \(2, 3\) has size 2"),
    (lambda: zeros(2).unsqueeze(2), ValueError, "unsqueeze: dim 2 is out of range"),
    (lambda: zeros(2, 3).expand(4, 3), ValueError, r"expand: \(2, 3\) cannot be expanded to"),
    (lambda: zeros(2)[3], IndexError, "index 3 is out of bounds"),
    (lambda: F.cat([]), ValueError, "cat: expected at least one tensor, got none"),
    (lambda: F.cat(zeros(2, 3)), TypeError, "cat: expected a list of tensors, got Tensor"),
    (lambda: F.cat([zeros(2, 3), zeros(2, 4)]), ValueError, "cat: shapes must agree but for dim 0"),
    (lambda: F.stack([zeros(2), zeros(3)]), ValueError, "stack: expected equal shapes"),
    (lambda: F.split(zeros(5), [2, 2]), ValueError, r"split: \[2, 2\] does not cut dim 0 of \(5,"),
    (lambda: F.split(zeros(5), 0), ValueError, "split: 0 does not cut"),
    (lambda: F.split(zeros(5), 2.5), TypeError, "split: size must be a whole number .*, got 2.5"),
    (lambda: F.split(zeros(5), [2.5, 2.5]), TypeError, r"split: .* a list of them, got \[2.5, 2.5"),
    (lambda: F.stack([]), ValueError, "stack: expected at least one tensor, got none"),
    (lambda: F.stack(zeros(2) for _ in "ab"), TypeError, "stack: expected a list .* generator"),
    (lambda: F.stack([[1.0]]), TypeError, "stack: expected a Tensor, got list"),
    (lambda: F.cat([[1.0]]), TypeError, "cat: expected a Tensor, got list"),
    (lambda: zeros(2, 3).argmax((0, 1)), TypeError, r"argmax: dim must be one .*, got \(0, 1\)"),
    (lambda: zeros(0, 3).amax(0), ValueError, r"amax: dim 0 of \(0, 3\) has no elements"),
    (lambda: zeros(0).argmax(), ValueError, r"argmax: dim None of \(0,\) has no elements"),
    (lambda: BYTES + 256, OverflowError, "add: expected a number that uint8 has, got 256; co"),
    (lambda: Tensor([1]) * 2**70, OverflowError, "multiply: .* int64 has, got 118059"),
    (lambda: F.embedding([0], zeros(3)), ValueError, r"embedding: .* got shape \(3,\)"),
    (lambda: F.embedding([0, 3], zeros(3, 2)), IndexError, r"embedding: indices .* 0\.\.2, got 0"),
    (lambda: F.embedding([-1], zeros(3, 2)), IndexError, r"embedding: indices must be 0\.\.2"),
    (lambda: F.embedding([0.5], zeros(3, 2)), TypeError, "embedding: expected integer indices"),
    (lambda: F.where([1, 0], zeros(2), 0.0), TypeError, "where: expected a boolean mask, got int"),
    (lambda: F.masked_fill(zeros(2), [1, 0], 0.0), TypeError, "masked_fill: expected a boolean"),
    (lambda: F.masked_fill(zeros(2), [True, False], zeros(2)), TypeError,
     "masked_fill: expected a number for value, got Tensor; to choose between tensors use .*where"),
    (lambda: F.masked_fill(BYTES, [True, False], 256), ValueError, "uint8 has, got 256"),
    (lambda: F.masked_fill(BYTES, [True, False], 0.5), ValueError, "uint8 has, got 0.5"),
    (lambda: F.masked_fill(BYTES, [True, False], math.nan), ValueError, "uint8 has, got nan"),
    (lambda: F.masked_fill(zeros(2), [True] * 3, 0.0), ValueError,
     r"masked_fill: a mask of shape \(3,\) does not broadcast to \(2,\)"),
    (lambda: F.masked_fill(zeros(2), [[True, False]], 0.0), ValueError,
     r"masked_fill: a mask of shape \(1, 2\) does not"),
    (lambda: F.masked_fill(zeros(1), [True, False], 0.0), ValueError,
     r"masked_fill: a mask of shape \(2,\) does not"),
    (lambda: F.cross_entropy(zeros(2, 3), [1, 2, 0]), ValueError,
     r"cross_entropy: expected logits .* got \(2, 3\) and \(3,\)"),
    (lambda: F.cross_entropy(zeros(2, 3), [1, 3]), IndexError,
     r"targets must be 0\.\.2, got 1\.\.3"),
    (lambda: F.cross_entropy(zeros(2, 3), [1.0, 2.0]), TypeError, "expected integer targets"),
    (lambda: F.cross_entropy(zeros(2, 3), [1, 2], reduction="max"), ValueError, "'sum' or 'none'"),
    (lambda: F.mse_loss(zeros(2), zeros(2, 1)), ValueError,
     r"mse_loss: .* got \(2,\) and \(2, 1\)"),
    (lambda: F.mse_loss(zeros(2), zeros(2), "max"), ValueError, "mse_loss: expected reduction"),
    (lambda: F.mse_loss(Tensor([1]), zeros(1)), TypeError, "mse_loss: .* tensor, got int64"),
    (lambda: F.mse_loss(zeros(1), Tensor([1])), TypeError, "mse_loss: .* tensor, got int64"),
    (lambda: F.dropout(Tensor([1])), TypeError, "dropout: expected a floating tensor, got int64"),
    (lambda: F.dropout(np.ones(2)), TypeError, "dropout: expected a Tensor, got ndarray"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=[m for _, _, m in ERRORS])
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_every_function_is_exported() -> None:
    assert all(callable(getattr(functions, name)) for name in functions.__all__)


def test_extreme_values_neither_overflow_nor_vanish() -> None:
    x = Tensor(np.array([-1e4, -50.0, 0.0, 50.0, 1e4], np.float32), requires_grad=True)
    with np.errstate(over="raise", invalid="raise"):
        for function in (F.sigmoid, F.softplus, F.elu, F.tanh, F.gelu, F.softmax, F.log_softmax):
            y = function(x)
            y.backward(np.ones(5))
            assert np.isfinite(y.numpy()).all()
        F.cross_entropy(x, 0).backward()
    assert np.isfinite(x.grad.numpy()).all()
    np.testing.assert_allclose(F.sigmoid(x).numpy()[1], np.exp(-50), rtol=1e-5)
    np.testing.assert_allclose(F.softplus(x).numpy()[1], np.exp(-50), rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(np.float16, 5e-4), (np.float32, 1.2e-7), (np.float64, 1e-16)]
)
def test_erf_is_off_by_one_rounding_at_most(dtype: type, rounding: float) -> None:
    x: Any = np.linspace(-6, 6, 100_001).astype(dtype)
    truth = np.vectorize(math.erf)(x.astype(np.float64))
    assert erf(x).dtype == dtype
    assert (abs(erf(x) - truth) <= rounding * abs(truth)).all()
    assert erf(np.array([-np.inf, np.inf], dtype)).tolist() == [-1.0, 1.0]


def test_small_integers_meet_numbers_that_they_do_not_reach() -> None:
    np.testing.assert_allclose((BYTES / 256).numpy(), [0, 255 / 256])
    assert (BYTES == -1).tolist() == (BYTES >= 256).tolist() == [False, False]
    assert (BYTES != 2**70).tolist() == (BYTES > -(2**70)).tolist() == [True, True]
    assert (BYTES < 255).tolist() == [True, False]
    assert F.masked_fill(BYTES, [False, True], 7).tolist() == [0, 7]


@pytest.mark.parametrize("x", [math.inf, -math.inf])
def test_the_slope_of_elu_at_infinity(x: float) -> None:
    at = Tensor([x], requires_grad=True)
    F.elu(at).backward([1.0])
    assert at.grad.tolist() == [float(x > 0)]


def test_power_at_zero() -> None:
    x = Tensor([0.0, 0.0], requires_grad=True)
    y = Tensor([0.0, 2.0], requires_grad=True)
    (x**y).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]
    assert y.grad.tolist() == [0.0, 0.0]


def test_integers_among_floating_numbers_take_their_dtype() -> None:
    x, n = Tensor([0.5, 1.5], requires_grad=True), Tensor([1, 2])
    results = x + n, x @ n, n @ x, F.cat([n, x]), F.stack([x, n]), F.linear(x, Tensor([[1, 2]]))
    assert {y.dtype for y in results} == {np.dtype(np.float32)}
    results[1].backward()
    assert x.grad.tolist() == [1.0, 2.0] and (n @ n).dtype == F.cat([n, n]).dtype == np.int64


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_nothing_has_a_softmax_of_its_shape(function: Any) -> None:
    assert function(zeros(2, 0)).shape == function(zeros(0, 2), 0).shape[::-1] == (2, 0)


def test_equal_maxima_share_the_gradient() -> None:
    x = Tensor([[1.0, 3.0, 3.0]], requires_grad=True)
    x.amax(dim=1).backward([2.0])
    assert x.grad.tolist() == [[0.0, 1.0, 1.0]]


def test_what_where_did_not_choose_gets_zero_even_where_it_is_infinite() -> None:
    x = Tensor([0.0, 4.0], requires_grad=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        F.where(x > 0, 1 / x, 0.0).backward([1.0, 1.0])
        assert x.grad.numpy()[1] == -1 / 16


def test_ignored_targets_count_for_nothing() -> None:
    logits = Tensor(np.random.default_rng(0).standard_normal((3, 4)), requires_grad=True)
    loss = F.cross_entropy(logits, [1, -100, 2])
    kept = F.cross_entropy(logits[[0, 2]], [1, 2])
    assert loss.item() == pytest.approx(kept.item(), rel=1e-14)
    loss.backward()
    assert not logits.grad.numpy()[1].any()
    with np.errstate(invalid="ignore"):
        assert np.isnan(F.cross_entropy(logits, [-100] * 3).item())
    assert F.cross_entropy(logits, [-100] * 3, reduction="sum").item() == 0


@pytest.mark.parametrize("spoilt", [-np.inf, np.inf, np.nan])
def test_ignored_targets_count_for_nothing_whatever_their_logits(
    spoilt: float, device: str
) -> None:
    given = np.array([[1.0, 2.0], [spoilt, spoilt]])
    logits = Tensor(given, requires_grad=True, device=device)
    with np.errstate(invalid="ignore"):
        losses = F.cross_entropy(logits, [0, -100], reduction="none")
    assert losses.tolist() == [F.cross_entropy(logits[:1], [0]).item(), 0]
    losses.backward([1.0, np.inf])
    assert np.isfinite(logits.grad.numpy()).all()
    assert not logits.grad.numpy()[1].any()


def test_the_mean_over_nothing_is_no_number() -> None:
    x = Tensor(np.zeros((0, 3)), requires_grad=True)
    loss = F.mse_loss(x, zeros(0, 3))
    assert np.isnan(loss.item())
    loss.backward()
    assert x.grad.shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "expected", "dtype"),
    [
        (lambda: F.where([True, False], 1.0, 0.0), [1.0, 0.0], "float32"),
        (lambda: F.add(1.0, 2.0), 3.0, "float32"),
        (lambda: F.add(1, 2.0), 3.0, "float32"),
        (lambda: F.multiply(2, 3), 6, "int64"),
        (lambda: F.add(1.0, [2.0]), [3.0], "float32"),
    ],
)
def test_two_numbers_are_operands(call: Any, expected: Any, dtype: str) -> None:
    found = call()
    assert (found.tolist(), found.dtype) == (expected, dtype)


def test_sizes_and_dimensions_may_be_numpys() -> None:
    x, two = zeros(2, 3), np.int64(2)
    assert x.sum(np.int64(0)).shape == (3,)
    assert x.reshape(np.int64(6)).shape == (6,)
    assert [piece.shape for piece in x.split(two, np.int64(1))] == [(2, 2), (2, 1)]


def test_an_empty_dimension_is_split_into_one_piece() -> None:
    x = Tensor(np.zeros((0, 3)), requires_grad=True)
    (piece,) = x.split(2)
    piece.backward(np.zeros((0, 3)))
    assert piece.shape == (0, 3)


def test_an_empty_list_selects_nothing() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    nothing = x[[]]
    nothing.backward([])
    assert nothing.shape == (0,)
    assert x.grad.tolist() == [0.0, 0.0]


def test_a_sum_of_no_products_is_zero() -> None:
    x = Tensor(np.zeros((2, 3, 0)), requires_grad=True)
    y = F.linear(x, zeros(4, 0))
    y.backward(np.ones((2, 3, 4)))
    np.testing.assert_array_equal(y.numpy(), np.zeros((2, 3, 4)))
    np.testing.assert_array_equal((x @ zeros(0, 4)).numpy(), y.numpy())


def test_a_matrix_product_over_a_batch_equals_one_for_each() -> None:
    generator = np.random.default_rng(0)
    x, w = generator.standard_normal((2, 5, 3)), generator.standard_normal((3, 4))
    np.testing.assert_allclose((Tensor(x) @ Tensor(w)).numpy(), np.einsum("nli,io->nlo", x, w))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("shape", [(4, 3), (7, 64), (600, 1), (2000, 64)])
def test_an_embedding_named_often_adds_up_its_gradients(shape: Any, dtype: str) -> None:
    random = np.random.default_rng(0)
    weight = Tensor(np.ones(shape, dtype), requires_grad=True)
    indices = random.integers(0, shape[0] - 1, 600)  # the last row is named by none
    gradient = random.integers(-9, 9, (600, shape[1])).astype(dtype)
    F.embedding(indices, weight).backward(gradient)
    wanted = np.eye(shape[0])[indices].T @ gradient.astype(np.float64)
    assert weight.grad.dtype == dtype
    np.testing.assert_array_equal(weight.grad.numpy(), wanted)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_a_variance_of_too_few_is_infinite_not_negative() -> None:
    for correction in 2, 5:
        assert F.var(Tensor([1.0, 2.0]), correction=correction).item() == np.inf
