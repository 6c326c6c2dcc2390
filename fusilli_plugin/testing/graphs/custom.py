"""Custom operations: texts whose meaning in numpy is known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from fusilli_plugin.testing.graphs.draw import ACTIVATIONS, SIZES, Draw, tensor
from graph_api import CustomOpAttributes, DataType, Graph
from graph_api.ops.custom_op import CustomOpNode

__all__ = ["custom", "with_references"]

D = DataType


class _Text(NamedTuple):
    """An operation of one input and one result of its dims."""

    data: str
    reference: Callable[..., Sequence[Any]]


def _softmax(x: Any) -> list[Any]:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return [powers / powers.sum(-1, keepdims=True)]


_TEXTS: Final = {
    "fusilli.testing.twice": _Text(
        """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
  %one = torch.constant.int 1
  %y = torch.aten.add.Tensor %x, %x, %one : {IN0_TYPE}, {IN0_TYPE}, !torch.int -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
""",
        lambda x: [2.0 * x],
    ),
    "fusilli.testing.softmax": _Text(
        """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
  %last = torch.constant.int -1
  %none = torch.constant.none
  %y = torch.aten.softmax.int %x, %last, %none : {IN0_TYPE}, !torch.int, !torch.none -> {OUT0_TYPE}
  return %y : {OUT0_TYPE}
}
""",
        _softmax,
    ),
}


def custom(d: Draw) -> Graph:
    """A custom operation, alone or between elementwise ones."""
    g = Graph("g", io_data_type=d.pick((D.FLOAT, D.HALF)), compute_data_type=D.FLOAT)
    dims = tuple(d.pick(SIZES[:16]) for _ in range(d.number(1, 3)))
    x = tensor(d, g, "x", dims, layouts=("packed", "any") if len(dims) > 1 else ("packed",))
    if d.chance(0.4):
        x = g.pointwise(d.pick(ACTIVATIONS), x)
    name = d.pick(tuple(_TEXTS))
    text = _TEXTS[name]
    attributes = CustomOpAttributes(custom_op_id=name, data=text.data, reference=text.reference)
    (y,) = g.custom_op([x], 1, attributes)
    y.set_dim(dims)
    if d.chance(0.4):
        y = g.pointwise(d.pick(ACTIVATIONS), y)
    y.set_output(True)
    return g


def with_references(graph: Graph) -> Graph:
    """The graph, whose operations of this file have their meaning again: JSON does not hold it."""
    for node in graph.nodes:
        if isinstance(node, CustomOpNode) and (known := _TEXTS.get(node.attributes.custom_op_id)):
            node.attributes = replace(node.attributes, reference=known.reference)
    return graph
