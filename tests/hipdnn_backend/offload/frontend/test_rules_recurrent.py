"""LSTM, GRU and RNN against ONNX Runtime: directions, lengths, states, peepholes; long plain ones stay loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from hipdnn_backend.offload import load as backend_load
from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import check_rewrite, one_node, ort

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrence(
    op_type: str, direction: str, *, steps: int = 5, lengths: list[int] | None = None, states: bool = True,
    bias: bool = True, peepholes: bool = False, **given: Any,
) -> Any:  # fmt: skip
    random = np.random.default_rng(1)
    count, batch, size, hidden, gates = 2 if direction == "bidirectional" else 1, 2, 3, 4, _GATES[op_type]

    def normal(*dims: int) -> np.ndarray:
        return (0.5 * random.standard_normal(dims)).astype(np.float32)

    inputs = {
        "X": normal(steps, batch, size),
        "W": normal(count, gates * hidden, size),
        "R": normal(count, gates * hidden, hidden),
        "B": normal(count, 2 * gates * hidden) if bias else None,
        "lengths": None if lengths is None else np.array(lengths, np.int32),
        "h": normal(count, batch, hidden) if states else None,
    }
    outputs: dict[str, Any] = {"Y": np.float32, "Y_h": np.float32}
    if op_type == "LSTM":
        inputs["c"] = normal(count, batch, hidden) if states else None
        inputs["P"] = normal(count, 3 * hidden) if peepholes else None
        outputs["Y_c"] = np.float32
    constants = [name for name in ("W", "R", "B", "P") if inputs.get(name) is not None]
    return one_node(op_type, inputs, outputs, constants=constants, hidden_size=hidden, direction=direction, **given)


@pytest.mark.parametrize(
    ("op_type", "direction"), list(itertools.product(_GATES, ("forward", "reverse", "bidirectional")))
)
@pytest.mark.parametrize("lengths", [None, [3, 5]], ids=["full", "lengths"])
def test_directions_and_lengths(op_type: str, direction: str, lengths: list[int] | None) -> None:
    model, feeds = _recurrence(op_type, direction, lengths=lengths)
    graph = check_rewrite(model, feeds)
    assert {node.op_type for node in graph.nodes}.isdisjoint(_GATES)
    assert {node.name for node in graph.nodes} == {"node"}


@pytest.mark.parametrize(
    ("op_type", "given"),
    [
        ("LSTM", {"peepholes": True}),
        ("LSTM", {"input_forget": 1, "states": False, "bias": False}),
        ("LSTM", {"clip": 0.3, "activations": ["HardSigmoid", "Softsign", "Tanh"]}),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "bias": False, "states": False}),
        ("RNN", {"activations": ["Relu"], "clip": 0.5}),
    ],
)
def test_variants(op_type: str, given: dict[str, Any]) -> None:
    model, feeds = _recurrence(op_type, "forward", **given)
    check_rewrite(model, feeds)


@pytest.mark.parametrize(
    ("op_type", "steps"), [*(("RNN", steps) for steps in (1, 2, 32, 33, 64, 100)), ("LSTM", 33), ("GRU", 33)]
)
def test_any_length_in_both_directions_is_one_whole(op_type: str, steps: int) -> None:
    model, feeds = _recurrence(op_type, "bidirectional", steps=steps)
    graph = check_rewrite(model, feeds, rtol=1e-4)
    assert graph.whole == {"node"}
    assert op_type not in {node.op_type for node in graph.nodes}


@pytest.mark.parametrize("op_type", _GATES)
def test_every_activation_that_is_written_out(op_type: str) -> None:
    """Alone and in the place of each gate; names in any case of letters, as ONNX Runtime takes them."""
    names = ["Sigmoid", "Tanh", "Relu", "Softsign", "Softplus", "HardSigmoid", "LeakyRelu", "Elu"]
    count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op_type]
    for number, name in enumerate(names):
        each = [name if gate == number % count else ("tanh" if gate else "SIGMOID") for gate in range(count)]
        model, feeds = _recurrence(op_type, "forward", steps=3, activations=each)
        check_rewrite(model, feeds)
    with pytest.raises(ModelError, match="activations is 'Wave'; it may be Affine"):
        prepare(_recurrence(op_type, "forward", activations=["Wave"] * count)[0])


@pytest.mark.parametrize(
    ("op_type", "given", "ignored"),
    [
        ("GRU", {"lengths": [270, 280]}, "sequence_lens"),
        ("LSTM", {"peepholes": True}, "P"),
        ("RNN", {"clip": 0.5}, "clip"),
        (
            "RNN",
            {"activations": ["ScaledTanh"], "activation_alpha": [0.5]},
            "activation_alpha and .*activations",
        ),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}, "activations"),
        ("LSTM", {"direction": "reverse"}, "direction"),
        ("GRU", {"direction": "bidirectional"}, "direction"),
    ],
)
def test_what_loops_would_ignore_is_refused(op_type: str, given: dict[str, Any], ignored: str) -> None:
    model, feeds = _recurrence(op_type, steps=280, **{"direction": "forward", **given})
    lengths = {"lengths": feeds["lengths"]} if "lengths" in feeds else {}
    with pytest.raises(UnsupportedNodeError, match=rf"{ignored} of a recurrence of 280 steps"):
        prepare(model, inputs=lengths)


@pytest.mark.parametrize("op_type", _GATES)
def test_a_long_forward_recurrence_is_a_loop(op_type: str) -> None:
    model, _ = _recurrence(op_type, "forward", steps=300)
    assert "torch.prim.Loop" in str(load(model).module)


@pytest.mark.thorough
@pytest.mark.iree_cpu
@pytest.mark.parametrize("constant", [True, False], ids=["weights are constants", "all is fed"])
@pytest.mark.parametrize("op_type", _GATES)
def test_both_directions_run_as_one_graph(op_type: str, constant: bool) -> None:
    """Parts of constant weights are computed before: those of a step must not be operands of their own."""
    model, feeds = _recurrence(op_type, "bidirectional", steps=33)
    want = ort(model, feeds)
    if constant:
        fed = next(value for value in model.graph.input if value.name == "X")
        weights = [numpy_helper.from_array(value, name) for name, value in feeds.items() if name != "X"]
        del model.graph.input[:]
        model.graph.input.append(fed)
        model.graph.initializer.extend(weights)
        feeds = {"X": feeds["X"]}
    with backend_load(model, device="cpu") as compiled:
        results = list(compiled.run(feeds).values())
        assert [(graph.engine, len(graph.nodes)) for graph in compiled.program.graphs] == [("FUSILLI_ENGINE", 1)]
    for have, right in zip(results, want, strict=True):
        np.testing.assert_allclose(have, right, rtol=1e-5, atol=1e-6)


def test_written_out_recurrences_convert() -> None:
    model, _ = _recurrence("LSTM", "bidirectional", lengths=[3, 5])
    text = str(load(model).module)
    assert "torch.prim.Loop" not in text
    assert "?" not in text
