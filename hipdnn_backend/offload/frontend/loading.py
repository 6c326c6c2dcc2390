"""The front end's table of contents: what happens to a model between its file and the torch dialect."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import rules as _rules  # noqa: F401  registers the rewrites
from hipdnn_backend.offload.frontend.binding import bind_dims, bind_inputs, check_arguments, declared_inputs
from hipdnn_backend.offload.frontend.building import build
from hipdnn_backend.offload.frontend.conversion import control_input, to_torch, unknown_type
from hipdnn_backend.offload.frontend.folding import fold
from hipdnn_backend.offload.frontend.functions import expand
from hipdnn_backend.offload.frontend.graph import OnnxGraph, attributes, operator_of, subgraphs
from hipdnn_backend.offload.frontend.imported import Constant, Declared, Imported, TensorInfo
from hipdnn_backend.offload.frontend.opsets import convert, inline_functions
from hipdnn_backend.offload.frontend.outside import FRONT_END, Reasons, set_outside
from hipdnn_backend.offload.frontend.reading import read
from hipdnn_backend.offload.frontend.rewriting import apply_rules
from hipdnn_backend.offload.frontend.shapes import check
from hipdnn_backend.offload.frontend.small_types import carried
from hipdnn_backend.offload.frontend.untold import infer_all
from hipdnn_backend.offload.frontend.weights import lifted, needs_constant
from hipdnn_backend.offload.frontend.words import check_words
from hipdnn_backend.offload.mlir import new_context
from hipdnn_backend.offload.node_outcomes import Absorbed, Became
from hipdnn_backend.offload.onnx_process.client import OnnxProcessError

__all__ = ["Unfolded", "declared_arguments", "folded", "load", "prepare", "simplify"]

_CONTEXT = ("com.microsoft", "EPContext")
_WRONG_BODY = {"MeanVarianceNormalization"}
"""Its body has the ReduceMean of older opsets, and constants of single precision."""
_ROUNDS = 64
"""More rounds than any chain of rewrites needs: a rule that undoes another would not end."""


def load(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto | Any,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    example: Sequence[Any] = (),
    strict: bool = True,
    left: Mapping[str, Reasons] | None = None,
    context: Any = None,
) -> Imported:
    """A model in the torch dialect, undecomposed, with static shapes and its weights as arguments.

    Args:
        source: path of an ONNX file or of a torch-dialect ``.mlir`` file, an ONNX file's bytes, a ``ModelProto`` (which
            is not changed), or a PyTorch module or exported program.
        dims: size of each symbolic dim; ``input.axis`` names a dim that has no name.
        inputs: inputs that are bound to a value, a sampling rate for example: they are no inputs of the result.
        example: arguments that a PyTorch module is exported with.
        strict: raise if a node cannot be converted; otherwise it stays ONNX, see `Imported.opaque`.
        left: nodes of an ONNX model that stay ONNX though they can be converted, each with who did not take it and why.
        context: ``ir.Context`` of the module; a new one by default.

    Raises:
        ModelError: the model is damaged, needs dims, or has an operator that cannot be converted; names the node.
    """
    context = new_context() if context is None else context
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".mlir":
        from hipdnn_backend.offload.frontend.mlir_text import load_text

        return load_text(Path(source), context)
    if not isinstance(source, str | os.PathLike | bytes | onnx.ModelProto):
        from hipdnn_backend.offload.frontend.torch_export import load_torch

        return load_torch(source, example, context)
    known = dict(left or {})
    first: ModelError | None = None
    while True:
        try:
            return _to_imported(prepare(source, dims=dims, inputs=inputs, left=known), known, context)
        except ModelError as error:
            found = error.nodes if isinstance(error, UnsupportedNodeError) else {}
            new = {name: {FRONT_END: reason} for name, reason in found.items() if name and name not in known}
            if first is None and (strict or not new):
                raise
            if (
                first is not None and not new
            ):  # e.g. dims behind a node that stays ONNX are unknown: its own reason counts
                raise first from error
            first = first or error
            known.update(new)


def declared_arguments(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[tuple[Declared, ...], tuple[str, ...]]:
    """What a run of an ONNX model will take, as far as its file says, and what is wrong with ``dims`` and ``inputs``.

    It takes no longer than reading the file.

    Raises:
        ModelError: the file is no model, or an input is no tensor.
    """
    with _readable_names():
        types, errors = declared_inputs(read(source)[0], dims or {}, inputs or {})
        return (
            tuple(Declared(name, type_.dims, type_.dtype) for name, type_ in types.items()),
            tuple(f"{error.node}: {error.reason}" for error in errors),
        )


@contextmanager
def _readable_names() -> Iterator[None]:
    try:
        yield
    except OnnxProcessError as error:
        raise ModelError("", "onnx", str(error)) from error
    except MemoryError as error:
        raise ModelError("", "memory", "there is not enough memory to read the model") from error
    except UnicodeDecodeError as error:
        raise ModelError(
            "", "model-file", f"a name in the model is no UTF-8; is the file damaged? ({error})"
        ) from error


def prepare(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    left: Collection[str] = (),
    strict: bool = True,
) -> OnnxGraph:
    """An ONNX model with static shapes, folded and rewritten but for the nodes in ``left``: what `load` converts.

    Raises:
        ModelError: see `load`; if not ``strict``, nodes that cannot be converted stay as they are.
    """
    known = set(left)
    with _readable_names():
        while True:
            try:
                return _prepared(*read(source), dims or {}, inputs or {}, known)
            except UnsupportedNodeError as error:
                new = error.nodes.keys() - known - {""}
                if strict or not new:
                    raise
                known |= new


@dataclass(frozen=True)
class Unfolded:
    """A model with static shapes before anything is folded: its nodes, in order, and its initializers."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]
    opsets: Mapping[str, int]


