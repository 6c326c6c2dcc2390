"""Losses of class numbers against their definition in float64, and against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(17)
DIMS = (3, 5, 2, 4)


def _reference(
    x: np.ndarray, target: np.ndarray, weight: np.ndarray | None, ignored: int | None, reduction: str
) -> np.ndarray:
    loss, total = np.zeros(target.shape), 0.0
    for at in np.ndindex(target.shape):
        cls = target[at]
        if cls == ignored:
            continue
        factor = 1.0 if weight is None else float(weight[cls])
        total += factor
        loss[at] = -factor * float(x[(at[0], cls, *at[1:])])
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / total}[reduction]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2, -100])
@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses(op_type: str, reduction: str, weighted: bool, ignored: int | None) -> None:
    x = RANDOM.standard_normal(DIMS).astype(np.float32)
    target = RANDOM.integers(0, 5, (3, 2, 4)).astype(np.int32)
    if ignored is not None:
        target[1] = ignored
    weight = RANDOM.random(5).astype(np.float32) if weighted else None
    given: dict[str, Any] = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
    outputs = {"y": np.float32} | ({"p": np.float32} if op_type.startswith("Soft") else {})
    model, feeds = one_node(op_type, {"x": x, "t": target, "w": weight}, outputs, opset=22, **given)
    wide = x.astype(np.float64)
    scores = wide - np.log(np.exp(wide).sum(1, keepdims=True)) if op_type.startswith("Soft") else wide
    expected = [np.asarray(_reference(scores, target, weight, ignored, reduction)), scores][: len(outputs)]
    check_rewrite(model, feeds, expected=[each.astype(np.float32) for each in expected])
    check_rewrite(model, feeds)


def test_halves_are_summed_in_single_precision() -> None:
    x = np.full((5000, 2), -0.5, np.float16)  # 4097 halves are no half-precision number's sum of ones
    target = np.zeros(5000, np.int64)
    target[:903] = 1
    inputs = {"x": x, "t": target}
    model, feeds = one_node("NegativeLogLikelihoodLoss", inputs, {"y": np.float16}, opset=22, ignore_index=1)
    check_rewrite(model, feeds, expected=[np.array(0.5, np.float16)], rtol=0)


def test_targets_of_other_dims_are_named() -> None:
    inputs = {"x": np.zeros(DIMS, np.float32), "t": np.zeros((3, 4, 2), np.int64)}
    model, _ = one_node("SoftmaxCrossEntropyLoss", inputs, {"y": np.float32}, opset=13)
    with pytest.raises(ModelError, match=r"node: .*(targets \[3, 4, 2\]|dimensions mismatch|differ)"):
        prepare(model)


@pytest.mark.iree_cpu
def test_a_class_that_is_none_reads_inside() -> None:
    """ONNX Runtime raises; compiled code takes the nearest class, whatever a caller feeds."""
    x = np.log(np.array([[0.25, 0.75]], np.float32))
    inputs = {"x": x, "t": np.array([7], np.int64)}
    model, feeds = one_node("NegativeLogLikelihoodLoss", inputs, {"y": np.float32}, opset=22)
    with load(model, device="cpu") as compiled:
        (y,) = compiled.run(feeds).values()
    np.testing.assert_allclose(y, -np.log(0.75), rtol=1e-6)
