"""The pytest plugin in sessions of its own: files, fixtures, expected failures, its cost to those without any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graph_api import DataType, Graph, PointwiseMode

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = "fusilli_plugin.testing.pytest_plugin"

FAULTY = """
import numpy as np
from fusilli_plugin.testing import places

def run(self, graph, inputs):
    found = {t: value.astype(t.data_type.numpy) for t, value in graph.reference(inputs).items()}
    for array in found.values():
        array.flat[0] += {by}
    return found

places.DevicePlace.run = run
"""


def session(folder: Path, *arguments: str, plugin: bool = True) -> subprocess.CompletedProcess[str]:
    """pytest in a folder. The plugin is named, since a source tree has no entry points."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", PLUGIN] if plugin else []
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder),
             "FUSILLI_CACHE_DIR": str(folder / "cache"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


def sum_of(dims: tuple[int, ...], **test: Any) -> str:
    g = Graph("sum", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=dims)
    g.pointwise(PointwiseMode.ADD, g.pointwise(PointwiseMode.NEG, x), x).set_output(True)
    return json.dumps(json.loads(g.validate().to_json()) | ({"test": test} if test else {}))


@pytest.mark.iree_cpu
def test_files_are_tests_and_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "right.graph.json").write_text(sum_of((3, 4), seed=3, tol=2.0))
    (tmp_path / "foreign.graph.json").write_text('{"nodes": []}')
    (tmp_path / "test_fixture.py").write_text(
        "from graph_api import Graph\n"
        "def test_it(fusion_right, fusilli_place):\n"
        f"    assert max(fusion_right(Graph.from_json({sum_of((5,))!r})).values()) <= 1\n"
        "    assert str(fusilli_place) == 'cpu'\n"
    )
    done = session(tmp_path, "--fusilli-device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "PASSED right.graph.json::fusion" in done.stdout


@pytest.mark.a_few("0.0-test3-*", "0.0-test6-*")
@pytest.mark.parametrize(
    ("by", "test", "code", "told"),
    [
        (1.0, {}, 1, "the fused graph and float64 differ: tensor"),
        (1.0, {"upstream": "iree-org/iree#1234"}, 0, "iree-org/iree#1234: graph 'sum' on cpu"),
        (1.0, {"upstream": "iree-org/iree#1234", "on": ["gfx*", "hip*"]}, 1, "the fused graph and float64 differ"),
        (0.0, {"upstream": "iree-org/iree#1234", "on": "cpu"}, 1, "it passes on cpu: iree-org/iree#1234 seems to be"),
        (0.0, {"upstream": "somewhere"}, 1, "an expected failure needs the number of its issue"),
        (0.0, {"sead": 1}, 1, "'test' may have on, seed, tol, upstream"),
        (0.0, {"tol": -1}, 1, "tol=-1 must be positive"),
    ],
)
def test_expected_failures_carry_a_number_and_end(
    by: float, test: dict[str, Any], code: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "some.graph.json").write_text(sum_of((3, 4), **test))
    (tmp_path / "conftest.py").write_text(FAULTY.replace("{by}", str(by)))
    done = session(tmp_path, "--fusilli-device", "cpu")
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout


def test_marked_tests_fail_when_they_begin_to_pass(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n"
        "@pytest.mark.fusilli_upstream('iree-org/iree#1', on='cpu')\n"
        "def test_passes(): pass\n"
        "@pytest.mark.fusilli_upstream('iree-org/iree#2', on='cpu')\n"
        "def test_fails(): assert False\n"
        "@pytest.mark.fusilli_upstream('iree-org/iree#3', on='hip*')\n"
        "def test_elsewhere(): pass\n"
    )
    done = session(tmp_path, "--fusilli-device", "cpu", "--strict-markers")
    assert "[XPASS(strict)] iree-org/iree#1; if this begins to pass, remove the mark" in done.stdout
    assert "1 failed, 1 passed, 1 xfailed" in done.stdout


def test_a_declined_graph_is_skipped_with_the_reason(tmp_path: Path) -> None:
    g = Graph("many", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.NEG, g.tensor("x", dim=(1,) * 9)).set_output(True)
    (tmp_path / "some.graph.json").write_text(g.validate().to_json())
    (tmp_path / "conftest.py").write_text(
        "from fusilli_plugin.testing import places\nplaces.DevicePlace.declines = lambda self, graph: 'nine dims'\n"
    )
    done = session(tmp_path, "--fusilli-device", "cpu")
    assert "graph 'many' is declined on cpu: nine dims" in done.stdout
    assert "1 skipped" in done.stdout


def test_sessions_without_it_load_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    ours = [n for n in sys.modules if n.split('.')[0] in ('fusilli_plugin', 'graph_api', 'iree_bridge')]\n"
        f"    assert sorted(ours) == ['fusilli_plugin', 'fusilli_plugin.testing', {PLUGIN!r}]\n"
        "    assert not {'numpy', 'iree', 'ml_dtypes'} & set(sys.modules)\n"
    )
    done = session(tmp_path)
    assert done.returncode == 0, done.stdout
