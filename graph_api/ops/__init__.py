"""The operation families: one file each. A new family is added to ``AllBuilders``."""

from __future__ import annotations

from graph_api.ops.conv import ConvBuilder
from graph_api.ops.matmul import MatmulBuilder
from graph_api.ops.pointwise import PointwiseBuilder
from graph_api.ops.sdpa import SdpaBuilder

__all__ = ["AllBuilders"]


class AllBuilders(ConvBuilder, MatmulBuilder, PointwiseBuilder, SdpaBuilder):
    """The builder methods of all families."""
