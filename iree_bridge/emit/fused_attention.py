"""The fused attention operation of the compiler, for which the torch dialect has only the plain form."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from graph_api import DataType
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.mlir import ir
from iree_bridge.targets.types import builtin_tensor

__all__ = ["LEAST_MASK", "FusedAttention", "Tiles", "fused_attention"]

_START = -3.3e38
"""What the running maximum starts from: below every finite score, so that a row of -inf has weights exp(-inf) = 0."""
LEAST_MASK = -2.0e38
"""The least finite mask value: the compiler multiplies masks by log2(e), which must stay above ``_START``."""


class Tiles(NamedTuple):
    """How the work is cut where the compiler is told: it masks what a tile has beyond the last query or key.

    Attributes:
        queries: of a work group; each subgroup has 16.
        keys: of a step, not as many as ``queries``: such tiles the compiler does not distribute.
        values: columns of v that a work group has.
        instruction: the matrix instruction of both products, as an attribute of the compiler.
        orders: of the axes of q, k and v, as they lie in memory: the compiler's loops follow from them.
    """

    queries: int
    keys: int
    values: int
    instruction: str
    orders: Mapping[str, Sequence[int]]


class FusedAttention(NamedTuple):
    """All FLOAT: sum of weights * v [B, H, Sq, Dv]; largest score and sum of weights [B, H, Sq, 1].

    The scores of ``max`` are those of the exponential function with base 2: score * log2(e). A row that sees nothing
    has the sum 0.
    """

    total: Value
    max: Value
    sum: Value


def fused_attention(
    e: Emitter, q: Value, k: Value, v: Value, mask: Value | None, scale: float, tiles: Tiles | None = None
) -> FusedAttention:
    """The parts of softmax(scale * q k^T + mask) v, as one ``iree_linalg_ext.online_attention``.

    Unlike ``torch.aten.scaled_dot_product_attention`` its results are FLOAT whatever its operands, so that what follows
    in the graph sees one rounding; a row that sees no key can be told from NaN; heads of k and v repeat, and the mask
    broadcasts, without being written out.

    Args:
        q, k, v: [B, H, Sq, D], [B, Hk, Skv, D], [B, Hv, Skv, Dv]; H is a multiple of Hk and of Hv.
        mask: rank 4, broadcasts to [B, H, Sq, Skv]; -inf, or at least ``LEAST_MASK``. Needed where there are tiles.
        tiles: by default the compiler chooses.
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
    axes = {
        "q": [["b"], names, ["m"], ["c"]],
        "k": [["b"], names[: _leading(heads, k.dims[1])], ["s"], ["c"]],
        "v": [["b"], names[: _leading(heads, v.dims[1])], ["s"], ["n"]],
    }
    operands = {"q": q, "k": k, "v": v}
    if tiles:
        for name, order in tiles.orders.items():
            operands[name] = e.permute(operands[name], order)
            axes[name] = [axes[name][axis] for axis in order]
    uses = {name: [*chain.from_iterable(loops)] for name, loops in axes.items()}
    if mask is not None:
        operands["mask"], uses["mask"] = _squeezed_mask(e, mask, (b, h, sq, skv), names)
    uses |= {"total": ["b", *names, "m", "n"], "max": ["b", *names, "m"], "sum": ["b", *names, "m"]}
    if tiles:
        sizes, uses = _fewest_loops(sizes, uses)
    operands = {name: e.reshape(value, [sizes[dim] for dim in uses[name]]) for name, value in operands.items()}
    results = [tuple(sizes[dim] for dim in uses[name]) for name in ("total", "max", "sum")]
    text = _function(list(sizes), uses, operands, results, scale, tiles)
    made = e.calls(text, list(operands.values()), [(dims, DataType.FLOAT) for dims in results])
    # The compiler looks through reshapes that split loops, and through those that join them, not through both in one.
    made = [e.reshape(value, (b, *heads, sq, *value.dims[len(results[1]) :])) for value in made]
    return FusedAttention(*(e.reshape(value, (b, h, sq, size)) for value, size in zip(made, (dv, 1, 1), strict=True)))


