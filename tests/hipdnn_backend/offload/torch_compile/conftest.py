"""What tests of the backend share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh() -> Iterator[None]:
    """PyTorch's compiler without anything of other tests, before and after."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
