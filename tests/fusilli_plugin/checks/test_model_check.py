"""What `run --check` compares: whole nodes only, and no closer than the numbers are determined."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_plugin.checks.model_check import check_model
from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import OffloadError
from tests.support.low_precision_models import MODELS
from tests.support.onnx_rewritten import one_node

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu]

Array = np.ndarray


def _model(nodes: list[onnx.NodeProto], x: tuple[int, ...], constants: dict[str, Array]) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, x)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.thorough
def test_a_part_of_a_node_is_not_taken_for_the_node() -> None:
    """The product of the second Gemm is a graph, its bias goes with the sum of both into another."""
    rng = np.random.default_rng(0)
    constants = {name: rng.standard_normal(dims).astype(np.float32) for name, dims in
                 (("w", (8, 16)), ("r", (16, 16)), ("b", (16,)), ("c", (16,)))}  # fmt: skip
    constants |= {"zero": np.array(0), "one": np.array(1)}
    nodes, state = [], ""
    for step, index in enumerate(("zero", "one")):
        nodes.append(helper.make_node("Gather", ["x", index], [f"x{step}"], f"gather{step}"))
        nodes.append(helper.make_node("Gemm", [f"x{step}", "w", "b"], [f"u{step}"], f"in{step}"))
        added = f"u{step}"
        if state:
            nodes.append(helper.make_node("Gemm", [state, "r", "c"], [f"v{step}"], f"back{step}"))
            nodes.append(helper.make_node("Add", [added, f"v{step}"], [f"s{step}"], f"add{step}"))
            added = f"s{step}"
        state = f"h{step}" if step == 0 else "y"
        nodes.append(helper.make_node("Tanh", [added], [state], f"tanh{step}"))
    model, feeds = _model(nodes, (2, 3, 8), constants), {"x": rng.standard_normal((2, 3, 8)).astype(np.float32)}
    with load(model, device="cpu") as compiled:
        findings = check_model(compiled, model, feeds).findings
    assert findings
    assert all(finding.ok for finding in findings), [str(finding) for finding in findings]


@pytest.mark.parametrize(("change", "right"), [(2e-7, True), (1e-2, False)], ids=["rounding", "a fault"])
def test_what_is_not_determined_better_is_right(change: float, right: bool) -> None:
    """Sums of large numbers that cancel, compared with those of other weights."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((256, 8))
    w -= w.mean(axis=0)
    moved = w * (1 + change * rng.uniform(-1, 1, w.shape))
    mine, other = (
        _model([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], (1, 256), {"w": each.astype(np.float32)})
        for each in (w, moved)
    )
    with load(mine, device="cpu") as compiled:
        findings = check_model(compiled, other, {"x": np.full((1, 256), 1e3, np.float32)}).findings
    assert max(finding.error for finding in findings) > 1e-4
    assert all(finding.ok for finding in findings) == right, [str(finding) for finding in findings]


def test_models_that_quantise_are_compared() -> None:
    """As the model's own nodes compute them: what they became has no form in ONNX."""
    model, feeds = MODELS["gemm_of_columns"]()
    with load(model, device="cpu") as compiled:
        findings = check_model(compiled, model, feeds).findings
    assert findings
    assert all(finding.ok for finding in findings), [str(finding) for finding in findings]


@pytest.mark.thorough
def test_where_nothing_is_compared_is_no_success() -> None:
    x = np.zeros((2, 3), ml_dtypes.int4)
    model, feeds = one_node("Cast", {"x": x}, {"y": ml_dtypes.float8_e4m3fn}, opset=23, to=TensorProto.FLOAT8E4M3FN)
    with load(model, device="cpu") as compiled, pytest.raises(OffloadError, match="ONNX Runtime gives no value"):
        check_model(compiled, model, feeds)
