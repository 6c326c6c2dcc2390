"""What a wheel's libraries need of the system: the platform tag that says it (PEP 600).

``manylinux_2_34_x86_64`` means: any distribution with glibc 2.34 or newer. It is true of libraries that need nothing
but glibc, and of glibc no symbol of a later version; which those are stands in each file. ``setup.py`` loads this file
by its path, so it imports the standard library only.

Source: the System V ABI's generic part, section headers and symbol versions (Linux Standard Base, 10.7).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["ElfError", "needs", "platform_tag"]

_GLIBC: Final = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
}  # fmt: skip
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NEED: Final = struct.Struct("<HHIII")  # Elf64_Verneed
_NEED_OF: Final = struct.Struct("<IHHII")  # Elf64_Vernaux
_DYNAMIC: Final = struct.Struct("<qQ")
_SHT_DYNAMIC, _SHT_VERNEED, _DT_NEEDED, _X86_64 = 6, 0x6FFFFFFE, 1, 62


class ElfError(Exception):
    """A file is no library for x86-64, or damaged. No FusilliError: setup.py has none of our packages."""


def platform_tag(libraries: Iterable[Path], otherwise: str = "linux_x86_64") -> str:
    """The tag of a wheel with these libraries; ``otherwise`` if they need more than glibc, or there are none.

    Raises:
        ElfError: a file is no library for x86-64.
        OSError: a file cannot be read.
    """
    newest = (0, 0)
    for path in libraries:
        names, versions = needs(path)
        if not names <= _GLIBC:
            return otherwise
        for version in versions:
            prefix, _, number = version.partition("_")
            parts = number.split(".")
            if prefix != "GLIBC" or not all(part.isdecimal() for part in parts):
                return otherwise  # GLIBC_PRIVATE, or another library's
            newest = max(newest, (int(parts[0]), int(parts[1]) if len(parts) > 1 else 0))
    return f"manylinux_{newest[0]}_{newest[1]}_x86_64" if newest > (0, 0) else otherwise


def needs(path: Path) -> tuple[set[str], set[str]]:
    """Names of the libraries that a library needs, and versions of their symbols, e.g. ``GLIBC_2.34``.

    Raises:
        ElfError: it is no library for x86-64, or damaged.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        header = _HEADER.unpack_from(data)
        if header[0][:6] != b"\x7fELF\x02\x01" or header[2] != _X86_64:
            raise ElfError(f"{path} is no library for x86-64")
        sections = [_SECTION.unpack_from(data, header[6] + i * header[11]) for i in range(header[12])]
        names, versions = set[str](), set[str]()
        for _, kind, _, _, offset, size, link, count, _, _ in sections:
            if kind == _SHT_DYNAMIC:
                table = sections[link][4]
                for tag, value in _DYNAMIC.iter_unpack(data[offset : offset + size]):
                    names |= {_text(data, table + value)} if tag == _DT_NEEDED else set()
            elif kind == _SHT_VERNEED:
                versions |= _versions(data, offset, count, sections[link][4])
    except (struct.error, IndexError, ValueError) as error:
        raise ElfError(f"{path} is damaged: {error}") from error
    return names, versions


def _versions(data: bytes, offset: int, count: int, table: int) -> set[str]:
    """Of a section of needed versions: lists of lists, each entry with the distance to the next."""
    found: set[str] = set()
    for _ in range(count):
        _, symbols, _, first, following = _NEED.unpack_from(data, offset)
        at = offset + first
        for _ in range(symbols):
            _, _, _, name, after = _NEED_OF.unpack_from(data, at)
            found.add(_text(data, table + name))
            at += after
        offset += following
    return found


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode("ascii")
