"""Barriers keep kernels apart and nothing else: no execution waits for the device or allocates memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusilli_plugin.testing.graphs import graph as random_graph
from graph_api import DataType, Graph
from iree_bridge import Options, Target, build, support
from iree_bridge.compile import compiler, reproducer
from iree_bridge.targets.barriers import BARRIER, is_behind_cut
from tests.support.golden_graphs import GRAPHS

GFX = Target.parse("gfx942")
CPU = Target.parse("cpu")


def filter_gradient() -> Graph:
    g = Graph("filters", io_data_type=DataType.FLOAT)
    dy, x = g.tensor("dy", dim=(2, 16, 12, 12)), g.tensor("x", dim=(2, 16, 12, 12))
    g.conv_wgrad(dy, x, padding=1).set_dim((16, 16, 3, 3)).set_output(True)
    return g.validate()


def scheduled(graph: Graph, target: Target) -> str:
    """What is done when the code is called, in the compiler's words."""
    emitted = compiler.given(graph, target, Options.from_env())
    assert emitted.ir is not None
    assert is_behind_cut(emitted.ir, "stream")
    text = compiler.lower(emitted.ir, target, "stream")
    assert BARRIER not in text
    return re.split(r"@main\$async\(", text)[1].split("util.func")[0]


@pytest.mark.parametrize(
    ("graph", "target"),
    [
        (filter_gradient, CPU),
        (GRAPHS["layernorm_backward_f16"], GFX),
        (GRAPHS["batchnorm_training_f32_nchw"], GFX),
        (GRAPHS["relu_wgrad_dbias_f16_nhwc"], GFX),
    ],
    ids=["filter gradient-cpu", "norm-gfx942", "batchnorm-gfx942", "relu and filter gradient-gfx942"],
)
def test_an_execution_is_one_submission_that_waits_for_nothing(graph: Callable[[], Graph], target: Target) -> None:
    text = scheduled(graph().validate(), target)
    assert text.count("stream.cmd.execute") == 1
    assert "stream.timepoint.await" not in text
    assert "stream.resource.alloca" not in text


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["cpu", "gfx942"])
def test_random_graphs_wait_for_nothing(target: str) -> None:
    place, found = Target.parse(target), 0
    for seed in range(40):
        graph = random_graph(seed)
        if not support(graph, place).ok:
            continue
        emitted = compiler.given(graph, place, Options.from_env())
        if is_behind_cut(emitted.ir or "", None):
            assert "timepoint.await" not in scheduled(graph, place), seed
            found += 1
    assert found >= 8


def test_kernels_are_cut_with_the_barriers() -> None:
    emitted = compiler.given(filter_gradient(), CPU, Options.from_env())
    assert emitted.ir is not None
    assert BARRIER in compiler.lower(emitted.ir, CPU, "flow")


def test_such_code_takes_its_memory_from_the_workspace() -> None:
    assert build(filter_gradient(), "cpu-sync").workspace_size > 4 * 16 * 16 * 9  # of sums, at least


def test_the_command_line_of_a_reproducer_does_the_same(tmp_path: Path) -> None:
    given = compiler.given(filter_gradient(), CPU, Options.from_env())
    reproducer.write(tmp_path, given)
    made = tmp_path / "module.vmfb"
    tools = Path(sys.executable).parent
    command = (tmp_path / "command.txt").read_text("utf-8")
    assert command.count("|") == 2
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, env={"PATH": f"{tools}:/usr/bin:/bin"}, check=True)
    shown = subprocess.run([tools / "iree-dump-module", "--output=metadata", made], capture_output=True, check=True)
    sizes = re.findall(rb"transients.size.constant: (\d+)", shown.stdout)
    assert sizes == [str(build(filter_gradient(), "cpu-sync").workspace_size).encode()]
