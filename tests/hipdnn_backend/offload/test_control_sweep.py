"""Random models of control operations in one another, against ONNX Runtime: loaded, and in sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fusilli_plugin
from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.offload import load
from tests.support.control_models import ControlModel, control_model

ort: Any = pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]


@pytest.fixture(scope="module")
def provider() -> Iterator[None]:
    fusilli_plugin.register_ep(cpu=True)
    yield
    fusilli_plugin.unregister_ep()


def right(model: ControlModel, run: Any) -> None:
    """All results of all runs; the vectors are bounded, and chains of up to some tens of nodes."""
    session = ort.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in model.feeds:
        for got, want in zip(run(feeds), session.run(None, feeds), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def loaded(seed: int) -> None:
    model = control_model(seed)
    with load(model.proto, device="cpu", engines=[FusilliEngine("cpu")]) as made:
        right(model, lambda feeds: list(made.run(feeds).values()))


def in_a_session(seed: int) -> None:
    from tests.fusilli_plugin.ort_ep.models import session

    model = control_model(seed)
    made = session(model.proto.SerializeToString(), on_new_shape="wait")
    right(model, lambda feeds: made.run(None, feeds))
    report = fusilli_plugin.ep_report(made)
    assert (report.claimed > 0, report.problems) == (True, ()), report


@pytest.mark.parametrize("seed", [1, 9, 105, 118])
def test_loaded(seed: int) -> None:
    loaded(seed)


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("seed", [2, 9])
def test_in_a_session(seed: int) -> None:
    in_a_session(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(100, 140, 10))
def test_many_loaded(first: int) -> None:
    for seed in range(first, first + 10):
        loaded(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("first", range(200, 240, 10))
def test_many_in_sessions(first: int) -> None:
    for seed in range(first, first + 10):
        in_a_session(seed)
