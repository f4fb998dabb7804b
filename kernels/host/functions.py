"""Functions of whole arrays, made of functions of numbers: `reduce`, `vectorize`, `guvectorize`.

What Numba would compile for a GPU, it compiles for the CPU here. Arrays may be device arrays; then
so is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError

from ..cpu.errors import to_the_point
from ..cpu.typing_errors import of_function
from .arrays import DeviceArrayBase, DeviceNDArray, as_cuda_array, is_cuda_array

OF_GPU = {"nopython", "max_blocksize", "inline", "opt", "debug", "lineinfo"}
OF_CPU = {"boundscheck", "cache", "fastmath", "identity", "writable_args"}


@contextmanager
def _explained(function: Any) -> Iterator[None]:
    """What Numba says of a function, in a sentence about its line."""
    try:
        yield
    except NumbaError as error:
        raise of_function(getattr(function, "function", unwrap(function)), error) from error


class Reduce:
    """An array's numbers, put together two by two: `Reduce(lambda a, b: a + b)(array)`.

    Also a decorator, `@cuda.reduce`. The function must be associative and commutative: a GPU takes
    the numbers in another order.
    """

    def __init__(self, functor: Callable[[Any, Any], Any]) -> None:
        self.functor = functor
        operation = numba.njit(getattr(functor, "function", functor))

        @numba.njit
        def reduced(array, last, first):  # type: ignore[no-untyped-def]
            for number in array:
                last[0] = operation(last[0], number)
            last[0] = operation(last[0], first)

        self._reduced = reduced

    @to_the_point
    def __call__(
        self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0
    ) -> Any:
        """The result, of the array's dtype; with `res`, it goes to `res[0]` instead.

        Args:
            arr: a host or device array `(n,)`.
            size: how many of its numbers, from the first; by default all.
            res: a device array for the result.
            init: one more number; the result where the array is empty.
            stream: what the work is queued on.

        Raises:
            TypeError: the array has not one axis.
        """
        if arr.ndim != 1:
            raise TypeError(f"reduce takes an array of one axis, got one of {arr.ndim}")
        numbers = _opened(arr)[:size]
        first = numbers.dtype.type(init)
        if numbers.size == 0:
            return first
        result = numbers[:1].copy()
        with _explained(self.functor):
            self._reduced(numbers[1:], result, first)
        if res is None:
            return result[0]
        _opened(res)[:1] = result
        return None


class Ufunc:
    """A function of arrays, element by element or row by row, that also takes device arrays."""

    def __init__(self, on_host: Any) -> None:
        self.on_host = on_host
        self.__name__, self.__doc__ = on_host.__name__, on_host.__doc__

    @to_the_point
    def __call__(self, *arguments: Any, stream: Any = 0, out: Any = None, **keywords: Any) -> Any:
        """Apply it; if an array is on the device, so is the result."""
        if out is not None:
            keywords["out"] = _opened(out)
        if len(self.on_host.types) == 1:  # as on a GPU: numbers become what the signature says
            self._check_device_arrays(arguments)
            keywords = {"signature": self.on_host.types[0], "casting": "unsafe"} | keywords
        with _explained(self.on_host):
            result = self.on_host(*map(_opened, arguments), **keywords)
        if out is not None:
            foreign = is_cuda_array(out) and not isinstance(out, DeviceArrayBase)
            return as_cuda_array(out) if foreign else out
        if not any(map(is_cuda_array, arguments)):
            return result
        if isinstance(result, tuple):
            return tuple(DeviceNDArray(np.asarray(part), stream) for part in result)
        return DeviceNDArray(np.asarray(result), stream)

    def _check_device_arrays(self, arguments: tuple[Any, ...]) -> None:
        for code, argument in zip(self.on_host.types[0], arguments, strict=False):
            if isinstance(argument, DeviceArrayBase) and argument.dtype != np.dtype(code):
                raise TypeError(
                    f"{self.__name__} takes {np.dtype(code)}, got a device array of "
                    f"{argument.dtype}, which does not convert itself: do it before to_device"
                )

    def __getattr__(self, name: str) -> Any:
        if name == "on_host":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self.on_host, name)

    @to_the_point
    def reduce(self, array: Any, *arguments: Any, stream: Any = 0, **keywords: Any) -> Any:
        """All numbers put together by the function."""
        with _explained(self.on_host):
            return self.on_host.reduce(_opened(array), *arguments, **keywords)


def vectorize(ftylist_or_function: Any = (), target: str = "cuda", **options: Any) -> Any:
    """Decorate a function of numbers; it becomes one of arrays, element by element.

    Args:
        ftylist_or_function: the function, or its signatures: `["float32(float32, float32)"]`.
        target: "cuda"; others are left to Numba.
        options: Numba's.
    """
    made = numba.np.ufunc.vectorize
    if target != "cuda":
        return made(ftylist_or_function, target=target, **options)
    if callable(ftylist_or_function):
        return Ufunc(made(ftylist_or_function))
    return _decorator(made(ftylist_or_function, **_of_cpu(options)))


def guvectorize(ftylist: Any, signature: Any = None, target: str = "cuda", **options: Any) -> Any:
    """Decorate a function of small arrays; it becomes one of arrays with more axes before theirs.

    Args:
        ftylist: the signatures of the function, `["void(float32[:], float32[:])"]`.
        signature: the axes of its arguments, `"(n)->(n)"`.
        target: "cuda"; others are left to Numba.
        options: Numba's.
    """
    made = numba.np.ufunc.guvectorize
    if target != "cuda":
        return made(ftylist, signature, target=target, **options)
    return _decorator(made(ftylist, signature, **_of_cpu(options)))


def _decorator(made: Callable[[Any], Any]) -> Callable[[Any], Ufunc]:
    @to_the_point
    def decorate(function: Any) -> Ufunc:
        with _explained(function):
            return Ufunc(made(function))

    return decorate


def _of_cpu(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that only a GPU's compiler knows.

    Raises:
        TypeError: nobody knows an option, or the function would be Python's, which no GPU runs.
    """
    if unknown := sorted(options.keys() - OF_GPU - OF_CPU):
        known = ", ".join(sorted(OF_GPU | OF_CPU))
        raise TypeError(f"there is no option {', '.join(unknown)}; there are {known}")
    if not options.get("nopython", True):
        raise TypeError("a GPU runs no Python: leave out nopython=False")
    return {key: options[key] for key in options if key not in OF_GPU}


def _opened(value: Any) -> Any:
    if isinstance(value, DeviceArrayBase):
        return value.memory
    return as_cuda_array(value).memory if is_cuda_array(value) else value
