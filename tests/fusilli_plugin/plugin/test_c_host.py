"""The plugin in a C program that knows nothing of Python, through the order of calls of hipDNN's backend."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fusilli_plugin.plugin.hosting import GRAPHS, Case, Session, build_plugin, make_case

pytestmark = pytest.mark.iree_cpu
MakeCase = Callable[[str], Case]

SERVED = sorted(path.stem for path in GRAPHS.glob("*.bin"))


@pytest.mark.a_few("conv_bias_relu", "bn_training", "pw_leaky")
@pytest.mark.parametrize("name", SERVED)
def test_the_order_of_calls_of_a_backend(session: Session, case: MakeCase, name: str) -> None:
    each = case(name)
    said = session.run("walk", each.folder)
    assert re.search(r"^reference \d+ elements", said, re.MULTILINE)
    assert re.search(r"^workspace \d+$", said, re.MULTILINE)
    assert each.wrong() == []


@pytest.mark.parametrize("scope", ["local", "deepbind"])
def test_the_flags_of_old_and_new_hosts(session: Session, case: MakeCase, scope: str) -> None:
    each = case("conv_bias_relu")
    session.run("walk", each.folder, 1, scope=scope, MALLOC_PERTURB_="165")
    assert each.wrong() == []


@pytest.mark.parametrize("mode", ["errors", "nulls"])
def test_what_a_host_may_get_wrong_has_a_status_and_a_text(session: Session, case: MakeCase, mode: str) -> None:
    session.run(mode, case("conv_bias_relu").folder, MALLOC_PERTURB_="165")


@pytest.mark.parametrize("count", [1, 8])
def test_first_calls_of_threads_race(session: Session, case: MakeCase, count: int) -> None:
    each = case("conv_bias_relu")
    session.run("threads", each.folder, count, MALLOC_PERTURB_="165")
    assert each.wrong() == []


def test_threads_share_one_cold_compile(session: Session, case: MakeCase, cold_cache: Path) -> None:
    session.cache = cold_cache
    each = case("pw_relu")
    session.run("threads", each.folder, 4)
    assert each.wrong() == []
    assert len(list(cold_cache.rglob("*.bin"))) == 1


def test_being_unloaded_and_loaded_again(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    session.run("reload", each.folder, 3, scope="deepbind")
    assert each.wrong() == []


def test_a_context_belongs_to_no_handle(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    session.run("handles", each.folder, MALLOC_PERTURB_="165")
    assert each.wrong() == []


def test_plans_as_bytes(session: Session, case: MakeCase) -> None:
    each = case("conv_bias_relu")
    session.run("serialized", each.folder, 200)
    assert each.wrong() == []


def test_signals_locale_and_environment_stay_the_hosts(session: Session, case: MakeCase) -> None:
    session.run("alone", case("pw_relu").folder)


@pytest.mark.a_few("reap")
@pytest.mark.parametrize("child", ["ignore", "reap"])
def test_a_cold_compile_where_the_host_does_not_wait_for_children(
    session: Session, case: MakeCase, cold_cache: Path, child: str
) -> None:
    session.cache = cold_cache
    each = case("pw_relu")
    session.run("walk", each.folder, HOST_CHILD=child)
    assert each.wrong() == []


def test_a_cold_compile_with_closed_standard_descriptors(session: Session, case: MakeCase, cold_cache: Path) -> None:
    session.cache = cold_cache
    each = case("pw_relu")
    session.run("walk", each.folder, HOST_CLOSE="1")
    assert each.wrong() == []


def test_a_hostile_environment(session: Session, case: MakeCase) -> None:
    each = case("pw_relu")
    hostile: dict[str, Any] = {
        name: "/nonexistent" for name in ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX")
    }
    hostile |= {"PYTHONINSPECT": "1", "PYTHONMALLOC": "debug", "LC_ALL": "C", "LANG": "xx_YY"}
    session.run("walk", each.folder, **hostile)
    assert each.wrong() == []


@pytest.mark.thorough
def test_a_path_that_is_not_ascii(session: Session, case: MakeCase, tmp_path: Path) -> None:
    plugin = build_plugin(tmp_path / "plügin ☃ folder")
    each = case("pw_relu")
    session.run("walk", each.folder, plugin=plugin, LC_ALL="C")
    assert each.wrong() == []


def test_a_link_to_the_plugin(session: Session, case: MakeCase, tmp_path: Path) -> None:
    link = tmp_path / "engines" / "libfusilli_plugin.so"
    link.parent.mkdir()
    link.symlink_to(session.plugin)
    each = case("pw_relu")
    session.run("walk", each.folder, plugin=link)
    assert each.wrong() == []


def test_a_copy_without_its_sidecar_declines_and_says_why(session: Session, case: MakeCase, tmp_path: Path) -> None:
    copy = tmp_path / "libfusilli_plugin.so"
    shutil.copy(session.plugin, copy)
    said = session.run("declined", case("pw_relu").folder, plugin=copy)
    assert "serves no graph in this process: Python cannot be found" in said


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("libpython = /nonexistent/libpython3.11.so", "libpython cannot be loaded"),
        ("python = /nonexistent/python3", "there is no Python at /nonexistent/python3"),
        ("root = /nonexistent", "/nonexistent/fusilli_plugin/_boot.py"),
        ("version = 3.99", "the plugin is installed for Python 3.99"),
    ],
)
def test_a_sidecar_that_leads_nowhere(session: Session, case: MakeCase, tmp_path: Path, line: str, reason: str) -> None:
    copy = tmp_path / "libfusilli_plugin.so"
    shutil.copy(session.plugin, copy)
    key = line.split(" ", 1)[0]
    lines = session.plugin.with_suffix(".conf").read_text().splitlines()
    kept = [old for old in lines if not old.startswith(f"{key} ")]
    copy.with_suffix(".conf").write_text("\n".join([*kept, line]) + "\n")
    assert reason in session.run("declined", case("pw_relu").folder, plugin=copy)


def test_a_library_of_another_version(session: Session, case: MakeCase, tmp_path: Path) -> None:
    """The number of the struct and the version of the distribution are checked before anything else is."""
    copy = tmp_path / "libfusilli_plugin.so"
    data = session.plugin.read_bytes()
    from fusilli_plugin import __version__

    version = __version__.encode() + b"\0"
    assert data.count(b"\0" + version) >= 1
    copy.write_bytes(data.replace(b"\0" + version, b"\x009" + version[1:]))
    shutil.copy(session.plugin.with_suffix(".conf"), copy.with_suffix(".conf"))
    said = session.run("declined", case("pw_relu").folder, plugin=copy)
    assert "the library is of version 9" in said


def test_graphs_that_are_not_served_are_declined(session: Session, tmp_path: Path) -> None:
    data = bytearray((GRAPHS / "pw_relu.bin").read_bytes())
    folder = tmp_path / "unknown"
    make_case(folder, bytes(data))
    (folder / "graph.bin").write_bytes(data[: len(data) - 8])
    assert "[wire]" in session.run("declined", folder)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"FUSILLI_CLAIM": "off"}, "FUSILLI_CLAIM=off [claim]"),
        ({"FUSILLI_CLAIM": "/nonexistent"}, "no file of rules"),
        ({"FUSILLI_DEVICE": "toaster"}, "device 'toaster' is unknown"),
        ({"FUSILLI_CACHE_SIZE": "4X"}, "FUSILLI_CACHE_SIZE='4X'"),
        ({"FUSILLI_WIRE_READING": "upside-down"}, "'upside-down' means nothing"),
    ],
)
def test_settings_that_leave_no_graph_to_serve(
    session: Session, case: MakeCase, variables: dict[str, Any], reason: str
) -> None:
    assert reason in session.run("declined", case("pw_relu").folder, **variables)


def test_another_name_is_another_engine(session: Session, case: MakeCase) -> None:
    each = case("pw_relu")
    session.run("walk", each.folder, FUSILLI_ENGINE_NAME="ACME_FUSILLI")
    assert each.wrong() == []


def test_without_compiling_only_what_is_cached_is_claimed(session: Session, case: MakeCase, cold_cache: Path) -> None:
    warm, session.cache = session.cache, cold_cache
    each = case("pw_relu")
    never: dict[str, Any] = {"FUSILLI_COMPILE": "never"}
    assert "not in the cache" in session.run("declined", each.folder, **never)
    session.run("walk", each.folder)
    assert warm != cold_cache
    os.chmod(cold_cache, 0o500)
    try:
        session.run("walk", each.folder, **never)
    finally:
        os.chmod(cold_cache, 0o700)
    assert each.wrong() == []


@pytest.mark.thorough
def test_the_engine_answers_in_time(session: Session, case: MakeCase) -> None:
    """Generous bounds, of the best of three: that nothing recompiles or reimports per call, on a busy machine."""
    texts = [session.run("latency", case("conv_bias_relu").folder, 200) for _ in range(3)]
    seen = [{name: float(value) for name, value in zip(*[iter(text.split())] * 2, strict=True)} for text in texts]
    figures = {name: min(each[name] for each in seen) for name in seen[0]}
    assert figures["execute_us"] < 500
    assert figures["applicable_us"] < 1000
    assert figures["second_build_ms"] < 50
