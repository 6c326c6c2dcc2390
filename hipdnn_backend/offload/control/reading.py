"""A control operation and its bodies, from an ONNX node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hipdnn_backend.offload.control.described import KINDS, Control, Port, Unreadable
from hipdnn_backend.offload.frontend.graph import TensorType, attributes, captures
from hipdnn_backend.offload.frontend.tensors import to_array

__all__ = ["Written", "read_control"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Written:
    """A control operation and what it needs.

    Attributes:
        control: the operation.
        constants: by their numbers.
        bodies: models of its bodies: of an If the branch that is taken, then the other.
    """

    control: Control
    constants: tuple[Array, ...]
    bodies: tuple[onnx.ModelProto, ...]


def read_control(data: bytes, inputs: Sequence[int], outputs: Sequence[int]) -> Written:
    """The control operation that a model consists of.

    Args:
        data: the model, serialized.
        inputs: uid of each of its inputs.
        outputs: uid of each of its outputs.

    Raises:
        Unreadable: the model is more than that, or a tensor has open dims.
    """
    model = onnx.load_model_from_string(data)
    nodes = model.graph.node
    if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type not in KINDS:
        shown = ", ".join(dict.fromkeys(node.op_type for node in nodes))
        raise Unreadable(f"it runs one If, Loop or Scan at a time; here are {shown}")
    return _Reader(model, inputs, outputs).read(nodes[0])


class _Reader:
    def __init__(self, model: onnx.ModelProto, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._model = model
        graph = model.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        given = [value for value in graph.input if value.name not in self._constants]
        self._ports = {value.name: _port(value, uid) for value, uid in zip(given, inputs, strict=True)}
        self._results = {value.name: _port(value, uid) for value, uid in zip(graph.output, outputs, strict=True)}
        self._arrays: dict[str, Array] = {}

    def read(self, node: onnx.NodeProto) -> Written:
        operands = tuple(self._operand(name) if name else None for name in node.input)
        given = attributes(node)
        count = int(given.get("num_scan_inputs", 0))
        bodies = {
            "If": lambda: [self._body(given[which], []) for which in ("then_branch", "else_branch")],
            "Loop": lambda: [self._body(given["body"], _loop_inputs(given["body"], operands))],
            "Scan": lambda: [self._body(given["body"], _scan_inputs(node, given, operands, count))],
        }[node.op_type]()
        made = len(node.output) - (len(node.input) - count)
        control = Control(
            node.op_type,
            node.name,
            operands,
            tuple(self._results.get(name) for name in node.output),
            tuple(captured for _, captured in bodies),
            count,
            _axes(given.get("scan_input_axes"), count, operands[len(operands) - count :]),
            tuple(given.get("scan_output_axes") or [0] * made) if count else (),
            tuple(bool(each) for each in given.get("scan_input_directions") or [0] * count),
            tuple(bool(each) for each in given.get("scan_output_directions") or [0] * made) if count else (),
        )
        return Written(control, tuple(self._arrays.values()), tuple(model for model, _ in bodies))

    def _operand(self, name: str) -> Port:
        if name in self._ports:
            return self._ports[name]
        if name not in self._constants:
            raise Unreadable(f"operand '{name}' is not known")
        array = self._arrays.setdefault(name, to_array(self._constants[name]))
        return Port(array.shape, array.dtype.name, constant=list(self._arrays).index(name))

    def _body(self, body: onnx.GraphProto, inputs: Sequence[Port]) -> tuple[onnx.ModelProto, tuple[Port, ...]]:
        """A body as a model, and what it reads of the graph around it."""
        if body.sparse_initializer or len(body.input) != len(inputs):
            raise Unreadable(f"its body takes {len(body.input)} values, not {len(inputs)}, or has sparse constants")
        outer = _read_outside(body)
        captured = {name: self._ports[name] for name in outer if name in self._ports}
        constants = [self._constants[name] for name in outer if name in self._constants]
        unknown = [name for name in outer if name not in captured and name not in self._constants]
        if unknown:
            raise Unreadable(f"its body reads '{unknown[0]}', which is not known")
        values = [
            *(_info(value.name, port) for value, port in zip(body.input, inputs, strict=True)),
            *(_info(name, port) for name, port in captured.items()),
        ]
        results = [
            helper.make_tensor_value_info(each.name, each.type.tensor_type.elem_type, None) for each in body.output
        ]
        graph = helper.make_graph(
            list(body.node), body.name or "body", values, results, [*body.initializer, *constants]
        )
        model = helper.make_model(
            graph, opset_imports=list(self._model.opset_import), ir_version=self._model.ir_version
        )
        return model, tuple(captured.values())


def _port(value: onnx.ValueInfoProto, uid: int) -> Port:
    type_ = TensorType.of(value.type, value.name)
    if type_ is None or type_.static is None:
        raise Unreadable(f"the dims of '{value.name}' are known to a run only")
    return Port(type_.static, type_.dtype.name, uid)


def _info(name: str, port: Port) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
    return helper.make_tensor_value_info(name, element, list(port.dims))


def _declared(value: onnx.ValueInfoProto, dtype: str) -> Port:
    """An input of a body that its node gives: of no dims, or of one, as the body says."""
    type_ = TensorType.of(value.type, value.name)
    return Port((1,) if type_ is not None and type_.static == (1,) else (), dtype)


def _loop_inputs(body: onnx.GraphProto, operands: Sequence[Port | None]) -> list[Port]:
    states = [port for port in operands[2:] if port is not None]
    if len(states) != len(operands[2:]) or len(body.input) < 2:
        raise Unreadable("a state of it is missing")
    return [_declared(body.input[0], "int64"), _declared(body.input[1], "bool"), *states]


def _scan_inputs(
    node: onnx.NodeProto, given: Mapping[str, Any], operands: Sequence[Port | None], count: int
) -> list[Port]:
    ports = [port for port in operands if port is not None]
    if len(ports) != len(operands) or not 0 < count <= len(ports):
        raise Unreadable("it is of an opset before 9, or an operand of it is missing")
    sequences = ports[len(ports) - count :]
    axes = _axes(given.get("scan_input_axes"), count, sequences)
    lengths = {port.dims[axis] for port, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise Unreadable(f"its sequences have {sorted(lengths)} steps")
    steps = [
        Port((*port.dims[:axis], *port.dims[axis + 1 :]), port.dtype)
        for port, axis in zip(sequences, axes, strict=True)
    ]
    return [*ports[: len(ports) - count], *steps]


def _axes(given: Sequence[int] | None, count: int, ports: Sequence[Port | None]) -> tuple[int, ...]:
    if not count:
        return ()
    ranks = [len(port.dims) if port is not None else 0 for port in ports]
    if not all(ranks):
        raise Unreadable("a sequence of it has no dims")
    return tuple(axis % rank for axis, rank in zip(given or [0] * count, ranks, strict=True))


def _read_outside(body: onnx.GraphProto) -> list[str]:
    """What a body reads that it does not make, by itself or in bodies inside of it, in order."""
    made = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    found: dict[str, None] = {}
    for node in body.node:
        for name in (*node.input, *sorted(captures(node))):
            if name and name not in made:
                found[name] = None
        made.update(node.output)
    found.update((output.name, None) for output in body.output if output.name not in made)
    return list(found)
