"""Settings of production, through the C functions: what is claimed, never compiling, checking code before it serves.

With them the limits of the old provider that no other file here has a test for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import import_graph
from graph_api import ConvolutionMode, DataType, Graph, PointwiseMode
from hipdnn_backend.wire import EngineConfig, decode_graph, encode_graph
from hipdnn_backend.wire.json import graph_to_json
from tests.fusilli_plugin.plugin.hosting import GRAPHS, Case, Session, make_case
from tests.fusilli_plugin.plugin.shapes import conv, wire_bytes

pytestmark = pytest.mark.iree_cpu
CONV = (GRAPHS / "conv_bias_relu.bin").read_bytes()
RELU = (GRAPHS / "pw_relu.bin").read_bytes()


def rules(folder: Path, *lines: dict[str, object], default: str = "all") -> str:
    path = folder / "claims.json"
    path.write_text(json.dumps({"default": default, "rules": lines}))
    return str(path)


def test_a_file_of_rules_bounds_what_is_claimed(session: Session, tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(CONV)
    (tmp_path / "1.bin").write_bytes(RELU)
    claims = rules(tmp_path, {"op": "conv_*", "dtype": "FLOAT", "target": "cpu", "claim": False})
    said = session.run("applies", tmp_path, 2, FUSILLI_CLAIM=claims)
    assert re.search(r"^no .*a rule of FUSILLI_CLAIM leaves conv_fprop to others", said, re.MULTILINE)
    assert re.search(r"^yes", said, re.MULTILINE)
    claims = rules(tmp_path, {"op": "conv_*", "claim": True}, {"op": "pointwise", "claim": True}, default="off")
    assert session.run("applies", tmp_path, 2, FUSILLI_CLAIM=claims).count("yes") == 2


@pytest.mark.parametrize(("policy", "answers"), [("off", "nn"), ("fallback", "yy"), ("all", "yy"), ("", "yy")])
def test_policies(session: Session, tmp_path: Path, policy: str, answers: str) -> None:
    """On the CPU the default is everything; on a GPU it depends on the self-test, see test_hip. We are alone here."""
    (tmp_path / "0.bin").write_bytes(CONV)
    (tmp_path / "1.bin").write_bytes(RELU)
    said = session.run("applies", tmp_path, 2, FUSILLI_CLAIM=policy)
    assert "".join(re.findall(r"^(y|n)(?:es|o)\b", said, re.MULTILINE)) == answers


def test_a_cache_that_was_warmed_elsewhere_is_enough(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logged graphs are compiled on one machine; on the other nothing compiles, and what is not there is declined."""
    logged, warm, own = tmp_path / "logged", tmp_path / "warm", tmp_path / "own"
    logged.mkdir()
    for folder in (warm, own):
        folder.mkdir(mode=0o700)
    (logged / "graph_1.json").write_text(graph_to_json(decode_graph(RELU)))
    # In a process of its own: this one may have been told that its processor is another one than that of the plugin.
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(warm))
    command = [sys.executable, "-m", "fusilli_plugin", "warm", "--from", str(logged), "--target", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    session.cache = own
    never: dict[str, Any] = {"FUSILLI_COMPILE": "never", "FUSILLI_CACHE_READONLY": str(warm)}
    case = make_case(tmp_path / "relu", RELU)
    done_there = session.start("walk", case.folder, **never)
    assert done_there.returncode == 0, done_there.stderr
    assert "compiling" not in done_there.stderr
    assert case.wrong() == []
    assert "not in the cache" in session.run("declined", make_case(tmp_path / "conv", CONV).folder, **never)


def test_code_is_checked_before_it_serves(session: Session, tmp_path: Path, cold_cache: Path) -> None:
    session.cache = cold_cache
    case = make_case(tmp_path / "relu", RELU)
    for _ in range(2):
        session.run("walk", case.folder, FUSILLI_VERIFY="first")
        assert len(list((cold_cache / "verified").glob("*.json"))) == 1
    assert case.wrong() == []


# ---- limits of the old provider -------------------------------------------------------------------------------------


def test_it_says_which_api_it_implements(session: Session, tmp_path: Path) -> None:
    """Limit 1: the old one was of the first API version, without engine names and overrides."""
    (tmp_path / "0.bin").write_bytes(RELU)
    said = session.run("applies", tmp_path, 1)
    assert "api 1.4.0" in said
    assert "name FUSILLI_ENGINE" in said
    assert "optional 8" in said


def test_graphs_of_one_name_do_not_displace_each_other(session: Session) -> None:
    """Limit 8: the old cache was keyed by the graph's name."""
    session.warm(RELU)
    other = decode_graph((GRAPHS / "pw_sigmoid.bin").read_bytes()).replace(name=decode_graph(RELU).name)
    engine = FusilliEngine("cpu")
    config = EngineConfig(engine_id=engine.id)
    keys = {engine.build(data, config)._built.code.key for data in (RELU, encode_graph(other), RELU)}
    assert len(keys) == 2


def padded() -> Graph:
    """Rows of 8 elements that lie 11 apart, in memory of a host that views a part of a larger tensor."""
    g = Graph("padded", io_data_type=DataType.FLOAT)
    y = g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(4, 8), stride=(11, 1)))
    y.set_output(True).set_stride((13, 1))
    return g.validate()


@pytest.mark.thorough
def test_tensors_with_gaps_are_right(session: Session, tmp_path: Path) -> None:
    """Limit 12: the old one read such tensors as if they were dense. What lies between the rows is not touched."""
    data = wire_bytes(padded())
    session.warm(data)
    case = make_case(tmp_path, data)
    session.run("walk", case.folder)
    assert case.wrong() == []
    (y,) = import_graph(decode_graph(data)).arguments().outputs
    written = np.fromfile(tmp_path / f"{y.uid}.out", np.uint8).view(np.uint32)
    gaps = [written[row * 13 + 8 : row * 13 + 13] for row in range(3)]
    assert (np.concatenate(gaps) == 0xEEEEEEEE).all(), "memory of the host between the rows"


def test_a_mirrored_filter(session: Session, tmp_path: Path) -> None:
    """Limit 2: the old one ignored the mode of a convolution."""
    data = wire_bytes(conv((1, 2, 5, 6), (3, 2, 3, 2), convolution_mode=ConvolutionMode.CONVOLUTION))
    session.warm(data)
    case: Case = make_case(tmp_path, data)
    assert "reference" in session.run("walk", case.folder)
    assert case.wrong() == []
