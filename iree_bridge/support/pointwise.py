"""What targets serve of pointwise operations."""

from __future__ import annotations

from graph_api import DataType, PointwiseMode
from graph_api.ops.pointwise import PointwiseNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["pointwise"]

_NO_CPU_F64 = {
    PointwiseMode.SIN: "the sine",
    PointwiseMode.TAN: "the tangent",
    PointwiseMode.ERF: "the error function",
    PointwiseMode.GELU_FWD: "the error function",
    PointwiseMode.GELU_BWD: "the error function",
}


@support_rule("pointwise")
def pointwise(node: PointwiseNode, target: Target) -> None:
    """All modes; some functions have no f64 version on the CPU."""
    mode = node.attributes.mode
    if node.compute is DataType.DOUBLE and target.backend == "llvm-cpu" and mode in _NO_CPU_F64:
        raise Decline(
            "dtype",
            f"{mode.name} in DOUBLE needs {_NO_CPU_F64[mode]} of f64, which the CPU target lacks (the link fails); "
            "set the node's compute_data_type to FLOAT",
        )
