"""The library itself, what it is built of, and how it is put where hipDNN looks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusilli_plugin.attach import _INTERRUPTED, ABI
from fusilli_plugin.edge import build, install
from fusilli_plugin.edge.install import Installation, InstallError
from fusilli_plugin.edge.link import ffi
from hipdnn_backend.plugins import search
from hipdnn_backend.plugins.abi import OPTIONAL, REQUIRED


def _tool(*command: object) -> str:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not here")
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_build_needs_the_standard_library_alone(tmp_path: Path) -> None:
    """As in pip's isolated environments, in which setup.py loads it; ``-I -S`` hides what is installed."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", build.__file__], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    assert "BuildError: a C compiler is needed" in done.stderr


def test_the_struct_is_that_of_the_header() -> None:
    made = (Path(build.__file__).parent / "link.py").read_text()
    assert made == build.link_module(), "run: python -m fusilli_plugin.edge.build --link"


def test_sizes_are_those_of_the_c_compiler(tmp_path: Path) -> None:
    source = tmp_path / "size.c"
    source.write_text(
        '#include <stdint.h>\n#include <stddef.h>\n#include <stdio.h>\n#include "link.h"\n'
        'int main(void) { printf("%zu %zu", sizeof(fusilli_link), offsetof(fusilli_link, destroy_handle)); }\n'
    )
    program = tmp_path / "size"
    _tool("cc", "-I", Path(build.__file__).parents[1] / "shim", "-o", program, source)
    size, offset = map(int, _tool(program).split())
    assert ffi.sizeof("fusilli_link") == size
    assert ffi.offsetof("fusilli_link", "destroy_handle") == offset


def test_numbers_agree_with_the_shim() -> None:
    text = (Path(build.__file__).parents[1] / "shim" / "shim.h").read_text()
    numbers = dict(re.findall(r"#define (FUSILLI_\w+) (\w+)", text))
    assert int(numbers["FUSILLI_ABI"]) == ABI
    assert int(numbers["FUSILLI_INTERRUPTED"], 16) == _INTERRUPTED


def test_exports_are_the_functions_of_both_hosts_and_nothing_else(built: tuple[Path, Path]) -> None:
    lines = _tool("nm", "-D", "--defined-only", built[0]).splitlines()
    names = {line.split()[-1] for line in lines}
    assert names == {*REQUIRED, *OPTIONAL, "CreateEpFactories", "ReleaseEpFactory"}


def test_it_needs_libc_alone_and_stays_mapped(built: tuple[Path, Path]) -> None:
    text = _tool("readelf", "-d", built[0])
    needed = re.findall(r"NEEDED.*\[(.*)\]", text)
    assert {name.split(".")[0].split("-")[0] for name in needed} <= {"libc", "ld", "libdl", "libpthread"}
    assert "NODELETE" in text
    assert "RUNPATH" not in text


def test_it_compiles_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -Werror")
    build.compile_shim(tmp_path / "libfusilli_plugin.so")
    assert [path.name for path in tmp_path.iterdir()] == ["libfusilli_plugin.so"]


def test_without_a_compiler_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match="a C compiler is needed"):
        build.compile_shim(tmp_path / "x.so")


def test_a_failing_compiler_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.BuildError, match="could not be compiled"):
        build.compile_shim(tmp_path / "x.so")
    assert not list(tmp_path.iterdir())


# ---- installing


