"""Compile all kernels for a GPU ahead: `python -m minitransformer_kernels.gpu.precompile 64 128`.

A kernel is compiled when it is first launched, which takes a second or two, and is kept on disk for
every process after that (`assembler`). A first training run waits for it; a benchmark must not.
Here the kernels for some head dims are compiled at once, each core its share. No GPU is needed
where `--architecture` is given.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from itertools import islice

from ..arrays import HEAD_DIMS
from . import assembler
from .specialisations import USUAL, specialisations


def precompile(
    head_dims: list[int], dtypes: list[str], architecture: tuple[int, int], cores: int
) -> int:
    """Compile every kernel for some head dims (E = M) and dtypes; return how many there are."""
    share = partial(compile_share, head_dims, dtypes, architecture, cores)
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(share, range(cores)))


def compile_share(
    head_dims: list[int], dtypes: list[str], architecture: tuple[int, int], cores: int, core: int
) -> int:
    """Compile one core's share: of all kernels every so-manieth; return how many these are."""
    found = [each for dim in head_dims for dtype in dtypes for each in specialisations(dim, dtype)]
    able = (each for each in found if architecture >= each.oldest)
    kinds = dict.fromkeys((each.kernel, each.types) for each in able)
    share = list(islice(kinds, core, None, cores))
    for kernel, types in share:
        assembler.cubin(kernel, types, architecture)
    return len(share)


def main() -> None:
    """Compile what the command line asks for."""
    parser = argparse.ArgumentParser("python -m minitransformer_kernels.gpu.precompile")
    parser.add_argument("head_dims", nargs="*", type=int, default=[USUAL], metavar="E",
                        help=f"of {HEAD_DIMS}; {USUAL}")  # fmt: skip
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32"])
    parser.add_argument("--architecture", metavar="9.0", help="of this machine's GPU, if left out")
    parser.add_argument("--cores", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    architecture = assembler.architecture(
        options.architecture or import_module("cupy").cuda.Device().compute_capability
    )
    start = time.perf_counter()
    count = precompile(options.head_dims, options.dtypes, architecture, options.cores)
    seconds = time.perf_counter() - start
    print("{} kernels for sm_{}{} in {:.0f} s".format(count, *architecture, seconds))


if __name__ == "__main__":
    main()
