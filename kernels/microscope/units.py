"""Numbers for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def bytes_text(size: float) -> str:
    """Write a number of bytes.

    >>> bytes_text(96), bytes_text(1536), bytes_text(2**24)
    ('96 B', '1.5 KiB', '16 MiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def rate_text(value: float, unit: str) -> str:
    """Write a number with a decimal prefix.

    >>> rate_text(67e12, "FLOP/s"), rate_text(838.5e9, "B/s")
    ('67 TFLOP/s', '838 GB/s')
    """
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} T{unit}"


def time_text(seconds: float) -> str:
    """Write a time.

    >>> time_text(2.5e-9), time_text(1.25e-4), time_text(3)
    ('2.5 ns', '125 us', '3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def count_text(value: float) -> str:
    """Write a count in five letters or fewer.

    >>> count_text(0), count_text(4096), count_text(65536), count_text(33554432)
    ('0', '4096', '65.5k', '33.6M')
    """
    for unit in ("", "k", "M"):
        if value < (10_000 if not unit else 999.5):
            return f"{value:.4g}" if not unit else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}G"


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape, without the ones at its end.

    >>> shape_text((32, 8, 1)), shape_text((1, 1, 1))
    ('32 × 8', '1')
    """
    longest = max((i + 1 for i, size in enumerate(shape) if size != 1), default=1)
    return " × ".join(map(str, shape[:longest]))


def ratio_text(numbers: Sequence[float]) -> str:
    """Write the last number over the first, where there are any and that is not zero."""
    return f"{numbers[-1] / numbers[0]:.3g}" if numbers and numbers[0] else ""


def aligned(
    rows: Sequence[Sequence[str]], sides: str = "<>", between: str = "   "
) -> Iterator[str]:
    """Write the lines of a table, each column to its side; the last side is that of all others."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    each = sides.ljust(len(widths), sides[-1])
    for row in rows:
        cells = [f"{x:{side}{width}}" for x, side, width in zip(row, each, widths, strict=True)]
        yield between.join(cells).rstrip()


def plural(count: int, noun: str) -> str:
    """Write a count with its noun.

    >>> plural(1, "block"), plural(2, "block")
    ('1 block', '2 blocks')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
