"""Tensors of INT4, two elements to a byte: unpacked to INT8 with integer arithmetic.

The torch dialect aborts the process on types of 4 bits, so none appears in the IR: the argument is a row of bytes.
"""

from __future__ import annotations

from graph_api import DataType, TensorAttr
from iree_bridge.emit.builder import Builder, Value
from iree_bridge.targets.types import builtin_tensor

__all__ = ["unpack"]


def unpack(e: Builder, tensor: TensorAttr, memory: Value) -> Value:
    """The elements of an INT4 tensor as they lie in ``memory``: in its physical shape, which is flat if it has gaps.

    Where rows have even length, no pair reaches over the end of a row, and the unpacking keeps the dims: the compiler
    then makes it a part of the kernel that uses the elements. Of other rows it makes a kernel.
    """
    layout = tensor.physical
    *rows, last = layout.shape or (1,)
    if layout.dense and last % 2 == 0:
        return e.reshape(_halves(e, e.reshape(memory, (*rows, last // 2))), layout.shape)
    flat = e.reshape(_halves(e, memory), (2 * memory.dims[0],))
    return e.reshape(e.slice(flat, 0, 0, layout.extent), layout.shape)


def _halves(e: Builder, values: Value) -> Value:
    """[..., n] bytes as [..., n, 2] numbers from -8 to 7: the lower half, then the upper half.

    The torch dialect would need a constant tensor of the two shifts, and code with constants cannot be recorded.
    """
    rank = len(values.dims)
    loops = ", ".join(f"d{i}" for i in range(rank + 1))
    source = builtin_tensor(values.dims, DataType.INT8)
    result = builtin_tensor((*values.dims, 2), DataType.INT8)
    maps = f"affine_map<({loops}) -> ({loops.rpartition(', ')[0]})>, affine_map<({loops}) -> ({loops})>"
    kinds = ", ".join(['"parallel"'] * (rank + 1))
    text = f"""
      func.func private @unpack(%bytes: {source}) -> {result} {{
        %four = arith.constant 4 : i8
        %empty = tensor.empty() : {result}
        %halves = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
            ins(%bytes : {source}) outs(%empty : {result}) {{
        ^bb0(%byte: i8, %o: i8):
          %index = linalg.index {rank} : index
          %half = arith.index_cast %index : index to i8
          %below = arith.muli %half, %four : i8
          %shift = arith.subi %four, %below : i8
          %top = arith.shli %byte, %shift : i8
          %number = arith.shrsi %top, %four : i8
          linalg.yield %number : i8
        }} -> {result}
        return %halves : {result}
      }}"""
    return e.call(text, [values], (*values.dims, 2), DataType.INT8)
