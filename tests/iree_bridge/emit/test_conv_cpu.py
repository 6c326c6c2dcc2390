"""Convolutions on the CPU: products of matrices whose tiles the emitter sets."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from graph_api import ConvolutionMode, DataType, Graph, PointwiseMode, numerics
from iree_bridge import build
from iree_bridge.compile.compiler import compile_code
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import choose
from tests.cases import OpCase
from tests.cases.conv import conv_graph
from tests.support.cases import aligned, assert_right
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

if host_arch() != "x86_64":
    pytest.skip("the compiler knows the processors of its own architecture", allow_module_level=True)

CPU = Target.parse("cpu")
AVX2 = Target.parse("cpu:x86-64-v3")


def test_channels_first_places_of_the_window_are_shifts_of_one_image() -> None:
    """20 rows of 22 are computed, of which 20 are cut out: 440 columns, and 8 more that vectors want."""
    graph = conv_graph("fprop", (1, 8, 20, 20), (32, 8, 3, 3), padding=1).validate()
    check_ir(
        emit_module(graph, AVX2).ir,
        """
        CHECK-DAG: vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 1]
        CHECK-DAG: torch.aten.view %arg2, {{.*}} -> !torch.vtensor<[32,8,9],f32>
        CHECK-DAG: torch.aten.constant_pad_nd %arg1, {{.*}} -> !torch.vtensor<[1,8,23,22],f32>
        CHECK: call @shifted_0({{.*}}) : (tensor<32x8x9xf32>, tensor<8x506xf32>) -> tensor<32x448xf32>
        CHECK-NOT: torch.aten.convolution
        CHECK: tensor.extract_slice %arg1[0, 0] [8, 448] [1, 1]
        CHECK: tensor.extract_slice %arg1[0, 1] [8, 448] [1, 1]
        CHECK: tensor.extract_slice %arg1[0, 2] [8, 448] [1, 1]
        CHECK: tensor.extract_slice %arg1[0, 22] [8, 448] [1, 1]
        """,
    )


def test_a_stride_of_2_shifts_even_and_odd_rows_and_columns() -> None:
    graph = conv_graph("fprop", (1, 8, 8, 32), (32, 8, 1, 3), padding=(0, 1), stride=2).validate()
    check_ir(
        emit_module(graph, AVX2).ir,
        """
        CHECK: call @phases_0({{.*}}) : (tensor<1x8x10x40xf32>) -> (tensor<2x1x8x5x20xf32>, tensor<2x1x8x5x20xf32>)
        CHECK: @shifted_1({{.*}}) : (tensor<32x8x3xf32>, tensor<2x8x100xf32>, tensor<2x8x100xf32>) -> tensor<32x80xf32>
        CHECK: tensor.extract_slice %arg1[0, 0, 0] [1, 8, 80] [1, 1, 1]
        CHECK: tensor.extract_slice %arg2[0, 0, 0] [1, 8, 80] [1, 1, 1]
        CHECK: tensor.extract_slice %arg1[0, 0, 1] [1, 8, 80] [1, 1, 1]
        """,
    )


def test_channels_first_filters_are_rows_and_places_columns() -> None:
    """Of windows of many places, and strides of more than 2."""
    graph = conv_graph("fprop", (1, 8, 20, 20), (32, 8, 3, 3), padding=1, stride=3).validate()
    check_ir(
        emit_module(graph, AVX2).ir,
        """
        CHECK-DAG: torch.aten.view %arg2, {{.*}} -> !torch.vtensor<[32,72],f32>
        CHECK: call @matrix_0({{.*}}) : ({{.*}}) -> tensor<1x8x3x3x7x7xf32>
        CHECK: call @product_1({{.*}}) : (tensor<32x72xf32>, tensor<72x49xf32>) -> tensor<32x49xf32>
        CHECK-NOT: torch.aten.convolution
        """,
    )


@pytest.mark.parametrize("images", [1, 3])
def test_rows_of_an_image_that_meet_in_the_cache_are_copied(images: int) -> None:
    """32 x 32 places are 4096 bytes, after which a cache begins anew; what was made for a product is not made twice."""
    lead = f"{images}x" if images > 1 else ""
    point = conv_graph("fprop", (images, 8, 32, 32), (64, 8, 1, 1)).validate()
    check_ir(
        emit_module(point, AVX2).ir,
        f"CHECK: call @product_{{{{[0-9]}}}}({{{{.*}}}}) : ({{{{.*}}}}, tensor<{lead}64x8x16xf32>)",
    )
    made = conv_graph("fprop", (images, 8, 24, 24), (256, 8, 3, 3), padding=1, stride=3).validate()
    check_ir(emit_module(made, AVX2).ir, f"CHECK: call @product_1({{{{.*}}}}) : ({{{{.*}}}}, tensor<{lead}72x64xf32>)")


@pytest.mark.a_few("a matrix-NCHW")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("x", "w", "kw"),
    [
        pytest.param((3, 8, 32, 32), (64, 8, 1, 1), {}, id="points"),
        pytest.param((2, 16, 32, 32), (128, 8, 1, 1), {}, id="points in groups"),
        pytest.param((2, 8, 24, 24), (256, 8, 3, 3), {"padding": 1, "stride": 3}, id="a matrix"),
    ],
)
def test_copied_or_not_they_are_right(x: tuple[int, ...], w: tuple[int, ...], kw: dict[str, Any], layout: str) -> None:
    assert_right(OpCase("copied", lambda: conv_graph("fprop", x, w, layout=layout, **kw)))


def test_channels_first_places_lie_in_panels_where_vectors_divide_rows() -> None:
    """Else the rows of the matrix, a power of 2 apart, displace each other from the cache."""
    graph = conv_graph("fprop", (2, 8, 12, 16), (32, 8, 1, 29), padding=(0, 14)).validate()
    check_ir(
        emit_module(graph, AVX2).ir,
        """
        CHECK: call @matrix_0({{.*}}) : (tensor<2x8x12x44xf32>) -> tensor<2x12x1x8x1x29x16xf32>
        CHECK: call @product_1({{.*}}) : (tensor<32x232xf32>, tensor<2x12x232x16xf32>) -> tensor<2x32x12x16xf32>
        """,
    )


def test_channels_last_places_are_rows_and_filters_lie_in_panels() -> None:
    graph = conv_graph("fprop", (2, 8, 20, 20), (24, 8, 3, 3), padding=1, layout="NHWC").validate()
    check_ir(
        emit_module(graph, AVX2).ir,
        """
        CHECK-DAG: vector_common_parallel = [4, 1, 8, 0], vector_reduction = [0, 0, 0, 4]
        CHECK: torch.aten.permute {{.*}} -> !torch.vtensor<[3,3,3,8,8],f32>
        CHECK: util.optimization_barrier {{.*}} : tensor<3x3x3x8x8xf32>
        CHECK: call @matrix_0({{.*}}) : (tensor<2x22x22x8xf32>) -> tensor<2x20x20x3x3x8xf32>
        CHECK: call @product_1({{.*}}) : (tensor<800x72xf32>, tensor<3x72x8xf32>) -> tensor<800x3x8xf32>
        """,
    )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("filters", "stride", "left"),
    [
        pytest.param((7, 8, 3, 3), 1, True, id="few"),
        pytest.param((8, 8, 3, 3), 1, False, id="enough"),
        pytest.param((7, 8, 3, 3), 2, False, id="few, stride 2"),
        pytest.param((7, 8, 1, 1), 1, False, id="few points"),
    ],
)
def test_few_filters_are_left_to_the_compiler(filters: tuple[int, ...], stride: int, left: bool, layout: str) -> None:
    """Copying what they meet would cost more than it saves, unless that is not to be copied or strides are slow."""
    text = emit_module(conv_graph("fprop", (1, 8, 9, 9), filters, stride=stride, layout=layout).validate(), CPU).ir
    is_left = left and layout == "NHWC"  # channels first need no copy
    assert ("torch.aten.convolution" in text) == is_left
    assert ("call @product" in text or "call @shifted" in text) != is_left


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_point_needs_no_copy(layout: str) -> None:
    text = emit_module(conv_graph("fprop", (1, 8, 8, 8), (16, 8, 1, 1), layout=layout).validate(), CPU).ir
    assert "@matrix" not in text
    assert text.count("call @product") == 1


@pytest.mark.parametrize(("images", "size", "columns"), [(1, 7, 64), (8, 7, 64), (1, 14, 208)])
def test_the_columns_of_points_are_filled_up_to_whole_vectors(images: int, size: int, columns: int) -> None:
    graph = conv_graph("fprop", (images, 32, size, size), (256, 32, 1, 1)).validate()
    lead = f"{images}x" if images > 1 else ""
    check_ir(
        emit_module(graph, AVX2).ir,
        f"CHECK: call @product_{{{{[0-9]+}}}}({{{{.*}}}}) : (tensor<256x32xf32>, "
        f"tensor<{lead}{columns // 16}x32x16xf32>)",
    )


@pytest.mark.a_few("channels first")
@pytest.mark.parametrize(
    ("layout", "window", "size", "dispatches"),
    [
        pytest.param("NCHW", 1, 8, 1, id="channels first"),
        pytest.param("NCHW", 3, 62, 3, id="channels first: padding, product, rows cut to their length"),
        pytest.param("NHWC", 1, 7, 2, id="channels last: one for the filter"),
    ],
)
def test_what_follows_joins_the_product(layout: str, window: int, size: int, dispatches: int) -> None:
    g = Graph("block", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(1, 32, size, size), layout=layout)
    w = g.tensor("w", dim=(64, 32, window, window), layout=layout)
    bias, residual = g.tensor("bias", dim=(1, 64, 1, 1)), g.tensor("residual", dim=(1, 64, size, size), layout=layout)
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=window // 2), bias)
    g.pointwise(PointwiseMode.RELU_FWD, g.pointwise(PointwiseMode.ADD, y, residual)).set_output()
    assert compile_code(g.validate(), CPU).dispatches == dispatches


@pytest.mark.parametrize("strided", ["x", "y"])
def test_the_form_is_that_of_the_result(strided: str) -> None:
    """Else its transpose costs more than the product."""
    last, first = (8 * 49, 1, 7 * 8, 8), (8 * 49, 49, 7, 1)
    g = Graph("mixed", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(1, 8, 7, 7), stride=last if strided == "x" else first)
    y = g.conv_fprop(x, g.tensor("w", dim=(8, 8, 1, 1))).set_output()
    y.set_stride(last if strided == "y" else first)
    text = emit_module(g.validate(), CPU).ir
    product = "(tensor<49x8xf32>, tensor<1x8x8xf32>)" if strided == "y" else "(tensor<8x8xf32>, tensor<8x49xf32>)"
    assert f": {product}" in text


@pytest.mark.thorough
@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_large_matrix_is_made_in_parts(layout: str) -> None:
    """600 x 601 places of 84 taps are 116 MiB, a part has 8."""
    case = OpCase("parts", lambda: conv_graph("fprop", (1, 3, 600, 600), (8, 3, 1, 28), padding=(0, 14), layout=layout))
    text = emit_module(case.graph(), CPU).ir
    assert text.count("call @product") == 15
    assert text.count("torch.aten.cat") == 1
    assert_right(case)


@pytest.mark.a_few("panels, 3-D, dilated")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("layout", "x", "w", "kw"),
    [
        pytest.param("NCHW", (2, 3, 9, 32), (5, 3, 3, 3), {"padding": 1, "stride": (1, 2)}, id="panels, stride 2"),
        pytest.param("NCDHW", (1, 2, 6, 5, 8), (70, 2, 2, 2, 1), {"dilation": (2, 1, 1)}, id="panels, 3-D, dilated"),
        pytest.param("NWC", (2, 3, 24), (9, 3, 3), {"pre_padding": 2, "post_padding": 0}, id="1-D, channels last"),
        pytest.param("NCHW", (3, 20, 1, 1), (9, 20, 1, 1), {}, id="one place"),
        pytest.param("NCHW", (3, 20, 7, 7), (9, 20, 1, 1), {}, id="points of several images"),
        pytest.param("NCHW", (1, 20, 7, 7), (6, 10, 1, 1), {}, id="points in groups"),
        pytest.param("NCHW", (2, 20, 5, 5), (6, 10, 1, 1), {"padding": 1}, id="padded points, images and groups"),
        pytest.param("NCHW", (1, 130, 7, 9), (6, 130, 1, 1), {"stride": 2}, id="points in strides"),
        pytest.param("NHWC", (1, 1, 5, 6), (9, 1, 5, 6), {}, id="a window of everything"),
    ],
)
def test_results(layout: str, x: tuple[int, ...], w: tuple[int, ...], kw: dict[str, Any]) -> None:
    kw = {key: (value,) * (len(x) - 2) if isinstance(value, int) else value for key, value in kw.items()}
    assert_right(OpCase("conv", lambda: conv_graph("fprop", x, w, layout=layout, **kw)))


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        pytest.param((1, 4, 6, 40), (4, 1, 3, 3), (1, 8), id="more is left out than vectors win"),
        pytest.param((1, 4, 20, 20), (4, 1, 9, 9), (1, 1), id="a window of 81"),
        pytest.param((1, 4, 6, 6), (8, 1, 3, 3), (1, 1), id="two filters for each channel"),
    ],
)
def test_other_depthwise_convolutions_are_left_to_the_compiler(
    x: tuple[int, ...], w: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    assert "torch.aten.convolution" in emit_module(conv_graph("fprop", x, w, stride=stride).validate(), CPU).ir


@pytest.mark.a_few("stride 3, dilated", "last, dilated")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("layout", "x", "w", "kw"),
    [
        pytest.param("NCHW", (2, 5, 13, 30), (5, 1, 3, 3), {"padding": 1}, id="rows of 30"),
        pytest.param("NCHW", (1, 4, 9, 23), (4, 1, 2, 4), {"stride": 3, "dilation": 2}, id="stride 3, dilated"),
        pytest.param(
            "NCHW", (1, 4, 12, 8), (4, 1, 3, 3), {"stride": 2, "pre_padding": (0, 3), "post_padding": (2, 0)},
            id="asymmetric",
        ),
        pytest.param("NHWC", (2, 6, 9, 7), (6, 1, 3, 3), {"padding": 1, "stride": (1, 2)}, id="channels last"),
        pytest.param("NHWC", (1, 24, 7, 9), (24, 1, 2, 3), {"post_padding": (1, 2), "dilation": 2}, id="last, dilated"),
    ],
)  # fmt: skip
def test_depthwise_results(layout: str, x: tuple[int, ...], w: tuple[int, ...], kw: dict[str, Any]) -> None:
    assert_right(OpCase("depthwise", lambda: conv_graph("fprop", x, w, layout=layout, **kw)))


@pytest.mark.a_few("depthwise-NHWC")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("w", [pytest.param((10, 6, 3, 3), id="dense"), pytest.param((6, 1, 3, 3), id="depthwise")])
def test_what_is_not_finite_stays_where_its_windows_are(w: tuple[int, ...], layout: str) -> None:
    graph = conv_graph("fprop", (1, 6, 9, 11), w, padding=1, stride=2, layout=layout).validate()
    image = graph.arguments().inputs[0]
    (result,) = graph.arguments().outputs
    pack = {tensor: aligned(array) for tensor, array in graph.random_inputs().items()}
    pack[image][0, 2, 4, 6], pack[image][0, 5, 8, 10] = np.nan, np.inf
    y = aligned(result.empty())
    build(graph, "cpu").run({**pack, result: y})
    met = np.zeros((1, w[0], 5, 6), bool)
    met[:, slice(2, 3) if w[1] == 1 else slice(None), 2, 3] = True
    met[:, slice(5, 6) if w[1] == 1 else slice(None), 4, 5] = True
    np.testing.assert_array_equal(np.isfinite(y), ~met)


@pytest.mark.a_few("x1-w1-window1")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("x", "w", "window"),
    [
        ((1, 8, 4, 4), (8, 1, 3, 3), {"stride": 2}),
        ((1, 8, 4, 4), (8, 1, 3, 3), {"stride": 4, "padding": 1}),
        ((1, 8, 8, 4), (8, 1, 3, 1), {"stride": 6}),
    ],
)
def test_depthwise_images_that_no_window_meets_in_full(x: Any, w: Any, window: dict[str, Any]) -> None:
    """The compiler checks the size of a named operation's image where a result is 1 wide."""
    assert_right(OpCase("rest", lambda: conv_graph("fprop", x, w, layout="NHWC", **window)))


