"""The first block of a text detector, cut out of its ONNX file: as ONNX for onnxruntime, and as a graph of ours.

The model is ``ch_PP-OCRv4_det_infer.onnx`` of PaddleOCR as the package rapidocr-onnxruntime 1.4.4 carries it. The
block is a strided convolution with batch normalisation, a depthwise convolution with bias, a scale and a shift, a
hard-swish and another scale and shift. Batch normalisation is folded into the convolution before it; everything else
becomes one node each.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from graph_api import DataType, Graph, GraphError, PointwiseMode, TensorAttr

__all__ = ["FIRST", "LAST", "ModelBlock", "cut_block", "read_model"]

FIRST, LAST = "p2o.Conv.0", "p2o.Add.6"
MODEL_FILE = "ch_PP-OCRv4_det_infer.onnx"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ModelBlock:
    """A block twice.

    Attributes:
        model: ONNX model of the block alone, for onnxruntime; input and output names are those of the file.
        graph: the same as a validated graph; x and y have dims (N, C, H, W).
        weights: an array for each input of the graph but x, by name.
        x: name of the block's input, in the model and in the graph.
        y: name of the block's output, in the model and in the graph.
    """

    model: onnx.ModelProto
    graph: Graph
    weights: dict[str, Array]
    x: str
    y: str


def read_model(path: Path) -> onnx.ModelProto:
    """The model in an ``.onnx`` file, or in the wheel of rapidocr-onnxruntime, which is only read.

    Raises:
        GraphError: no such model in the file.
    """
    data = _member(path) if zipfile.is_zipfile(path) else path.read_bytes()
    try:
        return onnx.load_from_string(data)
    except DecodeError as error:
        raise GraphError(f"{path}: neither an ONNX model nor a wheel with {MODEL_FILE} in it ({error})") from error


def _member(path: Path) -> bytes:
    with zipfile.ZipFile(path) as wheel:
        found = [name for name in wheel.namelist() if name.endswith(f"/{MODEL_FILE}")]
        if not found:
            raise GraphError(f"{path}: no {MODEL_FILE} in this wheel; rapidocr-onnxruntime==1.4.4 has it")
        return wheel.read(found[0])


def cut_block(model: onnx.ModelProto, dims: tuple[int, ...], *, first: str = FIRST, last: str = LAST) -> ModelBlock:
    """Cuts the nodes from ``first`` to ``last`` out of a model, for an input of ``dims``.

    Raises:
        GraphError: a node is not there, or is of a kind that the block does not have.
    """
    nodes = {node.name: node for node in model.graph.node if node.name}
    if first not in nodes or last not in nodes:
        raise GraphError(
            f"the model has no nodes '{first}' and '{last}'; {MODEL_FILE} of rapidocr-onnxruntime 1.4.4 has"
        )
    x, y = nodes[first].input[0], nodes[last].output[0]
    inside = _between(model.graph, x, y)
    constants = {node.output[0]: _constant(node) for node in inside if node.op_type == "Constant"}
    constants |= {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    translation = _Translation(constants, x, dims)
    graph = translation.run([node for node in inside if node.op_type != "Constant"], y)
    return ModelBlock(_alone(model, inside, x, y, dims), graph, translation.weights, x, y)


def _between(graph: onnx.GraphProto, x: str, y: str) -> list[onnx.NodeProto]:
    """The nodes that ``y`` needs when ``x`` is given, in the file's order, which is topological."""
    needed, found = {y}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            found.append(node)
            needed |= set(node.input) - {x}
    return found[::-1]


def _alone(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], x: str, y: str, dims: tuple[int, ...]
) -> onnx.ModelProto:
    """A model of these nodes, with x of fixed dims and y of whatever dims follow."""
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [None] * len(dims))],
        [tensor for tensor in model.graph.initializer if tensor.name in used],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _constant(node: onnx.NodeProto) -> Array:
    return numpy_helper.to_array(_attributes(node)["value"])


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def fold_batchnorm(
    weight: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Array]:
    """Weight and bias of the convolution that does what a convolution without bias and batch normalisation do.

    Computed in float64, rounded once. ``weight`` has dims (K, C, R, S), the others (K,).
    """
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    folded = weight.astype(np.float64) * factor[:, None, None, None]
    shift = bias.astype(np.float64) - mean.astype(np.float64) * factor
    return folded.astype(np.float32), shift.astype(np.float32)


