"""All checks of a plugin, each in a process of its own with a time limit, and what they found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fusilli_ground.environment import environment
from fusilli_plugin import __version__
from fusilli_plugin.conformance.checks import CHECKS
from fusilli_plugin.conformance.findings import Row, Tally
from fusilli_plugin.conformance.place import PlaceName, merged_variables, standin_folder
from graph_api import FusilliError

__all__ = ["Plan", "Report", "run_suite"]

_LINES: Final = 6  # of what a process that died said last
_DEATHS: Final = 3  # of one family of random graphs, before it is left at that
_OUTCOMES: Final = ("right", "wrong", "broken")


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        path: of the plugin.
        place: where it works.
        limit: seconds for a check; more is a hang.
        graphs: random graphs of each family.
        cycles: repetitions in which leaks show.
        names: of the checks, or beginnings of them.
        jobs: checks at a time.
    """

    path: Path
    place: PlaceName
    limit: float = 180.0
    graphs: int = 8
    seed: int = 0
    cycles: int = 200
    names: Sequence[str] = ()
    jobs: int = 2


@dataclass
class Report:
    """What was found.

    Attributes:
        rows: a check each, in the order of `CHECKS`; a graph of which the plugin died has one of its own.
        operations: by name, how the random graphs with each went.
    """

    plan: Plan
    rows: list[Row] = field(default_factory=list)
    operations: dict[str, Tally] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no check failed, and one was passed."""
        return not any(row.is_failure for row in self.rows) and any(row.verdict == "passed" for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """The document that `fusilli conformance --json` writes."""
        return {
            "format": "fusilli-conformance",
            "version": 1,
            "made_by": f"fusilli-plugin {__version__}",
            "plugin": str(self.plan.path),
            "place": str(self.plan.place),
            "seed": self.plan.seed,
            "ok": self.ok,
            "checks": [{**asdict(row), "about": _about(row.check)} for row in self.rows],
            "operations": {name: tally.as_json() for name, tally in sorted(self.operations.items())},
        }

    def as_junit(self) -> bytes:
        """The rows as JUnit's XML."""
        suite = ElementTree.Element(
            "testsuite", name=f"conformance of {self.plan.path.name}", tests=str(len(self.rows))
        )
        counts = {"failures": ("failed",), "errors": ("crashed", "hung"), "skipped": ("skipped",)}
        for attribute, verdicts in counts.items():
            suite.set(attribute, str(sum(row.verdict in verdicts for row in self.rows)))
        suite.set("time", f"{sum(row.seconds for row in self.rows):.2f}")
        for row in self.rows:
            case = ElementTree.SubElement(
                suite, "testcase", classname="conformance", name=row.check, time=f"{row.seconds:.2f}"
            )
            if row.verdict == "skipped":
                ElementTree.SubElement(case, "skipped", message=_xml(row.text))
            elif row.is_failure:
                tag = "failure" if row.verdict == "failed" else "error"
                ElementTree.SubElement(case, tag, type=row.verdict, message=_xml(row.text))
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def run_suite(plan: Plan, say: Callable[[str], None]) -> Report:
    """Run the checks.

    Args:
        plan: which, and where.
        say: told of each row.

    Raises:
        FusilliError: a name is none, or nothing can be checked here.
    """
    names = _chosen(plan.names)
    report, lock = Report(plan), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="fusilli-conformance-") as folder:
        hip = standin_folder(Path(folder)) if plan.place.device is None else None
        variables = merged_variables(dict(environment()), plan.place.variables(hip))
        with contextlib.closing(_Processes()) as processes, ThreadPoolExecutor(plan.jobs) as pool:

            def one(name: str) -> list[Row]:
                rows: list[Row] = []
                for row, graphs in _rows(plan, name, variables, processes):
                    rows.append(row)
                    with lock:
                        _count(report.operations, graphs)
                        say(f"{row.check}: {row.verdict}: {row.text}")
                return rows

            try:
                for rows in pool.map(one, names):
                    report.rows += rows
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                processes.close()
                raise
    return report


