"""cuDNN's operations by tag: which of ours each one is, and how its ports and fields are called and meant there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graph_api.errors import NotSupportedError
from graph_api.foreign.fields import Fields
from graph_api.node import Attributes, Node
from graph_api.ops.attention import DiagonalAlignment
from graph_api.ops.batchnorm import BatchnormInferenceNode, BatchnormNode
from graph_api.ops.block_scale import (
    BlockScaleDequantizeAttributes,
    BlockScaleDequantizeNode,
    BlockScaleQuantizeAttributes,
    BlockScaleQuantizeNode,
)
from graph_api.ops.conv import ConvAttributes, ConvDgradNode, ConvFpropNode, ConvolutionMode, ConvWgradNode
from graph_api.ops.matmul import MatmulNode
from graph_api.ops.moe import (
    MoeGroupedMatmulAttributes,
    MoeGroupedMatmulBwdNode,
    MoeGroupedMatmulMode,
    MoeGroupedMatmulNode,
)
from graph_api.ops.norm import LayernormAttributes, LayernormNode, NormFwdPhase, RmsnormAttributes, RmsnormNode
from graph_api.ops.norm_backward import BatchnormBackwardNode, LayernormBackwardNode, RmsnormBackwardNode
from graph_api.ops.pointwise import PointwiseAttributes, PointwiseMode, PointwiseNode
from graph_api.ops.reduction import ReductionAttributes, ReductionMode, ReductionNode
from graph_api.ops.resample import PaddingMode, ResampleAttributes, ResampleFwdNode, ResampleMode
from graph_api.ops.sdpa import AttentionImplementation, SdpaAttributes, SdpaNode
from graph_api.ops.sdpa_backward import SdpaBackwardAttributes, SdpaBackwardNode
from graph_api.tensor import TensorAttr

__all__ = ["DECLINED", "RULES", "Rule"]

Ports = Mapping[str, TensorAttr]
Read = Callable[[Fields, Ports, Ports], Attributes | None]


def _defaults(node: Fields, inputs: Ports, outputs: Ports) -> None:
    return None


@dataclass(frozen=True)
class Rule:
    """An operation of cuDNN's in our words.

    Attributes:
        node: our operation.
        inputs, outputs: our ports by cuDNN's.
        attributes: reads ours, given the tensors by our ports; None is that all have their defaults.
        fields: what it reads.
        ignored: fields that change no result.
    """

    node: type[Node]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: Read = _defaults
    fields: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def _lower(*ports: str, **others: str) -> dict[str, str]:
    """Ports that are ours in other letters, and those that are called otherwise."""
    return {port: port.lower() for port in ports} | others


def _decline(node: Fields, rule: str, reason: str) -> NotSupportedError:
    return NotSupportedError(node.where, rule, reason)


_CONV_FIELDS: Final = ("pre_padding", "post_padding", "stride", "dilation", "math_mode")


def _conv(node: Fields, inputs: Ports, outputs: Ports) -> ConvAttributes:
    return ConvAttributes(
        pre_padding=node.integers("pre_padding"),
        post_padding=node.integers("post_padding"),
        stride=node.integers("stride"),
        dilation=node.integers("dilation"),
        # Files of versions before 1.7 do not have it: they knew no other.
        convolution_mode=node.choice("math_mode", ConvolutionMode, ConvolutionMode.CROSS_CORRELATION),
    )


_POINTWISE_NUMBERS: Final = (
    "relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope", "swish_beta", "elu_alpha", "softplus_beta",
)  # fmt: skip
_MODES_WITHOUT_WORD: Final = ("MOD", "POW", "COS")


def _pointwise(node: Fields, inputs: Ports, outputs: Ports) -> PointwiseAttributes:
    if node.get("mode") in _MODES_WITHOUT_WORD:
        raise _decline(node, "mode", f"hipDNN has no pointwise mode {node.get('mode')}")
    mode = node.choice("mode", PointwiseMode)
    axis = node.integer("axis", None)
    return PointwiseAttributes(
        mode=mode,
        # cuDNN sets an axis on some other operations, too, where it says nothing.
        axis=axis if mode is PointwiseMode.GEN_INDEX else None,
        **{name: node.number(name, None) for name in _POINTWISE_NUMBERS},
    )


def _matmul(node: Fields, inputs: Ports, outputs: Ports) -> None:
    if node.number("padding_value", 0.0):
        raise _decline(node, "padding_value", f"products are padded with 0, not with {node.get('padding_value')}")
    overrides = [port for port in inputs if port.endswith("_override")]
    if overrides:
        raise _decline(node, "override", f"sizes that tensors override ({', '.join(overrides)}) are not served")


def _reduction(node: Fields, inputs: Ports, outputs: Ports) -> ReductionAttributes:
    return ReductionAttributes(
        mode=node.choice("mode", ReductionMode), is_deterministic=node.flag("is_deterministic", False)
    )


def _resample(node: Fields, inputs: Ports, outputs: Ports) -> ResampleAttributes:
    for key, known in (("resample_mode", ResampleMode), ("padding_mode", PaddingMode)):
        if node.get(key) in ("BILINEAR", "NEAREST", "EDGE_VAL_PAD"):
            raise _decline(node, key, f"{node.get(key)} has no counterpart; {', '.join(known.__members__)} have")
    if "index" in outputs:
        raise _decline(node, "index", "cuDNN's index of the maximum means something to cuDNN only")
    mode = node.choice("resample_mode", ResampleMode)
    padding = node.choice("padding_mode", PaddingMode, None)
    return ResampleAttributes(
        mode=mode,
        padding_mode=padding or (PaddingMode.NEG_INF_PAD if mode is ResampleMode.MAXPOOL else PaddingMode.ZERO_PAD),
        pre_padding=node.integers("pre_padding"),
        post_padding=node.integers("post_padding"),
        stride=node.integers("stride"),
        window=node.integers("window"),
    )


def _layernorm(node: Fields, inputs: Ports, outputs: Ports) -> LayernormAttributes:
    return LayernormAttributes(forward_phase=node.choice("forward_phase", NormFwdPhase))


def _rmsnorm(node: Fields, inputs: Ports, outputs: Ports) -> RmsnormAttributes:
    return RmsnormAttributes(forward_phase=node.choice("forward_phase", NormFwdPhase))


_WINDOW: Final = (
    "left_bound", "right_bound", "diagonal_alignment", "sliding_window_length", "causal_mask",
    "causal_mask_bottom_right",
)  # fmt: skip
_ATTENTION: Final = ("alibi_mask", "padding_mask", "dropout_probability", "attn_scale_value", *_WINDOW)


def _left_bound(node: Fields) -> int | None:
    """Ours: query i sees key i - left_bound still; cuDNN's is one more. Before version 1.11 it was called a length."""
    for key in ("left_bound", "sliding_window_length"):
        bound = node.integer(key, None)
        if bound is not None and bound < 1:
            raise _decline(node, key, f"{bound} leaves no key to a query; it must be 1 or more")
        if bound is not None:
            return bound - 1
    return None


