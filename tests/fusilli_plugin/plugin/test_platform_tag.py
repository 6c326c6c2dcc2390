"""The platform tag of a wheel: what libraries need, as the linker wrote it, compared with libraries made for that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fusilli_plugin.edge import platform_tag as platforms
from fusilli_plugin.edge.build import CORE_LIBRARY, LAUNCHER, LIBRARY
from fusilli_plugin.edge.platform_tag import ElfError, needs, platform_tag

OURS = (LIBRARY, LAUNCHER, CORE_LIBRARY)


def library(folder: Path, name: str, text: str, *options: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = folder / f"lib{name}.so"
    command = [compiler, "-shared", "-fPIC", "-nostartfiles", "-o", str(path), "-xc", "-", *options]
    subprocess.run(command, input=text.encode(), check=True, timeout=60)
    return path


def symbol(name: str, version: str) -> str:
    """A function that calls one of glibc's, in a version of our choice."""
    chosen = f'__asm__(".symver {name},{name}@{version}");'
    return f"extern void {name}(void); {chosen} void call_{name}(void) {{ {name}(); }}\n"


def test_the_newest_symbol_decides(tmp_path: Path) -> None:
    plain = library(tmp_path, "plain", symbol("getpid", "GLIBC_2.2.5"))
    assert needs(plain) == ({"libc.so.6"}, {"GLIBC_2.2.5"})
    assert platform_tag([plain]) == "manylinux_2_2_x86_64"
    both = library(tmp_path, "both", symbol("memcpy", "GLIBC_2.14") + symbol("getpid", "GLIBC_2.2.5"))
    assert needs(both)[1] == {"GLIBC_2.2.5", "GLIBC_2.14"}
    assert platform_tag([both, plain]) == platform_tag([plain, both]) == "manylinux_2_14_x86_64"


def test_what_needs_more_than_glibc_has_no_such_tag(tmp_path: Path) -> None:
    library(tmp_path, "other", "void other(void) {}")
    needing = library(tmp_path, "needing", "void other(void); void f(void) { other(); }", f"-L{tmp_path}", "-lother")
    assert "libother.so" in needs(needing)[0]
    assert platform_tag([needing]) == platform_tag([needing, *OURS]) == "linux_x86_64"
    assert platform_tag([]) == "linux_x86_64"


@pytest.mark.parametrize("version", ["GLIBC_PRIVATE", "GLIBCXX_3.4", "OPENSSL_3.0.0"])
def test_versions_of_others_have_no_such_tag(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "needs", lambda path: ({"libc.so.6"}, {"GLIBC_2.17", version}))
    assert platform_tag([Path("any")]) == "linux_x86_64"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_ours_need_what_the_linker_says(path: Path) -> None:
    reader = shutil.which("readelf")
    if reader is None:
        pytest.skip("no readelf")
    names, versions = needs(path)
    said = subprocess.run(
        [reader, "-dV", "-W", str(path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    libraries = {line.partition("[")[2].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line}
    words = [line.split("Name:")[1].split()[0] for line in said.splitlines() if "Name: GLIBC" in line]
    assert names == libraries
    assert versions == set(words)
    assert platform_tag([path]).startswith("manylinux_2_"), "this library fits other systems, too"


def test_what_is_no_library(tmp_path: Path) -> None:
    text, damaged = tmp_path / "text", tmp_path / "damaged"
    text.write_text("no library")
    damaged.write_bytes(LAUNCHER.read_bytes()[:2000])
    for path in (text, damaged):
        with pytest.raises(ElfError, match=path.name):
            platform_tag([path])
