"""Whole models: their memory, and how long they take to be ready, with a cold and with a warm cache.

Each is loaded in processes of their own, ``python -m tests.support.bench.models FILE``, which print what they saw as
JSON: caches inside a process would hide what a user waits for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fusilli_ground.texts import say
from graph_api import FusilliError

__all__ = ["GOALS", "MODELS", "Loaded", "ModelRow", "load_once", "measure", "report"]

MODELS: Final = ("resnet50", "mobilenet_v2", "unet", "bert_layer", "llama_block")
"""Functions of ``onnx_models``."""

GOALS: Final[Mapping[str, float]] = {"resnet50 ready": 3.0, "resnet50 passes": 1.0, "arena": 1.05}
"""Seconds with a warm cache; arena: times the lower bound, for each model."""

_ROOT: Final = Path(__file__).resolve().parents[3]
_TIMEOUT: Final = 1200  # seconds of one cold load
_COMPILING: Final = "hipdnn-graph-to-executable"


@dataclass(frozen=True)
class Loaded:
    """One load of a model in a new process. Times in seconds, memory in bytes.

    Attributes:
        imports: of the package itself, before the load; not in ``ready``, unlike what the load imports.
        read: the file becomes a module of the torch dialect.
        passes: MLIR passes without the compiling of graphs.
        compile: graphs become plans, or are taken from the cache.
        ready: from the file to a model that can run: all of the above and placing the weights.
        arena: memory of intermediate results.
        naive: the same without sharing.
        lower_bound: what is in use at one time; no plan can do with less.
        graphs: number of compiled graphs.
    """

    imports: float
    read: float
    passes: float
    compile: float
    ready: float
    arena: int
    naive: int
    lower_bound: int
    graphs: int


@dataclass(frozen=True)
class ModelRow:
    """A model, loaded with a cold cache and then with a warm one."""

    name: str
    cold: Loaded
    warm: Loaded

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of the goals that it does not meet."""
        seen = {
            f"{self.name} ready": self.warm.ready,
            f"{self.name} passes": self.warm.passes,
            "arena": self.warm.arena / max(self.warm.lower_bound, 1),
        }
        names = [name for name, value in seen.items() if name in GOALS and value > GOALS[name]]
        return tuple(f"{self.name} {name}" if name == "arena" else name for name in names)


def measure(names: Sequence[str] = MODELS) -> list[ModelRow]:
    """Generates, loads and loads again each model, for the CPU.

    Raises:
        FusilliError: a model does not load.
    """
    import onnx

    from tests.support import onnx_models

    rows: list[ModelRow] = []
    for name in names:
        build: Callable[[], onnx.ModelProto] = getattr(onnx_models, name)
        with tempfile.TemporaryDirectory(prefix="fusilli-bench-") as folder:
            path = Path(folder, f"{name}.onnx")
            onnx.save(build(), str(path))
            cold, warm = (_in_new_process(path, Path(folder, "cache")) for _ in range(2))
        rows.append(ModelRow(name, cold, warm))
    return rows


def load_once(path: Path) -> Loaded:
    """Loads a model in this process.

    Raises:
        OffloadError, EngineError: see `hipdnn_backend.offload.load`.
    """
    start = time.perf_counter()
    from fusilli_plugin.report.memory import placed_lives
    from hipdnn_backend.offload import load
    from hipdnn_backend.offload.memory import lower_bound

    imports = time.perf_counter() - start
    with load(path, device="cpu") as model:
        about: Mapping[str, Any] = model.about
        spent: dict[str, float] = {}
        for name, seconds in about["passes"]:
            spent[name] = spent.get(name, 0.0) + seconds
        compiling = spent.pop(_COMPILING, 0.0)
        program = model.program
        bound = lower_bound([life for life, _, _ in placed_lives(program)])
        return Loaded(
            imports, about["seconds"]["import"], sum(spent.values()), compiling, model.seconds,
            program.arena, program.naive, bound, len(about["graphs"]),
        )  # fmt: skip


def _in_new_process(path: Path, cache: Path) -> Loaded:
    cache.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", __name__, str(path)]
    variables = {**os.environ, "FUSILLI_CACHE_DIR": str(cache), "FUSILLI_CACHE_READONLY": ""}
    try:
        done = subprocess.run(
            command, cwd=_ROOT, env=variables, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FusilliError(f"{path.name} is not ready after {_TIMEOUT} s") from error
    if done.returncode:
        raise FusilliError(f"{path.name} does not load: {done.stderr.strip()[-2000:]}")
    return Loaded(**json.loads(done.stdout.splitlines()[-1]))


def report(rows: Sequence[ModelRow]) -> list[str]:
    """The rows as a table for people."""
    header: tuple[str, ...] = (
        "model", "graphs", "arena", "naive", "bound", "read", "passes", "compile cold", "warm", "ready cold", "warm",
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [header]
    for row in rows:
        warm, cold = row.warm, row.cold
        memory = (f"{size / 2**20:.2f} MiB" for size in (warm.arena, warm.naive, warm.lower_bound))
        times = (warm.read, warm.passes, cold.compile, warm.compile, cold.ready, warm.ready)
        lines.append((row.name, str(warm.graphs), *memory, *(f"{seconds:.2f} s" for seconds in times)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


if __name__ == "__main__":
    from dataclasses import asdict

    say(json.dumps(asdict(load_once(Path(sys.argv[1])))))
