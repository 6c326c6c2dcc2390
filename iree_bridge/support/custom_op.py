"""What targets serve of custom operations."""

from __future__ import annotations

from graph_api.ops.custom_op import CustomOpNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import TORCH_CODE

__all__ = ["PREFIX", "custom_op"]

PREFIX = "fusilli."


@support_rule("custom_op")
def custom_op(node: CustomOpNode, target: Target) -> None:
    """Those of the compiler's own convention, whose text passes the check.

    The one case in which a compile may fail after a yes: whether the operations fit together only the compiler knows.
    """
    identity = node.attributes.custom_op_id
    if not identity.startswith(PREFIX):
        shown = repr(identity)[:80]
        raise Decline("custom_op_id", f"custom_op_id {shown} belongs to another engine; ours begin with {PREFIX!r}")
    for tensor in (*node.inputs.values(), *node.outputs.values()):
        if tensor.data_type not in TORCH_CODE:
            raise Decline("dtype", f"tensor '{tensor.name}': the torch dialect has no type {tensor.data_type.name}")
    from iree_bridge.emit.custom.template import CustomTextError, checked_text  # a tokenizer, for few graphs

    try:
        checked_text(node, "custom")
    except CustomTextError as error:
        raise Decline(error.rule, f"custom operation {identity[:80]!r}: {error}") from error
