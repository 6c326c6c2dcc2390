"""The library itself, what it is built of, and how it is put where hipDNN looks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fusilli_plugin import build, install
from fusilli_plugin._link import ffi
from fusilli_plugin.attach import _INTERRUPTED, ABI
from fusilli_plugin.install import InstallError, Place
from hipdnn_backend.plugin_abi import OPTIONAL, REQUIRED


def _tool(*command: object) -> str:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not here")
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_struct_is_that_of_the_header() -> None:
    made = (Path(build.__file__).parent / "_link.py").read_text()
    assert made == build.link_module(), "run: python -m fusilli_plugin.build --link"


def test_sizes_are_those_of_the_c_compiler(tmp_path: Path) -> None:
    source = tmp_path / "size.c"
    source.write_text(
        '#include <stdint.h>\n#include <stddef.h>\n#include <stdio.h>\n#include "link.h"\n'
        'int main(void) { printf("%zu %zu", sizeof(fusilli_link), offsetof(fusilli_link, destroy_handle)); }\n'
    )
    program = tmp_path / "size"
    _tool("cc", "-I", Path(build.__file__).parent / "shim", "-o", program, source)
    size, offset = map(int, _tool(program).split())
    assert ffi.sizeof("fusilli_link") == size
    assert ffi.offsetof("fusilli_link", "destroy_handle") == offset


def test_numbers_agree_with_the_shim() -> None:
    text = (Path(build.__file__).parent / "shim" / "shim.h").read_text()
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
    with pytest.raises(build.BuildError, match="needs a C compiler"):
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
    assert values["root"] == str(Path(install.__file__).parents[1])
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
        install.write_sidecar(tmp_path / "x.so", Place(tmp_path / "a\nb", Path("p"), "l", "3"))


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


def test_a_file_in_the_way_gives_the_command(library: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InstallError, match=r"sudo mkdir -p .* && sudo ln -sfn"):
        install.link_plugin(tmp_path / "file")


def test_a_folder_with_the_plugins_of_others(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "libmiopen_plugin.so").touch()
    (other / "notes.txt").touch()
    for _ in range(2):
        merged = install.merged_folder([other], tmp_path / "merged")
    assert sorted(path.name for path in merged.iterdir()) == ["libfusilli_plugin.so", "libmiopen_plugin.so"]


def test_hipdnns_folder_is_beside_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libhipdnn_backend.so").touch()
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert install.default_engine_folder() == tmp_path / "lib" / "hipdnn_plugins" / "engines"
    monkeypatch.delenv("ROCM_PATH")
    assert install.default_engine_folder().parts[-2:] == ("hipdnn_plugins", "engines")
