"""A finding in a folder: all that is needed to see it again, here or without this package.

``graph.json``, ``inputs.npz``, ``expected.npz`` (float64, rounded to the results' types), ``results.npz`` (what was
computed), ``finding.json`` (where, which comparison, what it said), and as of a failed compile ``module.mlir``,
``flags.txt``, ``command.txt`` (of ``iree-compile``), ``versions.json``. ``fusilli replay FOLDER`` repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from fusilli_ground.files import write_whole
from fusilli_plugin.fuzz.cases import Array, Case, save_case
from fusilli_plugin.fuzz.examine import Examiner, Setting, Verdict
from graph_api import FusilliError, GraphError, TensorAttr
from iree_bridge.artifact.arrays import save_outputs
from iree_bridge.compile import reproducer, versions
from iree_bridge.compile.compiler import emit, recipe_for

__all__ = ["FINDING", "Finding", "begin", "complete", "is_capsule", "read_finding"]

FINDING: Final = "finding.json"
_FORMAT: Final = "fusilli-finding"


class Finding(NamedTuple):
    """What ``finding.json`` says.

    Attributes:
        setting: where it was found.
        verdict: what was found.
    """

    setting: Setting
    verdict: Verdict


def is_capsule(folder: Path) -> bool:
    """Whether a folder is one of these."""
    return (folder / FINDING).is_file()


def read_finding(folder: Path) -> Finding:
    """What was found.

    Raises:
        GraphError: the file is damaged.
        FusilliError: others can write to it: it names compilers and engines that a replay runs.
        OSError: it cannot be read.
    """
    for path in (folder, folder / FINDING):
        reproducer.require_own(path)
    try:
        document = json.loads((folder / FINDING).read_bytes())
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']!r}")
        return Finding(Setting.from_json(document["setting"]), Verdict(**document["verdict"]))
    except (ValueError, KeyError, TypeError) as error:
        raise GraphError(f"{folder / FINDING} is damaged: {type(error).__name__}: {error}") from error


def begin(folder: Path, case: Case, setting: Setting, verdict: Verdict) -> None:
    """Write a new folder with the case and what was found: all that a process knows that computes nothing.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True)
    save_case(folder, case)
    document = {"format": _FORMAT, "setting": setting.to_json(), "verdict": asdict(verdict)}
    document |= {"nodes": [node.op for node in case.graph.nodes], "command": "fusilli replay FOLDER"}
    write_whole(folder / FINDING, (json.dumps(document, indent=1) + "\n").encode(), mode=0o600)


def complete(folder: Path, case: Case, examiner: Examiner) -> str:
    """Write beside the case what follows from it: what is right, what was computed, the module and its flags.

    Returns:
        What could not be written, and why; "" if all is there.
    """
    finding = read_finding(folder)
    setting, verdict = finding.setting, finding.verdict
    _save(folder / "expected.npz", _expected(case))
    _save(folder / "results.npz", examiner.results(case))
    target = setting.code_target
    recipe = recipe_for(case.graph, target, examiner.options)
    try:
        ir = emit(case.graph, target, examiner.options).located_ir
        problem = ""
    except FusilliError as error:
        ir, problem = None, f"module.mlir: {error}"
    made = reproducer.Reproducer(
        name=case.graph.name,
        target=target,
        flags=recipe.flags,
        global_flags=recipe.global_flags,
        graph_json=None,  # the case's own is there
        ir=ir,
        diagnostics=verdict.text,
        versions={
            "iree-base-compiler": versions.compiler_version(),
            "iree-base-runtime": versions.runtime_version(),
            "emitter": versions.emitter_version(),
        },
    )
    reproducer.write(folder, made)
    return problem


def _expected(case: Case) -> Mapping[TensorAttr, Array]:
    try:
        exact = case.graph.reference(dict(case.inputs))
    except GraphError:  # a custom operation whose meaning nobody told
        return {}
    return {tensor: tensor.data_type.rounded(value) for tensor, value in exact.items()}


def _save(path: Path, arrays: Mapping[TensorAttr, Array]) -> None:
    if arrays:
        save_outputs(arrays, path)
