"""Models that quantise and dequantise in 8-bit floats and 4-bit integers; their sums are exact in single precision.

So another order of sums gives the same numbers, and none falls the other way when it is rounded to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MODELS"]

Array = np.ndarray[Any, Any]
Made = tuple[onnx.ModelProto, dict[str, Array]]

_RANDOM = np.random.default_rng(11)


def _model(
    nodes: list[onnx.NodeProto], feeds: dict[str, Array], constants: dict[str, Array], dims: tuple[int, ...],
    dtype: Any = np.float32, opset: int = 21,
) -> Made:  # fmt: skip
    value = helper.make_tensor_value_info
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes, "low_precision", [value(name, kind(array.dtype), array.shape) for name, array in feeds.items()],
        [value("y", kind(np.dtype(dtype)), dims)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feeds


def _node(op_type: str, inputs: str, output: str, **given: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=f"{op_type}_{output}", **given)


def _whole(*dims: int, low: int = -4, high: int = 5) -> Array:
    return _RANDOM.integers(low, high, dims).astype(np.float32)


def convolution() -> Made:
    """Activations in one 8-bit format, filters in another with a scale for each, the result in a third."""
    feeds = {"x": _whole(1, 4, 9, 9) / 2}
    constants = {
        "w": _whole(6, 4, 3, 3).astype(ml_dtypes.float8_e5m2),
        "sw": (2.0 ** _whole(6, low=-3, high=1)).astype(np.float32),
        "sx": np.array(0.5, np.float32), "zx": np.zeros((), ml_dtypes.float8_e4m3fn),
        "sy": np.array(2, np.float32), "zy": np.zeros((), ml_dtypes.float8_e4m3fnuz),
    }  # fmt: skip
    nodes = [
        _node("QuantizeLinear", "x sx zx", "xq"),
        _node("DequantizeLinear", "xq sx zx", "xd"),
        _node("DequantizeLinear", "w sw", "wd", axis=0),
        _node("Conv", "xd wd", "c", pads=[1, 1, 1, 1]),
        _node("Relu", "c", "r"),
        _node("QuantizeLinear", "r sy zy", "rq"),
        _node("DequantizeLinear", "rq sy zy", "y"),
    ]
    return _model(nodes, feeds, constants, (1, 6, 9, 9))


def product_of_blocks() -> Made:
    """4-bit weights with a scale and a zero point for each 16 of a column."""
    feeds = {"x": _whole(5, 64)}
    constants = {
        "w": _whole(64, 48, low=-8, high=8).astype(ml_dtypes.int4),
        "s": (2.0 ** _whole(4, 48, low=-3, high=0)).astype(np.float32),
        "z": _whole(4, 48, low=-8, high=8).astype(ml_dtypes.int4), "b": _whole(48),
    }  # fmt: skip
    nodes = [
        _node("DequantizeLinear", "w s z", "wd", axis=0, block_size=16),
        _node("MatMul", "x wd", "m"),
        _node("Add", "m b", "y"),
    ]
    return _model(nodes, feeds, constants, (5, 48))


def gemm_of_columns() -> Made:
    """8-bit activations, unsigned 4-bit weights with numbers for each row of the transposed matrix."""
    feeds = {"x": _whole(3, 33)}
    constants = {
        "w": _whole(40, 33, low=0, high=16).astype(ml_dtypes.uint4),
        "s": (2.0 ** _whole(40, low=-2, high=1)).astype(np.float32),
        "z": _whole(40, low=0, high=16).astype(ml_dtypes.uint4), "b": _whole(40),
        "sx": np.array(0.25, np.float32), "zx": np.array(3, np.int8),
    }  # fmt: skip
    nodes = [
        _node("QuantizeLinear", "x sx zx", "xq"),
        _node("DequantizeLinear", "xq sx zx", "xd"),
        _node("DequantizeLinear", "w s z", "wd", axis=0),
        _node("Gemm", "xd wd b", "y", transB=1),
    ]
    return _model(nodes, feeds, constants, (3, 40))


def product_in_mxfp4() -> Made:
    """4-bit floats with powers of two as scales."""
    feeds = {"x": _whole(2, 64).astype(np.float16)}
    constants = {
        "w": _RANDOM.integers(0, 16, (40, 64)).astype(np.uint8).view(ml_dtypes.float4_e2m1fn),
        "s": (2.0 ** _whole(40, 2, low=-2, high=2)).astype(ml_dtypes.float8_e8m0fnu),
    }  # fmt: skip
    nodes = [
        _node("DequantizeLinear", "w s", "wd", axis=1, block_size=32, output_dtype=TensorProto.FLOAT16),
        _node("Gemm", "x wd", "y", transB=1),
    ]
    return _model(nodes, feeds, constants, (2, 40), np.float16, 25)


MODELS: Mapping[str, Callable[[], Made]] = {
    each.__name__: each for each in (convolution, product_of_blocks, gemm_of_columns, product_in_mxfp4)
}
"""Name → the model and its feeds."""
