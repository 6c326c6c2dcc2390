"""What targets serve of pooling."""

from __future__ import annotations

import math

from graph_api import DataType, PaddingMode
from graph_api.ops.resample import ResampleFwdNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["resample_fwd"]


@support_rule("resample_fwd")
def resample_fwd(node: ResampleFwdNode, target: Target) -> None:
    """1-D to 3-D; any dtype; of BOOLEAN the maximum alone."""
    a, x = node.attributes, node.inputs["x"]
    if len(a.window) > 3:
        raise Decline("rank", f"there are {len(a.window)} spatial dims; pooling is served with 1 to 3")
    if x.data_type is DataType.BOOLEAN and not a.is_max:
        raise Decline("dtype", "x is BOOLEAN, of which there is no average; cast it to a number with an IDENTITY")
    ignored = a.is_max and a.padding_mode is PaddingMode.NEG_INF_PAD
    if ignored and not (node.compute.is_float and node.outputs["y"].data_type.is_float) and _has_empty_window(node):
        raise Decline(
            "padding",
            f"with pre_padding {a.pre_padding}, post_padding {a.post_padding} a window {a.window} meets nothing but "
            "padding, whose maximum, minus infinity, no integer holds; use less padding, or ZERO_PAD",
        )
    padded = [size + pre + post for size, pre, post in zip(x.dims[2:], a.pre_padding, a.post_padding, strict=True)]
    if a.generate_index and math.prod(padded) >= 2**31 - 1:
        raise Decline("index", f"padded x {tuple(padded)} has more positions than an INT32 index can name")


def _has_empty_window(node: ResampleFwdNode) -> bool:
    a, x, y = node.attributes, node.inputs["x"], node.outputs["y"]
    return any(
        a.pre_padding[i] >= a.window[i] or (y.dims[i + 2] - 1) * a.stride[i] - a.pre_padding[i] >= x.dims[i + 2]
        for i in range(len(a.window))
    )
