"""A graph small enough to compile in a second, run on a device and compared with the float64 reference."""

from __future__ import annotations

import time

from graph_api import DataType, ExecutionError, Graph, PointwiseMode, numerics
from iree_bridge import build

__all__ = ["graph", "run"]


def graph() -> Graph:
    """A 1x1 convolution with bias and ReLU, 4 channels, 4 x 4 pixels, f32."""
    g = Graph("self_test", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(1, 4, 4, 4))
    w = g.tensor("w", dim=(4, 4, 1, 1))
    b = g.tensor("b", dim=(1, 4, 1, 1))
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True).set_name("y")
    return g.validate()


def run(device: str) -> str:
    """Compiles and runs the graph on a device.

    Returns:
        What was seen, for people.

    Raises:
        FusilliError: it does not compile or run.
        ExecutionError: it runs, and the result is wrong.
    """
    g = graph()
    inputs = g.random_inputs(seed=0)
    outputs = {tensor: tensor.empty() for tensor in g.arguments().outputs}
    start = time.perf_counter()
    build(g, device=device).run({**inputs, **outputs})
    seconds = time.perf_counter() - start
    for comparison in numerics.check(g, {**inputs}, {**outputs}):
        if not comparison.ok:
            raise ExecutionError(f"device {device} computes wrong results: {comparison}")
    return f"conv+bias+ReLU right, {seconds:.2f} s"
