"""A fused graph taken apart: one graph per node, to run what was fused step by step."""

from __future__ import annotations

from graph_api.graph import Graph
from graph_api.tensor import TensorAttr

__all__ = ["node_graphs"]


def node_graphs(graph: Graph) -> list[Graph]:
    """One validated graph per node of ``graph``, in order; tensors keep their names, dims, strides and data types.

    What was virtual becomes an output of the node that makes it and an input of those that use it, so each step rounds
    to the tensor's data type.
    """
    return [_alone(graph, index) for index in range(len(graph.validate().nodes))]


def _alone(graph: Graph, index: int) -> Graph:
    """A graph of one node: what was virtual between nodes is a buffer here, with the same type, dims and strides."""
    node = graph.nodes[index]
    alone = Graph(node.name)
    copies: dict[TensorAttr, TensorAttr] = {}
    for tensor in dict.fromkeys((*node.inputs.values(), *node.outputs.values())):
        copy = TensorAttr(
            name=tensor.name,
            dims=tensor.dims,
            strides=tensor.strides,
            data_type=tensor.data_type,
            value=tensor.value,
            is_pass_by_value=tensor.is_pass_by_value,
        )
        copies[tensor] = alone.own(copy)
    alone.add_node(
        type(node),
        {port: copies[tensor] for port, tensor in node.inputs.items()},
        name=node.name,
        attributes=node.attributes,
        outputs={port: copies[tensor] for port, tensor in node.outputs.items()},
        compute_data_type=node.compute,
    )
    return alone.validate()
