"""The fused attention operation of the compiler, for which the torch dialect has only the plain form."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from graph_api import DataType
from graph_api.ops.sdpa import Window
from iree_bridge._mlir import ir
from iree_bridge.emitter import Emitter, Value
from iree_bridge.types import builtin_tensor

__all__ = ["LEAST_MASK", "FusedAttention", "fused_attention", "visibility"]

_START = -3.3e38
"""What the running maximum starts from: below every finite score, so that a row of -inf has weights exp(-inf) = 0."""
LEAST_MASK = -2.0e38
"""The least finite mask value: the compiler multiplies masks by log2(e), which must stay above ``_START``."""


class FusedAttention(NamedTuple):
    """All FLOAT: sum of weights * v [B, H, Sq, Dv]; largest score and sum of weights [B, H, Sq, 1].

    The scores of ``max`` are those of the exponential function with base 2: score * log2(e). A row that sees nothing
    has the sum 0.
    """

    total: Value
    max: Value
    sum: Value


def fused_attention(e: Emitter, q: Value, k: Value, v: Value, mask: Value | None, scale: float) -> FusedAttention:
    """The parts of softmax(scale * q k^T + mask) v, as one ``iree_linalg_ext.online_attention``.

    Unlike ``torch.aten.scaled_dot_product_attention`` its results are FLOAT whatever its operands, so that what follows
    in the graph sees one rounding; a row that sees no key can be told from NaN; heads of k and v repeat, and the mask
    broadcasts, without being written out.

    Args:
        q, k, v: [B, H, Sq, D], [B, Hk, Skv, D], [B, Hv, Skv, Dv]; H is a multiple of Hk and of Hv.
        mask: rank 4, broadcasts to [B, H, Sq, Skv]; -inf, or at least ``LEAST_MASK``.
    """
    if _is_repeated(q):
        # The compiler takes the repetition into the operation; where k and v repeat along the same dim, it crashes.
        q = e.barrier(q)
    b, h, sq, d = q.dims
    skv, dv = k.dims[2], v.dims[3]
    heads = _head_factors(h, k.dims[1], v.dims[1])
    if heads is None:
        k, v, heads = _repeated(e, k, h), _repeated(e, v, h), (h,)
    names = [f"h{i}" for i in range(len(heads))]
    sizes = {"b": b, **dict(zip(names, heads, strict=True)), "m": sq, "n": dv, "c": d, "s": skv}
    uses = {
        "q": ["b", *names, "m", "c"],
        "k": ["b", *names[: _leading(heads, k.dims[1])], "s", "c"],
        "v": ["b", *names[: _leading(heads, v.dims[1])], "s", "n"],
    }
    operands = {"q": q, "k": k, "v": v}
    if mask is not None:
        operands["mask"], uses["mask"] = _squeezed_mask(e, mask, (b, h, sq, skv), names)
    uses |= {"total": ["b", *names, "m", "n"], "max": ["b", *names, "m"], "sum": ["b", *names, "m"]}
    operands = {name: e.reshape(value, [sizes[dim] for dim in uses[name]]) for name, value in operands.items()}
    results = [tuple(sizes[dim] for dim in uses[name]) for name in ("total", "max", "sum")]
    text = _function(list(sizes), uses, operands, results, scale)
    made = e.calls(text, list(operands.values()), [(dims, DataType.FLOAT) for dims in results])
    return FusedAttention(*(e.reshape(value, (b, h, sq, size)) for value, size in zip(made, (dv, 1, 1), strict=True)))


def _function(
    loops: Sequence[str],
    uses: dict[str, list[str]],
    operands: dict[str, Value],
    results: Sequence[Sequence[int]],
    scale: float,
) -> str:
    """The text of a private function around the operation."""
    total, row = (builtin_tensor(dims, DataType.FLOAT) for dims in results[:2])
    types = {name: builtin_tensor(value.dims, value.dtype) for name, value in operands.items()}
    order = ["q", "k", "v", "scale", *(["mask"] if "mask" in uses else []), "total", "max", "sum"]
    maps = ", ".join(f"affine_map<({', '.join(loops)}) -> ({', '.join(uses.get(name, []))})>" for name in order)
    ins = [name for name in order if name in ("q", "k", "v", "scale", "mask")]
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in types.items())
    return f"""
