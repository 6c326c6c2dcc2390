"""Calls that do not fit a method's parameters become a GraphError that says what to write instead.

Users come from PyTorch, ONNX and cuDNN, whose words for the same thing differ; a bare TypeError helps none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from fusilli_ground.spelling import did_you_mean
from graph_api.errors import GraphError, naming

__all__ = ["explain_calls"]

F = TypeVar("F", bound=Callable[..., Any])

_NORM = {"input": "x", "grad": "dy", "norm_forward_phase": "forward_phase", "in_running_mean": "prev_running_mean",
         "in_running_var": "prev_running_variance"}  # fmt: skip
_MASKS = {"use_alibi_mask": "alibi_mask", "use_padding_mask": "padding_mask", "use_causal_mask": "causal_mask",
          "use_causal_mask_bottom_right": "causal_mask_bottom_right"}  # fmt: skip
CUDNN_WORDS: Mapping[str, Mapping[str, str]] = {
    "conv_fprop": {"image": "x", "weight": "w"},
    "conv_dgrad": {"loss": "dy", "filter": "w"},
    "conv_wgrad": {"image": "x", "loss": "dy"},
    "matmul": {"A": "a", "B": "b"},
    "reduction": {"input": "x"},
    "batchnorm": _NORM,
    "batchnorm_inference": _NORM,
    "batchnorm_backward": _NORM,
    "layernorm": _NORM,
    "layernorm_backward": _NORM,
    "rmsnorm": _NORM,
    "rmsnorm_backward": {**_NORM, "inv_variance": "inv_rms", "has_dbias": "compute_dbias"},
    "block_scale_quantize": {"input": "x"},
    "block_scale_dequantize": {"input": "x", "descale": "scale"},
    "sdpa": {**_MASKS, "paged_attention_k_table": "page_table_k", "paged_attention_v_table": "page_table_v",
             "paged_attention_max_seq_len_kv": "max_seq_len_kv"},
    "sdpa_backward": {**_MASKS, "dO": "do", "dBias": "dbias"},
}  # fmt: skip
"""What parameters of equal meaning are called in cuDNN's Python: taken as they are."""

_SPELLINGS: Mapping[str, str] = {
    "A": "a", "B": "b", "alibi": "alibi_mask", "attention_mask": "bias", "attention_scale": "attn_scale",
    "attn_bias": "bias", "attn_mask": "bias", "attn_scale_value": "attn_scale", "beta": "bias", "bottom_right":
    "causal_mask_bottom_right", "causal": "causal_mask", "compute_dtype": "compute_data_type", "compute_type":
    "compute_data_type", "conv_mode": "convolution_mode", "dilations": "dilation", "dilation_rate": "dilation",
    "dims": "dim", "dropout": "dropout_probability", "dropout_p": "dropout_probability", "dtype": "data_type",
    "eps": "epsilon", "filter": "w", "gamma": "scale", "group": "groups", "image": "x", "input": "x", "is_causal":
    "causal_mask", "kernel": "w", "kernel_shape": "window", "kernel_size": "window", "key": "k", "left_bound":
    "diagonal_band_left_bound", "mat1": "a", "mat2": "b", "mode": "convolution_mode", "negative_slope":
    "relu_lower_clip_slope", "num_groups": "groups", "op": "mode", "other": "in_1", "out_dtype": "data_type", "pad":
    "padding", "pads": "padding", "phase": "forward_phase", "pool_size": "window", "post_pad": "post_padding",
    "pre_pad": "pre_padding", "query": "q", "resample_mode": "mode", "return_indices": "generate_index",
    "right_bound": "diagonal_band_right_bound", "running_mean": "prev_running_mean", "running_var":
    "prev_running_variance", "scale": "attn_scale", "self": "x", "shape": "dim", "size": "dim", "sliding_window":
    "diagonal_band_left_bound", "sliding_window_length": "diagonal_band_left_bound", "strides": "stride", "training":
    "forward_phase", "use_alibi_mask": "alibi_mask", "use_causal_mask": "causal_mask",
    "use_causal_mask_bottom_right": "causal_mask_bottom_right", "use_padding_mask": "padding_mask", "value": "v",
    "var": "variance", "weight": "w", "weights": "w", "window_size": "window", "window_dimensions": "window",
}  # fmt: skip
"""Other words for parameters; of those, for which the method has one of that name."""

