"""The contract between a function and the tape."""

import threading
from typing import Any

import numpy as np
import pytest

from minitransformer import Context, Function, Tensor, is_grad_enabled, no_grad


class Scaled(Function):
    """Doubles and triples; remembers which gradients came."""

    seen: Any = None

    @staticmethod
    def forward(ctx: Context, x: Any, y: Any, factor: int, *, offset: float = 0.0) -> Any:
        ctx.save(factor)
        return factor * x + offset, y * y, np.arange(3)

    @staticmethod
    def backward(ctx: Context, *gradients: Any) -> Any:
        Scaled.seen = (gradients, ctx.needs_input_grad)
        (factor,) = ctx.saved
        first = gradients[0]
        return None if first is None else factor * first, None, None


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values), requires_grad=True)


def test_several_outputs_and_unused_ones() -> None:
    x, y = leaf(1.0, 2.0), Tensor([3.0, 4.0])
    first, second, third = Scaled.apply(x, y, 2, offset=1.0)
    assert first.tolist() == [3.0, 5.0]
    assert second.requires_grad and not third.requires_grad
    first.backward(np.ones(2))
    gradients, needs = Scaled.seen
    assert gradients[1] is None and gradients[2] is None
    assert needs == (True, False, False)
    assert x.grad.tolist() == [2.0, 2.0]
    second.backward(np.ones(2))
    assert Scaled.seen[0][0] is None
    (first * second.detach()).sum().backward()
    (first + second).sum().backward()
    assert all(g is not None for g in Scaled.seen[0][:2])


def test_nothing_is_needed_without_recording() -> None:
    class Needs(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            return np.full(1, float(ctx.needs_input_grad[0]))

        @staticmethod
        def backward(ctx: Context, gradient: Any) -> Any:
            return gradient

    assert Needs.apply(leaf(1.0)).item() == 1
    with no_grad():
        assert Needs.apply(leaf(1.0)).item() == 0


def returning(*gradients: Any) -> type[Function]:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Context, gradient: Any) -> Any:
            return gradients

    return Wrong


def test_a_wrong_number_of_gradients_is_refused() -> None:
    message = r"Wrong.backward: expected 1 gradients, one per input of forward, got 2"
    with pytest.raises(RuntimeError, match=message):
        returning(np.ones(2), None).apply(leaf(1.0, 2.0)).backward(np.ones(2))


def test_a_wrong_shape_is_refused() -> None:
    for x in (leaf(1.0, 2.0), leaf(1.0, 2.0) * 2):
        message = r"Wrong.backward: input 0 has shape \(2,\), but its gradient has shape \(3,\)"
        with pytest.raises(RuntimeError, match=message):
            returning(np.ones(3)).apply(x).backward(np.ones(2))


@pytest.mark.parametrize("wrong", [2.0, [np.ones(2)], Tensor(np.ones(2))])
def test_what_is_no_array_is_refused(wrong: Any) -> None:
    class Returning(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            return wrong

    given = type(wrong).__name__
    with pytest.raises(TypeError, match=rf"Wrong.backward: expected arrays or None, got {given}"):
        returning(wrong).apply(leaf(1.0, 2.0)).backward(np.ones(2))
    with pytest.raises(TypeError, match=rf"Returning.forward: .* of arrays, got {given}"):
        Returning.apply(Tensor(1.0))


def test_a_kept_array_does_not_become_a_gradient() -> None:
    kept = np.ones(2)
    x = leaf(1.0, 2.0)
    wrong = returning(kept)

    class Saving(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            ctx.save(kept)
            return x * 1

        backward = staticmethod(wrong.backward)

    Saving.apply(x).backward(np.ones(2))
    assert x.grad.data is not kept


def test_errors_name_the_function_and_its_inputs() -> None:
    class Failing(Function):
        @staticmethod
        def forward(ctx: Context, x: Any, option: int) -> Any:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        Failing.apply(Tensor([1.0]), 3)
    assert caught.value.__notes__ == ["in Failing.forward of float32 (1,), 3"]


def test_inputs_on_two_devices_are_refused() -> None:
    class Elsewhere:
        ndim, shape, dtype = 1, (2,), "float32"

    Elsewhere.__module__ = "cupy"
    message = "Scaled: expected all inputs on one device, got some on 'cpu' and some on 'cuda'; mo"
    with pytest.raises(RuntimeError, match=message):
        Scaled.apply(Elsewhere(), leaf(1.0, 2.0), 2)


def test_recording_belongs_to_the_thread() -> None:
    seen: list[bool] = []
    with no_grad():
        assert not is_grad_enabled()
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]
