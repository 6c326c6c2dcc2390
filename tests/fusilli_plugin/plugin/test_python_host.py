"""The plugin in programs that are Python themselves, of the same minor version and of others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fusilli_plugin.plugin.hosting import HOST_LIBRARIES, ROOT, Case, Session, host_sources

pytestmark = pytest.mark.iree_cpu
MakeCase = Callable[[str], Case]

# The C host as a library, its main() called through ctypes: with the GIL released, or held as some bindings do.
CALL = """
import ctypes, sys
kind, library, *arguments = sys.argv[1:]
words = [word.encode() for word in ("host", *arguments)]
argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
sys.exit(getattr(ctypes, kind)(library).host_main(len(words), argv))
"""


@pytest.fixture(scope="module")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the test host is compiled with cc, which is not here")
    library = tmp_path_factory.mktemp("host") / "libhost.so"
    command = [compiler, "-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, *host_sources(), *HOST_LIBRARIES], check=True, capture_output=True, timeout=120)
    return library


def _version(python: Path) -> tuple[int, ...]:
    out = subprocess.run(
        [str(python), "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, timeout=60
    )
    return tuple(map(int, out.stdout.split()))


def _pythons() -> list[Path]:
    """This interpreter, the one that it was made of, and those of the system and of other minor versions."""
    found = [Path(sys.executable), Path(sys._base_executable), Path("/usr/bin/python3")]  # type: ignore[attr-defined]
    versions = Path(sys.base_prefix).parent
    found += [path for minor in range(11, 16) for path in sorted(versions.glob(f"3.{minor}*/bin/python3"))]
    return list(dict.fromkeys(path for path in found if path.exists()))


def _run(session: Session, python: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-I", "-c", CALL, *map(str, arguments)]
    return subprocess.run(
        command, env=session.environment(**environment), capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.a_few("walk-PyDLL", "errors-PyDLL", "handles-CDLL", "at_exit-PyDLL", "cycles-PyDLL")
@pytest.mark.parametrize("kind", ["CDLL", "PyDLL"])
@pytest.mark.parametrize("mode", ["walk", "errors", "handles", "at_exit", "cycles"])
def test_in_this_python(session: Session, case: MakeCase, host_library: Path, kind: str, mode: str) -> None:
    each = case("conv_bias_relu")
    arguments = (kind, host_library, session.plugin, "local", mode, each.folder, 20)
    done = _run(session, Path(sys.executable), *arguments, MALLOC_PERTURB_="165")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert mode == "errors" or each.wrong() == []


def test_threads_in_this_python(session: Session, case: MakeCase, host_library: Path) -> None:
    each = case("conv_bias_relu")
    done = _run(
        session, Path(sys.executable), "CDLL", host_library, session.plugin, "deepbind", "threads", each.folder, 6
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert each.wrong() == []


@pytest.mark.parametrize("python", _pythons(), ids=str)
def test_in_other_pythons(session: Session, case: MakeCase, host_library: Path, python: Path) -> None:
    """The same minor version is served whatever is installed there; another one declines with one line."""
    each = case("pw_relu")
    if _version(python) == sys.version_info[:2]:
        done = _run(session, python, "CDLL", host_library, session.plugin, "local", "walk", each.folder)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        assert each.wrong() == []
    else:
        done = _run(session, python, "CDLL", host_library, session.plugin, "local", "declined", each.folder)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        assert "the plugin is installed for Python" in done.stdout
        assert done.stderr.count("serves no graph in this process") == 1


def test_another_copy_of_a_package_is_not_taken_for_ours(
    session: Session, case: MakeCase, host_library: Path, tmp_path: Path
) -> None:
    impostor = tmp_path / "elsewhere" / "graph_api"
    impostor.mkdir(parents=True)
    (impostor / "__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(impostor.parent)!r}); import graph_api\n{CALL}"
    arguments = ["CDLL", host_library, session.plugin, "local", "declined", case("pw_relu").folder]
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, arguments)],
        env=session.environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"graph_api was imported from {impostor.parent} already" in done.stdout


def test_an_interrupt_comes_back_to_the_host(session: Session, case: MakeCase) -> None:
    """Ctrl-C while the plugin works is the host program's: the call fails, and KeyboardInterrupt is raised after it."""
    code = f"""
import signal, sys
sys.path.insert(0, {str(ROOT)!r})
from hipdnn_backend.plugins.library import PluginLibrary
from hipdnn_backend.errors import EngineError
import iree_bridge.support
plugin = PluginLibrary(sys.argv[1])
graph = open(sys.argv[2], "rb").read()
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
plugin.engines[0].support(graph)
import fusilli_plugin.engine.engine
fusilli_plugin.engine.engine.FusilliEngine.details = interrupt
try:
    plugin.engines[0].details(graph)
except (KeyboardInterrupt, EngineError) as error:
    first = type(error).__name__
try:
    for _ in range(10 ** 6): pass
    late = ""
except KeyboardInterrupt:
    late = "KeyboardInterrupt"
print(first, late)
"""
    graph = case("pw_relu").folder / "graph.bin"
    done = subprocess.run(
        [sys.executable, "-c", code, str(session.plugin), str(graph)],
        env=session.environment(PATH=os.defpath), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "KeyboardInterrupt" in done.stdout, done.stdout + done.stderr[-3000:]
