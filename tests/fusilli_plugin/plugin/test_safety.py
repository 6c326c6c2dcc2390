"""A host's forks, signals, directory and locale stay its own, and what it has little of is declined, not died of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fusilli_plugin.plugin.hosting import (
    HOST_LIBRARIES,
    ROOT,
    SANITIZER_OPTIONS,
    Case,
    Session,
    assert_unfound,
    build_plugin,
    host_sources,
    python_library,
    sanitized_plugin,
    sanitizing_compiler,
)

pytestmark = pytest.mark.iree_cpu
MakeCase = Callable[[str], Case]


# ---- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.a_few("5", "60")
@pytest.mark.parametrize("milliseconds", [0, 1, 5, 20, 60, 120, 200])
def test_a_fork_during_the_first_question(session: Session, case: MakeCase, milliseconds: int) -> None:
    """The child is served, or told why it is not; it never waits for a thread that it does not have."""
    said = session.run("fork_first", case("pw_relu").folder, milliseconds)
    assert re.fullmatch(r"early [01] served [01]\n", said)
    if milliseconds in (1, 5, 20):
        assert said.startswith("early 1"), "the question took less time than the test believes"


def test_a_thread_that_was_never_in_the_plugin_forks(session: Session, case: MakeCase) -> None:
    session.run("fork_stranger", case("pw_relu").folder)


@pytest.mark.thorough
def test_forks_at_any_moment_from_any_thread(session: Session, case: MakeCase) -> None:
    assert session.run("fork_storm", case("pw_relu").folder, 60) == "served 60 of 60\n"


@pytest.mark.slow
def test_a_storm_of_forks(session: Session, case: MakeCase) -> None:
    each = case("pw_relu")
    assert session.run("fork_storm", each.folder, 200) == "served 200 of 200\n"
    for milliseconds in range(0, 400, 13):
        session.run("fork_first", each.folder, milliseconds)


# ---- what is the host's ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("milliseconds", [0, 50, 150])
def test_signal_handlers_that_are_set_meanwhile_stay(session: Session, case: MakeCase, milliseconds: int) -> None:
    said = session.run("signals", case("pw_relu").folder, milliseconds)
    assert said == "early 1\n" or milliseconds > 100


def test_the_locale_is_never_another(session: Session, case: MakeCase) -> None:
    session.run("locale", case("pw_relu").folder, LC_ALL="C.UTF-8")


def test_the_current_directory_decides_nothing(session: Session, case: MakeCase, tmp_path: Path) -> None:
    """A library named by a relative path is the one that was there when it was loaded."""
    decoy = tmp_path / "decoy"
    relative = session.plugin.relative_to("/")  # hosts of these tests start in /
    (decoy / relative).parent.mkdir(parents=True)
    (decoy / "fusilli_plugin").mkdir()
    (decoy / "fusilli_plugin" / "_boot.py").write_text(f"open({str(decoy / 'taken')!r}, 'w')\n")
    sidecar = session.plugin.with_suffix(".conf").read_text()
    (decoy / relative).with_suffix(".conf").write_text(re.sub(r"root *=.*", f"root = {decoy}", sidecar))
    shutil.copy(session.plugin, decoy / relative)
    session.run("moved", case("pw_relu").folder, plugin=relative, HOST_CHDIR=str(decoy))
    assert not (decoy / "taken").exists()


@pytest.mark.parametrize("name", ["FUSILLI_PYTHON", "FUSILLI_LIBPYTHON"])
def test_relative_paths_of_python_are_refused(session: Session, case: MakeCase, name: str) -> None:
    variables: dict[str, Any] = {name: "./python3"}
    said = session.run("declined", case("pw_relu").folder, **variables)
    assert f"./python3, the path of {'Python' if name == 'FUSILLI_PYTHON' else 'libpython'}" in said
    assert f"is not absolute; set {name}" in said


# ---- little of something --------------------------------------------------------------------------------------------


def test_python_without_its_library_is_declined(session: Session, case: MakeCase, tmp_path: Path) -> None:
    """Python itself ends the process then."""
    library = python_library()
    for folder in ("bin", "lib"):
        (tmp_path / "python" / folder).mkdir(parents=True)
    copy = tmp_path / "python" / "lib" / library.name
    shutil.copy(library, copy)
    program = tmp_path / "python" / "bin" / "python3"
    program.touch()
    said = session.run("declined", case("pw_relu").folder, FUSILLI_PYTHON=str(program), FUSILLI_LIBPYTHON=str(copy))
    assert f"the standard library of Python {sys.version_info.major}.{sys.version_info.minor} is not beside" in said


@pytest.mark.a_few("64", "128")
@pytest.mark.parametrize("kib", [64, 96, 128, 192, 512])
def test_threads_with_small_stacks(session: Session, case: MakeCase, kib: int) -> None:
    said = session.run("small_stack", case("pw_relu").folder, kib)
    assert said == f"served {int(kib > 160)}\n"


@pytest.mark.parametrize("mib", [8, 100, 0])
def test_a_limit_on_memory(session: Session, case: MakeCase, mib: int) -> None:
    """numpy's library ends a process in which it gets none for itself and each of its threads."""
    enough = 1000 + 64 * (os.cpu_count() or 1)
    assert session.run("small_memory", case("pw_relu").folder, mib or enough) == f"served {int(not mib)}\n"


