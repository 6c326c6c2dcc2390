"""The process in which cases are examined; `fusilli_plugin.fuzz.crew` starts it and may lose it.

One JSON document a line: the setting first, then requests, each answered by one line.

    {"op": "examine", "folder": F, "checks": [...]} -> {"outcome": ..., "check": ..., "kind": ..., "text": ...}
    {"op": "complete", "folder": F} -> {"reason": what could not be written of a capsule, or ""}
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusilli_plugin.fuzz.capsules import complete
from fusilli_plugin.fuzz.cases import load_case
from fusilli_plugin.fuzz.examine import Examiner, Setting, Verdict
from graph_api import FusilliError
from iree_bridge import Options

__all__ = ["main"]


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers and drivers print is no answer
    faulthandler.enable()
    setting = Setting.from_json(json.loads(sys.stdin.readline()))
    if setting.memory:
        resource.setrlimit(resource.RLIMIT_DATA, (setting.memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        examiner = Examiner(setting, Options.from_env())
    except FusilliError as error:
        _answer(answers, {"ready": False, "reason": str(error)})
        return
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        _answer(answers, _served(examiner, setting, json.loads(line)))


def _served(examiner: Examiner, setting: Setting, request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    try:
        case = load_case(folder)
        if request["op"] == "complete":
            return {"reason": complete(folder, case, examiner)}
        return asdict(examiner.examine(case, request["checks"]))
    except MemoryError:
        return asdict(Verdict("failed", "run", "memory", f"more than {setting.memory} bytes were asked for"))
    except Exception as error:  # whatever a graph runs into is its result
        return asdict(Verdict("failed", "run", f"raises {type(error).__name__}", _where(error)))


def _where(error: Exception) -> str:
    """The error, and the function of ours that it comes from."""
    trace, last = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        last = f"{Path(code.co_filename).name}: {code.co_name}"
        trace = trace.tb_next
    return f"{type(error).__name__} in {last}: {error}"


def _answer(answers: Any, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
