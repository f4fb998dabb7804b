"""What computes with float16 on a GPU, in PTX.

numba-cuda's code calls a function for each operation on float16, which it takes from a header of
CUDA's by a compiler for C++. These are the same in PTX, for launches and for the PTX machine: each
computes in float32 and rounds once, which gives what float16 itself would (`cpu.runtime.halves`).
What is not among them, as `math.exp`, is refused by its name.
"""

from __future__ import annotations

import re

# By the names that C++ gives them: of two numbers, one, and of two a bool.
BINARY = {"pl": "add.rn.f32", "mi": "sub.rn.f32", "ml": "mul.rn.f32", "dv": "div.rn.f32"}
UNARY = {
    "ngRK6__half": "neg.f32", "psRK6__half": "mov.f32", "L6__habs6__half": "abs.f32",
    "L5hsqrt6__half": "sqrt.rn.f32", "L6hfloor6__half": "cvt.rmi.f32.f32",
    "L5hceil6__half": "cvt.rpi.f32.f32", "L6htrunc6__half": "cvt.rzi.f32.f32",
}  # fmt: skip
COMPARISONS = {"eq": "eq", "ne": "neu", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
ROUNDED = "cvt.rn.f16.f32 %h, %z; st.u16 [%out], %h;"
COMPUTE = {
    **{f"_Z{name}RK6__halfS1__nbst": (f"{text} %z, %x, %y; {ROUNDED}", 2)
       for name, text in BINARY.items()},
    **{f"_Z{name}_nbst": (f"{text} %z, %x; {ROUNDED}", 1) for name, text in UNARY.items()},
    **{f"_Z{name}RK6__halfS1__nbst":
       (f"setp.{text}.f32 %p, %x, %y; selp.u16 %h, 1, 0, %p; st.u8 [%out], %h;", 2)
       for name, text in COMPARISONS.items()},
}  # fmt: skip


def completed(ptx: str) -> str:
    """Return PTX with the bodies of the functions of float16 that it only declares."""
    declared = re.compile(r"\.extern \.func\s*\([^)]*\)\s*([\w$]+)\s*\([^)]*\)\s*;")
    return declared.sub(lambda found: _function(found[1]) or found[0], ptx)


def _function(name: str) -> str:
    """A function that gets the addresses of its result and of its operands; "" if unknown."""
    if name not in COMPUTE:
        return ""
    compute, count = COMPUTE[name]
    operands = "xy"[:count]
    given = ", ".join(f".param .b64 to_{x}" for x in ("out", *operands))
    read = "\n".join(
        f"ld.param.u64 %a, [to_{x}]; ld.u16 %h, [%a]; cvt.f32.f16 %{x}, %h;" for x in operands
    )
    return f""".func (.param .b32 status) {name}({given})
{{
.reg .b64 %a, %out; .reg .b16 %h; .reg .b32 %r; .reg .f32 %x, %y, %z; .reg .pred %p;
{read}
ld.param.u64 %out, [to_out]; {compute}
mov.u32 %r, 0; st.param.b32 [status], %r;
ret;
}}
"""
