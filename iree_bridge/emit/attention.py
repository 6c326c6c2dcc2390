"""What both directions of attention are made of: operands inside their lengths, biases, which query sees which key."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graph_api import DataType
from graph_api.ops.attention import AttentionNode, Window, alibi_slopes
from graph_api.ops.sdpa import BLOCK
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.targets.types import ELEMENT, TORCH_CODE, builtin_tensor

__all__ = [
    "alibi",
    "bias_of",
    "cut",
    "dropout_of",
    "element",
    "factor_of",
    "length",
    "product_type",
    "rank_4",
    "visible",
]


def product_type(e: Emitter, node: AttentionNode, *types: DataType) -> DataType:
    """The type in which operands are multiplied: their own if it is one, no wider than the compute type.

    Of floats of 8 bits and less BFLOAT16 on GPUs: it holds them, and, other than HALF, what scales make of them.
    """
    small = DataType.BFLOAT16 if e.target.is_gpu else node.compute
    types = tuple(small if dtype.is_small_float else dtype for dtype in types)
    only = types[0] if len(set(types)) == 1 else node.compute
    if only is DataType.BFLOAT16 and e.target.chip == "gfx908":
        return DataType.FLOAT  # its bf16 matrix instructions are not used: scalar code that spills
    return only if only.eps >= node.compute.eps else node.compute


def cut(e: Emitter, node: AttentionNode, port: str, x: Value) -> Value:
    """[B, H, S, D] with zeros behind the lengths at ``port``: what stands there may be NaN, and 0 * NaN is NaN."""
    return _cut(e, x, length(e, node, port)) if node.masking.padding_mask else x


def _cut(e: Emitter, x: Value, ends: Value) -> Value:
    size = x.dims[2]
    line = e.op("aten.arange", (size,), DataType.INT32, size, TORCH_CODE[DataType.INT32], None, None, None)
    positions = e.reshape(line, (1, 1, size, 1))
    inside = e.op("aten.lt.Tensor", (x.dims[0], 1, size, 1), DataType.BOOLEAN, positions, ends)
    return e.op("aten.where.self", x.dims, x.dtype, inside, x, e.splat(0.0, (1, 1, 1, 1), x.dtype))


def length(e: Emitter, node: AttentionNode, port: str) -> Value:
    """The lengths at ``port``, INT32 [B, 1, 1, 1]; longer than INT32 holds is longer than any sequence."""
    tensor = node.inputs[port]
    if tensor.data_type is DataType.INT32:
        return e.read(tensor)
    given = e.read(tensor)
    return e.cast(e.op("aten.clamp", given.dims, given.dtype, given, *DataType.INT32.range), DataType.INT32)


def element(e: Emitter, node: AttentionNode, port: str) -> Value:
    """A tensor of one element in the compute type, rank 4."""
    return e.reshape(e.read(node.inputs[port], node.compute), (1, 1, 1, 1))


def factor_of(t: Elementwise, node: AttentionNode, ports: Sequence[str], heads: int) -> Value | None:
    """The product of the factors at ports, [1 or B, 1 or heads, 1, 1]; None where there are none."""
    found: Value | None = None
    for port in ports:
        if port in node.inputs:
            factor = t.e.read(node.inputs[port], t.dtype)
            factor = t.e.reshape(factor, (1, 1, 1, 1)) if len(factor.dims) != 4 else _per_head(t.e, factor, heads)
            found = factor if found is None else t.mul(found, factor)
    return found


def _per_head(e: Emitter, factor: Value, heads: int) -> Value:
    batch, own, _, _ = factor.dims
    if own in (1, heads):
        return factor
    repeated = e.expand(e.reshape(factor, (batch, own, 1, 1)), (batch, own, heads // own, 1))
    return e.reshape(repeated, (batch, heads, 1, 1))


def rank_4(e: Emitter, value: Value) -> Value:
    """``value`` with dims of 1 before its own."""
    return e.reshape(value, (*(1,) * (4 - len(value.dims)), *value.dims))


def dropout_of(e: Emitter, node: AttentionNode) -> Value | None:
    """The mask that weights are multiplied with, in the compute type."""
    mask = node.inputs.get("dropout_mask")
    return None if mask is None else rank_4(e, e.read(mask, node.compute))


def bias_of(t: Elementwise, node: AttentionNode) -> Value | None:
    """All that is added to scores, in the compute type."""
    mask = node.inputs.get("attn_mask")
    bias = None if mask is None else rank_4(t.e, t.e.read(mask, node.compute))
    if not node.masking.alibi_mask:
        return bias
    slopes = alibi(t, node.score_dims, node.score_dims[2:])
    return slopes if bias is None else t.add(bias, slopes)


def alibi(t: Elementwise, dims: tuple[int, int, int, int], extents: tuple[int, int]) -> Value:
    """slope * (key - query), [1, H, *extents].

    The slopes are computed, since code with tensors of constants cannot be recorded.
    """
    e, heads, kind = t.e, dims[1], ELEMENT[t.dtype]
    whole = 1 << (heads.bit_length() - 1)
    line = e.op("aten.arange", (heads,), DataType.INT32, heads, TORCH_CODE[DataType.INT32], None, None, None)
    head = e.cast(line, t.dtype)
    steps = t.shift(head, 1.0)
    if whole < heads:
        steps = t.select(t.compare("lt", head, whole), steps, t.shift(head, 0.5 - whole))
    slopes = t.unary("exp", t.scale(steps, math.log(alibi_slopes(whole)[0])))
    result = builtin_tensor((1, heads, *extents), t.dtype)
    text = f"""
