"""Compares every graph of a model with ONNX Runtime's CPU provider, value by value, in the order in which they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from fusilli_plugin.engine.plan import FusilliPlan
from hipdnn_backend.offload import Model
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.frontend import prepare
from hipdnn_backend.offload.frontend.graph import TORCH_DOMAIN, OnnxGraph, captures, operator_of, subgraphs
from hipdnn_backend.offload.frontend.shapes import inferred_model
from hipdnn_backend.offload.frontend.small_types import SMALL
from hipdnn_backend.offload.program.program import Execute
from hipdnn_backend.offload.program.runner import Prepared
from hipdnn_backend.onnx_op import RANDOM

__all__ = ["Checked", "Finding", "check_model"]

Array = np.ndarray[Any, Any]

TOLERANCES: Final[dict[str, float]] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 2e-2,
    "bfloat16": 8e-2,
}
"""Largest error of an element, as a part of the largest magnitude in the reference. Other types must be equal."""
_NUDGE: Final = 4.0
"""Units in the last place by which numbers are moved to see what their rounding may do to a value."""
_SPREAD: Final = 10.0
"""What may be there, as a multiple of what such moves did."""


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


@dataclass(frozen=True, slots=True)
class Checked:
    """How a model compares.

    Attributes:
        findings: in the order of the steps.
        random: the nodes that draw numbers, each with its operator; what depends on them is left out.
    """

    findings: tuple[Finding, ...]
    random: Mapping[str, str]

    @property
    def random_nodes(self) -> str:
        """Those nodes in words."""
        return "random nodes: " + ", ".join(f"{name} ({operator})" for name, operator in self.random.items())


@dataclass(frozen=True)
class _Values:
    """What ONNX Runtime computed.

    Attributes:
        arrays: value name → elements.
        made_by: node name → the values that it makes.
        readers: value name → names of the nodes that read it; "" stands for the caller.
        random: value name → dims, of those that are other ones in each run and so were not computed.
    """

    arrays: Mapping[str, Array]
    made_by: Mapping[str, Sequence[str]]
    readers: Mapping[str, set[str]]
    random: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)

    def leaving(self, nodes: Sequence[str], unfinished: Collection[str] = ()) -> list[str]:
        """Values that a group of nodes makes for others, without those of nodes that it does a part of."""
        inside = set(nodes)
        made = [value for node in nodes if node not in unfinished for value in self.made_by.get(node, ())]
        known = self.arrays.keys() | self.random.keys()
        return [value for value in made if value in known and self.readers.get(value, set()) - inside]

    def dims(self, value: str) -> tuple[int, ...] | None:
        """Dims of a value, None if they are not known."""
        return self.arrays[value].shape if value in self.arrays else self.random[value]


def check_model(
    model: Model,
    source: Any,
    feeds: Mapping[str, Array],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Checked:
    """Run the model step by step beside ONNX Runtime.

    A result is compared with the value that its nodes make for others; results that stand for no single value of the
    model (its layout or its shape was changed on the way, another graph does the rest of a node) are left out, and so
    is what depends on random numbers. All other outputs are compared.

    Where something is past its tolerance, ONNX Runtime computes all again with weights and feeds moved by some units in
    the last place. What changes there is not well determined (a rounding to 8 bits that falls the other way, a sigmoid
    far out), and ten times as much is allowed.

    Args:
        model: compiled from ``source``.
        source: the ONNX model: path, bytes or ``ModelProto``.
        feeds: for both.
        dims: that the model was loaded with.
        inputs: that the model was loaded with.

    Raises:
        OffloadError: ONNX Runtime does not run the model, or gives no value of it, or every result is random.
    """
    graph = _comparable(source, dims, inputs)
    names = {output.name: output.value for output in graph.outputs}
    random = {node.name: operator_of(node) for node in graph.nodes if _is_random(node)}
    depending = {value: _dims(graph, value) for value in _depending(graph.nodes, random.keys())}

    def reference(moved: bool = False) -> _Values:
        proto = graph.to_proto(lifted=())
        given = _moved(proto, feeds) if moved else feeds
        return _reference(proto, given, names.values(), depending)

    values = reference()
    findings: list[Finding] = []

    def look(step: int, at: Prepared) -> None:
        findings.extend(_compare(step, at, values, model.plans))

    model.profile(feeds, look)
    last = len(model.program.steps)
    for name, array in model.run(feeds).items():
        value = names.get(name, name)
        expected = values.arrays.get(value)
        if expected is not None and value not in values.random:
            findings.append(_finding(last, "the model's output", name, array, expected.reshape(array.shape)))
    if not all(finding.ok for finding in findings):
        other = reference(moved=True)
        findings = [_tolerant(finding, names.get(finding.value, finding.value), values, other) for finding in findings]
    checked = Checked(tuple(findings), random)
    if random and not findings:
        raise OffloadError(f"nothing can be compared: every result depends on {checked.random_nodes}")
    if not findings:
        raise OffloadError("nothing can be compared: ONNX Runtime gives no value of the model as an array of numpy's")
    return checked


def _comparable(source: Any, dims: Mapping[str, int] | None, inputs: Mapping[str, Any] | None) -> OnnxGraph:
    """The model as it was compiled, but for nodes that became what ONNX does not have: they stay as they were."""
    graph = prepare(source, dims=dims, inputs=inputs, strict=False)
    left = {node.name for node in graph.nodes if node.domain == TORCH_DOMAIN}
    return prepare(source, dims=dims, inputs=inputs, left=left, strict=False) if left else graph


def _is_random(node: onnx.NodeProto) -> bool:
    """Whether a node of a prepared graph, or one in its bodies, draws numbers: a Dropout that does not is gone."""
    own = not node.domain and node.op_type in RANDOM
    return own or any(_is_random(inner) for body in subgraphs(node) for inner in body.node)


def _dims(graph: OnnxGraph, value: str) -> tuple[int, ...] | None:
    type_ = graph.type(value)
    return type_.static if type_ else None


def _depending(nodes: Iterable[onnx.NodeProto], random: Collection[str]) -> frozenset[str]:
    """The values that random nodes make, and those that depend on them."""
    found: set[str] = set()
    for node in nodes:
        if node.name in random or not found.isdisjoint({*node.input, *captures(node)}):
            found.update(filter(None, node.output))
    return frozenset(found)


def _reference(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    outputs: Iterable[str],
    random: Mapping[str, tuple[int, ...] | None],
) -> _Values:
    """All values of the model; the random ones and those that ONNX Runtime cannot give out are left out."""
    readers: dict[str, set[str]] = {value: {""} for value in outputs}
    for node in proto.graph.node:
        for value in node.input:
            readers.setdefault(value, set()).add(node.name)
    made_by: dict[str, list[str]] = {}
    for node in proto.graph.node:  # what a node was rewritten to has its name
        made_by.setdefault(node.name, []).extend(node.output)
    wanted = ({value for node in proto.graph.node for value in node.output if value} | set(outputs)) - random.keys()
    kept = [node for node in proto.graph.node if random.keys().isdisjoint(node.output)]
    _name_apart(kept)
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    inferred = inferred_model(proto)
    types = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    known = [name for name in wanted if _has_arrays(types.get(name))]
    if not known:
        return _Values({}, made_by, readers, random)
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
    found = {name: array for name, array in zip(known, arrays, strict=True) if isinstance(array, np.ndarray)}
    return _Values(found, made_by, readers, random)


def _has_arrays(type_: onnx.TypeProto | None) -> bool:
    """Whether ONNX Runtime gives a value as an array of numpy's."""
    return type_ is not None and type_.HasField("tensor_type") and type_.tensor_type.elem_type not in SMALL


