"""What targets serve of the mixture of experts."""

from __future__ import annotations

import math

from graph_api import TensorAttr
from graph_api.ops.moe import MoeGroupedMatmulBwdNode, MoeGroupedMatmulNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.routed import MOST_ROWS, MOST_ROWS_BACKWARD, Blocks
from iree_bridge.targets.target import Target

__all__ = ["moe_grouped_matmul", "moe_grouped_matmul_bwd"]

_MOST_ELEMENTS = 2**31
"""Of an intermediate tensor."""


@support_rule("moe_grouped_matmul")
def moe_grouped_matmul(node: MoeGroupedMatmulNode, target: Target) -> None:
    """Of floating-point numbers, as long as a copy of the expert's matrix for each block of rows can be indexed."""
    _check(node.inputs["token"], node.inputs["weight"], node.outputs["output"])
    k, n = node.inputs["weight"].dims[1:]
    _check_size(Blocks.of(node.rows, node.inputs["first_token_offset"].dims[0], most=MOST_ROWS), k, n)
    if max(node.rows, node.inputs["token"].dims[1]) * max(node.attributes.top_k, 1) >= 2**31:
        raise Decline(
            "size", f"{node.rows} rows with top_k {node.attributes.top_k} have more places than INT32 can name"
        )


@support_rule("moe_grouped_matmul_bwd")
def moe_grouped_matmul_bwd(node: MoeGroupedMatmulBwdNode, target: Target) -> None:
    """Of floating-point numbers, as long as a partial sum for each block of rows can be indexed."""
    _check(node.inputs["doutput"], node.inputs["token"], node.outputs["dweight"])
    rows, k = node.inputs["token"].dims[1:]
    groups, n = node.inputs["first_token_offset"].dims[0], node.inputs["doutput"].dims[2]
    _check_size(Blocks.of(rows, groups, most=MOST_ROWS_BACKWARD), k, n)


def _check(*tensors: TensorAttr) -> None:
    for tensor in tensors:
        if not tensor.data_type.is_float:
            raise Decline("dtype", f"'{tensor.name}' is {tensor.data_type.name}; make rows and weights floating point")


def _check_size(blocks: Blocks, k: int, n: int) -> None:
    for dims in ((blocks.count, k, n), (blocks.count, blocks.rows, max(k, n))):
        if math.prod(dims) >= _MOST_ELEMENTS:
            raise Decline(
                "size",
                f"rows are multiplied in {blocks.count} blocks of {blocks.rows}, which needs an intermediate tensor of "
                f"dims {dims}, more than {_MOST_ELEMENTS} elements; route fewer rows or groups at a time",
            )
