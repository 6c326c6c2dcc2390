"""Every operation has what the layers need of it; a miss names the operation and the file to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graph_api import OPS, Graph
from iree_bridge.support.rules import NODE_RULES
from tests.cases import all_cases

ROOT = Path(__file__).parent.parent


EMITTED = "\n".join(file.read_text() for file in (ROOT / "iree_bridge/emit").rglob("*.py"))


@pytest.mark.parametrize("op", sorted(OPS))
def test_operation_is_complete(op: str) -> None:
    node = OPS[op]
    family = node.__module__.rpartition(".")[2].lstrip("_")
    assert callable(getattr(Graph, op, None)), f"Graph has no method {op}; see graph_api/ops/{family}.py"
    assert op in NODE_RULES, f"add @support_rule({op!r}) to iree_bridge/support/{family}.py"
    assert re.search(rf'@rule\("{op}"\)', EMITTED), f"add @rule({op!r}) to iree_bridge/emit/{family}.py"
    assert node.__doc__, f"{node.__name__} has no docstring"
    for part in ("Shapes:", "Dtypes:", "Raises:", "Source:"):
        assert part in node.__doc__, f"the docstring of {node.__name__} has no line '{part}'"


def test_every_operation_has_cases() -> None:
    seen = {node.op for _, case in all_cases() for node in case.graph().nodes}
    assert sorted(set(OPS) - seen) == [], "operations without a case in tests/cases"
