"""Models in another floating-point type, and how far float16 may lead away from what float32 gives."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

__all__ = ["retyped", "roundings", "tolerance"]

_UNIT: Final = float(np.finfo(np.float16).eps) / 2  # the largest relative error of one rounding, 2**-11
_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16)

_ALWAYS_FLOAT: Final = {"Resize": (2,), "Upsample": (1,)}
"""Operator → operands that are float32 whatever the type of the data."""
_EXACT: Final = frozenset(
    {
        *("Relu", "Clip", "MaxPool", "GlobalMaxPool", "Concat", "Reshape", "Transpose", "Flatten", "Squeeze"),
        *("Unsqueeze", "Slice", "Split", "Gather", "Identity", "Constant", "Shape", "Expand", "Neg", "Pad", "Cast"),
    }
)
"""Operators that choose among numbers instead of making new ones."""


def retyped(model: onnx.ModelProto, dtype: type[np.floating]) -> onnx.ModelProto:
    """A copy whose float32 and float16 tensors are all of one type; numbers are rounded to it."""
    wanted = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    del graph.value_info[:]
    fixed = {
        name
        for node in graph.node
        for position in _ALWAYS_FLOAT.get(node.op_type, ())
        for name in node.input[position : position + 1]
    }
    for tensor in graph.initializer:
        if tensor.name not in fixed:
            _retype(tensor, wanted)
    for node in graph.node:
        for attribute in node.attribute:
            assert attribute.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS), "bodies are not looked into"
            if attribute.HasField("t") and not fixed.intersection(node.output):
                _retype(attribute.t, wanted)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = wanted
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = wanted
    return result


def _retype(tensor: TensorProto, wanted: int) -> None:
    if tensor.data_type in _FLOATS:
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(wanted))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def roundings(model: onnx.ModelProto) -> int:
    """How many operators that round stand behind each other on the longest way through a model."""
    depth: dict[str, int] = {}
    for node in model.graph.node:
        above = max((depth.get(name, 0) for name in node.input), default=0)
        depth.update(dict.fromkeys(node.output, above + (node.op_type not in _EXACT)))
    return max(depth[value.name] for value in model.graph.output)


def tolerance(model: onnx.ModelProto, elements: int) -> float:
    """How far a result computed in float16 may be from that in float32 of the same weights, of its largest number.

    A rounding moves a number by up to u = 2**-11 of it, in either direction alike: by u / sqrt(3) on average (root mean
    square). k of them behind each other make a random walk, sqrt(k) times as far as one, if the layers keep the size of
    what goes through them. The farthest of n elements is sqrt(2 ln n) times as far as the average one. Products are
    summed in float32 and add nothing.

    Args:
        model: in either type.
        elements: of the result.
    """
    return _UNIT * math.sqrt(roundings(model) / 3) * math.sqrt(2 * math.log(elements))