func.func private @alibi(%slopes: {builtin_tensor((heads,), t.dtype)}) -> {result} {{
  %empty = tensor.empty() : {result}
  %made = linalg.generic {{
    indexing_maps = [affine_map<(b, h, m, s) -> (h)>, affine_map<(b, h, m, s) -> (b, h, m, s)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]
  }} ins(%slopes : {builtin_tensor((heads,), t.dtype)}) outs(%empty : {result}) {{
  ^bb0(%slope: {kind}, %old: {kind}):
    %row = linalg.index 2 : index
    %column = linalg.index 3 : index
    %query = arith.index_cast %row : index to i32
    %key = arith.index_cast %column : index to i32
    %distance = arith.subi %key, %query : i32
    %steps = arith.sitofp %distance : i32 to {kind}
    %added = arith.mulf %slope, %steps : {kind}
    linalg.yield %added : {kind}
  }} -> {result}
  return %made : {result}
}}"""
    return e.call(text, [slopes], (1, heads, *extents), t.dtype)


def visible(e: Emitter, node: AttentionNode, padded: tuple[int, int] | None = None) -> Value | None:
    """Which query sees which key, as booleans that broadcast to the scores; None: every one."""
    window, masked = node.masking.window, node.masking.padding_mask
    batch, _, _, keys = node.score_dims
    blocks = node.inputs.get("block_mask")
    if window.is_open and not masked and blocks is None and (padded is None or padded[1] == keys):
        return None
    lengths = [e.reshape(length(e, node, port), (batch,)) for port in ("seq_len_q", "seq_len_kv") if masked]
    # Behind a barrier for what is said of containers of pages: elements are looked up in it.
    bits = None if blocks is None else e.barrier(e.read(blocks, DataType.INT32))
    return visibility(e, node.score_dims, window, lengths, padded, bits)


def visibility(
    e: Emitter,
    dims: tuple[int, int, int, int],
    window: Window,
    lengths: Sequence[Value],
    padded: tuple[int, int] | None = None,
    blocks: Value | None = None,
) -> Value:
    """Which query sees which key: booleans [B or 1, H or 1, Sq, Skv].

    Made by one operation on indices, which the compiler fuses into its use; several of the torch dialect stay apart.

    Args:
        dims: (B, H, Sq, Skv).
        lengths: of queries and keys, INT32 [B]; or nothing.
        padded: extents to which Sq and Skv are filled up, with keys that nothing sees.
        blocks: INT32 [B, H, query blocks, key blocks / 8], a bit a block of keys.
    """
    b, h, sq, skv = dims
    rows, columns = padded or (sq, skv)
    shape = (b if lengths or blocks else 1, h if blocks else 1, rows, columns)
    result = builtin_tensor(shape, DataType.BOOLEAN)
    lines = _Lines()
    query = lines.add("arith.index_cast %row : index to i32")
    key = lines.add("arith.index_cast %column : index to i32")
    seen = lines.add("arith.constant true")
    if columns > skv:
        seen = lines.both(seen, "slt", key, lines.add(f"arith.constant {skv} : i32"))
    if lengths:
        seen = lines.both(seen, "slt", query, "%queries")
        seen = lines.both(seen, "slt", key, "%keys")
    distance = lines.add(f"arith.subi {key}, {query} : i32")
    if window.bottom_right:
        offset = lines.add("arith.subi %keys, %queries : i32" if lengths else f"arith.constant {skv - sq} : i32")
        distance = lines.add(f"arith.subi {distance}, {offset} : i32")
    far = 2 * (sq + skv)  # bounds beyond it change nothing and could overflow
    for bound, predicate, sign in ((window.right, "sle", 1), (window.left, "sge", -1)):
        if bound is not None:
            limit = lines.add(f"arith.constant {sign * min(max(bound, -far), far)} : i32")
            seen = lines.both(seen, predicate, distance, limit)
    if blocks:
        seen = lines.block(seen, builtin_tensor(blocks.dims, blocks.dtype))
    names = ("%queries", "%keys")[: len(lengths)]
    kinds = [builtin_tensor(length.dims, length.dtype) for length in lengths]
    maps = ["affine_map<(b, h, m, s) -> (b)>"] * len(lengths) + ["affine_map<(b, h, m, s) -> (b, h, m, s)>"]
    ins = f"ins({', '.join(name + '_in' for name in names)} : {', '.join(kinds)})" if lengths else ""
    arguments = [f"{n}_in: {k}" for n, k in zip(names, kinds, strict=True)]
    if blocks:
        arguments.append(f"%blocks: {builtin_tensor(blocks.dims, blocks.dtype)}")
    text = f"""
