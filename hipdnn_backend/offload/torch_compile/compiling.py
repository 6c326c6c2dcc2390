"""A traced graph compiled: its groups become programs, the rest stays PyTorch's, in a graph that calls both."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._dynamo.convert_frame import compile_lock

from hipdnn_backend.engine import Engine
from hipdnn_backend.errors import BackendError
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.passes.graph_to_executable import NotCompiledError
from hipdnn_backend.offload.session import OffloadOptions
from hipdnn_backend.offload.torch_compile.claims import Claims, Eager, Kind
from hipdnn_backend.offload.torch_compile.options import CompileOptions
from hipdnn_backend.offload.torch_compile.partition import Group, Partition, partition
from hipdnn_backend.offload.torch_compile.programs import GroupGraph, GroupProgram, compile_group
from hipdnn_backend.offload.torch_compile.report import GraphReport, NotCompiledByEnginesError, report_of

__all__ = ["Compiled", "compile_graph"]

Node = torch.fx.Node
_NUMBERS: Final = itertools.count()
_LOADS: Final = 4
"""Groups that go through the passes at one time; the compilers have workers of their own."""


@dataclass(frozen=True)
class Compiled:
    """A traced graph that is ready to run.

    Attributes:
        call: takes what the graph takes.
        report: what runs where.
    """

    call: Callable[..., Any]
    report: GraphReport


def compile_graph(
    module: torch.fx.GraphModule, kind: str, engines: Sequence[Engine], options: CompileOptions
) -> Compiled:
    """Compile a graph of AOTAutograd's.

    What no engine compiles is found while compiling; the rest is cut and compiled again without it. Engines still have
    what they compiled before.

    Args:
        module: of operators that write to nothing.
        kind: ``forward``, ``backward`` or ``inference``.
        engines: of the graph's device, in the order in which they are asked.
        options: of the user.

    Raises:
        NotCompiledByEnginesError: in strict mode, operations run in PyTorch.
    """
    start = time.perf_counter()
    name = f"{kind}{next(_NUMBERS)}"
    refused: dict[str, Eager] = {}
    while True:
        with compile_lock:  # fake tensors are made, which one thread at a time may do
            cut = partition(module.graph, refused, options.min_nodes)
            graphs = [GroupGraph(group, cut.claims) for group in cut.groups]
        programs = _compile_all(cut, graphs, name, engines, OffloadOptions(layout=options.layout))
        failed = {node: why for made in programs if isinstance(made, dict) for node, why in made.items()}
        if not failed:
            break
        for made in programs:
            if isinstance(made, GroupProgram):
                made.model.close()
        refused.update(failed)
    ready = [made for made in programs if isinstance(made, GroupProgram)]
    report = report_of(name, kind, cut, [made.model.about for made in ready], time.perf_counter() - start)
    if options.strict and report.unexpected:
        raise NotCompiledByEnginesError(report)
    return Compiled(_outer(module, cut, ready).forward, report)


def _compile_all(
    cut: Partition, graphs: Sequence[GroupGraph], name: str, engines: Sequence[Engine], options: OffloadOptions
) -> list[GroupProgram | dict[str, Eager]]:
    """The program of each group, or the nodes that are to blame."""

    def compiled(group: Group, graph: GroupGraph) -> GroupProgram | dict[str, Eager]:
        assert cut.claims.device is not None
        try:
            return compile_group(graph, cut.claims.device, f"{name}_{group.number}", engines=engines, options=options)
        except (OffloadError, BackendError) as error:
            return _blamed(group, error)

    with ThreadPoolExecutor(_LOADS, "fusilli-torch") as pool:
        return list(pool.map(compiled, cut.groups, graphs))


def _blamed(group: Group, error: Exception) -> dict[str, Eager]:
    """The nodes that an error is about; all of the group if it names none."""
    names = {node.name for node in group.nodes}
    cause = error.__cause__
    if isinstance(cause, NotCompiledError):
        found = {
            node: Eager(
                "compile", "; ".join(f"{who or 'translation'}: {said.reason}" for who, said in each.declined.items())
            )
            for each in cause.failures
            for node in each.nodes
            if node in names
        }
        if found:
            return found
    node = getattr(error, "node", "")
    why = Eager("compile", str(error).partition("\n")[0])
    return {node: why} if node in names else dict.fromkeys(names, why)


def _outer(module: torch.fx.GraphModule, cut: Partition, programs: Sequence[GroupProgram]) -> torch.fx.GraphModule:
    """The graph that calls the programs, and PyTorch for what is between them."""
    graph = torch.fx.Graph()
    made: dict[Node, Any] = {}
    claims = cut.claims

    def value(node: Node) -> Any:
        if node not in made:  # a view or a tensor made of numbers
            made[node] = graph.node_copy(node, value)
        return made[node]

    for node in module.graph.nodes:
        if node.op == "placeholder":
            made[node] = graph.node_copy(node)
    by_number = {group.number: (group, program) for group, program in zip(cut.groups, programs, strict=True)}
    for number in sorted({*cut.stages, *by_number}):
        for node in cut.stages.get(number, ()):
            for source in node.all_input_nodes:
                _materialise(source, claims, made, value)
            made[node] = graph.node_copy(node, value)
        if number in by_number:
            _call(graph, *by_number[number], made, value)
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    for source in output.all_input_nodes:
        _materialise(source, claims, made, value)
    graph.node_copy(output, value)
    return torch.fx.GraphModule(module, graph)


def _materialise(node: Node, claims: Claims, made: dict[Node, Any], value: Callable[[Node], Any]) -> None:
    """Makes the views that lead to a node, the innermost first; programs give some themselves."""
    if claims.kind(node) is Kind.FREE and node not in made:
        for source in node.all_input_nodes:
            _materialise(source, claims, made, value)
        value(node)


def _call(
    graph: torch.fx.Graph, group: Group, program: GroupProgram, made: dict[Node, Any], value: Callable[[Node], Any]
) -> None:
    arguments = tuple(value(node) for node in program.read)
    results = graph.call_function(program.call, arguments)
    for number, node in enumerate(program.written):
        made[node] = graph.call_function(operator.getitem, (results, number))
    for node in group.outputs:
        if node not in program.written and group.shown.get(node) not in program.written:
            like = node.meta["val"]
            settings = {"dtype": like.dtype, "device": like.device}
            made[node] = graph.call_function(torch.empty_strided, (tuple(like.shape), like.stride()), settings)
