"""A number in a record as an array without dimensions: what arrays are for many, it is for one."""

from __future__ import annotations

from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


@intrinsic(prefer_literal=True)
def run__field(typing_context, record, name):  # type: ignore[no-untyped-def]
    """The field of a record."""
    field = name.literal_value
    kind = types.Array(record.typeof(field), 0, "C", aligned=False)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = make_array(kind)(context, builder)
        offset = context.get_constant(types.intp, record.offset(field))
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        data = cgutils.pointer_add(builder, arguments[0], offset, return_type=array.data.type)
        populate_array(array, data=data, shape=(), strides=(), meminfo=None,
                       itemsize=context.get_constant(types.intp, size))  # fmt: skip
        return array._getvalue()

    return kind(record, name), generate
