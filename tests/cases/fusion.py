"""What training and quantisation fuse around one operation: activations, biases, residuals, rotations, scales.

The builders take their sizes: the tables have small ones, ``tests/support/golden_graphs.py`` those of real layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode, TensorAttr
from tests.cases import OpCase, Pack
from tests.cases.block_scale import FORMATS

__all__ = [
    "CASES",
    "activation_before_gradients",
    "activation_behind_dgrad",
    "convolution_quantized",
    "gradient_and_sums",
    "linear",
    "linear_gradient",
    "linear_quantized",
    "norm_gradient",
    "norm_quantized",
    "norm_scaled",
    "residual_norm",
    "rotary_attention",
    "scaled_and_amax",
    "weight_gradient",
]

D, M = DataType, PointwiseMode
Dims = tuple[int, ...]


def _graph(dtype: DataType) -> Graph:
    return Graph("fusion", io_data_type=dtype, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)


def _summed(g: Graph, x: TensorAttr, dims: Dims) -> None:
    """The gradient of a bias."""
    total = g.reduction(x, mode=ReductionMode.ADD).set_dim(dims).set_output(True)
    total.set_name("dbias").set_data_type(D.FLOAT)


# ---- layers that convolve ------------------------------------------------------------------------------------------


def activation_behind_dgrad(
    dtype: DataType, layout: str, image: Dims, w: Dims, *, mode: PointwiseMode = M.RELU_BWD, bias: bool = False
) -> Graph:
    """The gradient of a 3x3 layer's input, through the activation that made it, and the bias before that."""
    g = _graph(dtype)
    dy = g.tensor("dy", dim=(image[0], w[0], *image[2:]), layout=layout)
    dx = g.conv_dgrad(dy, g.tensor("w", dim=w, layout=layout), padding=w[2] // 2).set_dim(image)
    dz = g.pointwise(mode, dx, g.tensor("z", dim=image, layout=layout)).set_output(True).set_name("dz")
    if bias:
        _summed(g, dz, (1, image[1], 1, 1))
    return g


def activation_before_gradients(
    dtype: DataType,
    layout: str,
    image: Dims,
    w: Dims,
    *,
    mode: PointwiseMode = M.RELU_BWD,
    results: Sequence[str] = ("dw", "dbias"),
    stored: bool = False,
) -> Graph:
    """dx, dw and dbias of a layer, of the gradient behind its activation; ``stored``: that is a result as well."""
    g = _graph(dtype)
    dims = (image[0], w[0], *image[2:])
    dy, z = (g.tensor(name, dim=dims, layout=layout) for name in ("dy", "z"))
    dz = g.pointwise(mode, dy, z).set_data_type(dtype).set_output(stored).set_name("dz")
    if "dx" in results:
        dx = g.conv_dgrad(dz, g.tensor("w", dim=w, layout=layout), padding=w[2] // 2)
        dx.set_dim(image).set_output(True).set_name("dx")
    if "dw" in results:
        dw = g.conv_wgrad(dz, g.tensor("x", dim=image, layout=layout), padding=w[2] // 2)
        dw.set_dim(w).set_output(True).set_name("dw")
    if "dbias" in results:
        _summed(g, dz, (1, w[0], 1, 1))
    return g


def convolution_quantized(name: str, dtype: DataType, image: Dims, w: Dims) -> Graph:
    """A channels-last layer with bias and ReLU, its channels quantised in blocks."""
    g = _graph(dtype)
    x, kernel = (g.tensor(each, dim=dims, layout="NHWC") for each, dims in (("x", image), ("w", w)))
    y = g.pointwise(M.ADD, g.conv_fprop(x, kernel, padding=w[2] // 2), g.tensor("bias", dim=(1, w[0], 1, 1)))
    _quantized(g, g.pointwise(M.RELU_FWD, y), name, axis=1)
    return g


def _quantized(g: Graph, y: TensorAttr, name: str, **options: Any) -> None:
    y_type, scale_type, block = FORMATS[name]
    q, scale = g.block_scale_quantize(y, block_size=block, **options)
    q.set_output(True).set_name("q").set_data_type(y_type)
    scale.set_output(True).set_name("scale").set_data_type(scale_type)


# ---- layers that are products --------------------------------------------------------------------------------------


def linear(dtype: DataType, m: int, n: int, k: int, *, kept: bool = True) -> Graph:
    """gelu(a b + bias); ``kept``: with what its gradient needs, the sum before the activation."""
    g = _graph(dtype)
    z = g.matmul(g.tensor("a", dim=(m, k)), g.tensor("b", dim=(k, n)))
    z = g.pointwise(M.ADD, z, g.tensor("bias", dim=(1, n))).set_output(kept).set_name("z")
    g.pointwise(M.GELU_APPROX_TANH_FWD, z).set_output(True).set_name("y")
    return g


def linear_gradient(dtype: DataType, m: int, n: int, k: int, *, bias: bool = True) -> Graph:
    """The gradient before a GELU, of that behind the next layer, whose weights lie as [N, K]; and of the bias."""
    g = _graph(dtype)
    dy, w = g.tensor("dy", dim=(m, k)), g.tensor("w", dim=(k, n), stride=(1, k))
    dz = g.pointwise(M.GELU_APPROX_TANH_BWD, g.matmul(dy, w), g.tensor("z", dim=(m, n)))
    dz.set_output(True).set_name("dz")
    if bias:
        _summed(g, dz, (1, n))
    return g


def weight_gradient(dtype: DataType, m: int, n: int, k: int) -> Graph:
    """The gradients of the weights and the bias of a layer with a GELU behind it."""
    g = _graph(dtype)
    dy, z, x = g.tensor("dy", dim=(m, n)), g.tensor("z", dim=(m, n)), g.tensor("x", dim=(k, m), stride=(1, k))
    dz = g.pointwise(M.GELU_APPROX_TANH_BWD, dy, z).set_data_type(dtype)
    g.matmul(x, dz).set_output(True).set_name("dw")
    _summed(g, dz, (1, n))
    return g


def linear_quantized(name: str, dtype: DataType, m: int, n: int, k: int) -> Graph:
    """gelu(a b + bias), quantised in blocks."""
    g = _graph(dtype)
    z = g.matmul(g.tensor("a", dim=(m, k)), g.tensor("b", dim=(k, n)))
    z = g.pointwise(M.ADD, z, g.tensor("bias", dim=(1, n)))
    _quantized(g, g.pointwise(M.GELU_APPROX_TANH_FWD, z), name)
    return g


# ---- norms ---------------------------------------------------------------------------------------------------------


def _norm(g: Graph, op: str, x: TensorAttr, dims: Dims) -> TensorAttr:
    weight = g.tensor("weight", dim=(1, dims[1]))
    phase = NormFwdPhase.INFERENCE
    if op == "layernorm":
        shift = g.tensor("shift", dim=(1, dims[1]))
        return g.layernorm(x, weight, shift, epsilon=1e-5, forward_phase=phase)[0]
    return g.rmsnorm(x, weight, epsilon=1e-5, forward_phase=phase)[0]


def norm_gradient(
    op: str, dtype: DataType, dims: Dims, *, before: PointwiseMode | None = None, behind: PointwiseMode | None = None
) -> Graph:
    """The gradient of a norm of rows, behind and before the gradients of activations."""
    g = _graph(dtype)
    dy, x, scale = g.tensor("dy", dim=dims), g.tensor("x", dim=dims), g.tensor("scale", dim=(1, dims[1]))
    inverse = g.tensor("inverse", dim=(dims[0], 1), data_type=D.FLOAT)
    if before is not None:
        dy = g.pointwise(before, dy, g.tensor("z", dim=dims))
    if op == "layernorm":
        mean = g.tensor("mean", dim=(dims[0], 1), data_type=D.FLOAT)
        dx, *rest = g.layernorm_backward(dy, x, scale, mean=mean, inv_variance=inverse)
    else:
        dx, *rest = g.rmsnorm_backward(dy, x, scale, inverse)[:2]
    if behind is not None:
        dx = g.pointwise(behind, dx, x)
    for name, tensor in zip(("dx", "dscale", "dbias"), (dx, *rest), strict=False):
        tensor.set_output(True).set_name(name)
    return g


def residual_norm(
    op: str, dtype: DataType, dims: Dims, *, stored: bool = True, product: int = 0, layout: Dims | None = None
) -> Graph:
    """A norm of x + residual, which is a result as well; ``product``: x is a product with as many terms."""
    g = _graph(dtype)
    residual = g.tensor("residual", dim=dims, stride=layout)
    if product:
        x = g.matmul(g.tensor("a", dim=(dims[0], product)), g.tensor("b", dim=(product, dims[1])))
    else:
        x = g.tensor("x", dim=dims, stride=layout)
    h = g.pointwise(M.ADD, x, residual).set_output(stored).set_name("h").set_dim(dims)
    if layout is not None:
        h.set_stride(layout)
    _norm(g, op, h, dims).set_output(True).set_name("y")
    return g


def norm_quantized(op: str, name: str, dtype: DataType, dims: Dims) -> Graph:
    """A norm of rows, quantised in blocks."""
    g = _graph(dtype)
    _quantized(g, _norm(g, op, g.tensor("x", dim=dims), dims), name)
    return g


def norm_scaled(op: str, dtype: DataType, out: DataType, dims: Dims, *, amax: bool = True) -> Graph:
    """A norm of rows times a factor, in 8 bits, and the largest magnitude before that."""
    g = _graph(dtype)
    y = _norm(g, op, g.tensor("x", dim=dims), dims)
    if amax:
        most = g.reduction(y, mode=ReductionMode.AMAX).set_dim((1, 1)).set_output(True)
        most.set_name("amax").set_data_type(D.FLOAT)
    g.pointwise(M.MUL, y, g.tensor("factor", dim=(1, 1), data_type=D.FLOAT)).set_output(True).set_data_type(out)
    return g


# ---- reductions of what is used elsewhere ---------------------------------------------------------------------------


def scaled_and_amax(dtype: DataType, out: DataType, dims: Dims) -> Graph:
    """gelu(x) times a factor, in 8 bits, and the largest magnitude before that."""
    g = _graph(dtype)
    y = g.pointwise(M.GELU_FWD, g.tensor("x", dim=dims))
    ones = (1,) * len(dims)
    most = g.reduction(y, mode=ReductionMode.AMAX).set_dim(ones).set_output(True)
    most.set_name("amax").set_data_type(D.FLOAT)
    factor = g.tensor("factor", dim=ones, data_type=D.FLOAT)
    g.pointwise(M.MUL, y, factor).set_output(True).set_name("y").set_data_type(out)
    return g


def gradient_and_sums(dtype: DataType, dims: Dims, sums: Dims, *, stored: bool = True, then: bool = False) -> Graph:
    """The gradient of a GELU and sums of it; ``stored``: it is a result; ``then``: what is made of it without sums."""
    g = _graph(dtype)
    dz = g.pointwise(M.GELU_BWD, g.tensor("dy", dim=dims), g.tensor("z", dim=dims)).set_output(stored).set_name("dz")
    g.reduction(dz, mode=ReductionMode.ADD).set_dim(sums).set_output(True).set_name("sums").set_data_type(D.FLOAT)
    if then:
        g.pointwise(M.RELU_FWD, dz).set_output(True).set_name("relu")
    return g


# ---- attention -----------------------------------------------------------------------------------------------------


def rotary_attention(dtype: DataType, heads: tuple[int, int], tokens: int, size: int, *, batch: int = 2) -> Graph:
    """Causal attention of queries and keys that are rotated first.

    hipDNN has no operation that exchanges the halves of a head, so a product with a matrix of 0, 1 and -1 does.
    """
    g = _graph(dtype)
    q, k, v = (
        g.tensor(name, dim=(batch, each, tokens, size))
        for name, each in zip("qkv", (heads[0], heads[1], heads[1]), strict=True)
    )
    cos, sin = (g.tensor(name, dim=(1, 1, tokens, size), data_type=D.FLOAT) for name in ("cos", "sin"))
    halves = g.tensor("halves", dim=(1, 1, size, size))

    def rotated(x: TensorAttr) -> TensorAttr:
        turned = g.pointwise(M.MUL, g.matmul(x, halves), sin)
        return g.pointwise(M.ADD, g.pointwise(M.MUL, x, cos), turned).set_data_type(dtype)

    g.sdpa(rotated(q), rotated(k), v, causal_mask=True).o.set_output(True)
    return g


def _rotations(g: Graph) -> Pack:
    pack = g.random_inputs(seed=5)
    for tensor, array in pack.items():
        if tensor.name in ("cos", "sin"):
            tokens, size = tensor.dims[2:]
            rates = 10000.0 ** (-2.0 * (np.arange(size) % (size // 2)) / size)
            array[...] = getattr(np, tensor.name)(np.arange(tokens)[:, None] * rates)
        elif tensor.name == "halves":
            half = tensor.dims[3] // 2
            array[...] = 0
            for place in range(half):
                array[0, 0, place + half, place], array[0, 0, place, place + half] = -1, 1
    return pack


def _positive(g: Graph) -> Pack:
    pack = g.random_inputs(seed=4)
    for tensor, array in pack.items():
        if tensor.name in ("inverse", "factor"):
            array[...] = np.abs(array) + 0.5
    return pack


# ---- the table -----------------------------------------------------------------------------------------------------

_IMAGES: dict[str, tuple[Dims, Dims]] = {"3x3": ((2, 16, 9, 8), (24, 16, 3, 3)), "1x1": ((2, 16, 5, 8), (32, 16, 1, 1))}
_TYPES = {"f16": D.HALF, "bf16": D.BFLOAT16, "f32": D.FLOAT}
_NORMS = ("layernorm", "rmsnorm")


def _convolutions() -> list[OpCase]:
    made: dict[str, Callable[[], Graph]] = {}
    for size, (image, w) in _IMAGES.items():
        for layout in ("NCHW", "NHWC"):
            for short, dtype in _TYPES.items():
                name = f"{size}_{layout.lower()}_{short}"
                made[f"dgrad_relu_dbias_{name}"] = lambda d=dtype, i=image, w=w, n=layout: activation_behind_dgrad(
                    d, n, i, w, bias=True
                )
                made[f"relu_wgrad_dbias_{name}"] = lambda d=dtype, i=image, w=w, n=layout: activation_before_gradients(
                    d, n, i, w
                )
                made[f"relu_all_stored_{name}"] = lambda d=dtype, i=image, w=w, n=layout: activation_before_gradients(
                    d, n, i, w, results=("dx", "dw", "dbias"), stored=True
                )
    image, w = _IMAGES["3x3"]
    for mode in (M.GELU_BWD, M.SWISH_BWD, M.TANH_BWD):
        made[f"dgrad_{mode.name.lower()}"] = lambda mode=mode: activation_behind_dgrad(
            D.HALF, "NHWC", image, w, mode=mode
        )
    fast = ("dgrad_relu_dbias_3x3_nhwc_f16", "relu_all_stored_3x3_nchw_f32")
    return [OpCase(name, build, fast=name in fast) for name, build in made.items()]


def _products() -> list[OpCase]:
    made: dict[str, Callable[[], Graph]] = {}
    for m, n, k in ((32, 48, 64), (17, 33, 24)):
        for short, dtype in _TYPES.items():
            name = f"{m}x{n}x{k}_{short}"
            made[f"linear_gelu_kept_{name}"] = lambda s=(m, n, k), d=dtype: linear(d, *s)
            made[f"linear_gradient_{name}"] = lambda s=(m, n, k), d=dtype: linear_gradient(d, *s)
            made[f"weight_gradient_{name}"] = lambda s=(m, n, k), d=dtype: weight_gradient(d, *s)
    fast = ("linear_gelu_kept_17x33x24_f16", "linear_gradient_32x48x64_f16")
    return [OpCase(name, build, fast=name in fast) for name, build in made.items()]


def _norms() -> list[OpCase]:
    made: dict[str, Callable[[], Graph]] = {}
    for op in _NORMS:
        for short, dtype in _TYPES.items():
            for dims in ((6, 64), (5, 72)):
                name = f"{op}_{'x'.join(map(str, dims))}_{short}"
                made[f"{name}_residual"] = lambda o=op, t=dtype, d=dims: residual_norm(o, t, d)
                made[f"{name}_gelu_gradient"] = lambda o=op, t=dtype, d=dims: norm_gradient(o, t, d, before=M.GELU_BWD)
                made[f"{name}_gradient_relu"] = lambda o=op, t=dtype, d=dims: norm_gradient(o, t, d, behind=M.RELU_BWD)
            made[f"{op}_{short}_product_residual"] = lambda o=op, t=dtype: residual_norm(o, t, (16, 64), product=32)
        made[f"{op}_residual_transposed"] = lambda o=op: residual_norm(o, D.HALF, (6, 64), layout=(1, 6))
        made[f"{op}_residual_gaps"] = lambda o=op: residual_norm(o, D.HALF, (6, 64), layout=(80, 1))
        made[f"{op}_residual_one_row"] = lambda o=op: residual_norm(o, D.HALF, (1, 64))
        made[f"{op}_residual_not_stored"] = lambda o=op: residual_norm(o, D.HALF, (6, 64), stored=False)
        # Several kilobytes a row: the sum of a row that two kernels shared took minutes to compile.
        made[f"{op}_gradient_f32_rows_of_4096"] = lambda o=op: norm_gradient(o, D.FLOAT, (4, 4096))
    fast = ("layernorm_6x64_f16_residual", "rmsnorm_5x72_f16_residual", "layernorm_6x64_f16_gelu_gradient")
    return [OpCase(name, build, _positive, fast=name in fast) for name, build in made.items()]


def _quantisations() -> list[OpCase]:
    made: dict[str, Callable[[], Graph]] = {}
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4", "mxfp6_e2m3", "fp8_f32"):
        for op in _NORMS:
            made[f"{op}_{name}"] = lambda o=op, n=name: norm_quantized(o, n, D.HALF, (6, 128))
        made[f"linear_{name}"] = lambda n=name: linear_quantized(n, D.HALF, 32, 64, 48)
        made[f"convolution_{name}"] = lambda n=name: convolution_quantized(n, D.HALF, (1, 16, 6, 5), (32, 16, 3, 3))
    for op in _NORMS:
        for out in (D.FP8_E4M3, D.FP8_E5M2, D.FP8_E4M3_FNUZ):
            made[f"{op}_{out.name.lower()}_amax"] = lambda o=op, t=out: norm_scaled(o, D.HALF, t, (6, 128))
        made[f"{op}_fp8_e4m3_fnuz"] = lambda o=op: norm_scaled(o, D.BFLOAT16, D.FP8_E4M3_FNUZ, (6, 128), amax=False)
    fast = ("layernorm_mxfp8_e4m3", "rmsnorm_fp8_e4m3_amax")
    return [OpCase(name, build, _positive, fast=name in fast) for name, build in made.items()]


def _reductions() -> list[OpCase]:
    made: dict[str, Callable[[], Graph]] = {}
    for dims in ((6, 64), (5, 33), (2, 3, 4, 16)):
        shape = "x".join(map(str, dims))
        for out in (D.FP8_E4M3, D.FP8_E5M2_FNUZ, D.HALF):
            made[f"amax_{out.name.lower()}_{shape}"] = lambda t=out, d=dims: scaled_and_amax(D.HALF, t, d)
        for name, sums in {"all": (1,) * len(dims), "rows": (*dims[:-1], 1), "columns": (1, *dims[1:])}.items():
            for short, dtype in _TYPES.items():
                made[f"sums_of_{name}_{short}_{shape}"] = lambda t=dtype, d=dims, s=sums: gradient_and_sums(t, d, s)
            made[f"sums_of_{name}_virtual_{shape}"] = lambda d=dims, s=sums: gradient_and_sums(
                D.HALF, d, s, stored=False, then=True
            )
            made[f"sums_of_{name}_alone_{shape}"] = lambda d=dims, s=sums: gradient_and_sums(D.HALF, d, s, stored=False)
    fast = ("amax_fp8_e4m3_6x64", "sums_of_rows_f16_6x64")
    return [OpCase(name, build, _positive, fast=name in fast) for name, build in made.items()]


def _attention() -> list[OpCase]:
    rows: Sequence[tuple[str, DataType, tuple[int, int], int, int]] = [
        ("f16", D.HALF, (2, 2), 32, 16),
        ("bf16_grouped", D.BFLOAT16, (4, 2), 16, 32),
        ("f32", D.FLOAT, (2, 1), 9, 8),
        ("f16_ragged", D.HALF, (2, 2), 19, 16),
    ]
    return [
        OpCase(
            f"rotary_{name}",
            lambda d=dtype, h=heads, t=tokens, s=size: rotary_attention(d, h, t, s),
            _rotations,
            fast=name == "f16",
        )
        for name, dtype, heads, tokens, size in rows
    ]


CASES = [*_convolutions(), *_products(), *_norms(), *_quantisations(), *_reductions(), *_attention()]
