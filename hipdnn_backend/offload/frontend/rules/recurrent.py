"""LSTM, GRU and RNN: written out step by step; torch-mlir makes a loop of what is too long and plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__ = [
    "STEPS",
    "WRITTEN",
    "Cell",
    "activations_of",
    "hidden_size",
    "part_of",
    "peepholes_of",
    "pick",
    "results_of",
    "run",
]

STEPS = 256
"""Steps times directions up to which a recurrence is written out: faster than a loop, but some nodes a step."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_KNOWN = {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign", "Tanh"}
_KNOWN |= {"ThresholdedRelu"}
WRITTEN = {"Sigmoid", "Tanh", "Relu", "Softsign", "Softplus", "HardSigmoid", "LeakyRelu", "Elu"}


@dataclass(kw_only=True)
class Cell:
    """One direction of a recurrence.

    Attributes:
        b: where nodes go.
        hidden: size of the state.
        r: recurrent weights ``[hidden, gates * hidden]``.
        recurrent_bias: ``[gates * hidden]`` of a GRU whose reset comes after the product, "" otherwise.
        peepholes: ``[hidden]`` for i, o, f, of an LSTM; empty if none.
        activations: of the gates.
    """

    b: Builder
    hidden: int
    r: str
    recurrent_bias: str
    peepholes: list[str]
    activations: Sequence[str]

    def part(self, x: str, index: int, axis: int = 1, count: int = 1) -> str:
        """Gates ``index`` to ``index + count``."""
        return part_of(self.b, x, index * self.hidden, (index + count) * self.hidden, axis)

    def product(self, h: str, r: str) -> str:
        """The state, or what becomes of it, times recurrent weights."""
        return self.b.op("MatMul", h, r)

    @cached_property
    def _gru_weights(self) -> tuple[str, str]:
        """Recurrent weights of z and r, and of the new state; once for all steps, or each had constants of its own."""
        return self.part(self.r, 0, count=2), self.part(self.r, 2)

    def activate(self, x: str, which: int) -> str:
        limit = self.b.given.get("clip", 0.0)
        if limit:
            like = self.b.node.input[0]
            x = self.b.op("Clip", x, self.b.like(like, -limit), self.b.like(like, limit))
        return self.b.op(self.activations[which], x)

    def lstm(self, x: str, h: str, c: str) -> tuple[str, str]:
        b = self.b
        gates = b.op("Add", x, self.product(h, self.r))
        i, o, f, new = (self.part(gates, k) for k in range(4))
        if self.peepholes:
            i, f = (b.op("Add", g, b.op("Mul", p, c)) for g, p in ((i, self.peepholes[0]), (f, self.peepholes[2])))
        i, f = self.activate(i, 0), self.activate(f, 0)
        if b.given.get("input_forget", 0):
            f = b.op("Sub", b.like(b.node.input[0], 1), i)
        c = b.op("Add", b.op("Mul", f, c), b.op("Mul", i, self.activate(new, 1)))
        if self.peepholes:
            o = b.op("Add", o, b.op("Mul", self.peepholes[1], c))
        return b.op("Mul", self.activate(o, 0), b.op(self.activations[2], c)), c

    def gru(self, x: str, h: str, c: str) -> tuple[str, str]:
        b = self.b
        if self.recurrent_bias:  # linear_before_reset
            product = b.op("Add", self.product(h, self.r), self.recurrent_bias)
            both = b.op("Add", self.part(x, 0, count=2), self.part(product, 0, count=2))
            z, r = self.activate(self.part(both, 0), 0), self.activate(self.part(both, 1), 0)
            new = b.op("Add", self.part(x, 2), b.op("Mul", r, self.part(product, 2)))
        else:
            early, late = self._gru_weights
            both = b.op("Add", self.part(x, 0, count=2), self.product(h, early))
            z, r = self.activate(self.part(both, 0), 0), self.activate(self.part(both, 1), 0)
            new = b.op("Add", self.part(x, 2), self.product(b.op("Mul", r, h), late))
        new = self.activate(new, 1)
        kept = b.op("Mul", z, h)
        return b.op("Add", b.op("Mul", b.op("Sub", b.like(b.node.input[0], 1), z), new), kept), c

    def rnn(self, x: str, h: str, c: str) -> tuple[str, str]:
        return self.activate(self.b.op("Add", x, self.product(h, self.r)), 0), c


