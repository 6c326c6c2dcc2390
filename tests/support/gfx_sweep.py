"""Sweeps over random graphs for AMD chips: compiled, executed in the emulator, compared with the float64 reference.

    python -m tests.support.gfx_sweep --target gfx942 --seeds 0:5000 --jobs 2 --out sweep.jsonl [--budget SECONDS]

Each line of the file is one graph: seed, target, family, outcome, text, seconds. Seeds that the file has are left out,
so a sweep that was stopped goes on. With ``--device cuda:0`` the graphs run there instead, with ``--compile-only`` they
are only compiled, and the text is the form that it took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fusilli_plugin.emulator import Emulator
from fusilli_plugin.testing import graphs
from graph_api import FusilliError, Graph, numerics
from iree_bridge import Target, build, support
from iree_bridge.compile.compiler import compile_code
from iree_bridge.devices.device import Device
from tests.cases import Pack, all_cases
from tests.support.outcomes import case_id

__all__ = ["Job", "examine", "main"]


class Job(NamedTuple):
    """A graph, by its number or the name of its case, and where it runs."""

    seed: int | str
    target: str
    device: str | None = None
    compile_only: bool = False


def examine(job: Job) -> dict[str, Any]:
    """What becomes of a graph: a verdict of the emulator; ``wraps`` if it is right only where offsets wrap."""
    begin = time.perf_counter()
    graph, inputs = _made(job)
    target = Device.parse(job.device).target if job.device else Target.parse(job.target)
    answer = support(graph, target)
    if not answer.ok:
        outcome, text = f"declined: {answer.rule}", str(answer)
    elif job.device:
        outcome, text = _run_on(graph, inputs(), job.device)
    elif job.compile_only:
        outcome, text = _compiled(graph, target)
    else:
        outcome, text = _emulated(graph, inputs(), target)
    seconds = round(time.perf_counter() - begin, 2)
    return {"seed": job.seed, "target": job.device or job.target, "graph": graph.name if isinstance(job.seed, int)
            else job.seed, "outcome": outcome, "text": text[:400], "seconds": seconds}  # fmt: skip


def _made(job: Job) -> tuple[Graph, Callable[[], Pack]]:
    """The graph, and what makes its inputs; of a graph that is declined there may be none."""
    if isinstance(job.seed, int):
        graph = graphs.graph(job.seed)
        return graph, partial(graphs.inputs, graph, job.seed)
    case = next(case for family, case in all_cases() if case_id(family, case) == job.seed)
    graph = case.graph()
    return graph, partial(case.pack, graph)


def _compiled(graph: Graph, target: Target) -> tuple[str, str]:
    try:
        return "right", compile_code(graph, target).form
    except FusilliError as error:
        return "failed", str(error)


def _emulated(graph: Graph, pack: Pack, target: Target) -> tuple[str, str]:
    emulator = Emulator(target)
    try:
        code = emulator.code(graph)
    except FusilliError as error:
        return "failed", str(error)
    found = emulator.examine(graph, pack, code)
    if not found.ok or not found.counts.get("buffer offsets past 2**32"):
        return str(found.verdict), found.text
    strict = Emulator(target, offsets_wrap=False).examine(graph, pack, code)
    return (str(found.verdict), found.text) if strict.ok else ("wraps", strict.text)


def _run_on(graph: Graph, pack: Pack, device: str) -> tuple[str, str]:
    results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
    try:
        build(graph, device=device).run({**pack, **results})
    except FusilliError as error:
        return "failed", str(error)
    wrong = [str(each) for each in numerics.check(graph, pack, results) if not each.ok]
    return ("wrong", "; ".join(wrong)) if wrong else ("right", "")


def _work(job: Job) -> dict[str, Any]:
    try:
        return examine(job)
    except Exception as error:  # whatever a graph runs into is its result
        return {"seed": job.seed, "target": job.device or job.target, "graph": str(job.seed), "outcome": "error",
                "text": f"{type(error).__name__}: {error}"[:400], "seconds": 0}  # fmt: skip


def _done(path: Path) -> set[int | str]:
    if not path.is_file():
        return set()
    return {json.loads(line)["seed"] for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")}


def _results(jobs: list[Job], processes: int) -> Iterator[dict[str, Any]]:
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_work, jobs, chunksize=1)


def _seeds(text: str) -> Sequence[int | str]:
    if text == "tables":
        return [case_id(family, case) for family, case in all_cases()]
    first, _, end = text.partition(":")
    return range(int(first), int(end)) if end else [int(each) for each in text.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit status is 1 if a graph is not right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--device")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, numbers separated by commas, or tables: all cases")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no more graphs are begun")
    options = parser.parse_args(arguments)
    os.environ.setdefault("FUSILLI_COMPILE_WORKERS", "1")
    os.environ.setdefault("FUSILLI_COMPILE_TIMEOUT", "120")
    done = _done(options.out)
    jobs = [
        Job(seed, options.target, options.device, options.compile_only)
        for seed in _seeds(options.seeds)
        if seed not in done
    ]
    counts: Counter[str] = Counter()
    begin = time.perf_counter()
    with options.out.open("a", encoding="utf-8") as out:
        for result in _results(jobs, options.jobs):
            counts[result["outcome"]] += 1
            print(json.dumps(result), file=out, flush=True)
            if time.perf_counter() - begin > options.budget:
                break
    print(dict(counts))
    return int(any(name != "right" and not name.startswith("declined") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
