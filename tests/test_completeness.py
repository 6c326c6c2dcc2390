"""Every operation has what the layers need of it; a miss names the operation and the file to write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusilli_plugin.engine.importers import EXPORTERS, IMPORTERS, export_graph
from graph_api import OPS, Graph, Node
from hipdnn_backend import wire
from iree_bridge.support.rules import NODE_RULES
from tests.cases import all_cases
from tests.support import family_lists

ROOT = Path(__file__).parent.parent
EMIT, IMPORTER, TO_WIRE = "iree_bridge/emit", "fusilli_plugin/engine/importers", "hipdnn_backend/offload/to_wire"
REWRITES = "hipdnn_backend/offload/frontend/rules"

NOT_FROM_TORCH = {
    "block_scale_dequantize": "torch has no operator of it",
    "block_scale_quantize": "torch has no operator of it",
    "batchnorm_inference": "torch has the variance, so to_wire makes batchnorm_inference_variance_ext",
    "moe_grouped_matmul": "torch's _grouped_mm says where groups end, this where they begin: no view of it",
    "moe_grouped_matmul_bwd": "likewise",
    "custom_op": "made of what has no other operation, in to_wire/leftover.py",
}


def _text(folder: str) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / folder).rglob("*.py")))


TEXTS = {folder: _text(folder) for folder in (EMIT, TO_WIRE, REWRITES)}
LISTED = family_lists.text()  # imports every file of operations


def misses(node: type[Node], case: Graph | None) -> Iterator[str]:
    """What an operation lacks, in the order in which it is written; ``case``: a graph that has it."""
    op, family = node.op, node.__module__.rpartition(".")[2]
    if not callable(getattr(Graph, op, None)):
        yield f"no builder class in graph_api/ops/{family}.py has a method {op}; or run {family_lists.COMMAND}"
    for part in ("Shapes:", "Dtypes:", "Raises:", "Source:"):
        if part not in (node.__doc__ or ""):
            yield f"the docstring of {node.__name__} in graph_api/ops/{family}.py has no line '{part}'"
    if not re.search(rf'@rule\("{op}"\)', TEXTS[EMIT]):
        yield f"add @rule({op!r}) to {EMIT}/{family}.py"
    if op not in NODE_RULES:
        yield f"add @support_rule({op!r}) to iree_bridge/support/{family}.py"
    if node not in EXPORTERS:
        yield f"add @exporter({node.__name__}) to {IMPORTER}/{family}.py"
    if case is None:
        yield f"add a case of {op} to tests/cases/{family}.py"
    if node in EXPORTERS and case is not None:
        yield from _misses_of_table(_table(case, op), op, family)


def _misses_of_table(table: type[wire.Attributes], op: str, family: str) -> Iterator[str]:
    name = table.__name__
    if table not in IMPORTERS:
        yield f"add @importer({name}) to {IMPORTER}/{family}.py"
    if op not in NOT_FROM_TORCH and not re.search(rf"\b{name}\(", TEXTS[TO_WIRE]):
        yield f"add a @rule that makes {name} to {TO_WIRE}/{family}.py, or say in NOT_FROM_TORCH why not"


def _table(case: Graph, op: str) -> type[wire.Attributes]:
    """The table as which the operation is written."""
    position = next(position for position, node in enumerate(case.nodes) if node.op == op)
    table = export_graph(case).nodes[position].attributes
    assert isinstance(table, wire.Attributes)
    return type(table)


def _graphs() -> dict[str, Graph]:
    """A graph for each operation that has a case."""
    found: dict[str, Graph] = {}
    for _, case in all_cases():
        for node in case.graph().nodes:
            found.setdefault(node.op, case.graph())
    return found


CASES = _graphs()


@pytest.mark.parametrize("op", sorted(OPS))
def test_an_operation_is_complete(op: str) -> None:
    assert list(misses(OPS[op], CASES.get(op))) == []


def test_the_list_of_operations_is_up_to_date() -> None:
    assert family_lists.LIST.read_text(encoding="utf-8") == LISTED, f"run {family_lists.COMMAND}"


def test_each_exception_is_an_operation() -> None:
    assert not NOT_FROM_TORCH.keys() - OPS.keys()


@pytest.mark.mlir
def test_what_rewrites_ask_of_torch_is_emitted() -> None:
    from hipdnn_backend.offload import frontend  # noqa: F401 - registers the rewrites
    from hipdnn_backend.offload.frontend.torch_ops import EMITS

    asked = set(re.findall(r'\.torch(?:_pair)?\(\s*"(\w+)"', TEXTS[REWRITES]))
    assert {"rms_norm", "max_pool2d_with_indices"} <= asked
    assert not asked - EMITS.keys(), f"add @emits(...) to the file in {REWRITES} that asks for it"


def test_a_miss_names_the_file() -> None:
    class SoftmaxNode(Node):  # never registered
        op = "softmax"
        input_ports = ("x",)
        output_ports = ("y",)

    SoftmaxNode.__module__ = "graph_api.ops.softmax"
    said = "\n".join(misses(SoftmaxNode, None))
    layers = ("graph_api/ops", EMIT, "iree_bridge/support", IMPORTER, "tests/cases")
    assert [layer for layer in layers if f"{layer}/softmax.py" not in said] == []


def test_a_table_that_nobody_reads_or_makes_is_a_miss() -> None:
    class SoftmaxAttributes(wire.Attributes):  # of no schema
        pass

    read, made = _misses_of_table(SoftmaxAttributes, "softmax", "norm")
    assert read == f"add @importer(SoftmaxAttributes) to {IMPORTER}/norm.py"
    assert made.startswith(f"add a @rule that makes SoftmaxAttributes to {TO_WIRE}/norm.py")