def folded(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[Unfolded, OnnxGraph]:
    """A model with static shapes before and after folding; of its nodes only those of other domains are rewritten.

    Raises:
        ModelError: as `load`.
    """
    with _readable_names():
        graph = _declared(*read(source), dims or {}, inputs or {})
        nodes = []
        for node in graph.nodes:
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(node)
        raw = Unfolded(tuple(nodes), dict(graph.constants), dict(graph.opsets))
        simplify(graph, {node.name for node in nodes if not node.domain})
        return raw, graph


def _prepared(
    model: onnx.ModelProto,
    folder: Path | None,
    dims: Mapping[str, int],
    inputs: Mapping[str, Any],
    left: Collection[str],
) -> OnnxGraph:
    graph = _declared(model, folder, dims, inputs)
    simplify(graph, left)
    return graph


def _declared(
    model: onnx.ModelProto, folder: Path | None, dims: Mapping[str, int], inputs: Mapping[str, Any]
) -> OnnxGraph:
    """The model as it is, with its dims and bound inputs, in the common opset."""
    check_arguments(model, dims, inputs)
    graph = build(model, folder)
    _check_context(graph)
    _note_sources(graph)
    graph = inline_functions(graph, model.functions)
    check(graph)
    check_words(graph)
    bind_inputs(graph, inputs)
    bind_dims(graph, dims)
    return convert(graph)


def _check_context(graph: OnnxGraph) -> None:
    """Refuse what ONNX Runtime made of a model: the model's own operations are not in it any more."""
    for node in graph.nodes:
        if (node.domain, node.op_type) == _CONTEXT:
            maker = attributes(node).get("source") or "an execution provider"
            raise ModelError(
                node.name,
                "ep-context",
                f"EPContext: the model holds code that {maker} compiled for ONNX Runtime, in place of its operations; "
                "give the model that it was made from, or run this one in a session of ONNX Runtime with that provider",
            )


def _note_sources(graph: OnnxGraph) -> None:
    """Note what the model has: everything that follows replaces nodes."""
    for node in graph.nodes:
        graph.sources[node.name] = operator_of(node)
    for node in graph.nodes:
        for inner in _inner(node):
            if inner.name and inner.name not in graph.sources:
                graph.sources[inner.name] = operator_of(inner)
                graph.absorbed[inner.name] = Absorbed(Became.BODY, (node.name,))


def _inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes in the bodies of a node."""
    for body in subgraphs(node):
        for inner in body.node:
            yield inner
            yield from _inner(inner)


def simplify(graph: OnnxGraph, left: Collection[str] = ()) -> None:
    """Infer, fold and rewrite until nothing changes; nodes in ``left`` are not rewritten.

    Raises:
        ModelError: shapes contradict each other, or a rule found a form that nothing converts.
    """
    for _ in range(_ROUNDS):
        try:
            infer_all(graph)
        except ModelError as error:  # it may be about dims that are unknown until what they are computed from is folded
            infer_all(graph, strict=False)
            if not (fold(graph) or (_is_misjudged(graph, error) and apply_rules(graph, left))):
                raise
            continue
        if not fold(graph) | apply_rules(graph, left):
            return
    raise ModelError(graph.name, "rewriting", f"rewriting did not end after {_ROUNDS} rounds")


def _is_misjudged(graph: OnnxGraph, error: ModelError) -> bool:
    """Whether onnx's inference failed at an operator whose body onnx itself has wrong, and which is rewritten."""
    return any(node.name == error.node and node.op_type in _WRONG_BODY and not node.domain for node in graph.nodes)


def _to_imported(graph: OnnxGraph, left: Mapping[str, Reasons], context: Any) -> Imported:
    opaque = set_outside(graph, left)
    # What torch-mlir does not convert is written out in smaller operators and tried again, until nothing fails or
    # nothing is left to write out.
    while True:
        plain = carried(graph)
        names = lifted(plain)
        module, failed = to_torch(plain, names, context)
        if not failed:
            break
        if not expand(graph, failed.keys()):
            raise _unsupported(graph, failed)
        simplify(graph)
    live = {node.name for node in graph.nodes} | opaque.keys()
    return Imported(
        module=module,
        name=graph.name,
        inputs=tuple(_info(graph, name, name) for name in graph.inputs),
        constants=tuple(Constant(name, plain.constants[name]) for name in names),
        outputs=tuple(_info(graph, output.value, output.name) for output in graph.outputs),
        opaque=opaque,
        sources=graph.sources,
        whole={name: name for name in graph.whole & live},
        absorbed={name: at for name, at in graph.absorbed.items() if name not in live},
    )


def _unsupported(graph: OnnxGraph, failed: Mapping[str, str]) -> ModelError:
    """The error about nodes that failed; it speaks of the first."""
    errors = [_error(graph, name, reason) for name, reason in failed.items()]
    others = {error.node: error.reason for error in errors[1:]}
    return UnsupportedNodeError(errors[0].node, errors[0].rule, errors[0].reason, others)


def _error(graph: OnnxGraph, name: str, reason: str) -> ModelError:
    node = next((node for node in graph.nodes if node.name == name), None)
    if node is None:
        return ModelError(name, "unsupported-operator", reason)
    operand = needs_constant(graph, node)
    if operand in graph.inputs:
        return control_input(node, operand or "")
    operands = ", ".join(f"{value} {list(_dims(graph, value))}" for value in node.input if value)
    return ModelError(name, "unsupported-operator", f"{operator_of(node)} of {operands} is not supported: {reason}")


def _info(graph: OnnxGraph, value: str, name: str) -> TensorInfo:
    type_ = graph.type(value)
    dims = type_.static if type_ else None
    if type_ is None or dims is None:
        raise unknown_type(graph, name)
    return TensorInfo(name, dims, type_.dtype)


def _dims(graph: OnnxGraph, value: str) -> tuple[int | str, ...]:
    type_ = graph.type(value)
    return type_.dims or () if type_ else ()
