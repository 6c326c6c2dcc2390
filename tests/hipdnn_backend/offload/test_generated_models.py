"""Models of full size with random weights on the CPU device, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from hipdnn_backend.offload import load
from tests.support import onnx_models

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", onnx_models.WHOLE)
def test_same_answers(name: str) -> None:
    proto = onnx_models.WHOLE[name]("float32")
    feeds = onnx_models.feeds(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = np.asarray(session.run(None, feeds)[0])
    with load(proto, device="cpu") as model:
        assert {graph.engine for graph in model.program.graphs} == {"FUSILLI_ENGINE"}
        (got,) = model.run(feeds).values()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * float(np.max(np.abs(expected))))
