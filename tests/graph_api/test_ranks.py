"""A tensor of any rank in any place of any operation: the graph is valid, or its error says why it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from graph_api import Graph, GraphError
from graph_api.layout import packed_strides
from iree_bridge import Target, support
from tests.cases import all_cases

DIMS = ([], [1], [3, 2], [2, 3, 4], [2, 3, 4, 5], [1, 2, 1, 2, 3], [2, 1, 2, 1, 2, 1])


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """A graph of each combination of operations and operands in the case tables, as JSON."""
    seen = set[object]()
    for family, case in all_cases():
        try:
            graph = case.graph()
        except GraphError:
            continue
        document = json.loads(graph.to_json())
        key = tuple((n["op"], *sorted(n["inputs"]), "", *sorted(n["outputs"])) for n in document["nodes"])
        if key not in seen:
            seen.add(key)
            yield f"{family}-{case.name}", document


@pytest.mark.a_few("[3, 2]")
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_a_tensor_of_another_rank(dims: list[int]) -> None:
    targets = [Target.parse(name) for name in ("cpu", "gfx942")]
    counts = {"valid": 0, "refused": 0}
    for name, document in documents():
        for tensor in document["tensors"]:
            kept = tensor["dims"], tensor["strides"]
            tensor["dims"], tensor["strides"] = dims, list(packed_strides(dims))
            try:
                graph = Graph.from_json(json.dumps(document)).validate()
                for target in targets:
                    support(graph, target)
                counts["valid"] += 1
            except GraphError:
                counts["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{name}, tensor '{tensor['name']}' with dims {dims}") from error
            tensor["dims"], tensor["strides"] = kept
    assert counts["refused"] > 300
