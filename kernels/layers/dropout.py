"""Dropout without a mask in memory: random bits as a pure function of where they are needed.

Dropout (Srivastava et al. 2014) sets a weight to zero with probability d and divides what is left
by 1 - d, so that the mean stays. Backward needs the same mask again. A generator with a state would
have to store it: for attention, as many bytes as weights, which the fused kernels never store. A
*counter-based* generator (Salmon et al. 2011) has no state. It scrambles a counter, here the place
of the weight, under a key, here the seed, so that any thread of any kernel can ask for any number,
at any time, and gets the same bits: on a CPU and a GPU, whatever the shapes of tiles.

Philox 4x32 takes four words of 32 bits (a, b, c, d) and a key of two (k, l). One round multiplies
two of the words by constants A and C, to 64 bits, and mixes high and low halves crosswise:

    (a, b, c, d) <- (high(C c) ^ b ^ k, low(C c), high(A a) ^ d ^ l, low(A a))                 (1)
    (k, l) <- (k + K, l + L) mod 2^32                                                          (2)

Low halves only permute the words; high halves, which depend on every bit of the factor, do the
scrambling. Seven rounds are the fewest that pass all of TestU01's BigCrush (Salmon et al., table 2;
the default of their library is ten, with three for safety). FlashAttention drops with seven, too.

The weight of query i and key j, in head h of sequence n, takes one word of four:

    word j mod 4 of Philox at (floor(j / 4), i, h, n), under the two halves of the seed        (3)

and is dropped where that word, uniform on 0 .. 2^32 - 1, is below d 2^32.

Words are int64 of which 32 bits count, so that no mixture of signed and unsigned numbers turns into
floats. A product of two words wraps around at 2^64, and has the right bits all the same.
"""

from __future__ import annotations

from typing import Any

from ..checks import finite, whole
from ..cuda import cuda

ROUNDS = 7
A, C = 0xD2511F53, 0xCD9E8D57  # the multipliers of Salmon et al.
K, L = 0x9E3779B9, 0xBB67AE85  # 2^32 times the golden ratio - 1, and times sqrt(3) - 1
WORD = 0xFFFFFFFF


@cuda.jit(device=True)
def philox(a, b, c, d, k, l):  # type: ignore[no-untyped-def]  # noqa: E741
    """Four random words for a counter (a, b, c, d) and a key (k, l)."""
    for _ in range(ROUNDS):
        left, right = A * a, C * c
        a, b = ((right >> 32) & WORD) ^ b ^ k, right & WORD  # (1)
        c, d = ((left >> 32) & WORD) ^ d ^ l, left & WORD
        k, l = (k + K) & WORD, (l + L) & WORD  # (2)  # noqa: E741
    return a, b, c, d


@cuda.jit(device=True)
def random_word(seed, n, h, i, j):  # type: ignore[no-untyped-def]
    """The random word of one weight."""
    a, b, c, d = philox(j >> 2, i, h, n, seed & WORD, seed >> 32)  # (3)
    low, high = (c, d) if j & 2 else (a, b)
    return high if j & 1 else low


def arguments(dropout: float, seed: int, number: Any) -> tuple[int, int, Any]:
    """What a kernel needs to drop weights.

    Args:
        dropout: The probability d that a weight is dropped, in [0, 1).
        seed: A whole number in [0, 2^63): the same seed drops the same weights.
        number: The dtype of the weights, as a type.

    Returns:
        The seed, the number of words that mean "drop", and 1 / (1 - d), which what is kept is
        multiplied by.

    Raises:
        TypeError: d is no number, or the seed no whole number.
        ValueError: d or the seed is out of its range.
    """
    if not 0 <= finite("dropout", "dropout", dropout) < 1:
        raise ValueError(f"dropout must be a probability with 0 <= dropout < 1, got {dropout}")
    if not 0 <= whole("dropout", "seed", seed) < 1 << 63:
        raise ValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed}")
    return int(seed), round(dropout * 2**32), number(1 / (1 - dropout))
