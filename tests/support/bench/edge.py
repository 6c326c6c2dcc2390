"""The plugin's C functions, timed by a C program: what a host of hipDNN sees.

On HIP the program runs on the tests' stand-in for the HIP runtime. It executes nothing: what is measured there is the
time until a launch is enqueued, and what is pinned for that.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fusilli_plugin.edge.build import BuildError, c_compiler, compile_shim
from fusilli_plugin.edge.install import Installation, write_sidecar
from fusilli_plugin.engine.importers import export_graph
from graph_api import FusilliError
from hipdnn_backend.wire import encode_graph
from tests.support.bench.graphs import add_graph, small_graph

__all__ = ["GOALS", "HIP_GOALS", "Edge"]

GOALS: Final[Mapping[str, float]] = {
    "first call of a process, cold cache": 1.3,
    "first call of a process, warm cache": 0.3,
    "second build of a graph": 1.5e-3,
    "applicability of a new graph of 3 nodes": 2e-3,
    "applicability of a known graph": 200e-6,
    "ExecuteOpGraph of a 16-element add, above an empty plugin": 5e-6,
}
"""Seconds, on the CPU."""
HIP_GOALS: Final[Mapping[str, float]] = {
    "the same on a stand-in for HIP": 8e-6,
    "host memory pinned by four streams": 128 * 2.0**20,
}
"""Seconds, and bytes."""

_HERE: Final = Path(__file__).resolve().parent
_STANDIN: Final = _HERE.parents[2] / "fusilli_plugin" / "conformance" / "hip" / "standin_hip.c"
_BATCHES: Final = 200
_NEW_GRAPHS: Final = 50
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
_TIMEOUT: Final = 300  # seconds


@dataclass
class Edge:
    """The program, the plugin and what they need, in a folder.

    Attributes:
        skipped: why nothing can be measured; empty if it can.
    """

    folder: Path
    calls: int
    skipped: str = ""

    @classmethod
    def prepare(cls, folder: Path, calls: int) -> Edge:
        """Compiles the programs and writes the graphs.

        Args:
            folder: for files; has to outlive the object.
            calls: a batch has a tenth of it as executions; a sample is the median of 200 batches.

        Raises:
            FusilliError: the C compiler fails.
        """
        made = cls(folder, calls)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            compiler = c_compiler()
        except BuildError as error:
            made.skipped = str(error)
            return made
        place = Installation.of_this_interpreter()
        if not Path(place.libpython).is_file():
            made.skipped = f"a C program cannot start Python: {place.python} has no shared library"
            return made
        try:
            write_sidecar(compile_shim(made._plugin), place)
        except BuildError as error:
            raise FusilliError(str(error)) from error
        made._compile(compiler, [_HERE / "host.c"], made._host, "-ldl")
        made._compile(compiler, [_HERE / "empty_plugin.c"], made._empty, "-shared", "-fPIC")
        made._standin.parent.mkdir(exist_ok=True)
        made._compile(compiler, [_STANDIN], made._standin, "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
        made._write_graphs()
        return made

    @property
    def _plugin(self) -> Path:
        return self.folder / "plugin" / "libfusilli_plugin.so"

    @property
    def _empty(self) -> Path:
        return self.folder / "libempty_plugin.so"

    @property
    def _host(self) -> Path:
        return self.folder / "host"

    @property
    def _standin(self) -> Path:
        return self.folder / "hip" / "libamdhip64.so"

    def sample(self) -> dict[str, float]:
        """One round on the CPU: medians by the names of `GOALS`.

        Raises:
            FusilliError: the program fails.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as cold:
            first_cold = self._run(Path(cold) / "cache", batches=1, FUSILLI_DEVICE="cpu")["first"]
        seen = self._run(self.folder / "cache", batches=_BATCHES, FUSILLI_DEVICE="cpu")
        values = (
            first_cold, seen["first"], seen["build"], seen["applicable_new"], seen["applicable_known"],
            seen["execute"] - seen["execute_empty"],
        )  # fmt: skip
        return dict(zip(GOALS, values, strict=True))

    def sample_hip(self) -> dict[str, float]:
        """One round on the stand-in: medians by the names of `HIP_GOALS`.

        Raises:
            FusilliError: the program fails.
        """
        seen = self._run(
            self.folder / "cache",
            self._standin,
            batches=_BATCHES,
            FUSILLI_DEVICE="hip",
            FUSILLI_CLAIM="all",
            FUSILLI_VERIFY="never",
        )
        return dict(zip(HIP_GOALS, (seen["execute"] - seen["execute_empty"], seen["pinned"]), strict=True))

    def warm(self) -> None:
        """Fills the cache.

        Raises:
            FusilliError: the program fails.
        """
        if not self.skipped:
            self._run(self.folder / "cache", batches=1, FUSILLI_DEVICE="cpu")
            self._run(
                self.folder / "cache",
                self._standin,
                batches=1,
                FUSILLI_DEVICE="hip",
                FUSILLI_CLAIM="all",
                FUSILLI_VERIFY="never",
            )

    def _run(self, cache: Path, *more: Path, batches: int, **environment: str) -> dict[str, float]:
        calls = max(self.calls // 10, 1)  # short batches: many of them fit between two interruptions
        command = [self._host, self._plugin, self._empty, self.folder, str(batches), str(calls), *more]
        # Late, since the figures of applicability are those without a compile. Nothing else: a C host needs no PATH.
        variables = {"FUSILLI_CACHE_DIR": str(cache), "FUSILLI_COMPILE": "late", **environment}
        done = subprocess.run(
            list(map(str, command)), env=variables, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
        if done.returncode:
            raise FusilliError(f"the C program failed: {done.stderr.strip()[-500:]}")
        lines = (line.split() for line in done.stdout.splitlines())
        return {name: statistics.median(map(float, samples)) for name, *samples in lines if samples}

    def _compile(self, compiler: list[str], sources: list[Path], output: Path, *flags: str) -> None:
        command = [*compiler, *_FLAGS, *map(str, sources), "-o", str(output), *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if done.returncode:
            raise FusilliError(f"{shutil.which(compiler[0])} failed: {done.stderr.strip()[-500:]}")

    def _write_graphs(self) -> None:
        graph = add_graph().validate()
        (self.folder / "add.bin").write_bytes(encode_graph(export_graph(graph)))
        outputs, inputs = graph.arguments()
        (self.folder / "uids").write_text(" ".join(str(tensor.uid) for tensor in (*outputs, *inputs)))
        for number in range(_NEW_GRAPHS):
            (self.folder / f"new{number}.bin").write_bytes(encode_graph(export_graph(small_graph(number))))
