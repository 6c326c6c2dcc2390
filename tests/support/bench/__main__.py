"""``python -m tests.support.bench``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusilli_ground.texts import say
from graph_api import FusilliError
from iree_bridge.compile.versions import iree_version
from tests.support import bench
from tests.support.bench import models

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; a missed goal is reported, not an error.

    Returns:
        Exit code: 0 if everything could be measured, 1 if not.
    """
    parser = argparse.ArgumentParser(prog="bench", description="Latencies, next to the native iree-compile.")
    parser.add_argument("--json", metavar="F", type=Path, help="also write what was measured, as JSON")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each time (default: %(default)s)")
    parser.add_argument(
        "--calls", type=int, default=500, help="a tenth of it is a batch of launches (default: %(default)s)"
    )
    parser.add_argument(
        "--target", action="append", help="compile for this one; may be repeated (default: cpu, gfx942)"
    )
    parser.add_argument(
        "--models", action="store_true", help="also load whole models, with a cold and a warm cache (minutes)"
    )
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.calls < 1:
        parser.error("--rounds and --calls must be at least 1")
    machine = _machine()
    say(", ".join(f"{key} {value}" for key, value in machine.items()))
    if machine["load"] > 0.5 * machine["cpus"]:
        say("the machine is busy: times are too long, and ratios less certain")
    try:
        found = bench.measure(rounds=given.rounds, calls=given.calls, targets=given.target or bench.TARGETS)
        loaded = models.measure() if given.models else []
    except FusilliError as error:
        say(f"bench: {error}", err=True)
        return 1
    say(*bench.report(found))
    if loaded:
        say("", *models.report(loaded), "")
    missed = [m.name for m in found if not m.met and not m.skipped]
    missed += [name for row in loaded for name in row.missed]
    say(f"missed: {', '.join(missed)}" if missed else "all goals are met")
    if given.json is not None:
        rows = [asdict(m) | {"median": m.median, "value": m.value, "met": m.met} for m in found]
        for row in rows:  # JSON knows no NaN
            row.update((key, None) for key in ("median", "value") if not row["samples"])
        document = {"machine": machine, "measurements": rows, "models": [asdict(row) for row in loaded]}
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _machine() -> dict[str, Any]:
    return {
        "iree": iree_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
