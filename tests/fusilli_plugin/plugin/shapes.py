"""Graphs that the plugin's tests build, as a host would: by operation, shape and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusilli_plugin.engine.importers import export_graph
from graph_api import DataType, Graph, PointwiseMode, ReductionMode, TensorAttr
from hipdnn_backend.wire import encode_graph

__all__ = [
    "attention",
    "conv",
    "matmul",
    "nhwc",
    "pointwise",
    "reduction",
    "wire_bytes",
]

Dims = tuple[int, ...]
M = PointwiseMode


def wire_bytes(graph: Graph, **options: Any) -> bytes:
    """The graph as hipDNN hands it over."""
    return encode_graph(export_graph(graph.validate(), **options))


def nhwc(dims: Sequence[int]) -> Dims:
    """Strides of [N, C, spatial...] with the channels last in memory."""
    order = (0, *range(2, len(dims)), 1)
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis], step = step, step * dims[axis]
    return tuple(strides)


def conv(
    x: Dims,
    w: Dims,
    *,
    layout: str = "nchw",
    direction: str = "fprop",
    bias: bool = False,
    relu: bool = False,
    dtype: DataType = DataType.FLOAT,
    **attributes: Any,
) -> Graph:
    """One convolution in any direction, with what providers attach to it.

    The dims are those of the forward convolution's x and w; those of y follow.
    """
    g = Graph(f"conv_{direction}", io_data_type=dtype)
    lay = nhwc if layout == "nhwc" else lambda dims: None
    forward = Graph("shape", io_data_type=dtype)
    y_like = forward.conv_fprop(forward.tensor(dim=x), forward.tensor(dim=w), **attributes).set_output(True)
    forward.validate()
    y_dims = y_like.dims
    given = {"x": x, "w": w, "dy": y_dims}
    first, second, result = {
        "fprop": ("x", "w", y_dims),
        "dgrad": ("dy", "w", x),
        "wgrad": ("dy", "x", w),
    }[direction]
    a, b = (g.tensor(name, dim=given[name], stride=lay(given[name])) for name in (first, second))
    y: TensorAttr = getattr(g, f"conv_{direction}")(a, b, **attributes)
    y.set_dim(result)
    if bias:
        y = g.pointwise(M.ADD, y, g.tensor("bias", dim=(1, w[0], *[1] * (len(x) - 2))))
    if relu:
        y = g.pointwise(M.RELU_FWD, y)
    y.set_output(True).set_dim(result).set_stride(lay(result) or _packed(result))
    return g.validate()


def matmul(
    a: Dims,
    b: Dims,
    *,
    transposed: bool = False,
    bias: Dims | None = None,
    dtype: DataType = DataType.FLOAT,
    activation: PointwiseMode | None = None,
) -> Graph:
    """c = a b, the second operand transposed in memory or not, and what follows it."""
    g = Graph("matmul", io_data_type=dtype)
    stride = (*[b[-1] * b[-2]] * (len(b) - 2), 1, b[-2]) if transposed else None
    c = g.matmul(g.tensor("a", dim=a), g.tensor("b", dim=b, stride=stride))
    if bias is not None:
        c = g.pointwise(M.ADD, c, g.tensor("bias", dim=bias))
    if activation is not None:
        c = g.pointwise(activation, c)
    c.set_output(True)
    return g.validate()


def pointwise(modes: Sequence[PointwiseMode], inputs: int, dims: Dims = (4, 8)) -> Graph:
    """Several modes on the same inputs, each with its own output."""
    g = Graph("pointwise", io_data_type=DataType.FLOAT)
    given = [g.tensor(f"in_{index}", dim=dims) for index in range(inputs)]
    for mode in modes:
        options: dict[str, Any] = {"axis": 1} if mode is M.GEN_INDEX else {}
        g.pointwise(mode, *given, **options).set_output(True).set_name(mode.name.lower())
    return g.validate()


def reduction(modes: Sequence[ReductionMode], dims: Dims = (4, 8), out: Dims = (1, 8)) -> Graph:
    """Several reductions of the same tensor, each with its own output."""
    g = Graph("reduction", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=dims)
    for mode in modes:
        g.reduction(x, mode=mode).set_output(True).set_name(mode.name.lower()).set_dim(out)
    return g.validate()


def attention(
    q: Dims, k: Dims, v: Dims, *, mask: bool = False, dtype: DataType = DataType.FLOAT, **options: Any
) -> Graph:
    """Attention with a mask that is added, or none."""
    g = Graph("attention", io_data_type=dtype)
    bias = g.tensor("mask", dim=(q[0], 1, q[2], k[2])) if mask else None
    tensors = (g.tensor(name, dim=dims) for name, dims in (("q", q), ("k", k), ("v", v)))
    g.sdpa(*tensors, bias=bias, **options).o.set_output(True)
    return g.validate()


def _packed(dims: Sequence[int]) -> Dims:
    strides, step = [], 1
    for size in reversed(dims):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
