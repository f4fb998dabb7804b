"""What the attention functions promise their kernels: inputs that fit, or a clear refusal."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minitransformer_kernels.arrays import constant
from minitransformer_kernels.guards import GUARDS
from minitransformer_kernels.visible import Visible

from .. import random
from ..device import Array, as_array, device_of
from ..tensor import Tensor

Lengths = Any
FLOATING = np.dtype(np.float32), np.dtype(np.float64)
Layout = Mapping[str, tuple[Tensor, str]]  # by name, a tensor and the letters of its shape


def check_sequences(function: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check the inputs that every attention has."""
    layout = {"query": (query, "N H Lq E"), "key": (key, "N H Lk E"), "value": (value, "N H Lk M")}
    check_inputs(function, layout)


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
    for name, (tensor, _) in layout.items():
        _check_dtype_and_device(function, name, tensor, first, example)
    known = dict(sizes or {})
    for name, (tensor, letters) in layout.items():
        _check_shape(function, name, tensor, letters.split(), known)


def check_embedding(function: str, query: Tensor, relative_embedding: Tensor) -> None:
    """Check the embeddings of the distances from a query."""
    sizes = {"H": query.shape[1], "E": query.shape[-1]}
    layout = {"relative_embedding": (relative_embedding, "H 2k+1 E")}
    check_inputs(function, layout, ("query", query), sizes)
    if relative_embedding.shape[1] % 2 == 0:
        raise ValueError(
            f"{function}: relative_embedding must have an odd number of rows, 2k + 1 for the "
            f"distances -k to k, got {relative_embedding.shape}"
        )


def check_state(
    function: str, state: Any, letters: Mapping[str, str], key: Tensor, value: Tensor, **more: int
) -> None:
    """Check the arrays of a state, of as many sequences as `more` says or the keys have."""
    sizes = {"N": key.shape[0], "H": key.shape[1], "E": key.shape[-1], "M": value.shape[-1]}
    layout = {name: (getattr(state, name), text) for name, text in letters.items()}
    check_inputs(function, layout, ("key", key), {**sizes, **more})


def _check_dtype_and_device(
    function: str, name: str, tensor: Tensor, first: str, model: Tensor
) -> None:
    if tensor.dtype not in FLOATING:
        raise TypeError(
            f"{function}: {name} must be float32 or float64, got {tensor.dtype}; "
            f"convert it: {name}.to(dtype=numpy.float32)"
        )
    if tensor.dtype != model.dtype:
        raise ValueError(
            f"{function}: {name} is {tensor.dtype}, but {first} is {model.dtype}; "
            f"convert it: {name}.to(dtype={first}.dtype)"
        )
    if tensor.device != model.device:
        raise ValueError(
            f"{function}: {name} is on {tensor.device}, but {first} is on {model.device}; "
            f"move it: {name}.to({first}.device)"
        )


def _check_shape(
    function: str, name: str, tensor: Tensor, letters: list[str], sizes: dict[str, int]
) -> None:
    """Check a shape against the sizes that its letters have already, and note those of new ones."""
    known = sizes.copy()
    if tensor.ndim == len(letters) and all(
        sizes.setdefault(letter, size) == size and (size or letter not in "HEM")
        for letter, size in zip(letters, tensor.shape, strict=True)
    ):
        return
    expected = ", ".join(f"{x}={known[x]}" if x in known else x for x in letters)
    got = f"{function}: {name} must have the shape ({expected}), got {tensor.shape}"
    if tensor.ndim == len(letters):
        got += "; H, E and M are above 0, and a letter means one size in all arguments"
    elif len(letters) == 4:
        got += "; split the heads: (N, L, H * E) becomes x.reshape(N, L, H, E).transpose(1, 2)"
    raise ValueError(got)


def lengths_of(function: str, name: str, lengths: Lengths, sequence: Tensor) -> Array | None:
    """Return lengths as int64 on the sequences' device, having checked that they fit.

    Those of the CPU are best: to look at a GPU's makes the CPU wait.
    """
    if lengths is None:
        return None
    batch, _, longest, _ = sequence.shape
    array = as_array(lengths.data if isinstance(lengths, Tensor) else lengths)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function}: {name} must be integers, got {array.dtype}; a mask becomes lengths by "
            "mask.sum(dim=-1)"
        )
    if array.shape != (batch,):
        raise ValueError(
            f"{function}: {name} must have the shape (N={batch},), one length a sequence, got "
            f"{array.shape}; None means full lengths"
        )
    if bool(((array < 0) | (array > longest)).any()):
        raise ValueError(
            f"{function}: {name} must lie between 0 and {longest}, the length of the padded "
            f"sequences, got {array.tolist()}"
        )
    return _settled(array, sequence)


