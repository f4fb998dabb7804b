"""A stand-in for CuPy, so that the way of an array through the CUDA side is tested without a GPU.

    pytest --stand-in-cupy -k cuda

runs every test that wants CUDA on arrays that are not NumPy's: they refuse what CuPy refuses, and
give arrays where NumPy gives scalars. Kernels take the way of a launch on a GPU up to the GPU, and
in its place the CPU's. So nothing here shows that a kernel runs on a GPU, and nothing claims to: it
shows that the Python around it does not break there.

What CuPy has is read from `names.txt`, which `names` wrote from an installed CuPy.
"""

from .modules import install, report

__all__ = ["install", "report"]
