"""The graphs of the self-test with their answers, which were computed in float64 once, and running them on a device.

``selftest.jsonl`` has a graph a line, and for each result positions, values and bounds of a device's error. So a device
is compared with what others were compared with, whatever the machine that it is in computes; and then, at all elements,
with the graph in float64.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from graph_api import FusilliError, Graph, NotSupportedError, TensorAttr, numerics
from iree_bridge import Device, Executable, Options, build
from iree_bridge.artifact.vectors import Sample, make_inputs

__all__ = ["ANSWERS", "Case", "Result", "given", "read_cases", "run_cases"]

ANSWERS: Final = Path(__file__).with_name("selftest.jsonl")
_AHEAD: Final = 4  # compiles for each one that runs

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A graph of the self-test.

    Attributes:
        name: unique.
        line: of the file.
    """

    name: str
    line: str

    @cached_property
    def graph(self) -> Graph:
        """The graph."""
        return Graph.from_json(json.dumps(json.loads(self.line)["graph"]))

    @cached_property
    def answers(self) -> dict[int, Sample]:
        """What its results have to be, by uid."""
        return {
            int(uid): Sample(np.array(where, np.int64), np.array(values), np.array(bounds))
            for uid, (where, values, bounds) in json.loads(self.line)["answers"].items()
        }

    def wrong(self, results: Mapping[TensorAttr, Array]) -> str:
        """The first result that is off the answers, "" if none is.

        Raises:
            FusilliError: a result has another shape.
        """
        for tensor, result in results.items():
            values = tensor.unpack(result) if tensor.data_type.is_packed else result
            found = self.answers[tensor.uid].check(tensor, values)
            if not found.ok:
                return str(found)
        return ""

    def wrong_anywhere(self, inputs: Mapping[TensorAttr, Array], results: Mapping[TensorAttr, Array]) -> str:
        """The first result that is off the graph in float64 at any element, "" if none is."""
        if any(node.op == "custom_op" for node in self.graph.nodes):
            return ""  # what such a text means is in no file
        return next((str(found) for found in numerics.check(self.graph, inputs, results) if not found.ok), "")


@dataclass(frozen=True)
class Result:
    """What came of a case.

    Attributes:
        outcome: ``right``, ``wrong``, ``declined`` or ``failed``.
        text: why it is not right.
        seconds: of the run, arrays copied to the device and back.
    """

    name: str
    operations: tuple[str, ...]
    types: tuple[str, ...]
    outcome: str
    text: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def read_cases() -> list[Case]:
    """All of the file."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines()
    return [Case(json.loads(line)["name"], line) for line in lines]


def given(graph: Graph) -> dict[TensorAttr, Array]:
    """The inputs of a case, by the rule of test vectors; variances are positive."""
    made = make_inputs(graph, 0)
    for tensor, array in made.items():
        if "variance" in tensor.name:
            array[...] = np.abs(array) + np.asarray(0.25, array.dtype)
    return made


def run_cases(cases: Sequence[Case], device: Device, options: Options, say: Callable[[str], None]) -> Iterator[Result]:
    """Compile and run cases; several are compiled while one runs."""
    workers = max(1, options.workers)
    with ThreadPoolExecutor(workers) as pool:
        waiting: list[tuple[Case, Future[Executable]]] = []
        left = iter(cases)
        for case in left:
            waiting.append((case, pool.submit(build, case.graph, device, options=options)))
            if len(waiting) >= workers * _AHEAD:
                yield _result(*waiting.pop(0), say)
        for case, code in waiting:
            yield _result(case, code, say)


def _result(case: Case, code: Future[Executable], say: Callable[[str], None]) -> Result:
    say(case.name)
    operations = tuple(sorted({node.op for node in case.graph.nodes}))
    types = tuple(sorted({tensor.data_type.name for tensor in case.graph.tensors}))
    outcome, text, seconds = "right", "", 0.0
    try:
        executable = code.result()
        results = {tensor: tensor.memory() for tensor in case.graph.arguments().outputs}
        inputs = given(case.graph)
        start = time.perf_counter()
        executable.run({**inputs, **results})
        seconds = time.perf_counter() - start
        text = case.wrong(results) or case.wrong_anywhere(inputs, results)
        outcome = "wrong" if text else "right"
    except NotSupportedError as error:
        outcome, text = "declined", str(error)
    except FusilliError as error:
        outcome, text = "failed", str(error)
    return Result(case.name, operations, types, outcome, text, round(seconds, 6))