def _chosen(wanted: Sequence[str]) -> list[str]:
    unknown = [each for each in wanted if not any(name.startswith(each) for name in CHECKS)]
    if unknown:
        raise FusilliError(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    return [name for name in CHECKS if not wanted or any(name.startswith(each) for each in wanted)]


def _rows(
    plan: Plan, name: str, variables: dict[str, str], processes: _Processes
) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
    """The rows of a check with the graphs that it told of; what dies of a random graph goes on behind it."""
    first = 0
    for _ in range(_DEATHS):
        row, graphs = _Process(replace(plan), name, first, variables, processes).row()
        died = row.verdict in ("crashed", "hung") and graphs and graphs[-1]["outcome"] == "begun"
        if died:
            row = replace(row, check=f"{name} {graphs[-1]['number']}")
        yield row, graphs
        if not died:
            return
        first = graphs[-1]["number"] + 1


def _count(operations: dict[str, Tally], graphs: list[dict[str, Any]]) -> None:
    last = {graph["number"]: graph for graph in graphs}
    for graph in last.values():
        outcome = "broken" if graph["outcome"] == "begun" else graph["outcome"]
        for name in graph["operations"]:
            tally = operations.setdefault(name, Tally())
            tally.asked += 1
            tally.claimed += outcome != "declined"
            if outcome in _OUTCOMES:
                setattr(tally, outcome, getattr(tally, outcome) + 1)


class _Processes:
    """Those that are alive, with their own children; none is left behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def start(self, request: dict[str, Any], variables: dict[str, str], errors: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fusilli_plugin.conformance.child"]
        with self._lock:
            if self._closed:
                raise FusilliError("interrupted")
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=variables,
                start_new_session=True,
            )  # fmt: skip
            self._alive.add(process)
        assert process.stdin is not None
        process.stdin.write((json.dumps(request) + "\n").encode())
        process.stdin.close()
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with self._lock:
            self._alive.discard(process)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            alive = list(self._alive)
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class _Process:
    """One process, and the row that it becomes."""

    def __init__(self, plan: Plan, name: str, first: int, variables: dict[str, str], processes: _Processes) -> None:
        self._plan, self._name, self._processes, self._variables = plan, name, processes, variables
        self._request = {
            "check": name,
            "path": str(plan.path),
            "place": str(plan.place),
            "seed": plan.seed,
            "cycles": plan.cycles,
            "graphs": plan.graphs,
            "first": first,
        }
        self._at = "it began"
        self._graphs: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None

    def row(self) -> tuple[Row, list[dict[str, Any]]]:
        """Run it to its end.

        Raises:
            FusilliError: nothing can be checked at this place.
        """
        start = time.monotonic()
        with tempfile.TemporaryFile() as errors:
            process = self._processes.start(self._request, self._variables, errors.fileno())
            timer = threading.Timer(self._plan.limit, self._kill, (process,))
            timer.start()
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._take(line)
                code = process.wait()
            finally:
                hung = not timer.is_alive()
                timer.cancel()
                self._processes.end(process)
                process.stdout.close()
            errors.seek(0)
            said = errors.read().decode(errors="replace").splitlines()
        verdict, text = self._verdict(code, hung, said)
        return Row(self._name, verdict, text, round(time.monotonic() - start, 2)), self._graphs

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _take(self, line: bytes) -> None:
        document = json.loads(line)
        if "at" in document:
            self._at = document["at"]
        elif "graph" in document:
            self._graphs.append(document["graph"])
        else:
            self._last = document

    def _verdict(self, code: int, hung: bool, said: Sequence[str]) -> tuple[str, str]:
        if self._last is not None:
            if self._last["verdict"] == "unusable":
                raise FusilliError(self._last["text"])
            return self._last["verdict"], self._last["text"]
        if hung:
            return "hung", f"no end within {self._plan.limit:g} s: {self._at}"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        tail = "; ".join(said[-_LINES:])
        return "crashed", f"{how}: {self._at}{f' ({tail})' if tail else ''}"


def _about(name: str) -> str:
    """What a check is about; a graph that ended the process stands behind its name."""
    known = CHECKS.get(name) or CHECKS[name.rpartition(" ")[0]]
    return known.about


def _xml(text: str) -> str:
    """What XML can hold of a text that comes from anybody."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
