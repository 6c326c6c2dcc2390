"""What the compiler made wrong code of for AMD chips, emulated: right now, and nothing is read outside.

Expected values are PyTorch's in float64 for the convolutions, the tables' own otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fusilli_plugin.emulator import Emulator, Verdict
from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode, TensorAttr
from graph_api.layout import strides_in_order
from iree_bridge import Target
from tests.cases import family_cases

pytestmark = pytest.mark.mlir

F16, BF16, F32 = DataType.HALF, DataType.BFLOAT16, DataType.FLOAT
TOLERANCE = {F32: 2e-5, F16: 2e-3, BF16: 1.6e-2}  # of the largest value

Arrays = dict[TensorAttr, np.ndarray[Any, Any]]

TABLES = [
    ("conv", "point_fprop"),  # the tail of K was not masked
    ("conv", "point_dgrad"),
    ("conv", "c289_dgrad"),
    ("conv", "groups_point_fprop"),
    ("conv", "groups_point_dgrad"),
    ("conv", "filters_48_point_stride_2_nchw_fprop"),
    ("conv", "layout_rsck_dgrad"),
    ("conv", "layout_y_nhwc_dgrad"),
    ("conv", "image_1x1_fprop"),  # a kernel that only pads
    ("conv", "image_1x1_dgrad"),
    ("conv", "image_1x1_wgrad"),
    ("resample", "3d_max"),
    ("resample", "uint8_nchw_max"),
    ("resample", "3d_zero_max"),
    ("conv", "mirrored_dilated_stride_2_wgrad"),  # the order of K
    ("reduction", "max_nan"),  # NaN in extremes
    ("reduction", "min_nan"),
    ("reduction", "amax_nan"),
    ("resample", "special_max"),
]
CONVOLUTIONS = {
    "tail_f16_13_channels": ("fprop", F16, (2, 13, 5, 2), (96, 13, 1, 1), {}),
    "tail_f16_12_channels": ("fprop", F16, (2, 12, 7, 7), (32, 12, 1, 1), {}),
    "tail_f16_70_channels": ("fprop", F16, (2, 70, 7, 7), (64, 70, 1, 1), {}),
    "tail_f32_3_channels": ("fprop", F32, (2, 3, 7, 7), (32, 3, 1, 1), {}),
    "tail_bf16_stride_2": ("fprop", BF16, (2, 24, 28, 28), (24, 24, 1, 1), {"stride": 2}),
    "groups_dgrad_f16": ("dgrad", F16, (2, 24, 6, 6), (24, 12, 1, 1), {}),
    "wgrad_stride_2": ("wgrad", F32, (1, 8, 9, 9), (8, 8, 3, 3), {"stride": 2}),
    # filters channels last beside images channels first: K in two orders
    "mixed_layouts_f32": ("fprop", F32, (3, 31, 4, 8), (3, 31, 1, 2), {"layouts": ("NCHW", "NHWC")}),
    "mixed_layouts_bf16": ("fprop", BF16, (3, 4, 6, 6), (96, 2, 2, 2), {"layouts": ("NCHW", "NHWC")}),
    # a sum that was split over kernels
    "dgrad_split": ("dgrad", F32, (5, 4, 2, 7), (64, 4, 3, 7), {"padding": (1, 3), "stride": (1, 3)}),
    "wgrad_split": ("wgrad", F16, (16, 3, 8, 28), (3, 3, 1, 7), {"padding": (0, 3)}),
    "dgrad_channels_first": ("dgrad", F16, (8, 24, 4, 4), (8, 24, 1, 3), {}),
    "dilated_channels_last": ("fprop", F32, (3, 8, 14, 3), (5, 8, 2, 2), {"layouts": ("NHWC", "NHWC"), "dilation": 2}),
}
WRAPPING = {  # negative offsets in registers, of filters that are read backwards
    "dgrad_channels_last": ("dgrad", F16, (1, 16, 9, 9), (24, 16, 3, 3), {"padding": 1, "layouts": ("NHWC", "NHWC")}),
    "dgrad_stride": ("dgrad", F32, (2, 5, 9, 9), (7, 5, 3, 3), {"stride": 2}),
    "dgrad_one_row": ("dgrad", F32, (1, 8, 4, 1), (6, 8, 3, 1), {"stride": 2}),
}
NCHW, CHANNELS_LAST, CRSK = (0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0)
SWAPPED, SWAPPED_LAST, MIDDLE = (0, 1, 3, 2), (0, 3, 2, 1), (2, 1, 0, 3)
ORDERS = [  # direction, first operand's order of dims, the second's, the result's
    ("fprop", NCHW, SWAPPED, NCHW),
    ("fprop", CHANNELS_LAST, SWAPPED_LAST, CHANNELS_LAST),
    ("fprop", SWAPPED, NCHW, SWAPPED),
    ("fprop", NCHW, NCHW, SWAPPED),
    ("fprop", MIDDLE, CRSK, NCHW),
    ("dgrad", SWAPPED, SWAPPED, SWAPPED),
    ("wgrad", SWAPPED, MIDDLE, NCHW),
    ("wgrad", NCHW, CHANNELS_LAST, SWAPPED_LAST),
]
FLAT_FILTERS = [((6, 13, 1, 3), (1, 2)), ((6, 13, 3, 1), (2, 1))]
FEW_PIXELS = {
    "fprop": ("fprop", F16, (1, 7, 2, 2), (65, 7, 1, 1), {}),
    "fprop_channels_last": ("fprop", F16, (4, 7, 1, 1), (65, 7, 1, 1), {"layouts": ("NHWC", "NHWC")}),
    "dgrad": ("dgrad", F16, (1, 65, 2, 2), (7, 65, 1, 1), {"layouts": ("NHWC", "NHWC")}),
    "wgrad": ("wgrad", F16, (1, 96, 5, 5), (4, 96, 1, 1), {}),
}
IN_FIVES_AND_SEVENS = [(4, 7, 65), (3, 95, 117), (65, 7, 2), (2, 25, 128)]


def _convolution(
    kind: str, dtype: DataType, x: Sequence[int], w: Sequence[int], options: Mapping[str, Any]
) -> tuple[Graph, Arrays, Arrays]:
    layouts = options.get("layouts", ("NCHW", "NCHW"))
    given = {name: options.get(name, default) for name, default in (("padding", 0), ("stride", 1), ("dilation", 1))}
    given = {name: value if isinstance(value, tuple) else (value, value) for name, value in given.items()}
    padding, stride, dilation = given.values()
    size = [(x[i + 2] + 2 * padding[i] - (w[i + 2] - 1) * dilation[i] - 1) // stride[i] + 1 for i in range(2)]
    dims = {"x": tuple(x), "w": tuple(w), "dy": (x[0], w[0], *size)}
    used = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}[kind]
    g = Graph(kind, io_data_type=dtype, compute_data_type=F32)
    tensors = [g.tensor(name, dim=dims[name], layout=layout) for name, layout in zip(used, layouts, strict=True)]
    add = {"fprop": g.conv_fprop, "dgrad": g.conv_dgrad, "wgrad": g.conv_wgrad}[kind]
    out = add(*tensors, **given).set_output(True)
    if kind != "fprop":
        out.set_dim(dims["x" if kind == "dgrad" else "w"])
    g.validate()
    pack = g.random_inputs(seed=1)
    return g, pack, {out: _gradient_or_not(kind, tensors, pack, dims, groups=x[1] // w[1], **given)}


def _gradient_or_not(
    kind: str, tensors: Sequence[TensorAttr], pack: Arrays, dims: Mapping[str, Sequence[int]], **given: Any
) -> np.ndarray[Any, Any]:
    """The convolution, or a gradient of it, by PyTorch in float64."""
    a, b = (torch.from_numpy(np.ascontiguousarray(np.asarray(pack[t]).astype(np.float64))) for t in tensors)
    conv2d = torch.nn.functional.conv2d
    if kind == "fprop":
        return conv2d(a, b, **given).numpy()
    of = torch.zeros(tuple(dims["x" if kind == "dgrad" else "w"]), dtype=torch.float64, requires_grad=True)
    made = conv2d(of, b, **given) if kind == "dgrad" else conv2d(b, of, **given)
    return torch.autograd.grad(made, of, a)[0].numpy()


def _assert_near(results: Arrays, wanted: Arrays) -> None:
    for tensor, want in wanted.items():
        got = np.asarray(results[tensor]).astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[tensor.data_type] * np.abs(want).max())


@pytest.mark.a_few("conv-layout_y_nhwc_dgrad", "reduction-max_nan", "resample-special_max")
@pytest.mark.parametrize(("family", "name"), TABLES, ids=str)
def test_case_of_the_tables(family: str, name: str) -> None:
    case = next(case for case in family_cases(family) if case.name == name)
    graph = case.graph()
    outcome = Emulator(Target.parse("gfx942")).examine(graph, case.pack(graph))
    assert outcome.verdict is Verdict.RIGHT, outcome.text


@pytest.mark.a_few("tail_f32_3_channels", "tail_f16_13_channels")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    graph, pack, wanted = _convolution(*CONVOLUTIONS[name])
    results, _ = Emulator(Target.parse("gfx942")).run(graph, pack)
    _assert_near(results, wanted)


@pytest.mark.a_few("dgrad_one_row")
@pytest.mark.parametrize("name", WRAPPING)
def test_offsets_need_not_wrap(name: str) -> None:
    """Right whether or not hardware takes the sum of a buffer's offsets modulo 2**32."""
    graph, pack, wanted = _convolution(*WRAPPING[name])
    code = Emulator(Target.parse("gfx942")).code(graph)
    for wrap in (True, False):
        results, _ = Emulator(Target.parse("gfx942"), offsets_wrap=wrap).run(graph, pack, code)
        _assert_near(results, wanted)


