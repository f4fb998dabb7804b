"""Hand-written CUDA kernels for attention, each also running on NumPy arrays.

Arrays in, arrays out: nothing here knows of automatic differentiation. Each kind of attention is a
folder: the derivation and its host functions, the NumPy truth (`reference`), the kernels that a
learner writes first (`plain`) and those that run (`fast`). `cuda` is the one door to CUDA; `cpu` is
the compiler that runs the same kernels without a GPU, `host` all that a program does around them;
`without_gpu` runs programs so that were written for a GPU.

The folder is called `kernels` and installs as `minitransformer_kernels`, because the import name
`kernels` belongs to another distribution.
"""

if __name__ == "kernels":
    raise ImportError(
        "this folder is not the package 'kernels': import minitransformer_kernels, or "
        "`from minitransformer import kernels`; `pip install -e .` makes both available"
    )

from .cpu import (
    DataRace,
    DivergentBarrier,
    EndlessLoop,
    FailedAssertion,
    KernelError,
    OutOfBounds,
    UninitializedRead,
    UnsupportedKernel,
    checked,
)

__all__ = [
    "DataRace", "DivergentBarrier", "EndlessLoop", "FailedAssertion", "KernelError", "OutOfBounds",
    "UninitializedRead", "UnsupportedKernel", "checked",
]  # fmt: skip
