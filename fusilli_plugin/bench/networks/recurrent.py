"""A recurrent network, as an exporter writes it: steps whose number is known."""

from __future__ import annotations

import onnx
from numpy.typing import DTypeLike

from fusilli_plugin.bench.networks.net import Net

__all__ = ["recurrent"]


def recurrent(
    kind: str = "LSTM", dtype: DTypeLike = "float32", *, steps: int = 100, features: int = 80, hidden: int = 128,
    layers: int = 2, classes: int = 32,
) -> onnx.ModelProto:  # fmt: skip
    """Layers of LSTM or GRU over a sequence, and a linear layer on each step, as a recogniser of speech has.

    ``input [steps, 1, features]`` → ``output [steps, 1, classes]``.

    Args:
        kind: ``LSTM`` or ``GRU``.
        dtype: of activations and weights.
        steps: of the sequence.
        features: of a step.
        hidden: numbers in a layer's state.
        layers: one behind the other.
        classes: columns of the result.
    """
    net = Net(dtype, 8)
    x, width = net.input("input", (steps, 1, features)), features
    gates = {"LSTM": 4, "GRU": 3}[kind]
    for layer in range(layers):
        path, rows = f"/rnn/{kind}_{layer}", gates * hidden
        given = [
            net.normal(f"rnn.weight_ih_l{layer}", (1, rows, width), width**-0.5),
            net.normal(f"rnn.weight_hh_l{layer}", (1, rows, hidden), hidden**-0.5),
            net.normal(f"rnn.bias_l{layer}", (1, 2 * rows), 0.1),
        ]
        more = {"linear_before_reset": 1} if kind == "GRU" else {}
        y, *_ = net.op(kind, path, [x, *given], outputs=2, hidden_size=hidden, **more)
        x, width = net.op("Squeeze", f"{path}/Squeeze", [y, net.integers(f"{path}/axes", 1)]), hidden
    x = net.linear(x, "/fc", classes, hidden)
    return net.model("main_graph", {f"{x}>output": (steps, 1, classes)})
