"""Runs ONNX node cases in a process that may crash: names come in as JSON, outcomes go out line by line."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

FORMULA = {"float16": (1e-2, 4e-3), "bfloat16": (2e-2, 2e-2)}
"""Type → relative and absolute tolerance; others have the case's own, at least 1e-3 and 1e-5."""


def load_cases(modules: Iterable[str] = ()) -> dict[str, Any]:
    """Cases by name: all of the suite, which takes long, or only those of some of its modules (``conv``, ``add``)."""
    from onnx.backend.test.case import node
    from onnx.backend.test.loader import load_model_tests

    modules = list(modules)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if not modules:
            return {case.name: case for case in load_model_tests(kind="node") if case.model is not None}
        for module in modules:
            importlib.import_module(f"{node.__name__}.{module}")
    return {case.name: case for case in node._NodeTestCases if case.model is not None}


def outcome(case: Any) -> str:
    """ "" if `FusilliBackend` gives a case's answers, else what goes wrong."""
    from fusilli_plugin.checks.onnx_backend import FusilliBackend

    try:
        for inputs, wanted in case.data_sets:
            have = FusilliBackend.run_model(case.model, inputs)
            if len(have) != len(wanted):
                return f"WrongAnswer: {len(have)} outputs, {len(wanted)} are expected"
            for position, (one, other) in enumerate(zip(have, wanted, strict=True)):
                if said := _differ(one, _wanted(other), case):
                    return f"WrongAnswer: output {position}: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _wanted(value: Any) -> np.ndarray:
    """An expected output; elements that numpy has no type for come as protos."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _differ(have: np.ndarray, want: np.ndarray, case: Any) -> str:
    if (have.shape, have.dtype) != (want.shape, want.dtype):
        return f"{have.dtype} {have.shape}, expected {want.dtype} {want.shape}"
    if want.dtype.kind in "iub":
        wrong = int(np.count_nonzero(have != want))
        return f"{wrong} of {want.size} elements differ" if wrong else ""
    rtol, atol = FORMULA.get(want.dtype.name, (max(case.rtol, 1e-3), max(case.atol, 1e-5)))
    close = np.isclose(have.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
    return "" if close.all() else f"{np.count_nonzero(~close)} of {want.size} elements differ"


def run_isolated(
    names: Sequence[str],
    *,
    modules: Iterable[str] = (),
    seconds: float = 120,
    environ: Mapping[str, str] | None = None,
    judge: str = __name__,
) -> dict[str, str]:
    """The outcome of each case. A crash or a hang is the outcome of the case that ran; the others go on.

    Args:
        names: of cases.
        modules: see `load_cases`.
        seconds: for one case, beginning with its process.
        environ: default: that of the process.
        judge: module with the function ``outcome`` that runs a case.
    """
    found: dict[str, str] = {}
    while left := [name for name in names if name not in found]:
        before = len(found)
        _run_some({"names": left, "modules": list(modules), "judge": judge}, seconds, environ, found)
        if len(found) == before:
            raise RuntimeError("the process that runs the cases does not start")
    return found


def _run_some(
    asked: Mapping[str, Any], seconds: float, environ: Mapping[str, str] | None, found: dict[str, str]
) -> None:
    """Adds outcomes until all are there, or one case has ended the process."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.node_cases"],
        cwd=ROOT,
        env=None if environ is None else dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    running = ""
    with child:
        child.stdin.write(json.dumps(asked))
        child.stdin.close()
        while True:
            timer = threading.Timer(seconds, child.kill)
            timer.start()
            line = child.stdout.readline()
            timer.cancel()
            if not line:
                break
            said = json.loads(line)
            running = said["name"]
            if "outcome" in said:
                found[running], running = said["outcome"], ""
    if running:
        found[running] = f"Crash: the process ended with {child.returncode}"


def main() -> None:
    """The child's side: what native code prints does not get into the outcomes."""
    asked = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    judge = importlib.import_module(asked["judge"]).outcome
    cases = load_cases(asked["modules"])
    for name in asked["names"]:
        print(json.dumps({"name": name}), file=out, flush=True)
        print(json.dumps({"name": name, "outcome": judge(cases[name])}), file=out, flush=True)


if __name__ == "__main__":
    main()