def _attention(node: Fields, inputs: Ports) -> dict[str, Any]:
    """What both directions have. Without a scale cuDNN multiplies with none, where ours is that of the head size."""
    causal, at_end = node.flag("causal_mask", False), node.flag("causal_mask_bottom_right", False)
    alignment = node.choice("diagonal_alignment", DiagonalAlignment, DiagonalAlignment.TOP_LEFT)
    right = node.integer("right_bound", 0 if causal or at_end else None)
    scale = node.number("attn_scale_value", None if "scale" in inputs else 1.0)
    return {
        "attn_scale_value": scale,
        "padding_mask": node.flag("padding_mask", False),
        "alibi_mask": node.flag("alibi_mask", False),
        "dropout_probability": node.number("dropout_probability", None),
        "left_bound": _left_bound(node),
        "right_bound": right,
        "diagonal_alignment": DiagonalAlignment.BOTTOM_RIGHT if at_end else alignment,
    }


def _sdpa(node: Fields, inputs: Ports, outputs: Ports) -> SdpaAttributes:
    from graph_api.dtypes import DataType

    if node.flag("is_mxfp8", False):
        raise _decline(node, "is_mxfp8", "attention in blocks of 8 bits is not served")
    return SdpaAttributes(
        generate_stats="stats" in outputs,
        max_seq_len_kv=node.integer("max_seq_len_kv", None),
        mma_core_mode=node.choice("mma_core_mode", DataType, None),
        implementation=node.choice("implementation", AttentionImplementation, AttentionImplementation.AUTO),
        **_attention(node, inputs),
    )


