"""Builds ONNX models layer by layer: nodes, seeded weights and names as PyTorch's exporter gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper

__all__ = ["Dims", "Net"]

Dims = Sequence[int | str]
IR_VERSION = 10


class Net:
    """Nodes and initializers in program order; dims of every tensor that a layer helper made."""

    def __init__(self, dtype: DTypeLike, seed: int, opset: int = 17) -> None:
        self.dtype = np.dtype(dtype)
        self.opset = opset
        self.lowest = float(ml_dtypes.finfo(self.dtype).min)
        self.dims: dict[str, tuple[int, ...]] = {}
        self._element = helper.np_dtype_to_tensor_dtype(self.dtype)
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dims: Dims, element: int | None = None) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, element or self._element, dims))
        self.dims[name] = tuple(int(dim) for dim in dims) if all(isinstance(dim, int) for dim in dims) else ()
        return name

    def constant(self, name: str, value: Any, dtype: DTypeLike | None = None) -> str:
        """An initializer; of the model's type unless told."""
        array = np.asarray(value).astype(self.dtype if dtype is None else dtype)
        self._weights[name] = numpy_helper.from_array(array, name)
        return name

    def integers(self, name: str, *values: int) -> str:
        return self.constant(name, list(values), np.int64)

    def normal(self, name: str, dims: Sequence[int], scale: float, mean: float = 0.0) -> str:
        return self.constant(name, self._random.standard_normal(dims, dtype=np.float32) * scale + mean)

    def uniform(self, name: str, dims: Sequence[int], low: float, high: float) -> str:
        return self.constant(name, self._random.uniform(low, high, dims))

    def op(self, op_type: str, name: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> Any:
        """A node; its output, or outputs, carry its name as PyTorch's exporter has it (``/conv1/Conv_output_0``)."""
        results = [f"{name}_output_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op_type, inputs, results, name, **attributes))
        return results[0] if outputs == 1 else results

    def conv(
        self, x: str, path: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> str:
        """2-D, padded so that stride 1 keeps the size."""
        n, c, h, w = self.dims[x]
        weight = path.strip("/").replace("/", ".")
        inputs = [x, self.normal(f"{weight}.weight", (channels, c // groups, kernel, kernel), _he(c, groups, kernel))]
        if bias:
            inputs.append(self.normal(f"{weight}.bias", (channels,), 0.1))
        pad = kernel // 2
        y = self.op(
            "Conv",
            f"{path}/Conv",
            inputs,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )
        self.dims[y] = (n, channels, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1)
        return y

    def batch_norm(self, x: str, path: str, gain: float = 1.0) -> str:
        name = path.strip("/").replace("/", ".")
        channels = (self.dims[x][1],)
        parameters = [
            self.uniform(f"{name}.weight", channels, 0.8 * gain, 1.2 * gain),
            self.normal(f"{name}.bias", channels, 0.1),
            self.normal(f"{name}.running_mean", channels, 0.1),
            self.uniform(f"{name}.running_var", channels, 0.8, 1.2),
        ]
        y = self.op("BatchNormalization", f"{path}/BatchNormalization", [x, *parameters], epsilon=1e-5, momentum=0.9)
        return self.like(y, x)

    def unary(self, op_type: str, x: str, path: str, **attributes: Any) -> str:
        return self.like(self.op(op_type, f"{path}/{op_type}", [x], **attributes), x)

    def relu(self, x: str, path: str) -> str:
        return self.unary("Relu", x, path)

    def like(self, y: str, x: str) -> str:
        self.dims[y] = self.dims[x]
        return y

    def pool(self, op_type: str, x: str, path: str, kernel: int, stride: int, pad: int = 0) -> str:
        n, c, h, w = self.dims[x]
        y = self.op(
            op_type,
            f"{path}/{op_type}",
            [x],
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )
        self.dims[y] = (n, c, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1)
        return y

    def classifier(self, x: str, path: str, classes: int) -> str:
        """Global average pool, flatten, Gemm with a transposed weight."""
        n, c = self.dims[x][:2]
        pooled = self.op("GlobalAveragePool", "/avgpool/GlobalAveragePool", [x])
        flat = self.op("Flatten", "/Flatten", [pooled], axis=1)
        weight = path.strip("/").replace("/", ".")
        inputs = [
            flat,
            self.normal(f"{weight}.weight", (classes, c), c**-0.5),
            self.normal(f"{weight}.bias", (classes,), 0.1),
        ]
        y = self.op("Gemm", f"{path}/Gemm", inputs, transB=1)
        self.dims[y] = (n, classes)
        return y

    def linear(self, x: str, path: str, columns: int, rows: int, *, bias: bool = True) -> str:
        """MatMul and Add, as exporters write ``nn.Linear`` on inputs of rank 3; the Add has the bias first."""
        weight = path.strip("/").replace("/", ".")
        y = self.op("MatMul", f"{path}/MatMul", [x, self.normal(f"onnx::MatMul_{weight}", (rows, columns), rows**-0.5)])
        return self.op("Add", f"{path}/Add", [self.normal(f"{weight}.bias", (columns,), 0.1), y]) if bias else y

    def model(self, name: str, outputs: Mapping[str, Dims]) -> onnx.ModelProto:
        """The model; each key of ``outputs`` replaces the tensor name that `op` gave, ``{"old>new": dims}``."""
        names = dict(key.split(">") for key in outputs)
        for node in self._nodes:
            for names_of_node in (node.input, node.output):
                for i, tensor in enumerate(names_of_node):
                    names_of_node[i] = names.get(tensor, tensor)
        results = [
            helper.make_tensor_value_info(key.split(">")[1], self._element, dims) for key, dims in outputs.items()
        ]
        graph = helper.make_graph(self._nodes, name, self._inputs, results, list(self._weights.values()))
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSION,
            producer_name="pytorch",
            producer_version="2.13.0",
        )


def _he(channels: int, groups: int, kernel: int) -> float:
    return (2.0 / (channels // groups * kernel * kernel)) ** 0.5
