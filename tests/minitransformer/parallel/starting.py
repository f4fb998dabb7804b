"""How a test starts ranks on this machine."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MPIEXEC = shutil.which(
    "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
)
needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None,
    reason='needs mpi4py and mpiexec: pip install -e ".[mpi]"',
)
QUIET = {
    "MINITRANSFORMER_CHECK": "0",
    "MINITRANSFORMER_NUM_THREADS": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",  # who waits, sleeps: there are more ranks than cores
}


def ranks(count: int, *command: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Run `python -m command` on so many ranks, and return how it ended."""
    return ended(started(count, sys.executable, "-m", *command), seconds)


def started(count: int, *line: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    """Start a command on so many ranks, in a folder."""
    return subprocess.Popen(
        [str(MPIEXEC), "-n", str(count), *line],
        cwd=folder,
        env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Return how ranks ended, once they have; a hang is a failure."""
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
