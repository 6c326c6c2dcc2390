"""Recorded launches against those of IREE's driver, on a stand-in for the HIP runtime that writes down every call."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from graph_api import Graph
from iree_bridge import Options, Target, support
from iree_bridge.compile.compiler import compile_code
from tests.cases import all_cases
from tests.support.golden_graphs import GRAPHS
from tests.support.standin_hip import standin

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu]

ROOT = Path(__file__).resolve().parents[4]
TARGET = Target.parse("gfx942")
SAMPLE = ("conv_bias_relu_f16_nhwc", "wgrad_f16_nchw", "layernorm_f16")


def compare(folder: Path, graphs: Iterable[tuple[str, Graph]]) -> list[str]:
    """Compiles the graphs, and lets a process launch each both ways; which of them could not be recorded."""
    library = standin.build(folder / "hip")
    pairs = folder / "pairs"
    pairs.mkdir()
    for name, graph in graphs:
        graph.validate()
        code = compile_code(graph, TARGET, Options.from_env())
        (pairs / f"{name}.vmfb").write_bytes(code.vmfb)
        (pairs / f"{name}.json").write_text(graph.to_json())
    command = [sys.executable, "-m", "tests.support.standin_hip.scenarios", "same_calls", str(library), str(pairs)]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert done.stdout.endswith("fine\n")
    told = re.search(r"^unrecordable (\[.*?\]) kinds", done.stdout, re.MULTILINE)
    assert told is not None, done.stdout
    return ast.literal_eval(told[1])


@pytest.mark.parametrize("names", [SAMPLE[:1], pytest.param(SAMPLE, marks=pytest.mark.thorough)], ids=["one", "some"])
def test_of_a_sample(tmp_path: Path, names: Sequence[str]) -> None:
    assert compare(tmp_path, [(name, GRAPHS[name]()) for name in names]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_all_watched_graphs(tmp_path: Path) -> None:
    assert compare(tmp_path, [(name, build()) for name, build in GRAPHS.items()]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_cases_of_all_families(tmp_path: Path) -> None:
    cases = {f"{family}-{case.name}": case.build().validate() for family, case in all_cases()[::9]}
    served = {name: graph for name, graph in cases.items() if support(graph, TARGET)}
    assert len(served) > 30
    left = compare(tmp_path, served.items())
    # Code with tensor constants goes to IREE's driver; most graphs have none.
    assert len(left) * 20 < len(served), left
