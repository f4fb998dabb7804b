"""Runs a lesson as a notebook, and keeps what came out until the lesson or the code changes."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

import minitransformer
import minitransformer_kernels
from minitransformer_kernels.cpu.cache import folder as cache_folder

from ...errors import UserError
from ..lesson import Lesson
from .reading import unexecuted

SECONDS = 600  # that a cell may take
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)  # of linear algebra: two threads on a busy machine measure who else is working


def executed(lesson: Lesson, *, fast: bool = False) -> Any:
    """Return a lesson's notebook, solved, with what its cells print and draw.

    Args:
        lesson: What to run.
        fast: Small sizes, whose timings say little.

    Raises:
        UserError: A cell fails; it says which, and why.
    """
    kept = cache_folder() / "lessons" / f"{lesson.name}-{_digest(lesson.text, fast)}.ipynb"
    if not kept.exists():
        notebook = _run(lesson, fast)
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole = kept.with_suffix(f".{os.getpid()}")
        nbformat.write(notebook, whole)
        whole.replace(kept)
    return nbformat.read(kept, as_version=4)


def _run(lesson: Lesson, fast: bool) -> Any:
    notebook = unexecuted(lesson)
    running = 0

    def starts(cell: Any, cell_index: int) -> None:
        nonlocal running
        running = cell_index

    with tempfile.TemporaryDirectory(prefix="minitransformer-lesson-") as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=SECONDS,
            record_timing=False,
            on_cell_start=starts,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        own = {"IPYTHONDIR": f"{folder}/.ipython", "LESSON_FAST": str(int(fast))}
        try:
            client.execute(env={**os.environ, **ONE_THREAD, **own})
        except CellExecutionError as error:
            problem = f"{error.ename}: {error.evalue}".partition("\n")[0]
        except CellTimeoutError:
            problem = f"it takes more than {SECONDS} s"
        except DeadKernelError:
            problem = "the process that ran it died"
        else:
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell["outputs"] = list(_merged(cell.outputs))
            return notebook
    line = lesson.cells[running].line
    raise UserError(f"{lesson.path.name}, cell {running + 1} (line {line}): {problem}")


def _merged(outputs: Any) -> Iterator[Any]:
    """What a cell put out, with prints that follow each other as one; progress bars are left out.

    A print is sent in pieces as it happens, and where they are cut differs from run to run.
    """
    last = None
    for output in outputs:
        if output.output_type != "stream":
            last = None
        elif output.name != "stdout":
            continue
        elif last is not None:
            last["text"] += output.text
            continue
        else:
            last = output
        yield output


def _digest(text: str, fast: bool) -> str:
    return hashlib.sha256(f"{text}\0{fast}\0{_surroundings()}".encode()).hexdigest()[:32]


@cache
def _surroundings() -> str:
    """What a result depends on beside the lesson: both packages' code, and the libraries."""
    found = hashlib.sha256(platform.python_version().encode())
    for library in ("numpy", "numba", "matplotlib"):
        found.update(metadata.version(library).encode())
    for package in (minitransformer, minitransformer_kernels):
        for folder in package.__path__:
            for file in sorted(Path(folder).rglob("*.py")):
                if Path(__file__).parent not in file.parents:  # this folder comes after the run
                    found.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return found.hexdigest()
