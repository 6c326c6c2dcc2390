"""The 96 graphs whose compiled code is watched: operations that networks are made of, at the sizes of real layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode, ResampleMode, TensorAttr
from iree_bridge.targets.variants import FUSED_PADDING
from tests.cases import block_scale, fusion, small_types
from tests.cases.sdpa_small_types import scaled_attention

__all__ = ["FLAGS", "GRAPHS", "ONE_MATRIX_KERNEL"]

D, M = DataType, PointwiseMode
Dims = tuple[int, ...]
_TYPES = {"f16": D.HALF, "bf16": D.BFLOAT16, "f32": D.FLOAT, "i8": D.INT8}
_LAYOUTS = ("nchw", "nhwc")


def _graph(name: str, dtype: str) -> Graph:
    return Graph(name, io_data_type=_TYPES[dtype], compute_data_type=D.INT32 if dtype == "i8" else D.FLOAT)


def _bias(g: Graph, value: TensorAttr, dims: Dims) -> TensorAttr:
    return g.pointwise(M.ADD, value, g.tensor("bias", dim=dims))


def conv(dtype: str, layout: str, x: Dims, w: Dims, *, stride: int = 1, padding: int | None = None) -> Graph:
    """Convolution, by default with the padding that keeps the size, bias, ReLU."""
    g = _graph("conv", dtype)
    image, weight = (g.tensor(name, dim=dims, layout=layout) for name, dims in (("x", x), ("w", w)))
    y = g.conv_fprop(image, weight, padding=w[2] // 2 if padding is None else padding, stride=stride)
    g.pointwise(M.RELU_FWD, _bias(g, y, (1, w[0], 1, 1))).set_output(True)
    return g


def gradient(direction: str, layout: str) -> Graph:
    """The gradient of a 3x3 layer of 64 channels, f16."""
    g = _graph(direction, "f16")
    image, weight = (8, 64, 56, 56), (64, 64, 3, 3)
    dy = g.tensor("dy", dim=image, layout=layout)
    if direction == "dgrad":
        g.conv_dgrad(dy, g.tensor("w", dim=weight, layout=layout), padding=1).set_output(True)
    else:
        dw = g.conv_wgrad(dy, g.tensor("x", dim=image, layout=layout), padding=1).set_output(True)
        dw.set_dim(weight)
    return g


def matmul(dtype: str, *, transposed: bool = False, epilogue: bool = False) -> Graph:
    """A linear layer, [512, 1024] times [1024, 4096]; ``transposed``: weights stored as [N, K]."""
    g = _graph("matmul", dtype)
    m, n, k = 512, 4096, 1024
    a = g.tensor("a", dim=(m, k))
    y = g.matmul(a, g.tensor("b", dim=(k, n), stride=(1, k) if transposed else None))
    if epilogue:
        y = g.pointwise(M.GELU_APPROX_TANH_FWD, _bias(g, y, (1, n)))
    y.set_output(True)
    if dtype == "i8":
        y.set_data_type(D.INT32)
    return g


def attention(
    dtype: str, *, tokens: int = 1024, interleaved: bool = False, causal: bool = False, bias: bool = False
) -> Graph:
    """8 heads of 64 over tokens; ``interleaved``: the heads of a token lie together (BSHD), else BHSD."""
    g = _graph("sdpa", dtype)
    b, h, s, d = 2, 8, tokens, 64
    stride = (s * h * d, d, h * d, 1) if interleaved else None
    q, k, v = (g.tensor(name, dim=(b, h, s, d), stride=stride) for name in "qkv")
    mask = g.tensor("mask", dim=(1, 1, s, s)) if bias else None
    o, _ = g.sdpa(q, k, v, bias=mask, causal_mask=causal)
    o.set_output(True)
    if stride is not None:
        o.set_stride(stride)
    return g


def attention_gradients(dtype: str, *, shared: int = 8, causal: bool = False) -> Graph:
    """The gradients of 8 heads of 64 over 1024 tokens; ``shared``: heads of keys and values."""
    g = _graph("sdpa_backward", dtype)
    wide, narrow = (2, 8, 1024, 64), (2, shared, 1024, 64)
    dims = {"q": wide, "k": narrow, "v": narrow, "o": wide, "do": wide}
    operands = [g.tensor(name, dim=size) for name, size in dims.items()]
    operands.append(g.tensor("stats", dim=(2, 8, 1024, 1), data_type=D.FLOAT))
    for gradient in g.sdpa_backward(*operands, causal_mask=causal):
        gradient.set_output(True)
    return g


def paged_attention(dtype: str) -> Graph:
    """One query of 32 heads each for 8 sequences, on 8 heads of 128 in 64 of 1024 pages of 16 keys."""
    g = _graph("sdpa", dtype)
    k, v = (g.tensor(name, dim=(1024, 8, 16, 128)) for name in "kv")
    tables: dict[str, Any] = {
        f"page_table_{name}": g.tensor(f"table_{name}", dim=(8, 1, 64, 1), data_type=D.INT32) for name in "kv"
    }
    g.sdpa(g.tensor("q", dim=(8, 32, 1, 128)), k, v, **tables).o.set_output(True)
    return g


def trailing_norm(op: str, dtype: str) -> Graph:
    """A layer norm or RMS norm of 512 rows of 4096."""
    g = _graph(op, dtype)
    x, scale = g.tensor("x", dim=(512, 4096)), g.tensor("scale", dim=(1, 4096))
    if op == "layernorm":
        y = g.layernorm(x, scale, g.tensor("bias", dim=(1, 4096)), epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)[
            0
        ]
    else:
        y = g.rmsnorm(x, scale, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)[0]
    y.set_output(True)
    return g


def batchnorm(dtype: str, layout: str, *, training: bool) -> Graph:
    """A batch normalisation of 64 channels: training, or inference with ReLU."""
    g = _graph("batchnorm", dtype)
    x = g.tensor("x", dim=(8, 64, 56, 56), layout=layout)
    names = ("scale", "bias") if training else ("mean", "inv_variance", "scale", "bias")
    operands = [g.tensor(name, dim=(1, 64, 1, 1), data_type=D.FLOAT) for name in names]
    if training:
        for result in g.batchnorm(x, *operands, epsilon=1e-5)[:3]:
            result.set_output(True)
    else:
        g.pointwise(M.RELU_FWD, g.batchnorm_inference(x, *operands)).set_output(True)
    return g


def reduction(dtype: str, mode: ReductionMode, dims: Dims) -> Graph:
    """A reduction of [512, 4096] to ``dims``."""
    g = _graph("reduction", dtype)
    g.reduction(g.tensor("x", dim=(512, 4096)), mode=mode).set_dim(dims).set_output(True)
    return g


def softmax() -> Graph:
    """Softmax of 512 rows of 4096, written out, f32."""
    g = _graph("softmax", "f32")
    x = g.tensor("x", dim=(512, 4096))
    shifted = g.pointwise(M.SUB, x, g.reduction(x, mode=ReductionMode.MAX).set_dim((512, 1)))
    powers = g.pointwise(M.EXP, shifted)
    total = g.reduction(powers, mode=ReductionMode.ADD).set_dim((512, 1))
    g.pointwise(M.DIV, powers, total).set_output(True)
    return g


def pointwise_chain() -> Graph:
    """gelu(a * b + bias) + a of [8, 64, 56, 56], f16."""
    g = _graph("chain", "f16")
    a, b = (g.tensor(name, dim=(8, 64, 56, 56)) for name in "ab")
    y = g.pointwise(M.GELU_FWD, _bias(g, g.pointwise(M.MUL, a, b), (1, 64, 1, 1)))
    g.pointwise(M.ADD, y, a).set_output(True)
    return g


def pool() -> Graph:
    """The maximum of 3x3 windows with stride 2, f16, channels last."""
    g = _graph("pool", "f16")
    x = g.tensor("x", dim=(8, 64, 112, 112), layout="NHWC")
    g.resample_fwd(x, mode=ResampleMode.MAXPOOL, window=3, stride=2, padding=1)[0].set_output(True)
    return g


def batchnorm_backward(layout: str, *, activation: bool) -> Graph:
    """The gradient of a batch normalisation of 64 channels, f16; ``activation``: behind a ReLU's, as AMD fuses it."""
    g = _graph("batchnorm_backward", "f16")
    dy, x = (g.tensor(name, dim=(8, 64, 56, 56), layout=layout) for name in ("dy", "x"))
    names = ("scale", "mean", "inv_variance")
    scale, mean, inverse = (g.tensor(name, dim=(1, 64, 1, 1), data_type=D.FLOAT) for name in names)
    if activation:
        bias = g.tensor("bias", dim=(1, 64, 1, 1), data_type=D.FLOAT)
        dy = g.pointwise(M.RELU_BWD, dy, g.batchnorm_inference(x, mean, inverse, scale, bias))
    for result in g.batchnorm_backward(dy, x, scale, mean=mean, inv_variance=inverse):
        result.set_output(True)
    return g


