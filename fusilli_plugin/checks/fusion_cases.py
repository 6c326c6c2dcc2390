"""The graphs of the fusion suite: the patterns that fusing compilers fuse, with a stable id each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ReductionMode, TensorAttr

__all__ = ["FILLS", "FusionCase", "fusion_cases"]

M = PointwiseMode
_N, _C, _K, _S = 2, 16, 24, 9  # batch, channels, filters, image size: odd enough to need edge handling


@dataclass(frozen=True)
class FusionCase:
    """One fused graph with one way to fill its inputs.

    Attributes:
        id: stable: ``pattern/layout/dtype/fill``.
        build: makes the graph.
        fill: key of ``FILLS``.
    """

    id: str
    build: Callable[[], Graph]
    fill: str

    def inputs(self, graph: Graph) -> dict[TensorAttr, np.ndarray]:
        """Arrays for the inputs of ``graph``; those of variances are positive."""
        arrays = {}
        for index, tensor in enumerate(graph.arguments().inputs):
            values = FILLS[self.fill](tensor, index)
            if "variance" in tensor.name:
                values = np.abs(values) + 0.5
            array = tensor.empty()
            array[...] = values.astype(array.dtype)
            arrays[tensor] = array
        return arrays


def _random(tensor: TensorAttr, index: int) -> np.ndarray:
    return np.random.default_rng(index + 1).standard_normal(tensor.dims)


def _coded(tensor: TensorAttr, index: int) -> np.ndarray:
    """Neighbours differ in every dim and no two rows are alike: an element that lands in the wrong place shows."""
    flat = np.arange(tensor.volume, dtype=np.int64)
    return (((flat * 7919 + 31 * index) % 251) - 125).reshape(tensor.dims) / 64.0


def _cancelling(tensor: TensorAttr, index: int) -> np.ndarray:
    """Large values of alternating sign with a small rest: sums that nearly cancel, where lost digits show."""
    sign = 1 - 2 * (np.indices(tensor.dims).sum(axis=0) % 2)
    rest = np.random.default_rng(index + 100).standard_normal(tensor.dims) / 8
    return 16.0 * sign + rest if index == 0 else 1.0 + rest / 8


FILLS: dict[str, Callable[[TensorAttr, int], np.ndarray]] = {
    "random": _random,
    "coded": _coded,
    "cancelling": _cancelling,
}
"""How inputs are filled: ``(tensor, position) -> values``."""


def _graph(dtype: DataType) -> Graph:
    return Graph("fusion", io_data_type=dtype, compute_data_type=DataType.FLOAT, intermediate_data_type=DataType.FLOAT)


def _image(g: Graph, layout: str, name: str = "x", channels: int = _C) -> TensorAttr:
    return g.tensor(name, dim=(_N, channels, _S, _S), layout=layout)


def _filter(g: Graph, layout: str, channels: int = _C, filters: int = _K) -> TensorAttr:
    return g.tensor("w", dim=(filters, channels, 3, 3), layout=layout)


def _channel(g: Graph, name: str, channels: int = _K) -> TensorAttr:
    return g.tensor(name, dim=(1, channels, 1, 1), data_type=DataType.FLOAT)


def _conv(g: Graph, layout: str) -> TensorAttr:
    return g.conv_fprop(_image(g, layout), _filter(g, layout), padding=1)


def _conv_bias(mode: PointwiseMode) -> Callable[[DataType, str], Graph]:
    def build(dtype: DataType, layout: str) -> Graph:
        g = _graph(dtype)
        y = g.pointwise(M.ADD, _conv(g, layout), _channel(g, "bias"))
        g.pointwise(mode, y, name="act").set_output(True)
        return g

    return build


def _normalized(g: Graph, x: TensorAttr, channels: int) -> TensorAttr:
    names = ("mean", "inv_variance", "scale", "bias")
    return g.batchnorm_inference(x, *(_channel(g, name, channels) for name in names))


def _conv_batchnorm_relu(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    g.pointwise(M.RELU_FWD, _normalized(g, _conv(g, layout), _K)).set_output(True)
    return g


def _batchnorm_relu(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    g.pointwise(M.RELU_FWD, _normalized(g, _image(g, layout), _C)).set_output(True)
    return g


def _residual(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    y = g.pointwise(M.ADD, _conv(g, layout), _channel(g, "bias"))
    y = g.pointwise(M.ADD, y, _image(g, layout, "residual", _K))
    g.pointwise(M.RELU_FWD, y).set_output(True)
    return g


def _two_outputs(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    y = _conv(g, layout)
    g.pointwise(M.RELU_FWD, y).set_output(True)
    g.pointwise(M.SIGMOID_FWD, y).set_output(True)
    return g


def _output_in_the_middle(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    y = g.pointwise(M.ADD, _conv(g, layout), _channel(g, "bias")).set_output(True)
    g.pointwise(M.TANH_FWD, y).set_output(True)
    return g


def _conv_reduction_matmul(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    mean = g.reduction(_conv(g, layout), mode=ReductionMode.AVG)
    mean.set_dim((_N, _K, 1, 1)).set_stride((_K, 1, 1, 1))
    g.matmul(g.tensor("a", dim=(_N, _K, 5, 1)), mean).set_output(True)
    return g


def _layer_backward(dtype: DataType, layout: str) -> Graph:
    """dgrad and wgrad of one layer behind the backward of its activation."""
    g = _graph(dtype)
    dy, before = _image(g, layout, "dy", _K), _image(g, layout, "y", _K)
    dz = g.pointwise(M.RELU_BWD, dy, before)
    g.conv_dgrad(dz, _filter(g, layout), padding=1).set_output(True)
    g.conv_wgrad(dz, _image(g, layout), padding=1).set_output(True)
    return g


def _matmul_bias_gelu(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    b_stride = (640, 20, 1) if layout == "row" else (640, 1, 32)
    y = g.matmul(g.tensor("a", dim=(2, 33, 32)), g.tensor("b", dim=(2, 32, 20), stride=b_stride))
    y = g.pointwise(M.ADD, y, g.tensor("bias", dim=(1, 1, 20)))
    g.pointwise(M.GELU_FWD, y).set_output(True)
    return g


def _layernorm_matmul(dtype: DataType, layout: str) -> Graph:
    g = _graph(dtype)
    scale, bias = (g.tensor(name, dim=(1, 1, 32), data_type=DataType.FLOAT) for name in ("scale", "bias"))
    y, *_ = g.layernorm(
        g.tensor("x", dim=(2, 9, 32)), scale, bias, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE,
        normalized_dim_count=1,
    )  # fmt: skip
    b_stride = (640, 20, 1) if layout == "row" else (640, 1, 32)
    g.matmul(y, g.tensor("b", dim=(2, 32, 20), stride=b_stride)).set_output(True)
    return g


_IMAGE_PATTERNS: dict[str, Callable[[DataType, str], Graph]] = {
    "conv_bias_relu": _conv_bias(M.RELU_FWD),
    "conv_bias_gelu": _conv_bias(M.GELU_FWD),
    "conv_bias_swish": _conv_bias(M.SWISH_FWD),
    "conv_batchnorm_relu": _conv_batchnorm_relu,
    "batchnorm_relu": _batchnorm_relu,
    "conv_bias_residual_relu": _residual,
    "conv_two_outputs": _two_outputs,
    "conv_output_in_the_middle": _output_in_the_middle,
    "conv_reduction_matmul": _conv_reduction_matmul,
    "relu_backward_dgrad_wgrad": _layer_backward,
}
_MATRIX_PATTERNS: dict[str, Callable[[DataType, str], Graph]] = {
    "matmul_bias_gelu": _matmul_bias_gelu,
    "layernorm_matmul": _layernorm_matmul,
}
_DTYPES = {"f32": DataType.FLOAT, "f16": DataType.HALF, "bf16": DataType.BFLOAT16}


def fusion_cases() -> list[FusionCase]:
    """All cases: each pattern in every layout and dtype; in f32 with every way to fill the inputs."""
    return [*_cases(_IMAGE_PATTERNS, ("nchw", "nhwc")), *_cases(_MATRIX_PATTERNS, ("row", "column"))]


def _cases(patterns: dict[str, Callable[[DataType, str], Graph]], layouts: tuple[str, ...]) -> Iterator[FusionCase]:
    for pattern, make in patterns.items():
        for layout in layouts:
            for name, dtype in _DTYPES.items():
                for fill in FILLS if name == "f32" else ("coded",):
                    yield FusionCase(f"{pattern}/{layout}/{name}/{fill}", _bound(make, dtype, layout), fill)


def _bound(make: Callable[[DataType, str], Graph], dtype: DataType, layout: str) -> Callable[[], Graph]:
    where = layout.upper() if layout.startswith("n") else layout
    return lambda: make(dtype, where)
