"""A graph of PyTorch's operators that writes to nothing, read by torch-mlir's FX importer; operators are kept whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusilli_ground.torch_types import value_tensor_type
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.conversion import source_name
from hipdnn_backend.offload.frontend.functions_ir import (
    drop_devices,
    info_of,
    lift_literals,
    order_arguments,
    settle_empty,
    settle_scalars,
)
from hipdnn_backend.offload.frontend.imported import Constant, Imported
from hipdnn_backend.offload.frontend.uniform import with_uniform
from hipdnn_backend.offload.mlir import PassManager, fx_importer, ir

__all__ = ["KEPT", "TorchGraph", "import_graph", "load_torch_graph"]

_IDENTITIES = {"torch.aten.detach_", "torch.aten.detach", "torch.aten.lift_fresh_copy", "torch.aten.alias"}
"""What tensors that a module's code writes as literals go through."""

KEPT = {
    "torch.aten._scaled_dot_product_flash_attention_for_cpu",
    "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward",
    "torch.fusilli.grouped_mm",
    "torch.fusilli.grouped_mm_gradient",
}
"""What hipDNN has an operation of, and the torch dialect no name, or another signature."""

_CLEAN = "builtin.module(func.func(cse,canonicalize,cse))"


@dataclass(frozen=True, slots=True, eq=False)
class TorchGraph:
    """Operators on tensors of static shapes.

    Attributes:
        graph: a ``torch.fx.Graph`` whose nodes have a tensor of their type as ``meta["val"]``, and whose placeholders
            are tensors; all are used.
        name: of the model that it is.
        whole: see `Imported.whole`.
    """

    graph: Any
    name: str
    whole: Mapping[str, str]


def load_torch_graph(source: TorchGraph, context: Any) -> Imported:
    """The graph in the torch dialect. Nodes have their own names, inputs those of the placeholders.

    Raises:
        ModelError: torch-mlir does not know an operator.
    """
    names = [node.name for node in source.graph.nodes if node.op == "placeholder"]
    module, literals = import_graph(source.graph, list(enumerate(names)), lambda node: node.name, context)
    function = module.body.operations[0].operation
    arguments = list(function.regions[0].blocks[0].arguments)
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    return Imported(
        module=module,
        name=source.name,
        inputs=tuple(info_of(value.type, name) for name, value in zip(names, arguments, strict=False)),
        constants=tuple(literals),
        whole=source.whole,
        outputs=tuple(info_of(type_, f"result{number}") for number, type_ in enumerate(results)),
    )


def import_graph(
    graph: Any, order: Sequence[tuple[int, str]], label: Callable[[Any], str], context: Any
) -> tuple[Any, list[Constant]]:
    """A graph as a module with one function ``main``, and the weights that stood in its body.

    Args:
        graph: a ``torch.fx.Graph``.
        order: index and name of each placeholder that becomes an argument; the others are not used.
        label: the name that a node's operations have as location.
        context: of the module.

    Raises:
        ModelError: torch-mlir does not know an operator.
    """
    module = _imported(with_uniform(graph), label, context)
    function = module.body.operations[0].operation
    drop_devices(function)
    order_arguments(function, order)
    settle_scalars(function)
    try:
        PassManager.parse(_CLEAN, context=context).run(module.operation)
    except Exception as error:  # torch-mlir writes what its own verifier refuses
        raise ModelError("", "torch-export", f"torch-mlir made wrong IR of the exported graph: {error}") from error
    settle_empty(function)
    _count_from_start(function)
    return module, lift_literals(function)


def _imported(graph: Any, label: Callable[[Any], str], context: Any) -> Any:
    """The graph as one function ``main`` with an argument for each placeholder."""
    extras = fx_importer()

    class NamedNodes(extras.ContextCache):
        """Locations are names of nodes instead of lines of Python."""

        def get_node_location(self, node: Any) -> Any:
            return ir.Location.name(label(node), context=context)

    importer = extras.FxImporter(context=context)
    importer._cc = NamedNodes(context, py_attr_tracker=importer._py_attr_tracker)
    try:
        importer.import_stateless_graph(graph, func_name="main")
    except Exception as error:  # the importer raises many kinds for what it does not know
        raise ModelError("", "torch-export", f"torch-mlir cannot read the exported graph: {error}") from error
    module = importer.module
    for op in _operators(module.body.operations[0].operation):
        name = ir.StringAttr(op.attributes["name"]).value
        if name in KEPT:
            continue
        if name not in _IDENTITIES or op.results[0].type != op.operands[0].type:
            raise ModelError(source_name(op), "unsupported-operator", f"torch-mlir does not know {name}")
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    return module


def _count_from_start(function: Any) -> None:
    """Make negative dims and indices positive where Torch-MLIR's lowering would write to another place."""
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        kind = value_tensor_type(str(op.operands[0].type)) if op.name in _DIM_OPERAND else None
        if kind is None or not kind.is_static:
            continue
        dim = _raised(op, _DIM_OPERAND[op.name], len(kind.dims))
        if op.name == _SELECT_SCATTER:
            _raised(op, 3, kind.dims[dim] or 0)


_SELECT_SCATTER = "torch.aten.select_scatter"
_DIM_OPERAND = {
    **dict.fromkeys((f"torch.aten.scatter.{form}" for form in ("src", "value", "reduce", "value_reduce")), 1),
    **dict.fromkeys(("torch.aten.scatter_add", "torch.aten.scatter_reduce.two", "torch.aten.gather"), 1),
    **dict.fromkeys((_SELECT_SCATTER, "torch.aten.slice_scatter"), 2),
}
"""Operations that write or read at indices → the operand that is their dim."""


def _raised(op: Any, at: int, by: int) -> int:
    """The constant that an operand is; a negative one is replaced by what it counts from the end."""
    value = int(ir.IntegerAttr(op.operands[at].owner.attributes["value"]).value)
    if value >= 0:
        return value
    with ir.InsertionPoint(op), op.location:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, op.context), value + by)
        type_ = ir.Type.parse("!torch.int", context=op.context)
        op.operands[at] = ir.Operation.create(
            "torch.constant.int", results=[type_], attributes={"value": number}
        ).result
    return value + by


def _operators(function: Any) -> Iterator[Any]:
    """Operations that the torch dialect has no name for."""
    for view in list(function.regions[0].blocks[0].operations):
        if view.operation.name == "torch.operator":
            yield view.operation