def trailing_norm_backward(op: str, dtype: str) -> Graph:
    """The gradient of a layer norm or RMS norm of 512 rows of 4096."""
    g = _graph(op, dtype)
    dy, x = (g.tensor(name, dim=(512, 4096)) for name in ("dy", "x"))
    scale = g.tensor("scale", dim=(1, 4096))
    inverse = g.tensor("inverse", dim=(512, 1), data_type=D.FLOAT)
    if op == "layernorm_backward":
        mean = g.tensor("mean", dim=(512, 1), data_type=D.FLOAT)
        results = g.layernorm_backward(dy, x, scale, mean=mean, inv_variance=inverse)
    else:
        results = g.rmsnorm_backward(dy, x, scale, inverse)[:2]
    for result in results:
        result.set_output(True)
    return g


def pool_backward() -> Graph:
    """The gradient of `pool` by its index."""
    g = _graph("pool_backward", "f16")
    dy = g.tensor("dy", dim=(8, 64, 56, 56), layout="NHWC")
    index = g.tensor("index", dim=(8, 64, 56, 56), layout="NHWC", data_type=D.INT32)
    dx = g.resample_bwd(dy, mode=ResampleMode.MAXPOOL, window=3, stride=2, padding=1, index=index)
    dx.set_dim((8, 64, 112, 112)).set_output(True)
    return g