def _function(
    loops: Sequence[str],
    uses: dict[str, list[str]],
    operands: dict[str, Value],
    results: Sequence[Sequence[int]],
    scale: float,
    tiles: Tiles | None,
) -> str:
    """The text of a private function around the operation."""
    total, row = (builtin_tensor(dims, DataType.FLOAT) for dims in results[:2])
    types = {name: builtin_tensor(value.dims, value.dtype) for name, value in operands.items()}
    order = ["q", "k", "v", "scale", *(["mask"] if "mask" in uses else []), "total", "max", "sum"]
    maps = ", ".join(f"affine_map<({', '.join(loops)}) -> ({', '.join(uses.get(name, []))})>" for name in order)
    ins = [name for name in order if name in ("q", "k", "v", "scale", "mask")]
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in types.items())
    cut, told = _told(loops, tiles) if tiles else ("", "")
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
  %o:3 = iree_linalg_ext.online_attention <indexing_maps = [{maps}]{cut}> {told}
    ins({", ".join("%" + name for name in ins)} : {", ".join(types.get(name, "f32") for name in ins)})
    outs(%zeros, %start, %none : {total}, {row}, {row}) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> {total}, {row}, {row}
  return %o#0, %o#1, %o#2 : {total}, {row}, {row}
}}"""


def _fewest_loops(
    sizes: Mapping[str, int], uses: Mapping[str, list[str]]
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """The loops without those of one step, and those that lie together in all operands, or are not there, as one.

    The compiler makes the same of them, but not of tiles that are set for the loops that it was given.
    """
    sizes = {name: size for name, size in sizes.items() if size > 1 or name in "mncs"}
    outer = [name for name in sizes if name not in "ncs"]
    for first, second in pairwise(outer):
        if all(_are_one(first, second, loops) for loops in uses.values()):
            sizes[second] *= sizes.pop(first)
    return sizes, {name: [loop for loop in loops if loop in sizes] for name, loops in uses.items()}


def _are_one(first: str, second: str, loops: Sequence[str]) -> bool:
    if first in loops and second in loops:
        return loops.index(second) == loops.index(first) + 1
    return first not in loops and second not in loops


def _told(loops: Sequence[str], tiles: Tiles) -> tuple[str, str]:
    """The attributes of the operation that set its tiles: of its two products, and of itself."""
    subgroups = tiles.queries // 16
    basis = [subgroups if loop == "m" else 1 for loop in loops]

    def product(without: str, promoted: Sequence[int]) -> str:
        mapped = [i for i, loop in enumerate(loops) if loop != without]
        return (
            f"lowering_config = #iree_gpu.lowering_config<{{mma_kind = #iree_gpu.mma_layout<{tiles.instruction}>, "
            f"{_promoted(promoted)}, subgroup_basis = [{basis}, {mapped}]}}>"
        )

    sizes = {"m": tiles.queries, "n": tiles.values, "c": 0, "s": 0}
    whole = [sizes.get(loop, 1) for loop in loops]
    steps = [tiles.keys if loop == "s" else 0 for loop in loops]
    cut = f", decomposition_config = {{pv_attrs = {{{product('c', [1])}}}, qk_attrs = {{{product('n', [0, 1])}}}}}"
    return cut, (
        "{compilation_info = #iree_codegen.compilation_info<"
        f"lowering_config = #iree_gpu.lowering_config<{{{_promoted([0, 1, 2])}, reduction = {steps}, "
        f"workgroup = {whole}}}>, translation_info = #iree_codegen.translation_info<"
        f"pipeline = #iree_gpu.pipeline<VectorDistribute> workgroup_size = [{64 * subgroups}, 1, 1] "
        'subgroup_size = 64, {iree_codegen.denormal_fp_math_f32 = #iree_codegen.denormal_fp_math<"preserve-sign">}>>}'
    )


def _promoted(operands: Sequence[int]) -> str:
    """The operands that are brought to local memory."""
    kinds = ", ".join("#iree_gpu.derived_thread_config" for _ in operands)
    return f"promote_operands = {list(operands)}, promotion_types = [{kinds}]"


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
