"""Angles."""

from __future__ import annotations

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Role, rule
from hipdnn_backend.offload.to_wire.types import compute_type
from hipdnn_backend.offload.to_wire.values import Value
from hipdnn_backend.wire import ToRadiansAttributes


@rule("aten.deg2rad", role=Role.ANCHOR)
def deg2rad(b: Builder, op: Op) -> Value:
    """The node."""
    x, kind = b.value(op, 0), op.result()
    tensors = {"x": b.plain(op, x, "x"), "y": b.tensor(op, x.dims, kind.dtype)}
    b.node(op, ToRadiansAttributes(**fields_of(tensors)), compute_type(x.dtype, kind.dtype))
    return b.made(tensors["y"])
