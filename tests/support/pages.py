"""The pages that strangers read, taken apart: fenced blocks, code spans, links, headings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGES", "PAGES", "ROOT", "Block", "Command", "anchors", "blocks", "commands", "links", "prose", "spans"]

ROOT = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = tuple(name.rstrip("*") for name in _PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
"""The packages of the wheel."""
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")})

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?:[^\]]*)\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"\s+# (.*)$")
_EXIT = re.compile(r"exit code (\d+)")


class Block(NamedTuple):
    """A fenced block: its language, its text, the line on which it begins."""

    language: str
    text: str
    line: int


class Command(NamedTuple):
    """A line of a shell block: what is typed, and the exit code that its comment announces."""

    text: str
    code: int


@cache
def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = _read(page)
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block; a backslash at the end of a line goes on with the next one."""
    for line in block.text.replace("\\\n", " ").splitlines():
        said = _COMMENT.search(line)
        typed = " ".join(_COMMENT.sub("", line).split())
        announced = _EXIT.search(said[1]) if said else None
        if typed:
            yield Command(typed, int(announced[1]) if announced else 0)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", _read(page))


def spans(page: Path) -> list[str]:
    """The code spans outside fenced blocks, line breaks as spaces."""
    return [" ".join(m[1].split()) for m in _SPAN.finditer(prose(page))]


def links(page: Path) -> list[str]:
    """Targets of links and pictures."""
    return [m[1] or m[2] for m in _LINK.finditer(_SPAN.sub("code", prose(page)))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(next(each for each in _numbered(name) if each not in found))
    return found


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}-{number}"
        number += 1
