"""Products in blocks: small ones here, of blocks made small, beside NumPy's."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import Tensor
from minitransformer.functions import products
from minitransformer.functions.arithmetic import column_sums, product
from minitransformer_kernels.cpu.runtime import pool

THREADS, ROWS, WORTH = "MINITRANSFORMER_NUM_THREADS", 3, 40
BATCHES = [((), ()), ((5,), (5,)), ((7, 2), (7, 2)), ((4,), ()), ((), (4,)), ((3, 1), (2,))]


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "FEWEST_ROWS", ROWS)
        patch.setattr(products, "WORTH_A_THREAD", WORTH)
        patch.setenv(THREADS, "3")
        yield


def draw(generator, shape, dtype, transposed):
    if transposed:
        return draw(generator, (*shape[:-2], shape[-1], shape[-2]), dtype, False).swapaxes(-1, -2)
    return generator.standard_normal(shape).astype(dtype)


@given(
    sizes=st.tuples(*[st.integers(1, 4 * ROWS + 2)] * 3),
    batches=st.sampled_from(BATCHES),
    dtypes=st.tuples(*[st.sampled_from([np.float32, np.float64])] * 2),
    transposed=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_numpy_in_any_layout(sizes, batches, dtypes, transposed, seed):
    generator = np.random.default_rng(seed)
    rows, inner, columns = sizes
    shapes = (*batches[0], rows, inner), (*batches[1], inner, columns)
    x, y = map(draw, [generator] * 2, shapes, dtypes, transposed)
    result = products.shared_products((x, y))[0]
    assert result.dtype == np.result_type(x, y)
    assert result.flags.c_contiguous
    truth = x.astype(np.float64) @ y.astype(np.float64)
    bound = inner * np.finfo(result.dtype).eps * (np.abs(x) @ np.abs(y).astype(np.float64))
    assert (np.abs(result - truth) <= bound).all()
    assert products.shared_products((x, y))[0].tobytes() == result.tobytes()
    if not any(batches):
        bias = draw(generator, (columns,), result.dtype, False)
        biased = products.shared_products((x, y, bias), (x, y))
        assert list(map(bytes, biased)) == [bytes(result + bias), bytes(result)]


@pytest.mark.parametrize(
    "shapes", [((300, 64), (64, 40)), ((20, 64), (64, 300)), ((2, 70, 60),) * 2]
)
def test_gradients_of_large_products(shapes):
    generator = np.random.default_rng(3)
    x, y = (generator.standard_normal(shape) for shape in shapes)
    y = y.swapaxes(-1, -2) if y.ndim == 3 else y
    left, right = Tensor(x, requires_grad=True), Tensor(y, requires_grad=True)
    output = left @ right
    cotangent = generator.standard_normal(output.shape)
    output.backward(cotangent)
    np.testing.assert_allclose(output, x @ y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(left.grad, cotangent @ y.swapaxes(-1, -2), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(right.grad, x.swapaxes(-1, -2) @ cotangent, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "y"),
    [((0, 600), (600, 600)), ((600, 0), (0, 600)), ((600, 600), (600, 0)), ((0, 90, 90), (90, 90)),
     ((1, 90, 90), (0, 90, 90))],
)  # fmt: skip
def test_nothing_is_no_large_product(x, y):
    np.testing.assert_array_equal(product(np.zeros(x), np.zeros(y)), np.zeros(x) @ np.zeros(y))


@pytest.mark.parametrize("count", [0, 1, 7, 2**13])  # few rows, and many, with a number of 7 each
def test_column_sums_of_views(count):
    matrix = np.arange(8.0 * count).reshape(count, 8)[:, :7]
    np.testing.assert_allclose(column_sums(matrix), [sum(column) for column in matrix.T])


def test_blas_has_one_thread_within_and_its_own_again_after(monkeypatch):
    def counts():
        return [library["num_threads"] for library in products._blas.info()]

    before, within = counts(), []
    monkeypatch.setattr(pool, "run", lambda function, blocks: within.append(counts()))
    products.shared_products((np.ones((2, 2)), np.ones((2, 2))))
    assert within == [[1] * len(before)]
    assert counts() == before


def test_products_are_the_same_from_any_thread():
    x, y = (Tensor(np.random.default_rng(0).standard_normal((600, 600), np.float32)) for _ in "xy")
    first = (x @ y).numpy()
    with ThreadPoolExecutor(1) as other:
        np.testing.assert_array_equal(other.submit(lambda: (x @ y).numpy()).result(), first)
    np.testing.assert_array_equal((x @ y).numpy(), first)


@pytest.mark.parametrize(
    ("works", "threads", "parts"),
    [
        ((5,), 1, 1),
        ((5,), 4, 4),
        ((5, 5), 2, 1),
        ((5, 10), 2, 2),  # or one thread would do two thirds
        ((15, 5, 5, 5), 2, 1),
        ((5, 5), 8, 4),
    ],
)
def test_products_are_cut_into_as_few_blocks_as_keep_all_threads_at_work(works, threads, parts):
    assert products._parts(works, threads) == parts
