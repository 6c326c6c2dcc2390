"""Emission of the gradient of pooling: one ``linalg.generic`` over dx that gathers from the windows of each element."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType, ResampleMode
from graph_api.ops.resample_backward import ResampleBwdNode
from iree_bridge.emit.emitter import Emitter, rule
from iree_bridge.emit.linalg import Code, Operand, element_type, generic
from iree_bridge.targets.types import builtin_tensor

__all__ = ["resample_bwd"]


@rule("resample_bwd")
def resample_bwd(e: Emitter, node: ResampleBwdNode) -> None:
    """Each element adds up what the windows that hold it give: no two threads write to one place."""
    dx = node.outputs["dx"]
    order = node.inputs["dy"].physical.order
    dy = e.read(node.inputs["dy"])
    if dy.dtype.bits > node.compute.bits:
        dy = e.cast(dy, node.compute)
    operands = [e.permute(dy, order)]
    if not node.inputs["dy"].physical.dense:
        # Taken from a slice the kernel of a CPU is not translated ("unrealized_conversion_cast").
        operands = [e.barrier(operands[0])]
    if "index" in node.inputs:
        # What the search of resample_fwd makes is a kernel of its own; the two together do not compile.
        operands.append(e.barrier(e.permute(e.read(node.inputs["index"]), order)))
    text = _function(node, order, [(value.dims, value.dtype) for value in operands])
    made = e.call(text, operands, [dx.dims[axis] for axis in order], node.compute)
    e.write(node, "dx", e.permute(made, [order.index(axis) for axis in range(len(order))]))


def _function(node: ResampleBwdNode, order: Sequence[int], operands: Sequence[tuple[Sequence[int], DataType]]) -> str:
    """From dy and, of a maximum, index to dx, all in one order of memory.

    The windows that hold an element are ``ceil(window / stride)`` at most along a dim: the last one that begins in
    front of it, and those before that.
    """
    a, rank, kind = node.attributes, len(order), element_type(node.compute)
    dims = [node.outputs["dx"].dims[axis] for axis in order]
    reach = tuple(
        min(-(-size // step), most)
        for size, step, most in zip(a.window, a.stride, node.inputs["dy"].dims[2:], strict=True)
    )
    code, where, held = Code(), [""] * rank, ""
    for axis in (0, 1):
        where[order.index(axis)] = code.loop(order.index(axis))
    divisor = ""
    for spatial in range(len(a.window)):
        at = order.index(spatial + 2)
        inside, where[at], count = _window(node, code, spatial, code.loop(at), code.loop(rank + spatial))
        held = inside if not held else code.op("andi", held, inside, "i1")
        divisor = count if not divisor else code.op("muli", divisor, count)
    types = [builtin_tensor(*operand) for operand in operands]
    given = code.line(f"tensor.extract %a0[{', '.join(where)}] : {types[0]}")
    if operands[0][1] is not node.compute:
        given = code.line(f"arith.extf {given} : {element_type(operands[0][1])} to {kind}")
    if a.is_max:
        held = code.op("andi", held, _hit(node, code, order, where, types[1], operands[1][1]), "i1")
    else:
        number = code.line(f"arith.index_cast {divisor} : index to i32")
        given = code.op("divf", given, code.line(f"arith.sitofp {number} : i32 to {kind}"), kind)
    zero = code.line(f"arith.constant 0.0 : {kind}")
    value = code.op("addf", "%o", code.line(f"arith.select {held}, {given}, {zero} : {kind}"), kind)
    out, windows = builtin_tensor(dims, node.compute), builtin_tensor(reach, DataType.INT8)
    loops = ["parallel"] * rank + ["reduction"] * len(reach)
    result = Operand("%begun", out, [f"d{i}" for i in range(rank)])
    extents = Operand("%reach", windows, [f"d{rank + i}" for i in range(len(reach))])
    arguments = ", ".join(f"%a{i}: {each}" for i, each in enumerate(types))
    lines = [
        f"func.func private @gather_windows({arguments}) -> {out} {{",
        f"  %reach = tensor.empty() : {windows}",
        f"  %first = arith.constant 0.0 : {kind}",
        f"  %empty = tensor.empty() : {out}",
        f"  %begun = linalg.fill ins(%first : {kind}) outs(%empty : {out}) -> {out}",
        *generic("%total", [extents], result, loops, code.lines, value),
        f"  return %total : {out}",
        "}",
    ]
    return "\n".join(lines)


def _window(node: ResampleBwdNode, code: Code, spatial: int, place: str, back: str) -> tuple[str, str, str]:
    """The window ``back`` before the last that begins in front of ``place``: whether it holds it, which, its count.

    It is one that there is, whether it holds the place or not.
    """
    a = node.attributes
    size, windows = node.outputs["dx"].dims[spatial + 2], node.inputs["dy"].dims[spatial + 2]
    pre, stride, extent = a.pre_padding[spatial], a.stride[spatial], a.window[spatial]
    shifted = code.op("addi", place, code.constant(pre))
    last = code.op("minui", code.op("divui", shifted, code.constant(stride)), code.constant(windows - 1))
    exists = code.line(f"arith.cmpi ule, {back}, {last} : index")
    which = code.lowered(last, back, 1, windows - 1)
    begin = code.scale(which, stride)
    end = code.op("addi", begin, code.constant(extent))
    exists = code.op("andi", exists, code.line(f"arith.cmpi ult, {shifted}, {end} : index"), "i1")
    count = code.constant(extent)
    if a.mode is ResampleMode.AVGPOOL_EXCLUDE_PADDING:
        end = code.op("minui", end, code.constant(size + pre))
        count = code.op("subi", end, code.op("maxui", begin, code.constant(pre)))
    return exists, which, count


def _hit(
    node: ResampleBwdNode, code: Code, order: Sequence[int], where: Sequence[str], kind: str, dtype: DataType
) -> str:
    """Whether the index of the window names this element."""
    named = code.line(f"tensor.extract %a1[{', '.join(where)}] : {kind}")
    wide = "i64" if dtype is DataType.INT64 else "i32"
    if dtype is DataType.INT8:
        named = code.line(f"arith.extsi {named} : i8 to i32")
    place = code.constant(0)
    for spatial, size in enumerate(node.outputs["dx"].dims[2:]):
        place = code.op("addi", code.scale(place, size), code.loop(order.index(spatial + 2)))
    number = code.line(f"arith.index_cast {place} : index to {wide}")
    return code.line(f"arith.cmpi eq, {named}, {number} : {wide}")
