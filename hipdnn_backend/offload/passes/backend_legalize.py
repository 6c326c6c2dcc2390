"""``hipdnn-backend-legalize``: torch tensors become builtin ones, executables become ``hipdnn.execute``."""

from __future__ import annotations

from typing import Any

from hipdnn_backend.offload.mlir import PassManager, ir
from hipdnn_backend.offload.passes.concat import CONCAT, lower_concat
from hipdnn_backend.offload.passes.graph import functions, is_tensor
from hipdnn_backend.offload.passes.regions import EXECUTABLE, VIEW, operator_name, replace_results
from hipdnn_backend.offload.passes.reshapes import reshape

__all__ = ["EXECUTE", "backend_legalize", "builtin_type", "create_execute", "graph_name", "ins_outs"]

Operation = Any
Value = Any

EXECUTE = "hipdnn.execute"

_LEGAL = frozenset({"func.return", "torch.vtensor.literal"})
# No CSE: it would merge equal `tensor.empty` operations, and two graphs would share one buffer.
_TO_BUILTIN = (
    "builtin.module(func.func(convert-torch-to-arith),torch-func-backend-type-conversion,"
    "func.func(canonicalize),func.func(torch-finalizing-backend-type-conversion))"
)


def create_execute(graph: str, ins: list[Value], outs: list[Value], results: list[Any], at: Any, place: Any) -> Any:
    """A ``hipdnn.execute``: on tensors (``results`` are the types of ``outs``) or on buffers (no results)."""
    attributes = {
        "graph": ir.StringAttr.get(graph, place.context),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(ins), len(outs)], place.context),
    }
    return ir.Operation.create(
        EXECUTE, results=results, operands=[*ins, *outs], attributes=attributes, loc=place, ip=at
    )


def ins_outs(execute: Operation) -> tuple[list[Value], list[Value]]:
    """The operands of a ``hipdnn.execute``: those that are read and those that are written."""
    count = ir.DenseI32ArrayAttr(execute.attributes["operandSegmentSizes"])[0]
    operands = list(execute.operands)
    return operands[:count], operands[count:]


def graph_name(execute: Operation) -> str:
    """The graph that a ``hipdnn.execute`` or a ``hipdnn.executable`` runs."""
    return ir.StringAttr(execute.attributes["graph"]).value


def builtin_type(value: Value) -> Any:
    """The builtin tensor type of a torch tensor, as torch-mlir's type conversion has it: integers without a sign."""
    text = str(value.type)
    dims, _bracket, dtype = text[text.index("[") + 1 : text.rindex(">")].partition("],")
    if dtype[:2] in ("si", "ui"):
        dtype = dtype[1:]
    parts = [*filter(None, dims.split(",")), dtype]
    return ir.Type.parse(f"tensor<{'x'.join(parts)}>", value.type.context)


def _cast(name: str, value: Value, to: Any, before: Operation) -> Value:
    op = ir.Operation.create(name, results=[to], operands=[value], loc=before.location, ip=ir.InsertionPoint(before))
    return op.results[0]


def _to_builtin(value: Value, before: Operation) -> Value:
    return _cast("torch_c.to_builtin_tensor", value, builtin_type(value), before)


def _from_builtin(value: Value, like: Value, before: Operation) -> Value:
    return _cast("torch_c.from_builtin_tensor", value, like.type, before)


def _execute(op: Operation) -> None:
    at = ir.InsertionPoint(op)
    ins = [_to_builtin(value, op) for value in op.operands]
    types = [builtin_type(value) for value in op.results]
    empties = [ir.Operation.create("tensor.empty", results=[kind], loc=op.location, ip=at).results[0] for kind in types]
    made = create_execute(graph_name(op), ins, empties, types, at, op.location)
    replace_results(op, [_from_builtin(new, old, op) for new, old in zip(made.results, op.results, strict=True)])
    op.erase()


def _view(op: Operation) -> None:
    value = reshape("tensor", _to_builtin(op.operands[0], op), builtin_type(op.results[0]), op)
    replace_results(op, [_from_builtin(value, op.results[0], op)])
    op.erase()


def _concat(op: Operation) -> None:
    parts = [_to_builtin(value, op) for value in op.operands]
    value = lower_concat(op, parts, builtin_type(op.results[0]))
    replace_results(op, [_from_builtin(value, op.results[0], op)])
    op.erase()


def backend_legalize(module: Any) -> None:
    """Lower the torch dialect to builtin tensors, and executables to destination-passing style.

    Requires: every operation is a ``hipdnn.executable``, ``hipdnn.view``, ``hipdnn.concat`` or a literal.
    Ensures: nothing of torch is left; each result has a ``tensor.empty`` of its own.

        %0 = torch.operator "hipdnn.executable"(%a) {graph = "hipdnn_graph_0"}
            : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[2],f32>
      becomes
        %e = tensor.empty() : tensor<2xf32>
        %0 = hipdnn.execute graph("hipdnn_graph_0") ins(%a : tensor<4xf32>) outs(%e : tensor<2xf32>) -> tensor<2xf32>

    Raises:
        ValueError: another operation is left.
    """
    for function in functions(module):
        for view in list(function.regions[0].blocks[0].operations):
            op = view.operation
            name = operator_name(op)
            if name == EXECUTABLE:
                _execute(op)
            elif name == VIEW:
                _view(op)
            elif name == CONCAT:
                _concat(op)
            elif op.name not in _LEGAL and any(map(is_tensor, [*op.operands, *op.results])):
                raise ValueError(f"{name or op.name} at {op.location} is neither an executable nor a view")
    PassManager.parse(_TO_BUILTIN, context=module.context).run(module.operation)
