"""The operation families: one file each. A new family is added to ``AllBuilders``."""

from __future__ import annotations

from graph_api.ops.conv import ConvBuilder
from graph_api.ops.custom_op import CustomOpBuilder
from graph_api.ops.matmul import MatmulBuilder
from graph_api.ops.norm import NormBuilder
from graph_api.ops.pointwise import PointwiseBuilder
from graph_api.ops.reduction import ReductionBuilder
from graph_api.ops.resample import ResampleBuilder
from graph_api.ops.sdpa import SdpaBuilder

__all__ = ["AllBuilders"]


class AllBuilders(
    ConvBuilder,
    CustomOpBuilder,
    MatmulBuilder,
    NormBuilder,
    PointwiseBuilder,
    ReductionBuilder,
    ResampleBuilder,
    SdpaBuilder,
):
    """The builder methods of all families."""
