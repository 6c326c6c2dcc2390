"""Trained models of two PyPI packages on the CPU device: ONNX Runtime's numbers, and answers that are right.

Three read text in pictures that are drawn here; one tells the type of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from fusilli_plugin.checks.model_check import check_model
from hipdnn_backend.offload import Model, load
from tests.support import ocr
from tests.support.file_types import features, files, labels
from tests.support.wheel_models import CLASSIFIER, DETECTOR, FURTHER, MAGIKA, RECOGNISER, WheelModel

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

Array = np.ndarray[Any, Any]

TEXTS = ["Hello World", "hipDNN 7.1", "Torch-MLIR"]
RELATIVE = 1e-4  # of the largest number in ONNX Runtime's result


class Twins:
    """A model in both worlds. What `answer` gives is ours, and has been compared."""

    def __init__(self, source: WheelModel, model: Model) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(source.read(), options, providers=["CPUExecutionProvider"])
        self.model = model

    def expected(self, given: Array) -> Array:
        (name,) = (each.name for each in self.model.inputs)
        return np.asarray(self.session.run(None, {name: given})[0])

    def answer(self, given: Array, scale: float = 0.0) -> Array:
        """Our answer. ``scale``: what it is measured by, if not by its own largest number."""
        (ours,) = self.model.run({each.name: given for each in self.model.inputs}).values()
        expected = self.expected(given)
        assert ours.shape == expected.shape
        assert np.max(np.abs(ours - expected)) <= RELATIVE * (scale or np.max(np.abs(expected)))
        return ours


@contextmanager
def twins(source: WheelModel) -> Iterator[Twins]:
    with load(source.read(), device="cpu", dims=source.dims) as model:
        yield Twins(source, model)


@pytest.mark.thorough
def test_the_types_of_files() -> None:
    names = labels()
    with twins(MAGIKA) as magika:
        told = {name: names[int(magika.answer(features(data)).argmax())] for name, data in files().items()}
    assert told == {name: name for name in files()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_of_text_are_found() -> None:
    picture, lines = ocr.draw(TEXTS, (320, 320))
    with twins(DETECTOR) as detector:
        given = ocr.model_input(picture)
        found = ocr.boxes(detector.answer(given))
        assert found == ocr.boxes(detector.expected(given))
        # on white, probabilities are near 0, where a saturated sigmoid's relative errors say nothing
        assert not ocr.boxes(detector.answer(ocr.model_input(np.full_like(picture, 255)), scale=1.0))
    assert len(found) == len(lines)
    assert all(box.covers(line.box) for box, line in zip(found, lines, strict=True))
    ink = np.argwhere(picture.min(-1) < 128)
    assert all(any(box.left <= x < box.right and box.top <= y < box.bottom for box in found) for y, x in ink)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_text_upside_down_is_told() -> None:
    with twins(CLASSIFIER) as classifier:
        for text, strip in ocr.strips(TEXTS):
            upright, turned = (classifier.answer(ocr.model_input(each, 192))[0] for each in (strip, strip[::-1, ::-1]))
            assert (upright.argmax(), turned.argmax()) == (0, 1), text
            assert min(upright.max(), turned.max()) > 0.9, text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_text_is_read() -> None:
    with twins(RECOGNISER) as recogniser:
        listed = recogniser.session.get_modelmeta().custom_metadata_map["character"]
        classes = ocr.characters(listed)
        for text, strip in ocr.strips(TEXTS):
            assert ocr.text_of(recogniser.answer(ocr.model_input(strip, 320)), classes) == text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_picture_upside_down_becomes_text() -> None:
    """All three, one behind the other: boxes, which way up, words."""
    picture, _lines = ocr.draw(TEXTS, (320, 320))
    picture = picture[::-1, ::-1]
    with twins(DETECTOR) as detector, twins(CLASSIFIER) as classifier, twins(RECOGNISER) as recogniser:
        classes = ocr.characters(recogniser.session.get_modelmeta().custom_metadata_map["character"])
        read = []
        for box in ocr.boxes(detector.answer(ocr.model_input(np.ascontiguousarray(picture)))):
            strip = ocr.crop(picture, box)
            if classifier.answer(ocr.model_input(strip, 192)).argmax() == 1:
                strip = strip[::-1, ::-1]
            read.append(ocr.text_of(recogniser.answer(ocr.model_input(strip, 320)), classes))
    assert read == TEXTS[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER)
def test_further_models_graph_by_graph(name: str) -> None:
    source, rng = FURTHER[name], np.random.default_rng(0)
    proto = onnx.load_from_string(source.read())
    with load(source.read(), device="cpu", dims=source.dims) as model:
        feeds: dict[str, Array] = {}
        for value in proto.graph.input:
            kind = value.type.tensor_type
            dims = [dim.dim_value or source.dims[dim.dim_param] for dim in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            numbers = rng.integers(1, 30, dims) if dtype.kind == "i" else rng.standard_normal(dims) * 0.5
            feeds[value.name] = np.ones(dims, bool) if dtype.kind == "b" else numbers.astype(dtype)
        findings = check_model(model, source.read(), feeds, dims=source.dims).findings
    assert findings
    assert all(finding.ok for finding in findings), [str(finding) for finding in findings if not finding.ok]
