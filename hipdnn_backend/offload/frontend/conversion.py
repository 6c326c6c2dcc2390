"""From a rewritten `OnnxGraph` to the torch dialect: torch-mlir's ONNX importer and its conversion, undecomposed."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx

from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend.graph import OnnxGraph, subgraphs
from hipdnn_backend.offload.frontend.torch_ops import insert_torch_ops
from hipdnn_backend.offload.frontend.weights import needs_constant
from hipdnn_backend.offload.mlir import PassManager, ir, onnx_importer

__all__ = ["PIPELINE", "clean", "complaints", "control_input", "source_name", "to_torch", "unconverted", "unknown_type"]

PIPELINE = "builtin.module(func.func(convert-torch-onnx-to-torch,cse,canonicalize,cse))"
_ELEMENTS = {
    getattr(onnx.TensorProto, name)
    for name in (
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16"),
        *("UINT32", "UINT64", "COMPLEX64", "COMPLEX128"),
    )
}
"""Element types that cross to the torch dialect."""

_FATAL = {
    "Scan": "torch-mlir has no conversion for such a body",
    "Unique": "torch-mlir's conversion wants all four results and gives them types that contradict each other",
}
"""Operators whose conversion ends the process → why there is none."""

_UNTYPED = "what a body of it gives has no known type, for which torch-mlir has no conversion"

_LOG = logging.getLogger(__name__)
_ILLEGAL = re.compile(r"failed to legalize operation '([^']*)'")
_ONNX_NAME = re.compile(r'name = "onnx\.(\w+)"')
_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"')


def to_torch(graph: OnnxGraph, lifted: Sequence[str], context: Any) -> tuple[Any, dict[str, str]]:
    """The module, or what stood in its way.

    Args:
        graph: after all rewrites.
        lifted: constants that become arguments.
        context: of the module.

    Returns:
        An ``ir.Module`` with one function, ``main`` (None if the conversion failed), and the nodes that were not
        converted, each with the reason.

    Raises:
        ModelError: types of tensors are not known, or the failure belongs to no node.
    """
    _check_elements(graph)
    fatal = {node.name: _FATAL[node.op_type] for node in graph.nodes if node.op_type in _FATAL and not node.domain}
    if fatal:
        return None, fatal
    model = _typed(graph, lifted)
    untyped = {node.name: _UNTYPED for node in model.graph.node if _gives_untyped(node)}
    if untyped:
        return None, untyped
    info = onnx_importer.ModelInfo(
        model, config=onnx_importer.Config(function_expansion_allowlists_by_domain={"": set()})
    )
    with context, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values without a type: the check below names them
        module = info.create_module(context=context)
        try:
            onnx_importer.NodeImporter.define_function(info.main_graph, module.operation).import_all()
        except (onnx_importer.OnnxImportError, ir.MLIRError, ValueError, TypeError, KeyError) as error:
            raise ModelError(graph.name, "import", f"torch-mlir cannot read the graph: {error}") from error
        insert_torch_ops(module)
        try:
            clean(module)
        except ir.MLIRError as error:
            failed = dict(complaints(error))
            if not failed:
                raise ModelError(graph.name, "import", f"torch-mlir's conversion failed: {error}") from error
            return None, failed
    return module, dict(unconverted(module))


def _check_elements(graph: OnnxGraph) -> None:
    """The importer ends the process, or raises without a name, where the torch dialect lacks a type."""
    for node in graph.nodes:
        for name in filter(None, [*node.input, *node.output]):
            type_ = graph.type(name)
            if type_ is not None and type_.element not in _ELEMENTS:
                kind = onnx.TensorProto.DataType.Name(type_.element)
                reason = f"{node.op_type}: {name!r} has elements of type {kind}, which the torch dialect lacks"
                raise UnsupportedNodeError(node.name, "element-type", reason)
    for name in [*graph.inputs, *(output.value for output in graph.outputs)]:  # no node may be left that reads it
        type_ = graph.type(name)
        if type_ is not None and type_.element not in _ELEMENTS:
            kind = onnx.TensorProto.DataType.Name(type_.element)
            raise ModelError(name, "element-type", f"its elements are of type {kind}, which the torch dialect lacks")


def _gives_untyped(node: onnx.NodeProto) -> bool:
    """Whether the body of a node has a result without a type: the conversion of such a body ends the process."""
    bodies = (body for attribute in node.attribute for body in (attribute.g, *attribute.graphs))
    return any(output.type.WhichOneof("value") is None for body in bodies for output in body.output)


def clean(module: Any) -> None:
    """Convert what is in the ONNX form, then clean up; raises ``ir.MLIRError``."""
    PassManager.parse(PIPELINE, context=module.context).run(module.operation)


def _typed(graph: OnnxGraph, lifted: Sequence[str]) -> onnx.ModelProto:
    """The model with the types of all tensors, which the importer needs."""
    model = graph.to_proto(lifted)
    model.graph.name = "main"
    for node in model.graph.node:
        _name_bodies(node, node.name)
    for name, type_ in graph.types.items():
        dims = None if type_.dims is None else [dim if isinstance(dim, int) else None for dim in type_.dims]
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, type_.element, dims))
    del model.graph.output[:]
    for output in graph.outputs:
        type_ = graph.type(output.value)
        if type_ is None or type_.dims is None:
            raise unknown_type(graph, output.name)
        dims = [dim if isinstance(dim, int) else None for dim in type_.dims]
        model.graph.output.append(onnx.helper.make_tensor_value_info(output.value, type_.element, dims))
    return model


def _name_bodies(node: onnx.NodeProto, name: str) -> None:
    """What is said of a node in a body is said of the node that has the body."""
    for body in subgraphs(node):
        for inner in body.node:
            inner.name = name
            _name_bodies(inner, name)


def complaints(error: Any) -> Iterator[tuple[str, str]]:
    """Node → diagnostic, from an ``ir.MLIRError``."""
    for diagnostic in error.error_diagnostics:
        for at in (diagnostic, *diagnostic.notes):
            found = _LOCATION.search(str(at.location))
            if found:
                yield found[1], _said(str(diagnostic.message))
                break


def _said(message: str) -> str:
    """A diagnostic without the IR that it quotes, which goes to the log."""
    text = " ".join(message.split())
    found = _ILLEGAL.match(text)
    if found is None:
        return text[:300]
    _LOG.debug("%s", message)
    operator = _ONNX_NAME.search(text)
    return f"torch-mlir does not convert {operator[1] if operator else found[1]} of this form"


def unconverted(module: Any) -> Iterator[tuple[str, str]]:
    """Source node → reason, for operations that are still in the ONNX form."""
    for function in module.body.operations:
        yield from _unconverted_in(function.operation)


def _unconverted_in(parent: Any) -> Iterator[tuple[str, str]]:
    for region in parent.regions:
        for block in region.blocks:
            for view in block.operations:
                op = view.operation
                if op.name == "torch.operator":
                    name = str(op.attributes["name"].value) if "name" in op.attributes else ""
                    if name.startswith("onnx."):
                        yield source_name(op), f"torch-mlir does not convert {name.removeprefix('onnx.')}"
                yield from _unconverted_in(op)


def source_name(op: Any) -> str:
    """The node that an operation came from, by its location; "" if it has none."""
    found = _LOCATION.search(str(op.location))
    return found[1] if found else ""


def control_input(node: onnx.NodeProto, name: str) -> ModelError:
    """A node needs to know one of the graph's inputs before any run."""
    reason = f"its operand {name!r} has to be known, but is an input; bind it: --input {name}=VALUE"
    return ModelError(node.name, "control-input", f"{node.op_type}: {reason}")


def unknown_type(graph: OnnxGraph, output: str) -> ModelError:
    """Why a result of the graph has no static type: the first node on the way to it that has none."""
    for node in graph.nodes:
        types = [graph.type(name) for name in node.output if name]
        if all(type_ is not None and type_.static is not None for type_ in types):
            continue
        operand = needs_constant(graph, node)
        if operand in graph.inputs:
            return control_input(node, operand or "")
        if any(True for _ in subgraphs(node)):
            reason = f"{node.op_type} makes {output!r} and cannot be unrolled here"
            return UnsupportedNodeError(node.name, "control-flow", reason)
        if node.domain:
            reason = f"{node.domain}.{node.op_type} is not known here, so neither are the dims of {output!r}"
            return UnsupportedNodeError(node.name, "static-dims", reason)
        what = f"{operand!r}, which a run computes, decides" if operand else "values that only a run knows decide"
        return ModelError(node.name, "static-dims", f"{node.op_type}: {what} the dims of its result, so of {output!r}")
    return ModelError(output, "static-dims", "the type of this result is not known before a run")