@pytest.mark.thorough
@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_parts_of_what_the_filters_meet_share_their_memory(layout: str) -> None:
    """All of it is 151 MB; x with its frame, the parts of y and 8 MiB are less than a half of that."""
    g = Graph("g", io_data_type=DataType.FLOAT)
    x, w = (g.tensor(name, dim=dim, layout=layout) for name, dim in (("x", (1, 64, 256, 256)), ("w", (64, 64, 3, 3))))
    y = g.conv_fprop(x, w, padding=1).set_output()
    call, pack = build(g, device="cpu"), {**g.random_inputs(seed=0), y: y.empty()}
    assert call.workspace_size < 70e6
    call.run(pack)
    for comparison in numerics.check(g, {x: pack[x], w: pack[w]}, {y: pack[y]}):
        assert comparison.ok, str(comparison)


@pytest.mark.a_few("1-D, channels last")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("made", "layout", "x", "w", "kw"),
    [
        pytest.param("places", "NCHW", (2, 9, 9, 11), (12, 9, 3, 3), {"padding": 1, "stride": (1, 2)}, id="stride 2"),
        pytest.param(
            "places", "NHWC", (3, 8, 7, 10), (9, 8, 2, 3), {"padding": 1, "dilation": (2, 1)}, id="last, dilated"
        ),
        pytest.param("product", "NHWC", (2, 9, 9, 8), (8, 9, 1, 1), {"stride": 2}, id="point, stride 2"),
        pytest.param("product", "NCHW", (2, 10, 6, 5), (16, 10, 1, 1), {}, id="point"),
        pytest.param(
            "places",
            "NCDHW",
            (1, 8, 6, 5, 4),
            (10, 8, 2, 2, 1),
            {"pre_padding": (1, 0, 2), "post_padding": (0, 1, 0)},
            id="3-D",
        ),
        pytest.param(
            "product", "NWC", (2, 8, 24), (9, 8, 4), {"pre_padding": 2, "post_padding": 0}, id="1-D, channels last"
        ),
        pytest.param("product", "NCHW", (3, 20, 1, 1), (9, 20, 1, 1), {}, id="one place"),
        pytest.param(
            "product",
            "NCHW",
            (2, 3, 6, 6),
            (8, 3, 3, 3),
            {"convolution_mode": ConvolutionMode.CONVOLUTION},
            id="mirrored",
        ),
        pytest.param("product", "NCHW", (1, 48, 68, 70), (8, 48, 3, 3), {"padding": 1}, id="parts"),
    ],
)
def test_filter_gradients_are_products(made: str, layout: str, x: Any, w: Any, kw: dict[str, Any]) -> None:
    plain = ("convolution_mode",)
    kw = {k: (v,) * (len(x) - 2) if isinstance(v, int) and k not in plain else v for k, v in kw.items()}
    case = OpCase("wgrad", lambda: conv_graph("wgrad", x, w, layout=layout, **kw))
    text = emit_module(case.graph(), AVX2).ir
    assert text.count("call @places") == (math.prod(w[2:]) if made == "places" else 0)
    assert ("call @product" in text) == (made == "product")
    assert "torch.aten.convolution" not in text
    assert_right(case)


