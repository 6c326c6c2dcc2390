"""Models of the tests: two small ones with something of everything, and the networks that ``fusilli bench`` times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from fusilli_plugin.bench.networks.net import Net
from fusilli_plugin.bench.networks.whole import bert_layer, llama_block, mobilenet_v2, resnet50, unet

__all__ = ["WHOLE", "bert_layer", "feeds", "llama_block", "mlp", "mobilenet_v2", "resnet50", "small_cnn", "unet"]


def feeds(model: onnx.ModelProto, seed: int = 0, dims: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Seeded inputs: standard normal for floating point, ones for integers (masks, sequence lengths) and booleans.

    Args:
        model: whose inputs are wanted; initializers among the inputs are left out.
        seed: of numpy's generator.
        dims: symbolic dim → size.

    Raises:
        KeyError: a symbolic dim is missing.
    """
    random = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    result: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [(dims or {})[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        floating = tensor.elem_type in (
            TensorProto.FLOAT,
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
            TensorProto.DOUBLE,
        )
        result[value.name] = (random.standard_normal(shape) if floating else np.ones(shape)).astype(dtype)
    return result


def mlp(dtype: DTypeLike = "float32", *, batch: int = 4, features: Sequence[int] = (64, 128, 10)) -> onnx.ModelProto:
    """Gemm and Relu alternating, the last without Relu. ``input [batch, features[0]]`` → ``output``."""
    net = Net(dtype, 1)
    x = net.input("input", (batch, features[0]))
    for i, (rows, columns) in enumerate(itertools.pairwise(features)):
        if i:
            x = net.op("Relu", f"/relu{i - 1}/Relu", [x])
        weight = net.normal(f"fc{i}.weight", (columns, rows), (2 / rows) ** 0.5)
        x = net.op("Gemm", f"/fc{i}/Gemm", [x, weight, net.normal(f"fc{i}.bias", (columns,), 0.1)], transB=1)
    return net.model("mlp", {f"{x}>output": (batch, features[-1])})


def small_cnn(dtype: DTypeLike = "float32", *, size: int = 16) -> onnx.ModelProto:
    """One of most things that a CNN has: conv, batch norm, residual, pools, transposed conv, layer norm, Softmax.

    ``input [1, 3, size, size]`` → ``output [1, 10]`` (probabilities); ``size`` is a multiple of 4.
    """
    net = Net(dtype, 2)
    x = net.input("input", (1, 3, size, size))
    x = net.relu(net.batch_norm(net.conv(x, "/conv1", 8, 3), "/bn1"), "/relu1")
    x = net.pool("MaxPool", x, "/maxpool", 2, 2)
    y = net.conv(net.relu(net.conv(x, "/block/conv1", 8, 3, bias=True), "/block/relu"), "/block/conv2", 8, 3, bias=True)
    x = net.relu(net.like(net.op("Add", "/block/Add", [y, x]), x), "/block/relu_1")
    x = net.pool("AveragePool", x, "/avgpool1", 2, 2)
    n, c, h, w = net.dims[x]
    weights = [net.normal("up.weight", (c, 6, 2, 2), c**-0.5), net.normal("up.bias", (6,), 0.1)]
    x = net.op("ConvTranspose", "/up/ConvTranspose", [x, *weights], kernel_shape=[2, 2], strides=[2, 2])
    net.dims[x] = (n, 6, 2 * h, 2 * w)
    x = net.classifier(x, "/fc", 12)
    x = net.op("MatMul", "/proj/MatMul", [x, net.normal("proj.weight", (12, 20), 12**-0.5)])
    norm = [net.uniform("norm.weight", (20,), 0.8, 1.2), net.normal("norm.bias", (20,), 0.1)]
    x = net.op("LayerNormalization", "/norm/LayerNormalization", [x, *norm], axis=-1, epsilon=1e-5)
    x = net.op("Reshape", "/Reshape", [x, net.integers("/Constant_output_0", 2, 10)])
    x = net.op("Softmax", "/Softmax", [x], axis=-1)
    x = net.op("ReduceMean", "/ReduceMean", [x], axes=[0], keepdims=1)
    return net.model("main_graph", {f"{x}>output": (1, 10)})


WHOLE: dict[str, Callable[[str], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "unet": unet,
    "bert": bert_layer,
    "llama": llama_block,
    "llama in operators of opset 23": partial(llama_block, opset=23),
}
"""Name → what makes a model of full size in a data type."""
