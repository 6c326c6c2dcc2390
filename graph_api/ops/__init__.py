"""The operation families: one file each. A new family is added to ``AllBuilders``."""

from __future__ import annotations

from graph_api.ops.conv import ConvBuilder
from graph_api.ops.matmul import MatmulBuilder
from graph_api.ops.pointwise import PointwiseBuilder

__all__ = ["AllBuilders"]


class AllBuilders(ConvBuilder, MatmulBuilder, PointwiseBuilder):
    """The builder methods of all families."""