_SECOND: Mapping[str, str] = {
    "weight": "scale", "weights": "scale", "input": "in_0", "x": "in_0", "a": "in_0", "y": "in_1", "b": "in_1",
    "alpha": "elu_alpha", "scale": "attn_scale", "variance": "inv_variance", "var": "inv_variance", "running_mean":
    "mean", "running_var": "inv_variance", "post_pad": "post_padding", "normalized_shape": "normalized_dim_count",
    "begin_norm_axis": "normalized_dim_count", "beta": "swish_beta",
}  # fmt: skip
"""Tried where the first word is no parameter of the method."""

_ADVICE: Mapping[tuple[str, str], str] = {
    ("conv", "bias"): "add a bias with pointwise(PointwiseMode.ADD, y, bias), bias having dims (1, K, 1, ...)",
    ("conv", "b"): "add a bias with pointwise(PointwiseMode.ADD, y, bias), bias having dims (1, K, 1, ...)",
    ("conv", "kernel_size"): "the size of the filter is that of w",
    ("conv", "kernel_shape"): "the size of the filter is that of w",
    ("conv", "padding_mode"): "padding is always with zeros",
    ("conv", "auto_pad"): "give pre_padding= and post_padding= in numbers",
    ("conv", "output_padding"): "set the dims of dx, which say the same",
    ("conv", "in_channels"): "channels follow from the dims of x and w",
    ("conv", "out_channels"): "channels follow from the dims of x and w",
    ("conv", "activation"): "apply it to the result with pointwise(...)",
    ("matmul", "transpose_a"): "a transposed operand is expressed by the strides of its tensor",
    ("matmul", "transpose_b"): "a transposed operand is expressed by the strides of its tensor",
    ("matmul", "transA"): "a transposed operand is expressed by the strides of its tensor",
    ("matmul", "transB"): "a transposed operand is expressed by the strides of its tensor",
    ("matmul", "bias"): "add a bias with pointwise(PointwiseMode.ADD, c, bias)",
    ("matmul", "alpha"): "scale with pointwise(PointwiseMode.MUL, c, alpha)",
    ("reduction", "axis"): "the reduced axes are those where the dims of y are 1: y.set_dim(...)",
    ("reduction", "axes"): "the reduced axes are those where the dims of y are 1: y.set_dim(...)",
    ("reduction", "dim"): "the reduced axes are those where the dims of y are 1: y.set_dim(...)",
    ("reduction", "keepdim"): "reduced dims stay, as 1: y.set_dim(...)",
    ("reduction", "keepdims"): "reduced dims stay, as 1: y.set_dim(...)",
    ("resample", "ceil_mode"): "sizes are rounded down; give more post_padding for another window",
    ("resample", "dilation"): "windows have no dilation",
    ("resample", "dilations"): "windows have no dilation",
    ("resample", "count_include_pad"): "mode= says it: AVGPOOL_INCLUDE_PADDING or AVGPOOL_EXCLUDE_PADDING",
    ("resample", "divisor_override"): "divide the result with pointwise(PointwiseMode.MUL, y, factor)",
    ("resample", "auto_pad"): "give pre_padding= and post_padding= in numbers",
    ("sdpa", "enable_gqa"): "grouped heads follow from the dims of q, k and v",
    ("sdpa", "num_heads"): "heads follow from the dims of q, k and v",
    ("sdpa", "is_inference"): "generate_stats= says whether stats are made",
    ("sdpa", "sliding_window_length"): "diagonal_band_left_bound= says it: the keys before a query's own that it sees, "
    "which is one less than cuDNN's length and cuDNN's left bound",
    ("sdpa", "softmax_scale"): "attn_scale= is the factor on the scores",
    ("sdpa", "seed"): "other_inputs={'seed': ...} takes it",
    ("sdpa", "offset"): "other_inputs={'offset': ...} takes it",
    ("norm", "axis"): "the normalised dims are those that scale shares with x, at the end",
    ("norm", "axes"): "the normalised dims are those that scale shares with x, at the end",
    ("norm", "dim"): "the normalised dims are those that scale shares with x, at the end",
    ("norm", "normalized_shape"): "the normalised dims are those that scale shares with x, at the end",
    ("norm", "elementwise_affine"): "scale (and bias) are always given; make them 1 and 0",
    ("tensor", "is_virtual"): "inputs have a buffer; results of operations are virtual until set_output(True)",
}  # fmt: skip
"""Words for which there is no parameter: what the user can do instead, by family and word."""

