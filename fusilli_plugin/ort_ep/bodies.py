"""The bodies of Ifs, as the model has them.

ONNX Runtime shows a body before the node that it belongs to, and by the time that it shows that node, compiled nodes
may stand in the body already. So bodies are noted when they are shown: a node whose condition turns out to follow from
extents is then claimed with them, and what was claimed inside of it is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx
from onnx import helper

from fusilli_plugin.ort_ep.graphs import Node, SessionGraph, node_proto, tensor_proto

__all__ = ["CONDITIONAL", "Bodies"]

CONDITIONAL: Final = "If"
_Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of what a node gives and of what a body of it gives."""


class Bodies:
    """The bodies that a session was shown, until its models are compiled."""

    def __init__(self) -> None:
        self._found: dict[_Key, onnx.GraphProto | None] = {}
        self._reports: dict[_Key, list[int]] = {}

    def note(self, graph: SessionGraph, reports: range) -> None:
        """Remember the graph if it is a body of an If.

        Args:
            graph: as ONNX Runtime shows it, before anything in it is claimed.
            reports: numbers of the reports of its nodes.

        Raises:
            OrtError: ONNX Runtime cannot tell a constant or an attribute.
        """
        if graph.parent != CONDITIONAL or not all(graph.values[name].dtype for name in graph.outputs):
            return
        key = graph.parent_outputs, graph.outputs
        # two of the same names, in bodies of others, cannot be told apart
        self._found[key] = None if key in self._found else self._proto(graph)
        self._reports[key] = [*reports, *(number for node in graph.nodes for number in self.reports(node))]

    def _proto(self, graph: SessionGraph) -> onnx.GraphProto | None:
        if any(node.has_subgraphs and node.index not in graph.bodies for node in graph.nodes):
            return None
        nodes = [node_proto(graph, node) for node in graph.nodes]
        for node in nodes:  # the names of the graph around it are of the same kind
            node.name = "/".join((*graph.parent_outputs, *graph.outputs, node.name))
        read = [name for node in graph.nodes for name in (*node.inputs, *node.hidden)]
        constants = dict.fromkeys(name for name in (*read, *graph.outputs) if name in graph.constants)
        outputs = [graph.values[name] for name in graph.outputs]
        return helper.make_graph(
            nodes,
            graph.name or "body",
            [],
            [helper.make_tensor_value_info(each.name, each.dtype, each.dims) for each in outputs],
            [tensor_proto(graph.api, name, graph.constants[name]) for name in constants],
        )

    def attach(self, graph: SessionGraph) -> None:
        """Give a graph the bodies of its Ifs, as far as they are known."""
        for node in graph.nodes:
            if node.op_type != CONDITIONAL or node.domain or not node.bodies:
                continue
            found = {name: self._found.get((node.outputs, outputs)) for name, outputs in node.bodies}
            protos = {name: proto for name, proto in found.items() if proto is not None}
            if len(protos) == len(found):
                graph.bodies[node.index] = protos

    def reports(self, node: Node) -> Sequence[int]:
        """Numbers of the reports of the nodes in a node's bodies."""
        return [number for _, outputs in node.bodies for number in self._reports.get((node.outputs, outputs), ())]

    def clear(self) -> None:
        """Forget all: they hold weights."""
        self._found.clear()
        self._reports.clear()
