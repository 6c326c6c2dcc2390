"""``fusilli bench --suite gpu``: both sides compute what the reference does; the plumbing, on the CPU."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fusilli_plugin.bench import on_device
from fusilli_plugin.bench.graphs import GraphRow, find_graph, gfx_rows, gpu_rows
from fusilli_plugin.cli.main import cli
from graph_api import DataType, Graph
from iree_bridge import Target, support
from iree_bridge.artifact.vectors import make_inputs, make_vector

GPU = {row.name: row for row in gpu_rows()}
GFX = {row.name: row for row in gfx_rows()}
QUICK = [
    "product f16 24 of 128x64x128 rr", "fprop f16 nhwc 2x64x56x56, 256 of 1x1", "layer norm f16 512x4096",
    "batch norm f16 nhwc 32x64x56x56",
]  # fmt: skip


def test_rows_have_names_of_their_own_and_are_served() -> None:
    for rows, make in ((GPU, gpu_rows), (GFX, gfx_rows)):
        assert len(rows) == len(list(make()))
    for name, row in (GPU | GFX).items():
        assert find_graph(name).name == row.name
        assert support(row.graph(), Target.parse("gfx942")).ok, name
    with pytest.raises(LookupError, match="no suite has a row 'x'"):
        find_graph("x")


def in_pytorch(row: GraphRow) -> None:
    """PyTorch's f32 results beside the float64 reference, each element within the bound of the graph's 16 bits."""
    torch = pytest.importorskip("torch")
    assert row.torch is not None
    graph = row.graph()
    vector = make_vector(graph)
    assert not isinstance(vector, str), vector
    arrays = make_inputs(graph, 0)
    given = []
    for tensor in graph.arguments().inputs:
        wide = np.zeros_like(arrays[tensor], np.float32)  # zeros_like keeps the order of the dims
        wide[...] = arrays[tensor]
        given.append(torch.from_numpy(wide))
    result = row.torch(torch, row.prepare(given)).numpy()
    y = graph.arguments().outputs[0]
    (found,) = vector.check(graph, {y.uid: result})
    assert found.ok, str(found)


@pytest.mark.a_few(
    "product f16 24 of 128x64x128 rr", "fprop f16 nhwc 2x64x56x56, 256 of 1x1", "layer norm f16 512x4096"
)
@pytest.mark.parametrize("name", QUICK)
def test_a_row_is_the_same_in_pytorch(name: str) -> None:
    in_pytorch(GPU[name])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in (GPU | GFX) if name not in QUICK])
def test_every_row_is_the_same_in_pytorch(name: str) -> None:
    row = (GPU | GFX)[name]
    if row.torch is None or row.graph().flops() > 4e9 or "bf16" in name or "int8" in name:
        pytest.skip("no reference that anybody can afford, or no operation of PyTorch's")
    in_pytorch(row)


def small(monkeypatch: pytest.MonkeyPatch, dtype: DataType) -> Graph:
    g = Graph("small", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    g.matmul(g.tensor("a", dim=(6, 8)), g.tensor("b", dim=(8, 4), stride=(1, 8))).set_output(True)
    row = GraphRow("small", find_graph("add f16 16").kind, lambda: g, lambda torch, given: given[0] @ given[1])
    monkeypatch.setattr(on_device, "find_graph", lambda name: row)
    return g.validate()


@pytest.mark.a_few("DataType.BFLOAT16")
@pytest.mark.mlir
@pytest.mark.iree_cpu
@pytest.mark.parametrize("dtype", [DataType.HALF, DataType.BFLOAT16])
def test_both_sides_on_the_cpu(dtype: DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    graph = small(monkeypatch, dtype)
    a, b = make_inputs(graph, 0).values()
    expected = a.astype(np.float64) @ b.astype(np.float64)
    with ExitStack() as end:
        mine = on_device.ours("small", "cpu", end)
        mine.run()
        (got,) = mine.results()
    assert (mine.verdict, mine.wrong) == ("right", "")
    theirs = on_device.in_torch("small", "cpu", 1)
    theirs.run()
    (other,) = theirs.results()
    for result in (got, other):
        np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.mlir
@pytest.mark.iree_cpu
def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small(monkeypatch, DataType.FLOAT)
    load = on_device.load_code

    class Wrong:
        def __init__(self, executable: Any) -> None:
            self.bind_pointers = executable.bind_pointers
            self._run = executable.run

        def run(self, pack: Any) -> None:
            self._run(pack)
            next(array for tensor, array in pack.items() if tensor in graph.arguments().outputs)[5, 3] += 0.01

    def broken(*given: Any) -> tuple[Any, Any]:
        executable, code = load(*given)
        return Wrong(executable), code

    monkeypatch.setattr(on_device, "load_code", broken)
    with ExitStack() as end:
        found = on_device.ours("small", "cpu", end)
    assert found.verdict == "wrong"
    assert "[5, 3]" in found.wrong


@pytest.mark.thorough
@pytest.mark.mlir
@pytest.mark.iree_cpu
def test_the_suite_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    arguments = ["--device", "cpu", "--filter", "layer norm f16 512x4096", "--rounds", "1", "--json", str(file)]
    done = CliRunner().invoke(cli, ["bench", "--suite", "gpu", *arguments])
    assert done.exit_code == 0, done.output
    document = json.loads(file.read_text())
    call, row = document["rows"]
    assert (call["name"], row["name"]) == ("add f16 16", "layer norm f16 512x4096")
    assert (call["verdict"], row["verdict"], row["kind"], row["threads"]) == ("right", "right", "norm", 0)
    assert call["ours_ms"] > 0
    assert document["summary"]["wrong rows, on the device"] == 0
    assert document["about"]["device"] == "cpu"


def test_the_device_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSILLI_DEVICE", "cuda:76")
    done = CliRunner().invoke(cli, ["bench", "--suite", "gpu"])
    assert done.exit_code != 0
    assert "cuda" in done.output.lower()


def test_a_device_that_is_not_there() -> None:
    done = CliRunner().invoke(cli, ["bench", "--suite", "gpu", "--device", "cuda:77"])
    assert done.exit_code != 0
    assert "cuda" in done.output.lower()
