"""Checkpoints: a `safetensors` file that holds the old state or the new one, never half of each.

Three promises, and what keeps each:

1. *A crash leaves the earlier checkpoint intact*: the bytes go to a neighbour file, reach the disk
   (`fsync`), and only then take the name in one step (`os.replace`).
2. *Damage is noticed*: `safetensors` checks its header but not the numbers behind it, so the
   metadata carries a SHA-256 of every name, type, shape and value.
3. *Whatever goes wrong is one sentence*: every failure is a `CheckpointError` that names the file
   and the way out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from ..errors import UserError

Tensors = dict[str, np.ndarray]
_FORMAT = "minitransformer-checkpoint-1"


class CheckpointError(UserError):
    """A checkpoint or another file of a run cannot be written, read or used; the text says why."""


class Checkpoint(NamedTuple):
    """What a checkpoint file holds."""

    tensors: Tensors  # arrays by name
    metadata: dict[str, Any]  # anything that JSON can hold: the step, the states of the generators

    def part(self, name: str) -> Tensors:
        """Return the arrays of the model or of the optimizer, by their names there."""
        prefix = f"{name}."
        return {
            name.removeprefix(prefix): array
            for name, array in self.tensors.items()
            if name.startswith(prefix)
        }


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` under the name `path`, which holds its old or its new content at every moment.

    Raises:
        CheckpointError: The folder is missing or not writable, the disk is full, or the like. What
            `path` held before is still there.
    """
    neighbour = path.with_name(f".{path.name}.part")
    try:
        _write_through(neighbour, data)
        os.replace(neighbour, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            neighbour.unlink()
        raise CheckpointError(_cannot_write(path, error)) from error


def save(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Save arrays and metadata as a `safetensors` file, atomically and with a checksum.

    Raises:
        CheckpointError: As `write_atomically`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save(path, {"weight": np.eye(2)}, {"step": 3})
    >>> load(path).metadata
    {'step': 3}
    """
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    text = json.dumps(metadata)
    header = {"format": _FORMAT, "metadata": text, "sha256": _digest(arrays, text)}
    write_atomically(path, serialize(arrays, header))


def load(path: Path) -> Checkpoint:
    """Load what `save` wrote, after checking that it is all there and unchanged.

    Raises:
        CheckpointError: The file is missing, unreadable, truncated, damaged, or from elsewhere.
    """
    header, tensors = _read(path)
    if header.get("sha256") != _digest(tensors, header.get("metadata", "")):
        raise CheckpointError(_damaged(path, "its content does not match its checksum"))
    return Checkpoint(tensors, _metadata(path, header))


def load_metadata(path: Path) -> dict[str, Any]:
    """Load the metadata alone: quick, however large the file, and without a look at the arrays.

    Raises:
        CheckpointError: The file is missing, unreadable, truncated, or from elsewhere.
    """
    return _metadata(path, _read(path, arrays=False)[0])


def check_same_tensors(path: Path, expected: Tensors, found: Tensors) -> None:
    """Refuse the tensors of another model, and say where they differ.

    Raises:
        CheckpointError: A name is missing or too many, or a shape or a dtype differs.
    """
    for name in sorted(expected.keys() | found.keys()):
        want, have = (_describe(tensors.get(name)) for tensors in (expected, found))
        if want != have:
            raise CheckpointError(
                f"{path}: the checkpoint of another model: {name} is {have} here, expected {want}"
            )


def _read(path: Path, arrays: bool = True) -> tuple[dict[str, str], Tensors]:
    """Return the header of a checkpoint, and its arrays if they are wanted."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            names = file.keys() if arrays else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: there is no checkpoint here; no step of this model was taken, or it "
            "was removed: restore it, or train again"
        ) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(_damaged(path, f"truncated or not safetensors: {error}")) from error
    if header.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path}: a safetensors file, but not a checkpoint of minitransformer"
        )
    return header, tensors


def _metadata(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    try:
        return dict(json.loads(header["metadata"]))
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(_damaged(path, f"its metadata make no sense: {error}")) from error


def _describe(array: np.ndarray | None) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"


def _digest(tensors: Tensors, metadata: str) -> str:
    digest = hashlib.sha256(metadata.encode())
    for name in sorted(tensors):
        digest.update(f"\0{name}\0{_describe(tensors[name])}\0".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _write_through(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # what a kill has left, or a link to something else
    with _new(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _new(path: Path) -> BinaryIO:
    return open(path, "xb")


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> str:
    if not path.parent.exists():
        remedy = f"; make the folder {path.parent} first"
    else:
        remedy = "; what it held before is intact" if path.exists() else ""
    return f"{path}: cannot be written: {error.strerror or error}{remedy}"


def _damaged(path: Path, reason: str) -> str:
    return f"{path}: damaged ({reason}); restore the file, or train again"
