"""The kernels' tests on a GPU under NVIDIA's compute-sanitizer: `python -m tests.sanitize`.

    memcheck    accesses outside of arrays, or at addresses that no number of its size has
    racecheck   shared memory that two threads of a block use at once
    initcheck   memory of the GPU that is read and that nothing wrote
    synccheck   barriers that not all threads reach

First the tests run without it, on all cores: so all kernels are compiled, and what fails, fails.
Then the four run at once, each on one core, with CuPy's memory pool switched off: in a pool, what
lies behind an array is another array. The exit status is 0 where none of them found anything.

For pytest this file is a plugin, which switches off the pool and draws few examples.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

from .conftest import why_no_cuda

TOOLS: dict[str, list[str]] = {
    "memcheck": ["--padding", "256", "--report-api-errors", "no"],
    "racecheck": [],
    "initcheck": [],
    "synccheck": [],
}
FOUND = 99  # the sanitizer's exit status when it found something
VERDICTS = {0: "nothing found", FOUND: "FOUND MISTAKES"}
PORTS = 10  # that each of them may talk over
# Left out is what launches the kernels of other tests, to compare other things, or none at all.
OTHERS = (
    "bit_by_bit or hides or ignores or is_linear or preserves or finite or far_from or "
    "long_sequences or cannot_run or test_cuda"
)
TESTS = ["tests/kernels", "-k", f"cuda and not ({OTHERS})"]
PYTEST = [sys.executable, "-m", "pytest", "-p", "tests.sanitize", "-p", "no:cacheprovider", "-q"]
ENVIRONMENT = {"HYPOTHESIS_PROFILE": "ci", "MINITRANSFORMER_LINEINFO": "1"}

settings.register_profile(
    "sanitize", max_examples=2, deadline=None, derandomize=True, database=None,
    phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


def pytest_sessionstart() -> None:
    """Has CuPy take the memory of each array from CUDA, so that its end is known."""
    settings.load_profile("sanitize")
    import_module("cupy").cuda.set_allocator(None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests without the sanitizer, then with each of its tools.

    Returns:
        0 if nothing was found, 1 if something was, 2 where there is no GPU or no sanitizer.
    """
    options = _parser().parse_args(arguments)
    try:
        sanitizer = find_sanitizer()
    except RuntimeError as problem:
        print(f"python -m tests.sanitize: {problem}", file=sys.stderr)
        return 2
    options.logs.mkdir(parents=True, exist_ok=True)
    run = partial(_run, tests=options.tests or TESTS, logs=options.logs, limit=options.seconds)
    if not run("tests", [], ["-n", "logical"]):
        return 1
    commands = {
        tool: [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes",
               "application-only", "--port", str(49_152 + PORTS * number), "--max-connections",
               str(PORTS), "--log-file", str(options.logs / f"{tool}.txt"), *own]
        for number, (tool, own) in enumerate(TOOLS.items()) if tool in options.tools
    }  # fmt: skip
    with ThreadPoolExecutor() as pool:
        clean = list(pool.map(lambda tool: run(tool, commands[tool], ["-n0"]), commands))
    print(f"what each of them says is in {options.logs}/")
    return int(not all(clean))


def find_sanitizer() -> str:
    """Return the path of compute-sanitizer: from CUDA's toolkit, or from PyPI.

    Raises:
        RuntimeError: There is none, or no GPU to use it on.
    """
    problem = why_no_cuda()
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    folders = [*packages.glob("cu*/bin"), Path("/usr/local/cuda/bin")]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which("compute-sanitizer", path=path)
    if problem or found is None:
        raise RuntimeError(
            problem
            or "compute-sanitizer was not found: pip install nvidia-cuda-sanitizer-api, or have "
            "the `bin` of CUDA's toolkit on the PATH"
        )
    return found


def _run(
    name: str, command: list[str], how: list[str], *, tests: list[str], logs: Path, limit: int
) -> bool:
    """Run the tests under a command; print how it went, and return whether all is well."""
    start, output = time.monotonic(), logs / f"{name}_pytest.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*command, *PYTEST, *how, *tests],
            env=os.environ | ENVIRONMENT, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        try:
            verdict = VERDICTS.get(process.wait(limit), "FAILED")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            verdict = f"NOT DONE in {limit} s"
    seconds = time.monotonic() - start
    last = (output.read_text().strip().splitlines() or ["no output"])[-1].strip("= ")
    print(f"{name:9} {seconds:4.0f} s  {verdict:14}  {last}", flush=True)
    return verdict == VERDICTS[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.sanitize", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL",
        help=f"of {', '.join(TOOLS)}; all of them",
    )  # fmt: skip
    parser.add_argument(
        "--logs", type=Path, default=Path("results/gpu/sanitizer"), metavar="FOLDER",
        help="for what pytest and the tools print (results/gpu/sanitizer)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=int, default=500, metavar="S", help="that each run may take (500)"
    )
    parser.add_argument(
        "tests", nargs="*", metavar="TEST", help="for pytest: files and options, after `--`"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
