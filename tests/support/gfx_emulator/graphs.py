"""Compiling a graph for gfx942 and emulating it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graph_api import Graph, TensorAttr
from iree_bridge import Options, Target
from iree_bridge.compiler import emit, recipe_for
from tests.support.gfx_emulator.assembly import parse
from tests.support.gfx_emulator.launch import Machine, run_commands

__all__ = ["compile_graph", "emulate"]

Array = np.ndarray[Any, Any]


def compile_graph(graph: Graph, folder: Path) -> tuple[str, str]:
    """The commands around the graph's kernels, as IR, and the kernels' assembly; compiled as the bridge does."""
    target, options = Target.parse("gfx942"), Options.from_env()
    recipe = recipe_for(graph, target, options)
    source, commands = folder / "graph.mlir", folder / "graph.hal.mlir"
    source.write_text(emit(graph, target, options).ir)
    subprocess.run(
        [
            str(Path(sys.executable).with_name("iree-compile")),
            str(source),
            *recipe.flags,
            *recipe.global_flags,
            "--compile-to=hal",
            f"--iree-hal-dump-executable-intermediates-to={folder}",
            "-o",
            str(commands),
        ],
        check=True,
        timeout=200,
    )
    return commands.read_text(), "".join(path.read_text() for path in sorted(folder.glob("*.rocmasm")))


def emulate(
    graph: Graph, pack: Mapping[TensorAttr, Array], compiled: tuple[str, str], machine: Machine
) -> dict[TensorAttr, Array]:
    """The graph's results; elements that no kernel writes stay 77."""
    commands, assembly = compiled
    arguments = graph.arguments()
    results = {tensor: tensor.empty() for tensor in arguments.outputs}
    for array in results.values():
        array[...] = array.dtype.type(77)
    given = {tensor: array.copy(order="K") for tensor, array in pack.items()}
    everything = [*(results[tensor] for tensor in arguments.outputs), *(given[tensor] for tensor in arguments.inputs)]
    run_commands(commands, parse(assembly), [_bytes(array) for array in everything], machine)
    for tensor, array in given.items():
        assert array.tobytes() == pack[tensor].tobytes(), f"input '{tensor.name}' has been written to"
    return results


def _bytes(array: Array) -> Array:
    """The memory of an array, gaps between its elements included."""
    extent = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * extent).from_address(array.ctypes.data))
