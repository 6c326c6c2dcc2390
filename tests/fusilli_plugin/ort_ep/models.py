"""Small ONNX models for the provider's tests, and running them in sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import fusilli_plugin

Array = np.ndarray[Any, Any]
Dims = Sequence[int | str]

MS = "com.microsoft"


@dataclass
class Model:
    """A model that is made node by node.

    Attributes:
        dtype: of the tensors that are named without one.
    """

    name: str
    dtype: Any = np.float32
    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def input(self, name: str, *dims: int | str, dtype: Any = None) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, list(dims)))
        return name

    def constant(self, name: str, value: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op_type: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        names = [f"{name}_y{i or ''}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, domain=domain, **attributes))
        return names[0]

    def output(self, *names: str, dtype: Any = None) -> Model:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.outputs += [helper.make_tensor_value_info(name, kind, None) for name in names]
        return self

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def data(self) -> bytes:
        return self.proto().SerializeToString()

    def feeds(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> dict[str, Array]:
        """Seeded inputs, named dims replaced by ``sizes``."""
        rng = np.random.default_rng(seed)
        found: dict[str, Array] = {}
        for value in self.inputs:
            tensor = value.type.tensor_type
            dims = [(sizes or {}).get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if np.issubdtype(dtype, np.floating):
                found[value.name] = rng.uniform(-1, 1, dims).astype(dtype)
            else:
                found[value.name] = rng.integers(0, 8, dims).astype(dtype)
        return found


def session(model: Model | bytes | str, **options: str) -> Any:
    """A session with the provider on the CPU; errors of runs are raised, not retried elsewhere."""
    settings = ort.SessionOptions()
    settings.add_provider_for_devices(fusilli_plugin.ep_devices("cpu"), options)
    data = model.data() if isinstance(model, Model) else model
    return ort.InferenceSession(data, settings, enable_fallback=0)


def reference(model: Model, feeds: Mapping[str, Array]) -> list[Any]:
    """What ONNX Runtime's own CPU provider computes."""
    made: Any = ort.InferenceSession(model.data(), providers=["CPUExecutionProvider"])
    return made.run(None, dict(feeds))


def check(model: Model, made: Any, tolerance: float, feeds: Mapping[str, Array] | None = None) -> None:
    """Run a session and compare all elements with the CPU provider's.

    Args:
        model: of the session.
        made: the session.
        tolerance: relative to the element, and to the root of the mean square of the output (at least 1).
        feeds: default: the model's.
    """
    feeds = model.feeds() if feeds is None else feeds
    for got, want in zip(made.run(None, dict(feeds)), reference(model, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        wide = want.astype(np.float64)
        size = max(1.0, float(np.sqrt(np.mean(wide**2)))) if wide.size else 1.0
        np.testing.assert_allclose(got.astype(np.float64), wide, rtol=tolerance, atol=tolerance * size)


def weight(seed: int, *dims: int, dtype: Any = np.float32) -> Array:
    return (np.random.default_rng(seed).standard_normal(dims) / max(np.prod(dims[1:]), 1) ** 0.5).astype(dtype)


Make = Callable[[Any], Model]


def conv_relu(dtype: Any = np.float32, batch: int | str = 1) -> Model:
    model = Model("conv_relu", dtype)
    x = model.input("x", batch, 3, 8, 8)
    w, b = model.constant("w", weight(0, 4, 3, 3, 3, dtype=dtype)), model.constant("b", weight(1, 4, dtype=dtype))
    return model.output(model.add("Relu", model.add("Conv", x, w, b, pads=[1, 1, 1, 1])))


def add(dtype: Any = np.float32) -> Model:
    model = Model("add", dtype)
    return model.output(model.add("Add", model.input("a", 4, 4), model.input("b", 4, 4)))
