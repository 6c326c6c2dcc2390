"""DynamicQuantizeLSTM as ONNX Runtime computes it: 8-bit products of what is quantised on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.contrib import DOMAIN
from hipdnn_backend.offload.frontend.rules.exact_sums import exact_type
from hipdnn_backend.offload.frontend.rules.quantised import quantised
from hipdnn_backend.offload.frontend.rules.recurrent import (
    STEPS,
    WRITTEN,
    Cell,
    activations_of,
    part_of,
    peepholes_of,
    pick,
    results_of,
    run,
)

__all__: list[str] = []

_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class _Weights:
    """Of one direction, ``[size, gates * hidden]``.

    Attributes:
        whole: less their zero point, in a type in which the products are exact.
        element: that type.
        scale: a number, or one for each column.
    """

    whole: str
    element: int
    scale: str


@dataclass(kw_only=True)
class _Quantised(Cell):
    """A direction whose state is quantised at each step."""

    weights: _Weights

    def product(self, h: str, r: str) -> str:
        return _product(self.b, h, self.weights)


@rewrites(
    "DynamicQuantizeLSTM", domain=DOMAIN, operands=12, attributes="activations clip direction hidden_size input_forget"
)
def _lstm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``X [T, 1, I]``, ``W [D, I, 4H]``, ``R [D, H, 4H]``; X is quantised as a whole, the state at each step.

    For more sequences than one, ONNX Runtime's ranges depend on how many threads it has.
    """
    dims, r_dims = b.dims(node.input[0]), b.dims(node.input[2])
    if dims is None or r_dims is None:
        return None
    steps, batch, size = dims
    direction = b.given.get("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    lengths = b.value(b.input(4)) if b.input(4) else None
    shorter = bool(b.input(4)) and (lengths is None or bool((lengths != steps).any()))
    if batch != 1 or shorter or not 0 < steps * directions <= STEPS:
        given = " with sequence_lens that end them before" if shorter else ""
        reason = f"{steps} steps of {batch} sequences{given}; up to {STEPS} steps of one are known"
        raise b.unsupported("recurrent", reason)
    activations = activations_of(b, directions)
    if not set(activations) <= WRITTEN:
        raise b.unsupported("recurrent", f"activations {activations}")
    b.graph.whole.add(node.name)
    x = b.op("Reshape", node.input[0], b.constant([steps, size]))
    hidden, runs = r_dims[1], []
    for which in range(directions):
        w, r = (_weights(b, first, which) for first in (1, 2))
        gates = _product(b, x, w)
        if b.input(3):
            both = pick(b, b.input(3), which)
            gates = b.op("Add", gates, b.op("Add", *(part_of(b, both, k, k + 4 * hidden, 0) for k in (0, 4 * hidden))))
        gates = b.op("Reshape", gates, b.constant([steps, 1, 4 * hidden]))
        own = activations[3 * which :][:3]
        peepholes = peepholes_of(b, which, hidden)
        cell = _Quantised(b=b, hidden=hidden, r="", recurrent_bias="", peepholes=peepholes, activations=own, weights=r)
        runs.append(run(b, node, cell, gates, which, (steps, 1), direction == "reverse" or which == 1, full=True))
    return results_of(b, runs)


def _weights(b: Builder, index: int, which: int) -> _Weights:
    """Those that are operand ``index``; their scales and zero points follow the eight operands of an LSTM."""
    name, scale, zero = b.input(index), b.input(6 + 2 * index), b.input(7 + 2 * index)
    size = (b.dims(name) or (0, 0))[1]
    element = exact_type(size)
    scale, zero = (_of_direction(b, each, which) for each in (scale, zero))
    whole = b.op("Cast", pick(b, name, which), to=element)
    return _Weights(b.op("Sub", whole, b.op("Cast", zero, to=element)), element, scale)


def _of_direction(b: Builder, name: str, which: int) -> str:
    """Of ``[D]`` or ``[D, 4H]``; one number may stand for both directions."""
    dims = b.dims(name) or ()
    return pick(b, name, which) if dims and dims[0] > 1 else b.op("Reshape", name, b.constant([-1]))


def _product(b: Builder, x: str, weights: _Weights) -> str:
    """``x [rows, size] @ weights`` with x quantised to 8 bits over all its elements, 0 among them."""
    whole, scale, point = quantised(b, x, 2)
    whole = b.op("Cast", b.op("Sub", whole, point), to=weights.element)
    sums = b.op("Cast", b.op("MatMul", whole, weights.whole), to=_FLOAT)
    return b.op("Mul", sums, b.op("Mul", scale, weights.scale))
