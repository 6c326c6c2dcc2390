"""Models of PyPI packages, where those are installed: the front end keeps what they compute."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import ort, rewritten

_OCR = "p2o.DynamicDimension"
_MODELS: dict[str, tuple[str, str, dict[str, int]]] = {
    "detector": (
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx",
        {f"{_OCR}.0": 1, f"{_OCR}.1": 320, f"{_OCR}.2": 320},
    ),
    "recogniser": (
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {f"{_OCR}.0": 1, "x.2": 48, f"{_OCR}.1": 320},
    ),
    "classifier": (
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x.0": 1, "x.2": 48, "x.3": 192},
    ),
    "magika": ("magika", "models/standard_v3_3/model.onnx", {"unk__214": 1}),
}  # fmt: skip


def _path(package: str, relative: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / relative
    assert path.is_file(), f"{package} has no {relative}"
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", _MODELS)
def test_same_answers(name: str) -> None:
    package, relative, dims = _MODELS[name]
    path = _path(package, relative)
    graph = prepare(path, dims=dims)
    random = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for tensor, type_ in graph.inputs.items():
        floating = type_.dtype.kind == "f"
        made = random.standard_normal(type_.static) if floating else random.integers(0, 255, type_.static)
        feeds[tensor] = made.astype(type_.dtype)
    for have, want in zip(rewritten(graph, feeds), ort(onnx.load(path), feeds), strict=True):
        # the detector's result is a saturated sigmoid: relative errors of its tiny values say nothing
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=max(2e-7, 1e-5 * float(np.abs(want).max())))
    text = load(path, dims=dims).module.operation.get_asm(large_elements_limit=16)
    assert "?" not in text
    assert "torch.operator" not in text
    assert "torch.aten.batch_norm" not in text or name == "detector"
