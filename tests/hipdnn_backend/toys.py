"""Engines in Python that compute with numpy on host addresses, and C code compiled for tests."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from hipdnn_backend.engine import EngineId, Override, Support, engine_id
from hipdnn_backend.errors import EngineError
from hipdnn_backend.wire import EngineConfig, EngineDetails, decode_graph

HERE = Path(__file__).parent
GRAPHS = HERE.parents[0] / "data" / "hipdnn_graphs"
RELU = (GRAPHS / "pw_relu.bin").read_bytes()  # uid 1 -> uid 3, float32, 1 x 2 x 4 x 4
CONV = (GRAPHS / "conv_bias_relu.bin").read_bytes()
SHAPE = (1, 2, 4, 4)

Function = Callable[[np.ndarray], np.ndarray]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def floats(address: int) -> np.ndarray:
    """The 32 floats of a tensor of `RELU`."""
    return np.ctypeslib.as_array((ctypes.c_float * 32).from_address(address)).reshape(SHAPE)


class ToyPlan:
    def __init__(self, engine: ToyEngine, config: EngineConfig) -> None:
        self.engine = engine
        self.config = config
        self.workspace_size = engine.needs
        self.calls: list[tuple[dict[int, int], int, int, Mapping[int, Override] | None]] = []
        self.closed = False

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        self.calls.append((dict(pack), workspace, stream, overrides))
        self.engine.run(floats(pack[1]), floats(pack[3]), len(self.calls))

    def serialize(self) -> bytes:
        return f"plan of {self.engine.name}".encode()

    def close(self) -> None:
        self.closed = True


class ToyEngine:
    """Computes ``function`` of uid 1 into uid 3 for every graph, unless it is told to decline."""

    def __init__(self, name: str, function: Function = relu, *, declines: str = "", needs: int = 0) -> None:
        self.name = name
        self.id: EngineId = engine_id(name)
        self.function = function
        self.declines = declines
        self.needs = needs
        self.broken = ""
        self.plans: list[ToyPlan] = []

    def run(self, x: np.ndarray, y: np.ndarray, call: int) -> None:
        y[...] = self.function(x)

    def support(self, graph: bytes) -> Support:
        decode_graph(graph)
        return Support.no(self.declines, node="n", rule="toy") if self.declines else Support.yes()

    def details(self, graph: bytes) -> EngineDetails:
        return EngineDetails(engine_id=self.id)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        return self.needs

    def build(self, graph: bytes, config: EngineConfig) -> ToyPlan:
        if self.broken:
            raise EngineError(self.name, self.broken)
        self.plans.append(ToyPlan(self, config))
        return self.plans[-1]

    def restore(self, payload: bytes) -> ToyPlan:
        if payload != f"plan of {self.name}".encode():
            raise EngineError(self.name, "no plan of mine", 2)
        self.plans.append(ToyPlan(self, EngineConfig(engine_id=self.id)))
        return self.plans[-1]


def compile_c(source: Path, out: Path, *macros: str) -> Path:
    """A shared library; skips the test where there is no C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the test's C code is compiled with cc, which is not here")
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-O1", *(f"-D{macro}" for macro in macros)]
    subprocess.run([compiler, *flags, "-o", out, source], check=True, timeout=60)
    return out


def tiny_plugin(out: Path) -> Path:
    """A plugin with TINY_ENGINE."""
    return compile_c(HERE / "plugin" / "tiny_plugin.c", out)
