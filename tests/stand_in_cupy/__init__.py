"""A stand-in for CuPy, so that the way of an array through the CUDA side is tested without a GPU.

    pytest --stand-in-cupy -k cuda
    pytest --stand-in-cupy --as-ptx -k cuda

runs every test that wants CUDA on arrays that are not NumPy's: they refuse what CuPy refuses, and
give arrays where NumPy gives scalars. Kernels take the way of a launch on a GPU up to the GPU, and
in its place the CPU's; with `--as-ptx` the PTX machine's: then what runs is the code that a GPU
would run, on the bytes that a launch would give it. No GPU runs anything here.

What CuPy has is read from `names.txt`, which `names` wrote from an installed CuPy.
"""

from .modules import install, on_ptx_machine, report

__all__ = ["install", "on_ptx_machine", "report"]
