"""Sweeps over random graphs for AMD chips: compiled, executed in the emulator, compared with the float64 reference.

    python -m tests.support.gfx_sweep --target gfx942 --seeds 0:5000 --jobs 2 --out sweep.jsonl [--budget SECONDS]

Each line of the file is one graph: seed, target, family, outcome, text, seconds. Seeds that the file has are left out,
so a sweep that was stopped goes on. With ``--device cuda:0`` the graphs run there instead.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["examine", "main"]


def examine(seed: int, target: str, device: str | None = None) -> dict[str, Any]:
    """What becomes of a graph: right, wrong, hazard, outside (right, but reads outside its buffers), wraps (right only
    where offsets wrap), unmodelled, declined or failed (to compile)."""
    from tests.support.gfx_graphs import graph

    begin = time.perf_counter()
    made = graph(seed)
    outcome, text = _run_on(made, device) if device else _emulated(made, target)
    seconds = round(time.perf_counter() - begin, 2)
    return {"seed": seed, "target": device or target, "graph": made.name, "outcome": outcome, "text": text[:400],
            "seconds": seconds}  # fmt: skip


def _emulated(made: Any, target: str) -> tuple[str, str]:
    from fusilli_plugin import emulator
    from graph_api import CompileError, NotSupportedError, numerics
    from iree_bridge import Target, support

    answer = support(made, Target.parse(target))
    if not answer.ok:
        return "declined", str(answer)
    try:
        code = emulator.assemble(made, Target.parse(target))
    except (CompileError, NotSupportedError) as error:
        return "failed", str(error)
    pack = made.random_inputs(seed=0)
    try:
        machine, results = emulator.emulate_counted(made, pack, code)
    except emulator.HazardError as error:
        return "hazard", str(error)
    except emulator.UnmodelledError as error:
        return "unmodelled", str(error)
    wrong = [str(each) for each in numerics.check(made, pack, results) if not each.ok]
    if wrong:
        return "wrong", "; ".join(wrong)
    outside = machine.counts["bytes read outside all buffers"]
    if outside:
        return "outside", f"{outside} bytes"
    if not machine.counts["buffer offsets past 2**32"]:
        return "right", ""
    _, results = emulator.emulate_counted(made, pack, code, offsets_wrap=False)
    wrong = [str(each) for each in numerics.check(made, pack, results) if not each.ok]
    return ("wraps", "; ".join(wrong)) if wrong else ("right", "offsets wrap where they need not")


def _run_on(made: Any, device: str) -> tuple[str, str]:
    from graph_api import FusilliError, numerics
    from iree_bridge import build

    pack = made.random_inputs(seed=0)
    results = {tensor: tensor.empty() for tensor in made.arguments().outputs}
    try:
        build(made, device=device).run({**pack, **results})
    except FusilliError as error:
        return "failed", str(error)
    wrong = [str(each) for each in numerics.check(made, pack, results) if not each.ok]
    return ("wrong", "; ".join(wrong)) if wrong else ("right", "")


def _work(job: tuple[int, str, str | None]) -> dict[str, Any]:
    seed, target, device = job
    try:
        return examine(seed, target, device)
    except Exception as error:  # whatever a graph runs into is its result
        return {"seed": seed, "target": device or target, "graph": "", "outcome": "error",
                "text": f"{type(error).__name__}: {error}"[:400], "seconds": 0}  # fmt: skip


def _done(path: Path) -> set[int]:
    if not path.is_file():
        return set()
    return {json.loads(line)["seed"] for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")}


def _results(jobs: list[tuple[int, str, str | None]], processes: int) -> Iterator[dict[str, Any]]:
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_work, jobs, chunksize=1)


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit status is 1 if a graph is not right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--device")
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or numbers separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no more graphs are begun")
    options = parser.parse_args(arguments)
    os.environ.setdefault("FUSILLI_COMPILE_WORKERS", "1")
    os.environ.setdefault("FUSILLI_COMPILE_TIMEOUT", "120")
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end)) if end else [int(each) for each in options.seeds.split(",")]
    done = _done(options.out)
    jobs = [(seed, options.target, options.device) for seed in seeds if seed not in done]
    counts: Counter[str] = Counter()
    begin = time.perf_counter()
    with options.out.open("a", encoding="utf-8") as out:
        for result in _results(jobs, options.jobs):
            counts[result["outcome"]] += 1
            print(json.dumps(result), file=out, flush=True)
            if time.perf_counter() - begin > options.budget:
                break
    print(dict(counts))
    return int(any(counts[name] for name in ("wrong", "hazard", "outside", "wraps", "unmodelled", "failed", "error")))


if __name__ == "__main__":
    sys.exit(main())
