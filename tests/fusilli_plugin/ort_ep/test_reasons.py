"""Why nodes are left: what is said is about the operator, not about a view among the operations that it became."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import Model, session

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]


@pytest.mark.parametrize(
    ("op_type", "given", "reason"),
    [
        ("Hardmax", {}, "no hipDNN operation is known for it"),
        ("Acosh", {}, "no hipDNN operation is known for it"),
        ("LSTM", {"hidden_size": 4}, "it is a step of a recurrence, which is one custom operation"),
        ("GRU", {"hidden_size": 4, "direction": "bidirectional"}, "it is a step of a recurrence"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_node_alone(op_type: str, given: dict[str, Any], reason: str) -> None:
    model = Model("alone")
    if "hidden_size" in given:
        directions = 1 + ("direction" in given)
        gates = 4 * {"LSTM": 4, "GRU": 3}[op_type]
        weights = [model.constant(name, np.full((directions, gates, 4), 0.1, np.float32)) for name in "WR"]
        model.output(model.add(op_type, model.input("x", 3, 1, 4), *weights, **given))
    else:
        y = model.add(op_type, model.input("x", 1, 2, 4, 4), **given)
        model.output(y)
    (node,) = fusilli_plugin.ep_report(session(model)).nodes
    assert not node.group
    assert reason in node.reason
    assert "rearranges" not in node.reason