def experts(*, backward: bool = False) -> Graph:
    """1024 rows of 1024 for 8 experts, f16, or the gradient of their matrices of [1024, 2048]."""
    g = _graph("experts", "f16")
    token = g.tensor("token", dim=(1, 1024, 1024))
    offsets = g.tensor("offsets", dim=(8, 1, 1), data_type=D.INT32)
    if backward:
        g.moe_grouped_matmul_bwd(g.tensor("doutput", dim=(1, 1024, 2048)), token, offsets).set_output(True)
    else:
        weight = g.tensor("weight", dim=(8, 1024, 2048), stride=(1024 * 2048, 1, 1024))
        g.moe_grouped_matmul(token, weight, offsets).set_output(True)
    return g


_IMAGE = (8, 64, 56, 56)

_CONV_BIAS_RELU: dict[str, Callable[[], Graph]] = {
    f"conv_bias_relu_{dtype}_{layout}": lambda dtype=dtype, layout=layout: conv(dtype, layout, _IMAGE, (64, 64, 3, 3))
    for dtype in ("f16", "bf16", "f32")
    for layout in _LAYOUTS
}
_OTHER_CONV: dict[str, Callable[[], Graph]] = {
    "conv_1x1_f16_nchw": lambda: conv("f16", "nchw", _IMAGE, (256, 64, 1, 1)),
    "conv_1x1_f16_nhwc": lambda: conv("f16", "nhwc", _IMAGE, (256, 64, 1, 1)),
    "conv_7x7_stem_f16_nhwc": lambda: conv("f16", "nhwc", (8, 3, 224, 224), (64, 3, 7, 7), stride=2),
    "conv_grouped_f16_nhwc": lambda: conv("f16", "nhwc", (8, 128, 56, 56), (128, 4, 3, 3)),
    "conv_depthwise_f16_nhwc": lambda: conv("f16", "nhwc", (8, 96, 56, 56), (96, 1, 3, 3)),
    **{
        f"{direction}_f16_{layout}": lambda direction=direction, layout=layout: gradient(direction, layout)
        for direction in ("dgrad", "wgrad")
        for layout in _LAYOUTS
    },
}
_MATMUL: dict[str, Callable[[], Graph]] = {
    "matmul_f16": lambda: matmul("f16"),
    "matmul_f16_bias_gelu": lambda: matmul("f16", epilogue=True),
    "matmul_f16_transposed": lambda: matmul("f16", transposed=True),
    "matmul_bf16": lambda: matmul("bf16"),
    "matmul_bf16_bias_gelu": lambda: matmul("bf16", epilogue=True),
    "matmul_bf16_transposed": lambda: matmul("bf16", transposed=True),
    "matmul_f32": lambda: matmul("f32"),
    "matmul_i8": lambda: matmul("i8"),
}
_ATTENTION: dict[str, Callable[[], Graph]] = {
    name: build
    for dtype in ("f16", "bf16")
    for name, build in {
        f"attention_{dtype}_bhsd": lambda dtype=dtype: attention(dtype),
        f"attention_{dtype}_bshd": lambda dtype=dtype: attention(dtype, interleaved=True),
        f"attention_{dtype}_causal": lambda dtype=dtype: attention(dtype, causal=True),
        f"attention_{dtype}_bias": lambda dtype=dtype: attention(dtype, bias=True),
        f"attention_{dtype}_ragged": lambda dtype=dtype: attention(dtype, tokens=197),
    }.items()
}
_REST: dict[str, Callable[[], Graph]] = {
    "attention_gradients_f16": lambda: attention_gradients("f16"),
    "attention_gradients_bf16_grouped_causal": lambda: attention_gradients("bf16", shared=2, causal=True),
    "attention_paged_f16": lambda: paged_attention("f16"),
    "layernorm_f16": lambda: trailing_norm("layernorm", "f16"),
    "rmsnorm_bf16": lambda: trailing_norm("rmsnorm", "bf16"),
    "batchnorm_inference_relu_f16_nhwc": lambda: batchnorm("f16", "nhwc", training=False),
    "batchnorm_training_f32_nchw": lambda: batchnorm("f32", "nchw", training=True),
    "batchnorm_training_f16_nhwc": lambda: batchnorm("f16", "nhwc", training=True),
    "reduction_rows_f32": lambda: reduction("f32", ReductionMode.ADD, (512, 1)),
    "reduction_columns_f16": lambda: reduction("f16", ReductionMode.MAX, (1, 4096)),
    "softmax_f32": softmax,
    "pointwise_chain_f16": pointwise_chain,
    "maxpool_f16_nhwc": pool,
    "batchnorm_backward_f16_nchw": lambda: batchnorm_backward("nchw", activation=False),
    "batchnorm_backward_relu_f16_nhwc": lambda: batchnorm_backward("nhwc", activation=True),
    "layernorm_backward_f16": lambda: trailing_norm_backward("layernorm_backward", "f16"),
    "rmsnorm_backward_bf16": lambda: trailing_norm_backward("rmsnorm_backward", "bf16"),
    "maxpool_backward_f16_nhwc": pool_backward,
    "experts_f16": experts,
    "experts_backward_f16": lambda: experts(backward=True),
}

