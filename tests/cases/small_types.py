"""Types of 8 bits and less: every code read, every rounding written, layouts; products and convolutions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode, TensorAttr
from tests.cases import OpCase, Pack

D, M = DataType, PointwiseMode
Dims = tuple[int, ...]
SMALL_FLOATS = [dtype for dtype in DataType if dtype.is_small_float]
PACKED = [dtype for dtype in DataType if dtype.is_packed]
SMALL = [*SMALL_FLOATS, D.INT4, D.UINT4]
FP8 = [D.FP8_E4M3, D.FP8_E5M2, D.FP8_E4M3_FNUZ, D.FP8_E5M2_FNUZ]


def every_code(dtype: DataType, dims: Dims) -> Any:
    """All codes of a type, over and over."""
    codes = np.arange(int(np.prod(dims))) % 2**dtype.bits
    return codes.astype(np.uint8).view(dtype.numpy).reshape(dims)


def hard_values(target: DataType, dims: Dims) -> Any:
    """The values of a type, the middles between them, numbers next to these, and what is too large or none."""
    values = np.sort(every_code(target, (2**target.bits,)).astype(np.float64))
    values = values[np.isfinite(values)]
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-30, -1e-30]
    if target is D.FP8_E8M0:
        middles, special = middles[middles >= 2.0**-126], [np.nan, np.inf, 1e30]
        beside = [side[side >= 2.0**-126] for side in beside]
    return np.resize(np.concatenate([special, *beside, middles, values]), dims)


def _identity(source: DataType, target: DataType, dims: Dims, *, fast: bool = False, **strides: Any) -> OpCase:
    def build() -> Graph:
        g = Graph("identity")
        x = g.tensor("x", dim=dims, stride=strides.get("x"), data_type=source)
        y = g.pointwise(M.IDENTITY, x).set_output(True).set_name("y").set_data_type(target)
        if "y" in strides:
            y.set_stride(strides["y"])
        return g

    def inputs(g: Graph) -> Pack:
        (x,) = g.arguments().inputs
        array = x.empty()
        small = source in SMALL
        array[...] = every_code(source, dims) if small else source.rounded(hard_values(target, dims))
        return {x: array}

    label = "".join(f"_{name}{'_'.join(map(str, stride))}" for name, stride in strides.items())
    name = f"{source.name.lower()}_to_{target.name.lower()}_{'x'.join(map(str, dims))}{label}"
    return OpCase(name, build, inputs, {"y": dims}, fast)


def _conversions() -> list[OpCase]:
    made = []
    for dtype in SMALL:
        made.append(_identity(dtype, D.FLOAT, (4, 64), fast=True))
        made.append(_identity(D.FLOAT, dtype, (24, 48), fast=True))
        for other in (D.HALF, D.BFLOAT16, D.DOUBLE):
            made.append(_identity(other, dtype, (24, 48)))
            if not (dtype is D.FP8_E8M0 and other is D.HALF):  # what exceeds HALF, a device makes of it
                made.append(_identity(dtype, other, (4, 64)))
        made.append(_identity(D.INT8, dtype, (4, 64)) if dtype is not D.FP8_E8M0 else _identity(dtype, dtype, (4, 64)))
    made += [_identity(a, b, (4, 64)) for a in FP8 for b in FP8]
    made += [_identity(D.FP8_E4M3, b, (4, 64)) for b in (D.FP6_E2M3, D.FP6_E3M2, D.FP4_E2M1)]
    return made


def _layouts() -> list[OpCase]:
    """Rows that are no whole bytes, other orders of dims, gaps, extents of 1, repeated inputs."""
    made = []
    for dtype in (*PACKED, D.FP8_E4M3):
        for n, strides in enumerate(
            (
                {"y": (1, 3)},
                {"x": (1, 3), "y": (16, 2)},
                {"x": (14, 1), "y": (9, 1)},
                {"x": (0, 1)},
            )
        ):
            made.append(_identity(dtype, dtype, (3, 7), fast=n == 1 and dtype in (D.FP6_E2M3, D.INT4), **strides))
        made += [_identity(dtype, dtype, dims) for dims in ((1,), (5, 1), (3, 4), (1, 1, 13), (2, 3, 4, 5))]
        made.append(_identity(D.FLOAT, dtype, (2, 3, 4, 5), y=(60, 1, 15, 3)))
        made.append(_identity(dtype, D.HALF, (2, 3, 4, 4), x=(48, 1, 12, 3)))
    return made


def matmul_graph(
    a_type: DataType,
    b_type: DataType,
    out: DataType,
    dims: tuple[int, int, int],
    *,
    batch: Dims = (),
    scaled: bool = False,
    amax: bool = False,
    transposed: bool = False,
    bias: bool = False,
) -> Graph:
    """descale_a * descale_b * (a b) (+ bias, ReLU), times a scale, with the largest magnitude before it."""
    m, n, k = dims
    g = Graph("matmul", io_data_type=out, intermediate_data_type=D.FLOAT)
    a = g.tensor("a", dim=(*batch, m, k), data_type=a_type)
    stride = (*((n * k,) if batch else ()), 1, k) if transposed else None
    b = g.tensor("b", dim=(*batch, k, n), stride=stride, data_type=b_type)
    y = g.matmul(a, b)
    one = (1,) * len(a.dims)

    def factor(name: str) -> TensorAttr:
        return g.tensor(name, dim=one, data_type=D.FLOAT)

    if scaled:
        y = g.pointwise(M.MUL, g.pointwise(M.MUL, y, factor("descale_a")), factor("descale_b"))
    if bias:
        y = g.pointwise(M.RELU_FWD, g.pointwise(M.ADD, y, g.tensor("bias", dim=(*one[:-1], n), data_type=D.FLOAT)))
    if amax:
        g.reduction(y, mode=ReductionMode.AMAX).set_dim(one).set_output(True).set_name("amax").set_data_type(D.FLOAT)
    if scaled:
        y = g.pointwise(M.MUL, y, factor("scale"))
    y.set_output(True).set_name("c")
    return g


def _positive_factors(g: Graph) -> Pack:
    pack = g.random_inputs(seed=3)
    for tensor, array in pack.items():
        if "scale" in tensor.name:
            array[...] = np.float32({"descale_a": 0.125, "descale_b": 3.5, "scale": 0.75}[tensor.name])
    return pack


def _products() -> list[OpCase]:
    def case(
        name: str,
        a: DataType,
        b: DataType,
        out: DataType,
        dims: Any = (19, 21, 33),
        *,
        fast: bool = False,
        **other: Any,
    ) -> OpCase:
        return OpCase(name, lambda: matmul_graph(a, b, out, dims, **other), _positive_factors, fast=fast)

    made = [
        case(f"matmul_{a.name.lower()}_{b.name.lower()}", a, b, D.FLOAT, fast=(a, b) == (D.FP8_E4M3, D.FP8_E5M2))
        for a in FP8
        for b in FP8
        if a.name.endswith("FNUZ") == b.name.endswith("FNUZ")
    ]
    made += [
        case(f"matmul_{a.name.lower()}_{b.name.lower()}_whole", a, b, D.FLOAT, dims=(32, 48, 128))
        for a in FP8
        for b in FP8
        if a.name.endswith("FNUZ") == b.name.endswith("FNUZ")
    ]
    made += [case(f"matmul_{a.name.lower()}_same", a, a, D.FLOAT) for a in (D.FP6_E2M3, D.FP6_E3M2, D.FP4_E2M1)]
    made += [
        case(f"matmul_{a.name.lower()}_{b.name.lower()}_128", a, b, D.FLOAT, (48, 32, 128))
        for a, b in ((D.FP4_E2M1, D.FP4_E2M1), (D.FP6_E2M3, D.FP6_E2M3), (D.UINT4, D.FP4_E2M1), (D.INT4, D.UINT4))
    ]
    made += [
        case(f"matmul_{a.name.lower()}_{b.name.lower()}_mixed", a, b, D.FLOAT)
        for a, b in (
            (D.FP8_E4M3, D.HALF),
            (D.BFLOAT16, D.FP8_E5M2),
            (D.FP8_E4M3_FNUZ, D.FLOAT),
            (D.FP4_E2M1, D.BFLOAT16),
            (D.FP8_E4M3, D.INT8),
            (D.UINT4, D.HALF),
            (D.DOUBLE, D.FP8_E4M3),
        )
    ]
    for dtype in (D.FP8_E4M3, D.FP8_E4M3_FNUZ):
        short = dtype.name.lower()
        made += [
            case(f"matmul_{short}_scaled", dtype, dtype, dtype, scaled=True, fast=dtype is D.FP8_E4M3),
            case(f"matmul_{short}_amax", dtype, dtype, dtype, scaled=True, amax=True),
            case(f"matmul_{short}_bias_f16", dtype, dtype, D.HALF, scaled=True, bias=True),
            case(f"matmul_{short}_batch", dtype, dtype, D.BFLOAT16, batch=(3,)),
            case(f"matmul_{short}_batch_32", dtype, dtype, D.FLOAT, dims=(32, 48, 128), batch=(2,)),
            case(f"matmul_{short}_scaled_32", dtype, dtype, dtype, dims=(32, 48, 256), scaled=True, amax=True),
            case(f"matmul_{short}_64", dtype, dtype, D.FLOAT, dims=(64, 64, 64)),
            case(f"matmul_{short}_128t", dtype, dtype, dtype, dims=(128, 64, 256), transposed=True, scaled=True),
        ]
    return made


def conv_graph(
    x_type: DataType,
    w_type: DataType,
    out: DataType,
    dims: Dims,
    filters: int,
    layout: str | None,
    *,
    window: Sequence[int] = (3, 3),
    w_stride: Dims | None = None,
    **options: Any,
) -> Graph:
    """A convolution with scale, bias and ReLU, by default 3x3 with the padding that keeps the size."""
    g = Graph("conv", io_data_type=out, intermediate_data_type=D.FLOAT)
    x = g.tensor("x", dim=dims, layout=layout, data_type=x_type)
    kernel = (filters, dims[1] // options.pop("groups", 1), *window)
    w = g.tensor("w", dim=kernel, layout=None if w_stride else layout, stride=w_stride, data_type=w_type)
    if "pre_padding" not in options:
        options.setdefault("padding", [size // 2 for size in window])
    y = g.conv_fprop(x, w, **options)
    ones = (1,) * len(window)
    y = g.pointwise(M.MUL, y, g.tensor("scale", dim=(1, 1, *ones), data_type=D.FLOAT))
    y = g.pointwise(M.ADD, y, g.tensor("bias", dim=(1, filters, *ones), data_type=D.FLOAT))
    g.pointwise(M.RELU_FWD, y).set_output(True).set_name("y")
    return g


def _convolutions() -> list[OpCase]:
    rows: Sequence[tuple[DataType, DataType, DataType, str]] = [
        (D.FP8_E4M3, D.FP8_E4M3, D.FP8_E4M3, "NHWC"),
        (D.FP8_E4M3_FNUZ, D.FP8_E4M3_FNUZ, D.HALF, "NHWC"),
        (D.FP8_E5M2, D.FP8_E4M3, D.FLOAT, "NCHW"),
        (D.FP8_E5M2_FNUZ, D.FP8_E5M2_FNUZ, D.FP8_E5M2_FNUZ, "NCHW"),
        (D.FP4_E2M1, D.FP8_E4M3, D.HALF, "NHWC"),
        (D.HALF, D.FP6_E3M2, D.HALF, "NHWC"),
        (D.HALF, D.UINT4, D.HALF, "NCHW"),
        (D.FP4_E2M1, D.FLOAT, D.FLOAT, "NHWC"),
        (D.HALF, D.FLOAT, D.FLOAT, "NHWC"),
        (D.INT4, D.FLOAT, D.FLOAT, "NHWC"),
    ]
    made = [
        OpCase(
            f"conv_{x.name.lower()}_{w.name.lower()}_{out.name.lower()}_{layout.lower()}",
            lambda x=x, w=w, out=out, layout=layout: conv_graph(x, w, out, (2, 8, 6, 6), 16, layout),
            _positive_factors,
            fast=n == 0,
        )
        for n, (x, w, out, layout) in enumerate(rows)
    ]
    return made + _native_convolutions()


def _native_convolutions() -> list[OpCase]:
    """Sizes that the matrix instructions of gfx942 (32 channels) and gfx950 (128) divide, and some that they do not."""
    shapes: dict[str, tuple[Dims, int, str | None, dict[str, Any]]] = {
        "3x3_nhwc": ((2, 32, 8, 8), 32, "NHWC", {}),
        "3x3_nchw": ((2, 32, 8, 8), 32, "NCHW", {}),
        "3x3_128_nhwc": ((1, 128, 8, 6), 16, "NHWC", {}),
        "3x3_128_nchw": ((1, 128, 8, 6), 16, "NCHW", {}),
        "1x1_nhwc": ((2, 128, 4, 6), 48, "NHWC", {"window": (1, 1)}),
        "1x1_nchw": ((2, 128, 4, 6), 48, "NCHW", {"window": (1, 1)}),
        "1x1_stride_nhwc": ((2, 128, 8, 8), 16, "NHWC", {"window": (1, 1), "stride": 2}),
        "1x1_transposed": ((2, 128, 4, 4), 16, "NCHW", {"window": (1, 1), "w_stride": (1, 16, 1, 1)}),
        "stride_nhwc": ((2, 128, 16, 16), 16, "NHWC", {"stride": 2}),
        "stride_nchw": ((2, 128, 16, 16), 16, "NCHW", {"stride": 2}),
        "dilation": ((1, 128, 8, 8), 16, "NHWC", {"dilation": 2, "padding": 2}),
        "unpadded": ((1, 128, 10, 10), 16, "NHWC", {"padding": 0}),
        "asymmetric": ((1, 128, 8, 8), 16, "NCHW", {"pre_padding": (2, 0), "post_padding": (0, 2)}),
        "5x3": ((1, 32, 8, 8), 16, "NHWC", {"window": (5, 3)}),
        "whole_window": ((16, 128, 3, 3), 16, "NHWC", {"padding": 0}),
        "places_not_divided": ((1, 128, 5, 7), 16, "NHWC", {}),
        "channels_not_divided": ((1, 24, 8, 8), 16, "NHWC", {}),
        "groups": ((1, 64, 8, 8), 32, "NHWC", {"groups": 2}),
        "mixed_layouts": ((1, 128, 8, 8), 16, "NHWC", {"w_stride": (1152, 9, 3, 1)}),
        "1d": ((4, 128, 16), 16, None, {"window": (3,)}),
        "3d": ((1, 128, 4, 4, 4), 16, None, {"window": (3, 3, 3)}),
    }
    formats = {
        "e4m3": (D.FP8_E4M3, D.FP8_E4M3),
        "e4m3_fnuz": (D.FP8_E4M3_FNUZ, D.FP8_E4M3_FNUZ),
        "e5m2_e4m3": (D.FP8_E5M2, D.FP8_E4M3),
        "e4m3_e5m2_fnuz": (D.FP8_E4M3_FNUZ, D.FP8_E5M2_FNUZ),
    }
    chosen = [(shape, form) for shape in shapes for form in ("e4m3", "e4m3_fnuz")]
    chosen += [(shape, form) for shape in ("3x3_128_nhwc", "1x1_nchw") for form in ("e5m2_e4m3", "e4m3_e5m2_fnuz")]

    def case(shape: str, form: str) -> OpCase:
        (dims, filters, layout, options), (x, w) = shapes[shape], formats[form]
        return OpCase(
            f"conv_native_{shape}_{form}",
            lambda: conv_graph(x, w, x, dims, filters, layout, **dict(options)),
            _positive_factors,
            fast=(shape, form) in (("3x3_nhwc", "e4m3_fnuz"), ("1x1_nchw", "e4m3")),
        )

    return [case(*each) for each in chosen]


def _arithmetic() -> list[OpCase]:
    def build(a: DataType, b: DataType, out: DataType, virtual: DataType) -> Graph:
        g = Graph("pointwise", intermediate_data_type=virtual)
        x, y = g.tensor("x", dim=(3, 8), data_type=a), g.tensor("y", dim=(3, 8), data_type=b)
        z = g.pointwise(M.RELU_FWD, g.pointwise(M.ADD, x, y))
        z.set_output(True).set_name("z").set_data_type(out)
        return g

    return [
        OpCase(
            f"add_{a.name.lower()}_{b.name.lower()}_{virtual.name.lower()}",
            lambda a=a, b=b, out=out, virtual=virtual: build(a, b, out, virtual),
        )
        for a, b, out, virtual in (
            (D.FP8_E4M3, D.FP8_E4M3, D.FP8_E4M3, D.FLOAT),
            (D.FP8_E5M2_FNUZ, D.FLOAT, D.HALF, D.FP8_E5M2_FNUZ),
            (D.FP4_E2M1, D.FP6_E2M3, D.FP6_E3M2, D.FLOAT),
            (D.FLOAT, D.FLOAT, D.FLOAT, D.FP4_E2M1),
            (D.FLOAT, D.FLOAT, D.INT4, D.FLOAT),
            (D.HALF, D.INT4, D.UINT4, D.INT4),
            (D.UINT4, D.UINT4, D.UINT4, D.INT32),
        )
    ]


def _one(make: Any, source: DataType, out: DataType, dims: Dims, layout: str | None = None) -> Graph:
    g = Graph("one", intermediate_data_type=D.FLOAT)
    make(g, g.tensor("x", dim=dims, layout=layout, data_type=source)).set_output(True).set_name("y").set_data_type(out)
    return g


def _norm(g: Graph, x: TensorAttr) -> TensorAttr:
    return g.rmsnorm(x, g.tensor("weight", dim=(1, x.dims[1]), data_type=D.FLOAT), epsilon=1e-5)[0]


def _pool(mode: ResampleMode) -> Any:
    return lambda g, x: g.resample_fwd(x, mode=mode, window=2, stride=2)[0]


def _reduce(mode: ReductionMode) -> Any:
    return lambda g, x: g.reduction(x, mode=mode).set_dim((x.dims[0], 1))


def _other_operations() -> list[OpCase]:
    rows: Sequence[tuple[str, Any, DataType, DataType, Dims, str | None]] = [
        ("rmsnorm", _norm, D.FP8_E4M3, D.FP8_E4M3, (6, 40), None),
        ("rmsnorm", _norm, D.HALF, D.FP8_E5M2_FNUZ, (6, 40), None),
        ("rmsnorm", _norm, D.FP4_E2M1, D.HALF, (6, 40), None),
        ("maxpool", _pool(ResampleMode.MAXPOOL), D.FP8_E5M2, D.FP8_E5M2, (2, 3, 6, 6), "NHWC"),
        ("avgpool", _pool(ResampleMode.AVGPOOL_INCLUDE_PADDING), D.FP8_E4M3, D.FP8_E4M3, (2, 3, 6, 6), "NCHW"),
        ("maxpool", _pool(ResampleMode.MAXPOOL), D.FP4_E2M1, D.FP4_E2M1, (2, 4, 6, 6), "NHWC"),
        ("maxpool", _pool(ResampleMode.MAXPOOL), D.UINT4, D.UINT4, (2, 3, 6, 6), "NCHW"),
        ("amax", _reduce(ReductionMode.AMAX), D.FP8_E4M3, D.FP8_E4M3, (6, 40), None),
        ("add", _reduce(ReductionMode.ADD), D.FP6_E2M3, D.FLOAT, (6, 40), None),
        ("max", _reduce(ReductionMode.MAX), D.INT4, D.INT4, (6, 40), None),
    ]
    return [
        OpCase(
            f"{name}_{source.name.lower()}_{out.name.lower()}",
            lambda make=make, source=source, out=out, dims=dims, layout=layout: _one(make, source, out, dims, layout),
        )
        for name, make, source, out, dims, layout in rows
    ]


CASES = [*_conversions(), *_layouts(), *_products(), *_convolutions(), *_arithmetic(), *_other_operations()]