_BOTH_RUNNING = "prev_running_mean and prev_running_variance come together with momentum"


def explain_calls(method: F) -> F:
    """The method, whose calls with wrong parameters raise a GraphError instead of a TypeError."""
    cudnn_words = {word: ours for word, ours in CUDNN_WORDS.get(method.__name__, {}).items() if _takes(method, ours)}

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = kwargs.get("name")
        if cudnn_words and not cudnn_words.keys().isdisjoint(kwargs):
            kwargs = _in_our_words(method.__name__, cudnn_words, kwargs)
        try:
            with naming(name if isinstance(name, str) else ""):
                return method(*args, **kwargs)
        except TypeError:
            complaint = _complaint(method, args, kwargs)
            if complaint is None:
                raise  # not the call, but something within
            error = GraphError(complaint)
        raise error

    return cast("F", call)


def _takes(method: Callable[..., Any], parameter: str) -> bool:
    return parameter in inspect.signature(method).parameters


def _in_our_words(method: str, words: Mapping[str, str], kwargs: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for word, value in kwargs.items():
        ours = words.get(word, word)
        if ours in found:
            raise GraphError(f"{method}: {ours}= is given twice, once as {word}=; leave one out")
        found[ours] = value
    return found


def _complaint(method: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """What is wrong with the call itself, None if it fits."""
    parameters = inspect.signature(method).parameters
    name = method.__name__
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    for word in kwargs:
        if word not in parameters:
            return f"{name}: there is no {word}={_instead(name, word, list(parameters)[1:])}"
    by_position = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    taken = [p.name for p in by_position[1:]]
    if len(args) > len(by_position):
        rest = ", ".join(f"{p.name}=" for p in parameters.values() if p.kind is p.KEYWORD_ONLY)
        return f"{name}: takes {', '.join(taken) or 'nothing'} by position, and by name {rest}; got {len(args) - 1}"
    twice = [word for word in kwargs if word in taken[: len(args) - 1]]
    if twice:
        return f"{name}: {twice[0]} is given by position and by name; leave one out"
    given = {*taken[: len(args) - 1], *kwargs}
    required = [p.name for p in list(parameters.values())[1:] if p.default is p.empty]
    missing = [word for word in required if word not in given]
    return f"{name}: {' and '.join(f'{word}=' for word in missing)} {_is(missing)} missing" if missing else None


def _is(words: list[str]) -> str:
    return "is" if len(words) == 1 else "are"


def _instead(method: str, word: str, known: list[str]) -> str:
    """The end of a sentence about an unknown word: what to do, or the nearest parameter, or all of them."""
    advice = next((text for (part, asked), text in _ADVICE.items() if part in method and asked == word), None)
    if advice is not None:
        return f"; {advice}"
    for table in (_SPELLINGS, _SECOND):
        if table.get(word) in known:
            return f"; it is called {table[word]}= here (did you mean {table[word]}?)"
    if word.startswith("running") and "prev_running_mean" in known:
        return f"; {_BOTH_RUNNING}"
    near = did_you_mean(word, known)
    return f"{near}; known are {', '.join(known)}"
