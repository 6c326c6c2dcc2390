"""Leftovers: operations as the MLIR text of one custom operation, accepted, compiled and run by the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fusilli_plugin.engine.importers import import_graph
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.to_wire import NotTranslated, translate_leftover
from hipdnn_backend.wire import CustomOpAttributes
from iree_bridge import Target, support
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder, context

pytestmark = pytest.mark.mlir


def text_of(translation: Any) -> str:
    table = translation.graph.nodes[0].attributes
    assert isinstance(table, CustomOpAttributes)
    return table.data.decode()


def test_text() -> None:
    r = Recorder()
    x = r.input(2, 3)
    made = r.translate(r.op("cumsum", r.op("relu", x, where="a"), 1, where="b"), leftover=True)
    assert text_of(made).splitlines() == [
        "func.func private @{FUNC_NAME}(%arg0: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {",
        "  %0 = torch.aten.relu %arg0 : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>",
        "  %int1 = torch.constant.int 1",
        "  %none = torch.constant.none",
        "  %1 = torch.aten.cumsum %0, %int1, %none : !torch.vtensor<[2,3],f32>, !torch.int, !torch.none -> "
        "!torch.vtensor<[2,3],f32>",
        "  return %1 : !torch.vtensor<[2,3],f32>",
        "}",
    ]
    assert made.nodes == ("a", "b")
    assert made.graph.nodes[0].name == "a, b"
    assert support(import_graph(made.graph), Target.parse("cpu"))


def test_constants_come_along_and_unused_inputs_do_not() -> None:
    r = Recorder()
    x, _, y = r.input(2, 3), r.input(4), r.input(2, 3)
    last = r.op("add.Tensor", r.op("cumsum", x, 1), y, alpha=3)
    module = r.module([last])
    block = module.body.operations[0].regions[0].blocks[0]
    ops = [op for op in block.operations if op.operation.name in ("torch.aten.cumsum", "torch.aten.add.Tensor")]
    made = translate_leftover(ops, list(block.arguments), [ops[-1].operation.results[0]], "left")
    assert made.inputs == (1, None, 2)
    assert made.outputs == (3,)
    assert "torch.constant.int 3" in text_of(made)
    assert module.operation.verify()
    assert support(import_graph(made.graph), Target.parse("cpu"))


def test_values_from_elsewhere_are_refused() -> None:
    r = Recorder()
    first = r.op("cumsum", r.input(2, 3), 1, where="first")
    module = r.module([r.op("cumsum", first, 0, where="second")])
    block = module.body.operations[0].regions[0].blocks[0]
    last = [op for op in block.operations if op.operation.name == "torch.aten.cumsum"][-1]
    with pytest.raises(NotTranslated, match="is no input") as caught:
        translate_leftover([last], [], [last.operation.results[0]], "left")
    assert caught.value.location == "first"


def test_too_many_inputs() -> None:
    r = Recorder()
    made = r.input(2)
    for _ in range(33):
        made = r.op("add.Tensor", made, r.input(2))
    with pytest.raises(NotTranslated, match="34 inputs"):
        r.translate(made, leftover=True)


def test_types_that_cannot_cross_the_border() -> None:
    text = """func.func @main(%x: !torch.vtensor<[2],complex<f32>>) -> !torch.vtensor<[2],complex<f32>> {
      %y = torch.aten.tanh %x : !torch.vtensor<[2],complex<f32>> -> !torch.vtensor<[2],complex<f32>>
      return %y : !torch.vtensor<[2],complex<f32>>
    }"""
    module = ir.Module.parse(text, context())
    block = module.body.operations[0].regions[0].blocks[0]
    op, last = list(block.operations)
    with pytest.raises(NotTranslated, match="complex"):
        translate_leftover([op], list(block.arguments), list(last.operation.operands), "left")


@pytest.mark.iree_cpu
def test_several_results_run() -> None:
    r = Recorder()
    x = r.input(3, 8)
    values, positions = r.op("topk", x, 3)
    r.run(r.op("cumsum", values, 1), positions, leftover=True)


@pytest.mark.iree_cpu
def test_booleans_run() -> None:
    """Bytes of 0 and 1 on the border, booleans inside."""
    r = Recorder()
    x = r.input(3, 4)
    mask = r.input(data=np.arange(12).reshape(3, 4) % 3 == 0)
    both = r.op("logical_and", mask, r.op("gt.Scalar", x, 0.0))
    r.run(both, r.op("where.self", mask, x, r.op("cumsum", x, 0)), leftover=True)


@pytest.mark.iree_cpu
def test_rank_0_and_literals_run() -> None:
    r = Recorder()
    x, y = r.input(5), r.input(data=np.array(2.5))
    picked = r.op("index_select", r.op("mul.Tensor", x, y), 0, r.op("arange.start", 1, 4, dtype=torch.int64))
    r.run(picked, r.op("sum", x), leftover=True)


@pytest.mark.iree_cpu
def test_graphs_of_hipdnn_operations_run_as_their_references_say() -> None:
    """Transposed results, booleans, several outputs: the memory that the engine writes is what PyTorch has."""
    r = Recorder()
    x, w, bias = r.input(2, 3, 6, 5), r.input(4, 3, 3, 3), r.input(4)
    y = r.op("convolution", x, w, bias, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    last = r.op("permute", y, [0, 2, 3, 1])
    positive = r.op("gt.Scalar", last, 0.25)
    r.run(r.op("where.self", positive, last, r.op("mul.Scalar", last, 0.1)), positive, r.op("mean.dim", y, [2, 3]))


@pytest.mark.iree_cpu
@pytest.mark.parametrize("leftover", [True, False])
def test_floats_become_bytes_beyond_127(leftover: bool) -> None:
    r = Recorder()
    x = r.input(data=np.array([0.0, 1.5, 100.0, 127.0, 128.0, 200.0, 254.0, 255.0, 3.0]))
    made = r.op("to.dtype", x, torch.uint8)
    r.run(made, r.op("to.dtype", made, torch.float64), leftover=leftover)
