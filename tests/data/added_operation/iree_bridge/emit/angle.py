"""Emission of angles."""

from __future__ import annotations

import math

from graph_api.ops.angle import ToRadiansNode
from iree_bridge.emit.emitter import Emitter, rule
from iree_bridge.emit.pointwise import Elementwise


@rule("to_radians")
def to_radians(e: Emitter, node: ToRadiansNode) -> None:
    """A product with a constant."""
    x = e.read(node.inputs["x"], node.compute)
    e.write(node, "y", Elementwise(e, node.compute).scale(x, math.pi / 180))
