"""Compiling a graph for gfx942 and emulating it: code as (host program with machine code, text of the machine code)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusilli_plugin import emulator
from fusilli_plugin.emulator import Assembled, Machine, assemble
from graph_api import Graph, TensorAttr
from iree_bridge import Target

__all__ = ["compile_graph", "emulate"]

Array = np.ndarray[Any, Any]
Code = tuple[bytes, str]


def compile_graph(graph: Graph, folder: Path | None = None, target: str = "gfx942") -> Code:
    """The graph's code, compiled as the bridge does."""
    code = assemble(graph, Target.parse(target))
    return code.vmfb, code.assembly


def emulate(
    graph: Graph, pack: Mapping[TensorAttr, Array], compiled: Code, machine: Machine
) -> dict[TensorAttr, Array]:
    """The graph's results; elements that no kernel writes stay 77."""
    return emulator.emulate(graph, pack, Assembled(*compiled), machine)
