"""Finding engines: given ones, entry points, plugins; and finding the plugins themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hipdnn_backend.engine import engine_id
from hipdnn_backend.errors import EngineError, NoEngineError
from hipdnn_backend.host.registry import ENTRY_POINTS, LoadingMode, Registry, parse_engine_id
from hipdnn_backend.host.selection import Policies
from hipdnn_backend.plugins.search import (
    BACKEND_LIBRARY,
    ENGINES,
    backend_candidates,
    find_backend_library,
    find_plugin_files,
)
from tests.hipdnn_backend.toys import RELU, ToyEngine, tiny_plugin

NOTHING: dict[str, str] = {"HIPDNN_BACKEND_LIBRARY": "/nonexistent/lib/libhipdnn_backend.so"}


def find(*engines: object, **options: object) -> Registry:
    """A search that the machine's own hipDNN and packages do not touch."""
    options = {"entry_points": False, "environ": NOTHING} | options
    return Registry.find(engines, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("MIOPEN_ENGINE", 1563989756945604898),
        (" FUSILLI_ENGINE ", -3193037706610614382),
        ("-3193037706610614382", -3193037706610614382),
        ("0xD3B00D1F8F0BDF92", -3193037706610614382),
        ("0x7", 7),
        (7, 7),
        (0xD3B00D1F8F0BDF92, -3193037706610614382),
        ("ACME_7", engine_id("ACME_7")),
    ],
)
def test_engines_are_named_as_in_hipdnn(text: str | int, id_: int) -> None:
    assert parse_engine_id(text) == id_


def test_ids_have_64_bits() -> None:
    with pytest.raises(ValueError, match="those have 64 bits"):
        parse_engine_id("99999999999999999999")


