"""Positions in a tensor: right where they are in range, and never outside of it, whatever a caller feeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare

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


QUICK = [("Gather", np.int32), ("GatherND", np.int64), ("ScatterElements", np.int32), ("ScatterND", np.int64)]
SLOW = [(case, np.int64) for case in CASES if (case, np.int64) not in QUICK]


@pytest.mark.a_few("Gather-int32")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(("case", "dtype"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
def test_positions_in_range_stay_and_others_come_to_the_nearest(case: str, dtype: type[Any]) -> None:
    _, _, dims, updates, sizes = CASES[case]
    source = model(case, dtype)
    last = np.array(sizes if len(sizes) > 1 else sizes[0])
    more = {} if updates is None else {"u": np.full(updates, -1, np.float32)}
    inside = np.random.default_rng(0).integers(-last, last, dims).astype(dtype)
    with load(source, device="cpu") as compiled:
        (y,) = compiled.run({"x": X, "i": inside, **more}).values()
        np.testing.assert_array_equal(y, run(source, inside, case))
        for value, nearest in ((2**31 - 1, last - 1), (-(2**31), -last), (-1 - last, -last)):
            (y,) = compiled.run({"x": X, "i": np.broadcast_to(value, dims).astype(dtype), **more}).values()
            np.testing.assert_array_equal(y, run(source, np.broadcast_to(nearest, dims).astype(dtype), case))


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