def _name_apart(nodes: Iterable[onnx.NodeProto], prefix: str = "") -> None:
    """Give nodes names of their own, those of bodies as well: ONNX Runtime wants them."""
    for number, node in enumerate(nodes):
        node.name = f"{prefix}{node.name}#{number}"
        for body in subgraphs(node):
            _name_apart(body.node, f"{node.name}/")


def _compare(number: int, at: Prepared, values: _Values, plans: Sequence[Any]) -> list[Finding]:
    step = at.program.steps[number]
    if not isinstance(step, Execute):
        return []
    graph = at.program.graphs[step.graph]
    later = (each for each in at.program.steps[number + 1 :] if isinstance(each, Execute))
    candidates = values.leaving(graph.nodes, {node for each in later for node in at.program.graphs[each.graph].nodes})
    findings = []
    for view in at.program.written(step):
        dims = at.program.views[view].dims
        fitting = [name for name in candidates if values.dims(name) == dims]
        if len(fitting) != 1:  # none or several: which one this is cannot be said
            continue
        candidates.remove(fitting[0])
        if fitting[0] in values.random:
            continue
        expected = values.arrays[fitting[0]]
        read = [at.fetch(view), *_rearranged(at, step, view, plans[graph.plan])]
        compared = [_finding(number, graph.name, fitting[0], array, expected) for array in read]
        findings.append(min(compared, key=lambda finding: (not finding.ok, finding.error)))
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


def _moved(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The feeds with each float moved a little; so are, in ``proto``, the weights."""
    rng = np.random.default_rng(0)

    def moved(array: Array) -> Array:
        if array.dtype.name not in TOLERANCES:
            return array
        unit = float(ml_dtypes.finfo(array.dtype).eps) * _NUDGE
        return (array * (1 + rng.uniform(-unit, unit, array.shape))).astype(array.dtype)

    for weight in proto.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(moved(numpy_helper.to_array(weight)), weight.name))
    return {name: moved(array) for name, array in feeds.items()}


def _tolerant(finding: Finding, value: str, values: _Values, other: _Values) -> Finding:
    """What is past its tolerance, with one that what another computation of the value makes of it allows."""
    if finding.ok or value not in other.arrays or other.arrays[value].shape != values.arrays[value].shape:
        return finding
    noise = _finding(finding.step, finding.graph, value, other.arrays[value], values.arrays[value]).error
    return replace(finding, tolerance=max(finding.tolerance, _SPREAD * noise))


def _as_float(array: Array) -> Array:
    """ONNX Runtime may give bfloat16 as raw 16-bit numbers."""
    raw = array.view(ml_dtypes.bfloat16) if array.dtype.kind in "Vu" and array.dtype.itemsize == 2 else array
    return raw.astype(np.float64)
