"""Positions in a tensor: right where they are in range, and never outside of it, whatever a caller feeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from hipdnn_backend.offload.frontend.graph import Graph

X = np.arange(12, dtype=np.float32).reshape(3, 4)
FAR = 10**11
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...] | None, list[int]]] = {
    # operator, attributes, dims of the positions, dims of the updates, sizes that they are positions in
    "Gather": ("Gather", {"axis": 1}, (5,), None, [4]),
    "Gather negative axis": ("Gather", {"axis": -2}, (5,), None, [3]),
    "Gather scalar": ("Gather", {}, (), None, [3]),
    "GatherElements": ("GatherElements", {"axis": 1}, (3, 2), None, [4]),
    "GatherND": ("GatherND", {}, (6, 2), None, [3, 4]),
    "GatherND batch": ("GatherND", {"batch_dims": 1}, (3, 1), None, [4]),
    "ScatterElements": ("ScatterElements", {"axis": 0}, (1, 4), (1, 4), [3]),
    "ScatterND": ("ScatterND", {}, (1, 2), (1,), [3, 4]),
}


def model(case: str, dtype: type[Any], positions: np.ndarray | None = None) -> onnx.ModelProto:
    operator, given, dims, updates, _ = CASES[case]
    names = ["x", "i"] if updates is None else ["x", "i", "u"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    i = helper.make_tensor_value_info("i", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)
    inputs = [x, i] if positions is None else [x]
    if updates is not None:
        inputs.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, updates))
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], "take", **given)], "take", inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [] if positions is None else [numpy_helper.from_array(positions.astype(dtype), "i")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(made: onnx.ModelProto, positions: np.ndarray, case: str) -> np.ndarray:
    updates = CASES[case][3]
    feeds = {"x": X, "i": positions}
    if updates is not None:
        feeds["u"] = np.full(updates, -1, np.float32)
    return ReferenceEvaluator(made).run(None, feeds)[0]  # type: ignore[return-value]


def rewritten(graph: Graph) -> onnx.ModelProto:
    made = graph.to_proto()
    made.ir_version = 9
    return made


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, np.int64) for case in CASES), ("Gather", np.int32), ("ScatterElements", np.int32)]
)
def test_positions_in_range_stay_and_others_come_to_the_nearest(case: str, dtype: type[Any]) -> None:
    _, _, dims, _, sizes = CASES[case]
    source = model(case, dtype)
    made = rewritten(prepare(source))
    rng = np.random.default_rng(0)
    last = np.array(sizes if len(sizes) > 1 else sizes[0])
    inside = rng.integers(-last, last, dims).astype(dtype)
    np.testing.assert_array_equal(run(made, inside, case), run(source, inside, case))
    for value, nearest in ((2**31 - 1, last - 1), (-(2**31), -last)):
        wanted = run(source, np.broadcast_to(nearest, dims).astype(dtype), case)
        np.testing.assert_array_equal(run(made, np.full(dims, value, dtype), case), wanted)


@pytest.mark.parametrize("case", CASES)
def test_constants_are_checked_at_load(case: str) -> None:
    dims, sizes = CASES[case][2], CASES[case][4]
    limit = np.broadcast_to(np.array(sizes if len(sizes) > 1 else sizes[0]), dims)
    for positions in (limit, -limit - 1, np.full(dims, FAR)):
        with pytest.raises(ModelError, match=r"take: .* is outside a dim of size") as caught:
            prepare(model(case, np.int64, positions))
        assert (caught.value.node, caught.value.rule) == ("take", "indices")
    for positions in (limit - 1, -limit):
        assert {node.op_type for node in prepare(model(case, np.int64, positions)).nodes} <= {CASES[case][0]}


def test_it_is_done_once_and_not_where_the_model_does_it() -> None:
    kinds = [node.op_type for node in prepare(model("Gather", np.int64)).nodes]
    assert kinds == ["Max", "Min", "Gather"]
    again = rewritten(prepare(model("Gather", np.int64)))
    assert [node.op_type for node in prepare(again).nodes] == kinds
