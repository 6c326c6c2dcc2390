"""What a plugin shares a process with: another plugin, other shapes, threads, children, and the end of Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusilli_plugin.engine.importers import import_graph
from fusilli_plugin.engine.plan import specialise
from graph_api import DataType, Graph, PointwiseMode
from hipdnn_backend.engine import Override
from hipdnn_backend.wire import decode_graph
from tests.fusilli_plugin.plugin.hosting import ROOT, Case, Session, make_case, python_library, write_pack
from tests.fusilli_plugin.plugin.shapes import wire_bytes

pytestmark = pytest.mark.iree_cpu
MakeCase = Callable[[str], Case]


@pytest.fixture(scope="module")
def other_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny plugin, which takes graphs named pw_relu as well."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the other plugin is compiled with cc, which is not here")
    library = tmp_path_factory.mktemp("other") / "libother_plugin.so"
    source = ROOT / "tests" / "hipdnn_backend" / "plugin" / "tiny_plugin.c"
    command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return library


@pytest.mark.parametrize("scope", ["local", "deepbind"])
@pytest.mark.parametrize("order", [0, 1], ids=["after-the-other", "before-the-other"])
def test_beside_another_plugin(session: Session, case: MakeCase, other_plugin: Path, order: int, scope: str) -> None:
    each = case("pw_relu")
    session.run("beside", each.folder, order, scope=scope, HOST_OTHER=str(other_plugin), MALLOC_PERTURB_="165")
    assert each.wrong() == []


# ---- other shapes ---------------------------------------------------------------------------------------------------


def rows(count: int) -> Graph:
    """y = relu(a + b), b a row."""
    g = Graph("rows", io_data_type=DataType.FLOAT)
    y = g.pointwise(
        PointwiseMode.RELU_FWD,
        g.pointwise(PointwiseMode.ADD, g.tensor("a", dim=(count, 8), uid=1), g.tensor("b", dim=(1, 8), uid=2)),
    )
    y.set_output(True).set_uid(3)
    return g.validate()


@pytest.mark.thorough
def test_shapes_that_come_with_an_execution(session: Session, tmp_path: Path) -> None:
    """Each new shape is compiled once, counted and logged; wrong ones are refused and harm nothing."""
    data = wire_bytes(rows(4), is_override_shape_enabled=True)
    session.warm(data)
    make_case(tmp_path, data)
    graph = import_graph(decode_graph(data))
    for number, count in enumerate((6, 1)):
        overrides = {1: Override((count, 8), (8, 1)), 3: Override((count, 8), (1, count))}
        other = specialise(graph, overrides)
        folder = tmp_path / str(number)
        write_pack(folder, other, other.random_inputs(number))
        (folder / "graph.bin").write_bytes(data)
        lines = [f"{uid} 2 {' '.join(map(str, (*o.dims, *o.strides)))}" for uid, o in overrides.items()]
        (folder / "overrides").write_text("\n".join(lines) + "\n")
    done = session.start("overridden", tmp_path, 2, MALLOC_PERTURB_="165")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.findall(r"specialised for other dims, the (\d+)\.", done.stderr) == ["1", "2"]
    assert done.stdout.count("reference") == 6


# ---- many plans, many threads ---------------------------------------------------------------------------------------


def growth(text: str) -> dict[str, int]:
    """What a mode of the host prints about its second half."""
    return {name: int(value) for name, value in re.findall(r"growth_(\w+) (-?\d+)", text)}


def assert_flat(text: str, kib: int) -> None:
    grown = growth(text)
    assert grown["kib"] < kib, text
    assert grown["fds"] <= 0, text
    assert grown["threads"] <= 0, text


@pytest.mark.thorough
def test_a_life_of_many_plans_leaves_nothing_behind(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    assert_flat(session.run("cycles", each.folder, 300), 2048)
    assert each.wrong() == []


def test_eight_threads_with_plans_of_their_own(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    assert_flat(session.run("soak", each.folder, 40), 4096)
    assert each.wrong() == []


@pytest.mark.slow
def test_two_thousand_plans_leave_nothing_behind(
    session: Session, case: MakeCase, record_property: Callable[[str, object], None]
) -> None:
    said = session.run("cycles", case("conv_bias_relu").folder, 2000)
    record_property("soak", said.strip())
    assert_flat(said, 2048)


@pytest.mark.slow
def test_eight_threads_for_long(
    session: Session, case: MakeCase, record_property: Callable[[str, object], None]
) -> None:
    said = session.run("soak", case("conv_bias_relu").folder, 500, MALLOC_PERTURB_="165")
    record_property("soak", said.strip())
    assert_flat(said, 6144)


# ---- children -------------------------------------------------------------------------------------------------------


def test_a_forked_child_executes_and_builds(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    session.run("forked", each.folder)
    assert each.wrong() == []


def test_children_of_a_host_whose_threads_are_busy(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    session.run("fork_busy", each.folder, 12)
    assert each.wrong() == []


def test_a_child_does_without_the_thread_pool(session: Session, case: MakeCase) -> None:
    """Threads do not survive a fork: what ran in the parent's pool runs in the child's only thread."""
    each = case("conv_bias_relu")
    session.run("forked", each.folder, FUSILLI_DEVICE="cpu-task")
    assert each.wrong() == []


# ---- the end of Python ----------------------------------------------------------------------------------------------


def test_plans_destroyed_while_the_process_ends(session: Session, case: MakeCase) -> None:
    each = case("pw_relu")
    session.run("at_exit", each.folder)
    assert each.wrong() == []


@pytest.mark.parametrize("owner", [0, 1], ids=["of-the-host", "of-the-plugin"])
def test_an_interpreter_that_is_finalized(session: Session, case: MakeCase, owner: int) -> None:
    each = case("pw_relu")
    home = {} if owner else {"PYTHONHOME": sys.base_prefix}  # a host that embeds Python says where it is
    library = str(python_library())
    session.run("finalized", each.folder, owner, HOST_LIBPYTHON=library, MALLOC_PERTURB_="165", **home)
    assert each.wrong() == []


# ---- damage ---------------------------------------------------------------------------------------------------------


def assert_survives(session: Session, each: Case, count: int) -> None:
    session.run("fuzz", each.folder, count // 3, MALLOC_PERTURB_="165")
    said = session.run("fuzz", each.folder, count, MALLOC_PERTURB_="165", FUSILLI_COMPILE="late")
    figures = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", said)}
    assert figures["fuzz"] == count
    assert 0 < figures["claimed"] < count
    assert figures["slowest_ms"] < 2000, said


def test_damaged_bytes_from_a_c_host(session: Session, case: MakeCase) -> None:
    assert_survives(session, case("conv_bias_relu"), 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv_bias_relu_nhwc", "bn_training"])
def test_many_damaged_bytes_from_a_c_host(session: Session, case: MakeCase, name: str) -> None:
    assert_survives(session, case(name), 3000)
