"""Which files a result would be written over: by link, by descriptor, wherever a model names external data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload.overwriting import model_files, overwritten

pytestmark = pytest.mark.mlir


def test_only_regular_files_are_lost(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to(file)
    assert overwritten(link, [tmp_path / "gone", file]) == file
    with file.open() as opened:
        assert overwritten(file, [opened.fileno()]) == opened.fileno()
    assert overwritten("/dev/null", ["/dev/null"]) is None
    assert overwritten(tmp_path / "new", iter(lambda: pytest.fail("looked at"), None)) is None


def external(location: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), location)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_external_data_is_found_wherever_it_is(tmp_path: Path) -> None:
    def graph(prefix: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        constant = helper.make_node("Constant", [], ["c"], value=external(f"{prefix}attribute"))
        output = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
        return helper.make_graph([constant, *nodes], "g", [], [output], [external(f"{prefix}weight")])

    body = helper.make_node("If", ["b"], ["i"], then_branch=graph("then_"), else_branch=graph("else_"))
    made = helper.make_model(graph("", body), opset_imports=[helper.make_opsetid("", 17)])
    inner = helper.make_node("Constant", [], ["y"], value=external("function"))
    opsets = [helper.make_opsetid("", 17)]
    made.functions.append(helper.make_function("own", "F", [], ["y"], [inner], opsets))
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    names = {"m.onnx", "attribute", "weight", "function"}
    names |= {f"{branch}_{what}" for branch in ("then", "else") for what in ("attribute", "weight")}
    assert {each.name for each in model_files(path)} == names
    assert {each.parent for each in model_files(path)} == {tmp_path}
