"""How a CUDA block becomes a CPU loop: compile `@cuda.jit` kernels for NumPy arrays.

The method is that of MCUDA (Stratton et al. 2008) and of pocl's work-group functions (Jaaskelainen
et al. 2015), on Python source. Its steps, one module each:

    source      read the kernel's text and the constants that it refers to
    flatten     make one function of it, with one effect a statement
    canonical   bring it into a canonical form
    uniformity  find what is the same for all threads of a block
    regions     cut where threads wait, and at loops that all share; find what lives across
    ahead       ask for memory before it is needed
    emit        write it down as Python, each region a loop over the threads
    pipeline    compile that with Numba, the loops over the threads marked as parallel
    pool        share the blocks out among CPU threads

Two more ways to write it down watch each access (`instrument`): one looks for mistakes (`checks`),
one writes everything down (`tracing`). README.md is a lesson about all this.

Nothing here knows of attention: the package could be lifted out as it is.
"""

from .checking import checked
from .errors import (
    DataRace,
    DivergentBarrier,
    KernelError,
    OutOfBounds,
    UninitializedRead,
    UnsupportedKernel,
)
from .launch import CpuKernel
from .pool import num_threads

__all__ = [
    "CpuKernel", "DataRace", "DivergentBarrier", "KernelError", "OutOfBounds", "UninitializedRead",
    "UnsupportedKernel", "checked", "num_threads",
]  # fmt: skip
