"""Random models of If, Loop and Scan in one another: ONNX Runtime controls them, nodes of their bodies are claimed."""

from __future__ import annotations

import pytest

import fusilli_plugin
from tests.fusilli_plugin.ort_ep.models import session
from tests.support.control_models import check, control_model

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]


def in_a_session(seed: int) -> None:
    model = control_model(seed)
    made = session(model.proto.SerializeToString(), on_new_shape="wait")
    check(model, lambda feeds: made.run(None, feeds))
    report = fusilli_plugin.ep_report(made)
    assert (report.claimed > 0, report.problems) == (True, ()), report


@pytest.mark.a_few("2")
@pytest.mark.parametrize("seed", [2, 9])
def test_in_a_session(seed: int) -> None:
    in_a_session(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(200, 240, 10))
def test_many_in_sessions(first: int) -> None:
    for seed in range(first, first + 10):
        in_a_session(seed)
