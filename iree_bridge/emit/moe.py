"""Emission of the mixture of experts: a batched product over blocks of rows, each of one expert.

Where a group's rows begin is data, so the blocks are found on the device: a few kernels over small integer tensors.
Rows are gathered into blocks, the matrices of their experts beside them, and what comes out is gathered by row again.
Every position is clamped before something is read from there, and each result is written by the thread that it belongs
to: no routing, right or wrong, reads or writes outside a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graph_api import DataType, MoeGroupedMatmulMode, TensorAttr
from graph_api.ops.moe import MoeGroupedMatmulBwdNode, MoeGroupedMatmulNode
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.linalg import Code, Operand, element_type, generic
from iree_bridge.emit.matmul import product, served_types, widened
from iree_bridge.targets.routed import MOST_ROWS, MOST_ROWS_BACKWARD, Blocks
from iree_bridge.targets.types import builtin_tensor, carried

__all__ = ["moe_grouped_matmul", "moe_grouped_matmul_bwd"]


@rule("moe_grouped_matmul")
def moe_grouped_matmul(e: Emitter, node: MoeGroupedMatmulNode) -> None:
    """Rows into blocks, their product with copies of the matrices, rows out of blocks."""
    token, weight = node.inputs["token"], node.inputs["weight"]
    groups = node.inputs["first_token_offset"].dims[0]
    blocks = Blocks.of(node.rows, groups, most=MOST_ROWS)
    routed = _route(e, node.inputs["first_token_offset"], node.rows, blocks)
    index = _row(e, node.inputs.get("token_index"))
    gathers = node.attributes.mode is MoeGroupedMatmulMode.GATHER
    types = carried(token.data_type), carried(weight.data_type)
    operand, result = served_types(e, types, node.compute, token.dims[2])
    rows = _into_blocks(e, _rows(e, token), routed, index if gathers else None)
    order = weight.physical.order
    matrices = e.permute(_solid(e, weight), order)
    matrices = _matrices(e, matrices, routed, order.index(0), weight.dims[0])
    matrices = e.permute(matrices, [order.index(axis) for axis in range(3)])
    made = product(e, widened(e, rows, operand), widened(e, matrices, operand), result, across=order[-1] == 1)
    places = _places(e, node, routed, index, _row(e, node.inputs.get("token_ks")))
    out = _out_of_blocks(e, e.reshape(made, (blocks.count * blocks.rows, made.dims[2])), places)
    e.write(node, "output", e.reshape(out, node.outputs["output"].dims))


@rule("moe_grouped_matmul_bwd")
def moe_grouped_matmul_bwd(e: Emitter, node: MoeGroupedMatmulBwdNode) -> None:
    """Both operands into blocks, the product of each block, the sums over the blocks of each expert."""
    token, doutput = node.inputs["token"], node.inputs["doutput"]
    groups, experts = node.inputs["first_token_offset"].dims[0], node.outputs["dweight"].dims[0]
    blocks = Blocks.of(token.dims[1], groups, most=MOST_ROWS_BACKWARD)
    routed = _route(e, node.inputs["first_token_offset"], token.dims[1], blocks)
    types = carried(token.data_type), carried(doutput.data_type)
    operand, result = served_types(e, types, node.compute, token.dims[1])
    left, right = (_into_blocks(e, _rows(e, tensor), routed, None) for tensor in (token, doutput))
    left = e.permute(widened(e, left, operand), (0, 2, 1))
    partial = product(e, left, widened(e, right, operand), result, across=False)

    def own(code: Code, at: Sequence[str]) -> str:
        kind = element_type(result)
        group = code.op("remui", code.line("arith.index_cast %i1 : i32 to index"), code.constant(experts))
        same = code.line(f"arith.cmpi eq, {group}, {at[0]} : index")
        return code.line(f"arith.select {same}, %i0, {code.line(f'arith.constant 0.0 : {kind}')} : {kind}")

    operands = [(partial, (3, 1, 2)), (routed.group_of_block, (3,))]
    made = _sums(e, "expert_sums", operands, (experts, *partial.dims[1:]), result, own)
    e.write(node, "dweight", made)


@dataclass(frozen=True)
class _Routed:
    """Where groups and blocks begin, as tensors of INT32.

    Attributes:
        blocks: their number and rows.
        group_of_row: of each row; -1 for none.
        first_row, first_block: of each group, and what is behind the last.
        group_of_block: of each block; a block that is not used has no row of it.
    """

    blocks: Blocks
    group_of_row: Value
    first_row: Value
    first_block: Value
    group_of_block: Value


_Read = Callable[..., str]
_Make = Callable[[Code, Sequence[str], _Read], str]


def _table(
    e: Emitter, name: str, operands: Sequence[Value], dims: Sequence[int], dtype: DataType, make: _Make
) -> Value:
    """A tensor whose elements ``make`` says, with the indices of the loops and a reader of the operands' elements."""
    code = Code()
    types = [builtin_tensor(value.dims, value.dtype) for value in operands]

    def read(which: int, *index: str) -> str:
        return code.line(f"tensor.extract %a{which}[{', '.join(index)}] : {types[which]}")

    value = make(code, [code.loop(i) for i in range(len(dims))], read)
    return e.call(_function(name, types, [], (dims, dtype), [], code, value), operands, dims, dtype)