def _sdpa_backward(node: Fields, inputs: Ports, outputs: Ports) -> SdpaBackwardAttributes:
    return SdpaBackwardAttributes(**_attention(node, inputs))


def _quantize(node: Fields, inputs: Ports, outputs: Ports) -> BlockScaleQuantizeAttributes:
    return BlockScaleQuantizeAttributes(block_size=node.integer("block_size"), axis=node.integer("axis", None))


def _dequantize(node: Fields, inputs: Ports, outputs: Ports) -> BlockScaleDequantizeAttributes:
    return BlockScaleDequantizeAttributes(
        block_size=node.integers("block_size"), is_negative_scale=node.flag("is_negative_scale", False)
    )


def _moe(node: Fields, inputs: Ports, outputs: Ports) -> MoeGroupedMatmulAttributes:
    return MoeGroupedMatmulAttributes(
        mode=node.choice("mode", MoeGroupedMatmulMode, MoeGroupedMatmulMode.NONE), top_k=node.integer("top_k", 0)
    )


_SDPA: Final = Rule(
    SdpaNode,
    _lower(
        "Q", "K", "V", "SEQ_LEN_Q", "SEQ_LEN_KV", "Seed", "Offset", "Dropout_mask", "Dropout_scale", "Page_table_K",
        "Page_table_V", "Block_mask", "Descale_Q", "Descale_K", "Descale_V", "Descale_S", "Scale_S", "Scale_O",
        "SINK_TOKEN", Attn_scale="scale", Bias="attn_mask",
    ),
    _lower("O", "Stats", "Max", "Sum_exp", "RNG_DUMP", "Amax_S", "Amax_O"),
    _sdpa,
    (*_ATTENTION, "max_seq_len_kv", "mma_core_mode", "implementation", "is_mxfp8"),
    # Whether there are statistics is told by their port; the others choose among ways to compute the same.
    ("generate_stats", "is_inference", "unfuse_fma", "rescale_threshold"),
)  # fmt: skip
_FORWARD: Final = {"MEAN": "mean", "INV_VARIANCE": "inv_variance"}

