"""Pooling: modes, paddings, index output, ranks, dtypes, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_api import DataType as D
from graph_api import Graph, PointwiseMode
from graph_api import PaddingMode as P
from graph_api import ResampleMode as M
from tests.cases import OpCase, Pack

Dims = tuple[int, ...]
_AVERAGES = (M.AVGPOOL_EXCLUDE_PADDING, M.AVGPOOL_INCLUDE_PADDING)
_SHORT = {M.MAXPOOL: "max", M.AVGPOOL_EXCLUDE_PADDING: "avg_exclude", M.AVGPOOL_INCLUDE_PADDING: "avg_include"}


def pool_graph(
    dim: Dims, mode: M, *, dtype: D = D.FLOAT, out: D | None = None, layout: str | None = None,
    stride_in: Dims | None = None, stride_out: Dims | None = None, index: D | None = None, **kw: Any,
) -> Graph:  # fmt: skip
    """One pooling; ``index``: data type of an index output."""
    g = Graph("resample", io_data_type=dtype)
    x = g.tensor("x", dim=dim, layout=layout, stride=stride_in)
    y, place = g.resample_fwd(x, mode=mode, generate_index=index is not None, **kw)
    y.set_output(True).set_name("y")
    if out is not None:
        y.set_data_type(out)
    if stride_out is not None:
        y.set_stride(stride_out)
    if place is not None and index is not None:
        place.set_output(True).set_name("index").set_data_type(index)
    return g


def _case(
    name: str, dim: Dims, mode: M, *, dims: Dims | None = None, fast: bool = False, inputs: Any = None, **kw: Any
) -> OpCase:
    expected = None if dims is None else {"y": dims} | ({"index": dims} if "index" in kw else {})
    return OpCase(f"{name}_{_SHORT[mode]}", lambda: pool_graph(dim, mode, **kw), inputs, dims=expected, fast=fast)


def _modes(name: str, dim: Dims, dims: Dims, *, fast: bool = False, **kw: Any) -> list[OpCase]:
    """All modes; the maximum with its index and both kinds of padding."""
    return [
        _case(name, dim, M.MAXPOOL, dims=dims, fast=fast, index=D.INT32, **kw),
        _case(
            f"{name}_zero", dim, M.MAXPOOL, dims=dims, index=D.INT32, padding_mode=P.ZERO_PAD, inputs=_negative, **kw
        ),
        *(_case(name, dim, mode, dims=dims, fast=fast and mode is _AVERAGES[0], **kw) for mode in _AVERAGES),
    ]


def _negative(graph: Graph) -> Pack:
    """Mostly negative values, so that zeros of the padding win."""
    pack = graph.random_inputs(seed=2)
    for array in pack.values():
        array[...] = array - array.dtype.type(1 if array.dtype.kind != "u" else 0)
    return pack


def _ties(graph: Graph) -> Pack:
    """Few distinct values: the first of equal maxima has to win."""
    pack = graph.random_inputs(seed=3)
    for array in pack.values():
        array[...] = np.arange(array.size).reshape(array.shape) % 7 // 3
    return pack


def _special(graph: Graph) -> Pack:
    """NaN, both infinities, and windows of nothing else."""
    pack = graph.random_inputs(seed=4)
    for array in pack.values():
        flat = array.reshape(-1)
        flat[3], flat[17], flat[31] = np.nan, np.inf, -np.inf
        array[-1, -1] = -np.inf
    return pack


def _cancelling(graph: Graph) -> Pack:
    """Large values of changing sign, whose average nearly vanishes."""
    pack = graph.random_inputs(seed=5)
    for array in pack.values():
        array[...] = (np.abs(array) + array.dtype.type(64)) * (np.indices(array.shape).sum(axis=0) % 2 * 2 - 1).astype(
            array.dtype
        )
    return pack


def _geometry() -> list[OpCase]:
    return [
        *_modes("plain", (2, 3, 8, 10), (2, 3, 4, 5), window=2, fast=True),
        *_modes("overlapping", (2, 3, 8, 9), (2, 3, 4, 5), window=3, stride=2, padding=1),
        *_modes("same", (2, 3, 5, 6), (2, 3, 5, 6), window=3, stride=1, padding=1),
        *_modes(
            "asymmetric",
            (1, 2, 7, 6),
            (1, 2, 4, 3),
            window=(2, 3),
            stride=(2, 3),
            pre_padding=(0, 2),
            post_padding=(1, 1),
        ),
        *_modes("remainder", (1, 3, 11, 10), (1, 3, 3, 3), window=(3, 2), stride=(4, 3)),
        *_modes("gaps", (1, 2, 9, 12), (1, 2, 3, 3), window=(1, 2), stride=(4, 5)),
        *_modes("window_1", (2, 3, 4, 5), (2, 3, 4, 5), window=1),
        *_modes("global", (2, 5, 7, 6), (2, 5, 1, 1), window=(7, 6)),
        *_modes("one_output_stride", (1, 2, 4, 5), (1, 2, 1, 2), window=3, stride=2),
        *_modes("empty_windows", (2, 3, 4, 3), (2, 3, 8, 7), window=1, stride=1, padding=2),
        *_modes("empty_windows_strided", (1, 2, 1, 1), (1, 2, 1, 1), window=2, stride=3, pre_padding=2, post_padding=0),
        *_modes("1d", (2, 3, 11), (2, 3, 5), window=3, stride=2),
        *_modes("1d_nwc", (2, 5, 9), (2, 5, 5), window=3, stride=2, padding=1, layout="NWC"),
        *_modes(
            "3d",
            (2, 3, 4, 5, 6),
            (2, 3, 3, 3, 6),
            window=(2, 3, 2),
            stride=(2, 2, 1),
            pre_padding=(1, 1, 0),
            post_padding=(1, 1, 1),
        ),
        *_modes("3d_ndhwc", (1, 4, 4, 6, 5), (1, 4, 2, 3, 2), window=2, layout="NDHWC"),
    ]


def _dtypes() -> list[OpCase]:
    cases: list[OpCase] = []
    for dtype in (D.HALF, D.BFLOAT16, D.DOUBLE, D.INT8, D.UINT8, D.INT32, D.INT64):
        for layout in ("NCHW", "NHWC"):
            label = f"{dtype.name.lower()}_{layout.lower()}"
            kw: dict[str, Any] = {"window": 3, "stride": 2, "padding": 1, "dtype": dtype, "layout": layout}
            fast = dtype is D.HALF and layout == "NHWC"
            cases.append(_case(label, (2, 4, 9, 8), M.MAXPOOL, index=D.INT8, fast=fast, **kw))
            cases.append(_case(label, (2, 4, 9, 8), M.AVGPOOL_EXCLUDE_PADDING, fast=fast, **kw))
    return [
        *cases,
        _case("half_to_float", (2, 4, 9, 8), M.AVGPOOL_INCLUDE_PADDING, window=3, dtype=D.HALF, out=D.FLOAT),
        _case(
            "int_as_float",
            (2, 4, 9, 8),
            M.AVGPOOL_INCLUDE_PADDING,
            window=3,
            dtype=D.INT8,
            out=D.FLOAT,
            compute_data_type=D.FLOAT,
        ),
        _case("int4_odd", (2, 3, 9, 7), M.MAXPOOL, window=3, stride=2, dtype=D.INT4, out=D.INT8),
        _case(
            "int4_average",
            (2, 4, 9, 8),
            M.AVGPOOL_INCLUDE_PADDING,
            window=3,
            dtype=D.INT4,
            out=D.FLOAT,
            layout="NHWC",
            compute_data_type=D.FLOAT,
        ),
        _case("double_in_float", (2, 4, 9, 8), M.MAXPOOL, window=3, dtype=D.DOUBLE, compute_data_type=D.FLOAT),
        _case("float_in_int64", (2, 4, 9, 8), M.MAXPOOL, window=3, index=D.INT32, compute_data_type=D.INT64),
        _case("float_in_int32", (2, 4, 9, 8), M.AVGPOOL_EXCLUDE_PADDING, window=3, compute_data_type=D.INT32),
        _case("float_in_double", (2, 4, 9, 8), M.AVGPOOL_EXCLUDE_PADDING, window=3, compute_data_type=D.DOUBLE),
        _case("sum_beyond_half", (1, 2, 16, 16), M.AVGPOOL_INCLUDE_PADDING, window=16, dtype=D.HALF, inputs=_large),
    ]


def _large(graph: Graph) -> Pack:
    """Values whose sum half precision cannot hold."""
    pack = graph.random_inputs()
    for array in pack.values():
        array[...] = np.abs(array) + array.dtype.type(40000)
    return pack


def _layouts() -> list[OpCase]:
    """x [2, 3, 6, 8] to y [2, 3, 3, 4]."""
    kinds: dict[str, dict[str, Dims]] = {
        "nhwc_to_nchw": {"stride_in": (144, 1, 24, 3), "stride_out": (36, 12, 4, 1)},
        "nchw_to_nhwc": {"stride_in": (144, 48, 8, 1), "stride_out": (36, 1, 12, 3)},
        "chwn": {"stride_in": (1, 96, 16, 2), "stride_out": (1, 24, 8, 2)},
        "padded": {"stride_in": (512, 128, 16, 2), "stride_out": (80, 20, 5, 1)},
        "stride_0": {"stride_in": (48, 0, 8, 1)},
    }
    return [
        _case(f"layout_{name}", (2, 3, 6, 8), mode, window=2, fast=name == "padded" and mode is M.MAXPOOL, **strides)
        for name, strides in kinds.items()
        for mode in (M.MAXPOOL, M.AVGPOOL_EXCLUDE_PADDING)
    ]


def _inputs() -> list[OpCase]:
    return [
        _case("ties", (2, 3, 8, 9), M.MAXPOOL, window=3, stride=2, padding=1, index=D.INT32, inputs=_ties, fast=True),
        _case(
            "ties_zero",
            (2, 3, 8, 9),
            M.MAXPOOL,
            window=3,
            padding=1,
            index=D.INT32,
            padding_mode=P.ZERO_PAD,
            inputs=_ties,
        ),
        _case("ties_nhwc", (2, 3, 8, 9), M.MAXPOOL, window=3, index=D.INT32, layout="NHWC", inputs=_ties),
        _case("special", (2, 3, 8, 9), M.MAXPOOL, window=3, stride=2, padding=1, index=D.INT32, inputs=_special),
        _case("special", (2, 3, 8, 9), M.AVGPOOL_EXCLUDE_PADDING, window=3, stride=2, padding=1, inputs=_special),
        _case("cancelling", (2, 3, 8, 8), M.AVGPOOL_INCLUDE_PADDING, window=4, inputs=_cancelling),
        _case("cancelling_half", (2, 3, 8, 8), M.AVGPOOL_EXCLUDE_PADDING, window=4, dtype=D.HALF, inputs=_cancelling),
    ]


def _fused(dtype: D) -> OpCase:
    def build() -> Graph:
        g = Graph("resample", io_data_type=dtype, intermediate_data_type=dtype)
        x = g.pointwise(PointwiseMode.SIGMOID_FWD, g.tensor("x", dim=(2, 3, 8, 8), layout="NHWC"))
        y, _ = g.resample_fwd(x, mode=M.MAXPOOL, window=(3, 3), stride=2, padding=1)
        g.pointwise(PointwiseMode.MUL, y, 2.0).set_output(True)
        return g

    return OpCase(f"between_pointwise_{dtype.name.lower()}", build)


def _declined_by(rule: str) -> dict[str, str]:
    return dict.fromkeys(("llvm-cpu", "rocm", "cuda"), rule)


def _declined() -> list[OpCase]:
    return [
        OpCase(
            "declined_4d", lambda: pool_graph((1, 1, 2, 2, 2, 2), M.MAXPOOL, window=1),
            declined=_declined_by("rank"), fast=True,
        ),
        OpCase(
            "declined_boolean", lambda: pool_graph((1, 1, 4, 4), M.AVGPOOL_INCLUDE_PADDING, window=2, dtype=D.BOOLEAN),
            declined=_declined_by("dtype"), fast=True,
        ),
        OpCase(
            "declined_integer_minus_infinity",
            lambda: pool_graph((1, 1, 4, 4), M.MAXPOOL, window=1, padding=1, dtype=D.INT8),
            declined=_declined_by("padding"), fast=True,
        ),
    ]  # fmt: skip


def _boolean() -> list[OpCase]:
    """The maximum of truths: whether one is true."""
    kw: dict[str, Any] = {"window": 3, "stride": 2, "padding": 1, "dtype": D.BOOLEAN, "inputs": _rarely}
    return [
        _case("boolean", (2, 4, 9, 8), M.MAXPOOL, index=D.INT32, fast=True, **kw),
        _case("boolean_nhwc", (2, 4, 9, 8), M.MAXPOOL, index=D.INT8, layout="NHWC", **kw),
        _case("boolean_zero_pad", (2, 3, 5, 7), M.MAXPOOL, index=D.INT32, padding_mode=P.ZERO_PAD, **kw),
        _case("boolean_1d", (2, 3, 11), M.MAXPOOL, window=3, dtype=D.BOOLEAN, inputs=_rarely),
        _case("boolean_as_float", (2, 4, 9, 8), M.MAXPOOL, out=D.FLOAT, **kw),
    ]


def _rarely(graph: Graph) -> Pack:
    """Mostly false, so that whole windows are."""
    pack = graph.random_inputs(seed=6)
    for array in pack.values():
        array[...] = np.arange(array.size).reshape(array.shape) % 11 == 3
    return pack


CASES = [
    *_geometry(),
    *_boolean(),
    *_dtypes(),
    *_layouts(),
    *_inputs(),
    _fused(D.FLOAT),
    _fused(D.HALF),
    _fused(D.BFLOAT16),
    *_declined(),
]