def test_a_filter_gradient_is_a_product_for_each_place_of_the_window() -> None:
    """A step of the kernel takes 4 neighbours of a row of 12; 3 pictures of 96 places are summed in one part."""
    graph = conv_graph("wgrad", (3, 8, 8, 12), (16, 8, 3, 3), padding=1).validate()
    check_ir(
        emit_module(graph, AVX2).ir,
        """
        CHECK: cache_reduction = [0, 0, 1, 4, 0]
        CHECK-SAME: vector_common_parallel = [4, 8, 0, 0, 0], vector_reduction = [0, 0, 1, 1, 1]
        CHECK-COUNT-9: call @places_{{.*}} : (tensor<3x8x12x16xf32>, tensor<3x10x14x8xf32>) -> tensor<16x8xf32>
        CHECK-NOT: torch.aten.convolution
        CHECK: tensor.extract_slice %arg0[0, 0, 0, 0] [3, 8, 3, 16] [1, 1, 4, 1]
        CHECK: tensor.extract_slice %arg1[0, 0, 0, 0] [3, 8, 3, 8] [1, 1, 4, 1]
        CHECK: tensor.extract_slice %arg0[0, 0, 1, 0] [3, 8, 3, 16] [1, 1, 4, 1]
        CHECK: tensor.extract_slice %arg1[0, 0, 1, 0] [3, 8, 3, 8] [1, 1, 4, 1]
        """,
    )


