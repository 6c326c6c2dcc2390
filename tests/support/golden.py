"""The figures of compiled code in ``tests/data/golden_gfx.json``: measured, written, compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from iree_bridge import Options, Target
from iree_bridge.compile.inspect import Inspection, inspect_graph
from iree_bridge.compile.versions import iree_version
from tests.support.golden_graphs import FLAGS, GRAPHS

__all__ = ["FILE", "GOLDEN_TARGETS", "UPDATE", "differences", "dumps", "figures_of", "load", "measure"]

FILE = Path(__file__).resolve().parents[1] / "data" / "golden_gfx.json"
GOLDEN_TARGETS = ("gfx942", "gfx950")
UPDATE = "pytest tests/iree_bridge/test_golden.py -m slow --update-golden"

Figures = dict[str, Any]
Table = Mapping[tuple[str, str], Figures]
"""Figures by (graph, target)."""


def figures_of(inspection: Inspection) -> Figures:
    """Sums over the kernels: dispatches, matrix instructions, spills. Maxima: registers, and bytes of memory."""
    kernels = inspection.kernels
    return {
        "dispatches": inspection.dispatches,
        "vgprs": max((kernel.vgprs for kernel in kernels), default=0),
        "spills": sum(kernel.vgpr_spills + kernel.sgpr_spills for kernel in kernels),
        "lds": max((kernel.lds for kernel in kernels), default=0),
        "scratch": max((kernel.scratch for kernel in kernels), default=0),
        "matrix": dict(sorted(inspection.matrix.items())),
    }


def measure(pairs: Iterable[tuple[str, str]] | None = None) -> dict[tuple[str, str], Figures]:
    """Compiles (graph, target) pairs, by default all, in as many workers as the options allow."""
    wanted = sorted(product(GRAPHS, GOLDEN_TARGETS)) if pairs is None else list(pairs)

    def one(pair: tuple[str, str]) -> Figures:
        name, target = pair
        options = replace(Options.from_env(), extra_flags=FLAGS.get(name, ()))
        return figures_of(inspect_graph(GRAPHS[name]().validate(), Target.parse(target), options))

    with ThreadPoolExecutor(Options.from_env().workers) as threads:
        return dict(zip(wanted, threads.map(one, wanted), strict=True))


def dumps(table: Table) -> str:
    """The text of the file: sorted, one line per graph and target, so that a change reads as lines that changed."""
    lines: list[str] = []
    for name in sorted({name for name, _ in table}):
        rows = [f"      {json.dumps(t)}: {json.dumps(table[n, t])}" for n, t in sorted(table) if n == name]
        lines.append(f"    {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n    }")
    return f'{{\n  "iree": {json.dumps(iree_version())},\n  "graphs": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


def load(text: str | None = None) -> dict[tuple[str, str], Figures]:
    """The figures in the file, or in its text."""
    graphs = json.loads(FILE.read_text("utf-8") if text is None else text)["graphs"]
    return {(name, target): figures for name, targets in graphs.items() for target, figures in targets.items()}


def differences(old: Table, new: Table) -> str:
    """What changed, one line per graph and target; empty if nothing did. Pairs that ``new`` lacks are not compared."""
    lines = [
        f"{name} on {target}: {', '.join(changes)}"
        for (name, target), figures in sorted(new.items())
        if (changes := _changes(old.get((name, target)), figures))
    ]
    return "\n".join(lines)


def _changes(old: Figures | None, new: Figures) -> list[str]:
    if old is None:
        return ["is not in the file"]
    before, after = _flat(old), _flat(new)
    keys = dict.fromkeys((*before, *after))
    return [
        f"{key} {before.get(key, 0)} -> {after.get(key, 0)}" for key in keys if before.get(key, 0) != after.get(key, 0)
    ]


def _flat(figures: Figures) -> Figures:
    return {key: value for key, value in figures.items() if key != "matrix"} | figures["matrix"]
