"""Angles."""

from __future__ import annotations

import math

from graph_api.bounded import bounded_input
from graph_api.builder import GraphBuilder
from graph_api.node import Array, Arrays, Node, register_op
from graph_api.tensor import TensorAttr

__all__ = ["AngleBuilder", "ToRadiansNode"]


@register_op
class ToRadiansNode(Node):
    """y = x * pi / 180.

    Shapes:  x any -> y like x
    Dtypes:  any; computes in the compute type
    Layout:  any strides; y takes the stride order of x unless it is set
    Raises:  GraphError if y was given other dims
    Source:  torch.deg2rad
    """

    op = "to_radians"
    input_ports = ("x",)
    output_ports = ("y",)

    def validate(self) -> None:
        """Every input will do."""

    def infer(self) -> None:
        self.infer_output("y", self.inputs["x"].dims, self.inputs["x"])

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"y": inputs["x"] * (math.pi / 180)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x = bounded_input(self, "x", inputs["x"], errors["x"])
        return {"y": x.error * (math.pi / 180) + self.gamma(2) * abs(outputs["y"])}


class AngleBuilder(GraphBuilder):
    """Builder method of angles."""

    def to_radians(self, x: TensorAttr, *, name: str | None = None) -> TensorAttr:
        """Adds a conversion from degrees; see :class:`ToRadiansNode`."""
        return self.add_node(ToRadiansNode, {"x": x}, name=name).outputs["y"]
