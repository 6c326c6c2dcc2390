"""Emission of block scaling: the scale of a block from the bits of its largest magnitude, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusilli_ground.float_formats import FloatFormat
from graph_api import DataType
from graph_api.ops.block_scale import BlockScaleDequantizeNode, BlockScaleQuantizeNode
from iree_bridge.emit import ordered
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.linalg import Code, Operand, element_type, generic
from iree_bridge.emit.small_floats import FORMATS, decode, encode
from iree_bridge.targets.types import builtin_tensor

__all__ = ["dequantize", "quantize"]

_SCALES = {
    DataType.HALF: FloatFormat(5, 10, 15, 0x7C00, infinity=0x7C00),
    DataType.BFLOAT16: FloatFormat(8, 7, 127, 0x7F80, infinity=0x7F80),
    DataType.FP8_E4M3: FORMATS[DataType.FP8_E4M3],
}
"""The formats of scales that are rounded up; codes beyond the largest are what too large a scale becomes."""


@rule("block_scale_dequantize")
def dequantize(e: Emitter, node: BlockScaleDequantizeNode) -> None:
    """x times the factor of its block, which is looked up: the kernel that uses y can do this.

    On GPUs elements that share bytes are unpacked by a kernel of their own: a product that unpacks, looks scales up and
    multiplies reads registers that nobody wrote (``docs/gpu_findings.md``).
    """
    kind, source = node.compute, node.inputs["x"]
    x = e.read(source, source.data_type)
    x = e.cast(e.barrier(x) if source.data_type.is_packed and e.target.is_gpu else x, kind)
    power = node.inputs["scale"].data_type is DataType.FP8_E8M0 and not node.attributes.is_negative_scale
    scale = e.read(node.inputs["scale"], DataType.FP8_E8M0 if power else kind)
    if node.attributes.is_negative_scale:
        scale = e.op("aten.exp2", scale.dims, kind, e.op("aten.neg", scale.dims, kind, scale))
    made, factors = builtin_tensor(x.dims, kind), builtin_tensor(scale.dims, scale.dtype)
    code = Code()
    where: list[str] = []
    for axis, size in enumerate(node.blocks):
        index = code.loop(axis)
        where.append(index if size == 1 else code.op("divui", index, code.constant(size)))
    factor = code.line(f"tensor.extract %scale[{', '.join(where)}] : {factors}")
    value = _times_power(code, "%i0", factor, kind) if power else code.op("mulf", "%i0", factor, element_type(kind))
    index = [f"d{axis}" for axis in range(len(x.dims))]
    lines = generic(
        "%made",
        [Operand("%x", made, index)],
        Operand("%empty", made, index),
        ["parallel"] * len(index),
        code.lines,
        value,
    )
    body = "\n".join(lines)
    text = f"""func.func private @dequantize(%x: {made}, %scale: {factors}) -> {made} {{
  %empty = tensor.empty() : {made}
{body}
  return %made : {made}
}}"""
    e.write(node, "y", e.call(text, [x, scale], x.dims, kind))


@rule("block_scale_quantize")
def quantize(e: Emitter, node: BlockScaleQuantizeNode) -> None:
    """The largest magnitude of each block, its scale, and x by it, on x with the axis in blocks."""
    kind, axis, size = node.compute, node.axis, node.attributes.block_size
    x = e.read(node.inputs["x"], kind)
    dims, count = x.dims, math.ceil(x.dims[axis] / size)
    room = [(0, 0)] * len(dims)
    room[axis] = (0, count * size - dims[axis])
    blocks = e.reshape(e.pad(x, room), (*dims[:axis], count, size, *dims[axis + 1 :]))
    most = _most(e, blocks, axis + 1)
    side_by_side = node.inputs["x"].physical.order[-1] == axis
    if e.target.is_gpu and not (side_by_side and size % 16 == 0):
        most = e.barrier(most)  # of other blocks the compiler fails to make one kernel of both steps
    target = node.outputs["scale"].data_type
    scale = _scale(e, most, node.largest, target, kind)
    y = e.reshape(_divided(e, blocks, scale, kind), (*dims[:axis], count * size, *dims[axis + 1 :]))
    e.write(node, "y", e.slice(y, axis, 0, dims[axis]))
    e.write(node, "scale", e.reshape(scale, node.outputs["scale"].dims))


def _most(e: Emitter, blocks: Value, axis: int) -> Value:
    """The bits of the largest magnitude along ``axis``, as integers of that order; NaN counts as 0."""
    code = Code()
    real, kind, bits = _kinds(blocks.dtype)
    size = code.line(f"arith.bitcast %i0 : {real} to {kind}")
    size = code.op("andi", size, code.constant(2 ** (bits - 1) - 1, kind), kind)
    is_nan = code.line(f"arith.cmpf uno, %i0, %i0 : {real}")
    value = code.line(f"arith.select {is_nan}, {code.constant(0, kind)}, {size} : {kind}")
    keys = DataType.INT32 if kind == "i32" else DataType.INT64
    return ordered.extreme(e, _elements(e, [blocks], keys, code, value), [axis], least=False)


def _scale(e: Emitter, most: Value, largest: float, target: DataType, kind: DataType) -> Value:
    """The scale of each block: codes of FP8_E8M0, else numbers of the compute type that ``target`` has."""
    code = Code()
    real, integer, _ = _kinds(kind)
    if target is DataType.FP8_E8M0:
        power = _power(code, "%i0", largest, kind)
        return _elements(e, [most], target, code, code.line(f"arith.trunci {power} : {integer} to i8"))
    size = code.line(f"arith.bitcast %i0 : {integer} to {real}")
    limit = code.line(f"arith.constant {largest!r} : {real}")
    value = code.op("divf", size, limit, real)
    single = value if kind is DataType.FLOAT else code.line(f"arith.truncf {value} : f64 to f32")
    made = single if target is DataType.FLOAT else _raised(code, single, size, limit, _SCALES[target], real)
    wide = made if kind is DataType.FLOAT else code.line(f"arith.extf {made} : f32 to f64")
    return _elements(e, [most], kind, code, wide)


def _power(code: Code, most: str, largest: float, kind: DataType) -> str:
    """The code of the least power of two that times ``largest`` is not below ``most``."""
    _, integer, _ = _kinds(kind)
    fraction, bias = (23, 127) if kind is DataType.FLOAT else (52, 1023)
    part, exponent = math.frexp(largest)
    beyond = 2**fraction - 1 - int((2 * part - 1) * 2**fraction)  # carries where the fraction exceeds the limit's
    carried = code.op("addi", most, code.constant(beyond, integer), integer)
    power = code.op("shrui", carried, code.constant(fraction, integer), integer)
    power = code.op("subi", power, code.constant(exponent - 1 + bias - 127, integer), integer)
    power = code.op("maxsi", power, code.constant(0, integer), integer)
    power = code.op("minsi", power, code.constant(0xFE, integer), integer)
    infinite = code.line(f"arith.cmpi uge, {most}, {code.constant((2 * bias + 1) << fraction, integer)} : {integer}")
    return code.line(f"arith.select {infinite}, {code.constant(0xFE, integer)}, {power} : {integer}")


def _raised(code: Code, near: str, most: str, limit: str, target: FloatFormat, real: str) -> str:
    """``near``, f32, as the least number of the format that times ``limit`` is not below ``most``.

    That product has few enough bits to be exact, so no rounding of the quotient decides.
    """
    number = encode(code, target, near, DataType.FLOAT)
    value = code.line(f"arith.bitcast {decode(code, target, number)} : i32 to f32")
    wide = value if real == "f32" else code.line(f"arith.extf {value} : f32 to f64")
    below = code.line(f"arith.cmpf olt, {code.op('mulf', wide, limit, real)}, {most} : {real}")
    highest = target.largest - (target.infinity is not None)
    room = code.line(f"arith.cmpi ult, {number}, {code.constant(highest, 'i32')} : i32")
    step = code.line(f"arith.extui {code.op('andi', below, room, 'i1')} : i1 to i32")
    bits = decode(code, target, code.op("addi", number, step, "i32"))
    return code.line(f"arith.bitcast {bits} : i32 to f32")


def _divided(e: Emitter, blocks: Value, scale: Value, kind: DataType) -> Value:
    """Elements by the scale of their block; 0 where that is 0."""
    code = Code()
    real = element_type(kind)
    if scale.dtype is DataType.FP8_E8M0:
        value = _times_power(code, "%i0", "%i1", kind, inverse=True)
    else:
        zero = code.line(f"arith.constant 0.0 : {real}")
        is_zero = code.line(f"arith.cmpf oeq, %i1, {zero} : {real}")
        one = code.line(f"arith.constant 1.0 : {real}")
        divisor = code.line(f"arith.select {is_zero}, {one}, %i1 : {real}")
        value = code.line(f"arith.select {is_zero}, {zero}, {code.op('divf', '%i0', divisor, real)} : {real}")
    return _elements(e, [blocks, scale], kind, code, value)


def _times_power(code: Code, value: str, number: str, kind: DataType, *, inverse: bool = False) -> str:
    """``value`` times the power of two of a code, i8, of FP8_E8M0, or its inverse.

    Where the power would be a subnormal FLOAT, it is made of two factors: chips flush such numbers.
    """
    real, integer, _ = _kinds(kind)
    fraction, bias = (23, 127) if kind is DataType.FLOAT else (52, 1023)
    exponent = code.line(f"arith.extui {number} : i8 to {integer}")
    nan = code.line(f"arith.cmpi eq, {exponent}, {code.constant(0xFF, integer)} : {integer}")
    if inverse:
        exponent = code.op("subi", code.constant(254, integer), exponent, integer)
    exponent = code.op("addi", exponent, code.constant(bias - 127, integer), integer)
    least = code.op("maxsi", exponent, code.constant(1, integer), integer)
    bits = code.op("shli", least, code.constant(fraction, integer), integer)
    product = code.op("mulf", value, code.line(f"arith.bitcast {bits} : {integer} to {real}"), real)
    if kind is DataType.FLOAT:
        half, one = (code.line(f"arith.constant {number} : f32") for number in ("0.5", "1.0"))
        lower = code.line(f"arith.cmpi slt, {exponent}, {code.constant(1, integer)} : {integer}")
        product = code.op("mulf", product, code.line(f"arith.select {lower}, {half}, {one} : f32"), real)
    quiet = code.constant(((2 * bias + 1) << fraction) | (1 << (fraction - 1)), integer)
    return code.line(
        f"arith.select {nan}, {code.line(f'arith.bitcast {quiet} : {integer} to {real}')}, {product} : {real}"
    )


def _kinds(dtype: DataType) -> tuple[str, str, int]:
    """Float and integer type of the compute type, and their bits."""
    return ("f32", "i32", 32) if dtype is DataType.FLOAT else ("f64", "i64", 64)


def _elements(e: Emitter, sources: Sequence[Value], dtype: DataType, code: Code, value: str) -> Value:
    """A tensor of the first source's dims, each element ``value``; of the others, dims of 1 are repeated."""
    dims = sources[0].dims
    types = [builtin_tensor(source.dims, source.dtype) for source in sources]
    index = [
        ["0" if dim < whole else f"d{axis}" for axis, (dim, whole) in enumerate(zip(source.dims, dims, strict=True))]
        for source in sources
    ]
    names = ["%x", *(f"%x{number}" for number in range(1, len(sources)))]
    operands = [Operand(*each) for each in zip(names, types, index, strict=True)]
    made = builtin_tensor(dims, dtype)
    out = Operand("%empty", made, [f"d{axis}" for axis in range(len(dims))])
    lines = "\n".join(generic("%made", operands, out, ["parallel"] * len(dims), code.lines, value))
    parameters = ", ".join(f"{name}: {kind}" for name, kind in zip(names, types, strict=True))
    text = f"""func.func private @of_blocks({parameters}) -> {made} {{
  %empty = tensor.empty() : {made}
{lines}
  return %made : {made}
}}"""
    return e.call(text, sources, dims, dtype)
