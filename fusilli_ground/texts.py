"""Texts for terminals and for the logs of hosts: names of graphs, tensors and files come from anybody.

A name may hold what steers a terminal, hides what stands beside it, or begins a line that looks like one of somebody
else's.
"""

from __future__ import annotations

import sys

__all__ = ["host_text", "json_printable", "printable", "say"]

_INDENT = "\n    "


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""``text`` with all else that does not print written as an escape, for example ``\x1b``."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def host_text(text: str) -> str:
    """``text`` for the log or the last error of a host: lines after the first are indented, so that none is forged."""
    return printable(text.rstrip("\n"), keep="\n").replace("\n", _INDENT)


def json_printable(document: str) -> str:
    """A JSON document with what does not print written as an escape of JSON; it means the same."""
    if all(c.isprintable() or c == "\n" for c in document):
        return document
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in document)


def say(*lines: object, err: bool = False) -> None:
    """Print lines outside of the command line, escaped as its ``echo`` does; ruff forbids ``print``."""
    for line in lines:
        print(printable(str(line), keep="\t"), file=sys.stderr if err else sys.stdout, flush=True)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[i : i + 2], 'big'):04x}" for i in range(0, len(units), 2))
