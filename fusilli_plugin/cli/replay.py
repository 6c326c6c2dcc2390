"""``fusilli replay``: a failed compile once more, or a dumped graph or group of nodes alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import click
import numpy as np

from fusilli_ground.texts import host_text
from fusilli_plugin.checks.graph_dump import is_dump, load_dump
from fusilli_plugin.cli.base import command, device_option, echo, echo_text, json_option, print_json, progress
from fusilli_plugin.cli.run_model import ModelRun, run_model
from fusilli_plugin.fuzz.capsules import FINDING, is_capsule, read_finding
from fusilli_plugin.fuzz.cases import load_case
from fusilli_plugin.fuzz.crew import Worker
from graph_api import CompileError, GraphError, TensorAttr, numerics
from iree_bridge import Options, build
from iree_bridge.compile import compiler, reproducer

__all__ = ["replay"]

# What the ONNX Runtime provider's option `dump` writes for each group, and what a failed compile leaves.
_GROUP: Final = ("model.onnx", "program.json")
_FAILURE: Final = "versions.json"
_SECONDS: Final = 600.0


@command("replay")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--show", is_flag=True, help="Only show what would be compiled or run.")
@device_option
@json_option
@click.pass_context
def replay(ctx: click.Context, folder: Path, show: bool, device: str | None, as_json: bool) -> None:
    r"""Compile again what failed before, or run a dumped graph or group alone.

    DIR is the folder that an error message named, or one that `fusilli run MODEL --dump-graph N` wrote: that graph is
    run on the data in it and compared with the float64 reference and with what it computed then. Or it is one that
    the ONNX Runtime provider wrote for a group of nodes (its option "dump"): the group is compiled again, run on random
    inputs, and each of its graphs compared with ONNX Runtime's CPU provider.

    Or one that `fusilli fuzz` or `fusilli reduce` wrote: it is examined again, as it was then.

    A failed compile: the flags are shown first; they may name files, so a folder that
    others can write to is refused. Exit code 1 if the compile still fails.

    \b
    Examples:
      fusilli replay ~/.cache/fusilli-plugin/failures/20260131-120000-conv-0a1b2c3d
      fusilli replay DIR --show
      fusilli replay model.graph7
      fusilli replay dump/0a1b2c3d4e5f6071 --device cpu
    """
    if is_capsule(folder):
        ctx.exit(_examine_again(folder, device, show, as_json))
    if is_dump(folder):
        ctx.exit(_run_dump(folder, device, show, as_json))
    if all((folder / name).is_file() for name in _GROUP):
        ctx.exit(_run_group(folder, device, show, as_json))
    if not (folder / _FAILURE).is_file():
        raise GraphError(
            f"{folder}: there is nothing to replay. A failed compile leaves a folder with {_FAILURE}, flags.txt and "
            "module.mlir or graph.json, which the error names; `fusilli run MODEL --dump-graph N` writes dump.json, "
            "graph.json and .npy files; the ONNX Runtime provider's option dump makes folders with "
            f"{' and '.join(_GROUP)}; `fusilli fuzz` and `fusilli reduce` write {FINDING}"
        )
    if device is not None:
        raise click.UsageError("--device is for what runs; a failed compile is for the target that it names")
    failed = reproducer.load(folder)
    document = {
        "name": failed.name,
        "target": str(failed.target),
        "flags": [*failed.global_flags, *failed.flags],
        "versions": failed.versions,
        "command": failed.command(),
    }
    if not as_json:
        echo(f"'{failed.name}' for {failed.target}, made with {_versions(failed.versions)}")
        echo(*(f"  {flag}" for flag in document["flags"]))
        echo(f"the same without this package, in that folder: {failed.command()}")
    error = None if show else _compile_again(failed)
    if as_json:
        print_json(document | ({} if show else {"ok": error is None, "error": error}))
    elif error is not None:
        echo_text(host_text(error), err=True)
    elif not show:
        echo("it compiles now")
    ctx.exit(0 if error is None else 1)


def _examine_again(folder: Path, device: str | None, show: bool, as_json: bool) -> int:
    """Examines a finding of `fusilli fuzz` where it was found; 1 if it still fails."""
    if device is not None:
        raise click.UsageError("--device is for what ran once; a finding is examined where it was found")
    setting, verdict = read_finding(folder)
    document: dict[str, object] = {"setting": str(setting), "check": verdict.check, "kind": verdict.kind}
    if show:
        print_json(document | {"text": verdict.text}) if as_json else echo(
            f"on {setting}: {verdict.check}: {verdict.kind}", *verdict.text.splitlines()
        )
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="fusilli-replay-") as cache,
        Worker(setting, _SECONDS, Path(cache)) as worker,
        progress() as step,
    ):
        step.say(f"examining it on {setting}")
        found = worker.examine(load_case(folder))
    if as_json:
        print_json(document | {"outcome": found.outcome, "text": found.text})
    else:
        how = f": {found.check}: {found.kind}" if found.check else ""
        echo(f"on {setting}: {found.outcome}{how}", *found.text.splitlines())
    return 1 if found.outcome == "failed" else 0


def _compile_again(failed: reproducer.Reproducer) -> str | None:
    """The message of the failure, None if there is none any more."""
    with progress() as step:
        step.say(f"compiling '{failed.name}' for {failed.target}")
        try:
            compiler.replay(failed)
        except CompileError as error:
            return str(error)
    return None


def _versions(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {(version or 'unknown')[:16]}" for name, version in versions.items())


def _run_group(folder: Path, device: str | None, show: bool, as_json: bool) -> int:
    """Runs a group of the provider's; 1 if a graph of it is wrong."""
    model = folder / _GROUP[0]
    if show:
        graphs = [str(path) for path in sorted(folder.glob("*.bin"))]
        told = [f"  fusilli run {graph} --check" for graph in graphs]
        print_json({"model": str(model), "graphs": graphs}) if as_json else echo(
            f"{model}: a group of nodes; its graphs also run alone:", *told
        )
        return 0
    return run_model(ModelRun(path=model, device=device or Options.from_env().device, check=True), as_json)


def _run_dump(folder: Path, device: str | None, show: bool, as_json: bool) -> int:
    """Runs a dumped graph, by default where it ran; 1 if it is wrong."""
    dump = load_dump(folder)
    place = device or dump.device
    words = ", ".join(f"{key} {value}" for key, value in dump.about.items())
    document: dict[str, object] = {"graph": dump.graph.name, "device": place, "about": dict(dump.about)}
    if show:
        print_json(document) if as_json else echo(f"'{dump.graph.name}' on {place}: {words}")
        return 0
    results = {tensor: tensor.empty() for tensor in dump.outputs}
    with progress() as step:
        step.say(f"running '{dump.graph.name}' on {place}")
        build(dump.graph, device=place).run({**dump.inputs, **results})
        comparisons = numerics.check(dump.graph, {**dump.inputs}, {**results})
    same = all(np.array_equal(results[t], dump.outputs[t], equal_nan=_is_float(t)) for t in results)
    wrong = [str(comparison) for comparison in comparisons if not comparison.ok]
    if as_json:
        print_json(document | {"ok": not wrong, "same": same, "compared": [str(each) for each in comparisons]})
    else:
        echo(f"'{dump.graph.name}' on {place}: {words}")
        echo(*comparisons)
        echo("the results are those of the dump" if same else "the results differ from those of the dump")
    return 1 if wrong else 0


def _is_float(tensor: TensorAttr) -> bool:
    return not tensor.data_type.is_integer
