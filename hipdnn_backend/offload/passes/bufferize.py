"""One-shot bufferization of ``hipdnn.execute``, which upstream does not know.

For bufferization each one is dressed as a ``linalg.generic``: that has destination-passing semantics that upstream's
analysis understands (which operand is read, which is overwritten), and nothing else says so from Python.
"""

from __future__ import annotations

from typing import Any

from hipdnn_backend.offload.mlir import PassManager, ir
from hipdnn_backend.offload.passes.backend_legalize import EXECUTE, create_execute, graph_name, ins_outs
from hipdnn_backend.offload.passes.graph import functions

__all__ = ["dress", "eliminate_empty_tensors", "one_shot_bufferize", "undress"]

Operation = Any

_BUFFERIZE = "one-shot-bufferize{bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map}"

_PAYLOAD = "hipdnn.payload"
_GRAPH = "library_call"


def _shaped(value: Any) -> Any:
    return ir.ShapedType(value.type)


def _maps(ins: list[Any], outs: list[Any], context: Any) -> tuple[Any, Any]:
    """An iteration space in which every operand has dims of its own: any output may depend on any input."""
    ranks = [_shaped(value).rank for value in (*ins, *outs)]
    total, start, maps = sum(ranks), 0, []
    for rank in ranks:
        dims = [ir.AffineDimExpr.get(axis, context) for axis in range(start, start + rank)]
        maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(total, 0, dims, context)))
        start += rank
    read = sum(ranks[: len(ins)])
    kinds = ["reduction"] * read + ["parallel"] * (total - read)
    types = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>", context) for kind in kinds]
    return ir.ArrayAttr.get(maps, context), ir.ArrayAttr.get(types, context)


def _dress(op: Operation) -> None:
    context, place = op.context, op.location
    ins, outs = ins_outs(op)
    maps, iterators = _maps(ins, outs, context)
    generic = ir.Operation.create(
        "linalg.generic",
        results=[value.type for value in op.results],
        operands=[*ins, *outs],
        attributes={
            "indexing_maps": maps,
            "iterator_types": iterators,
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(ins), len(outs)], context),
            _GRAPH: ir.StringAttr.get(graph_name(op), context),
        },
        regions=1,
        loc=place,
        ip=ir.InsertionPoint(op),
    )
    elements = [_shaped(value).element_type for value in (*ins, *outs)]
    block = generic.regions[0].blocks.append(*elements, arg_locs=[place] * len(elements))
    at = ir.InsertionPoint(block)
    # The payload reads the inputs alone, so bufferization knows that the old contents of the outputs do not matter.
    payload = ir.Operation.create(
        _PAYLOAD, results=elements[len(ins) :], operands=list(block.arguments)[: len(ins)], loc=place, ip=at
    )
    ir.Operation.create("linalg.yield", operands=list(payload.results), loc=place, ip=at)
    for old, new in zip(op.results, generic.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def dress(module: Any) -> None:
    """Every ``hipdnn.execute`` on tensors becomes a ``linalg.generic`` that carries the graph's name."""
    for function in functions(module):
        for view in list(function.regions[0].blocks[0].operations):
            if view.operation.name == EXECUTE:
                _dress(view.operation)


def undress(module: Any) -> None:
    """Every ``linalg.generic`` that `dress` made becomes a ``hipdnn.execute`` again, on tensors or on buffers."""
    for function in functions(module):
        for view in list(function.regions[0].blocks[0].operations):
            op = view.operation
            if op.name != "linalg.generic" or _GRAPH not in op.attributes:
                continue
            ins, outs = ins_outs(op)
            results = [value.type for value in op.results]
            name = ir.StringAttr(op.attributes[_GRAPH]).value
            made = create_execute(name, ins, outs, results, ir.InsertionPoint(op), op.location)
            for old, new in zip(op.results, made.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()


def _run(module: Any, passes: str) -> None:
    dress(module)
    PassManager.parse(f"builtin.module({passes})", context=module.context).run(module.operation)
    undress(module)


def eliminate_empty_tensors(module: Any) -> None:
    """Upstream's pass of that name: where a result is inserted into a larger tensor, the graph writes it there.

    Requires, ensures: destination-passing style on builtin tensors.
    """
    _run(module, "eliminate-empty-tensors")


def one_shot_bufferize(module: Any) -> None:
    """Upstream's pass of that name, and the cleanup that it wants.

    Requires: destination-passing style.  Ensures: no tensors; row-major buffers at function boundaries.

        %e = tensor.empty() : tensor<2xf32>
        %0 = hipdnn.execute graph("hipdnn_graph_0") ins(%a : tensor<4xf32>) outs(%e : tensor<2xf32>) -> tensor<2xf32>
      becomes
        %alloc = memref.alloc() {alignment = 64 : i64} : memref<2xf32>
        hipdnn.execute graph("hipdnn_graph_0") ins(%a : memref<4xf32>) outs(%alloc : memref<2xf32>)
    """
    _run(module, _BUFFERIZE)
    PassManager.parse("builtin.module(func.func(cse,canonicalize))", context=module.context).run(module.operation)
