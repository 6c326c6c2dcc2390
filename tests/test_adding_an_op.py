"""An operation of its own in a copy of the packages: new files, one table, and no other line by hand."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import family_lists
from tests.test_architecture import OURS, ROOT

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu]

ADDED = ROOT / "tests/data/added_operation"
TABLE = '''class ToRadiansAttributes(Attributes):
    """Degrees to radians."""

    TAG: ClassVar[int] = 24
    OUTPUTS: ClassVar[tuple[str, ...]] = ("y_tensor_uid",)
    RULE_KEY: ClassVar[RuleKey | None] = RuleKey("to_radians", 30, ("x",))

    x_tensor_uid: I64
    y_tensor_uid: I64


'''
TABLES = "hipdnn_backend/wire/attributes.py"
USE = r"""
import sys

import numpy as np
from onnx import TensorProto, helper

import fusilli_plugin.engine.claim as claim
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph, import_graph
from graph_api import DataType, Graph
from hipdnn_backend import wire
from hipdnn_backend.offload import load
from iree_bridge import Target, build, support

assert claim.__file__.startswith(sys.argv[1]), claim.__file__

graph = Graph("g", io_data_type=DataType.FLOAT)
x = graph.tensor("x", dim=(3, 5))
y = graph.to_radians(x).set_output(True)
graph.validate()
assert support(graph, Target.parse("gfx942"))
again = import_graph(wire.decode_graph(wire.encode_graph(export_graph(graph))))
assert [node.op for node in again.nodes] == ["to_radians"]
assert claim.parse("fallback").decide(again, Target.parse("gfx942"), lambda: False, lambda: True)

degrees = np.linspace(-360, 360, 15, dtype=np.float32).reshape(3, 5)
made = y.empty()
build(graph, device="cpu").run({x: degrees, y: made})
np.testing.assert_allclose(made, np.deg2rad(degrees), rtol=1e-6)

ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 5)) for name in "xz"]
nodes = [helper.make_node("ToRadians", ["x"], ["y"], "turn", domain="angles"), helper.make_node("Sin", ["y"], ["z"])]
opsets = [helper.make_opsetid("", 23), helper.make_opsetid("angles", 1)]
onnx_graph = helper.make_graph(nodes, "angles", ends[:1], ends[1:])
with load(helper.make_model(onnx_graph, opset_imports=opsets, ir_version=10), engines=[FusilliEngine("cpu")]) as model:
    (result,) = model.run({"x": degrees}).values()
    np.testing.assert_allclose(result, np.sin(np.deg2rad(degrees)), atol=1e-6)
    (graph,) = model.about["graphs"].values()
    assert (graph["engine"], graph["custom"]) == ("FUSILLI_ENGINE", False)
    assert graph["operations"] == ["torch.aten.deg2rad", "torch.aten.sin"], "one graph of both"
"""


def _run(folder: Path, *command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder), "FUSILLI_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _different(one: filecmp.dircmp[str], where: str = "") -> set[str]:
    """Files that only one of two folders has, or that differ."""
    found = {f"{where}{name}" for name in (*one.left_only, *one.right_only, *one.diff_files)}
    return found.union(*(_different(inner, f"{where}{name}/") for name, inner in one.subdirs.items()))


def test_an_operation_is_one_file_per_layer(tmp_path: Path) -> None:
    for package in OURS:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests/support", tmp_path / "tests/support", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ADDED, tmp_path, dirs_exist_ok=True)
    tables = (tmp_path / TABLES).read_text(encoding="utf-8")
    tables = tables.replace("ATTRIBUTES: dict", f"{TABLE}ATTRIBUTES: dict")
    tables = tables.replace('    "UnknownAttributes",\n', '    "ToRadiansAttributes",\n    "UnknownAttributes",\n', 1)
    (tmp_path / TABLES).write_text(tables, encoding="utf-8")
    by_hand = {str(path.relative_to(ADDED)) for path in ADDED.rglob("*.py")} | {TABLES}
    assert len(by_hand) == 7

    _run(tmp_path, "-m", family_lists.__name__)
    _run(tmp_path, "-c", USE, str(tmp_path))

    changed: set[str] = set()
    for package in OURS:
        compared = filecmp.dircmp(ROOT / package, tmp_path / package, ignore=["__pycache__"])
        changed |= {f"{package}/{name}" for name in _different(compared)}
    assert changed - by_hand == {"graph_api/ops/__init__.py"}, "what the command wrote"
