"""What the attention functions check beyond what every host function does, and what they leave out.

That tensors came is checked here; padding is left out, where what reads it is no kernel.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from minitransformer_kernels.checks import finite, fit, one_of, whole
from minitransformer_kernels.guards import GUARDS, check_eps

from .. import functions as F
from .. import random
from ..device import array_module
from ..tensor import Tensor

Lengths = Any
Layout = Mapping[str, tuple[Tensor, str]]  # by name, a tensor and the letters of its shape


def check_sequences(
    function: str, query: Tensor, key: Tensor, value: Tensor, **more: tuple[Tensor, str]
) -> None:
    """Check the inputs that every attention has, and more, given by tensors and letters."""
    layout = {"query": (query, "N H Lq E"), "key": (key, "N H Lk E"), "value": (value, "N H Lk M")}
    check_inputs(function, layout | more)


def check_token(
    function: str, query: Tensor, key: Tensor, value: Tensor, **more: tuple[Tensor, str]
) -> None:
    """Check the same of one token."""
    layout = {"query": (query, "N H E"), "key": (key, "N H E"), "value": (value, "N H M")}
    check_inputs(function, layout | more)


def check_inputs(
    function: str,
    layout: Layout,
    model: tuple[str, Tensor] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Check types, dtypes, devices, and shapes given by letters: equal letters, equal sizes.

    Args:
        function: the name that errors begin with.
        layout: tensors and their letters, by argument.
        model: the argument whose dtype and device count, and its name; the first by default.
        sizes: what some letters stand for.
    """
    for name, (tensor, _) in layout.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{function}: {name} must be a Tensor, got {type(tensor).__name__}; "
                f"wrap it: Tensor({name})"
            )
    first, example = model or next((name, tensor) for name, (tensor, _) in layout.items())
    library = type(example.data)
    for name, (tensor, _) in layout.items():
        if type(tensor.data) is not library and tensor.device != example.device:
            raise ValueError(
                f"{function}: {name} is on {tensor.device}, but {first} is on {example.device}; "
                f"move it: {name}.to({first}.device)"
            )
    arrays = [(name, tensor.data, letters) for name, (tensor, letters) in layout.items()]
    like = None if model is None else (first, example.data)
    fit(function, arrays, dict(sizes or {}), like, convert="to(dtype={})")


def check_embedding(function: str, query: Tensor, relative_embedding: Tensor) -> None:
    """Check the embeddings of the distances from a query."""
    sizes = {"H": query.shape[1], "E": query.shape[-1]}
    layout = {"relative_embedding": (relative_embedding, "H 2k+1 E")}
    check_inputs(function, layout, ("query", query), sizes)


def check_state(
    function: str, state: Any, letters: Mapping[str, str], key: Tensor, value: Tensor, **more: int
) -> None:
    """Check the arrays of a state, of as many sequences as `more` says or the keys have."""
    if not set(letters) <= set(getattr(state, "_fields", ())):
        raise TypeError(
            f"{function}: a state must have the parts {', '.join(letters)}, got "
            f"{type(state).__name__}"
        )
    sizes = {"N": key.shape[0], "H": key.shape[1], "E": key.shape[-1], "M": value.shape[-1]}
    layout = {name: (getattr(state, name), text) for name, text in letters.items()}
    check_inputs(function, layout, ("key", key), {**sizes, **more})


def without_padding(x: Tensor, lengths: Any) -> Tensor:
    """Return x (N, H, L, E) with zeros from each sequence's length on.

    Kernels do not read padding. What is done with rows outside of them reads all, and its
    gradient there would be zero times whatever the padding holds, which may be infinity or NaN.
    """
    if lengths is None:
        return x
    padding = array_module(lengths).arange(x.shape[2]) >= lengths[:, None]  # (N, L)
    return F.masked_fill(x, padding[:, None, :, None], 0)


def guard_options(function: str, guard: str, eps: float | None) -> dict[str, Any]:
    """Check what keeps a denominator from zero, and return it as options."""
    one_of(function, "guard", guard, GUARDS)
    check_eps(function, eps)
    return {"guard": guard, "eps": eps}


def finite_scale(function: str, scale: float | None) -> float | None:
    """Return the factor of scores, having checked that it is a number."""
    if scale is None:
        return None
    return finite(function, "scale", scale, way_out="; None is 1 / sqrt(E)")


def dropout_options(
    function: str, dropout: float, seed: int | None, by_place: bool = True
) -> dict[str, Any]:
    """Check what is dropped, and draw a seed where none is given and one is needed.

    What is dropped `by_place` depends on where in the batch and the sequence a weight is.
    """
    finite(function, "dropout", dropout, "a probability in [0, 1)")
    if not 0 <= dropout < 1:
        raise ValueError(f"{function}: dropout must be a probability in [0, 1), got {dropout}")
    if dropout and by_place and random.parts():
        raise ValueError(
            f"{function}: dropout drops weights by their place in the whole batch, which is not "
            "known where processes share it; drop the layer's output instead"
        )
    if seed is None:
        seed = random.seed() if dropout else 0
    if not 0 <= whole(function, "seed", seed) < 2**63:
        raise ValueError(f"{function}: seed must be from 0 to 2^63 - 1, got {seed}")
    return {"dropout": dropout, "seed": seed}


def check_algorithm(
    function: str, algorithm: str, algorithms: Iterable[str], causal: bool, carries: str
) -> None:
    """Check that an algorithm can do what is asked; `carries` names what needs a causal one."""
    one_of(function, "algorithm", algorithm, algorithms)
    if algorithm in ("recurrent", "chunked") and not causal:
        raise ValueError(
            f"{function}: algorithm {algorithm!r} goes from left to right and needs causal=True; "
            "for both directions use 'linear'"
        )
    if carries and not causal:
        raise ValueError(
            f"{function}: {carries} belong to a sequence that goes on, and need causal=True"
        )
    if carries and algorithm == "naive":
        raise ValueError(
            f"{function}: algorithm 'naive' has no state and takes no packed sequences; for "
            f"{carries} use 'recurrent', 'chunked' or 'auto'"
        )