_UNWANTED: dict[str, tuple[Callable[[], Graph], str]] = {
    "conv_grouped_f16_nhwc": (_OTHER_CONV["conv_grouped_f16_nhwc"], "--iree-codegen-llvmgpu-use-igemm=true"),
    "conv_1x1_f16_nchw_7x7": (
        lambda: conv("f16", "nchw", (8, 512, 7, 7), (256, 512, 1, 1)),
        "--iree-rocdl-enable-buffer-instructions=false",
    ),
    "conv_patches_f16_nhwc": (
        lambda: conv("f16", "nhwc", (8, 3, 224, 224), (768, 3, 16, 16), stride=16, padding=0),
        "--iree-dispatch-creation-enable-split-reduction=true",
    ),
    "maxpool_f16_nhwc": (pool, FUSED_PADDING),
}
"""Graphs whose wanted form is wrong for some of their kind, and the flag that brings that form back."""


def fp8_matmul(dtype: DataType) -> Graph:
    """A linear layer of 8-bit floats with weights stored as [N, K], descaled, and scaled to 8 bits again."""
    return small_types.matmul_graph(dtype, dtype, dtype, (512, 4096, 1024), transposed=True, scaled=True)


def quantized(before: Callable[[Graph, TensorAttr], TensorAttr], dims: Dims) -> Graph:
    """MXFP8 of what ``before`` makes."""
    return block_scale.quantize_graph(*block_scale.FORMATS["mxfp8_e4m3"], dims, D.HALF, before=before)


