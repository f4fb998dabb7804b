"""How a CUDA block becomes a CPU loop: compile `@cuda.jit` kernels for NumPy arrays.

The method is that of MCUDA (Stratton et al. 2008) and of pocl's work-group functions (Jaaskelainen
et al. 2015), on Python source. Its steps, one module each:

    source        read the kernel's text and the constants that it refers to
    flatten       make one function of it, with one effect a statement
    canonical     bring it into a canonical form
    typed         find the types of its variables
    uniformity    find what is the same for all threads of a block
    regions       cut where threads wait, and at loops that all share; find what lives across
    ahead         ask for memory before it is needed
    emit          write it down as Python, each region a loop over the threads
    tuned         the same, written for speed
    compiler      compile that with Numba, the loops over the threads marked as parallel
    rehearsal     on another core, compile what is launched next
    runtime.pool  share the blocks out among CPU threads

`runtime` is what emitted code imports. `watchers` has two more ways to write it down, with a call
at each access: one looks for mistakes, one writes everything down. README.md is a lesson about all
this.

Nothing here knows of attention: the package could be lifted out as it is.
"""

from .errors import (
    DataRace,
    DivergentBarrier,
    EndlessLoop,
    FailedAssertion,
    KernelError,
    OutOfBounds,
    UninitializedRead,
    UnsupportedKernel,
)
from .launch import CpuKernel
from .rehearsal import rehearsed
from .runtime.pool import num_threads
from .watchers.checked_mode import DiffersOnGpu, checked

__all__ = [
    "CpuKernel", "DataRace", "DiffersOnGpu", "DivergentBarrier", "EndlessLoop", "FailedAssertion",
    "KernelError", "OutOfBounds", "UninitializedRead", "UnsupportedKernel", "checked",
    "num_threads", "rehearsed",
]  # fmt: skip
