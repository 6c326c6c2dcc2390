"""Faults that tests put under the workers: a ``sitecustomize`` in a folder of the test's, no door in the product."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SITE = """
import os, time

import numpy as np
from fusilli_plugin.testing import places
from graph_api import ExecutionError

def run(self, graph, inputs):
    ops = [node.op for node in graph.nodes]
    found = {t: t.data_type.rounded(value) for t, value in graph.reference(inputs).items()}
LINES
    return found

places.DevicePlace.run = run
places.EnginePlace.declines = lambda self, graph: f"graph '{graph.name}': {len(graph.nodes)} nodes are too many"
"""


def environment(folder: Path, fault: str) -> dict[str, str]:
    """For a process whose workers run graphs in float64, and then ``fault``, lines of Python; all engines decline."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    lines = "\n".join(f"    {line}" for line in fault.strip().splitlines())
    (site / "sitecustomize.py").write_text(SITE.replace("LINES", lines))
    cache = folder / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    return os.environ | {
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "FUSILLI_CACHE_DIR": str(cache),
        "NO_COLOR": "1",
    }


def fusilli(
    folder: Path, *arguments: str, fault: str = "", timeout: float = 120, tree: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """A command in a folder."""
    given = environment(folder, fault) if fault else os.environ | {"NO_COLOR": "1"}
    given |= {} if fault else {"PYTHONPATH": str(tree)}
    return subprocess.run(
        [sys.executable, "-m", "fusilli_plugin", *arguments],
        cwd=folder, env=given, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