def _sums(
    e: Emitter,
    name: str,
    operands: Sequence[tuple[Value, Sequence[int]]],
    dims: Sequence[int],
    dtype: DataType,
    make: Callable[[Code, Sequence[str]], str],
    *,
    first: str = "",
    combine: str = "",
) -> Value:
    """A tensor of sums over one more loop, of terms that ``make`` says with the indices of the loops.

    Args:
        e, name: of the function.
        operands: each with the loops that its dims are; ``make`` knows their elements as %i0, %i1, ...
        dims, dtype: of the tensor.
        make: a term.
        first, combine: what terms are combined with first, and by which operation; default: their sum.
    """
    code, kind = Code(), element_type(dtype)
    types = [builtin_tensor(value.dims, value.dtype) for value, _ in operands]
    value = make(code, [code.loop(i) for i in range(len(dims) + 1)])
    value = code.op(combine or ("addf" if dtype.is_float else "addi"), "%o", value, kind)
    ins = [Operand(f"%a{i}", types[i], [f"d{loop}" for loop in loops]) for i, (_, loops) in enumerate(operands)]
    text = _function(name, types, ins, (dims, dtype), ["reduction"], code, value, first)
    return e.call(text, [value for value, _ in operands], dims, dtype)


def _function(
    name: str,
    types: Sequence[str],
    ins: Sequence[Operand],
    result: tuple[Sequence[int], DataType],
    more: Sequence[str],
    code: Code,
    value: str,
    first: str = "",
) -> str:
    """The text of a function of one ``linalg.generic`` that begins with ``first``, by default 0."""
    dims, dtype = result
    rank, kind, out = len(dims), element_type(dtype), builtin_tensor(*result)
    arguments = ", ".join(f"%a{i}: {each}" for i, each in enumerate(types))
    made = Operand("%begun", out, [f"d{i}" for i in range(rank)])
    lines = [
        f"func.func private @{name}({arguments}) -> {out} {{",
        f"  %first = arith.constant {first or ('0.0' if dtype.is_float else '0')} : {kind}",
        f"  %empty = tensor.empty() : {out}",
        f"  %begun = linalg.fill ins(%first : {kind}) outs(%empty : {out}) -> {out}",
        *generic("%made", ins, made, ["parallel"] * rank + list(more), code.lines, value),
        f"  return %made : {out}",
        "}",
    ]
    return "\n".join(lines)


def _number(code: Code, index: str) -> str:
    return code.line(f"arith.index_cast {index} : index to i32")


def _place(code: Code, number: str) -> str:
    """A number that is not negative as an index; a negative one as 0."""
    return code.line(f"arith.index_cast {code.op('maxsi', number, code.constant(0, 'i32'), 'i32')} : i32 to index")