@pytest.mark.thorough
def test_offsets_of_a_depthwise_gradient_need_not_wrap() -> None:
    case = next(case for case in family_cases("conv") if case.name == "1d_depthwise_wgrad")
    graph = case.graph()
    outcome = Emulator(Target.parse("gfx942"), offsets_wrap=False).examine(graph, case.pack(graph))
    assert outcome.ok, outcome.text


@pytest.mark.thorough
def test_offsets_of_a_product_need_not_wrap() -> None:
    g = Graph("product", io_data_type=F32, compute_data_type=F32)
    a, b = g.tensor("a", dim=(3, 33, 75)), g.tensor("b", dim=(3, 75, 49))
    out = g.matmul(a, b).set_output(True)
    pack = g.validate().random_inputs(seed=0)
    want = np.asarray(pack[a]).astype(np.float64) @ np.asarray(pack[b]).astype(np.float64)
    code = Emulator(Target.parse("gfx942")).code(g)
    for wrap in (True, False):
        results, _ = Emulator(Target.parse("gfx942"), offsets_wrap=wrap).run(g, pack, code)
        _assert_near(results, {out: want})


@pytest.mark.a_few("fprop-(0, 1, 2, 3)-(0, 1, 2, 3)-(0, 1, 3, 2)")
@pytest.mark.parametrize(("kind", "first", "second", "result"), ORDERS, ids=str)
def test_any_order_of_dims(kind: str, first: Sequence[int], second: Sequence[int], result: Sequence[int]) -> None:
    """Implicit GEMM takes the image's elements in the order in which they lie and the filters' in another."""
    dims = {"x": (2, 4, 7, 9), "w": (16, 4, 3, 2), "dy": (2, 16, 5, 8)}
    used = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}[kind]
    g = Graph(kind, io_data_type=F16, compute_data_type=F32)
    tensors = [
        g.tensor(name, dim=dims[name], stride=strides_in_order(dims[name], order))
        for name, order in zip(used, (first, second), strict=True)
    ]
    of = dims[{"fprop": "dy", "dgrad": "x", "wgrad": "w"}[kind]]
    out = {"fprop": g.conv_fprop, "dgrad": g.conv_dgrad, "wgrad": g.conv_wgrad}[kind](*tensors).set_output(True)
    out.set_dim(of).set_stride(strides_in_order(of, result))
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near(results, {out: _gradient_or_not(kind, tensors, pack, dims)})


