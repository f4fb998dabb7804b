"""Runs every benchmark, each in a process of its own, so that none inherits another's memory.

Rows go to stdout; to stderr goes, for each, on which processors this code has not been tried.
"""

import subprocess
import sys

BENCHMARKS = (
    "softmax", "linear", "positions", "graph", "scaling", "multi_head", "model", "memory", "start",
    "lowering", "local", "delta", "compiling", "checked", "simulator", "numerics", "features",
    "ladder",
)  # fmt: skip

failed = [
    name
    for name in BENCHMARKS
    if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
]
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
