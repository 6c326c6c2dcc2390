"""The graphs that are measured."""

from __future__ import annotations

from graph_api import DataType, Graph, PointwiseMode

__all__ = ["add_graph", "conv_graph", "small_graph"]


def conv_graph() -> Graph:
    """Convolution, bias and ReLU as in a residual network, f16, channels last."""
    g = Graph("bench_conv", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(8, 64, 56, 56), layout="NHWC")
    w = g.tensor("w", dim=(64, 64, 3, 3), layout="NHWC")
    b = g.tensor("b", dim=(1, 64, 1, 1), layout="NHWC")
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=1), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g.validate()


def add_graph() -> Graph:
    """The sum of two tensors of 16 floats, not validated yet."""
    g = Graph("bench_add", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(16,)), g.tensor("b", dim=(16,))
    g.pointwise(PointwiseMode.ADD, a, b).set_output(True).set_name("y")
    return g


def small_graph(number: int) -> Graph:
    """Convolution, bias and ReLU: three nodes, with other dims for each number."""
    g = Graph(f"bench_small_{number}", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(1, 4, 8, 8 + number))
    y = g.conv_fprop(x, g.tensor("w", dim=(4, 4, 3, 3)), padding=1)
    y = g.pointwise(PointwiseMode.ADD, y, g.tensor("b", dim=(1, 4, 1, 1)))
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g.validate()
