"""``torch.operator "hipdnn.graph"`` regions: making them, reading them, taking them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.graph import (
    LIST,
    LITERAL,
    FunctionGraph,
    bits,
    functions,
    is_tensor,
    source_names,
    torch_name,
)
from hipdnn_backend.onnx_op import OPERATOR

__all__ = [
    "CUSTOM",
    "EXECUTABLE",
    "GRAPH",
    "VIEW",
    "Region",
    "erase_dead",
    "graphs",
    "inline",
    "is_operator",
    "isolate",
    "operation_names",
    "operator_name",
    "outline",
    "replace_results",
    "tensor_operations",
    "view_of",
]

Value = Any
Operation = Any

GRAPH = "hipdnn.graph"
EXECUTABLE = "hipdnn.executable"
VIEW = "hipdnn.view"
CUSTOM = "hipdnn.custom"
"""Unit attribute of a region whose operations go to the engine as one custom operation."""

_VALUES = ("torch.constant.", "torch.prim.ListConstruct", "torch.vtensor.literal", "torch.aten.")
_OPERATOR = "torch.operator"
_TERMINATOR = "torch.operator_terminator"


def operator_name(op: Operation) -> str:
    """The name of a ``torch.operator``, "" for any other operation."""
    return ir.StringAttr(op.attributes["name"]).value if op.name == _OPERATOR else ""


def is_operator(op: Operation, name: str) -> bool:
    """True for ``torch.operator "name"``."""
    return operator_name(op) == name


def graphs(module: Any) -> list[Operation]:
    """The ``hipdnn.graph`` operations of all functions, in program order.

    Raises:
        ValueError: one has no region of one block that ends in a terminator.
    """
    found = [
        view.operation
        for function in functions(module)
        for view in function.regions[0].blocks[0].operations
        if is_operator(view.operation, GRAPH)
    ]
    for op in found:
        blocks = list(op.regions[0].blocks) if len(op.regions) == 1 else []
        last = [view.operation.name for block in blocks for view in block.operations][-1:]
        if len(blocks) != 1 or last != [_TERMINATOR] or not op.results:
            raise ValueError(f"hipdnn.graph at {op.location} needs a region of one block, and a result")
    return found


@dataclass(frozen=True)
class Region:
    """A region as the translator wants it.

    Attributes:
        ops: its operations in program order, constants included, without the terminator.
        inputs: its block arguments.
        outputs: what its terminator returns.
    """

    ops: tuple[Operation, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @classmethod
    def of(cls, graph: Operation) -> Region:
        """The region of a ``hipdnn.graph`` operation."""
        block = graph.regions[0].blocks[0]
        ops = [view.operation for view in block.operations]
        return cls(tuple(ops[:-1]), tuple(block.arguments), tuple(ops[-1].operands))

    def nodes(self) -> tuple[str, ...]:
        """Names of the model's nodes that its operations come from, in order."""
        return tuple(dict.fromkeys(name for op in tensor_operations(self.ops) for name in source_names(op.location)))


def tensor_operations(ops: Sequence[Operation]) -> list[Operation]:
    """The operations that work: all but constants, lists and literals."""
    return [op for op in ops if any(map(is_tensor, op.results)) and op.name != LITERAL]


def operation_names(ops: Sequence[Operation]) -> tuple[str, ...]:
    """MLIR names of the operations that work; of one that carries ONNX, the operators of its nodes."""
    names: list[str] = []
    for op in tensor_operations(ops):
        if is_operator(op, OPERATOR):
            names += [f"onnx.{ir.StringAttr(each).value}" for each in ir.ArrayAttr(op.attributes["hipdnn.operators"])]
        else:
            names.append(torch_name(op))
    return tuple(names)


def replace_results(old: Operation, new: Sequence[Value]) -> None:
    """Uses ``new`` wherever results of ``old`` were used."""
    for before, after in zip(old.results, new, strict=True):
        before.replace_all_uses_with(after)


def _remap(op: Operation, values: dict[Value, Value]) -> None:
    """Replaces operands of an operation, those inside its regions included."""
    for index, operand in enumerate(op.operands):
        if operand in values:
            op.operands[index] = values[operand]
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                _remap(view.operation, values)


def _location(ops: Sequence[Operation]) -> Any:
    """The location of a group: its members' names. Lines of a file say nothing about a group and are left out."""
    names = dict.fromkeys(name for op in ops for name in source_names(op.location))
    places = [ir.Location.name(name, context=ops[0].context) for name in names]
    return ir.Location.fused(places, context=ops[0].context) if places else ops[-1].location


def _is_inside(op: Operation, operator: Operation) -> bool:
    while op is not None:
        if op == operator:
            return True
        op = op.parent and op.parent.operation
    return False


def _clone_lists(graph: FunctionGraph, op: Operation, before: Operation, values: dict[Value, Value]) -> None:
    """Clones the lists that an operation takes before another one: each use gets a list of its own."""
    for index, operand in enumerate(op.operands):
        owner = graph.constants.get(operand)
        if owner is not None and owner.name == LIST:
            op.operands[index] = _cloned_list(graph, owner, before, values)
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                _clone_lists(graph, view.operation, before, values)


