"""Checkpoints: what goes in comes out, damage never passes, and a failure costs nothing."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from minitransformer.training import checkpoint as module
from minitransformer.training.checkpoint import CheckpointError, check_same_tensors, load, save

DTYPES = (np.float32, np.float64, np.int64, np.uint8)
ARRAYS = {"weight": np.arange(12.0).reshape(3, 4), "steps": np.array(7)}
METADATA = {"step": 7, "generator": {"state": 2**127 + 1, "inc": 3}}

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save(path, ARRAYS, METADATA)
    return path


@given(
    tensors=st.dictionaries(
        st.text(min_size=1).filter(lambda name: name != "__metadata__"), arrays, min_size=1
    ),
    turned=st.booleans(),
)
def test_what_is_saved_is_loaded(
    folder: Path, tensors: dict[str, np.ndarray], turned: bool
) -> None:
    given_ = {name: array.T if turned else array for name, array in tensors.items()}
    save(folder / "round-trip", given_, METADATA)
    found = load(folder / "round-trip")
    assert found.metadata == METADATA
    assert found.tensors.keys() == given_.keys()
    for name, array in given_.items():
        np.testing.assert_array_equal(found.tensors[name], array, strict=True)


def test_loaded_arrays_can_be_written_to(checkpoint: Path) -> None:
    load(checkpoint).tensors["weight"][0, 0] = 5
    assert load(checkpoint).tensors["weight"][0, 0] == 0


@given(data=st.data())
def test_no_flipped_bit_passes_unnoticed(folder: Path, data: st.DataObject) -> None:
    path = folder / "flipped"
    save(path, ARRAYS, METADATA)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found = load(path)
    except CheckpointError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
    else:  # white space in the header may have changed to other white space
        np.testing.assert_equal((found.tensors, found.metadata), (ARRAYS, METADATA))


@given(share=st.floats(0, 1, exclude_max=True))
def test_no_truncation_passes_unnoticed(folder: Path, share: float) -> None:
    path = folder / "truncated"
    save(path, ARRAYS, METADATA)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"truncated: damaged .*restore the file, or train"):
        load(path)


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path)


def test_a_file_from_elsewhere(tmp_path: Path) -> None:
    save_file({"weight": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="not a checkpoint of minitransformer"):
        load(tmp_path / "other")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"weight": np.zeros((4, 3))}, r"weight is float64\[4, 3\] here, expected float64\[3, 4\]"),
        ({"weight": np.zeros((3, 4), "f4")}, r"weight is float32\[3, 4\] here"),
        ({}, r"weight is missing here, expected float64\[3, 4\]"),
        ({**ARRAYS, "bias": np.zeros(3)}, r"bias is float64\[3\] here, expected missing"),
    ],
)
def test_another_models_tensors(weights: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"file: the checkpoint of another model: {message}"):
        check_same_tensors(Path("file"), ARRAYS, {"steps": ARRAYS["steps"], **weights})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a full disk")
def test_full_disk_leaves_the_earlier_checkpoint(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_new", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device; what"):
        save(checkpoint, {"weight": np.ones(3)}, {})
    assert load(checkpoint).metadata == METADATA


def test_a_link_in_the_way_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    checkpoint.with_name(f".{checkpoint.name}.part").symlink_to(other)
    save(checkpoint, {"weight": np.ones(3)}, {"step": 7})
    assert load(checkpoint).metadata == {"step": 7}
    assert other.read_text() == "of somebody else"


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_failure_at_any_moment_leaves_the_earlier_checkpoint(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, fail)
        with pytest.raises(CheckpointError, match="Input/output error"):
            save(checkpoint, {"weight": np.ones(3)}, {})
    assert load(checkpoint).metadata == METADATA
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]
