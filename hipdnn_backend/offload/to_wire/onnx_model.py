"""Nodes that stay ONNX → the custom operation that carries them; `hipdnn_backend.onnx_op` describes it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx

from fusilli_ground.strides import row_major
from hipdnn_backend.engine import Support
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.to_wire.operation import Op, location_name
from hipdnn_backend.offload.to_wire.translation import Translation, boundary_types, value_name
from hipdnn_backend.offload.to_wire.types import carried, wire_type
from hipdnn_backend.onnx_op import ONNX_OP, OPERATOR
from hipdnn_backend.wire import CustomOpAttributes, DataType, WireGraph, WireNode, WireTensor

__all__ = ["not_taken", "translate_onnx"]

_NOT_TAKEN: Final = "not-taken"  # rule of an answer that was given before nodes were left ONNX


def not_taken(ops: Sequence[Any]) -> dict[str, Support]:
    """Who did not take the nodes that a ``hipdnn.onnx`` carries, if there is one among the operations, and why."""
    return {
        who: Support.no(why, node=location_name(op.location), rule=_NOT_TAKEN)
        for op in ops
        if Op(op).name == OPERATOR
        for who, why in json.loads(ir.StringAttr(op.attributes["hipdnn.reasons"]).value).items()
    }


def translate_onnx(op: Op, inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> Translation:
    """The graph of a ``hipdnn.onnx`` operation.

    Args:
        op: the operation.
        inputs: `ir.Value`s that come in: what it takes.
        outputs: `ir.Value`s that go out: results of it.
        name: of the graph.

    Raises:
        NotTranslated: a tensor has no wire form.
    """
    types = dict(zip(inputs, boundary_types(inputs, "input", name, carried), strict=True))
    results = list(op.operation.results)
    uids: Mapping[Any, int] = {value: uid for uid, value in enumerate((*inputs, *outputs), start=1)}
    types |= dict(zip(outputs, boundary_types(outputs, "output", name, carried), strict=True))
    foreign = [position for position, value in enumerate(op.operands) if value not in uids]
    if foreign:
        raise op.refuse(f"operand {foreign[0]} does not come in from outside")
    table = CustomOpAttributes(
        custom_op_id=ONNX_OP,
        input_tensor_uids=tuple(uids[value] for value in op.operands),
        output_tensor_uids=tuple(uids[value] for value in outputs),
        data=_model(op, [results.index(value) for value in outputs]),
    )
    tensors = tuple(
        WireTensor(
            uid=uid, name=value_name(value, f"{name}::{uid}"), data_type=wire_type(types[value].dtype),
            strides=row_major(types[value].dims), dims=types[value].dims,
        )
        for value, uid in uids.items()
    )  # fmt: skip
    node = WireNode(name=op.where[:200], compute_data_type=DataType.FLOAT, attributes=table)
    graph = WireGraph(
        name=name,
        compute_data_type=DataType.FLOAT,
        intermediate_data_type=DataType.FLOAT,
        io_data_type=DataType.FLOAT,
        tensors=tensors,
        nodes=(node,),
    )
    return Translation(
        graph, tuple(uids[value] for value in inputs), tuple(uids[value] for value in outputs), (op.where,)
    )


def _model(op: Op, wanted: Sequence[int]) -> bytes:
    """The model with those of its outputs that somebody reads, by number."""
    data = base64.b64decode(ir.StringAttr(op.operation.attributes["hipdnn.model"]).value)
    if list(wanted) == list(range(len(op.operation.results))):
        return data
    model = onnx.load_model_from_string(data)
    kept = [model.graph.output[number] for number in wanted]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model.SerializeToString(deterministic=True)
