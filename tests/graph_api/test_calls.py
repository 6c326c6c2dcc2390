"""Calls with parameters that are not there, missing or of any other kind: always a typed error, never a bare one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from graph_api import (
    CustomOpAttributes,
    DataType,
    FusilliError,
    Graph,
    GraphError,
    NormFwdPhase,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
)
from graph_api.calls import CUDNN_WORDS, explain_calls

BUILDERS = sorted(
    name
    for name, method in inspect.getmembers(Graph, inspect.isfunction)
    if not name.startswith("_") and "name" in inspect.signature(method).parameters and name != "add_node"
)


def valid(g: Graph) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments that each builder method takes."""

    def t(*dims: int) -> Any:
        return g.tensor(dim=dims)

    x, w, c = t(2, 4, 6, 6), t(4, 4, 3, 3), t(1, 4, 1, 1)
    q = t(2, 4, 6, 6)
    offsets = g.tensor(dim=(2, 1, 1), data_type=DataType.INT32)
    return {
        "batchnorm": ((x, c, c), {"epsilon": 1e-5}),
        "batchnorm_backward": ((x, x, c), {}),
        "batchnorm_inference": ((x, c, c, c, c), {}),
        "batchnorm_inference_variance_ext": ((x, c, c, c, c), {"epsilon": 1e-5}),
        "block_scale_dequantize": ((x, t(2, 4, 6, 1)), {"block_size": (6,)}),
        "block_scale_quantize": ((x,), {"block_size": 6}),
        "conv_dgrad": ((t(2, 4, 4, 4), w), {}),
        "conv_fprop": ((x, w), {}),
        "conv_wgrad": ((t(2, 4, 4, 4), x), {}),
        "custom_op": (([x], 1, CustomOpAttributes(custom_op_id="any", data="any")), {}),
        "layernorm": ((x, t(1, 1, 1, 6), t(1, 1, 1, 6)), {"epsilon": 1e-5}),
        "layernorm_backward": ((x, x, t(1, 1, 1, 6)), {"epsilon": 1e-5}),
        "matmul": ((x, x), {}),
        "moe_grouped_matmul": ((t(1, 5, 4), t(2, 4, 3), offsets), {}),
        "moe_grouped_matmul_bwd": ((t(1, 5, 3), t(1, 5, 4), offsets), {}),
        "pointwise": ((PointwiseMode.RELU_FWD, x), {}),
        "reduction": ((x,), {"mode": ReductionMode.ADD}),
        "resample_bwd": ((x,), {"mode": ResampleMode.AVGPOOL_INCLUDE_PADDING, "window": 2}),
        "resample_fwd": ((x,), {"mode": ResampleMode.MAXPOOL, "window": 2}),
        "rmsnorm": ((x, t(1, 1, 1, 6)), {"epsilon": 1e-5}),
        "rmsnorm_backward": ((x, x, t(1, 1, 1, 6), t(2, 4, 6, 1)), {}),
        "scalar": ((1.0,), {}),
        "sdpa": ((q, q, q), {}),
        "sdpa_backward": ((q, q, q, q, q, t(2, 4, 6, 1)), {}),
        "tensor": (("own",), {"dim": (2, 3)}),
    }


def test_all_methods_are_tried() -> None:
    assert sorted(valid(Graph(io_data_type=DataType.FLOAT))) == BUILDERS


@pytest.mark.parametrize("method", BUILDERS)
def test_valid_arguments_are_taken(method: str) -> None:
    g = Graph(io_data_type=DataType.FLOAT)
    args, kwargs = valid(g)[method]
    getattr(g, method)(*args, **kwargs)


@pytest.mark.parametrize("method", BUILDERS)
def test_an_unknown_word_lists_what_is_known(method: str) -> None:
    g = Graph(io_data_type=DataType.FLOAT)
    args, kwargs = valid(g)[method]
    with pytest.raises(GraphError, match=rf"^{method}: there is no zzzz=; known are .*name") as caught:
        getattr(g, method)(*args, **kwargs, zzzz=1)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("method", BUILDERS)
def test_a_misspelt_word_is_recognised(method: str) -> None:
    g = Graph(io_data_type=DataType.FLOAT)
    args, kwargs = valid(g)[method]
    for word in inspect.signature(getattr(g, method)).parameters:
        if len(word) > 4:
            with pytest.raises(GraphError, match=f"did you mean {word}"):
                getattr(g, method)(*args, **kwargs, **{word[:-1] + "_" + word[-1]: 1})