def fp8_conv(dtype: DataType, layout: str, window: int) -> Graph:
    """A layer of 128 channels of 8-bit floats with scale, bias and ReLU."""
    return small_types.conv_graph(dtype, dtype, dtype, (8, 128, 28, 28), 128, layout, window=(window, window))


def _linear(g: Graph, x: TensorAttr) -> TensorAttr:
    b = g.tensor("b", dim=(x.dims[1], 1024), data_type=D.HALF)
    return g.pointwise(M.GELU_APPROX_TANH_FWD, g.matmul(x, b))


_SMALL: dict[str, Callable[[], Graph]] = {
    "matmul_fp8_e4m3": lambda: fp8_matmul(D.FP8_E4M3),
    "matmul_fp8_e4m3_fnuz": lambda: fp8_matmul(D.FP8_E4M3_FNUZ),
    "matmul_mxfp8_f16": lambda: block_scale.product_graph("mxfp8_e4m3", (512, 1024, 1024), D.HALF, values=D.HALF),
    "matmul_mxfp4_f16": lambda: block_scale.product_graph("mxfp4", (512, 1024, 1024), D.HALF, values=D.HALF),
    "quantize_mxfp8_gelu": lambda: quantized(lambda g, x: g.pointwise(M.GELU_APPROX_TANH_FWD, x), (512, 1024)),
    "quantize_mxfp8_matmul_gelu": lambda: quantized(_linear, (512, 1024)),
    **{
        f"conv_{window}x{window}_{dtype.name.lower()}_{layout.lower()}": lambda d=dtype, n=layout, w=window: fp8_conv(
            d, n, w
        )
        for dtype in (D.FP8_E4M3, D.FP8_E4M3_FNUZ)
        for window, layout in ((3, "NHWC"), (3, "NCHW"), (1, "NHWC"))
    },
    "attention_fp8_e4m3_scaled": lambda: scaled_attention(D.FP8_E4M3, (2, 8, 8, 8, 1024, 1024, 64, 64)),
}

