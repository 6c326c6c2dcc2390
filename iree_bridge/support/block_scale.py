"""What targets serve of block scaling."""

from __future__ import annotations

from graph_api import DataType
from graph_api.ops.block_scale import BlockScaleDequantizeNode, BlockScaleQuantizeNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["dequantize", "quantize"]

_SCALES = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.FP8_E8M0, DataType.FP8_E4M3)


@support_rule("block_scale_dequantize")
def dequantize(node: BlockScaleDequantizeNode, target: Target) -> None:
    """Every dequantisation of the served data types."""


@support_rule("block_scale_quantize")
def quantize(node: BlockScaleQuantizeNode, target: Target) -> None:
    """To floats of 8 bits and less, with the scales that MX and NVFP4 formats have, and larger floats."""
    y, scale = node.outputs["y"], node.outputs["scale"]
    if not y.data_type.is_small_float or y.data_type is DataType.FP8_E8M0:
        raise Decline(
            "dtype",
            f"y '{y.name}' is {y.data_type.name}; quantised to are the floats of 8, 6 and 4 bits with a mantissa, set "
            "its data type",
        )
    if scale.data_type not in _SCALES:
        known = ", ".join(dtype.name for dtype in _SCALES)
        raise Decline("dtype", f"scale '{scale.name}' is {scale.data_type.name}; served are {known}")
