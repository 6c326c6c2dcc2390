"""Tensors whose elements share bytes: 4 bits, two to a byte; 6 bits, four to three bytes. Unpacked to a byte each.

The torch dialect aborts the process on types of 4 bits, and no target has them all, so none appears in the IR: the
argument is a row of bytes, and integer arithmetic takes elements out of it and puts them in.
"""

from __future__ import annotations

import math

from graph_api import DataType, TensorAttr
from iree_bridge.emit.builder import Builder, Value
from iree_bridge.emit.linalg import Code, Operand, generic
from iree_bridge.targets.types import builtin_tensor

__all__ = ["pack", "unpack"]


def unpack(e: Builder, tensor: TensorAttr, memory: Value) -> Value:
    """The elements of a packed tensor as they lie in ``memory``: in its physical shape, which is flat if it has gaps.

    Where rows are whole groups, none reaches over the end of a row, and the unpacking keeps the dims: the compiler
    then makes it a part of the kernel that uses the elements. Of other rows it makes a kernel.
    """
    dtype, layout = tensor.data_type, tensor.physical
    many, size = _group(dtype)
    *rows, last = layout.shape or (1,)
    if layout.dense and last % many == 0:
        groups = e.reshape(memory, (*rows, last // many, *_more(size)))
        return e.reshape(_elements(e, groups, dtype), layout.shape)
    groups = _grouped(e, memory, size)
    flat = e.reshape(_elements(e, groups, dtype), (groups.dims[0] * many,))
    return e.reshape(e.slice(flat, 0, 0, layout.extent), layout.shape)


def pack(e: Builder, tensor: TensorAttr, elements: Value) -> Value:
    """The bytes that hold ``elements``, which are in the physical shape of the tensor.

    GPUs pack in a kernel of its own: some that also reduce do not compile ("failed to apply fusion").
    """
    elements = e.barrier(elements) if e.target.is_gpu else elements
    dtype, layout = tensor.data_type, tensor.physical
    many, _ = _group(dtype)
    *rows, last = layout.shape or (1,)
    if layout.dense and last % many == 0:
        groups = e.reshape(elements, (*rows, last // many, many))
    else:
        groups = _grouped(e, e.reshape(elements, (layout.extent,)), many)
    made = _bytes(e, groups, dtype)
    flat = e.reshape(made, (math.prod(made.dims),))
    return e.slice(flat, 0, 0, tensor.nbytes)


def _group(dtype: DataType) -> tuple[int, int]:
    """How many elements fill how many whole bytes."""
    together = math.lcm(dtype.bits, 8)
    return together // dtype.bits, together // 8


def _grouped(e: Builder, flat: Value, size: int) -> Value:
    """A row as groups of ``size``, the last one filled up with zeros."""
    whole = e.pad(flat, [(0, -flat.dims[0] % size)])
    return e.reshape(whole, (whole.dims[0] // size, *_more(size)))


def _more(size: int) -> tuple[int, ...]:
    """The dim of the parts of a group, where it has several."""
    return (size,) if size > 1 else ()


def _elements(e: Builder, groups: Value, dtype: DataType) -> Value:
    """[..., bytes], or [...] if a byte is a group, as [..., elements], lowest bits first; signs of INT4 in all bits."""
    many, size = _group(dtype)
    word = groups if size == 1 else _joined(e, groups, 8)
    code, word_bits = _word(word)
    shift = _shift(code, len(word.dims), dtype.bits)
    if dtype is DataType.INT4:
        left = code.op("subi", code.constant(32 - dtype.bits, "i32"), shift, "i32")
        value = code.op("shrsi", code.op("shli", word_bits, left, "i32"), code.constant(32 - dtype.bits, "i32"), "i32")
    else:
        moved = code.op("shrui", word_bits, shift, "i32")
        value = code.op("andi", moved, code.constant(2**dtype.bits - 1, "i32"), "i32")
    return _spread(e, "unpack", word, many, code, value)


def _bytes(e: Builder, groups: Value, dtype: DataType) -> Value:
    """[..., elements] as [..., bytes], the lowest bits first."""
    _, size = _group(dtype)
    word = _joined(e, groups, dtype.bits)
    code, word_bits = _word(word)
    value = code.op("shrui", word_bits, _shift(code, len(word.dims), 8), "i32")
    return _spread(e, "pack", word, size, code, value)


def _shift(code: Code, rank: int, bits: int) -> str:
    return code.scale(code.line(f"arith.index_cast {code.loop(rank)} : index to i32"), bits, "i32")


def _word(word: Value) -> tuple[Code, str]:
    """Code that begins with an element of ``word`` in 32 bits."""
    code = Code()
    return code, code.line("arith.extui %i0 : i8 to i32") if word.dtype is DataType.INT8 else "%i0"


def _joined(e: Builder, parts: Value, bits: int) -> Value:
    """[..., n] parts of ``bits`` bits as [...] numbers of 32, the first part lowest."""
    rank = len(parts.dims) - 1
    source, result = builtin_tensor(parts.dims, DataType.INT8), builtin_tensor(parts.dims[:-1], DataType.INT32)
    code = Code()
    part = code.op("andi", code.line("arith.extui %i0 : i8 to i32"), code.constant(2**bits - 1, "i32"), "i32")
    value = code.op("ori", "%o", code.op("shli", part, _shift(code, rank, bits), "i32"), "i32")
    whole = [f"d{axis}" for axis in range(rank + 1)]
    lines = generic(
        "%made",
        [Operand("%x", source, whole)],
        Operand("%none", result, whole[:-1]),
        [*["parallel"] * rank, "reduction"],
        code.lines,
        value,
    )
    text = f"""func.func private @joined(%x: {source}) -> {result} {{
  %zero = arith.constant 0 : i32
  %empty = tensor.empty() : {result}
  %none = linalg.fill ins(%zero : i32) outs(%empty : {result}) -> {result}
{chr(10).join(lines)}
  return %made : {result}
}}"""
    return e.call(text, [parts], parts.dims[:-1], DataType.INT32)


def _spread(e: Builder, name: str, word: Value, count: int, code: Code, value: str) -> Value:
    """[...] words as [..., count] bytes, each the lowest 8 bits of ``value``."""
    dims = (*word.dims, count)
    rank = len(word.dims)
    source, result = builtin_tensor(word.dims, word.dtype), builtin_tensor(dims, DataType.INT8)
    low = code.line(f"arith.trunci {value} : i32 to i8")
    whole = [f"d{axis}" for axis in range(rank + 1)]
    lines = generic(
        "%made",
        [Operand("%x", source, whole[:-1])],
        Operand("%empty", result, whole),
        ["parallel"] * (rank + 1),
        code.lines,
        low,
    )
    text = f"""func.func private @{name}(%x: {source}) -> {result} {{
  %empty = tensor.empty() : {result}
{chr(10).join(lines)}
  return %made : {result}
}}"""
    return e.call(text, [word], dims, DataType.INT8)