def _count(code: Code, condition: str) -> str:
    """1 where a comparison of ``arith.cmpi`` holds, else 0."""
    return code.line(f"arith.extui {code.line(f'arith.cmpi {condition} : i32')} : i1 to i32")


def _solid(e: Emitter, tensor: TensorAttr) -> Value:
    """A tensor that elements are taken from: what is left of one with gaps is no buffer of its own."""
    value = e.read(tensor, carried(tensor.data_type))
    return value if tensor.physical.dense else e.barrier(value)


def _rows(e: Emitter, tensor: TensorAttr) -> Value:
    return e.reshape(_solid(e, tensor), tensor.dims[1:])


def _row(e: Emitter, tensor: TensorAttr | None) -> Value | None:
    """A routing operand as a row."""
    return None if tensor is None else e.reshape(_solid(e, tensor), (tensor.volume,))


def _route(e: Emitter, offsets: TensorAttr, rows: int, blocks: Blocks) -> _Routed:
    """Where rows and blocks of rows go, computed on the device from the offsets of the groups.

    Blocks have a fixed number of rows, so that each is a product with the weights of one group; a group fills its last
    one with rows that nobody reads.
    """
    groups, kind = offsets.dims[0], DataType.INT32
    given = _row(e, offsets)
    assert given is not None

    def begun(code: Code, at: Sequence[str]) -> str:
        return _count(code, f"sle, %i0, {_number(code, at[0])}")

    def in_front(code: Code, at: Sequence[str]) -> str:
        return _count(code, f"slt, %i0, {_number(code, at[0])}")

    def needed(code: Code, at: Sequence[str], read: _Read) -> str:
        held = code.op("subi", read(0, code.op("addi", at[0], code.constant(1))), read(0, at[0]), "i32")
        filled = code.op("addi", held, code.constant(blocks.rows - 1, "i32"), "i32")
        return code.op("divui", filled, code.constant(blocks.rows, "i32"), "i32")

    def before(code: Code, at: Sequence[str]) -> str:
        is_before = code.line(f"arith.cmpi ult, {at[1]}, {at[0]} : index")
        return code.line(f"arith.select {is_before}, %i0, {code.constant(0, 'i32')} : i32")

    row_groups = _sums(e, "group_of_row", [(given, (1,))], (rows,), kind, begun, first="-1")
    starts = _sums(e, "first_row", [(row_groups, (1,))], (groups + 1,), kind, in_front)
    heights = _table(e, "blocks_of_group", [starts], (groups,), kind, needed)
    firsts = _sums(e, "first_block", [(heights, (1,))], (groups + 1,), kind, before)
    known = e.slice(firsts, 0, 0, groups)
    of_block = _sums(e, "group_of_block", [(known, (1,))], (blocks.count,), kind, begun, first="-1")
    return _Routed(blocks, row_groups, starts, firsts, of_block)


def _into_blocks(e: Emitter, rows: Value, routed: _Routed, index: Value | None) -> Value:
    """[blocks, rows of a block, width]: the rows of each block, or those that ``index`` names; 0 where none is."""
    count, height = routed.blocks.count, routed.blocks.rows

    def source(code: Code, at: Sequence[str], read: _Read) -> str:
        group = _place(code, read(0, at[0]))
        back = code.op("subi", _number(code, at[0]), read(2, group), "i32")
        row = code.op("addi", code.scale(back, height, "i32"), _number(code, at[1]), "i32")
        row = code.op("addi", row, read(1, group), "i32")
        end = read(1, code.op("addi", group, code.constant(1)))
        held = code.line(f"arith.cmpi slt, {row}, {end} : i32")
        if index is not None:
            place = code.op("minui", _place(code, row), code.constant(index.dims[0] - 1))
            row = read(3, place)
            known = code.line(f"arith.cmpi ult, {row}, {code.constant(rows.dims[0], 'i32')} : i32")
            held = code.op("andi", held, known, "i1")
        return code.line(f"arith.select {held}, {row}, {code.constant(-1, 'i32')} : i32")

    tables = [routed.group_of_block, routed.first_row, routed.first_block, *([] if index is None else [index])]
    sources = _table(e, "source_rows", tables, (count, height), DataType.INT32, source)
    return _picked(e, "rows_of_blocks", rows, sources)


