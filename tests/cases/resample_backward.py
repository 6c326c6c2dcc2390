"""The gradient of pooling: modes, counts, indices that are right and that are not, ranks, dtypes, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_api import DataType as D
from graph_api import Graph, PointwiseMode
from graph_api import PaddingMode as P
from graph_api import ResampleMode as M
from tests.cases import OpCase, Pack

Dims = tuple[int, ...]
_SHORT = {M.MAXPOOL: "max", M.AVGPOOL_EXCLUDE_PADDING: "avg_exclude", M.AVGPOOL_INCLUDE_PADDING: "avg_include"}


def backward_graph(
    dim: Dims, dims: Dims, mode: M, *, dtype: D = D.FLOAT, out: D | None = None, layout: str | None = None,
    stride_in: Dims | None = None, stride_out: Dims | None = None, index: D = D.INT32, x: bool = False,
    activation: PointwiseMode | None = None, scaled: bool = False, **kw: Any,
) -> Graph:  # fmt: skip
    """A gradient of dims ``dim`` from one of ``dims``; ``x``: the index is computed again from what was pooled."""
    g = Graph("resample_bwd", io_data_type=dtype)
    dy = g.tensor("dy", dim=dims, layout=layout, stride=stride_in)
    if activation is not None:
        dy = g.pointwise(activation, dy, g.tensor("y", dim=dims, layout=layout))
    if mode is M.MAXPOOL:
        kw |= {"x": g.tensor("x", dim=dim, layout=layout)} if x else {
            "index": g.tensor("index", dim=dims, data_type=index, layout=layout)}  # fmt: skip
    dx = g.resample_bwd(dy, mode=mode, **kw).set_dim(dim)
    if scaled:
        dx = g.pointwise(PointwiseMode.MUL, dx, g.tensor("factor", dim=dim, layout=layout))
    dx.set_output(True).set_name("dx")
    if out is not None:
        dx.set_data_type(out)
    if stride_out is not None:
        dx.set_stride(stride_out)
    return g


def _pooled(graph: Graph) -> Pack:
    """An index that pooling of random numbers makes."""
    pack = graph.random_inputs(seed=7)
    node = next(node for node in graph.nodes if node.op == "resample_bwd")
    index = node.inputs.get("index")
    if index is None or index not in pack:
        return pack
    a = node.attributes
    forward = Graph("forward", io_data_type=D.FLOAT)
    x = forward.tensor("x", dim=node.outputs["dx"].dims)
    kw: dict[str, Any] = {field: getattr(a, field) for field in
                          ("mode", "padding_mode", "window", "stride", "pre_padding", "post_padding")}  # fmt: skip
    y, place = forward.resample_fwd(x, generate_index=True, **kw)
    assert place is not None
    y.set_output(True)
    place.set_output(True)
    values = forward.validate().reference(forward.random_inputs(seed=8))
    pack[index][...] = values[place].astype(pack[index].dtype)
    return pack


def _wrong(graph: Graph) -> Pack:
    """Indices outside the window, outside the image, and of padding."""
    pack = _pooled(graph)
    (index,) = (array for tensor, array in pack.items() if tensor.name == "index")
    flat = index.reshape(-1)
    bad = [-1, -2, np.iinfo(index.dtype).min, np.iinfo(index.dtype).max, 0, 1, 2, 5]
    flat[: flat.size // 2] = np.resize(np.array(bad, index.dtype), flat.size // 2)
    return pack


def _case(name: str, dim: Dims, dims: Dims, mode: M, *, fast: bool = False, inputs: Any = _pooled, **kw: Any) -> OpCase:
    return OpCase(f"{name}_{_SHORT[mode]}", lambda: backward_graph(dim, dims, mode, **kw), inputs, {"dx": dim}, fast)


def _modes(name: str, dim: Dims, dims: Dims, *, fast: bool = False, **kw: Any) -> list[OpCase]:
    return [_case(name, dim, dims, mode, fast=fast and mode is not M.AVGPOOL_INCLUDE_PADDING, **kw) for mode in M]


def _geometry() -> list[OpCase]:
    return [
        *_modes("plain", (2, 3, 8, 10), (2, 3, 4, 5), window=2, fast=True),
        *_modes("overlapping", (2, 3, 8, 9), (2, 3, 4, 5), window=3, stride=2, padding=1),
        *_modes("same", (2, 3, 5, 6), (2, 3, 5, 6), window=3, stride=1, padding=1),
        *_modes("asymmetric", (1, 2, 7, 6), (1, 2, 4, 3), window=(2, 3), stride=(2, 3), pre_padding=(0, 2),
                post_padding=(1, 1)),
        *_modes("remainder", (1, 3, 11, 10), (1, 3, 3, 3), window=(3, 2), stride=(4, 3)),
        *_modes("gaps", (1, 2, 9, 12), (1, 2, 3, 3), window=(1, 2), stride=(4, 5)),
        *_modes("window_1", (2, 3, 4, 5), (2, 3, 4, 5), window=1),
        *_modes("global", (2, 5, 7, 6), (2, 5, 1, 1), window=(7, 6)),
        *_modes("empty_windows", (2, 3, 4, 3), (2, 3, 8, 7), window=1, stride=1, padding=2),
        *_modes("one_element", (2, 3, 1, 1), (2, 3, 1, 1), window=3, stride=1, padding=1),
        *_modes("one_element_of_windows", (2, 3, 1, 1), (2, 3, 2, 2), window=2, stride=1, padding=1),
        *_modes("1d", (2, 3, 11), (2, 3, 5), window=3, stride=2),
        *_modes("1d_nwc", (2, 5, 9), (2, 5, 5), window=3, stride=2, padding=1, layout="NWC"),
        *_modes("3d", (2, 3, 4, 5, 6), (2, 3, 3, 3, 6), window=(2, 3, 2), stride=(2, 2, 1), pre_padding=(1, 1, 0),
                post_padding=(1, 1, 1)),
        *_modes("3d_ndhwc", (1, 4, 4, 6, 5), (1, 4, 2, 3, 2), window=2, layout="NDHWC"),
    ]  # fmt: skip


def _others() -> list[OpCase]:
    dim, dims = (2, 4, 9, 8), (2, 4, 5, 4)
    kw: dict[str, Any] = {"window": 3, "stride": 2, "padding": 1}
    typed = [
        _case(f"{dtype.name.lower()}_{layout.lower()}", dim, dims, mode, dtype=dtype, layout=layout,
              index=D.INT8 if layout == "NHWC" else D.INT64, fast=dtype is D.HALF and layout == "NHWC", **kw)
        for dtype in (D.HALF, D.BFLOAT16, D.DOUBLE)
        for layout in ("NCHW", "NHWC")
        for mode in (M.MAXPOOL, M.AVGPOOL_EXCLUDE_PADDING)
    ]  # fmt: skip
    strides: dict[str, dict[str, Dims]] = {
        "nhwc_to_nchw": {"stride_in": (80, 1, 16, 4), "stride_out": (288, 72, 8, 1)},
        "padded": {"stride_in": (160, 40, 8, 2), "stride_out": (640, 160, 16, 2)},
        "stride_0": {"stride_in": (20, 0, 4, 1), "stride_out": (288, 72, 8, 1)},
    }
    laid_out = [
        _case(f"layout_{name}", dim, dims, mode, **each, **kw)
        for name, each in strides.items()
        for mode in (M.MAXPOOL, M.AVGPOOL_INCLUDE_PADDING)
    ]
    declined: dict[str, str] = dict.fromkeys(("llvm-cpu", "rocm", "cuda"), "dtype")
    return [
        *typed,
        *laid_out,
        _case("half_to_float", dim, dims, M.AVGPOOL_INCLUDE_PADDING, dtype=D.HALF, out=D.FLOAT, **kw),
        _case("float_in_double", dim, dims, M.MAXPOOL, compute_data_type=D.DOUBLE, **kw),
        _case("double_in_float", dim, dims, M.MAXPOOL, dtype=D.DOUBLE, compute_data_type=D.FLOAT, **kw),
        _case("zero_pad", dim, dims, M.MAXPOOL, padding_mode=P.ZERO_PAD, **kw),
        _case("wrong_index", dim, dims, M.MAXPOOL, inputs=_wrong, fast=True, **kw),
        _case("wrong_index_int8", dim, dims, M.MAXPOOL, index=D.INT8, inputs=_wrong, **kw),
        _case("wrong_index_int64", dim, dims, M.MAXPOOL, index=D.INT64, inputs=_wrong, **kw),
        _case("recomputed", dim, dims, M.MAXPOOL, x=True, fast=True, **kw),
        _case("recomputed_nhwc", dim, dims, M.MAXPOOL, x=True, layout="NHWC", dtype=D.HALF, **kw),
        _case("recomputed_zero_pad", dim, dims, M.MAXPOOL, x=True, padding_mode=P.ZERO_PAD, **kw),
        _case("after_relu", dim, dims, M.MAXPOOL, activation=PointwiseMode.RELU_BWD, dtype=D.HALF, layout="NHWC", **kw),
        _case("scaled", dim, dims, M.AVGPOOL_EXCLUDE_PADDING, scaled=True, dtype=D.HALF, layout="NHWC", **kw),
        OpCase("declined_i32", lambda: backward_graph(dim, dims, M.AVGPOOL_INCLUDE_PADDING, dtype=D.INT32, **kw),
               declined=declined, fast=True),
    ]  # fmt: skip


CASES = [*_geometry(), *_others()]