def test_given_engines_in_order() -> None:
    registry = find(ToyEngine("B_ENGINE"), ToyEngine("A_ENGINE"))
    assert [engine.name for engine in registry.engines] == ["B_ENGINE", "A_ENGINE"]
    assert registry.engine("A_ENGINE") is registry.engines[1]
    assert registry.engine(engine_id("B_ENGINE")) is registry.engines[0]
    assert not registry.problems
    with pytest.raises(NoEngineError, match=r"there is no engine MIOPEN; there are: B_ENGINE, A_ENGINE"):
        registry.engine("MIOPEN")
    with pytest.raises(NoEngineError, match=r"there is no engine A_ENGINES \(did you mean A_ENGINE\?\); there are"):
        registry.engine("A_ENGINES")


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(TypeError, match="is no engine: it lacks support, details"):
        find("engine")
    wrong = ToyEngine("A_ENGINE")
    wrong.id = engine_id("B_ENGINE")
    with pytest.raises(TypeError, match="engine A_ENGINE has the id"):
        find(wrong)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with good and bad entry points."""
    (tmp_path / "toy_engines_of_this_test.py").write_text(
        "import sys\n"
        "from tests.hipdnn_backend.toys import ToyEngine\n"
        "def good(): return ToyEngine('GOOD_ENGINE')\n"
        "def same(): return ToyEngine('GOOD_ENGINE')\n"
        "def raising(): raise RuntimeError('no luck')\n"
        "def ending(): sys.exit(3)\n"
        "def nothing(): return 7\n"
    )
    folder = tmp_path / "toy_engines-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engines\nVersion: 1.5\n")
    names = {"a": "good", "b": "raising", "c": "ending", "d": "nothing", "e": "absent", "f": "same"}
    lines = [f"{name} = toy_engines_of_this_test:{function}" for name, function in names.items()]
    (folder / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n" + "\n".join(lines) + "\ng = no_such_module:x\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("packages")
def test_entry_points_and_broken_ones() -> None:
    registry = find(entry_points=True)
    entry = next(entry for entry in registry.entries if entry.engine.name == "GOOD_ENGINE")
    assert (entry.origin, entry.version) == ("entry point a = toy_engines_of_this_test:good", "1.5")
    assert entry.api_version is None
    problems = {problem.source.split()[2]: problem.reason for problem in registry.problems}
    assert problems["b"] == "RuntimeError: no luck"
    assert problems["c"] == "SystemExit: 3"
    assert "7 is no engine" in problems["d"]
    assert "AttributeError" in problems["e"]
    assert "GOOD_ENGINE is left out: entry point a" in problems["f"]
    assert "ModuleNotFoundError" in problems["g"]


@pytest.mark.usefixtures("packages")
def test_entry_points_are_imported_by_find_only() -> None:
    sys.modules.pop("toy_engines_of_this_test", None)
    find(entry_points=False)
    assert "toy_engines_of_this_test" not in sys.modules


@pytest.mark.usefixtures("packages")
def test_a_given_engine_replaces_that_of_a_package() -> None:
    mine = ToyEngine("GOOD_ENGINE")
    registry = find(mine, entry_points=True)
    assert registry.engine("GOOD_ENGINE") is mine
    assert not [problem for problem in registry.problems if "left out" in problem.reason]


def test_plugins_and_broken_ones(tmp_path: Path) -> None:
    tiny_plugin(tmp_path / "b.so")
    (tmp_path / "c.so").write_bytes((tmp_path / "b.so").read_bytes())
    (tmp_path / "a.so").write_text("no library")
    registry = find(paths=[tmp_path])
    (entry,) = registry.entries
    assert (entry.engine.name, entry.version, entry.api_version) == ("TINY_ENGINE", "0.1", (1, 4, 0))
    assert entry.origin == str(tmp_path / "b.so")
    broken, second = registry.problems
    assert broken.source == str(tmp_path / "a.so")
    assert broken.reason.startswith("cannot be loaded: ")
    assert second.source == str(tmp_path / "c.so")
    assert f"TINY_ENGINE is left out: {tmp_path / 'b.so'} has the id" in second.reason
    assert entry.engine.support(RELU)
    registry.close()
    with pytest.raises(EngineError, match="the plugin is closed"):
        entry.engine.details(RELU)


def test_a_given_engine_goes_before_a_plugin(tmp_path: Path) -> None:
    mine = ToyEngine("TINY_ENGINE")
    registry = find(mine, paths=[tiny_plugin(tmp_path / "tiny.so")])
    assert registry.engines == (mine,)


# ---- where plugins are


@pytest.fixture
def hipdnn(tmp_path: Path) -> Path:
    """An installed hipDNN with two plugins; returns its library."""
    engines = tmp_path / "rocm" / "lib" / "hipdnn_plugins" / "engines"
    engines.mkdir(parents=True)
    for name in ("libb.so", "a.so", "libold.so.1", "notes.txt"):
        (engines / name).touch()
    (engines / "deeper.so").mkdir()
    library = tmp_path / "rocm" / "lib" / "libhipdnn_backend.so"
    library.touch()
    return library


def names(*paths: object, **options: object) -> tuple[list[str], list[str]]:
    options = {"environ": {}} | options
    found = find_plugin_files(paths, **options)  # type: ignore[arg-type]
    return [file.name for file in found.files], [problem.reason for problem in found.problems]


def test_the_default_folder_is_beside_the_backend(hipdnn: Path) -> None:
    assert names(backend=hipdnn) == (["a.so", "libb.so"], [])


def test_paths_join_the_default_or_replace_it(hipdnn: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.so").touch()
    mine = tmp_path / "mine.so"
    assert names(mine, backend=hipdnn)[0] == ["mine.so", "a.so", "libb.so"]  # the order of the whole paths
    assert names(mine, mode=LoadingMode.ABSOLUTE, backend=hipdnn)[0] == ["mine.so"]
    assert names(mine, mine.parent, mode=LoadingMode.ABSOLUTE, backend=hipdnn)[0] == ["mine.so"]


def test_the_variable_replaces_the_default_folder(hipdnn: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.so").touch()
    environ = {"HIPDNN_PLUGIN_DIR": str(tmp_path / "elsewhere")}
    assert names(environ=environ, backend=hipdnn) == (["x.so"], [])
    assert names(environ=environ, mode=LoadingMode.ABSOLUTE, backend=hipdnn) == ([], [])
    environ = {"HIPDNN_PLUGIN_DIR": str(tmp_path / "elsewhere" / "x.so")}
    assert names(environ=environ, backend=hipdnn) == (["x.so"], [])
    found, (problem,) = names(environ={"HIPDNN_PLUGIN_DIR": f"{tmp_path}:{tmp_path}"}, backend=hipdnn)
    assert not found
    assert "there is no file" in problem


def test_the_variable_is_ignored_with_another_users_rights(hipdnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setenv("HIPDNN_PLUGIN_DIR", "/anything")
    found, (problem,) = names(backend=hipdnn)
    assert found == ["a.so", "libb.so"]
    assert "ignored in a process with another user's rights" in problem


def test_no_variable_names_a_library_with_another_users_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them could name code to load."""
    planted = tmp_path / "lib" / BACKEND_LIBRARY
    engines = planted.parent / ENGINES
    engines.mkdir(parents=True)
    planted.touch()
    (engines / "planted.so").touch()
    variables = {
        "HIPDNN_BACKEND_LIBRARY": planted, "HIPDNN_BACKEND_LIBRARY_PATH": planted.parent, "ROCM_PATH": tmp_path,
        "HIP_PATH": tmp_path, "LD_LIBRARY_PATH": planted.parent,
    }  # fmt: skip
    for name, value in variables.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, str(value))
            assert find_plugin_files().files == (engines / "planted.so",), name
            patch.setattr("os.geteuid", lambda: 12345)
            assert not any(tmp_path in path.parents for path in find_plugin_files().files), name
            assert find_backend_library() != planted, name


