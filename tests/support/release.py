"""What a release says: ``python -m tests.support.release v1.2.3`` prints the changes of that version.

It ends with an error where the tag, the package and the changelog do not speak of one version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["notes", "version"]

ROOT = Path(__file__).resolve().parents[2]


def version() -> str:
    """That of the package, read without importing it."""
    text = (ROOT / "fusilli_plugin" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise ValueError("fusilli_plugin/__init__.py states no __version__")
    return match[1]


def notes(tag: str, changelog: str, packaged: str) -> str:
    """The section of a version in a changelog.

    Raises:
        ValueError: the tag is not that of the packaged version, or the changelog has nothing about it.
    """
    if tag != f"v{packaged}":
        raise ValueError(
            f"the tag is {tag}, the package has version {packaged}: tag v{packaged}, or change __version__"
        )
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    found = next((section for section in sections if section.startswith(f"[{packaged}]")), "")
    text = found.partition("\n")[2].strip()
    if not text:
        raise ValueError(f"CHANGELOG.md has nothing under [{packaged}]: move there what stands under [Unreleased]")
    return text + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version()))
    except ValueError as error:
        sys.exit(f"error: {error}")
