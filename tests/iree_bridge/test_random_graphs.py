"""Random graphs on the CPU: supported means that it compiles, runs and is right; failures shrink to a graph JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from fusilli_plugin.testing.graphs import graph, inputs
from fusilli_plugin.testing.graphs.chains import MAX_NODES
from fusilli_plugin.testing.strategies import graphs
from graph_api import FusilliError, Graph, numerics
from iree_bridge import Target, build, support

_FEW, _FAST, _SLOW = 3, 7, 50
_BATCHES = [
    pytest.param(0, _FEW, id="few"),
    *(pytest.param(batch, _FAST, id=f"fast-{batch}", marks=pytest.mark.thorough) for batch in range(2)),
    *(pytest.param(batch, _SLOW, id=f"slow-{batch}", marks=pytest.mark.slow) for batch in range(2, 10)),
]


def complaint(graph: Graph) -> str:
    """What is wrong with the code of a graph that the CPU target serves; empty if nothing is."""
    pack = inputs(graph, 5)
    results = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    try:
        build(graph, "cpu").run({**pack, **results})
    except FusilliError as error:
        return f"{type(error).__name__}: {error}"
    return "\n".join(str(result) for result in numerics.check(graph, pack, results) if not result.ok)


def search(judge: Callable[[Graph], str], path: Path, *, number: int, examples: int) -> None:
    """Fails with the smallest graph that ``judge`` complains of, written to ``path``.

    Which graphs are tried depends on ``number`` alone.
    """

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
    )
    @given(graphs(families=("chain",)))
    def try_one(graph: Graph) -> None:
        if problem := judge(graph):
            path.write_text(graph.to_json(), encoding="utf-8")  # the smallest is tried again, and written, last
            raise AssertionError(f"{problem}\n{graph.describe()}\nwritten to {path}")

    try_one()


@pytest.mark.iree_cpu
@pytest.mark.timeout(1800)  # shrinking compiles a few hundred graphs
@pytest.mark.parametrize(("batch", "examples"), _BATCHES)
def test_supported_means_right(batch: int, examples: int, tmp_path: Path) -> None:
    target = Target.parse("cpu")
    served: list[bool] = []

    def judge(graph: Graph) -> str:
        served.append(support(graph, target).ok)
        return complaint(graph) if served[-1] else ""

    search(judge, tmp_path / "graph.json", number=batch, examples=examples)
    assert sum(served) > 0.8 * examples


@pytest.mark.a_few("1", "2")
@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    "number", [*range(5), 42, *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 105) if n != 42)]
)
def test_images_with_several_readers(number: int) -> None:
    assert not complaint(graph(number, "shared image"))


@pytest.mark.thorough
def test_a_failure_is_shrunk_and_written(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"

    def judge(graph: Graph) -> str:
        return "it pools" if any(node.op == "resample_fwd" for node in graph.nodes) else ""

    with pytest.raises(AssertionError, match=f"(?s)it pools.*written to {path}"):
        search(judge, path, number=0, examples=150)
    graph = Graph.from_json(path.read_bytes())
    assert [node.op for node in graph.nodes] == ["resample_fwd"]
    assert graph.tensors[0].volume == 1


def test_the_graphs_are_small_mixed_and_the_same_each_time() -> None:
    runs: list[list[str]] = []
    for _ in range(2):
        seen: list[Graph] = []

        def judge(graph: Graph, seen: list[Graph] = seen) -> str:
            seen.append(graph)
            return ""

        search(judge, Path("unused"), number=3, examples=40)
        assert all(1 <= len(graph.nodes) <= MAX_NODES for graph in seen)
        assert len({node.op for graph in seen for node in graph.nodes}) >= 9
        assert len({tensor.data_type for graph in seen for tensor in graph.tensors}) >= 7
        runs.append([graph.to_json() for graph in seen])
    assert runs[0] == runs[1]
