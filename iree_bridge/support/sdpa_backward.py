"""What targets serve of attention's gradients."""

from __future__ import annotations

import math
from typing import Final

from graph_api.ops.sdpa_backward import SdpaBackwardNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.support.sdpa import NO_RANDOM_NUMBERS, UNSETTLED_ALIBI
from iree_bridge.targets.target import Target

__all__ = ["sdpa_backward"]

_LARGEST: Final = 1 << 31
"""Bytes of one matrix of weights: what an offset of a buffer instruction reaches."""


@support_rule("sdpa_backward")
def sdpa_backward(node: SdpaBackwardNode, target: Target) -> None:
    """Every option whose result is settled, while the weights of all queries and keys fit."""
    _decline_small_floats(node)
    option = node.unsettled()
    if option is not None:
        raise Decline(option, {"alibi_mask": UNSETTLED_ALIBI}.get(option, NO_RANDOM_NUMBERS))
    size = max(node.inputs[port].data_type.bits for port in ("q", "k", "v", "do")) // 8
    size = min(size, node.compute.bits // 8)
    needed = size * math.prod(node.score_dims)
    if needed > _LARGEST:
        batch, heads, queries, keys = node.score_dims
        raise Decline(
            "workspace",
            f"the weights of {batch} x {heads} heads, {queries} queries and {keys} keys are kept in memory, twice "
            f"{needed} bytes; served are twice {_LARGEST}. Give fewer sequences or heads at a time: their gradients "
            "are independent but for the sums over the heads of a group",
        )


def _decline_small_floats(node: SdpaBackwardNode) -> None:
    """Of no operand or result: five products of what is rounded to 8 bits in between have no settled meaning here."""
    for port, tensor in (node.inputs | node.outputs).items():
        if tensor.data_type.is_small_float:
            raise Decline(
                "dtype",
                f"{port} '{tensor.name}' is {tensor.data_type.name}; gradients of attention are served of larger "
                "floats, convert it with a pointwise IDENTITY",
            )
