"""What a tensor is, and how gradients travel through the graphs it builds."""

import copy
import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor, no_grad
from minitransformer import functions as F
from minitransformer.function import is_grad_enabled

rng = np.random.default_rng(0)


def leaf(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, "float32"),
        ([1.5, 2.0], "float32"),
        ([[1], [2]], "int64"),
        (True, "bool"),
        (np.ones(2), "float64"),
        (np.float64(2.0), "float64"),
        (np.ones(2, np.float32), "float32"),
        (Tensor([1.0]), "float32"),
    ],
)
def test_dtype_of_a_new_tensor(data: object, dtype: str) -> None:
    tensor = Tensor(data)
    assert tensor.dtype == dtype
    assert isinstance(tensor.data, np.ndarray)
    assert tensor.device == "cpu"


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("number", [2, 0.5, True, np.float64(0.5)])
def test_numbers_do_not_widen_float32(shape: tuple[int, ...], number: float) -> None:
    x = Tensor(np.ones(shape, np.float32), requires_grad=True)
    for y in (x + number, number - x, x * number, number / x, x**number, number**x):
        assert y.dtype == np.float32
        assert F.where(np.array(True), y, number).dtype == np.float32
    assert F.mean((1.5 * x) ** 2).dtype == np.float32


def test_python_floats_are_exact_beside_float64() -> None:
    x = Tensor(np.zeros(2), requires_grad=True)
    numbers = [0.1, 0.2]
    assert (x + numbers).tolist() == (numbers + x).tolist() == numbers
    assert F.where([True, False], numbers, x).tolist() == [0.1, 0.0]
    (x * 1).backward(numbers)
    assert x.grad.tolist() == numbers
    assert (Tensor(np.zeros(2, np.float16)) + numbers).dtype == np.float16


def test_integers_take_the_other_float_dtype() -> None:
    integers = Tensor([1, 2, 3])
    assert (integers * 0.5).dtype == np.float32
    assert (integers / 2).tolist() == [0.5, 1.0, 1.5]
    assert (integers / 2).dtype == np.float32
    assert (integers + Tensor([1.0, 2.0, 3.0])).dtype == np.float32
    assert (integers * np.ones(3)).dtype == np.float64
    assert (integers + 1).dtype == integers.dtype
    assert (integers > 1).tolist() == [False, True, True]


def test_numpy_on_the_left() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    for y in (np.ones(2) + x, np.float64(3) * x, np.ones((2, 2)) @ x, np.ones(2) - x):
        assert isinstance(y, Tensor)
        assert y.requires_grad


def test_python_protocols() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (len(x), x.shape, x.ndim, x.size) == (2, (2, 2), 2, 4)
    assert [row.tolist() for row in x] == [[1.0, 2.0], [3.0, 4.0]]
    assert np.asarray(x).dtype == np.float32
    assert np.shares_memory(np.asarray(x), x.data)
    assert np.array(x, np.float64).dtype == np.float64
    assert float(x[1, 1]) == int(x[1, 1]) == x[1, 1].item() == 4
    assert bool(x[0, 0] == 1.0) and not bool(x[0, 0] != 1.0)
    assert len({x, x, Tensor(x)}) == 2
    assert x.argmax().item() == 3
    assert x.argmax(dim=1, keepdim=True).shape == (2, 1)
    assert repr(leaf(1)[:0]) == "Tensor([], dtype=float64, requires_grad=True)"
    assert x.to() is x and x.to("cpu") is x and x.to(dtype=np.float32) is x


def test_numpy_gets_no_copy_where_it_wants_none(device: str) -> None:
    x = Tensor([1.0, 2.0], device=device)
    assert not np.shares_memory(np.array(x, copy=True), x.numpy())
    with pytest.raises(ValueError, match="copy"):
        np.array(x, np.float64, copy=False)
    if device == "cpu":
        assert np.shares_memory(np.array(x, copy=False), x.data)
    else:
        with pytest.raises(ValueError, match="Tensor: from cuda NumPy gets a copy"):
            np.array(x, copy=False)


