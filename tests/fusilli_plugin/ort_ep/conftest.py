"""The provider, registered once per process with the CPU as a device."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("torch_mlir")

import onnxruntime as ort

import fusilli_plugin


@pytest.fixture(scope="session")
def provider() -> Iterator[None]:
    fusilli_plugin.register_ep(cpu=True)
    yield
    fusilli_plugin.unregister_ep()


@pytest.fixture(autouse=True)
def _no_session_of_another_test() -> None:
    """Tracebacks keep sessions, and where sessions cannot be asked, `ep_report` wants to find one."""
    if not hasattr(ort.InferenceSession, "set_ep_dynamic_options"):
        gc.collect()
