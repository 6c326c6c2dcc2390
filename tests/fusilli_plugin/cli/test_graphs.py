from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from fusilli_plugin.cli.graphs import load_graph, parse_graph
from graph_api import Graph, GraphError


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
