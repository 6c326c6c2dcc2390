"""Random models of control operations in one another, against ONNX Runtime; `ort_ep` has the same in sessions."""

from __future__ import annotations

import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.offload import load
from tests.support.control_models import check, control_model

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]


def loaded(seed: int) -> None:
    model = control_model(seed)
    with load(model.proto, device="cpu", engines=[FusilliEngine("cpu")]) as made:
        check(model, lambda feeds: list(made.run(feeds).values()))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 9, 105, 118])
def test_loaded(seed: int) -> None:
    loaded(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(100, 140, 10))
def test_many_loaded(first: int) -> None:
    for seed in range(first, first + 10):
        loaded(seed)
