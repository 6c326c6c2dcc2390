"""Compares every graph of a model with ONNX Runtime's CPU provider, value by value, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper

from fusilli_plugin.plan import FusilliPlan
from hipdnn_backend.interpreter import Prepared
from hipdnn_backend.offload import Model
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.frontend import prepare
from hipdnn_backend.offload.program import Execute

__all__ = ["Finding", "check_model"]

Array = np.ndarray[Any, Any]

TOLERANCES: Final[dict[str, float]] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 2e-2,
    "bfloat16": 8e-2,
}
"""Largest error of an element, as a part of the largest magnitude in the reference. Other types must be equal."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How one result of a graph compares.

    Attributes:
        step: number of the step.
        graph: its name.
        value: name of the model's value that it was compared with.
        error: largest error as a part of the largest magnitude of the reference; for integers and booleans the part
            of the elements that differ.
        tolerance: what is allowed.
    """

    step: int
    graph: str
    value: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Within tolerance; NaN is not."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        verdict = "right" if self.ok else "WRONG"
        size = f"error {self.error:.3g}, {self.tolerance:.0e} allowed"
        return f"step {self.step} {self.graph}: '{self.value}' {verdict} ({size})"


@dataclass(frozen=True)
class _Values:
    """What ONNX Runtime computed.

    Attributes:
        arrays: value name → elements.
        made_by: node name → the values that it makes.
        readers: value name → names of the nodes that read it; "" stands for the caller.
    """

    arrays: Mapping[str, Array]
    made_by: Mapping[str, Sequence[str]]
    readers: Mapping[str, set[str]]

    def leaving(self, nodes: Sequence[str]) -> list[str]:
        """Values that a group of nodes makes for others."""
        inside = set(nodes)
        made = [value for node in nodes for value in self.made_by.get(node, ())]
        return [value for value in made if value in self.arrays and self.readers.get(value, set()) - inside]


def check_model(
    model: Model,
    source: Any,
    feeds: Mapping[str, Array],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Run the model step by step beside ONNX Runtime.

    A result is compared with the value that its nodes make for others; results that stand for no single value of the
    model (its layout or its shape was changed on the way) are left out. The outputs are always compared.

    Args:
        model: compiled from ``source``.
        source: the ONNX model: path, bytes or ``ModelProto``.
        feeds: for both.
        dims: that the model was loaded with.
        inputs: that the model was loaded with.

    Returns:
        Findings in the order of the steps.

    Raises:
        OffloadError: ONNX Runtime does not run the model.
    """
    graph = prepare(source, dims=dims, inputs=inputs)
    names = {output.name: output.value for output in graph.outputs}
    values = _reference(graph.to_proto(lifted=()), feeds, names.values())
    findings: list[Finding] = []

    def look(step: int, at: Prepared) -> None:
        findings.extend(_compare(step, at, values, model.plans))

    model.profile(feeds, look)
    last = len(model.program.steps)
    for name, array in model.run(feeds).items():
        expected = values.arrays.get(names.get(name, name))
        if expected is not None:
            findings.append(_finding(last, "the model's output", name, array, expected.reshape(array.shape)))
    return findings


def _reference(proto: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Iterable[str]) -> _Values:
    """All values of the model; the ones that ONNX Runtime cannot give out are left out."""
    wanted = {value for node in proto.graph.node for value in node.output if value} | set(outputs)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    types = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    known = [name for name in wanted if types.get(name) is not None and types[name].HasField("tensor_type")]
    del proto.graph.output[:]
    proto.graph.output.extend(
        helper.make_tensor_value_info(name, types[name].tensor_type.elem_type, None) for name in known
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        used = {each.name for each in session.get_inputs()}
        arrays = session.run(known, {name: array for name, array in feeds.items() if name in used})
    except Exception as error:  # ONNX Runtime has a class of its own for each kind of failure
        raise OffloadError(f"ONNX Runtime does not run this model, so nothing can be compared: {error}") from error
    readers: dict[str, set[str]] = {value: {""} for value in outputs}
    for node in proto.graph.node:
        for value in node.input:
            readers.setdefault(value, set()).add(node.name)
    made_by = {node.name: tuple(node.output) for node in proto.graph.node}
    found = {name: array for name, array in zip(known, arrays, strict=True) if isinstance(array, np.ndarray)}
    return _Values(found, made_by, readers)


def _compare(number: int, at: Prepared, values: _Values, plans: Sequence[Any]) -> list[Finding]:
    step = at.program.steps[number]
    if not isinstance(step, Execute):
        return []
    graph = at.program.graphs[step.graph]
    candidates = values.leaving(graph.nodes)
    findings = []
    for view in at.program.written(step):
        dims = at.program.views[view].dims
        fitting = [name for name in candidates if values.arrays[name].shape == dims]
        if len(fitting) != 1:  # none or several: which one this is cannot be said
            continue
        expected = values.arrays[fitting[0]]
        read = [at.fetch(view), *_rearranged(at, step, view, plans[graph.plan])]
        compared = [_finding(number, graph.name, fitting[0], array, expected) for array in read]
        findings.append(min(compared, key=lambda finding: (not finding.ok, finding.error)))
        candidates.remove(fitting[0])
    return findings


def _rearranged(at: Prepared, step: Execute, view: int, plan: Any) -> list[Array]:
    """The elements as the graph's own tensor has them, where it arranges them in another order."""
    if not isinstance(plan, FusilliPlan):
        return []
    graph = at.program.graphs[step.graph]
    uid = (*graph.inputs, *graph.outputs)[step.operands.index(view)]
    tensor = next(tensor for tensor in plan.graph.tensors if tensor.uid == uid)
    own = at.program.views[view]
    if tensor.dims != own.dims or tensor.strides == own.strides:
        return []
    return [at.fetch(view, tensor.dims, tensor.strides)]


def _finding(step: int, graph: str, value: str, got: Array, expected: Array) -> Finding:
    tolerance = TOLERANCES.get(got.dtype.name, 0.0)
    if not expected.size:
        return Finding(step, graph, value, 0.0, tolerance)
    if got.dtype.name not in TOLERANCES:
        return Finding(step, graph, value, float(np.mean(got != expected.astype(got.dtype))), 0.0)
    a, b = got.astype(np.float64), _as_float(expected)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
    largest = float(np.max(np.abs(b), where=np.isfinite(b), initial=0.0))
    return Finding(step, graph, value, float(np.max(difference)) / max(largest, 1e-30), tolerance)


def _as_float(array: Array) -> Array:
    """ONNX Runtime may give bfloat16 as raw 16-bit numbers."""
    raw = array.view(ml_dtypes.bfloat16) if array.dtype.kind in "Vu" and array.dtype.itemsize == 2 else array
    return raw.astype(np.float64)
