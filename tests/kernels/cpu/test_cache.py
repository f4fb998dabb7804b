"""Compiled kernels on disk: damage is noticed, strangers are not trusted, nothing stops a run."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitransformer_kernels import checked
from minitransformer_kernels.cpu import KernelError, cache, launch, lowering
from minitransformer_kernels.cuda import cuda

ROOT = Path(__file__).parents[3]


@cuda.jit(device=True)
def twice(v):
    return 2 * v


def made(more: int = 1, twice: Any = twice) -> Any:
    """A kernel that nobody has compiled, with a device function."""

    @cuda.jit
    def doubled(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = twice(x[i]) + more

    return doubled


def compiled() -> int:
    """Run it; return how many functions were compiled for that, and not read from the cache."""
    kernel, x = made(), np.arange(5.0)
    kernel[1, 8](x)
    np.testing.assert_array_equal(x, 2 * np.arange(5.0) + 1)
    (own,) = kernel.on_cpu._compiled.values()
    return sum(own.function.stats.cache_misses.values())


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of one's own that holds the kernel."""
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(tmp_path / "cache"))
    assert (compiled(), compiled()) == (1, 0)
    return tmp_path / "cache"


def test_what_is_kept_is_read_and_not_written_again(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert compiled() == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_other_constants_and_functions_make_other_files(folder: Path) -> None:
    def by_a_sum() -> Any:
        @cuda.jit(device=True)
        def twice(v):
            return v + v

        return twice

    for number, kernel in enumerate((made(), made(more=4), made(twice=by_a_sum())), 1):
        kernel[1, 8](np.zeros(5))
        assert len(list(folder.glob("doubled_*.py"))) == number


def test_a_folder_that_cannot_be_made_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(blocked / "cache"))
    with pytest.warns(cache.CacheWarning, match="they go to"):
        assert compiled() == 1
    assert blocked.read_text() == ""


def test_a_checked_launch_writes_nothing_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros(5)
    with checked(tested=False):
        made()[1, 8](x)
        monkeypatch.setattr(lowering.Variant, "written", lambda variant: pytest.fail("written"))
        made()[1, 8](x)
    np.testing.assert_array_equal(x, 3)


def test_a_kernel_that_is_kept_starts_without_its_form(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "canonical", lambda *arguments: pytest.fail("made"))
    assert compiled() == 0
    kernel, x = made(), np.arange(5.0)
    x.setflags(write=False)
    with pytest.raises(KernelError, match="writes to argument 'x', but that array is read-only"):
        kernel[1, 8](x)


TABLE = np.arange(3.0)


def test_what_takes_arrays_from_outside_has_no_outline(folder: Path) -> None:
    @cuda.jit(device=True)
    def looked_up(v):
        return TABLE[int(v) % 3]

    kernel, x = made(twice=looked_up), np.arange(5.0)
    before = {*folder.glob("*.json")}
    kernel[1, 8](x)
    np.testing.assert_array_equal(x, TABLE[[0, 1, 2, 0, 1]] + 1)
    assert {*folder.glob("*.json")} == before


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def linked(file: Path) -> None:
    """To a file that is as it should be, but that somebody else may change."""
    file.rename(file.with_suffix(".elsewhere"))
    file.symlink_to(file.with_suffix(".elsewhere"))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut": rewritten(lambda x: x[:-100]),
    "emptied": rewritten(lambda x: b""),
    "altered": rewritten(lambda x: bytes(y ^ (i == len(x) // 2) for i, y in enumerate(x))),
    "appended": rewritten(lambda x: x + b"x = 1\n"),
    "of_zeros": rewritten(lambda x: bytes(len(x))),
    "removed": Path.unlink,
    "linked": linked,
    "open_to_all": lambda file: file.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("kind", ["*.py", "*.code", "*.json"])
def test_damage_is_noticed_and_mended(
    folder: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    files = list(folder.glob(f"doubled_*{kind[1:]}"))
    assert files
    for file in files:
        damage(file)
        assert cache.read(file) is None
    assert compiled() == (kind == "*.code")
    assert compiled() == 0
    assert all(cache.read(file) is not None for file in files)


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    for file in list(folder.glob("doubled_*")):
        file.unlink()
        file.mkdir()
    with pytest.warns(cache.CacheWarning, match="a compiled kernel cannot be kept in"):
        cache._warn_once.cache_clear()
        assert compiled() == 1


def test_a_full_disk_stops_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    shutil.rmtree(folder)
    monkeypatch.setattr(cache.tempfile, "NamedTemporaryFile", full)
    cache._warn_once.cache_clear()
    with pytest.warns(cache.CacheWarning, match="No space left on device") as seen:
        assert (compiled(), compiled()) == (1, 1)
    assert len(seen) == 1


def test_a_folder_is_closed_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache is; a folder that somebody chose is left as it is, and not used."""
    ours = folder / "minitransformer" / "kernels"
    ours.mkdir(parents=True)
    ours.chmod(0o777)
    monkeypatch.setenv("MINITRANSFORMER_CACHE_DIR", str(ours))
    with pytest.warns(cache.CacheWarning, match=r"\(others may write to it\); they go to"):
        assert cache.folder() != ours
    assert ours.stat().st_mode & 0o777 == 0o777
    monkeypatch.delenv("MINITRANSFORMER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.folder() == ours
    assert not ours.stat().st_mode & 0o022


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_what_belongs_to_others_is_not_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = next(folder.glob("*.py"))
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert cache.read(file) is None
    cache._checked.cache_clear()
    with pytest.warns(cache.CacheWarning, match=r"\(it belongs to another user\); they go to"):
        assert cache.folder() != folder
    cache._checked.cache_clear()


def test_nobody_needs_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MINITRANSFORMER_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", homeless)
    cache._checked.cache_clear()
    with pytest.warns(cache.CacheWarning, match="Could not determine home directory"):
        temporary = cache.folder()
        assert compiled() == 1
    assert list(temporary.glob("doubled_*.code"))
    cache._checked.cache_clear()


def at_once(folder: Path, program: str, count: int) -> list[str]:
    """What processes print that start at once with the same cache."""
    environment = os.environ | {"MINITRANSFORMER_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"from tests.kernels.cpu.test_cache import *\n{program}"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "env": environment, "text": True}
    started = [subprocess.Popen(command, **options) for _ in range(count)]
    printed = [each.communicate()[0] for each in started]
    assert [each.returncode for each in started] == [0] * count
    return printed


in_turn = pytest.mark.skipif(cache.fcntl is None, reason="each process compiles for itself here")


@in_turn
def test_of_processes_that_start_at_once_one_compiles(tmp_path: Path) -> None:
    assert sorted(at_once(tmp_path / "cache", "print(compiled())", 3)) == ["0\n", "0\n", "1\n"]
    files = {path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"}
    assert files
    assert all(cache.read(file) is not None for file in files)


WAITED = """
import time
cache.PATIENCE, began = 0.5, time.monotonic()
with cache.turn(Path("it")):
    print(time.monotonic() - began)
"""


@in_turn
def test_nobody_waits_long_for_a_process_that_was_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with cache.turn(Path("it")):
        assert 0.5 <= float(at_once(tmp_path, WAITED, 1)[0]) < 5
    assert float(at_once(tmp_path, WAITED, 1)[0]) < 0.5
