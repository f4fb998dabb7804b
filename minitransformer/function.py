"""The tape: what a differentiable function is, and how gradients travel back through it.

Applying a :class:`Function` to tensors runs its ``forward`` on their arrays. If any of them needs a
gradient, the :class:`Context` of that call stays behind as a node of the tape, with one *edge* per
input: to the node that made the input, or, for a leaf, to the tensor itself. Nodes hold what
``forward`` saved and nothing else: an intermediate array that no backward needs is freed at once.

Nodes are numbered as they are made, and a node is always made after its inputs. Visiting them from
the highest number down is therefore a topological order: when a node's turn comes, every gradient
that it waits for has arrived. :func:`backpropagate` does so with a heap, without recursion, and
drops each gradient as soon as its node has used it.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from .device import Array, array_module, device_of
from .tensor import Tensor

Edge: TypeAlias = "tuple[Context, int] | Tensor"
"""Where a gradient goes: output ``int`` of a node, or a leaf."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_BEGIN_LATER = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
_pauses = ContextVar("pauses", default=0)  # how many blocks without recording surround us
_order = itertools.count()


def is_grad_enabled() -> bool:
    """Return whether applying a function is recorded for a later backward."""
    return not _pauses.get()


class no_grad:
    """Record nothing inside this block (or, as ``@no_grad()``, inside a function).

    The setting belongs to the current thread or task, as PyTorch's does.

    Raises:
        TypeError: What it decorates only begins when it is called: a generator or a coroutine.

    Example:
        >>> x = Tensor([1.0], requires_grad=True)
        >>> with no_grad():
        ...     y = x * 2
        >>> y.requires_grad
        False
    """

    def __enter__(self) -> None:
        _pauses.set(_pauses.get() + 1)

    def __exit__(self, *error: object) -> None:
        _pauses.set(_pauses.get() - 1)

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return a function that does the same and records nothing."""
        if any(begins_later(function) for begins_later in _BEGIN_LATER):
            raise TypeError(
                f"no_grad: {function.__name__} is a generator or a coroutine, whose body runs "
                "after the call; write `with no_grad():` inside, around what has no yield or await"
            )

        @wraps(function)
        def unrecorded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with no_grad():
                return function(*args, **kwargs)

        return unrecorded


class Context:
    """What one application of a function leaves for its backward; a node of the tape.

    Attributes:
        needs_input_grad: One flag per positional input. A backward may skip the work for an input
            whose flag is False and return None for it.
        saved: What ``forward`` handed to :meth:`save`.
    """

    __slots__ = ("edges", "function", "needs_input_grad", "order", "outputs", "saved")

    def __init__(self, function: type[Function], needs_input_grad: tuple[bool, ...]) -> None:
        self.function = function
        self.needs_input_grad = needs_input_grad
        self.saved: tuple[Any, ...] = ()
        self.edges: list[Edge | None]
        self.outputs: list[tuple[tuple[int, ...], Any]]  # shape and dtype of each output
        self.order: int

    def save(self, *values: Any) -> None:
        """Keep arrays, numbers or shapes for the backward, which reads them from ``saved``.

        Args:
            *values: Anything. Arrays are kept as they are, not copied, and must not be changed.
        """
        self.saved = values

    def filled(self, *gradients: Array | None) -> list[Array]:
        """Return the gradients that a backward got, with zeros for outputs that nothing used."""
        xp = array_module(next(gradient for gradient in gradients if gradient is not None))
        return [
            xp.zeros(*output) if gradient is None else gradient
            for gradient, output in zip(gradients, self.outputs, strict=True)
        ]

    def record(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Tensor]:
        """Join the tape and return the outputs as tensors that lead back here."""
        self.order = next(_order)
        self.edges = [
            (x.edge or x) if needed else None
            for x, needed in zip(inputs, self.needs_input_grad, strict=True)
        ]
        self.outputs = [(array.shape, array.dtype) for array in outputs]
        return [Tensor.wrap(array, (self, index)) for index, array in enumerate(outputs)]

    def run_backward(self, incoming: Sequence[Array | None]) -> Sequence[Array | None]:
        """Return what the function's backward gives, as one gradient or None per input."""
        result = self.function.backward(self, *incoming)
        gradients: tuple[Array | None, ...] = result if isinstance(result, tuple) else (result,)
        if len(gradients) != len(self.edges):
            raise RuntimeError(
                f"{self.function.__name__}.backward: expected {len(self.edges)} gradients, one per "
                f"input of forward, got {len(gradients)}; return None where there is none"
            )
        for gradient in gradients:
            if gradient is not None and not hasattr(gradient, "base"):  # of arrays, and their items
                raise TypeError(
                    f"{self.function.__name__}.backward: expected arrays or None, got "
                    f"{type(gradient).__name__}"
                )
        return gradients