func.func private @visible({", ".join(arguments)}) -> {result} {{
  %empty = tensor.empty() : {result}
  %made = linalg.generic {{
    indexing_maps = [{", ".join(maps)}], iterator_types = ["parallel", "parallel", "parallel", "parallel"]
  }} {ins} outs(%empty : {result}) {{
  ^bb0({", ".join([*(f"{name}: i32" for name in names), "%old: i1"])}):
    %row = linalg.index 2 : index
    %column = linalg.index 3 : index
    {lines.text}
    linalg.yield {seen} : i1
  }} -> {result}
  return %made : {result}
}}"""
    return e.call(text, [*lengths, *([blocks] if blocks else [])], shape, DataType.BOOLEAN)


class _Lines:
    """Operations of one block, each with a fresh result name."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n    ".join(self._lines)

    def add(self, operation: str) -> str:
        name = f"%x{len(self._lines)}"
        self._lines.append(f"{name} = {operation}")
        return name

    def both(self, condition: str, predicate: str, x: str, y: str) -> str:
        """``condition`` and the comparison of x with y."""
        compared = self.add(f"arith.cmpi {predicate}, {x}, {y} : i32")
        return self.add(f"arith.andi {condition}, {compared} : i1")

    def block(self, condition: str, kind: str) -> str:
        """``condition`` and the bit of the block that row and column are in."""
        size, eight = self.add(f"arith.constant {BLOCK} : index"), self.add("arith.constant 8 : index")
        row, column = (self.add(f"arith.divui %{name}, {size} : index") for name in ("row", "column"))
        byte, bit = (self.add(f"arith.{what} {column}, {eight} : index") for what in ("divui", "remui"))
        batch, head = self.add("linalg.index 0 : index"), self.add("linalg.index 1 : index")
        bits = self.add(f"tensor.extract %blocks[{batch}, {head}, {row}, {byte}] : {kind}")
        shifted = self.add(f"arith.shrui {bits}, {self.add(f'arith.index_cast {bit} : index to i32')} : i32")
        return self.add(f"arith.andi {condition}, {self.add(f'arith.trunci {shifted} : i32 to i1')} : i1")
