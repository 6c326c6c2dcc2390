"""Block scaling: by hand, against hipDNN's loop written anew on ml_dtypes, dims, strides, messages."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError
from tests.cases.block_scale import FORMATS, dequantize_graph, quantize_graph

D = DataType
Dims = tuple[int, ...]


def results(graph: Graph, **inputs: Any) -> dict[str, np.ndarray]:
    found = graph.validate().reference({name: np.asarray(value, np.float64) for name, value in inputs.items()})
    return {tensor.name: value for tensor, value in found.items()}


def test_by_hand() -> None:
    """448 is the largest of FP8_E4M3: of 448 the scale is 1, of a little more 2, of 0 the least one."""
    x = [448.0, -7.0, 448.5, 1.0, 0.0, 0.0, 896.0, 0.25]
    got = results(quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 2, (8,)), x=x)
    assert got["scale"].tolist() == [1, 2, 2.0**-127, 2]
    assert got["y"].tolist() == [448, -7, 224.25, 0.5, 0, 0, 448, 0.125]


def test_nan_and_infinity_by_hand() -> None:
    got = results(quantize_graph(D.FP4_E2M1, D.FP8_E8M0, 2, (4,)), x=[np.nan, 6.0, np.inf, 1.0])
    assert got["scale"].tolist() == [1, 2.0**127]
    assert got["y"].tolist() == [0, 6, 6, 2.0**-127]


def test_a_negative_scale_is_an_exponent() -> None:
    graph = dequantize_graph(D.FP8_E4M3, D.INT8, (2,), (4,), is_negative_scale=True)
    assert results(graph, x=[1, 2, 3, 4], scale=[1, -3])["y"].tolist() == [0.5, 1, 24, 32]


def loop(x: np.ndarray, y_type: DataType, scale_type: DataType, block: int) -> tuple[np.ndarray, np.ndarray]:
    """One row after the other, as hipDNN's CPU reference goes, in FLOAT: scales in the type, rounded up by a code."""
    largest = float(ml_dtypes.finfo(y_type.numpy).max)
    y, scales = np.zeros(x.shape, np.float32), np.zeros((len(x), math.ceil(x.shape[1] / block)), scale_type.numpy)
    for row in range(len(x)):
        for number in range(scales.shape[1]):
            part = slice(number * block, (number + 1) * block)
            most = max(abs(float(value)) for value in x[row, part])
            scale = _least_above(most / largest, scale_type)
            scales[row, number] = scale
            y[row, part] = x[row, part] / np.float32(scale) if float(scale) else 0
    return np.clip(y, -largest, largest).astype(y_type.numpy), scales


def _least_above(wanted: float, dtype: DataType) -> Any:
    if dtype is D.FLOAT:
        return np.float32(wanted)
    every = np.arange(2**dtype.bits, dtype=f"u{dtype.bits // 8}").view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        values = every.astype(np.float64)
    enough = np.isfinite(values) & (values >= wanted) & ~np.signbit(values)
    return every[enough][np.argmin(values[enough])] if enough.any() else dtype.numpy.type(dtype.finfo.max)


@pytest.mark.parametrize("name", FORMATS)
def test_agrees_with_a_search_for_the_scale(name: str) -> None:
    y_type, scale_type, block = FORMATS[name]
    x = (np.random.default_rng(1).standard_normal((5, 70)) * 2.0 ** np.arange(-8, 12, 4)[:, None]).astype(np.float32)
    y, scales = loop(x, y_type, scale_type, block)
    got = results(quantize_graph(y_type, scale_type, block, (5, 70)), x=x)
    np.testing.assert_array_equal(scale_type.rounded(got["scale"]).astype(float), scales.astype(float))
    if scale_type is not D.FLOAT:  # whose quotient, in FLOAT, is rounded
        np.testing.assert_array_equal(y_type.rounded(got["y"].astype(np.float32)).astype(float), y.astype(float))
    back = scales.astype(float).repeat(block, 1)[:, :70] * y.astype(float)
    graph = dequantize_graph(y_type, scale_type, (block,), (5, 70))
    np.testing.assert_array_equal(results(graph, x=y.astype(float), scale=scales.astype(float))["y"], back)


