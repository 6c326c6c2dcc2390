"""SECURITY.md: each statement names tests, and those exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _rows() -> list[str]:
    statements, heading, _ = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("\n## Fuzzing\n")
    assert heading
    lines = statements.splitlines()
    return [line for line in lines if line.startswith("|") and not line.startswith(("| statement", "| who", "|---"))]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[2:40])
def test_each_statement_has_its_tests(row: str) -> None:
    named = _TEST.findall(row)
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def _sources() -> list[Path]:
    packages = ("fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 20
    return sources


@cache
def _nodes() -> list[tuple[Path, ast.AST]]:
    """What the two tests below look for, with its file; parsing all takes seconds."""
    looked_for = ast.Attribute | ast.Import | ast.ImportFrom | ast.keyword
    trees = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in _sources())
    return [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, looked_for)]


# The compiler of the shim is the user's; the search for plugins says which variable it does not trust.
_READ_THE_ENVIRONMENT = {
    "fusilli_ground/environment.py", "hipdnn_backend/plugins/search.py", "fusilli_plugin/edge/build.py",
}  # fmt: skip


def test_one_place_knows_whether_the_environment_may_be_trusted() -> None:
    reading = {
        path.relative_to(ROOT).as_posix()
        for path, node in _nodes()
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "getenvb")
    }
    assert reading == _READ_THE_ENVIRONMENT
    for source in (ROOT / "fusilli_plugin" / "shim").glob("*.c"):
        assert "getenv(" not in source.read_text(encoding="utf-8").replace("secure_getenv(", ""), source


def test_nothing_imports_pickle() -> None:
    for path, node in _nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = getattr(node, "module", None) or ""
        assert not {"pickle", "marshal", "shelve", "dill"} & {name.partition(".")[0] for name in [*names, module]}, path
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), path
            assert node.value.value is False, path
