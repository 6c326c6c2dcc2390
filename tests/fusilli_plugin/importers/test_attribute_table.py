"""Every attribute of the wire that has a default, a sentinel, or two spellings: what hipDNN means, and what comes out.

Each row changes one graph on the wire and says, from hipDNN's sources, what that graph computes: a formula in numpy,
written here a second time, or a decline. Sources are files of ROCm/rocm-libraries, projects/hipdnn unless they begin
with ``dnn-providers``; S is ``flatbuffers_sdk/schemas``, F ``frontend/include/hipdnn_frontend``, T
``test_sdk/include/hipdnn_test_sdk``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.engine.importers import IMPORTERS, Reading, export_graph, import_graph
from fusilli_plugin.engine.importers.registry import Scope
from graph_api import (
    DataType,
    Graph,
    GraphError,
    NotSupportedError,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
)
from hipdnn_backend import wire
from hipdnn_backend.wire import decode_graph, encode_graph
from iree_bridge import Target, build, support

Arrays = dict[str, np.ndarray[Any, Any]]
Formula = Callable[[Arrays], Any]
CPU = Target.parse("cpu")


@dataclass(frozen=True)
class Row:
    """One reading.

    Attributes:
        graph: name of the graph that is changed.
        fields: what the table of its node holds instead.
        meaning: what hipDNN says.
        source: where it says so.
        result: the value of the first result, in float64; or a regular expression of the decline.
        tensor: fields of the tensor of a name that change, instead of the node's.
        reading: words of FUSILLI_WIRE_READING.
        runs: also compiled and run on the CPU.
    """

    graph: str
    fields: dict[str, Any]
    meaning: str
    source: str
    result: Formula | str
    tensor: str = ""
    reading: tuple[str, ...] = ()
    runs: bool = False

    def __str__(self) -> str:
        shown = ",".join(f"{name}={value}" for name, value in self.fields.items()) or "as_it_is"
        return f"{self.graph}-{self.tensor and self.tensor + '.'}{shown}{''.join('+' + w for w in self.reading)}"


# ---- the graphs ----------------------------------------------------------------------------------------------------

SQ, SKV, D = 4, 6, 8


def _graph() -> Graph:
    return Graph("row", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)


def _sdpa() -> Graph:
    g = _graph()
    q, k, v = (g.tensor(n, dim=d) for n, d in (("q", (1, 2, SQ, D)), ("k", (1, 1, SKV, D)), ("v", (1, 1, SKV, 3))))
    g.sdpa(q, k, v).o.set_output()
    return g


def _conv() -> Graph:
    g = _graph()
    g.conv_fprop(g.tensor("x", dim=(1, 1, 7)), g.tensor("w", dim=(1, 1, 3)), padding=1).set_output()
    return g


def _dgrad() -> Graph:
    g = _graph()
    g.conv_dgrad(g.tensor("dy", dim=(1, 1, 7)), g.tensor("w", dim=(1, 1, 3)), padding=1).set_output()
    return g


def _pointwise(mode: PointwiseMode, arity: int = 1) -> Callable[[], Graph]:
    def make() -> Graph:
        g = _graph()
        names = ("a", "b", "c")[:arity]
        g.pointwise(mode, *(g.tensor(n, dim=(2, 3, 4)) for n in names), **({"axis": 0} if "INDEX" in mode.name else {})
                    ).set_output()  # fmt: skip
        return g

    return make


def _reduction() -> Graph:
    g = _graph()
    g.reduction(g.tensor("x", dim=(2, 3, 4)), mode=ReductionMode.ADD).set_dim((2, 1, 4)).set_output()
    return g


def _pool() -> Graph:
    g = _graph()
    g.resample_fwd(g.tensor("x", dim=(1, 1, 6)), mode=ResampleMode.MAXPOOL, window=3, stride=2, padding=1)[
        0
    ].set_output()
    return g


def _pool_index() -> Graph:
    g = _graph()
    x = g.tensor("x", dim=(1, 1, 6))
    y, index = g.resample_fwd(x, mode=ResampleMode.MAXPOOL, window=3, stride=2, padding=1, generate_index=True)
    assert index is not None
    index.set_output()
    y.set_output()
    return g


def _layernorm() -> Graph:
    g = _graph()
    x, s, b = (g.tensor(n, dim=d) for n, d in (("x", (2, 3, 4)), ("s", (1, 1, 4)), ("b", (1, 1, 4))))
    g.layernorm(x, s, b, epsilon=1e-3)[0].set_output()
    return g


def _rmsnorm() -> Graph:
    g = _graph()
    x, s = (g.tensor(n, dim=d) for n, d in (("x", (2, 3, 4)), ("s", (1, 1, 4))))
    g.rmsnorm(x, s, epsilon=1e-3)[0].set_output()
    return g


def _batchnorm() -> Graph:
    g = _graph()
    x, s, b = (g.tensor(n, dim=d) for n, d in (("x", (2, 3, 4)), ("s", (1, 3, 1)), ("b", (1, 3, 1))))
    g.batchnorm(x, s, b, epsilon=1e-3)[0].set_output()
    return g


def _batchnorm_inference() -> Graph:
    g = _graph()
    x = g.tensor("x", dim=(2, 3, 4))
    g.batchnorm_inference(x, *(g.tensor(n, dim=(1, 3, 1)) for n in ("m", "v", "s", "b"))).set_output()
    return g


def _matmul() -> Graph:
    g = _graph()
    g.matmul(g.tensor("a", dim=(2, 3)), g.tensor("b", dim=(3, 4))).set_output()
    return g


GRAPHS: dict[str, Callable[[], Graph]] = {
    "sdpa": _sdpa, "conv": _conv, "dgrad": _dgrad, "reduction": _reduction, "pool": _pool, "pool_index": _pool_index,
    "layernorm": _layernorm, "rmsnorm": _rmsnorm, "batchnorm": _batchnorm,
    "batchnorm_inference": _batchnorm_inference, "matmul": _matmul,
    **{
        mode.name.lower(): _pointwise(mode, arity)
        for mode, arity in (
            (PointwiseMode.RELU_FWD, 1), (PointwiseMode.RELU_BWD, 2), (PointwiseMode.SWISH_FWD, 1),
            (PointwiseMode.ELU_FWD, 1), (PointwiseMode.SOFTPLUS_FWD, 1), (PointwiseMode.GEN_INDEX, 1),
            (PointwiseMode.BINARY_SELECT, 3), (PointwiseMode.ADD, 2),
        )
    },
}  # fmt: skip


# ---- the formulas, in numpy ----------------------------------------------------------------------------------------


def attention(
    left: int | None = None, right: int | None = None, *, bottom: bool = False, scale: float = 1 / math.sqrt(D)
) -> Formula:
    """Scores, band, softmax; query i sees i + off - left ... i + off + right."""

    def formula(x: Arrays) -> Any:
        i, j = np.arange(SQ)[:, None] + (SKV - SQ if bottom else 0), np.arange(SKV)[None, :]
        seen = (j >= i - (left if left is not None else 99)) & (j <= i + (right if right is not None else 99))
        scores = np.where(seen, scale * x["q"] @ np.swapaxes(x["k"], 2, 3), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ x["v"]

    return formula


def correlation(pre: int = 1, post: int = 1, stride: int = 1, dilation: int = 1, *, flip: bool = False) -> Formula:
    def formula(x: Arrays) -> Any:
        image, w = np.pad(x["x"][0, 0], (pre, post)), x["w"][0, 0][:: -1 if flip else 1]
        count = (len(image) - dilation * 2 - 1) // stride + 1
        return np.array([[[sum(image[o * stride + f * dilation] * w[f] for f in range(3)) for o in range(count)]]])

    return formula


def gradient(x: Arrays) -> Any:
    """dx of a correlation with padding 1: the full convolution with the filter, cut by the padding."""
    return np.convolve(x["dy"][0, 0], x["w"][0, 0])[1:-1][None, None]


def relu(low: float = 0.0, high: float = math.inf, slope: float = 0.0) -> Formula:
    return lambda x: np.where(x["a"] <= low, slope * (x["a"] - low) + low, np.minimum(x["a"], high))


def relu_slope(low: float = 0.0, high: float = math.inf, slope: float = 0.0, *, x_first: bool = False) -> Formula:
    def formula(v: Arrays) -> Any:
        dy, x = (v["b"], v["a"]) if x_first else (v["a"], v["b"])
        return dy * np.where(x <= low, slope, np.where(x > high, 0.0, 1.0))

    return formula


def pool(mode: str, pre: int = 1, post: int = 1) -> Formula:
    """Window 3, stride 2; mode: max (padding never wins), zero (it competes), exclude, include."""

    def formula(x: Arrays) -> Any:
        image = x["x"][0, 0]
        fill = -np.inf if mode == "max" else 0.0
        padded = np.pad(image, (pre, post), constant_values=fill)
        inside = np.pad(np.ones(len(image)), (pre, post))
        y = []
        for start in range(0, len(padded) - 2, 2):
            window, valid = padded[start : start + 3], inside[start : start + 3].sum()
            count = valid if mode == "exclude" else 3.0
            y.append(window.max() if mode in ("max", "zero") else window.sum() / count)
        return np.array([[y]])

    return formula


def layer(count: int = 1) -> Formula:
    def formula(x: Arrays) -> Any:
        axes = tuple(range(3 - count, 3))
        centred = x["x"] - x["x"].mean(axes, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-3) * x["s"] + x["b"]

    return formula


def rms(x: Arrays) -> Any:
    return x["x"] / np.sqrt((x["x"] ** 2).mean(-1, keepdims=True) + 1e-3) * x["s"]


def trained(epsilon: float) -> Formula:
    def formula(x: Arrays) -> Any:
        centred = x["x"] - x["x"].mean((0, 2), keepdims=True)
        return centred / np.sqrt((centred**2).mean((0, 2), keepdims=True) + epsilon) * x["s"] + x["b"]

    return formula


def inferred(x: Arrays) -> Any:
    return (x["x"] - x["m"]) * x["v"] * x["s"] + x["b"]


def inferred_from_variance(x: Arrays) -> Any:
    return (x["x"] - x["m"]) / np.sqrt(x["v"] + 1e-5) * x["s"] + x["b"]


# ---- the table -----------------------------------------------------------------------------------------------------

_BAND = "T/detail/PlanUtils.hpp (extractDiagonalBandParams); T/utilities/CpuFpReferenceSdpa.hpp"
_SDPA_F = "F/attributes/SdpaAttributes.hpp; S/sdpa_attributes.fbs"
_CONV_R = "T/utilities/CpuFpReferenceConvolution.hpp"
_UNARY = "T/utilities/pointwise/UnaryOperationFunctors.hpp"
_BINARY = "T/utilities/pointwise/BinaryOperationFunctors.hpp"
_POOL_R = "T/utilities/CpuFpReferenceResampleFwd.hpp"
_ALIGN = wire.DiagonalAlignment
_BOTTOM = {"diagonal_alignment": _ALIGN.BOTTOM_RIGHT}


def sdpa(fields: dict[str, Any], meaning: str, result: Formula | str, source: str = _BAND, **more: Any) -> Row:
    return Row("sdpa", fields, meaning, source, result, **more)


def mode_row(graph: str, fields: dict[str, Any], meaning: str, result: Formula | str, source: str = _UNARY) -> Row:
    return Row(graph, fields, meaning, source, result)


_TABLE: list[Row] = [
    # bounds: null and -1 are open, from 0 on a distance, below -1 an error
    sdpa({}, "no bounds: every key", attention()),
    sdpa({"left_bound": -1}, "-1 is no mask to the left", attention(), runs=True),
    sdpa({"right_bound": -1}, "-1 is no mask to the right", attention()),
    sdpa({"left_bound": -1, "right_bound": -1}, "no window", attention(), runs=True),
    sdpa({"left_bound": -1, "right_bound": 0}, "causal, as it is to be written", attention(None, 0), runs=True),
    sdpa({"left_bound": 2, "right_bound": -1}, "open to the right", attention(2), runs=True),
    sdpa({"left_bound": 0, "right_bound": 0}, "0 is a distance: the diagonal alone", attention(0, 0)),
    sdpa({"left_bound": 2**63 - 1, "right_bound": 2**62}, "any distance of 64 bits", attention(), runs=True),
    sdpa({"left_bound": -2}, "below -1: refused", "left_bound -2 is no distance"),
    sdpa({"right_bound": -(2**63)}, "below -1: refused", "is no distance"),
    sdpa({"left_bound": 1, "right_bound": 1, **_BOTTOM}, "off = Skv - Sq", attention(1, 1, bottom=True), runs=True),
    sdpa({"left_bound": -1, "right_bound": 0, **_BOTTOM}, "causal, bottom right", attention(None, 0, bottom=True)),
    sdpa(_BOTTOM, "an alignment without bounds hides nothing", attention()),
    sdpa({"diagonal_alignment": _ALIGN(7)}, "an unknown value", "alignment UNKNOWN_7", _SDPA_F),
    # the deprecated flags
    sdpa({"causal_mask": True}, "deprecated: right bound 0, top left", attention(None, 0)),
    sdpa(
        {"causal_mask_bottom_right": True}, "deprecated: right bound 0, bottom right", attention(None, 0, bottom=True)
    ),
    sdpa({"causal_mask_bottom_right": True, **_BOTTOM}, "says it twice", attention(None, 0, bottom=True)),
    sdpa(
        {"causal_mask": True, "left_bound": -1, "right_bound": 0}, "all versions that take it agree", attention(None, 0)
    ),
    sdpa({"causal_mask": True, "right_bound": -1}, "likewise", attention(None, 0)),
    sdpa(
        {"causal_mask": True, "left_bound": 2},
        "older versions drop the bound, the newest refuses",
        "causal flag beside",
    ),
    sdpa({"causal_mask_bottom_right": True, "left_bound": 0}, "likewise", "causal flag beside left_bound 0"),
    sdpa({"causal_mask": True, "right_bound": 3}, "likewise", "right bound of 0, and right_bound is 3"),
    sdpa({"causal_mask": True, **_BOTTOM}, "older versions drop the alignment, the newest refuses", "BOTTOM_RIGHT"),
    sdpa({"causal_mask": True, "causal_mask_bottom_right": True}, "refused", "exclude each other"),
    # scale
    sdpa(
        {"attn_scale_value": None},
        "hipDNN and its providers up to July 2026: 1/sqrt(D)",
        attention(),
        "T/utilities/CpuFpReferenceSdpa.hpp",
    ),
    sdpa(
        {"attn_scale_value": None},
        "the newest, as cuDNN: 1",
        attention(scale=1.0),
        "dnn-providers hip-kernel-provider asm_sdpa_engine plan utils (attnScaleOrDefault)",
        reading=("attention-scale-one",),
        runs=True,
    ),
    sdpa(
        {"attn_scale_value": 0.3}, "a number", attention(scale=float(np.float32(0.3))), reading=("attention-scale-one",)
    ),
    sdpa({"attn_scale_value": 0.0}, "0 is a value, not absence", attention(scale=0.0), _SDPA_F),
    sdpa({"attn_scale_value": -0.5}, "a negative number is a value", attention(scale=-0.5), _SDPA_F),
    sdpa(
        {"attn_scale_value": math.nan},
        "not finite: providers decline",
        "finite number",
        "dnn-providers rocKE attention matchers (scaleFor)",
    ),
    # optional parts
    sdpa({"dropout_probability": 0.0}, "0 is no dropout", attention(), _SDPA_F),
    sdpa({"dropout_probability": 0.1}, "random numbers of another engine", "dropout_probability", _SDPA_F),
    sdpa({"dropout_probability": -0.1}, "no probability", "outside 0 <= p < 1", _SDPA_F),
    sdpa({"dropout_probability": 1.0}, "nothing is left", "outside 0 <= p < 1", _SDPA_F),
    sdpa({"alibi_mask": False}, "default", attention(), _SDPA_F),
    sdpa({"alibi_mask": True}, "not settled beyond the diagonal", "alibi_mask", _SDPA_F),
    sdpa({"padding_mask": True}, "needs the lengths", "seq_len_q is missing", _SDPA_F),
    sdpa({"generate_stats": False}, "like absence", attention(), _SDPA_F),
    sdpa({"generate_stats": True}, "needs a stats tensor", "stats is no output", _SDPA_F),
    sdpa({"max_seq_len_kv": 6}, "of a paged cache", "there are no page tables", _SDPA_F),
    sdpa({"max_seq_len_kv": 0}, "no length", "a length of at least 1", _SDPA_F),
    sdpa({"mma_core_mode": wire.DataType.UNSET}, "no hint", attention(), _SDPA_F),
    sdpa({"mma_core_mode": wire.DataType.HALF}, "a hint; never less exact here", attention(), _SDPA_F),
    sdpa({"implementation": wire.AttentionImplementation.COMPOSITE}, "a hint", attention(), _SDPA_F),
    sdpa({"implementation": wire.AttentionImplementation(9)}, "an unknown value", "implementation UNKNOWN_9", _SDPA_F),
    # convolutions
    Row("conv", {"conv_mode": wire.ConvMode.CROSS_CORRELATION}, "the filter as it is", _CONV_R, correlation()),
    Row("conv", {"conv_mode": wire.ConvMode.UNSET}, "read as a cross-correlation", _CONV_R, correlation()),
    Row(
        "conv",
        {"conv_mode": wire.ConvMode.CONVOLUTION},
        "mirrored; the wire's 1 is the front end's 2",
        "S/convolution_common.fbs; F/Types.hpp",
        correlation(flip=True),
        runs=True,
    ),
    Row("conv", {"conv_mode": wire.ConvMode(9)}, "an unknown value", "S/convolution_common.fbs", "conv_mode 9"),
    Row("conv", {"pre_padding": (2,), "post_padding": (0,)}, "may differ", _CONV_R, correlation(2, 0), runs=True),
    Row("conv", {"pre_padding": (0,), "post_padding": (2,)}, "the index counts from pre", _CONV_R, correlation(0, 2)),
    Row("conv", {"pre_padding": (-1,)}, "refused by the front end", "F/node/ConvolutionFpropNode.hpp", "at least 0"),
    Row("conv", {"stride": (0,)}, "refused by the front end", "F/node/ConvolutionFpropNode.hpp", "at least 1"),
    Row("conv", {"dilation": (0,)}, "refused by the front end", "F/node/ConvolutionFpropNode.hpp", "at least 1"),
    Row("conv", {"stride": (2**40,)}, "one result", _CONV_R, "must be at least 1"),
    Row("conv", {"stride": ()}, "no spatial dims", "F/node/ConvolutionFpropNode.hpp", "at least one spatial dim"),
    Row(
        "conv", {"dilation": (1, 1)}, "one entry per spatial dim", "F/node/ConvolutionFpropNode.hpp", "differ in length"
    ),
    Row("dgrad", {"conv_mode": wire.ConvMode.UNSET}, "read as a cross-correlation", _CONV_R, gradient),
    # pointwise: null parameters have defaults, 0 is a value, parameters of other modes are not read
    mode_row("relu_fwd", {}, "clip 0, no upper clip, slope 0", relu()),
    mode_row("relu_fwd", {"relu_lower_clip": 0.0, "relu_lower_clip_slope": 0.0}, "like absence", relu()),
    mode_row("relu_fwd", {"relu_lower_clip": -0.5}, "", relu(-0.5)),
    mode_row("relu_fwd", {"relu_upper_clip": 0.5}, "", relu(0.0, 0.5)),
    mode_row("relu_fwd", {"relu_upper_clip": 0.0}, "0 is a value: everything is 0", lambda x: 0.0 * x["a"]),
    mode_row("relu_fwd", {"relu_lower_clip_slope": 0.25}, "", relu(slope=0.25)),
    mode_row(
        "relu_fwd",
        {"relu_lower_clip": 0.5, "relu_lower_clip_slope": 0.25},
        "slope from the clip",
        relu(0.5, slope=0.25),
    ),
    mode_row("relu_fwd", {"relu_lower_clip": math.nan}, "no number", "not NaN"),
    mode_row(
        "relu_fwd", {"swish_beta": 2.0, "elu_alpha": 0.0, "softplus_beta": 0.0}, "of other modes: not read", relu()
    ),
    mode_row("relu_bwd", {}, "(dy, x); 0 at 0", relu_slope(), _BINARY),
    mode_row(
        "relu_bwd",
        {"relu_lower_clip_slope": 0.25},
        "the lower clip is exclusive: the slope at 0",
        relu_slope(slope=0.25),
        _BINARY,
    ),
    mode_row("relu_bwd", {"relu_upper_clip": 1.0}, "the upper clip is inclusive", relu_slope(high=1.0), _BINARY),
    Row(
        "relu_bwd", {}, "(x, dy) in versions of 2025", _BINARY, relu_slope(x_first=True), reading=("backward-x-first",)
    ),
    mode_row("swish_fwd", {}, "beta 1", lambda x: x["a"] / (1 + np.exp(-x["a"]))),
    mode_row("swish_fwd", {"swish_beta": 2.0}, "", lambda x: x["a"] / (1 + np.exp(-2 * x["a"]))),
    mode_row("swish_fwd", {"swish_beta": 0.0}, "0 is a value: x / 2", lambda x: x["a"] / 2),
    mode_row("elu_fwd", {}, "alpha 1", lambda x: np.where(x["a"] > 0, x["a"], np.expm1(x["a"]))),
    mode_row("elu_fwd", {"elu_alpha": 0.0}, "0 is a value: relu", lambda x: np.maximum(x["a"], 0.0)),
    mode_row("softplus_fwd", {}, "beta 1", lambda x: np.log1p(np.exp(x["a"]))),
    mode_row("softplus_fwd", {"softplus_beta": 2.0}, "", lambda x: np.log1p(np.exp(2 * x["a"])) / 2),
    mode_row("softplus_fwd", {"softplus_beta": 0.0}, "a division by 0", "softplus_beta must not be 0"),
    mode_row(
        "gen_index",
        {"axis_tensor_uid": 2},
        "an axis number, despite the name",
        lambda x: np.broadcast_to(np.arange(4.0), (2, 3, 4)),
        "F/attributes/PointwiseAttributes.hpp (axis)",
    ),
    mode_row(
        "gen_index",
        {"axis_tensor_uid": 0},
        "0 is an axis",
        lambda x: np.broadcast_to(np.arange(2.0)[:, None, None], (2, 3, 4)),
        "F/attributes/PointwiseAttributes.hpp",
    ),
    mode_row(
        "gen_index",
        {"axis_tensor_uid": None},
        "needs an axis",
        "axis is missing",
        "F/attributes/PointwiseAttributes.hpp",
    ),
    mode_row("gen_index", {"axis_tensor_uid": 3}, "no such axis", "axis", "F/attributes/PointwiseAttributes.hpp"),
    mode_row(
        "gen_index",
        {"axis_tensor_uid": -1},
        "no axis counts from the end",
        "axis",
        "F/attributes/PointwiseAttributes.hpp",
    ),
    mode_row(
        "add", {"operation": wire.PointwiseMode.UNSET}, "nothing to do", "operation UNSET", "S/pointwise_attributes.fbs"
    ),
    mode_row(
        "add", {"operation": wire.PointwiseMode(99)}, "an unknown value", "UNKNOWN_99", "S/pointwise_attributes.fbs"
    ),
    mode_row(
        "binary_select",
        {},
        "(a, b, predicate), as cuDNN's front end",
        lambda x: np.where(x["c"] != 0, x["a"], x["b"]),
        "F/Graph.hpp (pointwise)",
    ),
    Row(
        "binary_select",
        {},
        "(predicate, a, b), as torch.where",
        "the C++ predecessor of this engine",
        lambda x: np.where(x["a"] != 0, x["b"], x["c"]),
        reading=("select-predicate-first",),
    ),
    # reductions
    *(
        Row(
            "reduction",
            {"mode": wire.ReductionMode[name]},
            "over the dims that are 1",
            "T/utilities/CpuFpReferenceReduction.hpp",
            lambda x, formula=formula: formula(x["x"]),
        )
        for name, formula in {
            "ADD": lambda x: x.sum(1, keepdims=True),
            "MUL": lambda x: x.prod(1, keepdims=True),
            "MIN_OP": lambda x: x.min(1, keepdims=True),
            "MAX_OP": lambda x: x.max(1, keepdims=True),
            "AMAX": lambda x: np.abs(x).max(1, keepdims=True),
            "AVG": lambda x: x.mean(1, keepdims=True),
            "NORM1": lambda x: np.abs(x).sum(1, keepdims=True),
            "NORM2": lambda x: np.sqrt((x**2).sum(1, keepdims=True)),
            "MUL_NO_ZEROS": lambda x: np.where(x == 0, 1, x).prod(1, keepdims=True),
        }.items()
    ),
    Row(
        "reduction",
        {"mode": wire.ReductionMode.NOT_SET},
        "throws",
        "T/utilities/CpuFpReferenceReduction.hpp",
        "NOT_SET is not known",
    ),
    Row("reduction", {"mode": wire.ReductionMode(77)}, "an unknown value", "S/reduction_attributes.fbs", "UNKNOWN_77"),
    Row(
        "reduction",
        {"is_deterministic": True},
        "a promise that is always kept here",
        "F/attributes/ReductionAttributes.hpp",
        lambda x: x["x"].sum(1, keepdims=True),
    ),
    # pooling
    Row("pool", {}, "padding never wins", _POOL_R, pool("max")),
    Row("pool", {"padding_mode": wire.PaddingMode.ZERO_PAD}, "padding competes as 0", _POOL_R, pool("zero"), runs=True),
    Row(
        "pool",
        {"padding_mode": wire.PaddingMode.PADDING_NOT_SET},
        "the front end's default, which a maximum must set",
        "F/attributes/ResampleFwdAttributes.hpp",
        "without a padding mode",
    ),
    *(
        Row(
            "pool",
            {"resample_mode": wire.ResampleMode[name], "padding_mode": padding},
            "averages read no padding mode",
            _POOL_R,
            pool(kind),
        )
        for name, kind in (("AVGPOOL_EXCLUDE_PADDING", "exclude"), ("AVGPOOL_INCLUDE_PADDING", "include"))
        for padding in wire.PaddingMode
    ),
    Row("pool", {"resample_mode": wire.ResampleMode.NOT_SET}, "nothing to do", _POOL_R, "NOT_SET"),
    Row("pool", {"padding_mode": wire.PaddingMode(5)}, "an unknown value", "S/resample_common.fbs", "UNKNOWN_5"),
    Row("pool", {"pre_padding": (0,), "post_padding": (2,)}, "may differ", _POOL_R, pool("max", 0, 2)),
    Row("pool", {"pre_padding": (-1,)}, "no padding", "F/node/ResampleFwdNode.hpp", "at least 0"),
    Row("pool", {"window": (0,)}, "no window", "F/node/ResampleFwdNode.hpp", "at least 1"),
    Row("pool", {"generate_index": False}, "like absence", "F/node/ResampleFwdNode.hpp", pool("max")),
    Row("pool", {"generate_index": True}, "needs an index tensor", "F/node/ResampleFwdNode.hpp", "an index output"),
    Row(
        "pool",
        {"generate_index": True, "resample_mode": wire.ResampleMode.AVGPOOL_INCLUDE_PADDING},
        "read for maxima alone",
        "F/node/ResampleFwdNode.hpp",
        pool("include"),
        runs=True,
    ),
    Row(
        "pool_index",
        {"generate_index": None},
        "an index tensor is written whatever the flag says",
        _POOL_R,
        pool("max"),
    ),
    # norms
    Row("layernorm", {}, "one trailing dim", "T/utilities/CpuFpReferenceLayernorm.hpp", layer()),
    Row("layernorm", {"normalized_dim_count": 1}, "", "T/utilities/CpuFpReferenceLayernorm.hpp", layer()),
    Row(
        "layernorm",
        {"normalized_dim_count": 0},
        "not set: the dims of scale say it",
        "F/node/LayerNormNode.hpp",
        layer(),
    ),
    Row("layernorm", {"normalized_dim_count": -1}, "refused", "T/utilities/CpuFpReferenceLayernorm.hpp", "at least 1"),
    Row("layernorm", {"normalized_dim_count": 2}, "scale has other dims", "F/node/LayerNormNode.hpp", "has dims"),
    Row(
        "layernorm",
        {"normalized_dim_count": 4},
        "more than x has",
        "T/utilities/CpuFpReferenceLayernorm.hpp",
        "more than the dims",
    ),
    Row(
        "layernorm",
        {"forward_phase": wire.NormFwdPhase.NOT_SET},
        "refused by the front end",
        "F/node/LayerNormNode.hpp",
        "NOT_SET",
    ),
    Row(
        "layernorm",
        {"forward_phase": wire.NormFwdPhase.TRAINING},
        "statistics are optional",
        "S/layernorm_attributes.fbs",
        layer(),
    ),
    Row("rmsnorm", {}, "", "F/node/RMSNormNode.hpp", rms),
    Row(
        "rmsnorm",
        {"forward_phase": wire.NormFwdPhase.NOT_SET},
        "refused by the front end",
        "F/node/RMSNormNode.hpp",
        "NOT_SET",
    ),
    Row("rmsnorm", {"forward_phase": wire.NormFwdPhase.TRAINING}, "needs inv_rms", "F/node/RMSNormNode.hpp", "inv_rms"),
    Row("batchnorm", {}, "biased variance", "T/utilities/CpuFpReferenceBatchnorm.hpp", trained(1e-3)),
    Row("batchnorm", {"peer_stats_tensor_uid": ()}, "none", "S/batchnorm_attributes.fbs", trained(1e-3)),
    Row(
        "batchnorm_inference",
        {},
        "what its name says",
        "T/utilities/CpuFpReferenceBatchnorm.hpp (fwdInference)",
        inferred,
    ),
    Row(
        "batchnorm_inference",
        {},
        "AMD's provider: a variance",
        "dnn-providers miopen-provider batchnorm inference",
        inferred_from_variance,
        reading=("batchnorm-variance",),
    ),
    # epsilon, a tensor with a value
    Row(
        "batchnorm",
        {"value": wire.TensorValue(type=wire.TensorValueType.Float32Value, value=0.0)},
        "0 is a value",
        "S/tensor_attributes.fbs",
        trained(0.0),
        tensor="epsilon",
    ),
    Row(
        "batchnorm",
        {
            "data_type": wire.DataType.DOUBLE,
            "value": wire.TensorValue(type=wire.TensorValueType.Float64Value, value=0.5),
        },
        "any floating type",
        "dnn-providers plugin_sdk ScalarOperand",
        trained(0.5),
        tensor="epsilon",
    ),
    Row(
        "batchnorm",
        {"is_runtime_pass_by_value": True},
        "a value beside the flag is baked in",
        "dnn-providers plugin_sdk ScalarOperand (makeScalarOperand)",
        trained(1e-3),
        tensor="epsilon",
    ),
    Row(
        "batchnorm",
        {"value": wire.TensorValue(type=wire.TensorValueType.Float32Value, value=-1.0)},
        "no epsilon",
        "F/node/BatchnormNode.hpp",
        "at least 0",
        tensor="epsilon",
    ),
    # tensors
    Row("matmul", {"alignment": 16}, "default", "S/tensor_attributes.fbs", lambda x: x["a"] @ x["b"], tensor="a"),
    Row(
        "matmul",
        {"alignment": 1},
        "less is known: copied where need be",
        "S/tensor_attributes.fbs",
        lambda x: x["a"] @ x["b"],
        tensor="a",
    ),
    Row(
        "matmul",
        {"ragged_offset_multiplier": 7},
        "belongs to ragged tensors",
        "S/tensor_attributes.fbs",
        lambda x: x["a"] @ x["b"],
        tensor="a",
    ),
    Row(
        "matmul",
        {"ragged_offset_tensor_uid": 1},
        "rows of other lengths",
        "T/detail/PlanUtils.hpp (CHECK_NO_RAGGED_TENSORS)",
        "is ragged",
        tensor="a",
    ),
    Row(
        "matmul",
        {"data_type": wire.DataType.UNSET},
        "the graph's",
        "F/attributes/GraphAttributes.hpp",
        lambda x: x["a"] @ x["b"],
        tensor="a",
    ),
    Row(
        "matmul",
        {"data_type": wire.DataType(16)},
        "numbers from 16 on differ between schemas",
        "S/data_types.fbs",
        "FUSILLI_WIRE_DTYPES",
        tensor="a",
    ),
]


_FREE = ("conv", "pool")
"""Graphs whose results have dims that follow from the attributes that are changed."""


def _changed(row: Row) -> wire.WireGraph:
    """The graph of a row as bytes hold it; results that follow from changed attributes have no dims yet."""
    source = export_graph(GRAPHS[row.graph]().validate())
    (node,) = source.nodes
    tensors = source.tensors
    if row.tensor:
        names = {t.uid: "epsilon" if t.value is not None else t.name for t in tensors}
        tensors = tuple(t.replace(**row.fields) if names[t.uid] == row.tensor else t for t in tensors)
        assert tensors != source.tensors or row.fields == {"alignment": 16}
    else:
        node = node.replace(attributes=node.attributes.replace(**row.fields))
    if row.graph in _FREE:
        kind: Any = type(node.attributes)
        made = {getattr(node.attributes, name) for name in kind.OUTPUTS}
        tensors = tuple(t.replace(virtual=True, dims=(), strides=()) if t.uid in made else t for t in tensors)
    return decode_graph(encode_graph(source.replace(nodes=(node,), tensors=tensors)))


def _imported(row: Row) -> Graph:
    source, reading = _changed(row), Reading.parse(row.reading)
    if row.graph not in _FREE:
        return import_graph(source, reading)
    scope = Scope(source, reading)
    (node,) = source.nodes
    kind: Any = type(node.attributes)
    IMPORTERS[kind](scope, node, node.attributes)
    scope.graph.nodes[0].outputs["y"].set_output()
    return scope.graph.validate()


def _pack(graph: Graph) -> dict[Any, np.ndarray[Any, Any]]:
    """Normal numbers, some exactly 0 and 1; variances are positive."""
    pack = graph.random_inputs(seed=11)
    for tensor, array in pack.items():
        flat = np.abs(array) + 0.5 if tensor.name in ("v",) and array.shape == (1, 3, 1) else array
        array[...] = np.round(flat * 4) / 4
    return pack


@pytest.mark.parametrize("row", _TABLE, ids=str)
def test_each_attribute_means_what_hipdnn_means(row: Row) -> None:
    if isinstance(row.result, str):
        with pytest.raises((GraphError, NotSupportedError), match=row.result):
            support(_imported(row), CPU).require()
        return
    graph = _imported(row)
    pack = _pack(graph)
    wanted = row.result({tensor.name: array.astype(np.float64) for tensor, array in pack.items()})
    first = next(iter(graph.nodes[-1].outputs.values()))
    np.testing.assert_allclose(graph.reference(pack)[first], wanted, rtol=1e-6, atol=1e-6)
    assert support(graph, CPU).ok
    if row.runs:
        results = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
        build(graph, "cpu").run({**pack, **results})
        np.testing.assert_allclose(results[first], wanted, rtol=1e-4, atol=1e-5)


def test_every_such_attribute_has_a_row() -> None:
    """Fields of the served tables that are no operands: a row at least for each."""
    tables: dict[type[Any], set[str]] = {}
    for row in _TABLE:
        table = type(_changed(replace(row, fields={}, tensor="")).nodes[0].attributes)
        tables.setdefault(table, set()).update(row.fields)
    assert {IMPORTERS[table].__module__.rsplit(".", 1)[1] for table in tables} == {
        "conv", "matmul", "norm", "pointwise", "reduction", "resample", "sdpa",
    }  # fmt: skip
    parameters = {"axis_tensor_uid", "peer_stats_tensor_uid"}
    missing = [
        f"{table.__name__}.{name}"
        for table, named in tables.items()
        for name in table.FIELDS
        if (not name.endswith("tensor_uid") or name in parameters) and name not in named
    ]
    assert sorted(missing) == [  # spatial attributes that fprop has rows for; they are read by the same lines
        "ConvolutionBwdAttributes.dilation", "ConvolutionBwdAttributes.post_padding",
        "ConvolutionBwdAttributes.pre_padding", "ConvolutionBwdAttributes.stride", "ResampleFwdAttributes.stride",
    ]  # fmt: skip


def test_left_bound_beside_a_flag_leaves_in_the_newer_spelling() -> None:
    """What the graph API takes and versions of hipDNN read differently is never written."""
    for flag, alignment in (("causal_mask", _ALIGN.TOP_LEFT), ("causal_mask_bottom_right", _ALIGN.BOTTOM_RIGHT)):
        g = _graph()
        q = g.tensor("q", dim=(1, 1, 4, 8))
        flags: dict[str, Any] = {flag: True}
        g.sdpa(q, q, q, diagonal_band_left_bound=1, **flags).o.set_output()
        table: Any = export_graph(g).nodes[0].attributes
        assert (table.causal_mask, table.causal_mask_bottom_right) == (False, False)
        assert (table.left_bound, table.right_bound, table.diagonal_alignment) == (1, 0, alignment)


def test_no_scale_leaves_as_a_number() -> None:
    table: Any = export_graph(_sdpa()).nodes[0].attributes
    assert table.attn_scale_value == pytest.approx(1 / math.sqrt(D))
