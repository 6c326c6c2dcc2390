"""Models of PyPI packages: the front end keeps what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import ort, rewritten
from tests.support.wheel_models import CLASSIFIER, DETECTOR, MAGIKA, RECOGNISER

_MODELS = {"detector": DETECTOR, "recogniser": RECOGNISER, "classifier": CLASSIFIER, "magika": MAGIKA}


@pytest.mark.slow
@pytest.mark.parametrize("name", _MODELS)
def test_same_answers(name: str) -> None:
    source = _MODELS[name]
    graph = prepare(source.read(), dims=source.dims)
    random = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for tensor, type_ in graph.inputs.items():
        floating = type_.dtype.kind == "f"
        made = random.standard_normal(type_.static) if floating else random.integers(0, 255, type_.static)
        feeds[tensor] = made.astype(type_.dtype)
    for have, want in zip(rewritten(graph, feeds), ort(onnx.load_from_string(source.read()), feeds), strict=True):
        # the detector's result is a saturated sigmoid: relative errors of its tiny values say nothing
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=max(2e-7, 1e-5 * float(np.abs(want).max())))
    text = load(source.read(), dims=source.dims).module.operation.get_asm(large_elements_limit=16)
    assert "?" not in text
    assert "torch.operator" not in text
    assert "torch.aten.batch_norm" not in text or name == "detector"
