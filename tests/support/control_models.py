"""Random models of If, Loop and Scan whose course only a run knows, in one another, with what only such have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["ControlModel", "check", "control_model"]

Array = np.ndarray[Any, Any]
F32 = np.float32
WIDTH = 4
STEPS = 5
_FLOAT, _INT64, _BOOL = int(TensorProto.FLOAT), int(TensorProto.INT64), int(TensorProto.BOOL)


@dataclass
class ControlModel:
    """A model and inputs for some runs of it, which take other ways through it."""

    proto: onnx.ModelProto
    feeds: list[dict[str, Array]]


@dataclass
class _Scope:
    """What may be read at some place.

    Attributes:
        vectors: names of float tensors [WIDTH], of this graph and those around it.
        counters: of whole numbers [].
        nodes: of this graph.
        constants: of this graph.
    """

    vectors: list[str]
    counters: list[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._count = 0

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def name(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def constant(self, scope: _Scope, value: Any) -> str:
        name = self.name("c")
        scope.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, scope: _Scope, op_type: str, *inputs: str, outputs: int = 1, **given: Any) -> list[str]:
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        scope.nodes.append(helper.make_node(op_type, list(inputs), names, names[0], **given))
        return names

    def plain(self, scope: _Scope) -> str:
        """A vector of those that there are."""
        x = self.pick(scope.vectors)
        kind = self.pick(["Tanh", "Sin", "MatMul", "Add", "Mul", "Max", "count"])
        if kind == "MatMul":
            weight = self.constant(scope, (self.rng.standard_normal((WIDTH, WIDTH)) / 2).astype(F32))
            return self.op(scope, kind, x, weight)[0]
        if kind in ("Add", "Mul", "Max"):
            y = self.op(scope, kind, x, self.pick(scope.vectors))[0]
            return self.op(scope, "Tanh", y)[0]
        if kind == "count" and scope.counters:
            count = self.op(scope, "Cast", self.pick(scope.counters), to=_FLOAT)[0]
            return self.op(scope, "Tanh", self.op(scope, "Add", x, count)[0])[0]
        return self.op(scope, kind if kind != "count" else "Sin", x)[0]

    def truth(self, scope: _Scope) -> str:
        """A condition that a run computes."""
        total = self.op(scope, "ReduceSum", self.pick(scope.vectors), keepdims=0)[0]
        limit = self.constant(scope, np.array(self.rng.uniform(-1, 1), F32))
        return self.op(scope, self.pick(["Greater", "Less"]), total, limit)[0]

    def inner(self, scope: _Scope, *vectors: str, counters: tuple[str, ...] = ()) -> _Scope:
        return _Scope([*scope.vectors, *vectors, *vectors], [*scope.counters, *counters])

    def some(self, scope: _Scope, depth: int) -> str:
        """A few nodes, perhaps control ones, and a vector that the last one gives."""
        for _ in range(int(self.rng.integers(1, 4))):
            made = self.control(scope, depth) if depth and self.rng.random() < 0.5 else self.plain(scope)
            scope.vectors.append(made)
        return scope.vectors[-1]

    def control(self, scope: _Scope, depth: int) -> str:
        return self.pick([self.choice, self.loop, self.scan])(scope, depth - 1)

    def choice(self, scope: _Scope, depth: int) -> str:
        condition = self.truth(scope)
        bodies = {}
        for which in ("then_branch", "else_branch"):
            inner = self.inner(scope)
            result = self.some(inner, depth)
            bodies[which] = self.graph(inner, [], [(result, _FLOAT, [WIDTH])])
        return self.op(scope, "If", condition, **bodies)[0]

    def graph(self, inner: _Scope, inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
        named = [helper.make_tensor_value_info(*each) for each in (*inputs, *outputs)]
        return helper.make_graph(
            inner.nodes, self.name("body"), named[: len(inputs)], named[len(inputs) :], inner.constants
        )

    def loop(self, scope: _Scope, depth: int) -> str:
        """It ends by its number of steps, by a condition, or by either; it may count, and collect."""
        number, going, state, count = (self.name(hint) for hint in ("i", "g", "s", "n"))
        inner = self.inner(scope, state, counters=(number, count))
        after = self.some(inner, depth)
        kind = self.pick(["for", "while", "both"])
        again = self.op(inner, "Identity", going)[0] if kind == "for" else self.truth(inner)
        one = self.constant(inner, np.array(1))
        more = self.op(inner, "Add", count, one)[0]
        inputs = [(number, _INT64, []), (going, _BOOL, []), (state, _FLOAT, [WIDTH]), (count, _INT64, [])]
        outputs = [(again, _BOOL, []), (after, _FLOAT, [WIDTH]), (more, _INT64, [])]
        body = self.graph(inner, inputs, outputs)
        if kind == "while":
            most = self.constant(scope, np.array(STEPS))
        else:
            most = self.pick(scope.counters) if scope.counters else self.constant(scope, np.array(3))
        first = self.truth(scope) if kind == "both" else ""
        zero = self.constant(scope, np.array(0))
        made, steps = self.op(scope, "Loop", most, first, self.pick(scope.vectors), zero, outputs=2, body=body)
        scope.counters.append(steps)
        return made

    def scan(self, scope: _Scope, depth: int) -> str:
        """Over the rows of a product of a vector with itself; what it makes is added up."""
        x = self.pick(scope.vectors)
        column = self.op(scope, "Unsqueeze", x, self.constant(scope, np.array([1])))[0]
        rows = self.op(scope, "Mul", column, self.pick(scope.vectors))[0]
        state, row = self.name("s"), self.name("r")
        inner = self.inner(scope, state, row)
        after, part = self.some(inner, depth), self.plain(inner)
        if after == part or after in (state, row):
            after = self.op(inner, "Neg", after)[0]
        body = self.graph(
            inner,
            [(state, _FLOAT, [WIDTH]), (row, _FLOAT, [WIDTH])],
            [(after, _FLOAT, [WIDTH]), (part, _FLOAT, [WIDTH])],
        )
        last, made = self.op(
            scope, "Scan", self.pick(scope.vectors), rows, outputs=2, body=body, num_scan_inputs=1,
            scan_input_axes=[int(self.rng.integers(2))], scan_output_axes=[int(self.rng.integers(2))],
            scan_input_directions=[int(self.rng.integers(2))], scan_output_directions=[int(self.rng.integers(2))],
        )  # fmt: skip
        total = self.op(scope, "ReduceMean", made, self.constant(scope, np.array([0])), keepdims=0)[0]
        return self.op(scope, "Add", last, total)[0]


def control_model(seed: int) -> ControlModel:
    """The model of a number."""
    m = _Maker(seed)
    scope = _Scope(["x", "y"], ["n"])
    scope.vectors.append(m.plain(scope))
    scope.vectors.append(m.control(scope, int(m.rng.integers(1, 3))))
    result = m.plain(scope)
    steps = [name for name in scope.counters if name != "n"]
    outputs: list[Any] = [(result, _FLOAT, [WIDTH]), (scope.vectors[-1], _FLOAT, [WIDTH])]
    outputs += [(name, _INT64, []) for name in steps[:1]]
    named = {name: helper.make_tensor_value_info(name, kind, dims) for name, kind, dims in outputs}
    inputs = [helper.make_tensor_value_info(name, _FLOAT, [WIDTH]) for name in "xy"]
    inputs.append(helper.make_tensor_value_info("n", _INT64, []))
    graph = helper.make_graph(scope.nodes, f"control{seed}", inputs, list(named.values()), scope.constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = [
        {"x": m.rng.standard_normal(WIDTH).astype(F32), "y": m.rng.standard_normal(WIDTH).astype(F32), "n": np.array(n)}
        for n in (0, 1, 3, 4)
    ]
    return ControlModel(proto, feeds)


def check(model: ControlModel, run: Callable[[dict[str, Array]], Sequence[Array]]) -> None:
    """Hold all results of all runs against ONNX Runtime's; the vectors are bounded, the chains some tens of nodes."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in model.feeds:
        for got, want in zip(run(feeds), session.run(None, feeds), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
