"""The provider, registered once per process with the CPU as a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("torch_mlir")

import fusilli_plugin


@pytest.fixture(scope="session")
def provider() -> Iterator[None]:
    fusilli_plugin.register_ep(cpu=True)
    yield
    fusilli_plugin.unregister_ep()
