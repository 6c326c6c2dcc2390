"""Activations with parameters, composite ones, and their gradients."""

from __future__ import annotations

import math

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import rule
from hipdnn_backend.offload.to_wire.types import FLOATS
from hipdnn_backend.offload.to_wire.values import Splat, Value
from hipdnn_backend.wire import DataType, PointwiseMode

__all__: list[str] = []

M = PointwiseMode
_EXACT_SOFTPLUS = 20.0
"""From here on log(1 + exp(x)) is x to the last bit of a float."""


def _clip(b: Builder, op: Op, x: Value, low: float | None, high: float | None) -> Value:
    """Clips of RELU_FWD; MAX and MIN for integers and crossed bounds, where the upper one wins."""
    kind = op.result()
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    if kind.dtype in FLOATS and low is not None and high is None:
        return b.pointwise(op, M.RELU_FWD, [x], kind.dtype, relu_lower_clip=low)
    if kind.dtype in FLOATS and low is not None and high is not None and low <= high:
        return b.pointwise(op, M.RELU_FWD, [x], kind.dtype, relu_lower_clip=low, relu_upper_clip=high)
    made = x
    if low is not None:
        made = b.pointwise(op, M.MAX_OP, [made, low], kind.dtype, suffix="::low")
    if high is not None:
        made = b.pointwise(op, M.MIN_OP, [made, high], kind.dtype, suffix="::high")
    return made if made is not x else b.pointwise(op, M.IDENTITY, [x], kind.dtype)


def _bound(b: Builder, op: Op, index: int) -> Value | float | None:
    if index >= len(op.operands) or str(op.operands[index].type) == "!torch.none" or op.name.endswith("none"):
        return None
    if not str(op.operands[index].type).startswith("!torch.vtensor"):
        found = op.constant(index)
        return found if found is None else op.number(index)
    value = b.value(op, index)
    return value.value if isinstance(value, Splat) else value


@rule(
    "aten.clamp",
    "aten.clamp.Tensor",
    "aten.clamp_min",
    "aten.clamp_max",
    "aten.clamp_min.Tensor",
    "aten.clamp_max.Tensor",
    "aten.hardtanh",
)
def clamp(b: Builder, op: Op) -> Value:
    """Between two numbers or tensors, either of which may be missing."""
    low = None if "_max" in op.name else _bound(b, op, 1)
    high = _bound(b, op, 1) if "_max" in op.name else None if "_min" in op.name else _bound(b, op, 2)
    x, kind = b.value(op, 0), op.result()
    if not isinstance(low, int | float | None) or not isinstance(high, int | float | None):
        for mode, bound in ((M.MAX_OP, low), (M.MIN_OP, high)):
            x = x if bound is None else b.pointwise(op, mode, [x, bound], kind.dtype, dims=kind.dims)
        return x
    return _clip(b, op, x, low, high)


@rule("aten.relu6")
def relu6(b: Builder, op: Op) -> Value:
    """Between 0 and 6."""
    return _clip(b, op, b.value(op, 0), 0.0, 6.0)


@rule("aten.leaky_relu")
def leaky_relu(b: Builder, op: Op) -> Value:
    """RELU_FWD with a slope."""
    return b.pointwise(
        op, M.RELU_FWD, [b.value(op, 0)], op.result().dtype, relu_lower_clip=0.0, relu_lower_clip_slope=op.number(1)
    )


@rule("aten.prelu")
def prelu(b: Builder, op: Op) -> Value:
    """x, or slope * x where x is negative; one slope per channel, or slopes that ONNX lets spread over x."""
    kind, x, slope = op.result(), b.value(op, 0), b.value(op, 1)
    count, rank = math.prod(slope.dims), len(slope.dims)
    spreads = 1 < rank <= len(x.dims) and all(
        size in (1, whole) for size, whole in zip(slope.dims, x.dims[-rank:], strict=True)
    )
    if not spreads and (count not in (1, *x.dims[1:2]) or rank > 1):
        raise op.refuse(
            f"slopes {slope.dims} are neither one nor one per channel of {x.dims}, nor do they spread over it"
        )
    if spreads:
        slope = b.reshaped(op, slope, (*(1 for _ in x.dims[rank:]), *slope.dims), "the slope")
    elif len(x.dims) > 2 and count > 1:
        slope = b.reshaped(op, slope, (1, *slope.dims, *(1 for _ in x.dims[2:])), "the slope")
    scaled = b.pointwise(op, M.MUL, [x, slope], kind.dtype, suffix="::scaled", dims=kind.dims)
    positive = b.pointwise(op, M.CMP_GT, [x, 0], DataType.BOOLEAN, suffix="::positive", compute=DataType.FLOAT)
    return b.pointwise(op, M.BINARY_SELECT, [x, scaled, positive], kind.dtype)


