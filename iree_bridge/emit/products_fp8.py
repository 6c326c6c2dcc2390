"""Products of 8-bit floats by the matrix instructions that some AMD chips have for the format."""

from __future__ import annotations

from typing import Final

from graph_api import DataType
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand, generic
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import builtin_tensor

__all__ = ["is_native", "product"]

_TYPES: Final = {
    "gfx942": {DataType.FP8_E4M3_FNUZ: "f8E4M3FNUZ", DataType.FP8_E5M2_FNUZ: "f8E5M2FNUZ"},
    "gfx950": {DataType.FP8_E4M3: "f8E4M3FN", DataType.FP8_E5M2: "f8E5M2"},
}
"""What chips multiply, in MLIR's words. The formats of the other chip would be converted element by element."""
_TERMS: Final = {"gfx942": 32, "gfx950": 128}
"""Terms of an instruction; rows and columns are 16. What these do not divide is multiplied as HALF."""


def is_native(target: Target, a: DataType, b: DataType, dims: tuple[int, int, int], compute: DataType) -> bool:
    """Whether [M, K] of ``a`` times [K, N] of ``b`` is multiplied as it is; ``dims``: M, N, K."""
    known = _TYPES.get(target.chip or "", {})
    m, n, k = dims
    whole = m % 16 == 0 and n % 16 == 0 and k % _TERMS.get(target.chip or "", 1) == 0
    return a in known and b in known and whole and compute is DataType.FLOAT


def product(e: Emitter, a: Value, b: Value, *, across: bool) -> Value:
    """a [(B,) M, K] times b [(B,) K, N], both codes, summed in FLOAT; ``across``: b is read as it lies, [(B,) N, K]."""
    lead = a.dims[:-2]
    rank = len(lead)
    m, n, k = (f"d{rank + place}" for place in range(3))
    batch = [f"d{axis}" for axis in range(rank)]
    dims = (*lead, a.dims[-2], b.dims[-1])
    second = [n, k] if across else [k, n]
    b = e.permute(b, (*range(rank), rank + 1, rank)) if across else b
    known = _TYPES[e.target.chip or ""]
    kinds = [builtin_tensor(value.dims, value.dtype) for value in (a, b)]
    floats = [kind[:-3] + known[value.dtype] + ">" for kind, value in zip(kinds, (a, b), strict=True)]
    made = builtin_tensor(dims, DataType.FLOAT)
    code = Code()
    left, right = (
        code.line(f"arith.extf %i{place} : {known[value.dtype]} to f32") for place, value in enumerate((a, b))
    )
    value = code.op("addf", "%o", code.op("mulf", left, right, "f32"), "f32")
    lines = generic(
        "%made",
        [Operand("%x", floats[0], [*batch, m, k]), Operand("%y", floats[1], [*batch, *second])],
        Operand("%none", made, [*batch, m, n]),
        [*["parallel"] * (rank + 2), "reduction"],
        code.lines,
        value,
    )
    body = "\n".join(lines)
    text = f"""func.func private @product(%a: {kinds[0]}, %b: {kinds[1]}) -> {made} {{
  %x = tensor.bitcast %a : {kinds[0]} to {floats[0]}
  %y = tensor.bitcast %b : {kinds[1]} to {floats[1]}
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {made}
  %none = linalg.fill ins(%zero : f32) outs(%empty : {made}) -> {made}
{body}
  return %made : {made}
}}"""
    return e.call(text, [a, b], dims, DataType.FLOAT)