def _matrices(e: Emitter, matrices: Value, routed: _Routed, axis: int, experts: int) -> Value:
    """The matrix of each block's expert, in the place of the experts at ``axis``."""

    def one(code: Code, at: Sequence[str], read: _Read) -> str:
        where = list(at)
        where[axis] = code.op("remui", _place(code, read(1, at[axis])), code.constant(experts))
        return read(0, *where)

    dims = [routed.blocks.count if i == axis else dim for i, dim in enumerate(matrices.dims)]
    return _table(e, "matrices_of_blocks", [matrices, routed.group_of_block], dims, matrices.dtype, one)


def _places(e: Emitter, node: MoeGroupedMatmulNode, routed: _Routed, index: Value | None, ks: Value | None) -> Value:
    """For each row of the output its row in the blocks, -1 for none."""
    rows, top_k, height = node.rows, node.attributes.top_k, routed.blocks.rows
    tables = [routed.group_of_row, routed.first_row, routed.first_block]
    if node.attributes.mode is MoeGroupedMatmulMode.SCATTER:
        assert index is not None
        assert ks is not None

        def routed_here(code: Code, at: Sequence[str]) -> str:
            number = code.op("addi", code.scale("%i0", top_k, "i32"), "%i1", "i32")
            here = code.line(f"arith.cmpi eq, {number}, {_number(code, at[0])} : i32")
            for value, end in (("%i0", rows), ("%i1", top_k)):
                condition = f"ult, {value}, {code.constant(end, 'i32')}"
                here = code.op("andi", here, code.line(f"arith.cmpi {condition} : i32"), "i1")
            source = code.op("addi", _number(code, at[1]), code.constant(1, "i32"), "i32")
            return code.line(f"arith.select {here}, {source}, {code.constant(0, 'i32')} : i32")

        # Rows are counted from 1: for AMD and CUDA the compiler takes the largest of fewer numbers than threads, and 0.
        operands = [(index, (1,)), (ks, (1,))]
        sent = _sums(e, "routed_here", operands, (rows,), DataType.INT32, routed_here, combine="maxsi")
        tables.append(sent)

    def place(code: Code, at: Sequence[str], read: _Read) -> str:
        row = _number(code, at[0])
        if len(tables) > 3:
            row = code.op("subi", read(3, at[0]), code.constant(1, "i32"), "i32")
        found = read(0, _place(code, row))
        group = _place(code, found)
        within = code.op("subi", row, read(1, group), "i32")
        number = code.op("addi", code.scale(read(2, group), height, "i32"), within, "i32")
        known = code.line(f"arith.cmpi sge, {code.op('minsi', row, found, 'i32')}, {code.constant(0, 'i32')} : i32")
        return code.line(f"arith.select {known}, {number}, {code.constant(-1, 'i32')} : i32")

    return _table(e, "rows_in_blocks", tables, (rows,), DataType.INT32, place)


def _out_of_blocks(e: Emitter, made: Value, places: Value) -> Value:
    return _picked(e, "rows_of_output", made, places)


def _picked(e: Emitter, name: str, rows: Value, places: Value) -> Value:
    """The rows at ``places``, each of which is one of ``rows``, or -1: zeros."""

    def one(code: Code, at: Sequence[str], read: _Read) -> str:
        kind, number = element_type(rows.dtype), read(1, *at[:-1])
        place = code.op("minui", _place(code, number), code.constant(rows.dims[0] - 1))
        known = code.line(f"arith.cmpi sge, {number}, {code.constant(0, 'i32')} : i32")
        zero = code.line(f"arith.constant 0.0 : {kind}")
        return code.line(f"arith.select {known}, {read(0, place, at[-1])}, {zero} : {kind}")

    return _table(e, name, [rows, places], (*places.dims, rows.dims[1]), rows.dtype, one)