@rule("aten.gelu")
def gelu(b: Builder, op: Op) -> Value:
    """With erf or its tanh approximation."""
    kind = op.text(1)
    mode = {"none": M.GELU_FWD, "tanh": M.GELU_APPROX_TANH_FWD}.get(kind)
    if mode is None:
        raise op.refuse(f"approximate={kind!r} is neither 'none' nor 'tanh'")
    return b.pointwise(op, mode, [b.value(op, 0)], op.result().dtype)


@rule("aten.elu")
def elu(b: Builder, op: Op) -> Value:
    """scale * (x > 0 ? x : alpha * (exp(input_scale * x) - 1)), by way of ELU(input_scale * x)."""
    alpha, scale, steep = op.number(1), op.number(2), op.number(3)
    return _elu(b, op, alpha, scale, steep)


@rule("aten.selu")
def selu(b: Builder, op: Op) -> Value:
    """ELU with the two fixed constants."""
    return _elu(b, op, 1.6732632423543772, 1.0507009873554805, 1.0)


@rule("aten.celu")
def celu(b: Builder, op: Op) -> Value:
    """ELU whose two branches meet smoothly for every alpha."""
    alpha = op.number(1)
    if alpha == 0:
        raise op.refuse("alpha is 0")
    return _elu(b, op, alpha, 1.0, 1.0 / alpha)


def _elu(b: Builder, op: Op, alpha: float, scale: float, steep: float) -> Value:
    if steep <= 0:
        raise op.refuse(f"its input is scaled by {steep}, which is not positive")
    kind, x = op.result(), b.value(op, 0)
    inner = x if steep == 1 else b.pointwise(op, M.MUL, [x, steep], kind.dtype, suffix="::input")
    made = b.pointwise(op, M.ELU_FWD, [inner], kind.dtype, elu_alpha=alpha * steep)
    return made if scale == steep else b.pointwise(op, M.MUL, [made, scale / steep], kind.dtype, suffix="::scale")


@rule("aten.hardsigmoid", "aten.hardswish")
def hardsigmoid(b: Builder, op: Op) -> Value:
    """Between 0 and 1: (x + 3) / 6; hardswish multiplies x with it."""
    kind, x = op.result(), b.value(op, 0)
    shifted = b.pointwise(op, M.ADD, [x, 3.0], kind.dtype, suffix="::shift")
    clipped = b.pointwise(
        op, M.RELU_FWD, [shifted], kind.dtype, suffix="::clip", relu_lower_clip=0.0, relu_upper_clip=6.0
    )
    if op.name.endswith("swish"):
        clipped = b.pointwise(op, M.MUL, [x, clipped], kind.dtype, suffix="::product")
    return b.pointwise(op, M.DIV, [clipped, 6.0], kind.dtype)


@rule("aten.softplus")
def softplus(b: Builder, op: Op) -> Value:
    """log(1 + exp(beta * x)) / beta; x itself from the threshold on."""
    beta, threshold = op.number(1), op.number(2)
    kind, x = op.result(), b.value(op, 0)
    made = b.pointwise(op, M.SOFTPLUS_FWD, [x], kind.dtype, softplus_beta=beta)
    if threshold >= _EXACT_SOFTPLUS and kind.dtype is not DataType.DOUBLE:
        return made
    mode, bound = (M.CMP_GT, threshold / beta) if beta > 0 else (M.CMP_LT, threshold / beta)
    large = b.pointwise(op, mode, [x, bound], DataType.BOOLEAN, suffix="::large")
    return b.pointwise(op, M.BINARY_SELECT, [x, made, large], kind.dtype, suffix="::select")


@rule("aten.log_sigmoid")
def log_sigmoid(b: Builder, op: Op) -> Value:
    """-softplus(-x)."""
    kind = op.result()
    negative = b.pointwise(op, M.NEG, [b.value(op, 0)], kind.dtype, suffix="::negative")
    made = b.pointwise(op, M.SOFTPLUS_FWD, [negative], kind.dtype, suffix="::softplus")
    return b.pointwise(op, M.NEG, [made], kind.dtype)


