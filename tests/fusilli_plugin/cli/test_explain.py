"""``fusilli explain``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from hipdnn_backend.engine import engine_id
from hipdnn_backend.wire import PointwiseAttributes, UnknownAttributes, WireError, decode_graph, encode_graph
from tests.hipdnn_backend.toys import GRAPHS, RELU, tiny_plugin

Fusilli = Callable[..., Result]


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hipDNN, no plugins, no packages, no rules but those of the test."""
    monkeypatch.setenv("HIPDNN_BACKEND_LIBRARY", str(tmp_path / "libhipdnn_backend.so"))
    for name in ("PLUGIN_DIR", "HEUR_POLICY_ORDER", "HEUR_CONFIG_PATH", "HEUR_FALLBACK_ENGINE_ORDER"):
        monkeypatch.delenv(f"HIPDNN_{name}", raising=False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_plugin(tmp_path / "tiny.so")


@pytest.mark.mlir
def test_which_engine_why_and_what_it_became(fusilli: Fusilli, add_file: Path) -> None:
    result = fusilli("explain", add_file, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "graph 'add_relu': FUSILLI_ENGINE is used: no other engine runs the graph" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["FUSILLI_ENGINE", "runs", "it"] in lines
    assert ["cpu", "1", "-", "-", "-", "-", "-"] in lines
    assert "... compiling 'add_relu' for cpu" in result.stderr


@pytest.mark.mlir
def test_a_target_that_is_not_here(fusilli: Fusilli) -> None:
    result = fusilli("explain", GRAPHS / "conv_bias_relu.bin", "--target", "gfx942", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["chosen"], document["compiled"]["target"]) == ("FUSILLI_ENGINE", "gfx942")
    assert document["compiled"]["dispatches"] == 1
    assert document["compiled"]["kernels"][0]["vgprs"] > 0


@pytest.mark.mlir
def test_another_engine_is_chosen(fusilli: Fusilli, tiny: Path, tmp_path: Path) -> None:
    result = fusilli(
        "explain", GRAPHS / "pw_relu.json", "--device", "cpu", "--plugin", tiny, "--preferred", "TINY_ENGINE"
    )
    assert "TINY_ENGINE is used: TINY_ENGINE is the preferred engine" in result.stdout
    assert "what FUSILLI_ENGINE compiles it to" in result.stdout
    wish = tmp_path / "wish.bin"
    wish.write_bytes(encode_graph(decode_graph(RELU).replace(preferred_engine_id=engine_id("TINY_ENGINE"))))
    document = json.loads(fusilli("explain", wish, "--device", "cpu", "--plugin", tiny, "--json").stdout)
    assert (document["chosen"], document["policy"]) == ("TINY_ENGINE", "preferred")


def test_hipdnns_rules_count(fusilli: Fusilli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPDNN_HEUR_FALLBACK_ENGINE_ORDER", "MIOPEN_ENGINE")
    monkeypatch.setenv("FUSILLI_CLAIM", "off")
    graph = GRAPHS / "pw_relu.bin"
    document = json.loads(fusilli("explain", graph, "--device", "cpu", "--plugin", tiny, "--json").stdout)
    assert document["chosen"] is None
    assert document["notes"] == ["HIPDNN_HEUR_FALLBACK_ENGINE_ORDER names none that runs the graph: MIOPEN_ENGINE"]
    ours, other = document["engines"]
    assert (ours["ok"], ours["rule"], ours["reason"]) == (False, "claim", "FUSILLI_CLAIM=off")
    assert (other["ok"], other["origin"]) == (True, str(tiny))
    assert document["compiled"] is None


def test_a_graph_that_nobody_runs(fusilli: Fusilli, tmp_path: Path) -> None:
    graph = json.loads((GRAPHS / "pw_relu.json").read_text())
    for tensor in graph["tensors"]:
        tensor["data_type"] = "double"
    graph["compute_type"], graph["nodes"][0]["attributes"]["operation"] = "double", "SIN"
    path = tmp_path / "sin.json"
    path.write_text(json.dumps(graph))
    result = fusilli("explain", path, "--device", "cpu")
    assert result.exit_code == 1
    assert "graph 'pw_relu': no engine runs the graph" in result.stdout
    assert "declines" in result.stdout


def with_unknown_operation(graph: bytes) -> bytes:
    """The graph with another number in the union of its node, wherever that is in the bytes."""
    for position in (position for position, byte in enumerate(graph) if byte == PointwiseAttributes.TAG):
        changed = graph[:position] + bytes([200]) + graph[position + 1 :]
        try:
            if decode_graph(changed).nodes[0].attributes == UnknownAttributes(tag=200):
                return changed
        except WireError:
            continue
    raise AssertionError


def test_operations_that_we_do_not_know(fusilli: Fusilli, tmp_path: Path) -> None:
    path = tmp_path / "odd.bin"
    path.write_bytes(with_unknown_operation(RELU))
    result = fusilli("explain", path, "--device", "cpu", "--json")
    assert result.exit_code == 1
    (ours,) = json.loads(result.stdout)["engines"]
    assert (ours["ok"], ours["rule"]) == (False, "operation")
    assert ours["reason"] == "operation 200 of the schema is not known"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--device", "cpu", "--target", "gfx942"), "exclude each other"),
        (("--target", "gfx000"), "gfx000"),
        (("--device", "toaster"), "toaster"),
        (("--device", "cpu", "--preferred", "99999999999999999999"), "is no engine id"),
    ],
)
def test_bad_arguments(fusilli: Fusilli, add_file: Path, arguments: tuple[str, ...], complaint: str) -> None:
    result = fusilli("explain", add_file, *arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_damaged_graph(fusilli: Fusilli, tmp_path: Path) -> None:
    path = tmp_path / "graph.bin"
    path.write_bytes(RELU[:100])
    result = fusilli("explain", path, "--device", "cpu")
    assert result.exit_code == 2
    assert f"{path}: " in result.output
