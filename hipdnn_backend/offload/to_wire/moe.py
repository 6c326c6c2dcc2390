"""Products of rows with the matrices of their groups, as mixtures of experts have them."""

from __future__ import annotations

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Role, rule
from hipdnn_backend.offload.to_wire.types import compute_type
from hipdnn_backend.offload.to_wire.values import Value
from hipdnn_backend.wire import MoeGroupedMatmulAttributes, MoeGroupedMatmulBwdAttributes

__all__: list[str] = []


@rule("fusilli.grouped_mm", role=Role.ANCHOR)
def grouped_product(b: Builder, op: Op) -> Value:
    """token [rows, K], weight [experts, K, N], the first row of each expert -> [rows, N]."""
    token, weight, first = (b.value(op, index) for index in range(3))
    made = b.tensor(op, (1, token.dims[0], weight.dims[2]), op.result().dtype)
    tensors = {
        "token": b.plain(op, b.reshaped(op, token, (1, *token.dims)), "the rows"),
        "weight": b.plain(op, weight, "the matrices"),
        "first_token_offset": b.plain(op, b.reshaped(op, first, (*first.dims, 1, 1)), "the first rows"),
        "output": made,
    }
    table = MoeGroupedMatmulAttributes(**fields_of(tensors))
    b.node(op, table, compute_type(token.dtype, weight.dtype, op.result().dtype))
    return b.made(made, made.dims[1:])


@rule("fusilli.grouped_mm_gradient", role=Role.ANCHOR)
def grouped_product_gradient(b: Builder, op: Op) -> Value:
    """doutput [rows, N], token [rows, K], the first row of each expert -> dweight [experts, K, N]."""
    values = {"doutput": b.value(op, 0), "token": b.value(op, 1)}
    first = b.value(op, 2)
    tensors = {name: b.plain(op, b.reshaped(op, value, (1, *value.dims)), "the rows") for name, value in values.items()}
    tensors["first_token_offset"] = b.plain(op, b.reshaped(op, first, (*first.dims, 1, 1)), "the first rows")
    dims = (first.dims[0], values["token"].dims[1], values["doutput"].dims[1])
    tensors["dweight"] = b.tensor(op, dims, op.result().dtype)
    table = MoeGroupedMatmulBwdAttributes(**fields_of(tensors))
    b.node(op, table, compute_type(values["token"].dtype, values["doutput"].dtype, op.result().dtype))
    return b.made(tensors["dweight"])
