"""Tables of calls that are refused, as tests."""

from collections.abc import Callable
from typing import Any

import pytest


def refusals(
    *rows: tuple[Any, ...], of: Callable[..., Any] | None = None, name: str = ""
) -> Callable[..., None]:
    """A test that each call is refused: a row is a call, its error, and how the message begins.

    With `of`, a row has keyword arguments of `of` in place of the call. An error that is left out
    is a ValueError. With `name`, that of what refuses, every message begins with it.
    """

    @pytest.mark.parametrize("row", rows, ids=[row[-1] for row in rows])
    def test(row: tuple[Any, ...]) -> None:
        call, *error, message = row
        with pytest.raises(*error or [ValueError]) as caught:
            of(**call) if of else call()
        begins = f"{name}: {message}" if name else message
        assert str(caught.value).startswith(begins), str(caught.value)

    return test