@pytest.mark.a_few("('NCHW', 'NHWC')-(6, 13, 1, 3)-(1, 2)")
@pytest.mark.parametrize(("filters", "stride"), FLAT_FILTERS, ids=str)
@pytest.mark.parametrize("layouts", [("NCHW", "NHWC"), ("NHWC", "NCHW")], ids=str)
def test_flat_filters_in_another_layout(
    filters: Sequence[int], stride: Sequence[int], layouts: tuple[str, str]
) -> None:
    """Channels last was not told of filters of one row."""
    dims = {"x": (1, 13, 4, 8), "w": filters}
    g = Graph("fprop", io_data_type=BF16, compute_data_type=F32)
    tensors = [g.tensor(name, dim=dims[name], layout=layout) for name, layout in zip("xw", layouts, strict=True)]
    out = g.conv_fprop(*tensors, stride=list(stride)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near(results, {out: _gradient_or_not("fprop", tensors, pack, dims, stride=tuple(stride))})


@pytest.mark.a_few("activation")
@pytest.mark.parametrize("between", ["convolution", "activation"])
def test_an_image_that_is_made_in_another_order_than_its_strides_say(between: str) -> None:
    """seed 11000159 of `fusilli fuzz`: a value has no strides, but the filters behind it were laid as if it had."""
    g = Graph("chain", io_data_type=F32)
    dims = {"x": (1, 2, 8), "w": (4, 2, 1) if between == "convolution" else (4, 2, 3), "v": (3, 4, 3)}
    x, w = (g.tensor(name, dim=dims[name]) for name in "xw")
    v = g.tensor("v", dim=dims["v"]) if between == "convolution" else None
    if v is not None:
        y = g.conv_fprop(x, w).set_dim((1, 4, 8)).set_stride((32, 1, 4))
        out = g.conv_fprop(y, v, stride=2).set_output(True)
    else:
        y = g.pointwise(PointwiseMode.NEG, x).set_dim((1, 2, 8)).set_stride((16, 1, 2))
        out = g.conv_fprop(y, w, stride=2).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    image, first = (torch.from_numpy(np.asarray(each, np.float64)) for each in (pack[x], pack[w]))
    if v is not None:
        last = torch.from_numpy(np.asarray(pack[v], np.float64))
        wanted = torch.nn.functional.conv1d(torch.nn.functional.conv1d(image, first), last, stride=2)
    else:
        wanted = torch.nn.functional.conv1d(-image, first, stride=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near(results, {out: wanted.numpy()})


@pytest.mark.a_few("(65, 7, 2)")
@pytest.mark.parametrize("sizes", IN_FIVES_AND_SEVENS, ids=str)
def test_few_rows_in_vectors_of_five_and_seven(sizes: tuple[int, int, int]) -> None:
    """The compiler aborted: "Cannot select"."""
    m, k, n = sizes
    g = Graph("product", io_data_type=F16, compute_data_type=F32)
    a, b = g.tensor("a", dim=(m, k)), g.tensor("b", dim=(k, n))
    out = g.matmul(a, b).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near(results, {out: np.asarray(pack[a]).astype(np.float64) @ np.asarray(pack[b]).astype(np.float64)})


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "terms"), [("a", 35), ("b", 65)])
def test_one_row_that_is_decoded_in_vectors_of_five_and_seven(side: str, terms: int) -> None:
    """seed 1000858 of `fusilli fuzz`: the compiler aborted, "Cannot select"."""
    dims, blocks = ((1, terms), (1, -(-terms // 8))) if side == "a" else ((terms, 1), (-(-terms // 8), 1))
    g = Graph("product", io_data_type=F16, compute_data_type=F32, intermediate_data_type=F16)
    codes = g.tensor("codes", dim=dims, data_type=DataType.FP4_E2M1)
    scales = g.tensor("scales", dim=blocks, data_type=F32)
    made = g.block_scale_dequantize(codes, scales, block_size=(1, 8) if side == "a" else (8, 1))
    other = g.tensor("other", dim=(terms, 2) if side == "a" else (2, terms))
    out = (g.matmul(made, other) if side == "a" else g.matmul(other, made)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    axis = dims.index(terms)
    factors = np.repeat(np.asarray(pack[scales], np.float64), 8, axis)
    row = np.asarray(pack[codes]).astype(np.float64) * np.take(factors, range(terms), axis)
    matrix = np.asarray(pack[other]).astype(np.float64)
    _assert_near(results, {out: row @ matrix if side == "a" else matrix @ row})


@pytest.mark.a_few("INT8 FP4_E2M1-(2, 16, 16)")
@pytest.mark.parametrize("sizes", [(2, 16, 16), (4, 32, 16)], ids=str)
@pytest.mark.parametrize(
    "types",
    [
        (DataType.FP4_E2M1, DataType.FP8_E5M2),
        (DataType.INT4, DataType.FP8_E4M3),
        (DataType.FP4_E2M1, BF16),
        (DataType.INT8, DataType.FP4_E2M1),
    ],
    ids=lambda pair: f"{pair[0].name} {pair[1].name}",
)
def test_an_operand_of_four_bits_beside_one_that_is_converted(
    types: tuple[DataType, DataType], sizes: tuple[int, int, int]
) -> None:
    """seed 1001775 of `fusilli fuzz`: zeros and NaN, as registers that nobody wrote are."""
    m, k, n = sizes
    g = Graph("product", io_data_type=F32, compute_data_type=F32)
    a, b = g.tensor("a", dim=(m, k), data_type=types[0]), g.tensor("b", dim=(k, n), data_type=types[1])
    out = g.matmul(a, b).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near(results, {out: np.asarray(pack[a]).astype(np.float64) @ np.asarray(pack[b]).astype(np.float64)})


@pytest.mark.thorough
@pytest.mark.parametrize("name", FEW_PIXELS)
def test_few_pixels_in_vectors_of_five_and_seven(name: str) -> None:
    graph, pack, wanted = _convolution(*FEW_PIXELS[name])
    results, _ = Emulator(Target.parse("gfx942")).run(graph, pack)
    _assert_near(results, wanted)


SKINNY = [(5, 32, 256), (8, 32, 256), (3, 48, 128)]


@pytest.mark.a_few("(8, 32, 256)-gfx90a", "(3, 48, 128)-gfx942")
@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("sizes", SKINNY, ids=str)
def test_products_of_few_rows(sizes: tuple[int, int, int], chip: str) -> None:
    """The compiler refused them for gfx90a and was killed by SIGFPE for gfx950."""
    m, n, k = sizes
    g = Graph("product", io_data_type=F16, compute_data_type=F32)
    g.matmul(g.tensor("a", dim=(m, k)), g.tensor("b", dim=(k, n))).set_output(True)
    outcome = Emulator(Target.parse(chip)).examine(g.validate())
    assert outcome.ok, outcome.text


@pytest.mark.a_few("DataType.BFLOAT16-ReductionMode.MIN", "DataType.INT32-ReductionMode.MAX")
@pytest.mark.parametrize("mode", [ReductionMode.MAX, ReductionMode.MIN], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, DataType.DOUBLE, DataType.INT32, DataType.INT64], ids=str)
def test_extremes_of_one_sign(dtype: DataType, mode: ReductionMode) -> None:
    """Maxima of negative rows were 0 and minima of positive ones -0: parts of them began there."""
    sign = 1 if mode is ReductionMode.MIN else -1
    g = Graph("extreme", io_data_type=dtype, compute_data_type=F32 if dtype is BF16 else dtype)
    x = g.tensor("x", dim=(4, 64))
    out = g.reduction(x, mode=mode).set_dim((4, 1)).set_output(True)
    drawn = np.random.default_rng(1).integers(3, 90, (4, 64))
    pack = {x: (sign * drawn).astype(g.validate().random_inputs(seed=0)[x].dtype)}
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    assert np.array_equal(np.asarray(results[out]).astype(int), sign * drawn.min(axis=1, keepdims=True))


@pytest.mark.a_few("DataType.FLOAT", "DataType.INT64")
@pytest.mark.parametrize("dtype", [F32, F16, DataType.DOUBLE, DataType.INT8, DataType.INT32, DataType.INT64], ids=str)
def test_large_max_pools_of_negative_numbers(dtype: DataType) -> None:
    """They were 0, as maxima of rows were."""
    g = Graph(
        "pool",
        io_data_type=dtype,
        compute_data_type=dtype if dtype.bits == 64 else F32 if dtype.is_float else DataType.INT32,
    )
    x = g.tensor("x", dim=(2, 64, 16, 8))
    out = g.resample_fwd(x, mode=ResampleMode.MAXPOOL, window=8, stride=8)[0].set_output(True)
    drawn = -np.random.default_rng(1).integers(3, 90, (2, 64, 16, 8))
    results, _ = Emulator(Target.parse("gfx942")).run(g, {x: drawn.astype(g.validate().random_inputs(seed=0)[x].dtype)})
    want = drawn.reshape(2, 64, 2, 8, 1, 8).max(axis=(3, 5))
    assert np.array_equal(np.asarray(results[out]).astype(int), want)


@pytest.mark.a_few("DataType.BFLOAT16")
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_few_rows_times_a_batch_for_gfx950(dtype: DataType) -> None:
    """The tail of the terms was multiplied with what nobody wrote."""
    g = Graph("product", io_data_type=dtype, compute_data_type=F32)
    a, b = g.tensor("a", dim=(1, 8, 112)), g.tensor("b", dim=(3, 112, 96), stride=(96, 288, 1))
    out = g.matmul(a, b).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx950")).run(g, pack)
    _assert_near(results, {out: np.asarray(pack[a]).astype(np.float64) @ np.asarray(pack[b]).astype(np.float64)})


def _made_image(seed: int) -> Graph:
    """A convolution, forward or a gradient, of an image that is made in the graph of what something else may read too.

    Orders of dims in memory vary: that of what the image is made of, of the image, of the filters, of the other result.
    """
    chance = random.Random(seed)
    spatial = chance.choice([(1, chance.randint(3, 6)), (chance.randint(3, 5), chance.randint(3, 6))])
    n, c, k = chance.randint(1, 2), chance.choice((2, 3, 5, 8)), chance.choice((1, 2, 4))
    window = (min(spatial[0], chance.randint(1, 2)), chance.randint(2, 3))
    io, compute = chance.choice([(F32, F32), (F32, DataType.DOUBLE), (F16, F32), (BF16, F32)])
    kind = chance.choice(["fprop", "fprop", "dgrad", "wgrad"])
    positions = tuple(size - met + 1 for size, met in zip(spatial, window, strict=True))
    image = (n, k, *positions) if kind == "dgrad" else (n, c, *spatial)
    first, last = (0, 1, 2, 3), (0, 2, 3, 1)
    main, other = chance.choice([(first, last), (last, first)])

    def lies(dims: Sequence[int], order: Sequence[int] | None = None) -> dict[str, Any]:
        return {"dim": dims, "stride": strides_in_order(dims, order or chance.choice((first, last)))}

    g = Graph("made", io_data_type=io, compute_data_type=compute, intermediate_data_type=compute)
    source = g.tensor("source", **lies(image, main))
    mode = chance.choice([PointwiseMode.NEG, PointwiseMode.RELU_FWD, PointwiseMode.ABS])
    made = g.pointwise(mode, source)
    made.set_dim(image).set_stride(strides_in_order(image, main if chance.random() < 0.7 else other))
    made.set_output(chance.random() < 0.2)
    if chance.random() < 0.8:
        more = g.pointwise(PointwiseMode.ADD, source if chance.random() < 0.7 else made, g.tensor("one", dim=(1,) * 4))
        more.set_dim(image).set_stride(strides_in_order(image, other)).set_output(True)
    filters = (k, c, *window)
    if kind == "fprop":
        out, dims = g.conv_fprop(made, g.tensor("w", **lies(filters))), (n, k, *positions)
    elif kind == "dgrad":
        out, dims = g.conv_dgrad(made, g.tensor("w", **lies(filters))), (n, c, *spatial)
    else:
        out, dims = g.conv_wgrad(g.tensor("dy", **lies((n, k, *positions))), made), filters
    out.set_dim(dims).set_stride(lies(dims)["stride"]).set_output(True)
    return g.validate()


@pytest.mark.parametrize("seed", [*(13, 19, 0), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 80))])
def test_images_that_are_made_in_any_order(seed: int) -> None:
    """Seed 912700001335 of `fusilli fuzz`: an image lay otherwise than its strides said, for something else read it."""
    g = _made_image(seed)
    outcome = Emulator("gfx942").examine(g, g.random_inputs(seed=seed))
    assert outcome.ok, outcome.text


def test_an_image_that_something_else_reads_in_another_order() -> None:
    """The same seed, small: by hand."""
    g = Graph("shared", io_data_type=F32, compute_data_type=DataType.DOUBLE, intermediate_data_type=DataType.DOUBLE)
    source = g.tensor("source", dim=(1, 2, 1, 3), stride=(6, 1, 1, 2))
    made = g.pointwise(PointwiseMode.NEG, source).set_dim((1, 2, 1, 3)).set_stride((6, 1, 1, 2))
    other = g.pointwise(PointwiseMode.ADD, source, g.tensor("one", dim=(1, 1, 1, 1)))
    other.set_dim((1, 2, 1, 3)).set_stride((6, 3, 3, 1)).set_output(True)
    w = g.tensor("w", dim=(2, 2, 1, 2))
    out = g.conv_fprop(made, w).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    rows, filters = (np.asarray(pack[each], np.float64)[:, :, 0] for each in (source, w))
    wanted = -np.add(*(np.einsum("nct,kc->nkt", rows[:, :, tap : tap + 2], filters[:, :, tap]) for tap in range(2)))
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near({out: results[out]}, {out: wanted[:, :, None]})


@pytest.mark.a_few("NWC-gfx942", "NHWC-gfx90a")
@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("layout", ["NWC", "NHWC", "NCHW"])
def test_one_image_for_a_whole_batch(layout: str, chip: str) -> None:
    """Seed 12000007003960: with a stride of 0 for the batch and channels last, the terms of sums were mixed up."""
    spatial = (5,) * (len(layout) - 2)
    dims, window = (2, 3, *spatial), (4, 3, *(3 for _ in spatial))
    strides = [0, *strides_in_order(dims, [0, *range(2, len(dims)), 1] if layout[-1] == "C" else range(len(dims)))[1:]]
    g = Graph("repeated", io_data_type=F32)
    x, w = g.tensor("x", dim=dims, stride=strides), g.tensor("w", dim=window)
    out = g.conv_fprop(x, w, padding=(1,) * len(spatial)).set_output(True)
    pack = g.validate().random_inputs(seed=4)
    image, filters = (torch.tensor(np.asarray(pack[each], np.float64)) for each in (x, w))
    convolve = torch.nn.functional.conv1d if len(spatial) == 1 else torch.nn.functional.conv2d
    results, _ = Emulator(chip).run(g, pack)
    _assert_near(results, {out: convolve(image, filters, padding=1).numpy()})


def test_a_gradient_of_points_in_groups_beside_a_reduction() -> None:
    """Seed 912700001874: beside a reduction it was compiled in a form that is wrong for it: 16 for 2."""
    g = Graph("gradient", io_data_type=BF16, compute_data_type=F32)
    dy, w = g.tensor("dy", dim=(1, 4, 2)), g.tensor("w", dim=(4, 2, 1))
    out = g.conv_dgrad(dy, w).set_dim((1, 4, 2)).set_output(True)
    x = g.tensor("x", dim=(1, 3, 2))
    total = g.reduction(x, mode=ReductionMode.NORM2).set_dim((1, 1, 1)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    rows = np.asarray(pack[dy]).astype(np.float64).reshape(1, 2, 2, 2)
    wanted = np.einsum("ngkt,gkc->ngct", rows, np.asarray(pack[w]).astype(np.float64).reshape(2, 2, 2))
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    norm = np.sqrt(np.square(np.asarray(pack[x]).astype(np.float64)).sum())
    _assert_near(results, {out: wanted.reshape(1, 4, 2), total: norm.reshape(1, 1, 1)})


@pytest.mark.a_few("3-3-4-6-image1-gfx90a", "2-2-13-12-image3-gfx942")
@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("n", "groups", "c", "k", "image"),
    [(1, 2, 6, 5, (5, 9)), (3, 3, 4, 6, (1, 13)), (1, 2, 12, 6, (5, 9)), (2, 2, 13, 12, (7, 3)), (2, 2, 16, 6, (7, 3))],
)
def test_gradients_of_points_in_groups(n: int, groups: int, c: int, k: int, image: tuple[int, int], chip: str) -> None:
    """Where 8 did not divide the channels of a group, the tail of the terms was not masked."""
    g = Graph("gradient", io_data_type=F16, compute_data_type=F32)
    dy = g.tensor("dy", dim=(n, groups * k, *image))
    w = g.tensor("w", dim=(groups * k, c, 1, 1))
    out = g.conv_dgrad(dy, w).set_dim((n, groups * c, *image)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse(chip)).run(g, pack)
    rows = np.asarray(pack[dy]).astype(np.float64).reshape(n, groups, k, *image)
    filters = np.asarray(pack[w]).astype(np.float64).reshape(groups, k, c)
    _assert_near(results, {out: np.einsum("ngkhw,gkc->ngchw", rows, filters).reshape(n, groups * c, *image)})


@pytest.mark.a_few("DataType.HALF")
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_depthwise_gradients_of_two_phases(dtype: DataType) -> None:
    """Channels last, the filters of the phases were taken in another order: 0.58 for -0.0007."""
    g = Graph("gradient", io_data_type=dtype, compute_data_type=F32)
    dy = g.tensor("dy", dim=(1, 4, 4), stride=(16, 1, 4))
    w = g.tensor("w", dim=(4, 1, 3), stride=(3, 1, 1))
    out = g.conv_dgrad(dy, w, stride=(2,)).set_dim((1, 4, 10)).set_stride((40, 1, 4)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    want = np.zeros((1, 4, 10))
    for place, position in np.ndindex(4, 3):
        want[:, :, 2 * place + position] += (
            np.asarray(pack[dy])[:, :, place].astype(np.float64) * np.asarray(pack[w])[:, 0, position]
        )
    _assert_near(results, {out: want})


@pytest.mark.a_few("dgrad-DataType.FLOAT-5-3-33-13-3-1-gfx950", "fprop-DataType.HALF-3-17-2-21-2-1-gfx90a")
@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("kind", "dtype", "n", "c", "k", "size", "window", "padding"),
    [
        ("dgrad", F32, 5, 3, 33, 13, 3, 1),
        ("dgrad", F16, 9, 4, 48, 9, 5, 0),
        ("fprop", F32, 8, 33, 4, 16, 3, 1),
        ("fprop", F16, 3, 17, 2, 21, 2, 1),
        ("fprop", F32, 2, 17, 2, 31, 3, 2),
    ],
)
def test_few_channels_in_one_dim(
    kind: str, dtype: DataType, n: int, c: int, k: int, size: int, window: int, padding: int, chip: str
) -> None:
    """With the padding in their kernel all numbers were NaN, where the images are several and no tiles are used."""
    g = Graph(kind, io_data_type=dtype, compute_data_type=F32)
    w = g.tensor("w", dim=(k, c, window))
    positions = size + 2 * padding - window + 1
    image = g.tensor("image", dim=(n, c, size) if kind == "fprop" else (n, k, positions))
    out = (g.conv_fprop if kind == "fprop" else g.conv_dgrad)(image, w, padding=(padding,)).set_output(True)
    out.set_dim((n, k, positions) if kind == "fprop" else (n, c, size))
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse(chip)).run(g, pack)
    a, b = (torch.from_numpy(np.asarray(pack[tensor]).astype(np.float64)) for tensor in (image, w))
    convolve = torch.nn.functional.conv1d if kind == "fprop" else torch.nn.functional.conv_transpose1d
    _assert_near(results, {out: convolve(a, b, padding=padding).numpy()})


