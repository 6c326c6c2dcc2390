"""Convolutions and pools: paddings, single positions, batch norms and factors folded in, averages, indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.graph import attributes
from hipdnn_backend.offload.node_outcomes import Absorbed, Became
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(2)


def _normal(*dims: int) -> np.ndarray:
    return RANDOM.standard_normal(dims).astype(np.float32)


def _conv(op_type: str, x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> Any:
    inputs = {"x": _normal(*x), "w": _normal(*w)}
    return one_node(op_type, inputs, {"y": np.float32}, constants=["w"], **given)


@pytest.mark.parametrize(
    ("x", "w", "given"),
    [
        ((1, 2, 5, 6), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 2, 5, 6), (3, 2, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
        ((1, 2, 5, 6), (3, 2, 3, 3), {"auto_pad": "VALID"}),
        ((1, 2, 5, 6), (3, 2, 3, 3), {"pads": [0, 1, 2, 0], "dilations": [1, 2]}),
        ((1, 4, 7), (4, 2, 3), {"pads": [2, 0], "strides": [3], "group": 2}),
        ((2, 2, 4, 4, 4), (3, 2, 2, 2, 2), {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_padding_of_a_convolution(x: tuple[int, ...], w: tuple[int, ...], given: dict[str, Any]) -> None:
    model, feeds = _conv("Conv", x, w, **given)
    graph = check_rewrite(model, feeds)
    pads = attributes(graph.nodes[-1])["pads"]
    assert pads[: len(pads) // 2] == pads[len(pads) // 2 :]
    assert "?" not in str(load(model).module)


@pytest.mark.parametrize(
    ("x", "w", "given"),
    [
        ((1, 2, 2), (3, 2, 3), {"strides": [2], "pads": [1, 1]}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"strides": [2, 2]}),
        ((1, 4, 5), (4, 2, 3), {"strides": [3], "group": 2}),
        ((1, 2, 4, 9), (3, 2, 4, 3), {"strides": [3, 2], "pads": [0, 1, 1, 1]}),
    ],
)
def test_a_kernel_with_one_position_has_stride_1_and_reads_all(
    x: tuple[int, ...], w: tuple[int, ...], given: dict[str, Any]
) -> None:
    model, feeds = _conv("Conv", x, w, **given)
    graph = check_rewrite(model, feeds)
    conv = graph.nodes[-1]
    sizes = zip(graph.types[conv.output[0]].dims or (), [None, None, *attributes(conv)["strides"]], strict=True)
    assert all(stride == 1 for size, stride in sizes if size == 1 and stride is not None)


@pytest.mark.parametrize(
    "given",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [3, 2]},
        {"strides": [2, 2], "output_shape": [7, 8]},
        {"strides": [3, 2], "output_shape": [10, 8], "output_padding": [1, 1]},
        {"pads": [0, 1, 1, 0], "strides": [2, 1]},
        {"pads": [1, 1, 1, 1], "strides": [2, 2], "output_padding": [1, 0], "group": 2},
        {"dilations": [2, 1], "pads": [2, 0, 1, 1]},
    ],
)
def test_padding_of_a_transposed_convolution(given: dict[str, Any]) -> None:
    model, feeds = _conv("ConvTranspose", (1, 2, 3, 4), (2, 1 if given.get("group") else 3, 3, 3), **given)
    check_rewrite(model, feeds)
    assert "?" not in str(load(model).module)


def _chain(op_type: str, after: list[onnx.NodeProto], constants: dict[str, np.ndarray], group: int = 1) -> Any:
    """A convolution with bias, then nodes that read and make ``c``, ``d``, ``e`` in turn."""
    weight = _normal(4, 2 // group if op_type == "Conv" else 3, 3, 3)
    if op_type == "ConvTranspose":
        weight = _normal(2, 4 // group, 3, 3)
    constants = {"w": weight, "b": _normal(4), **constants}
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w", "b"], ["c"], "conv", group=group), *after],
        "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2, 5, 5])],
        [helper.make_tensor_value_info(after[-1].output[0], onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": _normal(2, 2, 5, 5)}


CONV = Absorbed(Became.MERGED, ("conv",))


def _norm(source: str, target: str) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    constants = {
        "scale": _normal(4), "shift": _normal(4), "mean": _normal(4),
        "var": RANDOM.uniform(0.5, 2, 4).astype(np.float32),
    }  # fmt: skip
    node = helper.make_node("BatchNormalization", [source, *constants], [target], "norm", epsilon=1e-3)
    return node, constants


@pytest.mark.parametrize(("op_type", "group"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 1), ("ConvTranspose", 2)])
def test_a_batch_norm_goes_into_its_convolution(op_type: str, group: int) -> None:
    node, constants = _norm("c", "d")
    model, feeds = _chain(op_type, [node], constants, group)
    graph = check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)
    assert [(node.op_type, node.name) for node in graph.nodes] == [(op_type, "conv")]
    assert load(model).absorbed == {"norm": CONV}


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_factors_and_sums_per_channel_go_into_the_convolution(op_type: str) -> None:
    constants = {
        "a": _normal(4, 1, 1),
        "s": np.array([[[[3]]]], np.float32),
        "d0": np.float32(2),
        "b0": _normal(1, 4, 1, 1),
    }
    after = [
        helper.make_node("Mul", ["a", "c"], ["d"], "mul"),
        helper.make_node("Sub", ["d", "s"], ["e"], "sub"),
        helper.make_node("Div", ["e", "d0"], ["f"], "div"),
        helper.make_node("Add", ["f", "b0"], ["g"], "add"),
    ]
    model, feeds = _chain(op_type, after, constants)
    graph = check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)
    assert [node.name for node in graph.nodes] == ["conv"]
    assert load(model).absorbed == dict.fromkeys(("mul", "sub", "div", "add"), CONV)


def test_a_convolution_whose_result_is_read_twice_keeps_its_batch_norm() -> None:
    node, constants = _norm("c", "d")
    model, feeds = _chain("Conv", [node, helper.make_node("Add", ["c", "d"], ["e"], "sum")], constants)
    graph = check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)
    assert [node.op_type for node in graph.nodes] == ["Conv", "BatchNormalization", "Add"]


def test_a_constant_per_pixel_is_not_folded() -> None:
    model, feeds = _chain("Conv", [helper.make_node("Mul", ["c", "m"], ["d"], "mul")], {"m": _normal(3, 3)})
    assert [node.op_type for node in check_rewrite(model, feeds, rtol=1e-4).nodes] == ["Conv", "Mul"]


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("x", "given"),
    [
        ((1, 2, 6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ((1, 2, 5, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 0, 1, 1]}),
        ((1, 2, 6, 6), {"kernel_shape": [2, 2], "dilations": [2, 2]}),
        ((1, 2, 7, 7), {"kernel_shape": [2, 3], "dilations": [3, 1], "strides": [1, 2], "pads": [1, 1, 1, 1]}),
        ((1, 1, 6, 6, 6), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "ceil_mode": 1, "pads": [1] * 6}),
        ((1, 2, 6, 6), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ],
)
def test_average_pools(x: tuple[int, ...], given: dict[str, Any], include: int) -> None:
    model, feeds = one_node("AveragePool", {"x": _normal(*x)}, {"y": np.float32}, count_include_pad=include, **given)
    check_rewrite(model, feeds)
    assert "?" not in str(load(model).module)


@pytest.mark.parametrize(
    "given",
    [
        {"strides": [2, 2]},
        {"pads": [1, 1, 1, 1], "strides": [2, 1]},
        {"storage_order": 1, "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"dilations": [2, 2]},
    ],
)
def test_max_pools_with_indices(given: dict[str, Any]) -> None:
    x = RANDOM.permutation(2 * 3 * 7 * 6).reshape(2, 3, 7, 6).astype(np.float32)
    model, feeds = one_node("MaxPool", {"x": x}, {"y": np.float32, "i": np.int64}, kernel_shape=[3, 2], **given)
    check_rewrite(model, feeds)
    assert "torch.aten.max_pool2d_with_indices" in str(load(model).module)


def test_indices_that_nobody_reads_are_dropped() -> None:
    model, feeds = one_node(
        "MaxPool", {"x": _normal(1, 1, 4, 4)}, {"y": np.float32, "i": np.int64}, kernel_shape=[2, 2]
    )
    del model.graph.output[1]
    check_rewrite(model, feeds)
    assert len(prepare(model).nodes[0].output) == 1 or not prepare(model).nodes[0].output[1]