@pytest.fixture
def library(built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built library where the package would have it."""
    library = tmp_path / "package" / "lib" / "libfusilli_plugin.so"
    library.parent.mkdir(parents=True)
    shutil.copy(built[0], library)
    monkeypatch.setattr(install, "LIBRARY", library)
    return library


def test_a_source_tree_gets_a_sidecar(library: Path) -> None:
    assert install.plugin_dir() == library.parent
    text = library.with_suffix(".conf").read_text()
    values = dict(line.split(" = ") for line in text.splitlines() if " = " in line)
    assert values["version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert values["root"] == str(Path(install.__file__).parents[2])
    assert values["python"] == sys.executable
    assert "libpython" in values["libpython"]


def test_an_installed_library_needs_none(tmp_path: Path) -> None:
    version = f"python{sysconfig.get_python_version()}"
    library = tmp_path / "lib" / version / "site-packages" / "fusilli_plugin" / "lib" / "libfusilli_plugin.so"
    assert not install.is_derivable(library)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").touch()
    assert install.is_derivable(library)


def test_a_sidecar_cannot_hold_line_breaks(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="line break"):
        install.write_sidecar(tmp_path / "x.so", Installation(tmp_path / "a\nb", Path("p"), "l", "3"))


def test_linking_beside_other_plugins(library: Path, tmp_path: Path) -> None:
    engines = tmp_path / "hipdnn_plugins" / "engines"
    link = install.link_plugin(engines)
    assert link.resolve() == library.resolve()
    assert install.link_plugin(engines) == link
    link.unlink()
    link.symlink_to("/nonexistent")
    assert install.link_plugin(engines).resolve() == library.resolve()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_gives_the_command(library: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InstallError, match="sudo ln -sfn"):
        install.link_plugin(tmp_path / "engines")


def test_a_folder_that_cannot_be_made_gives_the_command(library: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    # not even root makes folders in /proc
    for folder in (tmp_path / "file", Path("/proc/it's here")):
        with pytest.raises(InstallError, match="cannot be written") as caught:
            install.link_plugin(folder)
        command = str(caught.value).partition("run: ")[2]
        assert shlex.split(command) == [
            "sudo", "mkdir", "-p", str(folder), "&&",
            "sudo", "ln", "-sfn", str(library), str(folder / library.name),
        ]  # fmt: skip


def test_a_file_of_somebody_else_stays(library: Path, tmp_path: Path) -> None:
    """The provider that AMD used to ship may have the same name."""
    for name, content in (("text", b"not ours"), ("library", b"\x7fELF and more")):
        other = tmp_path / name / library.name
        other.parent.mkdir()
        other.write_bytes(content)
        with pytest.raises(InstallError, match=f"{other} is not this plugin, so it stays"):
            install.link_plugin(other.parent)
        assert other.read_bytes() == content
        assert not other.is_symlink()
    folder = tmp_path / "folder" / library.name
    folder.mkdir(parents=True)
    with pytest.raises(InstallError, match="is not this plugin"):
        install.link_plugin(folder.parent)
    assert folder.is_dir()


def test_a_copy_of_ours_becomes_a_link(library: Path, tmp_path: Path) -> None:
    engines = tmp_path / "engines"
    engines.mkdir()
    shutil.copy(library, engines)
    assert install.is_ours(engines / library.name)
    assert os.readlink(install.link_plugin(engines)) == str(library)
    assert [path.name for path in engines.iterdir()] == [library.name]


def _plugins(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"{folder.name}/{name}")
    return folder


def test_each_set_of_plugins_has_its_folder(library: Path, tmp_path: Path, cold_cache: Path) -> None:
    a = _plugins(tmp_path / "a", "libmiopen_plugin.so", "notes.txt")
    b = _plugins(tmp_path / "b", "libhipblaslt_plugin.so")
    root = cold_cache / "engines"
    of_a, of_b = install.merged_folder([a], root), install.merged_folder([b], root)
    assert _linked(of_a) == {"libmiopen_plugin.so": a / "libmiopen_plugin.so", library.name: library}
    assert _linked(of_b) == {"libhipblaslt_plugin.so": b / "libhipblaslt_plugin.so", library.name: library}
    both = install.merged_folder([b, a], root)
    assert _linked(both) == _linked(of_a) | _linked(of_b)
    assert install.merged_folder([a, b], root) == both
    (of_a / library.name).unlink()
    assert install.merged_folder([a], root) == of_a
    assert (of_a / library.name).resolve() == library


def _linked(folder: Path) -> dict[str, Path]:
    """What hipDNN would load."""
    return {path.name: path.resolve() for path in folder.iterdir() if path.suffix == ".so"}


def test_many_ask_for_a_folder_at_once(library: Path, tmp_path: Path, cold_cache: Path) -> None:
    """Whatever is handed out is whole at that moment, whoever else is at work on it."""
    others = _plugins(tmp_path / "others", *(f"lib{number}.so" for number in range(20)))
    start = threading.Barrier(8)

    def ask(_: int) -> int:
        start.wait(timeout=60)
        return len(_linked(install.merged_folder([others], cold_cache / "engines")))

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(ask, range(8)))
    assert counts == [21] * 8


def test_plugins_of_one_name(library: Path, tmp_path: Path, cold_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = _plugins(tmp_path / "a", "libx.so", library.name), _plugins(tmp_path / "b", "libx.so")
    with pytest.raises(InstallError, match="a/libx.so and .*b/libx.so have one name"):
        install.merged_folder([a, b], cold_cache / "engines")
    merged = install.merged_folder([a], cold_cache / "engines")
    assert _linked(merged) == {"libx.so": a / "libx.so", library.name: library}
    assert f"{a / library.name} is left out: it is another plugin with this one's name" in caplog.text


def test_a_folder_that_others_can_write_is_not_handed_out(library: Path, tmp_path: Path, cold_cache: Path) -> None:
    other = _plugins(tmp_path / "other", "libx.so")
    (cold_cache / "engines").mkdir()
    (cold_cache / "engines").chmod(0o777)
    with pytest.raises(InstallError, match="mode 777: hipDNN would load what others put there"):
        install.merged_folder([other], cold_cache / "engines")


def test_hipdnns_folder_is_beside_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libhipdnn_backend.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    assert install.engine_folder() == tmp_path / "lib" / "hipdnn_plugins" / "engines"


def test_without_hipdnn_nothing_is_made(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_LIBRARY_PATH", "ROCM_PATH", "HIP_PATH", "HIPDNN_BACKEND_LIBRARY_PATH", "HIPDNN_BACKEND_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(search, "_SYSTEM_FOLDERS", (str(tmp_path / "rocm" / "lib"),))
    with pytest.raises(InstallError, match=rf"looked for {tmp_path}/rocm/lib/libhipdnn_backend.so. .* --into DIR"):
        install.engine_folder()
    monkeypatch.setenv("HIPDNN_BACKEND_LIBRARY", str(tmp_path / "gone.so"))
    with pytest.raises(InstallError, match=r"looked for .*gone.so \(HIPDNN_BACKEND_LIBRARY\)\. "):
        install.engine_folder()
    assert not (tmp_path / "rocm").exists()
