"""Whole models with random weights through a session: what is claimed of them, and what comes out.

The reference is ONNX Runtime's own CPU provider on the same file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import fusilli_plugin
from fusilli_plugin.ort_ep.report import Report
from tests.fusilli_plugin.ort_ep.models import Array, session
from tests.support import onnx_models

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

Build = Callable[[], onnx.ModelProto]
TOLERANCE = 1e-4  # of the largest element of the reference, float32
# what engines have to take of the CNNs: nodes of these kinds may not stay with ONNX Runtime
WORK = frozenset(
    [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
        "Relu",
        "Clip",
        "Sigmoid",
        "Add",
        "Mul",
        "Sub",
        "Softmax",
        "FusedConv",
    ]
)
CNNS: dict[str, Build] = {
    "resnet50": onnx_models.resnet50,
    "mobilenet_v2": onnx_models.mobilenet_v2,
    "unet": onnx_models.unet,
}
TRANSFORMERS: dict[str, Build] = {"bert_layer": onnx_models.bert_layer, "llama_block": onnx_models.llama_block}


def largest_error(results: list[Any], wanted: list[Any]) -> float:
    """The largest difference, as a part of the largest element of the same output."""
    return max(float(np.max(np.abs(y - r)) / np.max(np.abs(r))) for y, r in zip(results, wanted, strict=True))


def ran(model: onnx.ModelProto) -> Report:
    """The report of a session with the model, whose outputs are those of the CPU provider."""
    data, feeds = model.SerializeToString(), onnx_models.feeds(model)
    ours: Any = session(data)
    theirs: Any = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    wanted: list[Array] = theirs.run(None, feeds)
    for _ in range(2):  # staged, then bound
        assert largest_error(ours.run(None, feeds), wanted) <= TOLERANCE
    report = fusilli_plugin.ep_report(ours)
    assert not report.problems, report
    return report


def test_the_operations_of_a_model_are_counted() -> None:
    # (4x64)·(64x128), 4x128 rectified, (4x128)·(128x10); the two products are counted with 2 per multiplication
    report = ran(onnx_models.mlp())
    products = [node.flops for node in report.nodes if "Gemm" in node.op_type]
    assert products == [2 * 4 * 64 * 128, 2 * 4 * 128 * 10]
    assert report.claimed_flops == 1.0
    assert "100.0 % of the operations" in str(report)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CNNS)
def test_all_work_of_a_cnn_is_claimed(name: str) -> None:
    report = ran(CNNS[name]())
    left = [node for node in report.nodes if not node.group and node.op_type in WORK]
    assert not left, report
    assert report.claimed_flops == 1.0
    print(f"{name}: {report.claimed} of {len(report.nodes)} nodes, {report.claimed_flops:.1%} of the operations")
    if name == "resnet50":
        assert (report.groups, report.claimed) == (1, len(report.nodes)), report
        total = sum(node.flops for node in report.nodes)
        # 4.09 billion multiplications with an addition each, as published for version 1.5, and some pointwise work
        assert 8.1e9 < total < 8.4e9


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer(name: str) -> None:
    report = ran(TRANSFORMERS[name]())
    print(f"{name}: {report.claimed} of {len(report.nodes)} nodes, {report.claimed_flops:.1%} of the operations")
    assert report.claimed_flops > 0.99, report