@rewrites("LSTM", "GRU", "RNN")
def _recurrent(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    dims = b.dims(node.input[0])
    if dims is None:
        return None
    batch_first = bool(b.given.get("layout", 0))
    direction = b.given.get("direction", "forward")
    steps, batch = (dims[1], dims[0]) if batch_first else dims[:2]
    directions = 2 if direction == "bidirectional" else 1
    activations = activations_of(b, directions)
    lengths = b.value(b.input(4)) if b.input(4) else np.full(batch, steps)
    full = lengths is not None and bool((lengths == steps).all())
    written = (
        steps * directions <= STEPS
        and set(activations) <= WRITTEN
        and not b.given.get("activation_alpha")
        and not b.given.get("activation_beta")
    )
    if not written:  # torch-mlir makes a loop of it
        plain = direction == "forward" and not batch_first and tuple(activations) == _DEFAULTS[node.op_type]
        _check_loop(b, node, steps, full, plain)
        return None
    if not steps:
        return None
    b.graph.whole.add(node.name)
    x = b.op("Transpose", node.input[0], perm=[1, 0, 2]) if batch_first else node.input[0]
    runs = []
    for which in range(directions):
        backward = direction == "reverse" or which == 1
        count = len(activations) // directions
        cell = _cell(b, node, which, activations[which * count : (which + 1) * count])
        gates = _inputs(b, node, cell, x, which, (steps, batch, dims[2]))
        runs.append(run(b, node, cell, gates, which, (steps, batch), backward, full, batch_first))
    return results_of(b, runs, batch_first)


def activations_of(b: Builder, directions: int) -> list[str]:
    """Names as ONNX writes them; ONNX Runtime does not mind the case of letters."""
    operator = "LSTM" if b.node.op_type.endswith("LSTM") else b.node.op_type
    given = b.given.get("activations") or _DEFAULTS[operator] * directions
    if len(given) != len(_DEFAULTS[operator]) * directions:
        reason = f"activations {given}; {directions} directions have {len(_DEFAULTS[operator])} each"
        raise b.fail("recurrent", reason)
    names = {name.lower(): name for name in _KNOWN}
    for name in given:
        if name.lower() not in names:
            raise b.fail("attribute", f"activations has {name!r}; known are {', '.join(sorted(_KNOWN))}")
    return [names[name.lower()] for name in given]


def _check_loop(b: Builder, node: onnx.NodeProto, steps: int, full: bool, plain: bool) -> None:
    """Torch-MLIR's loops pass over these in silence, and fail in a run if they go backward.

    Raises:
        UnsupportedNodeError: the recurrence has one of them.
    """
    ignored = [name for name in ("activation_alpha", "activation_beta") if b.given.get(name)]
    if not full:
        ignored.append("sequence_lens")
    if node.op_type == "LSTM" and b.input(7):
        ignored.append("P")
    if node.op_type == "RNN" and b.given.get("clip", 0.0):
        ignored.append("clip")
    if not plain:
        ignored += [name for name in ("direction", "layout", "activations") if name in b.given]
    if ignored:
        raise b.unsupported("recurrent", f"{' and '.join(ignored)} of a recurrence of {steps} steps")


def part_of(b: Builder, x: str, start: int, stop: int, axis: int) -> str:
    """Elements ``start`` to ``stop`` along an axis."""
    return b.op("Slice", x, b.constant([start]), b.constant([stop]), b.constant([axis]))


def pick(b: Builder, x: str, index: int) -> str:
    """Entry ``index`` of the first dim, which goes."""
    return b.op("Squeeze", part_of(b, x, index, index + 1, 0), b.constant([0]))


def hidden_size(b: Builder, node: onnx.NodeProto) -> int:
    """Elements of the state, by the recurrent weights."""
    recurrent = b.dims(node.input[2])
    if recurrent is None or len(recurrent) != 3:
        raise b.unsupported("recurrent", f"the recurrent weights {node.input[2]} have no static dims of rank 3")
    return recurrent[2]


def _cell(b: Builder, node: onnx.NodeProto, which: int, activations: Sequence[str]) -> Cell:
    hidden, gates = hidden_size(b, node), _GATES[node.op_type]
    r = b.op("Transpose", pick(b, node.input[2], which), perm=[1, 0])
    late = node.op_type == "GRU" and bool(b.given.get("linear_before_reset", 0))
    bias = ""
    if late:
        zero = b.like(node.input[0], np.zeros(3 * hidden))
        both = pick(b, b.input(3), which) if b.input(3) else ""
        bias = part_of(b, both, gates * hidden, 2 * gates * hidden, 0) if both else zero
    peepholes = peepholes_of(b, which, hidden) if node.op_type == "LSTM" else []
    return Cell(b=b, hidden=hidden, r=r, recurrent_bias=bias, peepholes=peepholes, activations=activations)


def peepholes_of(b: Builder, which: int, hidden: int) -> list[str]:
    """Of an LSTM's direction, for i, o and f; none if it has none."""
    if not b.input(7):
        return []
    whole = pick(b, b.input(7), which)
    return [part_of(b, whole, k * hidden, (k + 1) * hidden, 0) for k in range(3)]


def _inputs(b: Builder, node: onnx.NodeProto, cell: Cell, x: str, which: int, dims: tuple[int, int, int]) -> str:
    """What the inputs of all steps give the gates, ``[steps, batch, gates * hidden]``: one product."""
    steps, batch, size = dims
    width = _GATES[node.op_type] * cell.hidden
    w = b.op("Transpose", pick(b, node.input[1], which), perm=[1, 0])
    y = b.op("MatMul", b.op("Reshape", x, b.constant([steps * batch, size])), w)
    if b.input(3):
        both = pick(b, b.input(3), which)
        bias = part_of(b, both, 0, width, 0)
        if not cell.recurrent_bias:
            bias = b.op("Add", bias, part_of(b, both, width, 2 * width, 0))
        y = b.op("Add", y, bias)
    return b.op("Reshape", y, b.constant([steps, batch, width]))


def _initial(b: Builder, index: int, which: int, dims: tuple[int, int], batch_first: bool) -> str:
    if not b.input(index):
        return b.like(b.node.input[0], np.zeros(dims))
    state = b.op("Transpose", b.input(index), perm=[1, 0, 2]) if batch_first else b.input(index)
    return pick(b, state, which)


def run(
    b: Builder, node: onnx.NodeProto, cell: Cell, gates: str, which: int, dims: tuple[int, int],
    backward: bool, full: bool, batch_first: bool = False,
) -> tuple[str, str, str]:  # fmt: skip
    """All steps of a direction: ``[steps, 1, batch, hidden]``, the last state and the last cell state.

    Args:
        b: where nodes go.
        node: LSTM, GRU, RNN, or one with their operands from the fifth on.
        cell: what a step does.
        gates: what the inputs of all steps give the gates, ``[steps, batch, gates * hidden]``.
        which: number of the direction.
        dims: steps and batch.
        backward: the last step comes first.
        full: all sequences have all steps.
        batch_first: of the states.
    """
    steps, batch = dims
    h = _initial(b, 5, which, (batch, cell.hidden), batch_first)
    c = _initial(b, 6, which, (batch, cell.hidden), batch_first) if node.op_type.endswith("LSTM") else ""
    kinds = {"GRU": cell.gru, "RNN": cell.rnn}
    step: Callable[[str, str, str], tuple[str, str]] = kinds.get(node.op_type, cell.lstm)
    zero = b.like(node.input[0], 0)
    made = [""] * steps
    for t in reversed(range(steps)) if backward else range(steps):
        new_h, new_c = step(pick(b, gates, t), h, c)
        if full:
            h, c, y = new_h, new_c, new_h
        else:  # behind its end a sequence keeps its state and gives 0
            longer = b.op("Greater", b.input(4), b.constant(t, b.dtype(b.input(4))))
            alive = b.op("Reshape", longer, b.constant([batch, 1]))
            h, c = b.op("Where", alive, new_h, h), b.op("Where", alive, new_c, c) if c else ""
            y = b.op("Where", alive, new_h, zero)
        made[t] = b.op("Reshape", y, b.constant([1, 1, batch, cell.hidden]))
    return b.op("Concat", *made, axis=0) if steps > 1 else made[0], h, c


def results_of(b: Builder, runs: Sequence[tuple[str, str, str]], batch_first: bool = False) -> list[str]:
    """The node's results from those of `run` for each direction."""
    y = b.op("Concat", *(run[0] for run in runs), axis=1) if len(runs) > 1 else runs[0][0]
    results = [b.op("Transpose", y, perm=[2, 0, 1, 3]) if batch_first else y]
    for k in (1, 2):
        if not runs[0][k]:
            continue
        axis = 1 if batch_first else 0
        states = [b.op("Unsqueeze", run[k], b.constant([axis])) for run in runs]
        results.append(b.op("Concat", *states, axis=axis) if len(states) > 1 else states[0])
    return results
