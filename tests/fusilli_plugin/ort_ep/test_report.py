"""What the report prints of compiled groups: the numbers that its nodes have, not ONNX Runtime's names."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from fusilli_plugin.ort_ep.report import NodeReport, group_numbers


def node(op: str, name: str, group: int) -> NodeReport:
    return NodeReport(name, op, "", group, "", "")


def test_numbers_of_groups() -> None:
    """Nodes without a name are told apart by what is beside them; where that is not enough, nothing is guessed."""
    nodes = (
        node("Conv", "", 1),
        node("Relu", "r", 1),
        node("Unique", "u", 0),
        node("Conv", "", 2),
        node("Conv", "", 3),
    )
    groups = {"a": ["Conv ''", "Relu 'r'"], "b": ["Conv ''"], "c": ["Relu 'r'"], "d": ["Unique 'u'"], "e": []}
    assert group_numbers(nodes, groups) == {"a": 1, "c": 1}


@pytest.mark.usefixtures("provider")
@pytest.mark.ort
@pytest.mark.mlir
@pytest.mark.iree_cpu
def test_a_report_calls_a_group_by_one_name() -> None:
    import onnxruntime as ort

    import fusilli_plugin

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Unique", ["a"], ["b"], name="between"),
        helper.make_node("Neg", ["x"], ["c"], name="second"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
    made = [
        helper.make_tensor_value_info(*each)
        for each in (("b", TensorProto.FLOAT, ["n"]), ("c", TensorProto.FLOAT, [2, 8]))
    ]
    graph = helper.make_graph(nodes, "g", [x], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.add_provider_for_devices(fusilli_plugin.ep_devices(), {})
    session = ort.InferenceSession(model.SerializeToString(), options)
    session.run(None, {"x": np.ones((2, 8), np.float32)})
    report = fusilli_plugin.ep_report(session)
    assert sorted(report.numbers.values()) == list(range(1, report.groups + 1))
    assert set(report.numbers) == set(report.shapes)
    counts = re.findall(r"^  group (\d+) for x \[2, 8\]: runs: 1 by its code", str(report), re.MULTILINE)
    assert sorted(map(int, counts)) == sorted(report.numbers.values())
