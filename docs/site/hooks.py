"""What mkdocs has to be told: pages that lie outside ``docs``, and links between the two that hold in the repository.

In the repository README.md is the first page and links to ``docs/graphs.md``; the site has them side by side. So the
files of ``PAGES`` are read into the site, the programs of ``examples`` behind their page, and links are turned as pages
are read.
"""

from __future__ import annotations

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
EXAMPLES = "examples"
# file of the repository -> page of the site
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    f"{EXAMPLES}/README.md": "examples.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LANGUAGES = {".py": "python", ".c": "c"}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#]*)(?=[)#])")
_FENCED = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages whose source is elsewhere."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if page == "examples.md":
            text += "".join(_listing(path) for path in sorted((ROOT / EXAMPLES).iterdir()) if path.suffix in LANGUAGES)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns the links of a page from places in the repository to pages of the site."""
    here = page.file.src_uri
    folder, site = os.path.dirname(SOURCES.get(here, f"docs/{here}")), os.path.dirname(here)

    def turn(match: re.Match[str]) -> str:
        return os.path.relpath(_page_of(os.path.normpath(os.path.join(folder, match[1]))), site or ".")

    parts = _FENCED.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(turn, part) for index, part in enumerate(parts))


def _page_of(file: str) -> str:
    """The page of a file or folder of the repository."""
    if file == EXAMPLES:
        return "examples.md"
    if os.path.dirname(file) == EXAMPLES and file not in PAGES:
        return f"examples.md#{_anchor(os.path.basename(file))}"
    return PAGES.get(file) or file.removeprefix("docs/")


def _listing(path: Path) -> str:
    code = path.read_text(encoding="utf-8")
    return f"\n## {path.name} {{#{_anchor(path.name)}}}\n\n```{LANGUAGES[path.suffix]}\n{code}```\n"


def _anchor(name: str) -> str:
    return name.replace(".", "-")