@pytest.mark.a_few("0-True-2", "0-False-0")
@pytest.mark.parametrize(
    ("size", "cached", "served"), [(0, True, 2), (0, False, 0), (4096, False, 0), (1 << 20, False, 2)]
)
def test_a_limit_on_the_size_of_files(
    session: Session, case: MakeCase, tmp_path: Path, size: int, cached: bool, served: int
) -> None:
    """What cannot be written is an error with a text: the signal ends no host, and no bytecode is left cut."""
    each = case("pw_relu")
    before = _bytecode()
    cache = _cache(session, each, tmp_path, filled=cached)
    said = session.run("small_files", each.folder, size, FUSILLI_CACHE_DIR=str(cache))
    assert said == f"served {served}\n"
    assert _bytecode() == before


def _cache(session: Session, each: Case, folder: Path, *, filled: bool) -> Path:
    if filled:
        session.warm((each.folder / "graph.bin").read_bytes())
        return session.cache
    (folder / "cache").mkdir(mode=0o700)
    return folder / "cache"


def _bytecode() -> dict[Path, int]:
    packages = ("fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin")
    found = (path for package in packages for path in (ROOT / package).rglob("*.pyc"))
    return {path: path.stat().st_size for path in found if path.stat().st_size == 4096 or not path.stat().st_size}


def test_threads_that_are_cancelled(session: Session, case: MakeCase) -> None:
    session.run("cancelled", case("pw_relu").folder, 20)


def test_a_host_that_gives_up_its_rights(session: Session, case: MakeCase, tmp_path: Path) -> None:
    """The folders of the cache are not its own any more; what was compiled serves."""
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    session.run("dropped", case("pw_relu").folder)


@pytest.mark.parametrize(
    ("name", "said"), [("FUSILLI_LIBPYTHON", "is no file, so no libpython"), ("FUSILLI_CLAIM", "is no file")]
)
def test_a_pipe_in_place_of_a_file(session: Session, case: MakeCase, tmp_path: Path, name: str, said: str) -> None:
    """Opening one may never end."""
    os.mkfifo(tmp_path / "pipe")
    variables: dict[str, Any] = {name: str(tmp_path / "pipe")}
    assert f"{tmp_path / 'pipe'} {said}" in session.run("declined", case("pw_relu").folder, **variables)


@pytest.mark.a_few("True")
@pytest.mark.parametrize("cached", [True, False])
def test_a_host_that_does_all_of_it_at_once(session: Session, case: MakeCase, tmp_path: Path, cached: bool) -> None:
    """First question, builds and launches; meanwhile signals, folder, locale, descriptors and memory are changed."""
    each = case("pw_relu")
    cache = _cache(session, each, tmp_path, filled=cached)
    said = session.run("unruly", each.folder, 40, FUSILLI_CACHE_DIR=str(cache))
    found = re.fullmatch(r"rounds (\d+), then [0-3]\n", said)
    assert found, said
    assert int(found[1]) > 20
    assert each.wrong() == []


@pytest.fixture(scope="module", params=["address,undefined", pytest.param("thread", marks=pytest.mark.slow)])
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Plugin and host program, watched by sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    compiler = sanitizing_compiler(folder, request.param)
    plugin = sanitized_plugin(folder / "lib", compiler)
    subprocess.run(
        [*compiler, "-std=gnu11", "-o", str(folder / "host"), *host_sources(), *HOST_LIBRARIES], check=True,
        capture_output=True, timeout=240,
    )  # fmt: skip
    return plugin, folder / "host"


@pytest.mark.a_few("*-errors-0", "*-threads-4", "*-fuzz-20")
@pytest.mark.parametrize(
    ("mode", "number"),
    [("walk", 0), ("errors", 0), ("nulls", 0), ("threads", 4), ("handles", 0), ("serialized", 5), ("fuzz", 20),
     ("forked", 0), ("fork_first", 20), ("signals", 50)],
)  # fmt: skip
def test_the_shim_under_sanitizers(
    session: Session, sanitized: tuple[Path, Path], case: MakeCase, mode: str, number: int
) -> None:
    if mode == "fork_first" and b"__tsan_init" in sanitized[0].read_bytes():
        pytest.skip("ThreadSanitizer ends a child that starts threads, if threads were there when it was forked")
    watched = Session(*sanitized, session.cache)
    options: dict[str, Any] = SANITIZER_OPTIONS
    assert_unfound(watched.start(mode, case("pw_relu").folder, number, **options))


def test_the_library_is_hardened(tmp_path: Path) -> None:
    data = build_plugin(tmp_path).read_bytes()
    assert b"__stack_chk_fail" in data
    assert b"__snprintf_chk" in data or b"__vsnprintf_chk" in data
