"""Angles: an operator of a domain of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

operator("ToRadians", keeps_dims=True)


@rewrites("ToRadians", domain="angles", operands=1)
def _to_radians(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """To ``aten.deg2rad``."""
    type_ = b.type(node.input[0])
    return None if type_ is None else [b.torch("to_radians", node.input[0], like=type_)]


@emits("to_radians")
def _emit_to_radians(e: Emitter, x: Any) -> list[Any]:
    return [e.create("torch.aten.deg2rad", e.op.results[0].type, [x])]