def test_plus_equals_makes_a_new_tensor() -> None:
    x = leaf(2)
    y = x
    y += 1
    assert y is not x
    assert np.array_equal(y.numpy(), x.numpy() + 1)


def test_diamond_adds_both_paths() -> None:
    x = leaf(3)
    y = x * x
    (y * x + y * 2).backward(np.ones(3))
    np.testing.assert_allclose(x.grad.numpy(), 3 * x.numpy() ** 2 + 4 * x.numpy())


def test_a_wide_diamond_visits_each_node_once() -> None:
    x = Tensor(np.array(1.0), requires_grad=True)
    y = x
    for _ in range(200):  # 2^200 paths
        y = (y + y) * 0.5
    y.backward()
    assert x.grad.numpy() == 1.0


def test_a_long_chain_needs_no_recursion() -> None:
    x = Tensor(np.array(1.0), requires_grad=True)
    y = x
    for _ in range(5_000):
        y = y + 1
    y.backward()
    assert x.grad.numpy() == 1.0
    del y  # nor does freeing it
    gc.collect()


def test_backward_again_adds_up() -> None:
    x = leaf(2, 3)
    y = (x * x).sum()
    y.backward()
    first = x.grad.numpy().copy()
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * first)
    (x * 3).backward(np.ones((2, 3)))
    np.testing.assert_allclose(x.grad.numpy(), 2 * first + 3)


def test_gradients_never_alias() -> None:
    cotangent = np.ones(3)
    x, y, z = leaf(3), leaf(3), leaf(3)
    z.backward(cotangent)
    assert not np.shares_memory(z.grad.numpy(), cotangent)
    x.backward(cotangent)
    (x + y).backward(cotangent)
    y.reshape(3, 1).T.backward(cotangent[None])
    x.grad.numpy()[...] = 7
    y.grad.numpy()[...] = 8
    assert (cotangent == 1).all()
    kept = x.grad
    x.backward(cotangent)
    assert kept is not None and (kept.numpy() == 7).all()
    assert (x.grad.numpy() == 8).all()
    assert (y.grad.numpy() == 8).all()


def test_mixed_dtypes_give_each_leaf_its_own() -> None:
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    y = leaf(2)
    (x * y).backward(np.ones(2))
    assert x.grad.numpy().dtype == np.float32
    assert y.grad.numpy().dtype == np.float64
    z = x.to(dtype=np.float64)
    z.backward([1.0, 1.0])
    assert x.grad.numpy().dtype == np.float32


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, y, z = leaf(2), Tensor([1.0, 2.0]), leaf(2)
    ((x * y) + z.detach()).backward(np.ones(2))
    assert y.grad is None
    assert z.grad is None
    assert not (y * 2).requires_grad
    assert not (x > 0).requires_grad
    assert x.is_leaf and not (x * 1).is_leaf


def test_no_grad_records_nothing() -> None:
    x = leaf(2)

    @no_grad()
    def double(tensor: Tensor) -> Tensor:
        with no_grad():
            assert not (tensor * 2).requires_grad
        return tensor * 2

    assert not double(x).requires_grad
    with pytest.raises(ZeroDivisionError), no_grad():
        raise ZeroDivisionError
    assert (x * 2).requires_grad


def test_one_no_grad_may_be_entered_twice() -> None:
    quietly = no_grad()
    with quietly:
        with quietly:
            assert not is_grad_enabled()
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_no_grad_refuses_what_only_begins_when_called() -> None:
    def generator() -> Iterator[None]:
        yield

    async def coroutine() -> None:
        pass

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match=f"no_grad: {function.__name__} is a generator or a co"):
            no_grad()(function)


