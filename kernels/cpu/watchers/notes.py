"""What instrumented code calls at each access and each statement when a launch is traced."""

from __future__ import annotations

import sys

import numpy as np
from numba.core import types
from numba.extending import intrinsic, register_jitable

from .. import runtime
from ..runtime import *  # noqa: F403
from ..runtime.atomics import element_address
from .fields import run__field

run__trace = sys.modules[__name__]  # what emitted code calls us: nobody else uses such a name

__all__ = [*runtime.__all__, "run__field", "run__trace"]


@intrinsic
def address_of(typing_context, array, index):
    """The address of an element."""

    def generate(context, builder, signature, arguments):
        address = element_address(context, builder, signature, arguments)
        return builder.ptrtoint(address, context.get_value_type(types.intp))

    return types.intp(array, index), generate


@register_jitable
def trace(array, log, counts, place, block, thread, step, index):
    """Write an access down, if there is room; return the index."""
    row = counts[0]
    if row < len(log):
        log[row, 0], log[row, 1], log[row, 2], log[row, 3] = place, block, thread, step
        log[row, 4] = address_of(array, index)
    counts[0] += 1
    return index


@register_jitable
def trace_write(array, log, counts, place, block, thread, step, index, value):
    """Write an assignment down, and do it."""
    trace(array, log, counts, place, block, thread, step, index)
    array[index] = value


@register_jitable
def execute(marks, counts, statement, block, thread, step):
    """Write down that a thread executes a statement."""
    row = counts[1]
    if row < len(marks):
        marks[row, 0], marks[row, 1] = statement, block
        marks[row, 2], marks[row, 3] = np.int64(thread), step
    counts[1] += 1
