from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import iree_bridge.tuning
from graph_api import Graph
from iree_bridge.compile.tuned import RIGHT, Figure, Record

Fusilli = Callable[..., Result]


def test_the_reason_of_each_form_that_has_no_time_is_told(
    fusilli: Fusilli, add_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = (
        Figure("plain", RIGHT, 2e-3, 1e-5),
        Figure("tiles", RIGHT, 1e-3, 1e-5),
        Figure("packed", "not tried", text="the time was over"),
        Figure("odd", "wrong", text="off by 3; reproducer: /there"),
    )

    def measured(graph: Graph, *_given: Any, **_named: Any) -> Record:
        return Record("0" * 64, graph.name, "cpu", "here", "tiles", figures)

    monkeypatch.setattr(iree_bridge.tuning, "tune", measured)
    result = fusilli("tune", add_file, "--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    (row,) = [line.split() for line in lines if "tiles" in line]
    assert row == ["add_relu", "2", "tiles", "1", "0.50", "packed", "(not", "tried),", "odd", "(wrong)"]
    assert "add_relu: packed: not tried: the time was over" in lines
    assert "add_relu: odd: wrong: off by 3; reproducer: /there" in lines
    assert lines[-1].endswith("results in the cache")