class _Translation:
    """ONNX nodes to graph nodes, for the kinds that the block has."""

    def __init__(self, constants: Mapping[str, Array], x: str, dims: tuple[int, ...]) -> None:
        self.constants = constants
        self.weights: dict[str, Array] = {}
        self.graph = Graph("text_detector_block", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
        self.values: dict[str, TensorAttr] = {x: self.graph.tensor(x, dim=dims)}

    def run(self, nodes: list[onnx.NodeProto], y: str) -> Graph:
        """Translates all nodes; the value named ``y`` becomes the output."""
        normalized = {node.input[0]: node for node in nodes if node.op_type == "BatchNormalization"}
        for node in nodes:
            match node.op_type:
                case "Conv":
                    out = self._conv(node, normalized.get(node.output[0]))
                case "BatchNormalization":
                    out = self.values[node.input[0]]  # folded into its convolution
                case "Add" | "Mul" | "Div":
                    out = self._binary(node)
                case "Clip":
                    out = self._clip(node)
                case kind:
                    raise GraphError(f"node '{node.name}' is a {kind}, which this block does not have")
            self.values[node.output[0]] = out
        self.values[y].set_output(True).set_name(y)
        return self.graph.validate()

    def _parameter(self, name: str, array: Array) -> TensorAttr:
        self.weights[name] = array
        return self.graph.tensor(name, dim=array.shape)

    def _conv(self, node: onnx.NodeProto, normalization: onnx.NodeProto | None) -> TensorAttr:
        attributes = _attributes(node)
        weight = self.constants[node.input[1]]
        bias = self.constants[node.input[2]] if len(node.input) > 2 else None
        if normalization is not None:
            if bias is not None:
                raise GraphError(f"node '{node.name}' has a bias and a batch normalisation, no node of this block has")
            statistics = [self.constants[name] for name in normalization.input[1:]]
            weight, bias = fold_batchnorm(weight, *statistics, epsilon=_attributes(normalization)["epsilon"])
        pads, rank = tuple(attributes["pads"]), len(attributes["kernel_shape"])
        out = self.graph.conv_fprop(
            self.values[node.input[0]],
            self._parameter(node.input[1], weight),
            pre_padding=pads[:rank],
            post_padding=pads[rank:],
            stride=tuple(attributes["strides"]),
            dilation=tuple(attributes["dilations"]),
            name=node.name,
        )
        if bias is None:
            return out
        shaped = self._parameter(f"{node.name}.bias", bias.reshape(1, -1, *[1] * rank))
        return self.graph.pointwise(PointwiseMode.ADD, out, shaped, name=f"{node.name}.add_bias")

    def _binary(self, node: onnx.NodeProto) -> TensorAttr:
        mode = {"Add": PointwiseMode.ADD, "Mul": PointwiseMode.MUL, "Div": PointwiseMode.DIV}[node.op_type]
        left, right = (self._operand(node, name) for name in node.input)
        return self.graph.pointwise(mode, left, right, name=node.name)

    def _operand(self, node: onnx.NodeProto, name: str) -> TensorAttr:
        """A value, or a constant of one element as a scalar of the graph."""
        if name in self.values:
            return self.values[name]
        constant = self.constants[name]
        if constant.size != 1:
            raise GraphError(f"node '{node.name}': operand '{name}' has shape {constant.shape}, a scalar was expected")
        self.values[name] = self.graph.scalar(float(constant.reshape(())), data_type=DataType.FLOAT, name=name, rank=4)
        return self.values[name]

    def _clip(self, node: onnx.NodeProto) -> TensorAttr:
        low, high = (float(self.constants[name].reshape(())) for name in node.input[1:])
        return self.graph.pointwise(
            PointwiseMode.RELU_FWD,
            self.values[node.input[0]],
            relu_lower_clip=low,
            relu_upper_clip=high,
            name=node.name,
        )