@pytest.mark.parametrize("method", BUILDERS)
def test_missing_doubled_and_surplus_arguments_are_named(method: str) -> None:
    g = Graph(io_data_type=DataType.FLOAT)
    args, kwargs = valid(g)[method]
    call = getattr(g, method)
    parameters = inspect.signature(call).parameters.values()
    for parameter in parameters:
        if parameter.default is parameter.empty:
            with pytest.raises(GraphError, match=rf"{parameter.name}="):
                call(**{name: value for name, value in kwargs.items() if name != parameter.name})
    first = next(iter(parameters)).name
    with pytest.raises(GraphError, match=f"{first} is given by position and by name"):
        call(*args, **kwargs, **{first: args[0]})
    with pytest.raises(GraphError, match="by position, and by name"):
        call(*args, *(1,) * 40, **kwargs)


WORDS: list[tuple[str, str, str]] = [
    ("conv_fprop", "strides", "stride"),
    ("conv_fprop", "pads", "padding"),
    ("conv_fprop", "dilations", "dilation"),
    ("conv_fprop", "group", "groups"),
    ("conv_fprop", "input", "x"),
    ("conv_dgrad", "weight", "w"),
    ("conv_dgrad", "compute_type", "compute_data_type"),
    ("conv_wgrad", "pre_pad", "pre_padding"),
    ("conv_fprop", "bias", "PointwiseMode.ADD"),
    ("conv_fprop", "kernel_size", "that of w"),
    ("conv_dgrad", "output_padding", "dims of dx"),
    ("resample_fwd", "kernel_size", "window"),
    ("resample_fwd", "kernel_shape", "window"),
    ("resample_fwd", "strides", "stride"),
    ("resample_fwd", "return_indices", "generate_index"),
    ("resample_fwd", "ceil_mode", "rounded down"),
    ("resample_fwd", "count_include_pad", "AVGPOOL_INCLUDE_PADDING"),
    ("layernorm", "eps", "epsilon"),
    ("layernorm", "weight", "scale"),
    ("layernorm", "gamma", "scale"),
    ("layernorm", "beta", "bias"),
    ("layernorm", "normalized_shape", "that scale shares with x"),
    ("rmsnorm", "eps", "epsilon"),
    ("rmsnorm", "axis", "that scale shares with x"),
    ("batchnorm", "eps", "epsilon"),
    ("batchnorm", "running_mean", "prev_running_mean"),
    ("batchnorm", "training", "known are"),
    ("batchnorm_inference", "variance", "inv_variance"),
    ("batchnorm_inference_variance_ext", "var", "variance"),
    ("matmul", "transpose_b", "strides"),
    ("matmul", "bias", "PointwiseMode.ADD"),
    ("reduction", "axis", "set_dim"),
    ("reduction", "keepdims", "set_dim"),
    ("pointwise", "alpha", "elu_alpha"),
    ("pointwise", "negative_slope", "relu_lower_clip_slope"),
    ("pointwise", "input", "in_0"),
    ("sdpa", "attn_mask", "bias"),
    ("sdpa", "is_causal", "causal_mask"),
    ("sdpa", "scale", "attn_scale"),
    ("sdpa", "dropout_p", "dropout_probability"),
    ("sdpa", "dropout", "dropout_probability"),
    ("sdpa", "left_bound", "diagonal_band_left_bound"),
    ("sdpa", "sliding_window_length", "one less than cuDNN's"),
    ("sdpa", "enable_gqa", "grouped heads follow"),
    ("sdpa", "seed", "other_inputs"),
    ("sdpa", "query", "did you mean q"),
    ("tensor", "shape", "did you mean dim"),
    ("tensor", "dims", "did you mean dim"),
    ("tensor", "strides", "did you mean stride"),
    ("tensor", "dtype", "did you mean data_type"),
    ("scalar", "dtype", "did you mean data_type"),
]
"""Method, a word of PyTorch, ONNX or cuDNN, and what the answer must hold."""


@pytest.mark.parametrize(("method", "word", "answer"), WORDS)
def test_words_of_other_libraries_are_answered(method: str, word: str, answer: str) -> None:
    g = Graph(io_data_type=DataType.FLOAT)
    args, kwargs = valid(g)[method]
    with pytest.raises(GraphError) as caught:
        getattr(g, method)(*args, **kwargs, **{word: 1})
    assert str(caught.value).startswith(f"{method}: there is no {word}=")
    assert answer in str(caught.value)


