"""Operations that a compiler may turn into updates in place: the caller's inputs are not what they update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from graph_api import CustomOpAttributes, DataType, Graph
from iree_bridge import Target, build
from iree_bridge.emit.module import emit_module
from tests.support.cases import aligned

pytestmark = pytest.mark.iree_cpu

F, INT64 = DataType.FLOAT, DataType.INT64
X = np.random.default_rng(0).standard_normal((4, 10), np.float32)
_HEAD = "func.func private @{FUNC_NAME}"


def _with_rows(x: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    made = x.copy()
    made[rows] = values
    return made


def _with_columns(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    made = x.copy()
    made[:, 2:5] = values
    return made


CASES: dict[str, tuple[str, Sequence[np.ndarray], Callable[..., Any]]] = {
    "sort": (
        """(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
          %dim = torch.constant.int 1
          %no = torch.constant.bool false
          %v, %i = torch.aten.sort %x, %dim, %no : {IN0_TYPE}, !torch.int, !torch.bool
              -> {OUT0_TYPE}, !torch.vtensor<[4,10],si64>
          return %v : {OUT0_TYPE}
        }""",
        [X],
        lambda x: np.sort(x, axis=1),
    ),
    "slice_scatter": (
        """(%x: {IN0_TYPE}, %s: {IN1_TYPE}) -> {OUT0_TYPE} {
          %one = torch.constant.int 1
          %a = torch.constant.int 2
          %b = torch.constant.int 5
          %y = torch.aten.slice_scatter %x, %s, %one, %a, %b, %one
              : {IN0_TYPE}, {IN1_TYPE}, !torch.int, !torch.int, !torch.int, !torch.int -> {OUT0_TYPE}
          return %y : {OUT0_TYPE}
        }""",
        [X, -X[:, :3].copy()],
        _with_columns,
    ),
    "index_put": (
        """(%x: {IN0_TYPE}, %i: {IN1_TYPE}, %s: {IN2_TYPE}) -> {OUT0_TYPE} {
          %no = torch.constant.bool false
          %list = torch.prim.ListConstruct %i : ({IN1_TYPE}) -> !torch.list<vtensor>
          %y = torch.aten.index_put %x, %list, %s, %no
              : {IN0_TYPE}, !torch.list<vtensor>, {IN2_TYPE}, !torch.bool -> {OUT0_TYPE}
          return %y : {OUT0_TYPE}
        }""",
        [X, np.array([2, 0]), -X[:2].copy()],
        _with_rows,
    ),
    "insert_slice": (
        """(%x: {IN0_TYPE}, %s: {IN1_TYPE}) -> {OUT0_TYPE} {
          %a = torch_c.to_builtin_tensor %x : {IN0_TYPE} -> tensor<4x10xf32>
          %b = torch_c.to_builtin_tensor %s : {IN1_TYPE} -> tensor<4x3xf32>
          %r = tensor.insert_slice %b into %a[0, 2] [4, 3] [1, 1] : tensor<4x3xf32> into tensor<4x10xf32>
          %y = torch_c.from_builtin_tensor %r : tensor<4x10xf32> -> {OUT0_TYPE}
          return %y : {OUT0_TYPE}
        }""",
        [X, -X[:, :3].copy()],
        _with_columns,
    ),
    "accumulating_product": (
        """(%x: {IN0_TYPE}, %s: {IN1_TYPE}, %t: {IN2_TYPE}) -> {OUT0_TYPE} {
          %a = torch_c.to_builtin_tensor %x : {IN0_TYPE} -> tensor<4x10xf32>
          %b = torch_c.to_builtin_tensor %s : {IN1_TYPE} -> tensor<4x4xf32>
          %c = torch_c.to_builtin_tensor %t : {IN2_TYPE} -> tensor<4x10xf32>
          %r = linalg.matmul ins(%b, %c : tensor<4x4xf32>, tensor<4x10xf32>) outs(%a : tensor<4x10xf32>)
              -> tensor<4x10xf32>
          %y = torch_c.from_builtin_tensor %r : tensor<4x10xf32> -> {OUT0_TYPE}
          return %y : {OUT0_TYPE}
        }""",
        [X, X[:, :4].copy(), -X],
        lambda x, s, t: x.astype(np.float64) + s.astype(np.float64) @ t.astype(np.float64),
    ),
}


@pytest.mark.a_few("index_put", "insert_slice")
@pytest.mark.parametrize("name", CASES)
def test_inputs_stay(name: str) -> None:
    text, arrays, expected = CASES[name]
    graph = Graph("update", io_data_type=F)
    types = [F if array.dtype == np.float32 else INT64 for array in arrays]
    tensors = [
        graph.tensor(f"x{i}", dim=array.shape, data_type=type_)
        for i, (array, type_) in enumerate(zip(arrays, types, strict=True))
    ]
    (y,) = graph.custom_op(tensors, 1, CustomOpAttributes(custom_op_id="fusilli.update", data=_HEAD + text))
    y.set_dim((4, 10)).set_name("y").set_output()
    result = aligned(np.full((4, 10), np.nan, np.float32))
    given = [aligned(array) for array in arrays]
    executable = build(graph, "cpu")
    for _ in range(2):
        executable.run({**dict(zip(tensors, given, strict=True)), y: result})
        for array, kept in zip(given, arrays, strict=True):
            np.testing.assert_array_equal(array, kept)
        np.testing.assert_allclose(result, expected(*arrays), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_an_update_costs_no_further_kernel() -> None:
    """A piece of a recurrence has some thirty results, each of which would be looked at."""
    texts = {
        "add": """(%x: {IN0_TYPE}) -> {OUT0_TYPE} {
          %one = torch.constant.int 1
          %y = torch.aten.add.Tensor %x, %x, %one : {IN0_TYPE}, {IN0_TYPE}, !torch.int -> {OUT0_TYPE}
          return %y : {OUT0_TYPE}
        }""",
        "sort": CASES["sort"][0],
    }
    looked_at: dict[str, int] = {}
    for name, text in texts.items():
        graph = Graph(name, io_data_type=F)
        op = CustomOpAttributes(custom_op_id=name, data=_HEAD + text)
        (y,) = graph.custom_op([graph.tensor("x", dim=(4, 10))], 1, op)
        y.set_dim((4, 10)).set_output()
        looked_at[name] = emit_module(graph.validate(), Target.parse("cpu")).ir.count("call @used_last")
    assert looked_at == {"add": 0, "sort": 1}


@pytest.mark.a_few("INT8", "BOOLEAN")
@pytest.mark.parametrize("dtype", ["HALF", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64", "BOOLEAN"])
def test_inputs_of_every_type_stay(dtype: str) -> None:
    """Numbers of all types are looked at once more when the result is there; there is none that changes it."""
    kind = DataType[dtype]
    graph = Graph("update", io_data_type=kind)
    x, s = graph.tensor("x", dim=(4, 10)), graph.tensor("s", dim=(4, 3))
    text, _, _ = CASES["slice_scatter"]
    (y,) = graph.custom_op([x, s], 1, CustomOpAttributes(custom_op_id="fusilli.update", data=_HEAD + text))
    y.set_dim((4, 10)).set_name("y").set_output()
    graph.validate()
    pack = {tensor: tensor.memory() for tensor in (x, s, y)}
    rng = np.random.default_rng(1)
    for tensor in (x, s):
        bits = pack[tensor].view(np.uint8)
        bits[...] = rng.integers(0, 2 if dtype == "BOOLEAN" else 256, bits.shape)
    kept = {tensor: pack[tensor].view(np.uint8).copy() for tensor in (x, s)}
    build(graph, "cpu-sync").run(pack)
    for tensor, bits in kept.items():
        np.testing.assert_array_equal(pack[tensor].view(np.uint8), bits)
    size = pack[x].dtype.itemsize
    expected = kept[x].reshape(4, 10, size).copy()
    expected[:, 2:5] = kept[s].reshape(4, 3, size)
    np.testing.assert_array_equal(pack[y].view(np.uint8).reshape(4, 10, size), expected)
