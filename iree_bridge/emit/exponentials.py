"""Exponentials on a CPU: with their sums along rows in one loop nest, as apart each is computed twice; sigmoids."""

from __future__ import annotations

from graph_api import DataType, PointwiseMode, TensorAttr
from graph_api.ops.pointwise import PointwiseNode
from graph_api.ops.reduction import ReductionNode
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Operand, element_type, made_by_elements
from iree_bridge.emit.softmax import has_rows
from iree_bridge.emit.vectors import Vectors
from iree_bridge.targets.types import builtin_tensor

__all__ = ["exponentials_and_sums", "exponents", "sigmoid"]


def exponents(e: Emitter, node: ReductionNode) -> TensorAttr | None:
    """What the f32 exponentials are of that ``node`` sums along rows on a CPU, if something else reads them too."""
    x, made = node.inputs["x"], e.graph.maker(node.inputs["x"])
    if not isinstance(made, PointwiseNode) or made.attributes.mode is not PointwiseMode.EXP or e.target.is_gpu:
        return None
    are_rows = node.axes == (len(x.dims) - 1,) and tuple(x.physical.order) == tuple(range(len(x.dims)))
    is_read = x.is_virtual and len(e.graph.readers(x)) > 1
    is_single = {x.data_type, made.compute, node.compute} == {DataType.FLOAT}
    return made.inputs["in_0"] if are_rows and is_read and is_single and x.dims[-1] > 1 else None


def exponentials_and_sums(e: Emitter, x: Value, kind: DataType) -> tuple[Value, Value]:
    """exp(x) of f32 [..., C], and its sums [..., 1] in f32, which are taken in ``kind``.

    Where something of the graph lies in another order the compiler cannot look at them: a transposition of one of two
    results of an operation is one that it makes with a single result, and refuses then.
    """
    rank = len(x.dims)
    rows = (*x.dims[:-1], 1)
    all_, sums = builtin_tensor(x.dims, DataType.FLOAT), builtin_tensor(x.dims[:-1], kind)
    at = [f"d{i}" for i in range(rank)]
    whole, lead = (f"affine_map<({', '.join(at)}) -> ({', '.join(index)})>" for index in (at, at[:-1]))
    kinds = ", ".join(['"parallel"'] * (rank - 1) + ['"reduction"'])
    element = element_type(kind)
    widened = ["%term = arith.extf %one : f32 to f64"] if kind is DataType.DOUBLE else []
    term = "%term" if widened else "%one"
    lines = [
        f"func.func private @exponentials(%x: {all_}) -> ({all_}, {sums}) {{",
        f"  %zero = arith.constant 0.0 : {element}",
        f"  %empty = tensor.empty() : {all_}",
        f"  %open = tensor.empty() : {sums}",
        f"  %begun = linalg.fill ins(%zero : {element}) outs(%open : {sums}) -> {sums}",
        f"  %made:2 = linalg.generic {{indexing_maps = [{whole}, {whole}, {lead}], iterator_types = [{kinds}]}} "
        f"ins(%x : {all_}) outs(%empty, %begun : {all_}, {sums}) {{",
        f"  ^bb0(%i: f32, %o: f32, %sum: {element}):",
        "    %one = math.exp %i : f32",
        *(f"    {line}" for line in widened),
        f"    %next = arith.addf %sum, {term} : {element}",
        f"    linalg.yield %one, %next : f32, {element}",
        f"  }} -> ({all_}, {sums})",
        f"  return %made#0, %made#1 : {all_}, {sums}",
        "}",
    ]
    made, total = e.calls("\n".join(lines), [x], [(x.dims, DataType.FLOAT), (x.dims[:-1], kind)])
    if not all(has_rows(tensor) for tensor in e.graph.tensors):
        made, total = e.barrier(made), e.barrier(total)
    return made, e.cast(e.reshape(total, rows), DataType.FLOAT)


def sigmoid(e: Emitter, x: Value) -> Value:
    """1 / (1 + exp(-x)) of f32, of an exponential that takes two thirds of the compiler's instructions."""
    code = Vectors(e.target, 0)
    one = code.number(1.0)
    power = code.exp(code.lesser(code.number(_MOST), code.line("arith.negf %i0 : f32")))
    value = code.binary("divf", one, code.binary("addf", one, power))
    kind = builtin_tensor(x.dims, DataType.FLOAT)
    ins = [Operand("%x", kind, [f"d{axis}" for axis in range(len(x.dims))])]
    text = made_by_elements("sigmoid", kind, (x.dims, DataType.FLOAT), code, value, ins=ins, first=code.first)
    return e.call(text, [x], x.dims, DataType.FLOAT)


_MOST = 89.0
"""Here the exponential is infinite, and what is divided by it 0."""