@rule("aten.mish")
def mish(b: Builder, op: Op) -> Value:
    """x * tanh(softplus(x))."""
    kind, x = op.result(), b.value(op, 0)
    soft = b.pointwise(op, M.SOFTPLUS_FWD, [x], kind.dtype, suffix="::softplus")
    gate = b.pointwise(op, M.TANH_FWD, [soft], kind.dtype, suffix="::tanh")
    return b.pointwise(op, M.MUL, [x, gate], kind.dtype)


@rule("aten.threshold")
def threshold(b: Builder, op: Op) -> Value:
    """A number up to the threshold, else x, which may be NaN."""
    kind, x = op.result(), b.value(op, 0)
    below = b.pointwise(op, M.CMP_LE, [x, op.number(1)], DataType.BOOLEAN, suffix="::below")
    return b.pointwise(op, M.BINARY_SELECT, [op.number(2), x, below], kind.dtype)


# Gradients. hipDNN's backward modes take (dy, x).


@rule("aten.threshold_backward")
def threshold_backward(b: Builder, op: Op) -> Value:
    """dy where x is above the threshold: RELU_BWD for 0."""
    kind, dy, x = op.result(), b.value(op, 0), b.value(op, 1)
    if op.number(2) == 0:
        return b.pointwise(op, M.RELU_BWD, [dy, x], kind.dtype)
    below = b.pointwise(op, M.CMP_LE, [x, op.number(2)], DataType.BOOLEAN, suffix="::below")
    return b.pointwise(op, M.BINARY_SELECT, [0.0, dy, below], kind.dtype)


@rule("aten.gelu_backward")
def gelu_backward(b: Builder, op: Op) -> Value:
    """With erf or its tanh approximation."""
    mode = {"none": M.GELU_BWD, "tanh": M.GELU_APPROX_TANH_BWD}.get(op.text(2))
    if mode is None:
        raise op.refuse(f"approximate={op.text(2)!r} is neither 'none' nor 'tanh'")
    return b.pointwise(op, mode, [b.value(op, 0), b.value(op, 1)], op.result().dtype)


@rule("aten.silu_backward")
def silu_backward(b: Builder, op: Op) -> Value:
    """SWISH_BWD."""
    return b.pointwise(op, M.SWISH_BWD, [b.value(op, 0), b.value(op, 1)], op.result().dtype)


@rule("aten.sigmoid_backward")
def sigmoid_backward(b: Builder, op: Op) -> Value:
    """dy * y * (1 - y): PyTorch keeps the result y, hipDNN's mode wants x."""
    kind, dy, y = op.result(), b.value(op, 0), b.value(op, 1)
    rest = b.pointwise(op, M.SUB, [1.0, y], kind.dtype, suffix="::rest")
    slope = b.pointwise(op, M.MUL, [y, rest], kind.dtype, suffix="::slope")
    return b.pointwise(op, M.MUL, [dy, slope], kind.dtype)


@rule("aten.tanh_backward")
def tanh_backward(b: Builder, op: Op) -> Value:
    """dy * (1 - y * y)."""
    kind, dy, y = op.result(), b.value(op, 0), b.value(op, 1)
    squared = b.pointwise(op, M.MUL, [y, y], kind.dtype, suffix="::square")
    slope = b.pointwise(op, M.SUB, [1.0, squared], kind.dtype, suffix="::slope")
    return b.pointwise(op, M.MUL, [dy, slope], kind.dtype)


@rule("aten.leaky_relu_backward")
def leaky_relu_backward(b: Builder, op: Op) -> Value:
    """dy, or slope * dy where x (or the result, whose sign is the same) is not positive."""
    slope = op.number(2)
    if slope < 0 and op.flag(3):
        raise op.refuse(f"from the result, with the negative slope {slope}, x cannot be told")
    kind, dy, x = op.result(), b.value(op, 0), b.value(op, 1)
    scaled = b.pointwise(op, M.MUL, [dy, slope], kind.dtype, suffix="::scaled")
    positive = b.pointwise(op, M.CMP_GT, [x, 0.0], DataType.BOOLEAN, suffix="::positive")
    return b.pointwise(op, M.BINARY_SELECT, [dy, scaled, positive], kind.dtype)
