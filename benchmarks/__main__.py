"""Runs benchmarks, each in a process of its own, so that none inherits another's memory.

Rows go to stdout; to stderr goes, for each, on which processors this code has not been tried.
"""

import argparse
import subprocess
import sys

BENCHMARKS = (
    "softmax", "linear", "positions", "graph", "scaling", "multi_head", "model", "memory", "start",
    "lowering", "tuning", "local", "delta", "compiling", "checked", "simulator", "numerics",
    "features", "planner", "ladder",
)  # fmt: skip

parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
parser.add_argument(
    "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all, if none is named"
)
names = parser.parse_args().names or BENCHMARKS
if unknown := sorted({*names} - {*BENCHMARKS}):
    parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
failed = [
    name
    for name in names
    if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
]
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
