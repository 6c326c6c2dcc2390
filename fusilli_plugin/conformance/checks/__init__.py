"""The checks: each file registers its own, in the order of the report."""

import importlib
from typing import Final

from fusilli_plugin.conformance.bench import CHECKS

__all__ = ["CHECKS"]

_ORDER: Final = ("loading", "handles", "claims", "plans", "executions", "sharing", "leaks", "results")

for _name in _ORDER:
    importlib.import_module(f"{__name__}.{_name}")