def _filter_gradient(seed: int) -> OpCase:
    """A filter's gradient of drawn sizes."""
    rng = random.Random(seed)
    rank = rng.choice((1, 2, 2, 2, 3))
    n, c, k = rng.choice((1, 2, 3, 4, 6)), rng.choice((8, 9, 16, 24, 33)), rng.choice((8, 12, 16, 35))
    window = tuple(rng.choice((1, 2, 3, 3, 4)) for _ in range(rank))
    stride, dilation = (tuple(rng.choice(among) for _ in range(rank)) for among in ((1, 1, 2, 3), (1, 1, 2)))
    pre, post = (tuple(rng.choice((0, 1, 1, 2, 5)) for _ in range(rank)) for _ in range(2))
    out = [rng.choice((1, 2, 3, 4, 8, 10, 12)) for _ in range(rank)]
    size = tuple(
        max((o - 1) * s + 1 + d * (w - 1) - a - b + rng.choice((0, 0, s - 1)), 1)
        for o, s, d, w, a, b in zip(out, stride, dilation, window, pre, post, strict=True)
    )
    layout = rng.choice({1: ("NCW", "NWC"), 2: ("NCHW", "NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[rank])
    mode = rng.choice(
        (ConvolutionMode.CROSS_CORRELATION, ConvolutionMode.CROSS_CORRELATION, ConvolutionMode.CONVOLUTION)
    )
    kw: dict[str, Any] = {"stride": stride, "dilation": dilation, "pre_padding": pre, "post_padding": post}
    kw["convolution_mode"] = mode
    return OpCase("wgrad", lambda: conv_graph("wgrad", (n, c, *size), (k, c, *window), layout=layout, **kw))


@pytest.mark.a_few(*(str(seed) for seed in range(4)))
@pytest.mark.iree_cpu
@pytest.mark.parametrize("seed", range(48))
def test_filter_gradients_of_drawn_sizes(seed: int) -> None:
    """Some are products for each place of the window, some of a matrix; of few filters or channels the compiler's."""
    assert_right(_filter_gradient(seed))


@pytest.mark.a_few("1-D, padded by more than is met")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("x", "w", "kw"),
    [
        pytest.param((2, 9, 4, 3), (40, 9, 3, 3), {"padding": 1}, id="stride 1"),
        pytest.param((2, 8, 9, 10), (16, 8, 3, 3), {"padding": 1, "stride": 2}, id="stride 2"),
        pytest.param(
            (1, 10, 11, 7), (12, 10, 3, 2), {"stride": (3, 1), "dilation": (2, 3), "pre_padding": (0, 2),
            "post_padding": (3, 1)}, id="strides and dilations",
        ),
        pytest.param((1, 8, 9, 9), (8, 8, 2, 2), {"stride": (2, 4)}, id="rows that no window meets"),
        pytest.param((2, 8, 9), (32, 8, 4), {"stride": 2, "padding": 3}, id="1-D, padded by more than is met"),
        pytest.param((1, 8, 4, 5, 4), (16, 8, 2, 3, 2), {"stride": (2, 1, 2)}, id="3-D"),
        pytest.param(
            (2, 8, 6, 6), (9, 8, 3, 3), {"stride": 2, "convolution_mode": ConvolutionMode.CONVOLUTION}, id="mirrored"
        ),
    ],
)  # fmt: skip
def test_data_gradients_of_few_places_rearrange_no_filters(x: Any, w: Any, kw: dict[str, Any]) -> None:
    plain = ("convolution_mode",)
    kw = {k: (v,) * (len(x) - 2) if isinstance(v, int) and k not in plain else v for k, v in kw.items()}
    case = OpCase("dgrad", lambda: conv_graph("dgrad", x, w, **kw))
    text = emit_module(case.graph(), AVX2).ir
    assert text.count("call @product") == 1
    assert "@filter_0" not in text
    assert "torch.aten.convolution" not in text
    assert_right(case)


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        pytest.param((2, 16, 8, 8), (64, 16, 3, 3), 1, id="more places than filters"),
        pytest.param((8, 8, 32, 32), (64, 8, 3, 3), 2, id="more than 16 times as many"),
        pytest.param((2, 16, 4, 4), (64, 16, 1, 1), 1, id="points"),
        pytest.param((1, 8, 12, 12), (64, 8, 3, 3), 3, id="9 phases"),
        pytest.param((1, 8, 8, 8), (256, 8, 6, 6), 1, id="36 positions"),
        pytest.param((16, 1024, 64, 64), (1024, 1024, 3, 3), 2, id="more than 64 MiB"),
    ],
)
def test_other_data_gradients_are_convolutions(x: Any, w: Any, stride: int) -> None:
    padding = w[2] // 2
    text = emit_module(conv_graph("dgrad", x, w, stride=stride, padding=padding).validate(), AVX2).ir
    assert "call @shifted" in text or "torch.aten.convolution" in text or text.count("call @product") == (w[2] == 1)
    assert ("@filter_0" in text) == (w[2] > 1)


