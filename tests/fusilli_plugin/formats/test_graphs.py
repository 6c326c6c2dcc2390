from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fusilli_plugin.engine.importers import export_graph
from fusilli_plugin.formats.graphs import load_graph, load_wire_graph, parse_graph
from graph_api import DataType, Graph, GraphError, PointwiseMode
from hipdnn_backend.wire import encode_graph
from hipdnn_backend.wire.json import graph_to_json
from iree_bridge import Target, build, compile_graph
from tests.cases import all_cases
from tests.support.cudnn_files import UnwritableError, cudnn_document, ubjson
from tests.support.damage import changed_bytes, document


def test_our_json_is_read(add_graph: Graph, add_file: Path) -> None:
    assert load_graph(add_file).to_json() == add_graph.to_json()


def test_white_space_before_json_does_not_matter(add_graph: Graph) -> None:
    data = b"\n  " + add_graph.to_json().encode()
    assert parse_graph(data, "f").to_json() == add_graph.to_json()


def test_a_byte_order_mark_does_not_matter(add_graph: Graph) -> None:
    data = b"\xef\xbb\xbf" + add_graph.to_json().encode()
    assert parse_graph(data, "f").to_json() == add_graph.to_json()


def test_standard_input_is_a_dash(add_graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(add_graph.to_json().encode())))
    assert load_graph(Path("-")).name == "add_relu"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no graph in a known format"),
        (b"\x00\x01binary", r"known format \(.*\); it is something binary$"),
        (b"", "it is empty$"),
        ("# Größe".encode(), "it starts with '# Größe'$"),
        (b"hello\nworld and more", r"it starts with 'hello\\nworld and '$"),
        (b"[1]", "no graph in a known format"),
        (b"{", "not JSON"),
        (b"{}", "has no nodes"),
        (b'{"format": "fusilli-graph", "version": 99}', "version 99"),
        (b"\xff{", "no graph in a known format"),
    ],
)
def test_other_content_is_refused_with_its_source(data: bytes, message: str) -> None:
    with pytest.raises(GraphError, match=message) as raised:
        parse_graph(data, "some.file")
    assert str(raised.value).startswith("some.file: ")


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(80 << 20)
    with pytest.raises(GraphError, match="64 MiB or more"):
        load_graph(path)


# ---- other front ends -------------------------------------------------------------------------------------------


class HipdnnGraph:
    """What ``hipdnn_frontend.Graph`` has of serialisation; the package itself is not on PyPI."""

    def __init__(self, graph: Graph | None) -> None:
        self.graph = graph

    def to_binary(self) -> bytes:
        if self.graph is None:
            raise RuntimeError("Graph has not been validated")
        return encode_graph(export_graph(self.graph))

    def from_binary(self, data: bytes) -> None:
        raise AssertionError("nobody asks for it")


class CudnnGraph:
    """What ``cudnn.pygraph`` has of serialisation; its wheel needs an NVIDIA library."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def build_operation_graph(self) -> None:
        raise AssertionError("it needs a GPU")

    def serialize(self) -> bytes:
        raise AssertionError("it needs plans")

    def __repr__(self) -> str:
        return json.dumps(cudnn_document(self.graph), indent=4)


def test_graphs_of_other_front_ends_are_read(add_graph: Graph, add_file: Path) -> None:
    wanted = add_graph.canonical_json()
    text = add_graph.to_json()
    sources: list[object] = [
        add_graph, HipdnnGraph(add_graph), CudnnGraph(add_graph), text, text.encode(), bytearray(text.encode()),
        add_file, repr(CudnnGraph(add_graph)), HipdnnGraph(add_graph).to_binary(), ubjson(cudnn_document(add_graph)),
    ]  # fmt: skip
    for source in sources:
        assert Graph.of(source).canonical_json() == wanted


@pytest.mark.mlir
@pytest.mark.iree_cpu
def test_build_takes_them(add_graph: Graph) -> None:
    a, b = np.array([[1, -2, 3], [4, 5, -6]], np.float32), np.ones((2, 3), np.float32)
    for source in (HipdnnGraph(add_graph), CudnnGraph(add_graph), add_graph.to_json()):
        assert build(source, "cpu")(a, b).tolist() == [[2.0, 0.0, 4.0], [5.0, 6.0, 0.0]]
    artifact = compile_graph(HipdnnGraph(add_graph), [Target.parse("cpu")])
    assert artifact.on("cpu")(a, b).tolist() == [[2.0, 0.0, 4.0], [5.0, 6.0, 0.0]]


class Opaque:
    pass


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Opaque(), r"expected a graph, got .*test_graphs\.Opaque; readers are fusilli"),
        (None, "expected a graph, got builtins.NoneType"),
        (HipdnnGraph(None), "HipdnnGraph: it cannot be serialised: Graph has not been validated"),
        ("graph.json", "this is no graph in a known format .*; it starts with 'graph.json'"),
        (b"", "it is empty"),
    ],
)
def test_what_is_no_graph_is_refused(source: object, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.of(source)


def test_a_reader_that_serialises_to_something_else_is_named() -> None:
    odd = HipdnnGraph(None)
    odd.to_binary = lambda: 5  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(GraphError, match="HipdnnGraph: its serialised form is int, expected text or bytes"):
        Graph.of(odd)


def test_a_file_of_cudnn_is_the_graph_in_hipdnns_words(add_graph: Graph, tmp_path: Path) -> None:
    """Names of tensors that contain what the forms are told by do not matter."""
    for name, data in (
        ("text", json.dumps(cudnn_document(add_graph)).encode()),
        ("bytes", ubjson(cudnn_document(add_graph))),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert load_graph(path).canonical_json() == add_graph.canonical_json()
        assert load_wire_graph(path) == encode_graph(export_graph(add_graph))


def test_a_tensor_may_be_called_like_a_key_of_cudnn() -> None:
    g = Graph("tag", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.NEG, g.tensor("tag", dim=(2,)), name="cudnn_frontend_version").set_output().set_name("y")
    for data in (g.to_json(), graph_to_json(export_graph(g))):
        assert Graph.of(data).canonical_json() == g.canonical_json()


def test_damage_of_any_form_is_a_graph_error() -> None:
    """Files of all operations in all forms, cut, changed as bytes and as documents."""
    source = random.Random(3)
    by_operation: dict[str, Graph] = {}
    for _, case in all_cases():
        graph = case.graph()
        for node in graph.nodes:
            by_operation.setdefault(node.op, graph)
    refused = 0
    for graph in by_operation.values():
        texts, binaries = [graph.to_json().encode(), graph_to_json(export_graph(graph)).encode()], list[bytes]()
        binaries.append(encode_graph(export_graph(graph)))
        with contextlib.suppress(UnwritableError):
            texts.append(json.dumps(cudnn_document(graph)).encode())
            binaries.append(ubjson(cudnn_document(graph)))
        damaged = [document(source, text) for text in texts for _ in range(12)]
        damaged += [changed_bytes(source, data) for data in texts + binaries for _ in range(8)]
        damaged += [data[: source.randrange(len(data))] for data in texts + binaries for _ in range(3)]
        for data in damaged:
            try:
                parse_graph(data, "file")
            except GraphError as error:
                refused += 1
                assert str(error).startswith("file: ")  # noqa: PT017 - not each is refused
    assert len(by_operation) == 23
    assert refused > 1000
