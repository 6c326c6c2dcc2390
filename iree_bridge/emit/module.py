"""From a validated Graph to verified torch-dialect IR. Runs in a worker process only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import iree_bridge.emit
from fusilli_ground.discovery import import_files
from graph_api import CompileError, Graph
from iree_bridge.emit.emitter import Emitter
from iree_bridge.emit.mlir import PassManager, ir
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import Variant, choose, named

__all__ = ["EmittedModule", "emit_module", "load_rules"]


@dataclass(frozen=True)
class EmittedModule:
    """Verified IR of a graph.

    Attributes:
        ir: text without locations; equal graphs give equal text. The second-level cache key is made of it.
        located_ir: the same with locations named after the nodes, for the compiler's diagnostics.
    """

    ir: str
    located_ir: str


@cache
def load_rules() -> None:
    """Import every file of this folder, so that all rules are registered: one of a new operation is found like this."""
    import_files(iree_bridge.emit.__name__, iree_bridge.emit.__path__)


def emit_module(graph: Graph, target: Target, form: str = "") -> EmittedModule:
    """The verified module of a validated graph, for ``target``, in the candidate called ``form``, by default the first.

    Raises:
        ValueError: the graph has no such candidate.
        CompileError: MLIR refuses what was emitted; a fault of an emission rule, or of a custom operation's text.
    """
    load_rules()
    variant = named(graph, target, form) if form else choose(graph, target)
    if variant is None:
        raise ValueError(f"graph '{graph.name}' has no form '{form}' on {target}")
    with ir.Context(), ir.Location.name(graph.name or "graph"):
        module = _verified(graph, target, variant)
        aliased = _aliased_results(graph, module)
        if aliased:
            module = _verified(graph, target, variant, aliased)
        return EmittedModule(
            module.operation.get_asm(enable_debug_info=False),
            module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False),
        )


def _verified(graph: Graph, target: Target, variant: Variant, guarded: frozenset[int] = frozenset()) -> Any:
    module = ir.Module.create()
    Emitter(graph, target, variant, module, guarded).emit()
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise CompileError(f"graph '{graph.name}': the emitted IR does not verify: {error}") from error
    return module


def _aliased_results(graph: Graph, module: Any) -> frozenset[int]:
    """Positions of the results that folding turns into an input as it stands, x * 1 say, or an unsigned constant.

    The compiler dies on a buffer that is overwritten with an argument, and makes signed constants of unsigned ones.
    """
    folded = ir.Module.parse(str(module))
    try:
        PassManager.parse(_FOLDING).run(folded.operation)
    except ir.MLIRError as error:
        raise CompileError(
            f"graph '{graph.name}': MLIR refuses what the emitted IR folds to; if it has a custom operation, do the "
            f"types in its text agree with its operations? {error}"
        ) from error
    main = next(op for op in folded.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    # Its operations are not gone through: Python of MLIR's own dialects would be loaded, and numpy with it.
    buffers = [value for value in main.regions[0].blocks[0].arguments if str(value.type).startswith("!torch.tensor<")]
    stores = [use.owner for value in buffers for use in value.uses]
    return frozenset(i for i, op in enumerate(stores) if _is_aliased(op.operands[0]))


_FOLDING = "builtin.module(inline,func.func(torch-decompose-complex-ops),canonicalize)"


def _is_aliased(stored: Any) -> bool:
    if isinstance(stored.owner, ir.Block):
        return True
    return stored.owner.name == "torch.vtensor.literal" and ",ui" in str(stored.type)
