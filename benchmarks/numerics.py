"""What rounding in float32 does to causal linear attention, far from zero and over long sequences.

An error is the largest of any element, over the largest element of the float64 truth; those of the
last 64 rows of the output are compared by themselves too, as they are means of the most values and
smaller than the first. N=H=1, E=M=64, standard normal inputs. *Naive* is the formula as written, in
NumPy's float32: with the whole matrix of scores, or in the second table, where that would be too
large, token by token with the states S and Z.

The first table adds a number to all queries and keys, or multiplies them: at -30 features are
1e-13, their products 1e-26; times 0.001 all features are nearly alike, and the gradient of the
query is a difference of nearly equal terms in every form. The second is about length. Every state
is a sum of as many terms as there are tokens, and adding them one after the other loses more digits
than adding sums of chunks.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer.course.measuring import error
from minitransformer_kernels import algorithms, reference
from minitransformer_kernels.visible import CAUSAL

from . import harness

E = 64
SHORT, LENGTHS = 1024, (1024, 16_384, 131_072)
FAR = (-30, 1), (-16, 1), (-8, 1), (0, 1), (8, 1), (30, 1), (0, 1e-3), (0, 1e3)
ALGORITHMS = "recurrent", "chunked"

Array = Any
Results = tuple[Array, ...]  # the output and the gradients of query, key and value


def rows() -> Iterator[harness.Row]:
    """Yield a row for each place and each length, and each contestant."""
    for shift, spread in FAR:
        grad, query, key, value = draw(SHORT)
        arrays = grad, shift + spread * query, shift + spread * key, value
        naive = quadratic(arrays, np.float32)
        place = {"added": shift, "times": spread}
        yield from errors(place, arrays, quadratic(arrays, np.float64), naive)
    for length in LENGTHS:
        arrays = draw(length)
        plain = reference.linear_recurrence(*arrays, dtype=np.float32)
        truth = reference.linear_recurrence(*arrays)
        yield from errors({"L": length}, arrays, truth, plain)


def draw(length: int) -> Results:
    """Return the gradient of the output, query, key and value."""
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal((1, 1, length, E), np.float32) for _ in range(4))


def quadratic(arrays: Results, dtype: Any) -> Results:
    """Return output and gradients by the whole matrix of scores."""
    options: dict[str, Any] = {"visible": CAUSAL, "dtype": dtype}
    output = reference.linear_attention(*arrays[1:], **options)
    return output, *reference.linear_attention_backward(*arrays, **options)[:3]


def kernels(algorithm: str, arrays: Results) -> Results:
    """Return output and gradients by our kernels."""
    grad, query, key, value = arrays
    options: dict[str, Any] = {"algorithm": algorithm, "visible": CAUSAL}
    output, denominator, _ = algorithms.forward(query, key, value, **options)
    gradients = algorithms.backward(grad, None, query, key, value, output, denominator, **options)
    return output, *gradients[:3]


def errors(
    place: harness.Row, arrays: Results, truth: Results, naive: Results
) -> Iterator[harness.Row]:
    """Yield the naive row and one for each algorithm."""
    contestants = {"naive": naive} | {name: kernels(name, arrays) for name in ALGORITHMS}
    for contestant, results in contestants.items():
        output, *gradients = map(error, results, truth)
        yield {
            **place,
            "contestant": contestant,
            "output": output,
            "last_rows": error(results[0][:, :, -64:], truth[0][:, :, -64:]),
            **dict(zip(("d_query", "d_key", "d_value"), gradients, strict=True)),
        }


if __name__ == "__main__":
    harness.main("numerics", rows)