def test_blocks_of_several_dims() -> None:
    x, scale = np.arange(24.0).reshape(2, 3, 4), np.arange(1.0, 9).reshape(2, 2, 2)
    got = results(dequantize_graph(D.FLOAT, D.FLOAT, (2, 3), (2, 3, 4)), x=x, scale=scale)["y"]
    expected = [x[i, j, k] * scale[i, j // 2, k // 3] for i in range(2) for j in range(3) for k in range(4)]
    assert got.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("dims", "stride", "axis", "transpose", "y", "scale"),
    [
        ((4, 32), None, None, False, (32, 1), (2, 1)),
        ((4, 32), (1, 4), None, False, (1, 4), (1, 4)),
        ((32, 4), None, 0, False, (4, 1), (4, 1)),
        ((32, 4), None, 0, True, (1, 32), (1, 2)),
        ((32, 4), (1, 32), 0, True, (1, 32), (1, 2)),
        ((4, 32), None, None, True, (32, 1), (2, 1)),
        ((3, 32, 5), None, 1, True, (32, 1, 96), (2, 1, 6)),
    ],
)
def test_strides_follow_x_or_put_the_axis_last(
    dims: Dims, stride: Any, axis: Any, transpose: bool, y: Dims, scale: Dims
) -> None:
    graph = quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 16, dims, stride=stride, axis=axis, transpose=transpose).validate()
    assert (graph.find("y").strides, graph.find("scale").strides) == (y, scale)


def _wrong_scale(dims: Dims) -> Graph:
    g = Graph("g", io_data_type=D.FLOAT)
    x, scale = g.tensor("x", dim=(4, 50), data_type=D.FP8_E4M3), g.tensor("s", dim=dims, data_type=D.FP8_E8M0)
    g.block_scale_dequantize(x, scale, block_size=16, name="node").set_output(True)
    return g


def _sizes(sizes: Any) -> Graph:
    g = Graph("g", io_data_type=D.FLOAT)
    g.block_scale_dequantize(g.tensor("x", dim=(4,)), g.tensor("s", dim=(1,)), block_size=sizes)
    return g


def _set_dims() -> Graph:
    g = quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 16, (4, 48))
    g.find("scale").set_dim((4, 4))
    return g


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _wrong_scale((4, 3)), r"'node': scale 's' has dims \(4, 3\); of x \(4, 50\) .* they are \(4, 4\)"),
        (lambda: _wrong_scale((1, 4, 4)), r"'node': scale 's' has dims \(1, 4, 4\)"),
        (_set_dims, r"output 'scale' must have dims \(4, 3\), it was given \(4, 4\)"),
        (lambda: quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 0), r"block_size 0 must be from 1"),
        (lambda: quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 2**31), r"block_size 2147483648 must be from 1"),
        (lambda: quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 16, axis=2), r"axis 2 of x \(6, 64\) must be from 0 to 1"),
        (lambda: quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 16, axis=-1), r"axis -1 of x \(6, 64\) must be from 0 to 1"),
        (
            lambda: quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 16, compute_data_type=D.INT32),
            "compute_data_type is INT32; use FLOAT or DOUBLE",
        ),
        (lambda: quantize_graph(D.BOOLEAN, D.FP8_E8M0, 16), "y 'y' is BOOLEAN, which has no scale"),
        (lambda: _sizes((0,)), r"block_size \(0,\) must be one or more sizes"),
        (lambda: _sizes(()), r"block_size \(\) must be one or more sizes"),
    ],
)
def test_messages(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make().validate()


def test_more_sizes_than_dims() -> None:
    g = Graph("g", io_data_type=D.FLOAT)
    g.block_scale_dequantize(g.tensor("x", dim=(4,)), g.tensor("s", dim=(1,)), block_size=(2, 4)).set_output(True)
    with pytest.raises(GraphError, match=r"block_size \(2, 4\) has more sizes than x \(4,\) has dims"):
        g.validate()
