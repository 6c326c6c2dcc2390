"""Every operation has what the layers need of it; a miss names the operation and the file to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graph_api import OPS, Graph
from iree_bridge.support.rules import NODE_RULES
from tests.cases import all_cases

ROOT = Path(__file__).parent.parent


def _family(op: str) -> str:
    return OPS[op].__module__.rpartition(".")[2]


@pytest.mark.parametrize("op", sorted(OPS))
def test_operation_is_complete(op: str) -> None:
    family = _family(op)
    node = OPS[op]
    assert callable(getattr(Graph, op, None)), f"Graph has no method {op}; add it to the builder in graph_api/ops/{family}.py"
    assert op in NODE_RULES, f"add @support_rule({op!r}) to iree_bridge/support/{family}.py"
    rules = (ROOT / f"iree_bridge/emit/{family}.py").read_text()
    assert re.search(rf'@rule\("{op}"\)', rules), f"add @rule({op!r}) to iree_bridge/emit/{family}.py"
    assert node.__doc__, f"{node.__name__} has no docstring"
    for part in ("Shapes:", "Dtypes:", "Raises:", "Source:"):
        assert part in node.__doc__, f"the docstring of {node.__name__} has no line '{part}'"


def test_every_operation_has_cases() -> None:
    seen = {node.op for _, case in all_cases() for node in case.graph().nodes}
    assert sorted(set(OPS) - seen) == [], "operations without a case in tests/cases"
