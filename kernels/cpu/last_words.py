"""The last line of a process that dies: which kernel ran unchecked, and how to check it.

An access out of bounds in a fast launch changes whatever lies there, and the system ends the
process then, or later, when somebody needs what was there. Python is in no state to say anything
by then. So a handler in machine code does, which a signal may call at any time: it writes a line
that was put together before. All that a launch does for it is to store an address.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from functools import cache
from typing import Any

from llvmlite import binding, ir

NAMES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL") if os.name == "posix" else ()
ACTION = 256  # bytes for what was to be done at a signal before: no system's `sigaction` has more
LENGTH = struct.Struct("q")  # of a line, in front of it


def of(kernel: str, place: str) -> int:
    """The address of the last words for a kernel, to be stored in `last`."""
    text = (
        f"The last kernel that ran unchecked is {kernel!r} ({place}). Such code can write over any "
        "memory, as on a GPU; MINITRANSFORMER_CHECK=1 checks every access\n"
    ).encode()
    return ctypes.addressof(_kept(ctypes.create_string_buffer(LENGTH.pack(len(text)) + text)))


@cache
def last() -> ctypes.c_void_p:
    """Where a launch stores the address of its last words. The first call installs the handler."""
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = _kept(binding.create_mcjit_compiler(binding.parse_assembly(str(_handler())), machine))
    engine.finalize_object()
    before = engine.get_global_value_address("before")
    for number in (int(getattr(signal, name)) for name in NAMES):
        libc = ctypes.CDLL(None)
        libc.sigaction(number, None, ctypes.c_void_p(before + number * ACTION))
        libc.signal(number, ctypes.c_void_p(engine.get_function_address("speak")))
    return ctypes.c_void_p.from_address(engine.get_global_value_address("last"))


def _kept(thing: Any) -> Any:
    """What the handler needs, never to be freed: a process may die when Python has ended."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


def _handler() -> ir.Module:
    """`speak(signal)`: write the line, then leave the signal to whoever had it before."""
    module, i32, i64 = ir.Module("last_words"), ir.IntType(32), ir.IntType(64)
    address = ir.IntType(8).as_pointer()

    def declared(name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        return ir.Function(module, ir.FunctionType(result, arguments), name)

    def memory(name: str, kind: ir.Type) -> ir.GlobalVariable:
        variable = ir.GlobalVariable(module, kind, name)
        variable.initializer = ir.Constant(kind, None)
        return variable

    words = memory("last", i64)
    before = memory("before", ir.ArrayType(ir.ArrayType(ir.IntType(8), ACTION), signal.NSIG))
    write = declared("write", i64, i32, i64, i64)
    sigaction = declared("sigaction", i32, i32, address, address)
    again = declared("raise", i32, i32)
    speak = declared("speak", ir.VoidType(), i32)
    builder = ir.IRBuilder(speak.append_basic_block())
    (number,) = speak.args
    line = builder.load(words)
    length = builder.load(builder.inttoptr(line, i64.as_pointer()))
    builder.call(write, [i32(2), builder.add(line, i64(LENGTH.size)), length])
    former = builder.gep(before, [i32(0), number, i32(0)])
    builder.call(sigaction, [number, former, address(None)])
    builder.call(again, [number])
    builder.ret_void()
    return module
