"""Models in float16: as near to float32 of the same weights as roundings allow, and right in what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hipdnn_backend.offload import Model, load
from tests.support import ocr, onnx_models
from tests.support.file_types import features, files, labels
from tests.support.half import retyped, roundings, tolerance
from tests.support.wheel_models import CLASSIFIER, MAGIKA, RECOGNISER, WheelModel

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

Array = np.ndarray[Any, Any]
TEXTS = ["Hello World", "hipDNN 7.1", "Torch-MLIR"]
Make = Callable[[], onnx.ModelProto]

SMALL: dict[str, Make] = {
    "bert": lambda: onnx_models.bert_layer("float16", hidden=64, heads=4, sequence=16),
    "resnet": lambda: onnx_models.resnet50("float16", size=32, width=8, blocks=(1,), classes=10),
}


class Twins:
    """A float16 model of ours, and the same weights in float32 in ONNX Runtime."""

    def __init__(self, proto: onnx.ModelProto, model: Model) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        wide = retyped(proto, np.float32).SerializeToString()
        self.session = onnxruntime.InferenceSession(wide, options, providers=["CPUExecutionProvider"])
        self.model = model
        self.proto = proto

    def answer(self, feeds: dict[str, Array]) -> Array:
        """Ours, after a comparison."""
        (ours,) = self.model.run(feeds).values()
        wide = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in feeds.items()}
        expected = np.asarray(self.session.run(None, wide)[0])
        assert ours.dtype == np.float16
        np.testing.assert_allclose(
            ours.astype(np.float32), expected, rtol=0,
            atol=tolerance(self.proto, expected.size) * float(np.max(np.abs(expected))),
        )  # fmt: skip
        return ours


def _check(make: Make) -> None:
    proto = make()
    with load(proto, device="cpu") as model:
        assert {graph.engine for graph in model.program.graphs} == {"FUSILLI_ENGINE"}
        Twins(proto, model).answer(onnx_models.feeds(proto))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str) -> None:
    _check(SMALL[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", onnx_models.WHOLE)
def test_models(name: str) -> None:
    _check(lambda: onnx_models.WHOLE[name]("float16"))


def test_the_tolerance() -> None:
    proto = onnx_models.mlp(features=(4, 8, 2))
    assert roundings(proto) == 2  # Gemm, Relu (which is exact), Gemm
    assert tolerance(proto, 100) == pytest.approx(2**-11 * (2 / 3) ** 0.5 * (2 * np.log(100)) ** 0.5)
    narrow = retyped(proto, np.float16)
    assert {tensor.data_type for tensor in narrow.graph.initializer} == {onnx.TensorProto.FLOAT16}
    again = retyped(narrow, np.float32)
    for one, other in zip(proto.graph.initializer, again.graph.initializer, strict=True):
        array, rounded = onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(other)
        np.testing.assert_array_equal(rounded, array.astype(np.float16).astype(np.float32))


def _narrow(source: WheelModel) -> onnx.ModelProto:
    return retyped(onnx.load_from_string(source.read()), np.float16)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_types_of_files() -> None:
    proto = _narrow(MAGIKA)
    with load(proto, device="cpu", dims=MAGIKA.dims) as model:
        twins, names = Twins(proto, model), labels()
        told = {name: names[int(twins.answer({"bytes": features(data)}).argmax())] for name, data in files().items()}
    assert told == {name: name for name in files()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_text_upside_down_is_told() -> None:
    proto = _narrow(CLASSIFIER)
    with load(proto, device="cpu", dims=CLASSIFIER.dims) as model:
        twins = Twins(proto, model)
        for text, strip in ocr.strips(TEXTS):
            ways = [ocr.model_input(each, 192).astype(np.float16) for each in (strip, strip[::-1, ::-1])]
            assert [int(twins.answer({"x": each}).argmax()) for each in ways] == [0, 1], text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_text_is_read() -> None:
    """The detector is left out: the variance of one of its batch norms is 9.8e7, which float16 does not hold."""
    proto = _narrow(RECOGNISER)
    listed = next(entry.value for entry in proto.metadata_props if entry.key == "character")
    with load(proto, device="cpu", dims=RECOGNISER.dims) as model:
        twins, classes = Twins(proto, model), ocr.characters(listed)
        for text, strip in ocr.strips(TEXTS):
            given = ocr.model_input(strip, 320).astype(np.float16)
            assert ocr.text_of(twins.answer({"x": given}), classes) == text