class Function:
    """A differentiable function: arrays in and out, with its gradient written by hand.

    A subclass defines two static methods.

    ``forward(ctx, *inputs, **options)`` gets arrays where :meth:`apply` got tensors, and everything
    else as it came. It returns an array or a tuple of arrays, and must not change its inputs.

    ``backward(ctx, *gradients)`` gets one gradient per output, None for an output that nothing
    used, and returns one per positional input, in the input's shape; None where there is none to
    give. It must not change the gradients it got. Options have no gradient.

    Example:
        >>> class Square(Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, gradient):
        ...         (x,) = ctx.saved
        ...         return 2 * x * gradient
        >>> x = Tensor([3.0], requires_grad=True)
        >>> Square.apply(x).backward()
        >>> x.grad
        Tensor([6.], dtype=float32)
    """

    forward: Any
    backward: Any

    @classmethod
    def apply(cls, *inputs: Any, **options: Any) -> Any:
        """Run ``forward`` and record it for backward where a tensor needs a gradient.

        Returns:
            A Tensor, or a tuple of Tensors where ``forward`` returns a tuple.

        Raises:
            RuntimeError: Some inputs live on the CPU and some on CUDA.
        """
        record = is_grad_enabled()
        needs = tuple([record and isinstance(x, Tensor) and x._requires_grad for x in inputs])
        ctx = Context(cls, needs)
        arrays = [x.data if isinstance(x, Tensor) else x for x in inputs]
        try:
            result = cls.forward(ctx, *arrays, **options)
        except Exception as error:
            error.add_note(f"in {cls.__name__}.forward of {', '.join(map(_describe, arrays))}")
            if len({device_of(x) for x in arrays if getattr(x, "ndim", 0)}) > 1:
                raise RuntimeError(
                    f"{cls.__name__}: expected all inputs on one device, got some on 'cpu' and "
                    "some on 'cuda'; move them with .to(device)"
                ) from error
            raise
        outputs = result if isinstance(result, tuple) else (result,)
        for output in outputs:
            if not hasattr(output, "base"):
                raise TypeError(
                    f"{cls.__name__}.forward: expected an array or a tuple of arrays, got "
                    f"{type(output).__name__}"
                )
        tensors = ctx.record(inputs, outputs) if True in needs else list(map(Tensor.wrap, outputs))
        return tuple(tensors) if isinstance(result, tuple) else tensors[0]


def backpropagate(
    root: Tensor, gradient: Array, finished: Callable[[Tensor], object] | None = None
) -> None:
    """Add the gradient of ``sum(root * gradient)`` to the ``.grad`` of every leaf behind ``root``.

    Args:
        root: The tensor to start from; it must need a gradient.
        gradient: Its cotangent, in its shape.
        finished: Called with each leaf whose ``.grad`` has all its summands, while backward goes
            on. One that a function denies a gradient may never be told of.
    """
    arrived: dict[Context, list[Array | None]] = {}
    waiting: list[tuple[int, Context]] = []  # a heap: the node made last comes first
    uses = _uses(root) if finished else Counter[int]()

    def send(edge: Edge, gradient: Array) -> None:
        if isinstance(edge, Tensor):
            edge.accumulate(gradient)
            if finished:
                uses[id(edge)] -= 1
                if not uses[id(edge)]:
                    finished(edge)
            return
        node, index = edge
        if node not in arrived:
            arrived[node] = [None] * len(node.outputs)
            heapq.heappush(waiting, (-node.order, node))
        earlier = arrived[node][index]
        arrived[node][index] = gradient if earlier is None else earlier + gradient

    send(root.edge or root, gradient.copy() if root.edge is None else gradient)
    while waiting:
        _, node = heapq.heappop(waiting)
        incoming = arrived.pop(node)
        outgoing = node.run_backward(incoming)
        held = list(map(id, (*incoming, *outgoing, *node.saved)))
        for number, (edge, out) in enumerate(zip(node.edges, outgoing, strict=True)):
            if edge is None or out is None:
                continue
            if isinstance(edge, Tensor) and (out.base is not None or held.count(id(out)) > 1):
                out = out.copy()  # somebody else may hold this memory, so that `.grad` must not
            send(edge, _conform(node, number, edge, out))


def _uses(root: Tensor) -> Counter[int]:
    """Return how often each leaf behind a tensor was used, by the leaf's identity."""
    uses: Counter[int] = Counter()
    edges: list[Edge | None] = [root.edge or root]
    seen: set[Context] = set()
    while edges:
        edge = edges.pop()
        if isinstance(edge, Tensor):
            uses[id(edge)] += 1
        elif edge is not None and edge[0] not in seen:
            seen.add(edge[0])
            edges += edge[0].edges
    return uses


def _conform(node: Context, number: int, edge: Edge, gradient: Array) -> Array:
    """Return the gradient in its input's dtype, having checked its shape."""
    if isinstance(edge, Tensor):
        shape, dtype = edge.data.shape, edge.data.dtype
    else:
        shape, dtype = edge[0].outputs[edge[1]]
    if gradient.shape != shape:
        raise RuntimeError(
            f"{node.function.__name__}.backward: input {number} has shape {shape}, "
            f"but its gradient has shape {gradient.shape}"
        )
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def _describe(value: Any) -> str:
    """Return an array's dtype and shape, as in ``float32 (3, 4)``, or the value itself."""
    return f"{value.dtype} {value.shape}" if hasattr(value, "shape") else repr(value)
