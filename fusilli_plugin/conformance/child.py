"""The process of one check: ``python -m fusilli_plugin.conformance.child``, told by JSON on standard input.

It answers with JSON documents, one a line: ``{"at": what is tried now}``, ``{"graph": a graph's outcome}``, and the
last, ``{"verdict": ..., "text": ...}``. Where the plugin ends the process, or hangs, that one is missing.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from typing import Any, Final

from fusilli_plugin.conformance.bench import Bench
from fusilli_plugin.conformance.checks import CHECKS
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.place import Place, PlaceName
from graph_api import FusilliError

__all__ = ["main"]


class _Answers:
    """Lines for the parent; what the plugin and its libraries print goes to standard error."""

    def __init__(self) -> None:
        self._pipe: Final = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._last = ""

    def write(self, document: dict[str, Any]) -> None:
        with self._lock:
            os.write(self._pipe, (json.dumps(document) + "\n").encode())

    def say(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self.write({"at": text})


def main() -> None:
    """Run the check that standard input names."""
    request = json.loads(sys.stdin.readline())
    answers = _Answers()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        verdict, text = "passed", _run(request, answers)
    except BrokenRule as error:
        verdict, text = "failed", str(error)
    except NotTried as error:
        verdict, text = "skipped", str(error)
    except FusilliError as error:
        verdict, text = "unusable", str(error)
    answers.write({"verdict": verdict, "text": text})
    os._exit(0)  # what a plugin does when it is unloaded behind its host is a check of its own


def _run(request: dict[str, Any], answers: _Answers) -> str:
    place = Place(PlaceName.parse(request["place"]))
    bench = Bench(
        place,
        request["path"],
        seed=request["seed"],
        cycles=request["cycles"],
        graphs=request["graphs"],
        first=request["first"],
        say=answers.say,
        tell=lambda facts: answers.write({"graph": facts}),
    )
    return CHECKS[request["check"]].run(bench)


if __name__ == "__main__":
    main()