def test_what_no_backward_needs_is_freed() -> None:
    x = leaf(1000)
    middle = x + 1  # addition saves nothing, and reshaping keeps a view
    array = weakref.ref(middle.data)
    y = middle - 2
    del middle
    assert array() is None
    y.backward(np.ones(1000))
    saved = x * x
    kept = weakref.ref(saved.data)
    total = saved.sum() * saved.sum()
    del saved
    del total
    assert kept() is None  # by reference counts alone: the tape has no cycles


def test_backward_holds_few_gradients_at_a_time() -> None:
    size = 100_000
    y = x = Tensor(np.ones(size), requires_grad=True)
    for _ in range(40):
        y = -y  # negation saves nothing
    cotangent = np.ones(size)
    tracemalloc.start()
    y.backward(cotangent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert x.grad.numpy()[0] == 1
    assert peak < 4 * cotangent.nbytes


@given(st.integers(0, 2**32 - 1))
def test_random_graphs(seed: int) -> None:
    """The gradient of a random expression equals its derivative by the complex step."""

    def evaluate(draw: np.random.Generator, values: list[Any]) -> list[Any]:
        nodes = list(values)
        for _ in range(12):
            a, b = (nodes[i] for i in draw.integers(len(nodes), size=2))
            choice = draw.integers(4)
            nodes.append([a + b, a * b * 0.5, a - b * 2.0, a / (b * b + 2.0)][choice])
        return nodes[-3:]

    point = np.random.default_rng(seed).standard_normal(3)
    leaves = [Tensor(np.array(x), requires_grad=True) for x in point]
    for output in evaluate(np.random.default_rng(seed), leaves):
        if output.requires_grad:
            output.backward()
    for number, x in enumerate(leaves):
        moved = point.astype(complex)
        moved[number] += 1e-20j
        slope = sum(y.imag for y in evaluate(np.random.default_rng(seed), list(moved))) / 1e-20
        actual = 0.0 if x.grad is None else x.grad.item()
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-12)


def test_what_is_no_number_equals_no_tensor() -> None:
    x = Tensor([1.0, 2.0])
    assert x != None and x != "a" and x in [None, x]  # noqa: E711
    assert [x == None, x == "a"] == [False, False]  # noqa: E711


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix_is_an_array_like_others() -> None:
    x = Tensor(np.matrix([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal((x * x).numpy(), [[1, 4], [9, 16]])
    assert x[0].shape == x.sum(0).shape == (2,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Tensor([1], requires_grad=True), TypeError, "only floating tensors can require"),
        (lambda: setattr(Tensor([1]), "requires_grad", True), TypeError, "only floating tensors"),
        (lambda: setattr(leaf(1), "grad", np.ones(1)), TypeError, "a Tensor or None, got ndarray"),
        (lambda: Tensor(["a"]), TypeError, "as_array: expected numbers, got dtype <U1"),
        (lambda: Tensor(np.ma.array([1.0], mask=[1])), TypeError, "has elements without a number"),
        (lambda: Tensor([1.0], device="tpu"), ValueError, "expected 'auto', 'cpu' or 'cuda'"),
        (lambda: Tensor([1.0, 2.0]).item(), ValueError, r"item: .* one element, got shape \(2,\)"),
        (lambda: len(Tensor(1.0)), TypeError, "len: a tensor without dimensions"),
        (lambda: Tensor([1.0]).backward(), RuntimeError, "does not require a gradient; create an"),
        (lambda: leaf(3, 4).backward(), RuntimeError, r"shape \(3, 4\) needs gradient=\.\.\."),
        (lambda: leaf(3).backward(np.ones(4)), ValueError, r"shape \(3,\), got \(4,\)"),
        (lambda: leaf(3).__setitem__(0, 1.0), TypeError, "use functions.where or functions.masked"),
        (lambda: copy.deepcopy(leaf(3) * 2), TypeError, r"only leaves are copied .* x.detach\(\)"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
