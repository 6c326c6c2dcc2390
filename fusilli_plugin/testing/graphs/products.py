"""Products: of all types, in scaled blocks, quantised, of experts."""

from __future__ import annotations

from typing import Final

from fusilli_plugin.testing.graphs.draw import ACTIVATIONS, FP8, SIZES, TYPES, Draw, epilogue, new_graph, tensor
from graph_api import DataType, Graph, MoeGroupedMatmulMode

D = DataType

__all__ = ["experts", "product", "quantized", "scaled_product", "small_product"]

_SMALL: Final = (*FP8, *FP8, D.FP6_E2M3, D.FP6_E3M2, D.FP4_E2M1, D.INT4, D.UINT4)
_SMALL_FLOATS: Final = (*FP8, D.FP6_E2M3, D.FP6_E3M2, D.FP4_E2M1)
_SCALES: Final = (D.FP8_E8M0, D.FP8_E8M0, D.FP8_E4M3, D.FLOAT, D.HALF, D.BFLOAT16)
_BLOCKS: Final = (1, 4, 8, 16, 16, 32, 32)


def product(d: Draw) -> Graph | None:
    """A product of any sizes, ragged mostly, with an epilogue."""
    io = d.pick((*TYPES, D.DOUBLE)) if d.chance(0.2) else d.pick(TYPES)
    m, n, k = (d.pick(SIZES) if d.chance(0.8) else d.number(1, 130) for _ in range(3))
    if d.chance(0.15):  # as decoding has them
        m, n, k = d.number(1, 9), 16 * d.number(1, 8), 16 * d.number(1, 16)
    batch = d.pick(((), (), (1,), (2,), (3,), (2, 2)))
    g = new_graph(io)
    shared = d.pick(("none", "none", "none", "a", "b")) if batch else "none"
    ones = tuple(1 for _ in batch)
    a = tensor(
        d, g, "a", (*(ones if shared == "a" else batch), m, k), layouts=("packed", "packed", "transposed", "any")
    )
    b = tensor(
        d, g, "b", (*(ones if shared == "b" else batch), k, n), layouts=("packed", "packed", "transposed", "any")
    )
    y = epilogue(d, g, g.matmul(a, b), (*batch, m, n), len(batch) + 1)
    y.set_output(True)
    return g


def small_product(d: Draw) -> Graph:
    """A product of types of 8 bits and less, or of one with a float; a bias, an activation, a small result."""
    first = d.pick(_SMALL)
    second = first if d.chance(0.5) else d.pick((*_SMALL, D.HALF, D.BFLOAT16, D.FLOAT))
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    whole = d.chance(0.4)
    m, n = (d.pick((16, 32, 48) if whole else SIZES) for _ in range(2))
    k = d.pick((32, 64, 128, 256) if whole else SIZES)
    batch = (d.pick((2, 3)),) if d.chance(0.25) else ()
    a = tensor(d, g, "a", (*batch, m, k), layouts=("packed", "any")).set_data_type(first)
    b = tensor(d, g, "b", (*batch, k, n), layouts=("packed", "any")).set_data_type(second)
    y = epilogue(d, g, g.matmul(a, b), (*batch, m, n), len(batch) + 1)
    y.set_output(True).set_data_type(d.pick((*_SMALL, D.FLOAT, D.HALF)))
    return g


def scaled_product(d: Draw) -> Graph:
    """Operands in scaled blocks along K, multiplied, and perhaps a quantised result."""
    kind, scale, block = d.pick(_SMALL_FLOATS), d.pick(_SCALES), d.pick(_BLOCKS)
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=d.pick((D.FLOAT, D.HALF)))
    whole = d.chance(0.5)
    m, n = (d.pick((16, 32, 64) if whole else SIZES) for _ in range(2))
    k = block * d.number(1, 4) if whole else d.pick(SIZES)
    operands = []
    for name, dims, sizes in (("a", (m, k), (1, block)), ("b", (k, n), (block, 1))):
        x = tensor(d, g, name, dims, layouts=("packed", "any")).set_data_type(kind)
        of_blocks = tuple(-(-dim // size) for dim, size in zip(dims, sizes, strict=True))
        factors = tensor(d, g, f"scale_{name}", of_blocks, layouts=("packed", "any")).set_data_type(scale)
        operands.append(g.block_scale_dequantize(x, factors, block_size=sizes))
    y = epilogue(d, g, g.matmul(*operands), (m, n), 1)
    if d.chance(0.4):
        y, factors = g.block_scale_quantize(y, block_size=d.pick(_BLOCKS), axis=d.number(0, 1))
        factors.set_output(True).set_data_type(scale)
        y.set_data_type(kind)
    y.set_output(True)
    return g


def quantized(d: Draw) -> Graph:
    """A quantisation along any axis, behind an activation or not."""
    io = d.pick(TYPES)
    g = new_graph(io)
    dims = tuple(d.pick(SIZES) for _ in range(d.number(1, 3)))
    x = tensor(d, g, "x", dims, layouts=("packed", "any") if len(dims) > 1 else ("packed",))
    x = g.pointwise(d.pick(ACTIVATIONS), x) if d.chance(0.5) else x
    axis = d.number(0, len(dims) - 1)
    y, scale = g.block_scale_quantize(x, block_size=d.pick(_BLOCKS), axis=axis, transpose=d.chance(0.3))
    y.set_output(True).set_data_type(d.pick(_SMALL_FLOATS))
    scale.set_output(True).set_data_type(d.pick(_SCALES))
    return g


def experts(d: Draw) -> Graph | None:
    """Routed by whatever numbers come."""
    g = new_graph(d.pick(TYPES))
    mode = d.pick(tuple(MoeGroupedMatmulMode))
    experts, rows, k, n = d.pick((1, 2, 3, 4, 8)), d.pick(SIZES), d.pick(SIZES), d.pick(SIZES)
    if rows * k * n > 100_000:
        return None
    offsets = g.tensor("offsets", dim=(experts * d.pick((1, 1, 2)), 1, 1), data_type=D.INT32)
    if d.chance(0.3):
        doutput, token = g.tensor("doutput", dim=(1, rows, n)), g.tensor("token", dim=(1, rows, k))
        g.moe_grouped_matmul_bwd(doutput, token, offsets).set_dim((experts, k, n)).set_output(True)
        return g
    tokens = d.pick(SIZES) if mode is MoeGroupedMatmulMode.GATHER else rows
    token = g.tensor("token", dim=(1, tokens, k))
    weight = tensor(d, g, "weight", (experts, k, n), layouts=("packed", "transposed", "any"))
    names = {MoeGroupedMatmulMode.GATHER: ("index",), MoeGroupedMatmulMode.SCATTER: ("index", "ks")}.get(mode, ())
    routing = [g.tensor(name, dim=(1, rows, 1), data_type=D.INT32) for name in names]
    top_k = d.pick((1, 2, 3)) if mode is MoeGroupedMatmulMode.SCATTER else 0
    y = g.moe_grouped_matmul(token, weight, offsets, *routing, mode=mode, top_k=top_k)
    epilogue(d, g, y, (1, rows, n), 2).set_output(True)
    return g
