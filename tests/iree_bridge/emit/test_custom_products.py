"""Products in custom texts have tiles of ours on a CPU, and give what NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest

from graph_api import CustomOpAttributes, DataType, Graph
from iree_bridge import build
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target

pytestmark = pytest.mark.mlir

_TEXT = """
func.func private @{{FUNC_NAME}}(%a: {{IN0_TYPE}}, %b: {{IN1_TYPE}}) -> {{OUT0_TYPE}} {{
  {before}
  %y = torch.aten.{op} %a, {second} : {{IN0_TYPE}}, {kind} -> {{OUT0_TYPE}}
  return %y : {{OUT0_TYPE}}
}}
"""


def graph_of(
    a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...], op: str, *, transposed: bool = False,
    dtype: DataType = DataType.FLOAT,
) -> Graph:  # fmt: skip
    before, second, kind = "", "%b", "{IN1_TYPE}"  # in the text's own placeholders
    if transposed:
        dims = ",".join(map(str, (*b[:-2], b[-1], b[-2])))
        kind, second = f"!torch.vtensor<[{dims}],{{IN1_DTYPE}}>", "%t"
        before = (
            f"%m = torch.constant.int {len(b) - 2}\n  %n = torch.constant.int {len(b) - 1}\n  "
            f"%t = torch.aten.transpose.int %b, %m, %n : {{IN1_TYPE}}, !torch.int, !torch.int -> {kind}"
        )
    g = Graph("custom", io_data_type=dtype)
    text = _TEXT.format(before=before, op=op, second=second, kind=kind)
    (result,) = g.custom_op(
        [g.tensor("a", dim=a), g.tensor("b", dim=b)], 1, CustomOpAttributes(custom_op_id="fusilli.product", data=text)
    )
    result.set_output().set_name("y").set_dim(y)
    return g.validate()


@pytest.mark.a_few("of rank 4")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("a", "b", "op", "transposed"),
    [
        pytest.param((1, 256), (256, 1024), "mm", False, id="one row"),
        pytest.param((5, 33), (33, 50), "matmul", False, id="odd"),
        pytest.param((40, 64), (96, 64), "mm", True, id="transposed"),
        pytest.param((3, 40, 64), (3, 96, 64), "bmm", True, id="a batch, transposed"),
        pytest.param((2, 3, 8, 20), (2, 3, 20, 24), "matmul", False, id="of rank 4"),
    ],
)
def test_products_of_matrices(a: tuple[int, ...], b: tuple[int, ...], op: str, transposed: bool) -> None:
    y = (*a[:-1], b[-2] if transposed else b[-1])
    graph = graph_of(a, b, y, op, transposed=transposed)
    assert "call @product" in emit_module(graph, Target.parse("cpu")).ir
    rng = np.random.default_rng(1)
    left, right = (rng.standard_normal(dims).astype(np.float32) for dims in (a, b))
    result = np.empty(y, np.float32)
    build(graph, "cpu").run({"a": left, "b": right, "y": result})
    wide = right.astype(np.float64)
    expected = left.astype(np.float64) @ (wide.swapaxes(-1, -2) if transposed else wide)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("a", "b", "y", "dtype", "target"),
    [
        pytest.param((4, 8), (8, 16), (4, 16), DataType.DOUBLE, "cpu", id="f64"),
        pytest.param((4, 8), (2, 8, 16), (2, 4, 16), DataType.FLOAT, "cpu", id="broadcast"),
        pytest.param((4, 8), (8,), (4,), DataType.FLOAT, "cpu", id="a vector"),
        pytest.param((4, 8), (8, 16), (4, 16), DataType.FLOAT, "gfx942", id="a GPU"),
    ],
)
def test_others_stay(a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...], dtype: DataType, target: str) -> None:
    text = emit_module(graph_of(a, b, y, "matmul", dtype=dtype), Target.parse(target)).ir
    assert "torch.aten.matmul" in text
    assert "@product" not in text
