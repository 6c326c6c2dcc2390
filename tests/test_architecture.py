"""The import table: which package may import which, and where each third-party library stays."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph_api import DataType, Graph, PointwiseMode

ROOT = Path(__file__).resolve().parents[1]

# package -> our packages that it may import
OURS: dict[str, frozenset[str]] = {
    "fusilli_ground": frozenset(),
    "graph_api": frozenset({"fusilli_ground"}),
    "iree_bridge": frozenset({"fusilli_ground", "graph_api"}),
    "hipdnn_backend": frozenset({"fusilli_ground"}),
    "fusilli_plugin": frozenset({"fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend"}),
}

# third-party module -> files and folders (ending in "/") that may import it; "" is anywhere
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "numpy": ("",),
    "ml_dtypes": ("",),
    # the compiler lives in worker processes: some inputs crash it
    "iree.compiler": ("iree_bridge/emit/mlir.py", "iree_bridge/compile/iree_compiler.py"),
    "iree.runtime": ("iree_bridge/devices/iree_runtime.py",),
    "iree._runtime": ("iree_bridge/devices/iree_runtime.py",),
    "hip": ("iree_bridge/devices/hip.py", "hipdnn_backend/device/memory.py"),
    "rocm": ("iree_bridge/devices/hip.py", "hipdnn_backend/device/memory.py"),
    "platformdirs": ("iree_bridge/",),
    "flatbuffers": ("hipdnn_backend/wire/",),
    "torch": ("hipdnn_backend/offload/", "fusilli_plugin/bench/"),
    "torch_mlir": ("hipdnn_backend/offload/",),
    "onnx": (
        "hipdnn_backend/offload/",
        "fusilli_plugin/ort_ep/",
        "fusilli_plugin/fallback/ort_engine.py",
        "fusilli_plugin/checks/",
        "fusilli_plugin/bench/",
    ),
    # the exceptions of onnx's own file format
    "google.protobuf": ("hipdnn_backend/offload/", "fusilli_plugin/ort_ep/", "fusilli_plugin/checks/"),
    "onnxruntime": (
        "fusilli_plugin/ort_ep/",
        "fusilli_plugin/fallback/ort_engine.py",
        "fusilli_plugin/checks/",
        "fusilli_plugin/bench/",
    ),
    "click": ("fusilli_plugin/cli/",),
    "rich": ("fusilli_plugin/cli/",),
    "jinja2": ("fusilli_plugin/report/page.py", "fusilli_plugin/bench/page.py"),
    "cffi": ("fusilli_plugin/",),
    "hypothesis": ("fusilli_plugin/testing/strategies.py",),
    "pytest": ("fusilli_plugin/testing/",),
    "_cffi_backend": ("fusilli_plugin/edge/link.py",),
}

SOURCES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            # `from iree import compiler` imports iree.compiler, so names count as parts of the path
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _is_at(relative: Path, places: tuple[str, ...]) -> bool:
    name = relative.as_posix()
    return any(name == place or (place[-1:] in ("", "/") and name.startswith(place)) for place in places)


def _complaint(relative: Path, name: str) -> str | None:
    """Why a file may not import a module, or None if it may."""
    top, package = name.partition(".")[0], relative.parts[0]
    if top in sys.stdlib_module_names or top == package:
        return None
    if top in OURS:
        return None if top in OURS[package] else f"{package} may import {sorted(OURS[package]) or 'none of ours'}"
    for module, places in THIRD_PARTY.items():
        if _is_within(name, module):
            return None if _is_at(relative, places) else f"it stays inside {', '.join(places)}"
    return "it is not in the table"


def test_the_table_names_every_package() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"}
    assert packages == set(OURS)


@pytest.mark.parametrize("package", OURS)
def test_imports_follow_the_table(package: str) -> None:
    complaints = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}: {why}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == package
        for line, name in _imports(path)
        if (why := _complaint(path.relative_to(ROOT), name))
    ]
    assert not complaints, "\n" + "\n".join(complaints)


def test_a_forbidden_import_is_seen() -> None:
    assert _complaint(Path("graph_api/graph.py"), "iree_bridge.build")
    assert _complaint(Path("graph_api/graph.py"), "iree.runtime")
    assert _complaint(Path("fusilli_plugin/cli/main.py"), "onnxruntime")
    assert _complaint(Path("hipdnn_backend/__init__.py"), "fusilli_plugin.engine.engine")
    assert _complaint(Path("iree_bridge/__init__.py"), "iree.compiler.api")
    assert _complaint(Path("graph_api/graph.py"), "requests")
    assert _complaint(Path("iree_bridge/__init__.py"), "graph_api.Graph") is None


def _loaded_by(statement: str) -> set[str]:
    """Modules in a fresh interpreter after a statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return set(out.stdout.split())


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("graph_api", ("iree", "torch", "hip", "rocm", "flatbuffers", "onnx", "click", "rich")),
        ("iree_bridge", ("iree.compiler", "torch", "hip", "rocm", "flatbuffers", "onnx", "click", "rich")),
        ("hipdnn_backend", ("iree", "torch", "hip", "rocm", "onnx", "graph_api")),
        ("fusilli_plugin", ("iree", "torch", "hip", "rocm", "onnx", "click", "rich")),
        ("fusilli_plugin.report", ("iree", "torch", "onnx", "jinja2")),
        # for what the plugin imports, the first call of a host waits
        (
            "fusilli_plugin.attach",
            (
                "iree.compiler",
                "iree.runtime",
                "hip",
                "rocm",
                "ml_dtypes",
                "flatbuffers",
                "subprocess",
                "socket",
                "concurrent",
                "secrets",
                "tempfile",
                "importlib.metadata",
                "iree_bridge.compile.pool",
            ),
        ),
    ],
)
def test_importing_a_package_is_light(package: str, absent: tuple[str, ...]) -> None:
    loaded = _loaded_by(f"import {package}")
    assert package in loaded
    assert not sorted(name for name in loaded for module in absent if _is_within(name, module))


def test_emitting_a_graph_needs_no_numpy() -> None:
    """A compile worker starts sooner without."""
    g = Graph("g", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x, w, b = (g.tensor(name, dim=dim) for name, dim in (("x", (1, 4, 8, 8)), ("w", (4, 4, 3, 3)), ("b", (1, 4, 1, 1))))
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=1), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    for target in ("cpu", "gfx942"):
        loaded = _loaded_by(
            "from graph_api import Graph\nfrom iree_bridge.emit.module import emit_module\n"
            f"from iree_bridge.targets.target import Target\n"
            f"emit_module(Graph.from_json({g.validate().to_json()!r}), Target.parse({target!r}))"
        )
        assert "iree.compiler.ir" in loaded
        assert not {"numpy", "ml_dtypes"} & loaded


DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))
_PATH_IN_CODE = re.compile(rf"`((?:{'|'.join([*OURS, 'tests', 'docs', 'examples'])})/[\w./*-]+)`")
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [name for name in _PATH_IN_CODE.findall(text) if not any(ROOT.glob(name.rstrip("/")))]
    missing += [link for link in _LINK.findall(text) if not (document.parent / link).exists()]
    assert not missing


def test_programs_that_were_written_before_the_rooms_find_what_they_import() -> None:
    for old, new, name in (
        ("fusilli_plugin.importers", "fusilli_plugin.engine.importers", "export_graph"),
        ("hipdnn_backend.registry", "hipdnn_backend.host.registry", "Registry"),
        ("hipdnn_backend.execution", "hipdnn_backend.host.execution", "Host"),
    ):
        assert getattr(importlib.import_module(old), name) is getattr(importlib.import_module(new), name)
