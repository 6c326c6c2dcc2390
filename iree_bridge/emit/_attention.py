"""The fused attention operation of the compiler, for which the torch dialect has only the plain form."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from graph_api import DataType
from iree_bridge.emitter import Emitter, Value
from iree_bridge.types import builtin_tensor

__all__ = ["fused_attention"]


def fused_attention(e: Emitter, q: Value, k: Value, v: Value, mask: Value | None, scale: float) -> Value:
    """softmax(scale * q k^T + mask) v in FLOAT, as one ``iree_linalg_ext.attention``.

    Unlike ``torch.aten.scaled_dot_product_attention`` its result may be wider than its operands, so that what follows
    in the graph sees one rounding; heads of k and v repeat, and the mask broadcasts, without being written out.

    Args:
        q, k, v: [B, H, Sq, D], [B, Hk, Skv, D], [B, Hv, Skv, Dv]; H is a multiple of Hk and of Hv.
        mask: rank 4, broadcasts to [B, H, Sq, Skv].
    """
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
        mask, uses["mask"] = _squeezed_mask(e, mask, (b, h, sq, skv), names)
        operands["mask"] = mask
    operands = {name: e.reshape(value, [sizes[dim] for dim in uses[name]]) for name, value in operands.items()}
    uses["o"] = ["b", *names, "m", "n"]
    out = [sizes[dim] for dim in uses["o"]]
    text = _function(list(sizes), uses, operands, out, scale)
    o = e.call(text, list(operands.values()), out, DataType.FLOAT)
    return e.reshape(o, (b, h, sq, dv))


def _function(
    loops: Sequence[str], uses: dict[str, list[str]], operands: dict[str, Value], out: Sequence[int], scale: float
) -> str:
    """The text of a private function around the operation."""
    types = {name: builtin_tensor(value.dims, value.dtype) for name, value in operands.items()}
    result = builtin_tensor(out, DataType.FLOAT)
    order = [name for name in ("q", "k", "v", "scale", "mask", "o") if name in uses or name == "scale"]
    maps = ", ".join(f"affine_map<({', '.join(loops)}) -> ({', '.join(uses.get(name, []))})>" for name in order)
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in types.items())
    ins = [name for name in order if name != "o"]
    bits = int.from_bytes(struct.pack(">f", scale), "big")
    return f"""
func.func private @attention({arguments}) -> {result} {{
  %scale = arith.constant 0x{bits:08X} : f32
  %empty = tensor.empty() : {result}
  %o = iree_linalg_ext.attention <indexing_maps = [{maps}]>
    ins({", ".join("%" + name for name in ins)} : {", ".join(types.get(name, "f32") for name in ins)})
    outs(%empty : {result}) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> {result}
  return %o : {result}
}}"""


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