def whole(function: str, name: str, number: int) -> int:
    """Return a whole number as an int, having checked that it is one."""
    if not isinstance(number, int | np.integer) or isinstance(number, bool):
        raise TypeError(
            f"{function}: {name} must be a whole number, got {number!r}; it counts keys"
        )
    return int(number)


def check_choice(function: str, name: str, choice: str, choices: Iterable[str]) -> None:
    """Check that a choice is one of those that there are."""
    if choice not in choices:
        raise ValueError(
            f"{function}: {name} must be one of {', '.join(map(repr, choices))}, got {choice!r}"
        )


def guard_options(function: str, guard: str, eps: float | None) -> dict[str, Any]:
    """Check what keeps a denominator from zero, and return it as options."""
    check_choice(function, "guard", guard, GUARDS)
    if eps is not None and not (eps > 0 and math.isfinite(eps)):
        raise ValueError(
            f"{function}: eps must be a finite number above 0, got {eps}; None chooses one"
        )
    return {"guard": guard, "eps": eps}


def finite_scale(function: str, scale: float | None) -> float | None:
    """Return the factor of scores, having checked that it is a number."""
    if scale is not None and not math.isfinite(scale):
        raise ValueError(
            f"{function}: scale must be a finite number, got {scale}; None is 1 / sqrt(E)"
        )
    return scale


def dropout_options(function: str, dropout: float, seed: int | None) -> dict[str, Any]:
    """Check what is dropped, and draw a seed where none is given and one is needed."""
    if not 0 <= dropout < 1:
        raise ValueError(f"{function}: dropout must be a probability in [0, 1), got {dropout}")
    if seed is None:
        seed = random.seed() if dropout else 0
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"{function}: seed must be a whole number, got {seed!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"{function}: seed must be from 0 to 2^63 - 1, got {seed}")
    return {"dropout": dropout, "seed": seed}


def visible_of(
    function: str,
    query: Tensor,
    key: Tensor,
    *,
    causal: bool,
    query_offset: int,
    query_lengths: Lengths,
    key_lengths: Lengths,
    cu_seqlens: Any = None,
) -> Visible:
    """Check who sees whom, and return it."""
    visible = Visible(
        causal,
        whole(function, "query_offset", query_offset),
        lengths_of(function, "query_lengths", query_lengths, query),
        lengths_of(function, "key_lengths", key_lengths, key),
    )
    if cu_seqlens is None:
        return visible
    if visible.query_lengths is not None or visible.key_lengths is not None:
        raise ValueError(
            f"{function}: cu_seqlens says how long sequences are; leave out query_lengths and "
            "key_lengths"
        )
    if not causal or query_offset:
        raise ValueError(
            f"{function}: packed sequences (cu_seqlens) need causal=True and query_offset=0, got "
            f"{causal} and {query_offset}; pad the others, and give their lengths"
        )
    return visible._replace(cu_seqlens=_boundaries(function, cu_seqlens, query, key))


def _boundaries(function: str, cu_seqlens: Any, query: Tensor, key: Tensor) -> Array:
    """Return the boundaries of packed sequences as int64, having checked that they fit."""
    array = as_array(cu_seqlens.data if isinstance(cu_seqlens, Tensor) else cu_seqlens)
    if array.dtype.kind not in "iu" or array.ndim != 1 or array.size < 2:
        raise TypeError(
            f"{function}: cu_seqlens must be N + 1 integers, where each of N sequences begins and "
            f"the last ends, got {array.dtype} {array.shape}; make it of lengths by "
            "numpy.cumsum([0, *lengths])"
        )
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{function}: packed sequences (cu_seqlens) lie one after the other in arrays "
            f"(1, H, T, E), of the same T for query and key; got {query.shape} and {key.shape}"
        )
    total = query.shape[2]
    if int(array[0]) or int(array[-1]) != total or bool((array[1:] < array[:-1]).any()):
        raise ValueError(
            f"{function}: cu_seqlens must rise from 0 to {total}, the rows of the packed "
            f"sequences, got {array.tolist()}"
        )
    return _settled(array, query)


def _settled(integers: Array, sequence: Tensor) -> Array:
    """Return integers as int64 on the sequences' device, where every layer asks for the same."""
    array = as_array(integers, dtype=np.int64)
    if device_of(array) == "cpu":
        array = constant(array, sequence.data)
    return as_array(array, sequence.device)


def check_algorithm(
    function: str, algorithm: str, algorithms: Iterable[str], causal: bool, carries: str
) -> None:
    """Check that an algorithm can do what is asked; `carries` names what needs a causal one."""
    check_choice(function, "algorithm", algorithm, algorithms)
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
