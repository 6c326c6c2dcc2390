"""Elementwise operations, and values with several uses."""

from __future__ import annotations

import math

from fusilli_plugin.testing.graphs.draw import ACTIVATIONS, FP8, SIZES, TYPES, Draw, new_graph, tensor
from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode

D, M = DataType, PointwiseMode

__all__ = ["pointwise", "shared"]


def pointwise(d: Draw) -> Graph | None:
    """One to four elementwise operations in a row."""
    io = d.pick((*TYPES, D.DOUBLE))
    g = new_graph(io)
    dims = tuple(d.pick(SIZES[:16]) for _ in range(d.number(1, 4)))
    if math.prod(dims) > 30_000:
        return None
    y = tensor(d, g, "x", dims, layouts=("packed", "transposed") if len(dims) > 1 else ("packed",))
    for _ in range(d.number(1, 4)):
        if d.chance(0.5):
            other = g.tensor(f"t{len(g.nodes)}", dim=tuple(dim if d.chance(0.7) else 1 for dim in dims))
            y = g.pointwise(d.pick((M.ADD, M.SUB, M.MUL, M.MAX, M.MIN)), y, other)
        else:
            y = g.pointwise(d.pick(ACTIVATIONS), y)
    y.set_output(True)
    return g


def shared(d: Draw) -> Graph:
    """A value that is a result, is summed up, normalised, or converted: several of them at once."""
    g = Graph("g", io_data_type=d.pick(TYPES), compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    rows, width = d.pick(SIZES), d.pick((3, 7, 16, 33, 64, 100, 128, 257, 512, 1024))
    x, other = (tensor(d, g, name, (rows, width), layouts=("packed", "packed", "any")) for name in ("x", "other"))
    y = g.pointwise(d.pick((M.ADD, M.MUL, M.GELU_BWD, M.RELU_BWD)), x, other)
    y = g.pointwise(d.pick(ACTIVATIONS), y) if d.chance(0.3) else y
    y.set_output(d.chance(0.6))
    uses = [use for use in ("norm", "sums", "most", "small", "plain") if d.chance(0.5)] or ["sums"]
    if "norm" in uses:
        scale = g.tensor("scale", dim=(1, width))
        norm = g.rmsnorm(y, scale, epsilon=1e-3, forward_phase=NormFwdPhase.INFERENCE)[0]
        norm.set_output(True)
    for use, mode in (("sums", ReductionMode.ADD), ("most", ReductionMode.AMAX)):
        if use in uses:
            made = g.reduction(y, mode=mode).set_dim(d.pick(((rows, 1), (1, width), (1, 1))))
            made.set_output(True).set_data_type(D.FLOAT)
    if "small" in uses:
        g.pointwise(M.MUL, y, 0.5).set_output(True).set_data_type(d.pick(FP8))
    if "plain" in uses:
        g.pointwise(d.pick(ACTIVATIONS), y).set_output(True)
    return g
