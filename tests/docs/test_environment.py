"""docs/environment.md has the variables that the code reads, all of them and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.pages import PACKAGES, ROOT

# Not read by us, but told, since they decide what our users see.
OTHERS = {
    "HIP_VISIBLE_DEVICES",  # by HIP
    "HIPDNN_LOG_GRAPH_DIR",  # by hipDNN
    "HIPDNN_LOG_LEVEL",  # likewise
    "XDG_CACHE_HOME",  # by platformdirs
}
# Constants that look like variables.
NO_VARIABLES = {
    "FUSILLI_ENGINE",  # the name of the engine
    "HIPDNN_LEFTOVER",  # the name of a custom operation
}
_OURS = re.compile(r"(FUSILLI|HIPDNN)_[A-Z_]+")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
_ASKS = re.compile(r"environ|getenv")


def _documented() -> list[str]:
    rows = re.findall(r"^\| (`[A-Z].*?`) \|", (ROOT / "docs/environment.md").read_text("utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)]


def _of_python(text: str) -> Iterator[str]:
    """Texts that are names of ours, and all names in capitals beside a question to the environment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If | ast.While):
            node = node.test
        elif not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OURS.fullmatch(node.value):
                yield node.value
            continue
        if _ASKS.search(ast.unparse(node)):
            texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
            yield from (each for each in texts if isinstance(each, str) and _VARIABLE.fullmatch(each))


def _of_c(text: str) -> list[str]:
    return re.findall(r'getenv\("(\w+)"\)', text)


@cache
def _read() -> dict[str, Path]:
    """Variable -> a file that reads it."""
    readers = {".py": _of_python, ".c": _of_c, ".h": _of_c}
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*")) if path.suffix in readers]
    found = {name: path.relative_to(ROOT) for path in files for name in readers[path.suffix](path.read_text("utf-8"))}
    return {name: path for name, path in found.items() if name not in NO_VARIABLES}


def test_every_variable_that_is_read_is_documented() -> None:
    missing = {name: str(path) for name, path in _read().items() if name not in _documented()}
    assert not missing, "add them to docs/environment.md"


def test_every_variable_that_is_documented_is_read() -> None:
    names = _documented()
    assert len(names) == len(set(names)), "a variable is documented twice"
    assert set(names) - OTHERS == set(_read()) - OTHERS


def test_readers_are_seen() -> None:
    assert set(_of_python('a = os.environ["AB"]\nif b.get(environment().get("CD")): pass\nx = "FUSILLI_X"')) == {
        "AB", "CD", "FUSILLI_X",
    }  # fmt: skip
    assert list(_of_python('y = [environ.get(name) for name in ("EF", "GH")]\nz = "IJ"')) == ["EF", "GH"]
    assert _of_c('secure_getenv("KL"); getenv(name)') == ["KL"]
