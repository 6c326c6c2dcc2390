"""Torch operations → one wire graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fusilli_ground.strides import row_major
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.to_wire import attention
from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.errors import NotTranslated
from hipdnn_backend.offload.to_wire.operation import Op, location_name
from hipdnn_backend.offload.to_wire.registry import lookup
from hipdnn_backend.offload.to_wire.types import FLOATS, TensorType, tensor_type, wire_type
from hipdnn_backend.offload.to_wire.values import Source
from hipdnn_backend.wire import DataType, WireGraph

__all__ = ["Translation", "boundary_types", "operations", "translate", "value_name"]

_SKIPPED: Final = ("torch.operator_terminator", "func.return")


@dataclass(frozen=True)
class Translation:
    """A wire graph and how it is called.

    Attributes:
        graph: complete: every tensor has dims, strides and data type; booleans are UINT8.
        inputs: uid of each input, None for one that the graph does not use. Every buffer is row-major in its torch
            type, whatever dims and strides the graph sees in it.
        outputs: uid of each output; all differ.
        nodes: names of the model's nodes that the graph does.
    """

    graph: WireGraph
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    nodes: tuple[str, ...]


def translate(ops: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> Translation:
    """The hipDNN graph that does what ``ops`` do.

    Args:
        ops: `ir.Operation`s on tensors in program order, of a function or of a region; constants may be among them.
        inputs: `ir.Value`s that come in: block arguments or results of other operations.
        outputs: `ir.Value`s that go out: results of ``ops``, or inputs.
        name: of the graph.

    Raises:
        NotTranslated: no graph does that; with the operation, the model's node and the reason.
    """
    working = [op for op in operations(ops) if not op.is_constant]
    matches = attention.find(working, outputs)
    try:
        return _translate(working, inputs, outputs, name, matches)
    except NotTranslated:
        if not matches:
            raise
        return _translate(working, inputs, outputs, name, {})


def _translate(
    working: Sequence[Op],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    fused: Mapping[Any, attention.Match],
) -> Translation:
    """In the function's order; an attention is made in place of its last operation, where its inputs are defined."""
    types = boundary_types(inputs, "input", name)
    builder = Builder(types, [value_name(value, f"{name}::in{place}") for place, value in enumerate(inputs)])
    for position, (key, kind) in enumerate(zip(inputs, types, strict=True)):
        builder.define(key, Source(position, kind.dims, kind.dtype, row_major(kind.dims)))
    for op in working:
        match = fused.get(op.operation.results[0]) if len(op.operation.results) == 1 else None
        if match is None:
            _apply(builder, op)
        elif match.last is op:
            builder.define(op.operation.results[0], match.build(builder))
    uids = _outputs(builder, working, outputs, name)
    graph = WireGraph(
        name=name,
        compute_data_type=DataType.FLOAT,
        intermediate_data_type=DataType.FLOAT,
        io_data_type=wire_type(next((kind.dtype for kind in types if kind.dtype in FLOATS), DataType.FLOAT)),
        tensors=builder.wire_tensors(),
        nodes=tuple(builder.nodes),
    )
    used = tuple(None if tensor is None else tensor.uid for tensor in builder.inputs)
    return Translation(graph, used, uids, tuple(dict.fromkeys(op.where for op in working)))


def boundary_types(
    values: Sequence[Any], side: str, graph: str, read: Callable[[str], TensorType | str] = tensor_type
) -> list[TensorType]:
    """The tensor types of values that cross the border of a graph.

    Args:
        values: `ir.Value`s.
        side: what they are, for errors.
        graph: its name, for errors.
        read: MLIR's text of a type → the type, or why it has none.

    Raises:
        NotTranslated: one has no wire form.
    """
    found: list[TensorType] = []
    for position, value in enumerate(values):
        kind = read(str(value.type))
        if isinstance(kind, str):
            raise NotTranslated("graph", graph, f"{side} {position}: {kind}")
        found.append(kind)
    return found


def operations(ops: Sequence[Any]) -> list[Op]:
    """The operations without terminators; an OpView counts as its operation."""
    wrapped = [Op(getattr(op, "operation", op), position) for position, op in enumerate(ops)]
    return [op for op in wrapped if op.name not in _SKIPPED]


def value_name(value: Any, default: str) -> str:
    """The name of the model's node or input that a value's location holds."""
    owner = value.owner
    location = value.location if isinstance(owner, ir.Block) else owner.operation.location
    return location_name(location) or default


def _apply(builder: Builder, op: Op) -> None:
    result = lookup(op)(builder, op)
    results = list(op.operation.results)
    made = list(result) if isinstance(result, Sequence) else [result]
    for position, value in enumerate(made):
        if value is None:
            continue
        kind = op.result(position)
        if (value.dims, value.dtype) != kind:
            raise op.refuse(
                f"result {position} is {kind.dtype.name} {kind.dims}, the operands give {value.dtype.name} {value.dims}"
            )
        builder.define(results[position], value)


def _outputs(builder: Builder, ops: Sequence[Op], outputs: Sequence[Any], name: str) -> tuple[int, ...]:
    by_result = {result: op for op in ops for result in op.operation.results}
    uids: list[int] = []
    for position, (key, kind) in enumerate(zip(outputs, boundary_types(outputs, "output", name), strict=True)):
        value = builder.lookup(key)
        op = by_result.get(key)
        if value is None:
            what = f"output {position} is no result of these operations"
            raise op.refuse(what) if op else NotTranslated("graph", name, what)
        if not ops:
            raise NotTranslated("graph", name, "it has no operation")
        uids.append(builder.output(op or ops[-1], value, kind).uid)
    return tuple(uids)
