"""Writes ``fusilli_plugin/checks/selftest.jsonl``: the graphs of `fusilli selftest` and what they have to give.

``python -m tests.support.selftest_answers``. The results are those of `graph_api` in float64, at positions that a rule
draws; no compiler and no device takes part. Graphs that are there already stay as they are: a self-test of today is
comparable with one of later.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from fusilli_plugin.checks import selftest
from fusilli_plugin.checks.selftest_cases import ANSWERS, Case, given, read_cases
from fusilli_plugin.testing.graphs import FAMILIES, graph
from graph_api import Graph
from graph_api.numerics import evaluate
from iree_bridge import Target, support
from iree_bridge.artifact.vectors import positions, too_expensive

COUNT: Final = 200
SAMPLES: Final = 24
_TARGETS: Final = ("cpu", "gfx90a", "gfx942", "gfx950")
_MAX_ELEMENTS: Final = 150_000
_DIGITS: Final = {"DOUBLE": 17, "INT32": 17}


def line_of(name: str, made: Graph) -> str | None:
    """A case as a line; None if it says little: results that are no numbers, or bounds as large as they."""
    inputs = given(made)
    evaluation = evaluate(made, dict(inputs))
    answers: dict[str, list[Any]] = {}
    for number, tensor in enumerate(made.arguments().outputs):
        exact = evaluation.values[tensor]
        bound = np.broadcast_to(evaluation.errors[tensor], exact.shape).reshape(-1)
        exact = exact.reshape(-1)
        where = positions(exact.size, number)
        if len(where) > SAMPLES:
            where = np.unique([*where[:: len(where) // SAMPLES + 1], exact.size - 1])
        kept = [int(index) for index in where if math.isfinite(exact[index]) and math.isfinite(bound[index])]
        if len(kept) < len(where) / 2 or np.median(bound[kept]) > np.max(np.abs(exact[kept])) / 4:
            return None
        digits = _DIGITS.get(tensor.data_type.name, 10)
        answers[str(tensor.uid)] = [
            kept,
            [float(f"{exact[index]:.{digits}g}") for index in kept],
            [float(f"{bound[index] * 1.01:.3g}") for index in kept],
        ]
    document = {"name": name, "graph": json.loads(made.to_json()), "answers": answers}
    return json.dumps(document, separators=(",", ":"))


def candidates() -> Iterator[tuple[str, Graph]]:
    """The graphs that compilers got wrong once, then random ones of each family in turn."""
    for name, make in selftest.GRAPHS.items():
        yield name, make()
    for seed in range(1000):
        for family in FAMILIES:
            yield f"{family} {seed}", graph(seed, family)


def is_small(made: Graph) -> bool:
    tensors = made.arguments()
    return sum(tensor.volume for tensor in (*tensors.outputs, *tensors.inputs)) <= _MAX_ELEMENTS


def main() -> None:
    """Write the file."""
    lines = {case.name: case.line for case in read_cases()} if "--anew" not in sys.argv and ANSWERS.exists() else {}
    for number, (name, made) in enumerate(candidates()):
        if len(lines) == COUNT:
            break
        fits = number < len(selftest.GRAPHS) or (is_small(made) and not too_expensive(made))
        if name in lines or not fits:
            continue
        if all(support(made, Target.parse(target)) for target in _TARGETS):
            line = line_of(name, made)
            if line is not None:
                lines[name] = line
    ANSWERS.write_text("".join(f"{line}\n" for line in lines.values()))
    sys.stdout.write(f"{len(lines)} graphs, {ANSWERS.stat().st_size} bytes\n")


def recomputed(case: Case) -> str | None:
    """The line that this tool would write for a case."""
    return line_of(case.name, case.graph)


if __name__ == "__main__":
    main()