_LAYER, _FILTERS, _ROWS = (8, 64, 56, 56), (64, 64, 3, 3), (512, 4096)
_FUSED: dict[str, Callable[[], Graph]] = {
    "dgrad_relu_f16_nhwc": lambda: fusion.activation_behind_dgrad(D.HALF, "NHWC", _LAYER, _FILTERS),
    "dgrad_relu_dbias_f16_nhwc": lambda: fusion.activation_behind_dgrad(D.HALF, "NHWC", _LAYER, _FILTERS, bias=True),
    "relu_wgrad_dbias_f16_nhwc": lambda: fusion.activation_before_gradients(D.HALF, "NHWC", _LAYER, _FILTERS),
    "relu_wgrad_dbias_stored_f16_nhwc": lambda: fusion.activation_before_gradients(
        D.HALF, "NHWC", _LAYER, _FILTERS, stored=True
    ),
    "relu_dgrad_f16_nhwc": lambda: fusion.activation_before_gradients(
        D.HALF, "NHWC", _LAYER, _FILTERS, results=("dx",)
    ),
    "linear_gelu_kept_f16": lambda: fusion.linear(D.HALF, 512, 4096, 1024),
    "linear_gradient_f16": lambda: fusion.linear_gradient(D.HALF, 512, 4096, 1024, bias=False),
    "linear_gradient_dbias_f16": lambda: fusion.linear_gradient(D.HALF, 512, 4096, 1024),
    "weight_gradient_dbias_f16": lambda: fusion.weight_gradient(D.HALF, 512, 4096, 1024),
    **{
        name: build
        for op in ("layernorm", "rmsnorm")
        for name, build in {
            f"residual_{op}_f16": lambda op=op: fusion.residual_norm(op, D.HALF, _ROWS),
            f"gelu_gradient_{op}_backward_f16": lambda op=op: fusion.norm_gradient(
                op, D.HALF, _ROWS, before=PointwiseMode.GELU_BWD
            ),
            f"{op}_backward_f32": lambda op=op: fusion.norm_gradient(op, D.FLOAT, _ROWS),
            f"quantize_mxfp8_{op}_f16": lambda op=op: fusion.norm_quantized(op, "mxfp8_e4m3", D.HALF, _ROWS),
            f"{op}_fp8_amax_f16": lambda op=op: fusion.norm_scaled(op, D.HALF, D.FP8_E4M3_FNUZ, _ROWS),
        }.items()
    },
    "matmul_fp8_e4m3_fnuz_amax": lambda: small_types.matmul_graph(
        D.FP8_E4M3_FNUZ, D.FP8_E4M3_FNUZ, D.FP8_E4M3_FNUZ, (512, 4096, 1024), scaled=True, amax=True
    ),
    "gelu_fp8_amax_f16": lambda: fusion.scaled_and_amax(D.HALF, D.FP8_E4M3_FNUZ, _ROWS),
    "gelu_gradient_row_sums_f16": lambda: fusion.gradient_and_sums(D.HALF, _ROWS, (512, 1)),
    "quantize_mxfp8_conv_relu_f16": lambda: fusion.convolution_quantized("mxfp8_e4m3", D.HALF, _LAYER, _FILTERS),
    "attention_rotary_f16": lambda: fusion.rotary_attention(D.HALF, (8, 8), 1024, 64),
}

GRAPHS: dict[str, Callable[[], Graph]] = {
    **_CONV_BIAS_RELU,
    **_OTHER_CONV,
    **_MATMUL,
    **_ATTENTION,
    **_REST,
    **_SMALL,
    **_FUSED,
    **{name: build for name, (build, _) in _UNWANTED.items()},
    **{f"{name}, unwanted form": build for name, (build, _) in _UNWANTED.items()},
}
"""By name; each call builds the graph anew."""

FLAGS = {f"{name}, unwanted form": (flag,) for name, (_, flag) in _UNWANTED.items()}
"""More compiler flags, for the graphs that have some."""

ONE_MATRIX_KERNEL = tuple(
    name for name in (*_CONV_BIAS_RELU, *_MATMUL, *_ATTENTION) if "_f16" in name or "_bf16" in name
)
"""Those that must be one kernel of matrix instructions that spills nothing."""