def test_no_policy_is_read_with_another_users_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPDNN_HEUR_CONFIG_PATH", "/anything")
    assert Policies.from_env().rules == Path("/anything")
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert Policies.from_env().rules is None


def test_folders_that_the_current_one_decides_are_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / BACKEND_LIBRARY).touch()
    monkeypatch.chdir(tmp_path)
    for environ in ({"LD_LIBRARY_PATH": "lib:.:"}, {"ROCM_PATH": "."}, {"HIP_PATH": "./"}):
        assert not any(tmp_path in path.absolute().parents for path in backend_candidates(environ))


def test_relative_paths_start_at_the_backend(hipdnn: Path) -> None:
    assert names("hipdnn_plugins/engines/b", mode=LoadingMode.ABSOLUTE, backend=hipdnn) == (["libb.so"], [])
    _, (problem,) = names("x.so", environ=NOTHING | {"HIPDNN_BACKEND_LIBRARY": ""}, mode=LoadingMode.ABSOLUTE)
    assert "give an absolute path" in problem or "there is no file" in problem  # the latter where hipDNN is installed


def test_links_are_followed_before_the_name_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "libx.so.1.2").touch()
    (tmp_path / "libx.so").symlink_to("libx.so.1.2")
    (tmp_path / "ours.so").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.so").symlink_to("../ours.so")
    found, (problem,) = names(tmp_path, tmp_path / "sub")
    assert found == ["ours.so"]
    assert problem == "a plugin's file has to end in .so once links are followed; this is libx.so.1.2"
    (tmp_path / "loop").symlink_to("loop")
    assert names(tmp_path / "loop")[0] == []


def test_the_backend_library(tmp_path: Path, hipdnn: Path) -> None:
    folder = str(hipdnn.parent)
    assert find_backend_library({"HIPDNN_BACKEND_LIBRARY": "/a/b.so"}) == Path("/a/b.so")
    assert find_backend_library({"HIPDNN_BACKEND_LIBRARY_PATH": folder}) == hipdnn
    assert find_backend_library({"LD_LIBRARY_PATH": f"{tmp_path}:{folder}"}) == hipdnn
    assert find_backend_library({"ROCM_PATH": str(hipdnn.parents[1])}) == hipdnn
