"""What ``import hipdnn_backend`` offers."""

from __future__ import annotations

import importlib

import pytest

import hipdnn_backend


@pytest.mark.parametrize("name", hipdnn_backend.__all__)
def test_every_public_name_is_that_of_its_module(name: str) -> None:
    found = getattr(hipdnn_backend, name)
    module = importlib.import_module(hipdnn_backend._LATE[name])
    assert found is getattr(module, name)


def test_nothing_else_is_there() -> None:
    assert set(hipdnn_backend._LATE) == set(hipdnn_backend.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Hosts'"):
        _ = hipdnn_backend.Hosts
