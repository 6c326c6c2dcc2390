"""What mkdocs has to be told: pages that lie outside ``docs``, and links between the two that hold in the repository.

In the repository README.md is the first page and links to ``docs/graphs.md``; the site has them side by side. So the
files of ``PAGES`` are read into the site, and links to them, or from them, are turned as they are read.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# file or folder of the repository -> page of the site
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples": "examples.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LANGUAGES = {".py": "python", ".c": "c"}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#]*)(?=[)#])")
_FENCED = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages whose source is elsewhere."""
    for source, page in PAGES.items():
        path = ROOT / source
        text = examples(path) if path.is_dir() else path.read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns the links of a page from places in the repository to pages of the site."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")
    parts = _FENCED.split(markdown)
    return "".join(part if index % 2 else _turned(part, source, here) for index, part in enumerate(parts))


def examples(folder: Path) -> str:
    """A page with each file of a folder, its first sentence above."""
    parts = ["# Examples\n\nEach file runs as it is, from the folder of the repository; `make test` runs them all.\n"]
    for path in sorted(folder.iterdir()):
        if path.suffix in LANGUAGES:
            parts.append(_example(path))
    return "\n".join(parts)


def _example(path: Path) -> str:
    code = path.read_text(encoding="utf-8")
    said = (ast.get_docstring(ast.parse(code)) or "").partition("\n\n")[0] if path.suffix == ".py" else ""
    return f"## {path.name}\n\n{said}\n\n```{LANGUAGES[path.suffix]}\n{code}```\n"


def _turned(text: str, source: str, here: str) -> str:
    folder, site = os.path.dirname(source), os.path.dirname(here)

    def turn(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(folder, match[1]))
        page = PAGES.get(target) or target.removeprefix("docs/")
        return os.path.relpath(page, site or ".")

    return _LINK.sub(turn, text)
