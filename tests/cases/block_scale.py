"""Block scaling: the MX and NVFP4 formats, axes, blocks that do not divide, hard values; before and after products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph_api import DataType, Graph, PointwiseMode
from tests.cases import OpCase, Pack

D, M = DataType, PointwiseMode
Dims = tuple[int, ...]
FORMATS: dict[str, tuple[DataType, DataType, int]] = {
    "mxfp8_e4m3": (D.FP8_E4M3, D.FP8_E8M0, 32),
    "mxfp8_e5m2": (D.FP8_E5M2, D.FP8_E8M0, 32),
    "mxfp6_e2m3": (D.FP6_E2M3, D.FP8_E8M0, 32),
    "mxfp6_e3m2": (D.FP6_E3M2, D.FP8_E8M0, 32),
    "mxfp4": (D.FP4_E2M1, D.FP8_E8M0, 32),
    "nvfp4": (D.FP4_E2M1, D.FP8_E4M3, 16),
    "fp8_f32": (D.FP8_E4M3, D.FLOAT, 32),
    "fp8_f16": (D.FP8_E5M2, D.HALF, 16),
    "fp8_bf16": (D.FP8_E4M3, D.BFLOAT16, 16),
    "fnuz_e4m3": (D.FP8_E4M3_FNUZ, D.FP8_E8M0, 32),
    "fnuz_e5m2": (D.FP8_E5M2_FNUZ, D.FLOAT, 16),
}


def quantize_graph(
    y_type: DataType,
    scale_type: DataType,
    block: int,
    dims: Dims = (6, 64),
    x_type: DataType = D.FLOAT,
    *,
    stride: Dims | None = None,
    y_stride: Dims | None = None,
    before: Callable[[Graph, Any], Any] | None = None,
    **options: Any,
) -> Graph:
    """One quantisation of what ``before`` makes of x."""
    g = Graph("quantize", intermediate_data_type=D.FLOAT)
    x = g.tensor("x", dim=dims, stride=stride, data_type=x_type)
    y, scale = g.block_scale_quantize(before(g, x) if before else x, block_size=block, **options)
    y.set_output(True).set_name("y").set_data_type(y_type)
    if y_stride is not None:
        y.set_stride(y_stride)
    scale.set_output(True).set_name("scale").set_data_type(scale_type)
    return g


def dequantize_graph(
    x_type: DataType,
    scale_type: DataType,
    blocks: Dims,
    dims: Dims = (6, 64),
    out: DataType = D.FLOAT,
    *,
    stride: Dims | None = None,
    **options: Any,
) -> Graph:
    """One dequantisation."""
    g = Graph("dequantize")
    x = g.tensor("x", dim=dims, stride=stride, data_type=x_type)
    sizes = (*(1 for _ in range(len(dims) - len(blocks))), *blocks)
    of_blocks = tuple(-(-dim // size) for dim, size in zip(dims, sizes, strict=True))
    scale = g.tensor("scale", dim=of_blocks, data_type=scale_type)
    y = g.block_scale_dequantize(x, scale, block_size=blocks, **options)
    y.set_output(True).set_name("y").set_data_type(out)
    return g


def _hard(g: Graph) -> Pack:
    """Blocks of zeros, of one value, with NaN, infinities, powers of two, and largest values just beside those."""
    pack = g.random_inputs(seed=6)
    (x,) = (tensor for tensor in pack if tensor.name == "x")
    array = pack[x]
    with np.errstate(over="ignore"):
        rows = array.reshape(array.shape[0], -1)
        rows[0] = 0
        rows[1, :3] = np.array([np.nan, 3.0, -0.0]).astype(array.dtype)
        rows[2] = (rows[2].astype(np.float64) * 2.0**-20).astype(array.dtype)
        rows[3, 0], rows[3, -1] = (array.dtype.type(value) for value in (448.0, 6.0))
        beside = np.nextafter(np.float32(448.0), np.float32(500)), np.nextafter(np.float32(7.5), np.float32(0))
        rows[4, 0], rows[4, -1] = (array.dtype.type(value) for value in beside)
        rows[5] = array.dtype.type(1.5)
    array[...] = rows.reshape(array.shape)
    return pack


def _extreme(g: Graph) -> Pack:
    """Infinities, and the largest and least magnitudes of FLOAT."""
    pack = _hard(g)
    (array,) = pack.values()
    array[0, 0], array[1, 1], array[2] = np.inf, -np.inf, 3e38
    array[3] = np.float32(2.0**-126) * np.arange(1, array.shape[1] + 1)
    return pack


def _all_codes(g: Graph) -> Pack:
    """Every code of x and of the scale."""
    pack = {}
    for tensor in g.arguments().inputs:
        array = tensor.empty()
        if tensor.data_type.is_small_float:
            codes = np.arange(tensor.volume) * 7 % 2**tensor.data_type.bits
            array[...] = codes.astype(np.uint8).view(array.dtype).reshape(array.shape)
        else:
            array[...] = g.random_inputs(seed=8)[tensor]
        pack[tensor] = array
    return pack


def _quantisations() -> list[OpCase]:
    made = [
        OpCase(
            f"quantize_{name}_{_short(x)}",
            lambda format=format, x=x: quantize_graph(*format, x_type=x),
            _hard,
            {"y": (6, 64), "scale": (6, 64 // format[2])},
            fast=x is D.FLOAT and name in ("mxfp8_e4m3", "mxfp6_e3m2", "mxfp4", "nvfp4", "fp8_f16"),
        )
        for name, format in FORMATS.items()
        for x in (D.FLOAT, D.HALF, D.BFLOAT16)
    ]
    made += [
        OpCase(f"quantize_{name}_extreme", lambda format=format: quantize_graph(*format), _extreme)
        for name, format in FORMATS.items()
        if format[1] is D.FP8_E8M0
    ]
    shapes: list[tuple[str, Dims, int, dict[str, Any]]] = [
        ("axis_0", (64, 6), 32, {"axis": 0}),
        ("axis_1_of_3", (3, 32, 5), 16, {"axis": 1}),
        ("axis_1_nhwc", (2, 32, 3, 5), 16, {"axis": 1, "stride": (480, 1, 160, 32)}),
        ("axis_1_nchw", (2, 32, 3, 5), 16, {"axis": 1}),
        ("transposed", (64, 48), 16, {"axis": 0, "transpose": True}),
        ("transposed_last", (64, 48), 16, {"axis": 1, "transpose": True, "stride": (1, 64)}),
        ("transposed_no_axis", (6, 48), 16, {"transpose": True}),
        ("not_divided", (6, 50), 16, {}),
        ("not_divided_axis_0", (50, 6), 16, {"axis": 0}),
        ("larger_than_dim", (6, 13), 32, {}),
        ("blocks_of_1", (6, 16), 1, {}),
        ("one_element", (1, 1), 32, {}),
        ("rank_1", (64,), 32, {}),
        ("gaps", (6, 64), 32, {"stride": (80, 1), "y_stride": (72, 1)}),
        ("repeated", (6, 64), 32, {"stride": (0, 1)}),
        ("blocks_of_4", (16, 96, 8), 4, {}),
        ("small_blocks", (14, 48, 96), 4, {"stride": (4608, 1, 48), "x_type": D.HALF}),
    ]
    for name in ("mxfp8_e4m3", "nvfp4", "mxfp6_e2m3"):
        y_type, scale_type, _ = FORMATS[name]
        for label, dims, block, options in shapes:
            made.append(
                OpCase(
                    f"quantize_{name}_{label}",
                    lambda y=y_type, s=scale_type, b=block, d=dims, o=options: quantize_graph(y, s, b, d, **o),
                    dims={"y": dims},
                    fast=label == "not_divided" and name == "nvfp4",
                )
            )
    for name in ("mxfp8_e4m3", "fp8_f32", "fp8_f16"):
        made.append(
            OpCase(
                f"quantize_{name}_f64",
                lambda f=FORMATS[name]: quantize_graph(*f, x_type=D.DOUBLE, compute_data_type=D.DOUBLE),
                _hard,
            )
        )
    declined: dict[str, str] = dict.fromkeys(("llvm-cpu", "rocm", "cuda"), "dtype")
    made += [
        OpCase("quantize_to_i8", lambda: quantize_graph(D.INT8, D.FLOAT, 16), declined=declined),
        OpCase("quantize_scale_i32", lambda: quantize_graph(D.FP8_E4M3, D.INT32, 16), declined=declined),
    ]
    return made


def _dequantisations() -> list[OpCase]:
    made = [
        OpCase(
            f"dequantize_{name}_{_short(out)}",
            lambda f=format, out=out: dequantize_graph(f[0], f[1], (f[2],), out=out),
            _all_codes if out is D.FLOAT and f"{format[1].name}" in ("FP8_E8M0", "FP8_E4M3") else None,
            fast=out is D.FLOAT and name in ("mxfp8_e4m3", "mxfp4", "mxfp6_e3m2"),
        )
        for name, format in FORMATS.items()
        for out in (D.FLOAT, D.HALF, D.BFLOAT16)
    ]
    shapes: list[tuple[str, Dims, Dims, dict[str, Any]]] = [
        ("two_dims", (8, 64), (4, 16), {}),
        ("three_dims", (4, 6, 10), (2, 3, 5), {}),
        ("not_divided", (7, 50), (4, 16), {}),
        ("columns", (64, 6), (32, 1), {}),
        ("one_element", (1, 1), (32,), {}),
        ("transposed", (64, 48), (16, 1), {"stride": (1, 64)}),
        ("gaps", (6, 64), (32,), {"stride": (80, 1)}),
        ("repeated", (6, 64), (32,), {"stride": (0, 1)}),
    ]
    for x_type, scale_type in ((D.FP8_E4M3, D.FP8_E8M0), (D.FP4_E2M1, D.FP8_E4M3), (D.INT8, D.FLOAT)):
        for label, dims, blocks, options in shapes:
            made.append(
                OpCase(
                    f"dequantize_{x_type.name.lower()}_{label}",
                    lambda x=x_type, s=scale_type, d=dims, b=blocks, o=options: dequantize_graph(x, s, b, d, **o),
                    dims={"y": dims},
                )
            )
    for scale_type in (D.FLOAT, D.INT8, D.FP8_E4M3, D.FP8_E8M0):
        made.append(
            OpCase(
                f"dequantize_negative_{scale_type.name.lower()}",
                lambda s=scale_type: dequantize_graph(D.FP8_E4M3, s, (16,), is_negative_scale=True),
                fast=scale_type is D.INT8,
            )
        )
    made.append(
        OpCase(
            "dequantize_f64",
            lambda: dequantize_graph(D.FP8_E5M2, D.FP8_E8M0, (16,), out=D.DOUBLE, compute_data_type=D.DOUBLE),
        )
    )
    return made


def product_graph(
    name: str,
    dims: tuple[int, int, int] = (32, 48, 64),
    out: DataType = D.FLOAT,
    *,
    requantize: bool = False,
    values: DataType = D.FLOAT,
) -> Graph:
    """Two operands scaled in blocks of K, multiplied; bias, ReLU and quantisation where asked for."""
    kind, scale_kind, block = FORMATS[name]
    m, n, k = dims
    g = Graph("product", intermediate_data_type=values)
    a = g.tensor("a", dim=(m, k), data_type=kind)
    b = g.tensor("b", dim=(k, n), stride=(1, k), data_type=kind)
    blocks = -(-k // block)
    scale_a = g.tensor("scale_a", dim=(m, blocks), data_type=scale_kind)
    scale_b = g.tensor("scale_b", dim=(blocks, n), stride=(1, blocks), data_type=scale_kind)
    y = g.matmul(
        g.block_scale_dequantize(a, scale_a, block_size=(1, block)),
        g.block_scale_dequantize(b, scale_b, block_size=(block, 1)),
    )
    if requantize:
        y = g.pointwise(M.RELU_FWD, g.pointwise(M.ADD, y, g.tensor("bias", dim=(1, n), data_type=D.FLOAT)))
        y, scale = g.block_scale_quantize(y, block_size=16)
        scale.set_output(True).set_name("scale").set_data_type(scale_kind)
        out = kind
    y.set_output(True).set_name("c").set_data_type(out)
    return g


def _conv_then_quantize(g: Graph, x: Any) -> Any:
    w = g.tensor("w", dim=(32, x.dims[1], 3, 3), stride=(9 * x.dims[1], 1, 3 * x.dims[1], x.dims[1]), data_type=D.HALF)
    y = g.conv_fprop(x, w, padding=(1, 1), stride=(1, 1), dilation=(1, 1))
    return g.pointwise(M.RELU_FWD, g.pointwise(M.ADD, y, g.tensor("bias", dim=(1, 32, 1, 1), data_type=D.FLOAT)))


def _norm_then_quantize(g: Graph, x: Any) -> Any:
    return g.rmsnorm(x, g.tensor("weight", dim=(1, x.dims[1]), data_type=D.FLOAT), epsilon=1e-5)[0]


def _gelu_then_quantize(g: Graph, x: Any) -> Any:
    return g.pointwise(M.GELU_APPROX_TANH_FWD, x)


def _with_others() -> list[OpCase]:
    made = [
        OpCase(f"product_{name}", lambda name=name: product_graph(name), fast=name in ("mxfp8_e4m3", "nvfp4"))
        for name in FORMATS
    ]
    made += [
        OpCase(f"product_{name}_f16", lambda name=name: product_graph(name, (64, 64, 128), D.HALF, values=D.HALF))
        for name in ("mxfp8_e4m3", "mxfp4", "nvfp4")
    ]
    made += [
        OpCase(f"product_{name}_quantized", lambda name=name: product_graph(name, requantize=True))
        for name in ("mxfp8_e4m3", "mxfp4", "nvfp4")
    ]
    channels_last: dict[str, Any] = {"stride": (1024, 1, 128, 16), "axis": 1}
    rows: list[tuple[str, Dims, Callable[[Graph, Any], Any], dict[str, Any]]] = [
        ("conv", (2, 16, 8, 8), _conv_then_quantize, {"x_type": D.HALF, **channels_last}),
        ("rmsnorm", (6, 64), _norm_then_quantize, {"x_type": D.BFLOAT16}),
        ("gelu", (6, 64), _gelu_then_quantize, {"x_type": D.HALF}),
    ]
    for label, dims, before, options in rows:
        for name in ("mxfp8_e4m3", "nvfp4"):
            made.append(
                OpCase(
                    f"{label}_then_quantize_{name}",
                    lambda f=FORMATS[name], d=dims, before=before, o=options: quantize_graph(*f, d, before=before, **o),
                )
            )
    return made


def _short(dtype: DataType) -> str:
    return {D.FLOAT: "f32", D.HALF: "f16", D.BFLOAT16: "bf16"}[dtype]


CASES = [*_quantisations(), *_dequantisations(), *_with_others()]