def _cloned_list(graph: FunctionGraph, owner: Operation, before: Operation, values: dict[Value, Value]) -> Value:
    copy = owner.clone(ip=ir.InsertionPoint(before))
    _clone_lists(graph, copy, copy, values)
    _remap(copy, values)
    return copy.results[0]


def outline(graph: FunctionGraph, group: int, before: Operation, *, custom: bool = False) -> Operation:
    """Moves a set of operations into a new ``hipdnn.graph`` before an operation.

    What it needs of constants, lists and small literals is cloned into the region, so that tensors alone cross it.
    ``group`` is convex, and everything that feeds it stands before ``before``.
    """
    ops = [graph.nodes[number].op for number in bits(group)]
    inputs = [graph.current.get(value, value) for value in graph.captures(group)]
    outputs = graph.escaping(group)
    members = sorted(
        [(graph.position[op.results[0]], op, False) for op in ops]
        + [(graph.position[op.results[0]], op, True) for op in graph.helpers(group) if op.name != LIST],
        key=lambda member: member[0],
    )
    attributes = {"name": ir.StringAttr.get(GRAPH, ops[0].context)}
    if custom:
        attributes[CUSTOM] = ir.UnitAttr.get(ops[0].context)
    place = _location(ops)
    operator = ir.Operation.create(
        _OPERATOR,
        results=[value.type for value in outputs],
        operands=inputs,
        attributes=attributes,
        regions=1,
        loc=place,
        ip=ir.InsertionPoint(before),
    )
    block = operator.regions[0].blocks.append(*(value.type for value in inputs), arg_locs=[place] * len(inputs))
    values: dict[Value, Value] = dict(zip(inputs, block.arguments, strict=True))
    terminator = ir.Operation.create(_TERMINATOR, operands=outputs, loc=place, ip=ir.InsertionPoint(block))
    for _position, op, is_helper in members:
        if is_helper:
            copy = op.clone(ip=ir.InsertionPoint(terminator))
            values.update(zip(op.results, copy.results, strict=True))
        else:
            _clone_lists(graph, op, terminator, values)
            copy = op
            op.move_before(terminator)
        _remap(copy, values)
    for result, new in zip(outputs, operator.results, strict=True):
        for use in list(result.uses):
            if not _is_inside(use.owner.operation, operator):
                use.owner.operation.operands[use.operand_number] = new
    graph.current.update(zip(outputs, operator.results, strict=True))
    return operator


def inline(graph: Operation) -> list[Operation]:
    """Takes a ``hipdnn.graph`` apart: its operations stand where it stood, constants included."""
    region = Region.of(graph)
    values = dict(zip(region.inputs, graph.operands, strict=True))
    for op in region.ops:
        op.move_before(graph)
        _remap(op, values)
    replace_results(graph, [values.get(value, value) for value in region.outputs])
    graph.erase()
    return list(region.ops)


def view_of(op: Operation) -> Operation:
    """Replaces an operation that only gives its first operand other dims by ``torch.operator "hipdnn.view"``."""
    view = ir.Operation.create(
        _OPERATOR,
        results=[op.results[0].type],
        operands=[op.operands[0]],
        attributes={"name": ir.StringAttr.get(VIEW, op.context)},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    replace_results(op, view.results)
    op.erase()
    return view


def erase_dead(module: Any) -> None:
    """Erases constants, lists, literals and computations of functions that nothing uses.

    Upstream leaves computations that it knows no side effects of, e.g. ``torch.aten.empty`` in training code.
    """
    for function in functions(module):
        for view in reversed(list(function.regions[0].blocks[0].operations)):
            op = view.operation
            is_used = any(True for result in op.results for _use in result.uses)
            # a trailing underscore is PyTorch's mark of what writes to its operands
            if op.name.startswith(_VALUES) and not op.name.endswith("_") and not is_used:
                op.erase()


def isolate(graph: Operation) -> None:
    """Clones constants that a region takes from outside into it.

    Upstream CSE replaces a constant of a region by an equal one of the function.
    """
    block = graph.regions[0].blocks[0]
    values: dict[Value, Value] = {}
    for view in list(block.operations):
        _isolate(view.operation, graph, block, values)


def _isolate(op: Operation, graph: Operation, block: Any, values: dict[Value, Value]) -> None:
    for index, operand in enumerate(op.operands):
        owner = operand.owner
        if isinstance(owner, ir.Block) or _is_inside(owner.operation, graph):
            continue
        if operand not in values:
            copy = owner.operation.clone(ip=ir.InsertionPoint.at_block_begin(block))
            _isolate(copy, graph, block, values)
            values[operand] = copy.results[0]
        op.operands[index] = values[operand]
    for region in op.regions:
        for inner in region.blocks:
            for view in inner.operations:
                _isolate(view.operation, graph, block, values)
