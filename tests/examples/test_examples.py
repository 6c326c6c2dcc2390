"""The examples, run as their README says; and run again with a result spoiled, which each has to notice."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PACKAGES = ("graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin")
MAX_LINES = 60

_ROW = re.compile(r"\| \[(?P<file>[\w.]+)\]\((?P=file)\) \| .+ \| `(?P<command>[^`]+)` \| `(?P<line>[^`]+)` \|")


class Row(NamedTuple):
    """What the README promises of an example."""

    command: str
    line: str


ROWS = {
    match["file"]: Row(match["command"], match["line"])
    for match in _ROW.finditer((EXAMPLES / "README.md").read_text(encoding="utf-8"))
}
FILES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".c"))

NAN = {".py": "float('nan')", ".c": "NAN"}
# Example -> the line before which an element of its result becomes wrong, and what does that; {} is "+ 1" or "* NaN".
SPOILED = {
    "conv_bias_relu.py": ("    error = ", 'pack["y"][0, 0, 0, 0] = pack["y"][0, 0, 0, 0] {}'),
    "attention.py": ("    q, k, v = (torch", 'pack["out"][1, 0, 0, 0] = pack["out"][1, 0, 0, 0] {}'),
    "tuning.py": ("    expected = ", "y[0, 0, 0] = y[0, 0, 0] {}"),
    "training.py": ("    exact = ", 'pack["v"][0, 0, 0, 0] = pack["v"][0, 0, 0, 0] {}'),
    "ahead_of_time.py": ("    x, w, b = (pack", 'pack["y"][0, 0] = pack["y"][0, 0] {}'),
    "test_fusion.py": ("    x, w, b = (torch", "fused[0, 0, 0, 0] = fused[0, 0, 0, 0] {}"),
    "hipdnn_plugin.c": ("  int wrong = 0;", "y[47] = y[47] {};"),
    "onnx_model.py": ("    session = ", "got[0, 0] = got[0, 0] {}"),
    "torch_compile.py": ("    wrong = ", 'state["norm.bias"][3] = state["norm.bias"][3] {}'),
    "onnxruntime_session.py": ("        errors[name] = ", "got[0] = got[0] {}"),
}


def checkout(folder: Path) -> Path:
    """A folder that looks like the root of a checkout, with examples that can be changed."""
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the README in a checkout, with a cache of that checkout's own."""
    cache = folder / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "FUSILLI_CACHE_DIR": str(cache),
        "PATH": os.pathsep.join((scripts, os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False
    )


def spoil(path: Path, line: str, statement: str) -> None:
    """Put a statement before a line of an example, with its indentation."""
    text = path.read_text(encoding="utf-8")
    assert text.count(f"\n{line}") == 1, f"{path.name} has not one line that begins with {line!r}"
    indent = line[: len(line) - len(line.lstrip())]
    path.write_text(text.replace(f"\n{line}", f"\n{indent}{statement}\n{line}"), encoding="utf-8")


def test_the_readme_lists_each_example() -> None:
    assert sorted(ROWS) == FILES == sorted(SPOILED)


@pytest.mark.a_few("conv_bias_relu.py-*", "hipdnn_plugin.c-*")
@pytest.mark.iree_cpu
@pytest.mark.ort
@pytest.mark.parametrize("fault", [pytest.param("+ 1", marks=pytest.mark.slow), "* NaN"])
@pytest.mark.parametrize("name", FILES)
def test_an_example_is_right_and_notices_a_wrong_element(name: str, fault: str, tmp_path: Path) -> None:
    row, folder = ROWS[name], checkout(tmp_path)
    for tool in ("cc", "fusilli") if name.endswith(".c") else ():
        if shutil.which(tool, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))) is None:
            pytest.skip(f"the example is run with {tool}, which is not here")
    done = run(row.command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    promised = re.escape(row.line).replace("…", ".+")
    assert re.fullmatch(promised, done.stdout.splitlines()[-1]), done.stdout

    line, statement = SPOILED[name]
    spoil(folder / "examples" / name, line, statement.format(fault.replace("NaN", NAN[Path(name).suffix])))
    done = run(row.command, folder)
    assert done.returncode == 1, f"{done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", FILES)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    opening = text.partition("*/" if name.endswith(".c") else '"""\n\n')[0]
    said = " ".join(opening.replace("\\\n", " ").split())
    for part in ROWS[name].command.split(" && "):
        assert part in said, f"{name} does not say: {part}"


def private_uses(tree: ast.Module) -> list[str]:
    """What a program takes of our packages that their `__init__` files do not offer."""
    ours, found = set[str](), list[str]()

    def take(module: str, name: str) -> None:
        package = importlib.import_module(module)
        if not hasattr(package, "__path__") or name not in package.__all__:
            found.append(f"{module}.{name}")

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for alias in node.names:
                take(node.module, alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner in ours:
                take(owner, node.attr)
            elif node.attr.startswith("_") and not node.attr.endswith("__"):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_an_example_uses_public_names_only(name: str) -> None:
    assert private_uses(ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from graph_api import Graph", []),
        ("from graph_api import numerics", ["graph_api.numerics"]),
        ("from graph_api.graph import Graph", ["graph_api.graph.Graph"]),
        ("from hipdnn_backend.offload import load", []),
        ("import fusilli_plugin\nfusilli_plugin.plugin_dir()", []),
        ("import fusilli_plugin\nfusilli_plugin.install", ["fusilli_plugin.install"]),
        ("model._made", ["model._made"]),
    ],
)
def test_what_counts_as_public(text: str, found: list[str]) -> None:
    assert private_uses(ast.parse(text)) == found