@pytest.mark.parametrize("method", sorted(CUDNN_WORDS))
def test_words_of_cudnns_python_are_taken(method: str) -> None:
    """Each in place of ours, with the same graph; both at once are refused."""
    parameters = inspect.signature(getattr(Graph, method)).parameters
    tried = 0
    for word, ours in CUDNN_WORDS[method].items():
        if ours not in parameters:
            continue
        args, kwargs, made = (), {}, []
        for name in (ours, word):
            g = Graph(io_data_type=DataType.FLOAT)
            args, kwargs = valid(g)[method]
            by_name = dict(zip(list(parameters)[1:], args, strict=False)) | kwargs
            value = by_name.pop(ours, parameters[ours].default)
            getattr(g, method)(**by_name, **{name: value})
            made.append([(node.op, node.attributes, list(node.inputs)) for node in g.nodes])
        assert made[0] == made[1]
        g = Graph(io_data_type=DataType.FLOAT)
        args, kwargs = valid(g)[method]
        by_name = dict(zip(list(parameters)[1:], args, strict=False)) | kwargs
        twice = {ours: by_name.pop(ours, None), word: None}
        with pytest.raises(GraphError, match=f"^{method}: {ours}= is given twice, once as {word}=; leave one out"):
            getattr(g, method)(**by_name, **twice)
        tried += 1
    assert tried


def test_a_convolution_is_spelled_either_way() -> None:
    def made(**words: Any) -> str:
        g = Graph("g", io_data_type=DataType.FLOAT)
        x, w = g.tensor("x", dim=(1, 4, 6, 6)), g.tensor("w", dim=(4, 4, 3, 3))
        named: dict[str, Any] = {"image": x, "weight": w} if "cudnn" in words else {"x": x, "w": w}
        g.conv_fprop(**named, padding=words["padding"]).set_output()
        return g.to_json()

    assert made(padding=(1, 1)) == made(cudnn=True, padding=[1, 1]) == made(cudnn=True, padding=1)


def test_layernorm_without_a_phase_is_inference() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    x, scale, bias = g.tensor(dim=(2, 6)), g.tensor(dim=(1, 6)), g.tensor(dim=(1, 6))
    y, mean, inv_variance = g.layernorm(input=x, scale=scale, bias=bias, epsilon=1e-5)  # type: ignore[call-arg]
    assert (mean, inv_variance) == (None, None)
    assert y.set_output() is y


def test_a_type_error_within_a_method_is_not_hidden() -> None:
    @explain_calls
    def method(self: object, x: object) -> None:
        raise TypeError("from within")

    with pytest.raises(TypeError, match="from within"):
        method(None, 1)


# ---- values of any kind --------------------------------------------------------------------------------------------

ANYTHING: list[Any] = [
    None, True, -1, 0, 3, 2**70, 1.5, float("nan"), float("inf"), "", "same", b"x", [], (), (1,), (1, 2, 3, 4, 5),
    [None], {}, object(), np.array([1, 2]), np.float32(2), np.array(1.0), int, lambda: None, ReductionMode.ADD,
    DataType.HALF, NormFwdPhase.TRAINING,
]  # fmt: skip


def _calls(method: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each parameter of a method with each value, the others being right; the graph is validated if it is built."""
    names = list(inspect.signature(getattr(Graph, method)).parameters)[1:]
    for name in names:
        for value in ANYTHING:

            def call(name: str = name, value: Any = value) -> None:
                g = Graph(io_data_type=DataType.FLOAT)
                args, kwargs = valid(g)[method]
                given = dict(zip(names, args, strict=False)) | kwargs | {name: value}
                g.pointwise(PointwiseMode.IDENTITY, g.tensor(dim=(1,))).set_output()
                made = getattr(g, method)(**given)
                if method == "reduction":
                    made.set_dim((1, 1, 1, 1))
                g.validate()

            yield f"{name}={value!r:.40}", call


@pytest.mark.parametrize("method", BUILDERS)
def test_values_of_any_kind_are_taken_or_refused_by_name(method: str) -> None:
    bare = []
    for shown, call in _calls(method):
        try:
            call()
        except FusilliError:
            pass
        except Exception as error:  # what must not happen is what is looked for
            bare.append(f"{shown}: {type(error).__name__}: {error}")
    assert bare == []


def test_bad_attributes_name_the_node_that_they_are_given_for() -> None:
    """They are checked before there is a node, in calls and in files alike."""
    g = Graph("g", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 4, 6, 6))
    with pytest.raises(GraphError, match="^node 'q8': block_scale_quantize: block_size 0 must be from 1 to"):
        g.block_scale_quantize(x, block_size=0, name="q8")
    with pytest.raises(GraphError, match="^node 'pool': resample: stride .* must be at least 1 and less than 2"):
        g.resample_fwd(x, mode=ResampleMode.MAXPOOL, window=2, stride=2**31, name="pool")
    y, _ = g.resample_fwd(x, mode=ResampleMode.MAXPOOL, window=2, name="pool")
    y.set_output()
    document = json.loads(g.validate().to_json())
    document["nodes"][0]["attributes"]["window"] = [0, 2]
    with pytest.raises(GraphError, match="^node 'pool': resample: window .* must be at least 1"):
        Graph.from_json(json.dumps(document))
