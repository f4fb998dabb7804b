"""The PTX machine: the code that a GPU would run, run without one.

A kernel becomes PTX, the assembly language of all NVIDIA GPUs, before it becomes the machine code
of one. `parser` reads PTX, `machine` runs it, instruction after instruction, each as NVIDIA's
manual says (`arithmetic`), on registers of 64 `bits`. What a GPU would do in parallel is done in an
order that is drawn: a program that depends on the order shows. `driver` compiles kernels and runs
launches.
"""

from .driver import Machine, ptx_machine, run
from .machine import Run, launch
from .parser import Program, PtxError
from .profile import Profile, Row, profile

__all__ = ["Machine", "Profile", "Program", "PtxError", "Row", "Run", "launch", "profile",
           "ptx_machine", "run"]  # fmt: skip