@pytest.mark.thorough
def test_a_sum_of_negated_numbers() -> None:
    """Fused they are a difference, which the compiler would split over kernels and could not."""
    g = Graph("sum", io_data_type=F32, compute_data_type=F32)
    x = g.tensor("x", dim=(31, 56, 14))
    out = g.reduction(g.pointwise(PointwiseMode.NEG, x), mode=ReductionMode.ADD).set_dim((1, 1, 14)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    _assert_near(results, {out: -np.asarray(pack[x]).astype(np.float64).sum(axis=(0, 1), keepdims=True)})


@pytest.mark.a_few("gfx950")
@pytest.mark.parametrize("chip", ["gfx90a", "gfx950"])
def test_a_sum_of_negated_numbers_beside_a_product_of_few_rows(chip: str) -> None:
    """Neither is compiled in the other's form."""
    g = Graph("both", io_data_type=F16, compute_data_type=F32, intermediate_data_type=F32)
    a, b = g.tensor("a", dim=(4, 128)), g.tensor("b", dim=(128, 24))
    product = g.matmul(a, b).set_output(True)
    x = g.tensor("x", dim=(31, 56, 14), data_type=F32)
    sums = g.reduction(g.pointwise(PointwiseMode.NEG, x), mode=ReductionMode.ADD).set_dim((1, 1, 14)).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    results, _ = Emulator(Target.parse(chip)).run(g, pack)
    left, right, terms = (np.asarray(pack[each]).astype(np.float64) for each in (a, b, x))
    _assert_near(results, {product: left @ right, sums: -terms.sum(axis=(0, 1), keepdims=True)})


def test_constants_of_packed_instructions() -> None:
    """Seed 913700000268: an instruction for two numbers read the upper half of 0.5, so that half a sum was 0."""
    g = Graph("gelu", io_data_type=F32, compute_data_type=F32)
    x, dy = g.tensor("x", dim=(1, 1, 6)), g.tensor("dy", dim=(1, 2, 3))
    dw = g.conv_wgrad(dy, x).set_dim((2, 1, 4))
    out = g.pointwise(PointwiseMode.GELU_APPROX_TANH_BWD, dw, dw).set_data_type(DataType.DOUBLE).set_output(True)
    pack = g.validate().random_inputs(seed=2)
    rows, kernels = np.asarray(pack[x], np.float64)[0, 0], np.asarray(pack[dy], np.float64)[0]
    gradient = np.array([[kernels[k] @ rows[at : at + 3] for at in range(4)] for k in range(2)])
    number = torch.tensor(gradient, requires_grad=True)
    torch.nn.functional.gelu(number, approximate="tanh").backward(torch.tensor(gradient))
    assert number.grad is not None
    results, _ = Emulator(Target.parse("gfx942")).run(g, pack)
    np.testing.assert_allclose(results[out], number.grad.numpy()[:, None], rtol=2e-5)


@pytest.mark.thorough
def test_a_broadcast_product_for_gfx950() -> None:
    """A barrier in a branch that only one of three waves took."""
    g = Graph("product", io_data_type=F16, compute_data_type=F32)
    g.matmul(g.tensor("a", dim=(3, 2, 14, 10)), g.tensor("b", dim=(1, 2, 10, 6))).set_output(True)
    outcome = Emulator(Target.parse("gfx950")).examine(g.validate())
    assert outcome.ok, outcome.text


def test_a_convolution_whose_gradients_need_its_result_again_does_not_race() -> None:
    """Of bias and filter, behind ReLU and an average; waves wrote shared memory that others had yet to read."""
    pool: dict[str, Any] = {"mode": ResampleMode.AVGPOOL_INCLUDE_PADDING, "window": 2, "stride": 2}
    g = Graph("layer", io_data_type=F32)
    x, w, b = g.tensor("x", dim=(4, 3, 4, 4)), g.tensor("w", dim=(4, 3, 3, 3)), g.tensor("b", dim=(1, 4, 1, 1))
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=1), b)
    mean, _ = g.resample_fwd(g.pointwise(PointwiseMode.RELU_FWD, y), **pool)
    dmean = g.resample_bwd(g.tensor("dmean", dim=(4, 4, 2, 2)), **pool).set_dim((4, 4, 4, 4))
    dy = g.pointwise(PointwiseMode.RELU_BWD, dmean, y)
    dw = g.conv_wgrad(dy, x, padding=1).set_dim((4, 3, 3, 3))
    db = g.reduction(dy, mode=ReductionMode.ADD).set_dim((1, 4, 1, 1))
    for tensor in (mean, dw, db):
        tensor.set_output(True)
    pack = g.validate().random_inputs(seed=3)
    given = {tensor.name: torch.tensor(array, dtype=torch.float64) for tensor, array in pack.items()}
    filters, bias = given["w"].requires_grad_(), given["b"].requires_grad_()
    made = torch.nn.functional.conv2d(given["x"], filters, bias.flatten(), padding=1).relu()
    expected = torch.nn.functional.avg_pool2d(made, 2)
    slopes = torch.autograd.grad(expected, (filters, bias), given["dmean"])
    results, _ = Emulator("gfx942").run(g, pack)
    for tensor, right in zip((mean, dw, db), (expected, *slopes), strict=True):
        value = right.detach().numpy()
        np.testing.assert_allclose(results[tensor], value, rtol=0, atol=TOLERANCE[F32] * np.abs(value).max())
