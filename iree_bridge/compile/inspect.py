"""What the compiler made of a graph.

The number of dispatches, and for AMD targets registers, spills, memory and matrix instructions of each kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graph_api import Graph
from iree_bridge.compile import compiler
from iree_bridge.compile.assembly import Dispatch
from iree_bridge.compile.compiler import EmittedIr, Recipe
from iree_bridge.compile.options import Options
from iree_bridge.targets.target import Target

__all__ = ["Inspection", "inspect_graph", "inspect_mlir"]


@dataclass(frozen=True)
class Inspection:
    """Facts about compiled code.

    Attributes:
        target: what it was compiled for.
        dispatches: kernel launches per run, None if the compiler did not say.
        kernels: one entry per kernel; empty for targets other than AMD's.
        form: name of the graph's variant; empty for MLIR text.
    """

    target: Target
    dispatches: int | None
    kernels: tuple[Dispatch, ...]
    form: str = ""

    @property
    def matrix(self) -> dict[str, int]:
        """Matrix instructions in the code of all kernels, by mnemonic."""
        total: dict[str, int] = {}
        for kernel in self.kernels:
            for mnemonic, count in kernel.matrix.items():
                total[mnemonic] = total.get(mnemonic, 0) + count
        return total

    @property
    def spills(self) -> int:
        """Vector registers that did not fit, over all kernels."""
        return sum(kernel.vgpr_spills for kernel in self.kernels)


def inspect_graph(graph: Graph, target: Target, options: Options | None = None) -> Inspection:
    """Compile a graph (the cache has no intermediate files) and read what came out.

    Raises:
        GraphError, NotSupportedError, CompileError: as ``iree_bridge.compile.compiler.compile_code``.
    """
    options = Options.or_env(options)
    return _inspection(target, compiler.inspect(graph, target, options))


def inspect_mlir(text: str, target: Target, options: Options | None = None) -> Inspection:
    """Compile MLIR text and read what came out.

    Raises:
        CompileError: the compiler failed.
    """
    options = Options.or_env(options)
    recipe = Recipe(target, (*target.flags(), *options.extra_flags), target.global_flags())
    return _inspection(target, compiler.inspect_ir(EmittedIr(text, text), recipe, options))


def _inspection(target: Target, header: Mapping[str, Any]) -> Inspection:
    kernels = tuple(Dispatch(**fact) for fact in header["facts"])
    return Inspection(target, header["dispatches"], kernels, header.get("form", ""))
