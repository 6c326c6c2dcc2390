"""Which forms were executed in the emulator of AMD's code and were right, by class of graph.

No card of AMD's has run any of this. A form may take the place of a graph's default by figures of its code alone only
if it stands here: ``tests/iree_bridge/static/test_executed.py`` executes each on even and on ragged sizes of its class,
with and without what follows. Whoever adds a form here adds nothing else: that test goes through this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from graph_api import DataType, Graph, Node, TensorAttr
from graph_api.ops.conv import ConvNode
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import is_channels_last, is_usual

__all__ = ["EXECUTED", "GraphClass", "class_of", "was_executed"]


class GraphClass(NamedTuple):
    """Graphs of one product or forward convolution, and pointwise operations on its result.

    Attributes:
        chip: of the target.
        op: ``matmul`` or ``conv_fprop``.
        dtype: of both factors.
        order: of a product: whether a and b lie by rows or columns, ``rr`` to ``cc``; of a convolution ``nchw`` or
            ``nhwc``, images and filters alike.
    """

    chip: str
    op: str
    dtype: DataType
    order: str


def class_of(graph: Graph, target: Target) -> GraphClass | None:
    """The class of a validated graph; None: it is in none."""
    main = [node for node in graph.nodes if node.op != "pointwise"]
    if len(main) != 1 or graph.nodes[0] is not main[0]:
        return None
    (node,) = main
    first, second, *_ = node.inputs.values()
    order = _order_of_product(node) if node.op == "matmul" else _order_of_images(node)
    if order is None or first.data_type is not second.data_type:
        return None
    return GraphClass(target.chip, node.op, first.data_type, order)


def was_executed(graph: Graph, target: Target, form: str) -> bool:
    """Whether a form was right in the emulator for graphs like this one."""
    found = class_of(graph, target)
    return found is not None and form in EXECUTED.get(found, ())


def _order_of_product(node: Node) -> str | None:
    a, b = node.inputs["a"], node.inputs["b"]
    if a.dims[:-2] != b.dims[:-2] or len(a.dims) > 3:
        return None
    orders = [_order_of_matrix(tensor) for tensor in (a, b)]
    return None if None in orders else "".join(filter(None, orders))


def _order_of_matrix(tensor: TensorAttr) -> str | None:
    rows, columns = tensor.dims[-2:]
    batch = tensor.strides[:-2]
    if batch and batch[0] != rows * columns:
        return None
    return {(columns, 1): "r", (1, rows): "c"}.get((tensor.strides[-2], tensor.strides[-1]))


def _order_of_images(node: Node) -> str | None:
    if not isinstance(node, ConvNode) or node.op != "conv_fprop" or node.groups != 1 or len(node.inputs["x"].dims) != 4:
        return None
    x, w = node.inputs["x"], node.inputs["w"]
    if max(node.attributes.dilation) > 1 or not (is_usual(x) and is_usual(w)):
        return None
    last = is_channels_last(x)
    if last != is_channels_last(w) and max(w.dims[2:]) > 1:
        return None
    return "nhwc" if last else "nchw"


_PRODUCTS: Final = ("plain", "no product tiles")
EXECUTED: Final[Mapping[GraphClass, tuple[str, ...]]] = {
    **{
        GraphClass("gfx942", "matmul", dtype, order): _PRODUCTS
        for dtype in (DataType.HALF, DataType.BFLOAT16)
        for order in ("rr", "rc", "cr", "cc")
    },
    **{
        GraphClass("gfx942", "conv_fprop", DataType.HALF, order): ("fused padding", "plain", "no product tiles")
        for order in ("nchw", "nhwc")
    },
}
"""Class → forms that were right."""
