"""Convolutions in all directions: shapes, groups, dtypes, layouts, modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_api import ConvolutionMode, Graph, PointwiseMode
from graph_api import DataType as D
from graph_api.layout import strides_in_order
from tests.cases import OpCase, Pack

Dims = tuple[int, ...]
_MIRRORED = ConvolutionMode.CONVOLUTION
_DIRECTIONS = ("fprop", "dgrad", "wgrad")


def _spatial(value: Any, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else list(value)


def y_dims(x: Dims, w: Dims, **kw: Any) -> Dims:
    """Dims of the forward result, by the formula."""
    rank = len(x) - 2
    pre = _spatial(kw.get("pre_padding", kw.get("padding", 0)), rank)
    post = _spatial(kw.get("post_padding", kw.get("padding", 0)), rank)
    stride, dilation = _spatial(kw.get("stride", 1), rank), _spatial(kw.get("dilation", 1), rank)
    sizes = [(x[i + 2] + pre[i] + post[i] - dilation[i] * (w[i + 2] - 1) - 1) // stride[i] + 1 for i in range(rank)]
    return (x[0], w[0], *sizes)


def conv_graph(
    direction: str, x: Dims, w: Dims, *, dtype: D = D.FLOAT, out: D | None = None, layout: str | None = None, **kw: Any
) -> Graph:
    """One convolution of the given forward shapes; gradients get the dims of their result."""
    g = Graph(direction, io_data_type=dtype)
    y = y_dims(x, w, **kw)
    first, second = {"fprop": (x, w), "dgrad": (y, w), "wgrad": (y, x)}[direction]
    a, b = (g.tensor(name, dim=dim, layout=layout) for name, dim in (("a", first), ("b", second)))
    result = getattr(g, f"conv_{direction}")(a, b, **kw).set_output(True).set_name("out")
    if direction != "fprop":
        result.set_dim(x if direction == "dgrad" else w)
    if out is not None:
        result.set_data_type(out)
    return g


def _case(name: str, direction: str, x: Dims, w: Dims, *, fast: bool = False, note: str = "", **kw: Any) -> OpCase:
    expected = {"fprop": y_dims, "dgrad": lambda x, w, **_: x, "wgrad": lambda x, w, **_: w}[direction]
    plain = {key: value for key, value in kw.items() if key not in ("dtype", "out", "layout", "convolution_mode")}
    return OpCase(
        f"{name}_{direction}", lambda: conv_graph(direction, x, w, **kw), dims={"out": expected(x, w, **plain)},
        fast=fast, note=note,
    )  # fmt: skip


def _all(name: str, x: Dims, w: Dims, *, fast: Sequence[str] = (), **kw: Any) -> list[OpCase]:
    return [_case(name, direction, x, w, fast=direction in fast, **kw) for direction in _DIRECTIONS]


def _geometry() -> list[OpCase]:
    """Every direction of the shapes at which index arithmetic goes wrong; all sizes differ."""
    return [
        *_all("plain", (2, 6, 8, 9), (4, 6, 3, 3), padding=1, fast=_DIRECTIONS),
        *_all("valid", (2, 3, 7, 6), (5, 3, 2, 3)),
        *_all("point", (2, 5, 4, 7), (6, 5, 1, 1)),
        *_all("point_stride_2", (2, 5, 7, 8), (6, 5, 1, 1), stride=2),
        *_all("stride_2", (2, 6, 8, 9), (4, 6, 3, 3), padding=1, stride=2, fast=("dgrad",)),
        *_all("stride_3_remainder", (1, 4, 11, 13), (3, 4, 3, 2), padding=1, stride=3),
        *_all("stride_per_axis", (2, 3, 9, 10), (4, 3, 3, 5), pre_padding=(1, 0), post_padding=(0, 2), stride=(3, 2)),
        *_all("stride_over_filter", (1, 3, 12, 13), (4, 3, 2, 2), stride=4),
        *_all("stride_over_filter_padded", (1, 3, 11, 10), (4, 3, 2, 1), pre_padding=(1, 2), post_padding=0, stride=3),
        *_all("patches", (2, 3, 12, 8), (5, 3, 4, 4), stride=4),
        *_all("padding_asymmetric", (2, 3, 6, 7), (4, 3, 3, 4), pre_padding=(0, 3), post_padding=(2, 1)),
        *_all("padding_over_filter", (1, 2, 4, 3), (3, 2, 2, 2), padding=3),
        *_all("padding_only", (2, 3, 1, 1), (4, 3, 2, 2), pre_padding=2, post_padding=0, stride=2),
        *_all("dilation", (2, 3, 9, 10), (4, 3, 3, 2), padding=2, dilation=(2, 3)),
        *_all("dilation_stride", (1, 3, 12, 13), (4, 3, 3, 3), padding=1, dilation=2, stride=(2, 3)),
        *_all("dilation_stride_coprime", (1, 2, 16, 11), (3, 2, 3, 2), padding=2, dilation=(3, 2), stride=(2, 3)),
        *_all("filter_is_input", (2, 3, 5, 4), (4, 3, 5, 4)),
        *_all("one_output_stride_2", (2, 3, 4, 4), (4, 3, 3, 3), stride=2),
        *_all("even_filter", (1, 1, 8, 8), (1, 1, 2, 2), padding=1),
        *_all("one_channel", (1, 1, 5, 6), (1, 1, 3, 3), padding=1),
        *_all("image_1x1", (3, 8, 1, 1), (5, 8, 3, 3), padding=1),
        *_all("mirrored", (2, 3, 6, 7), (4, 3, 3, 2), padding=1, convolution_mode=_MIRRORED, fast=("wgrad",)),
        *_all("mirrored_stride_2", (1, 3, 9, 8), (4, 3, 4, 3), padding=1, stride=2, convolution_mode=_MIRRORED),
        *_all(
            "mirrored_dilated_stride_2", (1, 3, 11, 9), (2, 3, 3, 2), stride=2, dilation=2, convolution_mode=_MIRRORED
        ),
    ]


def _sizes() -> list[OpCase]:
    """Larger than the tiles of a product and no multiple of them: filters, places, taps."""
    shapes: list[tuple[str, Dims, Dims, dict[str, Any]]] = [
        ("filters_24", (1, 20, 13, 17), (24, 20, 3, 3), {"padding": 1}),
        ("filters_10", (2, 7, 12, 11), (10, 7, 3, 2), {"stride": (2, 1)}),
        ("filters_80_point", (2, 12, 9, 15), (80, 12, 1, 1), {}),
        ("filters_48_point_stride_2", (3, 9, 14, 10), (48, 9, 1, 1), {"stride": 2}),
    ]
    return [
        _case(f"{name}_{layout.lower()}", "fprop", x, w, layout=layout, fast=name == "filters_24", **kw)
        for name, x, w, kw in shapes
        for layout in ("NCHW", "NHWC")
    ]


def _groups() -> list[OpCase]:
    return [
        *_all("groups", (2, 6, 7, 5), (4, 3, 3, 2), padding=1, fast=("dgrad",)),
        *_all("groups_3_stride_2", (1, 6, 8, 9), (9, 2, 3, 3), padding=1, stride=2),
        *_all(
            "groups_mirrored",
            (2, 4, 6, 6),
            (6, 2, 2, 3),
            pre_padding=(1, 0),
            post_padding=(0, 2),
            convolution_mode=_MIRRORED,
        ),
        *_all("groups_point", (2, 6, 4, 5), (6, 2, 1, 1)),
        *_all("depthwise", (2, 6, 8, 9), (6, 1, 3, 3), padding=1, fast=("wgrad",)),
        *_all("depthwise_multiplier", (2, 3, 6, 7), (6, 1, 3, 2), padding=1),
        *_all("depthwise_stride_2", (1, 5, 9, 8), (5, 1, 5, 5), padding=2, stride=2),
        *_all("depthwise_dilated", (1, 4, 9, 9), (4, 1, 3, 3), padding=2, dilation=2),
    ]


def _ranks() -> list[OpCase]:
    return [
        *_all("1d", (2, 6, 9), (4, 6, 3), padding=1, fast=("fprop", "wgrad")),
        *_all("1d_nwc_stride_2", (2, 3, 10), (4, 3, 4), pre_padding=(1,), post_padding=(2,), stride=2, layout="NWC"),
        *_all("1d_groups_dilated", (1, 4, 12), (6, 2, 3), padding=2, dilation=2),
        *_all("1d_depthwise", (1, 6, 8), (6, 1, 3), padding=1),
        *_all("3d", (2, 3, 5, 6, 7), (4, 3, 3, 2, 3), padding=1, fast=("dgrad",)),
        *_all("3d_stride", (1, 2, 6, 7, 5), (3, 2, 3, 3, 2), padding=(1, 0, 1), stride=(2, 1, 3)),
        *_all("3d_ndhwc_flat_filter", (2, 4, 3, 5, 4), (4, 4, 1, 3, 3), padding=(0, 1, 1), layout="NDHWC"),
        *_all("3d_groups", (1, 4, 4, 5, 6), (6, 2, 2, 3, 2), padding=1, dilation=(1, 2, 1)),
        *_all("3d_depthwise_mirrored", (1, 3, 4, 4, 5), (3, 1, 2, 3, 3), convolution_mode=_MIRRORED),
    ]


def _dtypes() -> list[OpCase]:
    cases: list[OpCase] = []
    for dtype in (D.HALF, D.BFLOAT16, D.DOUBLE, D.INT8, D.UINT8, D.INT32, D.INT64):
        out = D.INT32 if dtype in (D.INT8, D.UINT8) else None
        for layout in ("NCHW", "NHWC"):
            cases += _all(
                f"{dtype.name.lower()}_{layout.lower()}", (2, 8, 6, 7), (4, 8, 3, 3), padding=1, dtype=dtype, out=out,
                layout=layout, fast=("fprop", "dgrad") if (dtype, layout) == (D.HALF, "NHWC") else (),
            )  # fmt: skip
    cases += _all("half_to_float", (2, 8, 6, 7), (4, 8, 3, 3), padding=1, dtype=D.HALF, out=D.FLOAT)
    cases += _all("bfloat16_stride_2", (2, 8, 8, 8), (4, 8, 3, 3), padding=1, stride=2, dtype=D.BFLOAT16, layout="NHWC")
    cases += _all("float_compute_double", (1, 8, 5, 6), (4, 8, 3, 3), compute_data_type=D.DOUBLE)
    return [
        *cases,
        *(_mixed(direction, D.HALF, D.FLOAT) for direction in _DIRECTIONS),
        _mixed("fprop", D.BFLOAT16, D.HALF),
    ]


def _mixed(direction: str, a: D, b: D) -> OpCase:
    def build() -> Graph:
        g = Graph(direction)
        shapes = {
            "fprop": ((2, 3, 6, 7), (4, 3, 3, 3)),
            "dgrad": ((2, 4, 6, 7), (4, 3, 3, 3)),
            "wgrad": ((2, 4, 6, 7), (2, 3, 6, 7)),
        }
        x, w = (g.tensor(n, dim=d, data_type=t) for n, d, t in zip("ab", shapes[direction], (a, b), strict=True))
        getattr(g, f"conv_{direction}")(x, w, padding=1).set_output(True).set_data_type(D.FLOAT)
        return g

    return OpCase(f"mixed_{a.name.lower()}_{b.name.lower()}_{direction}", build)


def _strided(direction: str, mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION, /, **strides: Dims) -> Graph:
    g = Graph(direction, io_data_type=D.FLOAT)
    shapes = {"x": (2, 3, 4, 5), "w": (6, 3, 3, 3), "y": (2, 6, 4, 5)}
    first, second, result = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "yxw"}[direction]
    a, b = (g.tensor(name, dim=shapes[name], stride=strides.get(name)) for name in (first, second))
    out = getattr(g, f"conv_{direction}")(a, b, padding=1, convolution_mode=mode)
    out.set_output(True).set_dim(shapes[result])
    if result in strides:
        out.set_stride(strides[result])
    return g


def _layouts() -> list[OpCase]:
    """x [2, 3, 4, 5], w [6, 3, 3, 3], y [2, 6, 4, 5] in memory of every kind."""
    kinds: dict[str, dict[str, Dims]] = {
        "x_nhwc_w_kcrs": {"x": (60, 1, 15, 3)},
        "y_nhwc": {"y": (120, 1, 30, 6)},
        "rsck": {"x": (60, 1, 15, 3), "w": (1, 6, 54, 18), "y": (120, 1, 30, 6)},
        "chwn": {"x": (1, 40, 10, 2), "y": (1, 40, 10, 2)},
        "padded": {"x": (256, 64, 16, 2), "w": (48, 12, 4, 1), "y": (512, 64, 16, 2)},
    }
    cases = [
        OpCase(
            f"layout_{name}_{direction}",
            lambda d=direction, s=strides: _strided(d, **s),
            fast=name in ("padded", "rsck") and direction == "fprop",
        )
        for name, strides in kinds.items()
        for direction in _DIRECTIONS
    ]
    gaps = {"x": (256, 64, 16, 2), "w": (72, 24, 8, 2), "y": (512, 64, 16, 2)}
    cases += [
        OpCase(f"layout_{name}_{d}", lambda d=d, mode=mode: _strided(d, mode, **gaps), fast=d == "dgrad")
        for name, mode in (("mirrored", _MIRRORED), ("spread", ConvolutionMode.CROSS_CORRELATION))
        for d in _DIRECTIONS
    ]
    cases += [
        OpCase("filters_by_taps_1d", lambda: _by_taps((3, 9, 21), (40, 9, 4))),
        OpCase("filters_by_taps_3d", lambda: _by_taps((1, 5, 4, 6, 7), (33, 5, 2, 3, 1))),
        OpCase("filters_by_taps_strided", lambda: _by_taps((2, 48, 7, 7), (24, 48, 3, 3), stride=2)),
    ]
    repeated = {"fprop": {"x": (60, 0, 5, 1)}, "dgrad": {"y": (0, 20, 5, 1)}, "wgrad": {"y": (0, 0, 0, 0)}}
    return [*cases, *(OpCase(f"layout_stride_0_{d}", lambda d=d: _strided(d, **repeated[d])) for d in _DIRECTIONS)]


def _by_taps(x: Dims, w: Dims, **kw: Any) -> Graph:
    """Images with channels last, filters that lie window first and K last."""
    g = Graph("fprop", io_data_type=D.FLOAT)
    rank = len(x)
    last, taps = (0, *range(2, rank), 1), (*range(2, rank), 1, 0)
    image = g.tensor("x", dim=x, stride=strides_in_order(x, last))
    filters = g.tensor("w", dim=w, stride=strides_in_order(w, taps))
    y = y_dims(x, w, padding=1, **kw)
    result = g.conv_fprop(image, filters, padding=1, **kw).set_output(True)
    result.set_dim(y).set_stride(strides_in_order(y, last))
    return g


def _one_hot(graph: Graph) -> Pack:
    """One element in each input: the result is one product in one place, zeros elsewhere."""
    pack = graph.random_inputs()
    for array in pack.values():
        array[...] = 0
        array[tuple(size - 1 - (size > 2) for size in array.shape)] = 3
    return pack


def _cancelling(graph: Graph) -> Pack:
    """Large values whose sum nearly vanishes: neighbours along every dim have opposite signs."""
    pack = graph.random_inputs(seed=5)
    for array in pack.values():
        sign = np.indices(array.shape).sum(axis=0) % 2 * 2 - 1
        array[...] = (np.abs(array) + array.dtype.type(64)) * sign.astype(array.dtype)
    return pack


def _inputs() -> list[OpCase]:
    cases: list[OpCase] = []
    for label, inputs in (("one_hot", _one_hot), ("cancelling", _cancelling)):
        for direction in _DIRECTIONS:
            for stride in (1, 2):
                cases.append(
                    OpCase(
                        f"{label}_stride_{stride}_{direction}",
                        lambda d=direction, s=stride: conv_graph(d, (2, 4, 7, 8), (6, 2, 3, 2), padding=1, stride=s),
                        inputs, fast=label == "one_hot" and direction == "dgrad" and stride == 2,
                    )
                )  # fmt: skip
    return cases


def _inferred(direction: str, first: Dims, second: Dims, out: Dims, **kw: Any) -> OpCase:
    def build() -> Graph:
        g = Graph(direction, io_data_type=D.FLOAT)
        a, b = g.tensor("a", dim=first), g.tensor("b", dim=second)
        getattr(g, f"conv_{direction}")(a, b, **kw).set_output(True).set_name("out")
        return g

    return OpCase(f"inferred_{'_'.join(map(str, out))}_{direction}", build, dims={"out": out})


def _inference() -> list[OpCase]:
    return [
        _inferred("dgrad", (2, 4, 5, 6), (4, 3, 3, 2), (2, 3, 9, 15), padding=1, stride=(2, 3), dilation=(1, 1)),
        _inferred("dgrad", (1, 2, 4), (2, 5, 3), (1, 5, 6)),
        _inferred("wgrad", (2, 4, 4, 4), (2, 3, 8, 9), (4, 3, 4, 5), padding=1, stride=2),
        _inferred("wgrad", (2, 4, 6, 6), (2, 3, 8, 8), (4, 3, 2, 3), dilation=(2, 1)),
    ]


# Rows of collected real shapes that are small enough for every run; names are the ids of their rows.
_ROWS: tuple[tuple[str, str, Dims, Dims, dict[str, Any]], ...] = (
    ("c017", "fprop", (2, 3, 32, 32), (8, 3, 3, 3), {"padding": 1, "dtype": D.HALF, "layout": "NHWC"}),
    ("c019", "wgrad", (2, 3, 32, 32), (8, 3, 3, 3), {"padding": 1, "dtype": D.HALF, "layout": "NHWC"}),
    # the AMD compiler crashes on these with buffer instructions
    ("small_channels_last", "fprop", (2, 6, 10, 8), (8, 6, 3, 3), {"layout": "NHWC"}),
    ("c117", "fprop", (1, 256, 7, 7), (512, 256, 3, 3), {"padding": 1}),
    ("c129", "fprop", (1, 832, 7, 7), (256, 832, 1, 1), {}),
    ("c139", "fprop", (1, 2048, 7, 7), (512, 2048, 1, 1), {"padding": 3, "stride": 2}),
    ("c219", "fprop", (1, 112, 1, 1), (448, 112, 1, 1), {"dtype": D.BFLOAT16, "out": D.FLOAT}),
    ("c225", "fprop", (10, 896, 1, 1), (112, 896, 1, 1), {"dtype": D.BFLOAT16, "out": D.FLOAT}),
    ("c227", "fprop", (12, 448, 1, 1), (112, 448, 1, 1), {"dtype": D.BFLOAT16, "out": D.FLOAT}),
    ("c229", "fprop", (14, 224, 1, 1), (8, 224, 1, 1), {"dtype": D.BFLOAT16, "out": D.FLOAT}),
    ("c241", "fprop", (6, 224, 1, 1), (56, 224, 1, 1), {"dtype": D.BFLOAT16, "out": D.FLOAT}),
    ("c269", "fprop", (1, 1, 48, 50), (1, 1, 23, 23), {"dtype": D.HALF}),
    ("c279", "fprop", (10, 3, 16, 16), (2, 3, 3, 3), {}),
    ("c281", "fprop", (1, 2, 3), (2, 2, 2), {"layout": "NWC"}),
    ("c283", "fprop", (120, 2, 32, 16), (32, 1, 3, 3), {"padding": 1, "dtype": D.HALF}),
    ("c285", "wgrad", (1, 896, 1, 1), (224, 896, 1, 1), {"dtype": D.BFLOAT16}),
    ("c289", "dgrad", (16, 16, 7, 7), (4, 16, 1, 1), {"dtype": D.HALF}),
    ("c291", "fprop", (120, 256, 1, 1), (340, 256, 3, 3), {"padding": 1, "dtype": D.HALF}),
    ("c293", "fprop", (1, 32, 32), (32, 1, 3), {"padding": 1}),
    ("c295", "fprop", (1, 3, 32, 32), (4, 3, 5, 5), {"pre_padding": 1, "post_padding": 2, "stride": 2}),
    ("c297", "fprop", (1, 24, 56, 56), (56, 24, 1, 1), {"stride": 2}),
    ("c299", "fprop", (1, 1, 8, 8), (1, 1, 2, 2), {"padding": 1}),
    ("c303", "fprop", (4, 8, 20, 20), (16, 2, 3, 3), {"padding": 1, "stride": 2, "dtype": D.BFLOAT16}),
    ("c309", "fprop", (2, 256, 7, 7), (256, 256, 1, 1), {"dtype": D.HALF}),
    ("c311", "fprop", (1, 1, 5, 5), (1, 1, 3, 3), {"padding": 1}),
    ("c313", "fprop", (1, 1, 5, 5), (1, 1, 3, 3), {"padding": 1, "stride": 2}),
    ("c315", "fprop", (1, 1, 7, 5), (1, 1, 3, 3), {"stride": 2}),
    ("c317", "fprop", (1, 1, 3, 3), (1, 1, 2, 2), {"padding": 1, "dtype": D.UINT8, "out": D.INT32}),
    ("c319", "dgrad", (1, 2, 5, 5), (1, 2, 3, 3), {}),
    ("c321", "dgrad", (1, 2, 5, 6, 7), (1, 2, 3, 3, 3), {}),
    ("c323", "dgrad", (1, 1, 5, 5), (1, 1, 2, 2), {"dilation": 2}),
    ("c325", "dgrad", (1, 2, 10, 8), (1, 2, 3, 3), {"stride": (3, 2)}),
    ("c363", "fprop", (1, 192, 14, 14), (64, 192, 1, 1), {}),
    ("c365", "fprop", (1, 384, 14, 14), (384, 1, 3, 3), {"padding": 1}),
    ("c371", "fprop", (1, 960, 7, 7), (960, 1, 3, 3), {"padding": 1}),
    ("c381", "fprop", (1, 1152, 7, 7), (1152, 1, 3, 3), {"padding": 1}),
    ("c379", "fprop", (1, 480, 14, 14), (480, 1, 5, 5), {"padding": 2}),
    # The geometry of larger rows, with fewer images and channels.
    ("c005_small", "wgrad", (4, 3, 32, 32), (32, 3, 3, 3), {}),
    ("c003_small", "dgrad", (4, 3, 32, 32), (32, 3, 3, 3), {}),
    ("c011_small", "wgrad", (2, 8, 12, 10), (8, 8, 3, 3), {"padding": 2, "dtype": D.HALF, "layout": "NHWC"}),
    ("c021_small", "dgrad", (1, 8, 27, 27), (8, 8, 3, 3), {"padding": 1, "stride": 3, "dtype": D.BFLOAT16}),
    ("c027_small", "dgrad", (2, 6, 16, 8), (6, 6, 3, 1), {"padding": (2, 0), "dilation": (2, 1), "dtype": D.BFLOAT16}),
    ("c031_small", "wgrad", (2, 12, 12, 8), (12, 2, 3, 3), {"padding": 1, "dtype": D.BFLOAT16, "layout": "NHWC"}),
    ("c033_small", "dgrad", (1, 12, 4, 12, 8), (12, 4, 1, 3, 3), {"padding": (0, 1, 1), "dtype": D.BFLOAT16}),
    ("c037_small", "wgrad", (1, 8, 16, 12), (8, 8, 3, 3), {"padding": 4, "dilation": 4, "dtype": D.HALF}),
    ("c173_small", "fprop", (2, 12, 2, 6, 4), (12, 4, 3, 1, 1), {"padding": (1, 0, 0), "layout": "NDHWC"}),
    ("c259_small", "dgrad", (1, 12, 20, 20), (12, 1, 7, 7), {"padding": 3, "dtype": D.HALF}),
    ("c265_small", "dgrad", (4, 64, 2, 2), (32, 64, 1, 1), {"stride": 2}),
    ("c271_small", "dgrad", (1, 8, 9, 9, 9), (8, 4, 3, 3, 3), {"stride": 2}),
    ("c275_small", "wgrad", (4, 12, 16, 10), (12, 12, 1, 1), {"stride": 2, "dtype": D.BFLOAT16}),
    ("c277_small", "dgrad", (2, 12, 6, 10), (12, 4, 1, 3), {"padding": (0, 1), "layout": "NHWC"}),
    ("c263_small", "fprop", (8, 3, 28, 28), (16, 3, 28, 28), {"stride": 28, "dtype": D.HALF}),
    ("c009_small", "fprop", (2, 12, 2, 8, 6), (12, 12, 2, 1, 1), {"stride": (2, 1, 1), "layout": "NDHWC"}),
)  # fmt: skip


def _fused() -> list[OpCase]:
    def layer(direction: str) -> Graph:
        """relu after or before a convolution, through a virtual half tensor."""
        g = Graph(direction, io_data_type=D.HALF, intermediate_data_type=D.HALF)
        a = g.tensor("a", dim=(2, 4, 6, 7) if direction != "fprop" else (2, 3, 6, 7))
        b = g.tensor("b", dim=(4, 3, 3, 3) if direction != "wgrad" else (2, 3, 6, 7))
        a = g.pointwise(PointwiseMode.RELU_FWD, a)
        y = getattr(g, f"conv_{direction}")(a, b, padding=1)
        g.pointwise(PointwiseMode.SIGMOID_FWD, y).set_output(True)
        return g

    return [OpCase(f"between_pointwise_{d}", lambda d=d: layer(d)) for d in _DIRECTIONS]


def _int4() -> list[OpCase]:
    """Filters, or images, of INT4 with others of half precision."""

    def build(x: Dims, w: Dims, of_x: D, of_w: D, layout: str) -> Graph:
        g = Graph("int4", io_data_type=D.HALF)
        image, filters = g.tensor("x", dim=x, layout=layout, data_type=of_x), g.tensor("w", dim=w, data_type=of_w)
        g.conv_fprop(image, filters, padding=1).set_output(True).set_name("out")
        return g

    def integers(direction: str) -> Graph:
        g = Graph(direction, io_data_type=D.INT32)
        first, second = {"fprop": ((2, 6, 8, 9), (4, 6, 3, 3)), "dgrad": ((2, 4, 8, 9), (4, 6, 3, 3)),
                         "wgrad": ((2, 4, 8, 9), (2, 6, 8, 9))}[direction]  # fmt: skip
        a, b = (g.tensor(name, dim=dim, data_type=D.INT4) for name, dim in (("a", first), ("b", second)))
        getattr(g, f"conv_{direction}")(a, b, padding=1).set_output(True).set_name("out")
        return g

    wide, odd = ((2, 8, 6, 7), (4, 8, 3, 3)), ((1, 3, 5, 7), (5, 3, 3, 3))
    return [
        OpCase("int4_filter", lambda: build(*wide, D.HALF, D.INT4, "NCHW"), dims={"out": (2, 4, 6, 7)}),
        OpCase("int4_filter_nhwc", lambda: build(*wide, D.HALF, D.INT4, "NHWC"), dims={"out": (2, 4, 6, 7)}),
        OpCase("int4_image_odd", lambda: build(*odd, D.INT4, D.HALF, "NCHW"), dims={"out": (1, 5, 5, 7)}),
        *(OpCase(f"int4_{direction}", lambda d=direction: integers(d)) for direction in _DIRECTIONS),
    ]


def _declined_by(rule: str) -> dict[str, str]:
    return dict.fromkeys(("llvm-cpu", "rocm", "cuda"), rule)


def _declined() -> list[OpCase]:
    def build(dim: Dims, w: Dims, dtype: D) -> Graph:
        g = Graph("declined", io_data_type=dtype)
        g.conv_fprop(g.tensor("x", dim=dim), g.tensor("w", dim=w)).set_output(True).set_data_type(D.FLOAT)
        return g

    return [
        OpCase(
            "declined_4d",
            lambda: build((1, 2, 3, 3, 3, 3), (2, 2, 1, 1, 1, 1), D.FLOAT),
            declined=_declined_by("rank"),
            fast=True,
        ),
        OpCase(
            "declined_boolean",
            lambda: build((1, 2, 3, 3), (2, 2, 1, 1), D.BOOLEAN),
            declined=_declined_by("dtype"),
            fast=True,
        ),
    ]


CASES = [
    *_geometry(),
    *_sizes(),
    *_groups(),
    *_ranks(),
    *_dtypes(),
    *_layouts(),
    *_inputs(),
    *_inference(),
    *(_case(name, direction, x, w, **kw) for name, direction, x, w, kw in _ROWS),
    *_fused(),
    *_int4(),
    *_declined(),
]
