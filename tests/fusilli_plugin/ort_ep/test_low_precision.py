"""Models that quantise to 8-bit floats and 4-bit integers, and operators with packed weights, in strict sessions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import MS, Model, session
from tests.support.low_precision_models import MODELS
from tests.support.onnx_rewritten import ort as unoptimised

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in MODELS if name != "product_in_mxfp4"])
def test_models_that_quantise_and_dequantise(name: str) -> None:
    """All but what ONNX Runtime's CPU provider has no 4-bit floats for."""
    model, feeds = MODELS[name]()
    made = session(model.SerializeToString(), strict="1")
    report = fusilli_plugin.ep_report(made)
    assert not report.problems
    assert report.claimed == len(report.nodes), report
    (have,) = made.run(None, feeds)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(have, want)
    # Its optimisers drop the Relu before an 8-bit float, and quantise what is multiplied with 4-bit weights.
    np.testing.assert_array_equal(have, unoptimised(model, feeds)[0])


def _packed_operators(count: int | str) -> Model:
    random = np.random.default_rng(5)
    model = Model("packed", opset=21)
    weights = {
        "table": random.integers(0, 256, (50, 32)).astype(np.uint8), "ts": random.random((50, 4)).astype(np.float32),
        "w": random.integers(0, 256, (24, 4, 8)).astype(np.uint8), "s": random.random((24, 4)).astype(np.float32),
        "z": random.integers(0, 256, (24, 2)).astype(np.uint8),
    }  # fmt: skip
    names = {name: model.constant(name, value) for name, value in weights.items()}
    index = model.input("index", count, dtype=np.int64)
    rows = model.add("GatherBlockQuantized", names["table"], index, names["ts"], domain=MS, block_size=16, bits=4)
    y = model.add("MatMulNBits", rows, names["w"], names["s"], names["z"], domain=MS, K=64, N=24, bits=4, block_size=16)
    return model.output(y)


@pytest.mark.a_few("n")
@pytest.mark.parametrize("count", [5, "n"])
def test_operators_with_packed_weights(count: int | str) -> None:
    """Also for a number of rows that only a run knows."""
    model = _packed_operators(count)
    feeds = {"index": np.array([0, 49, -1, 7, -50])}
    made = session(model.data(), strict="1")
    report = fusilli_plugin.ep_report(made)
    assert not report.problems
    assert report.claimed == len(report.nodes) == 2, report
    (have,) = made.run(None, feeds)
    want = np.asarray(ort.InferenceSession(model.data(), providers=["CPUExecutionProvider"]).run(None, feeds)[0])
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_values_of_several_to_a_byte_stay_with_onnx_runtime() -> None:
    """ONNX Runtime's tensors of them are packed; what is not a constant is left, with a reason."""
    model: Any = Model("crossing", opset=21)
    x, scale = model.input("x", 4, 6), model.constant("s", np.array(0.5, np.float32))
    zero = model.constant("z", np.array(1, ml_dtypes.int4))
    y = model.add("DequantizeLinear", model.add("QuantizeLinear", x, scale, zero), scale, zero)
    model.output(y)
    proto = model.proto()
    proto.ir_version = 10
    made = session(proto.SerializeToString(), strict="1")
    report = fusilli_plugin.ep_report(made)
    assert report.claimed == 0
    assert all("no tensor of numbers of whole bytes" in node.reason for node in report.nodes)
    feeds = model.feeds()
    (want,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_array_equal(made.run(None, feeds)[0], want)