RULES: Final[Mapping[str, Rule]] = {
    "CONV_FPROP": Rule(ConvFpropNode, _lower("X", "W"), _lower("Y"), _conv, _CONV_FIELDS),
    "CONV_DGRAD": Rule(ConvDgradNode, _lower("DY", "W"), _lower("DX"), _conv, _CONV_FIELDS),
    "CONV_WGRAD": Rule(ConvWgradNode, _lower("DY", "X"), _lower("DW"), _conv, _CONV_FIELDS),
    "POINTWISE": Rule(
        PointwiseNode,
        _lower("IN_0", "IN_1", "IN_2"),
        _lower("OUT_0"),
        _pointwise,
        ("mode", "axis", *_POINTWISE_NUMBERS),
    ),
    "MATMUL": Rule(
        MatmulNode,
        _lower("A", "B", "M_override", "N_override", "K_override"),
        _lower("C"),
        _matmul,
        ("padding_value",),
    ),
    "REDUCTION": Rule(ReductionNode, _lower("X"), _lower("Y"), _reduction, ("mode", "is_deterministic")),
    "RESAMPLE": Rule(
        ResampleFwdNode,
        _lower("X"),
        _lower("Y", "Index"),
        _resample,
        ("resample_mode", "padding_mode", "pre_padding", "post_padding", "stride", "window"),
        ("generate_index", "is_inference"),
    ),
    "BATCHNORM": Rule(
        BatchnormNode,
        _lower("X", "SCALE", "BIAS", "EPSILON", "MOMENTUM", "PREV_RUNNING_MEAN")
        | {"PREV_RUNNING_VAR": "prev_running_variance"},
        _lower("Y", "MEAN", "INV_VARIANCE", "NEXT_RUNNING_MEAN") | {"NEXT_RUNNING_VAR": "next_running_variance"},
    ),
    "BATCHNORM_INFERENCE": Rule(
        BatchnormInferenceNode, _lower("X", "SCALE", "BIAS", "MEAN", "INV_VARIANCE"), _lower("Y")
    ),
    "DBN": Rule(
        BatchnormBackwardNode, _lower("DY", "X", "SCALE", "MEAN", "INV_VARIANCE"), _lower("DX", "DSCALE", "DBIAS")
    ),
    "LAYER_NORM": Rule(
        LayernormNode, _lower("X", "SCALE", "BIAS", "EPSILON"), _lower("Y") | _FORWARD, _layernorm, ("forward_phase",)
    ),
    "LAYER_NORM_BPROP": Rule(
        LayernormBackwardNode,
        _lower("DY", "X", "SCALE", "MEAN", "INV_VARIANCE", "EPSILON"),
        _lower("DX", "DSCALE", "DBIAS"),
    ),
    "RMS_NORM": Rule(
        RmsnormNode,
        _lower("X", "SCALE", "BIAS", "EPSILON"),
        _lower("Y", INV_VARIANCE="inv_rms"),
        _rmsnorm,
        ("forward_phase",),
    ),
    "RMS_NORM_BPROP": Rule(
        RmsnormBackwardNode,
        _lower("DY", "X", "SCALE", INV_VARIANCE="inv_rms"),
        _lower("DX", "DSCALE", "DBIAS"),
    ),
    "SDPA": _SDPA,
    "SDPA_FWD": _SDPA,  # of versions before 1.12
    "SDPA_FP8_FWD": _SDPA,
    "SDPA_BWD": Rule(
        SdpaBackwardNode,
        _lower(
            "Q", "K", "V", "O", "dO", "Stats", "SEQ_LEN_Q", "SEQ_LEN_KV", "Seed", "Offset", "Dropout_mask",
            "Dropout_scale", "Dropout_scale_inv", "SINK_TOKEN", Attn_scale="scale", Bias="attn_mask",
        ),
        _lower("dQ", "dK", "dV", "dBias", "DSINK_TOKEN"),
        _sdpa_backward,
        _ATTENTION,
        ("max_total_seq_len_q", "max_total_seq_len_kv", "is_deterministic_algorithm"),
    ),
    "BLOCK_SCALE_QUANTIZE": Rule(
        BlockScaleQuantizeNode, _lower("X"), _lower("Y", "scale"), _quantize, ("block_size", "axis")
    ),
    "BLOCK_SCALE_DEQUANTIZE": Rule(
        BlockScaleDequantizeNode, _lower("X", "scale"), _lower("Y"), _dequantize, ("block_size", "is_negative_scale")
    ),
    "MOE_GROUPED_MATMUL": Rule(
        MoeGroupedMatmulNode,
        _lower("Token", "Weight")
        | {"FirstTokenOffset": "first_token_offset", "TokenIndex": "token_index", "TokenKs": "token_ks"},
        _lower("Output"),
        _moe,
        ("mode", "top_k"),
    ),
    "MOE_GROUPED_MATMUL_BWD": Rule(
        MoeGroupedMatmulBwdNode,
        _lower("DOutput", "Token") | {"FirstTokenOffset": "first_token_offset"},
        _lower("DWeight"),
    ),
}  # fmt: skip
"""By tag."""

_NO_WORD: Final = "hipDNN has no such operation"
DECLINED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "ADA_LAYER_NORM", "ADA_LAYER_NORM_BPROP", "BN_FINALIZE", "CONCATENATE", "DBN_WEIGHT", "GENSTATS",
            "INSTANCE_NORM", "INSTANCE_NORM_BPROP", "RESHAPE", "RNG", "SLICE", "TRANSPOSE",
        ),
        _NO_WORD,
    ),
    "MATMUL_FP8": "write a MATMUL of dequantised operands, or products with POINTWISE MUL by the scales",
    **dict.fromkeys(("SDPA_FP8_BWD", "SDPA_MXFP8_FWD", "SDPA_MXFP8_BWD"), "hipDNN has it in more than 8 bits only"),
}  # fmt: skip
"""Tags of operations without counterpart, and why or what to do."""
