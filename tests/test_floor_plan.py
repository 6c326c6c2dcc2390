"""The floor plan: rooms without circles, few loose files, no reaching for what another package calls private."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.test_architecture import OURS, ROOT, SOURCES

# The files at the root of each package: what programs import, and what all of its rooms stand on. A new file belongs
# into a room; if it does not, name it here and in docs/code_map.md.
LOOSE = {
    "fusilli_ground": {
        "discovery", "dlpack", "environment", "errors", "files", "float_formats", "gpu_runtime", "late_numpy", "locks",
        "mapped", "spelling", "strides", "support", "texts", "torch_scalars", "torch_types",
    },
    "graph_api": {
        "bounded", "builder", "calls", "dtypes", "errors", "graph", "layout", "node", "numerics", "serialization",
        "split", "tensor",
    },
    "iree_bridge": {"api"},
    "hipdnn_backend": {"engine", "errors", "execution", "onnx_op", "registry"},
    "fusilli_plugin": {"__main__", "_boot", "attach", "errors", "importers"},
}  # fmt: skip


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in SOURCES}


def _is_for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _import_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run, those inside functions included."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not _is_for_types_alone(child):
            yield from _import_nodes(child)


def _imported(path: Path) -> set[str]:
    """Our modules that a file imports."""
    found = set()
    for node in _import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = prefix + alias.name
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name:
                found.add(name)
    return found


ARROWS = {name: _imported(path) - {name} for name, path in MODULES.items()}


def _floor(folder: str, arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The import graph of what lies in a folder, each folder inside it as one."""
    depth = folder.count(".") + 2

    def room(name: str) -> str:
        return ".".join(name.split(".")[:depth])

    inside: dict[str, set[str]] = {}
    for name, targets in arrows.items():
        if name.startswith(f"{folder}."):
            near = {room(target) for target in targets if target.startswith(f"{folder}.")}
            inside.setdefault(room(name), set()).update(near - {room(name)})
    return inside


def _circles(graph: Mapping[str, set[str]]) -> set[str]:
    """What is left when all that imports nothing which is left has gone: the members of circles and who needs them."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in free}
    return set(left)


FOLDERS = sorted({name.rpartition(".")[0] for name in MODULES if "." in name})


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_no_circle(folder: str) -> None:
    assert not _circles(_floor(folder, ARROWS))


def test_a_circle_is_seen() -> None:
    arrows = {"p.a.x": {"p.b.y"}, "p.b.y": {"p.b.z"}, "p.b.z": {"p.a.w"}, "p.a.w": set(), "p.c": {"p.a.x"}}
    assert not _circles(arrows)
    assert _circles(_floor("p", arrows)) == {"p.a", "p.b", "p.c"}, "no two files are one, but the rooms are"


@pytest.mark.parametrize("package", OURS)
def test_few_files_lie_loose(package: str) -> None:
    assert {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"} == LOOSE[package]


@pytest.mark.parametrize("package", OURS)
def test_private_names_stay_in_their_folder(package: str) -> None:
    """A module or name that begins with ``_`` is used beside its file only."""
    reached = []
    for name, path in MODULES.items():
        if name.partition(".")[0] != package:
            continue
        for node in _import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
                words = [*str(node.module).split("."), *(alias.name for alias in node.names)]
                private = [word for word in words if word.startswith("_") and not word.startswith("__")]
                if private and path.parent != ROOT.joinpath(*str(node.module).split(".")):
                    reached.append(f"{path.relative_to(ROOT)}:{node.lineno}: {', '.join(private)} of {node.module}")
    assert not reached