def _few_places(seed: int) -> OpCase:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    window, stride, dilation, pre, post = (
        tuple(int(n) for n in rng.integers(*ends, rank)) for ends in ((1, 4), (1, 4), (1, 3), (0, 3), (0, 3))
    )
    least = [dilation[i] * (window[i] - 1) + 1 for i in range(rank)]
    x = (int(rng.integers(1, 4)), int(rng.integers(8, 20)), *(n + int(rng.integers(0, 4)) for n in least))
    modes = (ConvolutionMode.CROSS_CORRELATION, ConvolutionMode.CONVOLUTION)
    kw = {
        "stride": stride, "dilation": dilation, "pre_padding": pre, "post_padding": post,
        "convolution_mode": modes[int(rng.integers(2))],
    }  # fmt: skip
    w = (int(rng.integers(8, 90)), x[1], *window)
    return OpCase(f"few_places_{seed}", lambda: conv_graph("dgrad", x, w, **kw))


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("seed", range(60))
def test_data_gradients_of_few_places(seed: int) -> None:
    """Drawn strides, dilations, paddings: some are of few places, the others have the other form."""
    assert_right(_few_places(seed))


@pytest.mark.a_few("130x1000-x86-64-v3", "197x64-x86-64-v2")
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    "sizes", [(130, 1000), (197, 64), (197, 100), (300, 24)], ids=lambda sizes: "x".join(map(str, sizes))
)
def test_filter_gradients_that_tiles_do_not_divide_compile(sizes: tuple[int, int], level: str) -> None:
    """The compiler refuses tiles of twice a block where sums are taken in turns; for 130x1000 it had to."""
    k, c = sizes
    g = Graph("gradient", io_data_type=DataType.FLOAT)
    dy, x = g.tensor("dy", dim=(2, k, 4, 4)), g.tensor("x", dim=(2, c, 4, 4))
    g.conv_wgrad(dy, x, padding=1).set_dim((k, c, 3, 3)).set_output(True)
    target = Target.parse(f"cpu:{level}")
    assert compile_code(g.validate(), target).form == choose(g, target).name


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_filter_gradient_of_many_parts(layout: str) -> None:
    """43 parts: were they summed by one kernel, it would have more buffers than IREE's driver binds, which is 32."""
    torch = pytest.importorskip("torch")
    g = Graph("many parts", io_data_type=DataType.FLOAT)
    dims = {"dy": (2, 8, 352, 352), "x": (2, 40, 352, 352)}
    dy, x = (g.tensor(name, dim=each, layout=layout) for name, each in dims.items())
    dw = g.conv_wgrad(dy, x, padding=1).set_output(True).set_dim((8, 40, 3, 3))
    g.validate()
    rng = np.random.default_rng(3)
    pack = {tensor: tensor.memory() for tensor in (dw, dy, x)}
    for tensor in (dy, x):
        pack[tensor][...] = rng.standard_normal(tensor.dims)
    build(g, "cpu").run(pack)
    given, image = (torch.from_numpy(np.ascontiguousarray(pack[tensor])).double() for tensor in (dy, x))
    expected = torch.nn.grad.conv2d_weight(image, (8, 40, 3, 3), given, padding=1).numpy()
    # 2 * 352 * 352 terms of about 1 each: sums wander as far as 500, and round some 600 times on the way
    np.testing.assert_allclose(pack[dw], expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.INT8])
def test_what_would_take_too_much_memory_is_left_to_the_compiler(dtype: DataType) -> None:
    """The matrices of groups, and of integers, are there at one time: 83 GiB were asked for 32 images of 724x724."""
    groups, kind = (4, DataType.FLOAT) if dtype.is_float else (1, DataType.INT32)
    for size, call in ((32, True), (2100 if dtype.is_float else 724, False)):
        g = Graph("conv", io_data_type=dtype, compute_data_type=kind, intermediate_data_type=kind)
        x, w = g.tensor("x", dim=(2, 64, size, size)), g.tensor("w", dim=(64, 64 // groups, 3, 3))
        g.conv_fprop(x, w, padding=1, stride=3 if dtype.is_float else 1).set_output(True).set_data_type(kind)
        assert ("@matrix_0" in emit_module(g.validate(), CPU).ir) is call
