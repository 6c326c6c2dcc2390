"""Attributes that are one word of a few, and numbers of which only some make sense: what else is there is refused.

Neither onnx's checker nor its inference looks at them, and torch-mlir takes an unknown word for the default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import onnx

from fusilli_ground.spelling import did_you_mean
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import OnnxGraph, attributes, subgraphs

__all__ = ["FLAGS", "WORDS", "check_words"]

_AUTO_PAD = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
_ACTIVATIONS = (
    *("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign", "Tanh"),
    "ThresholdedRelu",
)
_RECURRENT = ("LSTM", "GRU", "RNN")
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_SCATTER = ("none", "add", "mul", "max", "min")

WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    **{
        (name, "auto_pad"): _AUTO_PAD
        for name in ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool")
    },
    **{(name, "direction"): ("forward", "reverse", "bidirectional") for name in _RECURRENT},
    **{(name, "activations"): _ACTIVATIONS for name in _RECURRENT},
    **{(name, "mode"): ("DCR", "CRD") for name in ("DepthToSpace", "SpaceToDepth")},
    **{(name, "reduction"): _SCATTER for name in ("ScatterElements", "ScatterND")},
    **{(name, "reduction"): ("none", "mean", "sum") for name in _LOSSES},
    **{(name, "round_mode"): ("up", "down", "nearest") for name in ("Cast", "CastLike")},
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("CausalConvWithState", "activation"): ("none", "silu", "swish"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "bilinear", "nearest", "cubic", "bicubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("ImageDecoder", "pixel_format"): ("RGB", "BGR", "Grayscale"),
    ("LinearAttention", "update_rule"): ("linear", "gated", "delta", "gated_delta"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("Resize", "coordinate_transformation_mode"): (
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
        *("tf_half_pixel_for_nn", "tf_crop_and_resize"),
    ),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("StringNormalizer", "case_change_action"): ("NONE", "LOWER", "UPPER"),
    ("TensorScatter", "mode"): ("linear", "circular"),
    ("TfIdfVectorizer", "mode"): ("TF", "IDF", "TFIDF"),
    ("Upsample", "mode"): ("nearest", "linear"),
}
"""(Operator of ONNX's own domain, attribute) → the values that it may have."""

_ANY_CASE = {"activations"}
"""Attributes whose words ONNX Runtime takes in any case of letters."""

FLAGS = {
    *("keepdims", "ceil_mode", "storage_order", "count_include_pad", "transA", "transB", "exclusive", "reverse"),
    *("select_last_index", "noop_with_empty_axes", "linear_before_reset", "input_forget", "layout", "largest", "fmod"),
    *("align_corners", "antialias", "exclude_outside", "is_causal", "interleaved", "allowzero", "training_mode"),
    *("unidirectional", "do_rotary", "rotary_interleaved", "center_point_box", "onesided", "periodic", "inverse"),
    *("saturate", "sorted", "upper"),
}
"""Attributes of numbers that are 0 or 1."""

_AT_LEAST_ONE = {
    *(
        "kernel_shape",
        "strides",
        "dilations",
        "group",
        "offset_group",
        "blocksize",
        "num_groups",
        "hidden_size",
        "num_outputs",
    ),
}
"""Attributes of numbers, or of lists of them, that are sizes or steps."""


_RANGES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("Attention", "softcap"): (0, math.inf),
    ("Attention", "scale"): (0, math.inf),
    ("Attention", "qk_matmul_output_mode"): (0, 3),
    **{(name, "block_size"): (0, math.inf) for name in ("QuantizeLinear", "DequantizeLinear")},
    ("GatherND", "batch_dims"): (0, math.inf),  # onnx's tools crash at a negative one
    ("LpPool", "p"): (1, math.inf),
    ("GlobalLpPool", "p"): (1, math.inf),
    **{(name, "clip"): (0, math.inf) for name in _RECURRENT},
}
"""(Operator, attribute) → the least and the greatest value that it may have."""


_TERM = r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")


def check_words(graph: OnnxGraph) -> None:
    """Refuse attributes whose value means nothing.

    Raises:
        ModelError: a node has one; it names the attribute, the value and what is known.
    """
    _check(graph.nodes, "")


def _check(nodes: Iterable[onnx.NodeProto], owner: str) -> None:
    for node in nodes:
        name = owner or node.name
        if node.domain in ("", "com.microsoft"):
            for attribute, value in attributes(node).items():
                _check_one(node, name, attribute, value)
        for body in subgraphs(node):
            _check(body.node, name)


def _check_one(node: onnx.NodeProto, name: str, attribute: str, value: object) -> None:
    if (node.op_type, attribute) == ("Split", "num_outputs") and value != len(node.output):
        # onnx's inference ends the process there
        raise _error(node, name, attribute, value, f"; the node has {len(node.output)} results")
    if (node.op_type, attribute) == ("Einsum", "equation") and not _EQUATION.fullmatch(str(value).replace(" ", "")):
        # at a character that it does not know, onnx's inference stays for ever
        raise _error(node, name, attribute, value, "; it is letters and ... between commas, and a result behind ->")
    known = () if node.domain else WORDS.get((node.op_type, attribute), ())
    for word in (value if isinstance(value, list) else [value]) if known else ():
        folded = {each.lower() for each in known} if attribute in _ANY_CASE else set(known)
        if (str(word).lower() if attribute in _ANY_CASE else word) not in folded:
            near = did_you_mean(str(word), list(known))
            raise _error(node, name, attribute, word, f"{near}; it may be {', '.join(known)}")
    if attribute in FLAGS and isinstance(value, int) and value not in (0, 1):
        raise _error(node, name, attribute, value, "; it may be 0 or 1")
    low, high = _RANGES.get((node.op_type, attribute), (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        raise _error(
            node, name, attribute, value, f"; it is at least {low}" + (f", at most {high}" if high < math.inf else "")
        )
    numbers = value if isinstance(value, list) else [value]
    if attribute in _AT_LEAST_ONE and any(isinstance(each, int) and each < 1 for each in numbers):
        raise _error(node, name, attribute, value, "; it is at least 1")


def _error(node: onnx.NodeProto, name: str, attribute: str, value: object, what: str) -> ModelError:
    return ModelError(name, "attribute", f"{node.op_type}: {attribute} is {value!r}{what}")
