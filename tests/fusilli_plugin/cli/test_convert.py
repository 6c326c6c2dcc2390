"""``fusilli convert``: every form into every form, all operations; what cannot be said, and which files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fusilli_plugin.engine.importers import Reading, export_graph, import_graph
from graph_api import DataType, Graph, NotSupportedError
from hipdnn_backend.wire import decode_graph, encode_graph
from hipdnn_backend.wire.json import graph_from_json, graph_to_json
from tests.cases import all_cases
from tests.support.cudnn_files import UnwritableError, cudnn_document, in_32_bits, ubjson

Fusilli = Callable[..., Result]


def test_every_form_becomes_every_form(fusilli: Fusilli, add_graph: Graph, tmp_path: Path) -> None:
    wire = export_graph(add_graph)
    sources = {
        "ours": add_graph.to_json().encode(),
        "hipdnn": graph_to_json(wire).encode(),
        "flat": encode_graph(wire),
        "cudnn": json.dumps(cudnn_document(add_graph)).encode(),
        "ubjson": ubjson(cudnn_document(add_graph)),
    }
    for name, data in sources.items():
        source = tmp_path / name
        source.write_bytes(data)
        for form in ("hipdnn", "hipdnn-binary", "fusilli"):
            target = tmp_path / f"{name}.{form}"
            result = fusilli("convert", source, target, "--to", form)
            assert (result.exit_code, result.output) == (0, ""), (name, form)
            assert Graph.of(target).canonical_json() == add_graph.canonical_json()


def test_hipdnn_is_what_is_written(fusilli: Fusilli, add_graph: Graph, add_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    assert fusilli("convert", add_file, target).exit_code == 0
    assert graph_from_json(target.read_bytes()) == export_graph(add_graph)
    printed = fusilli("convert", add_file, "-")
    assert printed.output == target.read_text()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["fast", "all"])
def test_all_operations_come_back_from_hipdnns_json(every: bool) -> None:
    """Through the text, and through cuDNN's words where it has them; what hipDNN has no word for says so."""
    operations, declined, through_cudnn = set(), [], 0
    for case in (case for _, case in all_cases() if every or case.fast):
        graph = case.graph()
        try:
            text = graph_to_json(export_graph(graph))
        except NotSupportedError as error:
            declined.append(error.rule)
            continue
        back = import_graph(graph_from_json(text), Reading(newest_dtypes=True))
        assert in_32_bits(back, "attn_scale_value") == in_32_bits(graph, "attn_scale_value"), case.name
        operations |= {node.op for node in graph.nodes}
        try:
            document = cudnn_document(graph)
        except UnwritableError:
            continue
        of_cudnn = Graph.from_cudnn(json.dumps(document))
        again = import_graph(graph_from_json(graph_to_json(export_graph(of_cudnn))), Reading(newest_dtypes=True))
        assert in_32_bits(again, "attn_scale_value") == in_32_bits(of_cudnn, "attn_scale_value"), case.name
        through_cudnn += 1
    assert len(operations) == 23
    assert set(declined) <= {"dsink_token", "dtype", "scalar"}
    assert through_cudnn > (1900 if every else 100)


@pytest.mark.thorough
@pytest.mark.mlir
@pytest.mark.iree_cpu
@pytest.mark.parametrize("form", ["text", "bytes"])
def test_every_command_reads_cudnns_files(fusilli: Fusilli, add_graph: Graph, tmp_path: Path, form: str) -> None:
    document, source = cudnn_document(add_graph), tmp_path / "graph"
    source.write_bytes(json.dumps(document).encode() if form == "text" else ubjson(document))
    saved, results = tmp_path / "graph.fusilli", tmp_path / "out.npz"
    for arguments, printed in (
        (("run", source, "--device", "cpu", "--check", "--outputs", results), "yes"),
        (("explain", source, "--target", "cpu"), "FUSILLI_ENGINE"),
        (("inspect", source, "--target", "cpu"), "cpu"),
        (("compile", source, "--target", "cpu", "-o", saved), "cpu"),
        (("warm", "--from", source, "--target", "cpu"), "1 of 1 done"),
        (("run", saved, "--device", "cpu", "--check"), "yes"),
    ):
        result = fusilli(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
        assert printed in result.output, (arguments, result.output)
    assert results.exists()
    assert fusilli("reduce", source, "--device", "cpu", "-o", tmp_path / "small").exit_code == 1, "it does not fail"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"tag": "GRAPH", "nodes": [{"tag": "SLICE", "name": "cut"}], "tensors": {}}',
            "node 'cut'.*SLICE is not served",
        ),
        ('{"cudnn_frontend_version": 12300, "nodes": null}', "has no nodes"),
        ('{"nodes": [{"tag": "CONV"}]}', r"nodes\[0\] \(CONV\): tag: operation 'CONV' is unknown"),
        ("nothing", "this is no graph in a known format"),
    ],
)
def test_what_is_no_graph_is_refused(fusilli: Fusilli, tmp_path: Path, text: str, message: str) -> None:
    source = tmp_path / "in"
    source.write_text(text)
    result = fusilli("convert", source, tmp_path / "out")
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert re.search(message, " ".join(result.output.split())), result.output


def test_what_hipdnn_cannot_say_is_refused(fusilli: Fusilli, tmp_path: Path) -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    q, stats = g.tensor("q", dim=(1, 1, 4, 8)), g.tensor("stats", dim=(1, 1, 4, 1))
    sink = g.tensor("sink", dim=(1, 1, 1, 1))
    gradient = g.tensor("dsink", dim=(1, 1, 1, 1))
    for tensor in g.sdpa_backward(q, q, q, q, q, stats, sink_token=sink, dsink_token=gradient):
        tensor.set_output()
    (tmp_path / "in").write_text(g.validate().to_json())
    result = fusilli("convert", tmp_path / "in", tmp_path / "out")
    assert result.exit_code == 2
    assert "no gradient of a sink" in " ".join(result.output.split())


def test_the_source_is_not_written_over(fusilli: Fusilli, add_file: Path) -> None:
    before = add_file.read_bytes()
    result = fusilli("convert", add_file, add_file)
    assert result.exit_code == 2
    assert "is a file that this command reads" in " ".join(result.output.split())
    assert add_file.read_bytes() == before


def test_bytes_go_to_standard_output(add_graph: Graph, add_file: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "fusilli_plugin", "convert", str(add_file), "-", "--to", "hipdnn-binary"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert decode_graph(made.stdout) == export_graph(add_graph)
