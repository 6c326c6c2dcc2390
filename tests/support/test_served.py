from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, Graph, numerics
from graph_api.node import OPS
from iree_bridge import Target, build, support
from tests.cases import all_cases
from tests.support.served import PROBES, TARGETS, Row, answers, graph, section

_SAMPLE = [
    ("batchnorm_backward", "BFLOAT16"), ("block_scale_dequantize", "FP6_E3M2"), ("conv_wgrad", "HALF"),
    ("layernorm_backward", "DOUBLE"), ("matmul", "INT4"), ("moe_grouped_matmul", "FP8_E5M2"), ("reduction", "UINT8"),
    ("resample_fwd", "INT8"), ("sdpa", "HALF"),
]  # fmt: skip
"""What ``make test-thorough`` runs, and ``make test`` a few of."""


def table() -> dict[tuple[Row, DataType], str]:
    """The cells of the page."""
    page = (Path(__file__).resolve().parents[2] / "docs/support.md").read_text("utf-8")
    lines = page.partition("## Served, or why not")[2].partition("\n1. ")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("|")]
    found: dict[tuple[Row, DataType], str] = {}
    for operations, *cells in rows:
        for op, tensor in re.findall(r"`(\w+)`(?:, of (\w))?", operations):
            for column, cell in zip(head[1:], cells, strict=True):
                found |= {((op, tensor), DataType[name]): cell for name in column.split("<br>")}
    return found


def test_every_operation_is_asked_about_and_every_cell_is_there() -> None:
    assert {op for op, _ in PROBES} == set(OPS)
    assert set(table()) == set(product(PROBES, DataType))


def test_the_page_says_what_the_rules_say() -> None:
    assert section() in (Path(__file__).resolve().parents[2] / "docs/support.md").read_text("utf-8"), "make support"


def test_graphs_are_about_the_operation_and_the_type() -> None:
    for (op, tensor), probes in PROBES.items():
        for _, probe in probes():
            made = graph(probe, DataType.FLOAT if tensor != "y" else DataType.FP8_E4M3)
            (node,) = made.nodes
            assert node.op == op
            main = node.outputs["y"] if tensor == "y" else next(iter(node.inputs.values()))
            assert main.data_type is (DataType.FP8_E4M3 if tensor == "y" else DataType.FLOAT)


def test_the_cells_agree_with_what_was_run_and_what_was_declined() -> None:
    """The case tables are other graphs, and those that are served were run."""
    cells, seen = table(), set[tuple[Row, DataType]]()
    for _, case in all_cases():
        made = case.graph()
        if len(made.nodes) != 1 or not made.nodes[0].inputs:
            continue
        (node,) = made.nodes
        of_type = next(iter(node.inputs.values())).data_type
        row = (node.op, "x" if node.op == "block_scale_quantize" else "")
        if not case.declined:
            assert not cells[row, of_type].startswith("no"), (case.name, cells[row, of_type])
            seen.add((row, of_type))
        elif set(case.declined.values()) == {"dtype"} and row[1] != "x":
            assert cells[row, of_type] != "yes", case.name
    assert len(seen) > 120


def first(row: Row, dtype: DataType) -> Graph:
    """The graph of the first mode."""
    return graph(next(PROBES[row]())[1], dtype)


def served() -> list[tuple[Row, DataType]]:
    return [(row, dtype) for row, of in answers().items() for dtype, cell in of.items() if None in cell.values()]


@pytest.mark.a_few("block_scale_dequantize-FP6_E3M2", "reduction-UINT8", "resample_fwd-INT8")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("row", "dtype"),
    [pytest.param(row, dtype, id=f"{'-'.join(filter(None, row))}-{dtype.name}",
                  marks=() if (row[0], dtype.name) in _SAMPLE else pytest.mark.slow) for row, dtype in served()],
)  # fmt: skip
def test_what_is_served_runs_on_the_cpu_and_is_right(row: Row, dtype: DataType) -> None:
    made = first(row, dtype)
    for target in TARGETS:
        assert support(made, Target.parse(target)).ok
    inputs = made.random_inputs(seed=0)
    results = {tensor: tensor.memory() for tensor in made.arguments().outputs}
    build(made, "cpu").run({**inputs, **results})
    exact = numerics.evaluate(made, inputs)
    for tensor, stored in results.items():
        expected, got = exact.values[tensor], tensor.unpack(stored) if tensor.data_type.is_packed else stored
        if tensor.data_type.is_integer:  # what a type of integers does not hold has no meaning
            info = ml_dtypes.iinfo(tensor.data_type.numpy)
            got = np.where((expected >= info.min) & (expected <= info.max), got, expected)
        assert (found := numerics.compare(tensor, got, expected, exact.errors[tensor])).ok, str(found)