func.func private @attention({arguments}) -> ({total}, {row}, {row}) {{
  %scale = arith.constant {_f32(scale)} : f32
  %zero = arith.constant 0.0 : f32
  %least = arith.constant {_f32(_START)} : f32
  %empty = tensor.empty() : {total}
  %empty_row = tensor.empty() : {row}
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : {total}) -> {total}
  %start = linalg.fill ins(%least : f32) outs(%empty_row : {row}) -> {row}
  %none = linalg.fill ins(%zero : f32) outs(%empty_row : {row}) -> {row}
  %o:3 = iree_linalg_ext.online_attention <indexing_maps = [{maps}]>
    ins({", ".join("%" + name for name in ins)} : {", ".join(types.get(name, "f32") for name in ins)})
    outs(%zeros, %start, %none : {total}, {row}, {row}) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> {total}, {row}, {row}
  return %o#0, %o#1, %o#2 : {total}, {row}, {row}
}}"""


def _f32(value: float) -> str:
    """A constant by its bits."""
    return f"0x{int.from_bytes(struct.pack('>f', value), 'big'):08X}"


_VIEWS = ("torch.aten.permute", "torch.aten.view", "torch.prims.convert_element_type")


def _is_repeated(value: Value) -> bool:
    """Whether a value is a smaller one broadcast, seen through what only rearranges or converts it."""
    owner = value.ssa.owner
    while not isinstance(owner, ir.Block) and owner.name in _VIEWS:
        owner = owner.operands[0].owner
    return not isinstance(owner, ir.Block) and owner.name == "torch.aten.broadcast_to"


def _head_factors(h: int, hk: int, hv: int) -> tuple[int, ...] | None:
    """h as a product of which hk and hv are leading parts, or None: they do not divide each other."""
    few, many = sorted((hk, hv))
    if many % few:
        return None
    factors = tuple(size for size in (few, many // few, h // many) if size > 1)
    return factors or (1,)


def _leading(factors: Sequence[int], heads: int) -> int:
    """How many leading factors make ``heads``."""
    return next(n for n in range(len(factors) + 1) if math.prod(factors[:n]) == heads)


def _repeated(e: Emitter, x: Value, heads: int) -> Value:
    b, own, s, d = x.dims
    repeated = e.expand(e.reshape(x, (b, own, 1, s, d)), (b, own, heads // own, s, d))
    return e.reshape(repeated, (b, heads, s, d))


def _squeezed_mask(
    e: Emitter, mask: Value, full: tuple[int, int, int, int], names: Sequence[str]
) -> tuple[Value, list[str]]:
    """The mask and the loops that it has: dims that broadcast are dropped."""
    loops: list[str] = []
    for axis, loop in enumerate((["b"], list(names), ["m"], ["s"])):
        if mask.dims[axis] == full[axis] and (full[axis] > 1 or axis == 3):
            loops += loop
    if mask.dims[3] != full[3]:
        mask = e.expand(mask, (*mask.dims[:3], full[3]))
        loops.append("s")
    return mask, loops


def visibility(
    e: Emitter,
    dims: tuple[int, int, int, int],
    window: Window,
    lengths: Sequence[Value],
    padded: tuple[int, int] | None = None,
) -> Value:
    """Which query sees which key: booleans [B or 1, 1, Sq, Skv].

    Made by one operation on indices, which the compiler fuses into its use; several of the torch dialect stay apart.

    Args:
        dims: (B, H, Sq, Skv).
        lengths: of queries and keys, INT32 [B]; or nothing.
        padded: extents to which Sq and Skv are filled up, with keys that nothing sees.
    """
    b, _, sq, skv = dims
    rows, columns = padded or (sq, skv)
    shape = (b if lengths else 1, 1, rows, columns)
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
    names = ("%queries", "%keys")[: len(lengths)]
    kinds = [builtin_tensor(length.dims, length.dtype) for length in lengths]
    maps = ["affine_map<(b, h, m, s) -> (b)>"] * len(lengths) + ["affine_map<(b, h, m, s) -> (b, h, m, s)>"]
    ins = f"ins({', '.join(name + '_in' for name in names)} : {', '.join(kinds)})" if lengths else ""
    text = f"""
func.func private @visible({", ".join(f"{n}_in: {k}" for n, k in zip(names, kinds, strict=True))}) -> {result} {{
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
    return e.calls(text, lengths, [(shape, DataType.BOOLEAN)])[0]


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
