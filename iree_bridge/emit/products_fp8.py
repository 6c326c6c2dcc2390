"""Products of 8-bit floats by the matrix instructions that some AMD chips have for the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand, generic
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import builtin_tensor

__all__ = ["convolution", "is_native", "product"]

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
    code, value = _term(e, a, b)
    lines = generic(
        "%made",
        [Operand("%x", floats[0], [*batch, m, k]), Operand("%y", floats[1], [*batch, *second])],
        Operand("%none", made, [*batch, m, n]),
        [*["parallel"] * (rank + 2), "reduction"],
        code.lines,
        value,
    )
    return e.call(_around("product", kinds, floats, made, lines), [a, b], dims, DataType.FLOAT)


def convolution(
    e: Emitter,
    attributes: ConvAttributes,
    x: Value,
    w: Value,
    out: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    last: bool,
) -> Value:
    """x [N, C, spatial...] by w [K, C, filter...], both codes, summed in FLOAT: [N, K, out...].

    Args:
        padding: of each spatial dim, not negative.
        last: the channels of both lie side by side, and so do those of the result.
    """
    rank = len(out)
    n, k, c = "n", "k", "c"
    places, positions = ([f"{name}{axis}" for axis in range(rank)] for name in ("o", "f"))
    names = [n, *places, k, *positions, c] if last else [n, k, *places, c, *positions]
    loop = {name: f"d{number}" for number, name in enumerate(names)}
    steps = zip(places, positions, attributes.stride, attributes.dilation, strict=True)
    met = [f"{loop[o]} * {stride} + {loop[f]} * {dilation}" for o, f, stride, dilation in steps]
    window = [loop[f] for f in positions]
    order = [0, *range(2, rank + 2), 1] if last else [*range(rank + 2)]
    back = [order.index(axis) for axis in range(rank + 2)]

    def lies(index: Sequence[Any]) -> list[Any]:
        return [index[axis] for axis in order]

    x, w = e.permute(x, order), e.permute(w, order)
    made_dims = lies((x.dims[0], w.dims[0], *out))
    known = _TYPES[e.target.chip or ""]
    kinds = [builtin_tensor(value.dims, value.dtype) for value in (x, w)]
    floats = [kind[:-3] + known[value.dtype] + ">" for kind, value in zip(kinds, (x, w), strict=True)]
    made = builtin_tensor(made_dims, DataType.FLOAT)
    code, value = _term(e, x, w)
    image, pads = _padded(x, lies([(0, 0), (0, 0), *padding]), known[x.dtype])
    lines = generic(
        "%made",
        [
            Operand("%image" if pads else "%x", image, lies((loop[n], loop[c], *met))),
            Operand("%y", floats[1], lies((loop[k], loop[c], *window))),
        ],
        Operand("%none", made, lies((loop[n], loop[k], *(loop[o] for o in places)))),
        [*["parallel"] * (rank + 2), *["reduction"] * (rank + 1)],
        code.lines,
        value,
    )
    y = e.call(_around("convolution", kinds, floats, made, [*pads, *lines]), [x, w], made_dims, DataType.FLOAT)
    return e.permute(y, back)


def _padded(x: Value, padding: Sequence[tuple[int, int]], element: str) -> tuple[str, list[str]]:
    """The type of %x with zeros around it, and the lines that make %image of that; none where there are none."""
    before, after = ([pair[side] for pair in padding] for side in (0, 1))
    dims = [size + low + high for size, low, high in zip(x.dims, before, after, strict=True)]
    kind, given = (f"tensor<{'x'.join([*map(str, sizes), element])}>" for sizes in (dims, x.dims))
    if not any(before + after):
        return kind, []
    indices = ", ".join(f"%d{axis}: index" for axis in range(len(dims)))
    return kind, [
        f"  %nothing = arith.constant 0.0 : {element}",
        f"  %image = tensor.pad %x low{before} high{after} {{",
        f"  ^bb0({indices}):",
        f"    tensor.yield %nothing : {element}",
        f"  }} : {given} to {kind}",
    ]


def _term(e: Emitter, a: Value, b: Value) -> tuple[Code, str]:
    """The body of a sum of products: both widened, which is what the compiler makes matrix instructions of."""
    known = _TYPES[e.target.chip or ""]
    code = Code()
    left, right = (
        code.line(f"arith.extf %i{place} : {known[value.dtype]} to f32") for place, value in enumerate((a, b))
    )
    return code, code.op("addf", "%o", code.op("mulf", left, right, "f32"), "f32")


def _around(name: str, kinds: Sequence[str], floats: Sequence[str], made: str, lines: Sequence[str]) -> str:
    """The function from two tensors of bytes to ``made``, which ``lines`` make of %x, %y and %none."""
    body = "\n".join(lines)
    return f"""func.func private @{name}(%a: {kinds[0]}, %b: {kinds[1]}) -> {made} {{
  %x = tensor.bitcast %a : {kinds[0]} to {floats[0]}
  %y = tensor.bitcast %b : {kinds[1]} to {floats[1]}
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {made}
  %none = linalg.fill ins(%zero : f32) outs(%empty : {made}) -> {made}
{body}
  return %made : {made}
}}"""
