"""Fusion tests to build on: does fusion keep a graph right on a device, an engine, with a compiler?

* `assert_fusion_right`: fused, node by node and in float64 a graph has the same results, per element.
* `graphs`: random valid graphs of all operations, each made from a number.
* `strategies`: the same for hypothesis, which makes what fails smaller.
* `pytest_plugin`: options, fixtures, and files ``*.graph.json`` as tests; pytest finds it by itself.

Importing this package loads none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusilli_plugin.testing.fusion import FusionError, assert_fusion_right
    from fusilli_plugin.testing.places import Place, place

__all__ = ["FusionError", "Place", "assert_fusion_right", "place"]

_LATE = {
    "FusionError": "fusilli_plugin.testing.fusion",
    "Place": "fusilli_plugin.testing.places",
    "assert_fusion_right": "fusilli_plugin.testing.fusion",
    "place": "fusilli_plugin.testing.places",
}


def __getattr__(name: str) -> Any:
    """Loads what is first asked for."""
    if name not in _LATE:
        raise AttributeError(f"module 'fusilli_plugin.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
