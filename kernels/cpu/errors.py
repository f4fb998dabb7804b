"""What can be wrong with a kernel, said in one sentence with the file and the line."""

from __future__ import annotations


class KernelError(Exception):
    """A kernel, or the way it was launched, is wrong."""


class UnsupportedKernel(KernelError):
    """The kernel uses something that has no meaning on the CPU yet, or none at all."""


class DivergentBarrier(KernelError):
    """A barrier that not every thread of the block would reach."""
