"""The operations: a file per family. `python -m tests.support.family_lists` writes this one: do not edit it."""

from __future__ import annotations

from graph_api.ops.attention import AttentionAttributes, DiagonalAlignment
from graph_api.ops.batchnorm import InvVarianceReading
from graph_api.ops.block_scale import BlockScaleBuilder, BlockScaleDequantizeAttributes, BlockScaleQuantizeAttributes
from graph_api.ops.conv import ConvAttributes, ConvBuilder, ConvolutionMode
from graph_api.ops.custom_op import CustomOpAttributes, CustomOpBuilder
from graph_api.ops.matmul import MatmulAttributes, MatmulBuilder
from graph_api.ops.moe import MoeBuilder, MoeGroupedMatmulAttributes, MoeGroupedMatmulMode
from graph_api.ops.norm import LayernormAttributes, NormBuilder, NormFwdPhase, RmsnormAttributes
from graph_api.ops.norm_backward import LayernormBackwardAttributes, NormBackwardBuilder
from graph_api.ops.pointwise import PointwiseAttributes, PointwiseBuilder, PointwiseMode
from graph_api.ops.reduction import ReductionAttributes, ReductionBuilder, ReductionMode
from graph_api.ops.resample import PaddingMode, ResampleAttributes, ResampleBuilder, ResampleMode
from graph_api.ops.resample_backward import ResampleBackwardBuilder
from graph_api.ops.sdpa import AttentionImplementation, SdpaAttributes, SdpaBuilder
from graph_api.ops.sdpa_backward import SdpaBackwardAttributes, SdpaBackwardBuilder

__all__ = [
    "AttentionAttributes",
    "AttentionImplementation",
    "BlockScaleDequantizeAttributes",
    "BlockScaleQuantizeAttributes",
    "ConvAttributes",
    "ConvolutionMode",
    "CustomOpAttributes",
    "DiagonalAlignment",
    "InvVarianceReading",
    "LayernormAttributes",
    "LayernormBackwardAttributes",
    "MatmulAttributes",
    "MoeGroupedMatmulAttributes",
    "MoeGroupedMatmulMode",
    "NormFwdPhase",
    "PaddingMode",
    "PointwiseAttributes",
    "PointwiseMode",
    "ReductionAttributes",
    "ReductionMode",
    "ResampleAttributes",
    "ResampleMode",
    "RmsnormAttributes",
    "SdpaAttributes",
    "SdpaBackwardAttributes",
]


class AllBuilders(
    BlockScaleBuilder,
    ConvBuilder,
    CustomOpBuilder,
    MatmulBuilder,
    MoeBuilder,
    NormBackwardBuilder,
    NormBuilder,
    PointwiseBuilder,
    ReductionBuilder,
    ResampleBackwardBuilder,
    ResampleBuilder,
    SdpaBackwardBuilder,
    SdpaBuilder,
):
    """The builder methods of all families."""
