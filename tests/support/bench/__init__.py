"""Latencies, next to the native compiler of the same wheel on the same IR: ``python -m tests.support.bench``.

Every round measures everything once, so that a change of the machine's load meets all of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iree_bridge import Options, Target
from tests.support.bench import edge, session
from tests.support.bench.edge import Edge
from tests.support.bench.measurement import Measurement, Unit, report
from tests.support.bench.samplers import build_sampler, compile_samplers, launch_samplers, native_compiler
from tests.support.bench.session import Sessions

__all__ = ["GOALS", "TARGETS", "Measurement", "measure", "native_compiler", "report"]

GOALS = {"compile": 1.15, "build": 15e-3, "call": 4e-6, "run": 10e-6}
"""Compile: times the native compiler's time. The others: seconds. Goals of the C edge: ``edge.GOALS``;
of ONNX Runtime: ``session.GOALS``."""

TARGETS = ("cpu", "gfx942")


@dataclass(frozen=True)
class _Probe:
    """Measures some things once.

    Attributes:
        goals: what, and the goal for each.
        sample: their values, by name.
        native: the native compiler's time for the same, if it has a part.
        skipped: why it is not measured, if it is not.
    """

    goals: Mapping[str, float]
    sample: Callable[[], Mapping[str, float]]
    native: Callable[[], float] | None = None
    skipped: str = ""


def measure(*, rounds: int = 7, calls: int = 500, targets: Sequence[str] = TARGETS) -> list[Measurement]:
    """Measures everything.

    Args:
        rounds: samples of each time.
        calls: a tenth of it is a batch of launches; a sample is the median of 500 batches (from C: of 200).
        targets: what the convolution is compiled for.

    Raises:
        FusilliError: something does not compile, build or run.
    """
    with tempfile.TemporaryDirectory(prefix="fusilli-bench-") as folder:
        probes = _probes(Path(folder), calls, targets)
        seen: dict[str, list[float]] = {name: [] for probe in probes for name in probe.goals}
        native: dict[str, list[float]] = {name: [] for name in seen}
        for index in range(rounds):
            for probe in probes:
                if not probe.skipped:
                    # Who goes first alternates: it may find files in another state.
                    _sample(probe, seen, native, native_first=index % 2 == 0)
        return [
            Measurement(name, tuple(seen[name]), goal, tuple(native[name]), _unit(name), probe.skipped)
            for probe in probes
            for name, goal in probe.goals.items()
        ]


def _probes(folder: Path, calls: int, targets: Sequence[str]) -> list[_Probe]:
    options = replace(Options.from_env(), cache_dir=folder / "cache", cache_readonly=())
    probes = []
    for target in targets:
        ours, native = compile_samplers(Target.parse(target), options, folder)
        probes.append(_probe(f"cold compile of conv+bias+relu for {target}", "compile", ours, native))
    call, run = launch_samplers(options, calls)
    probes.append(_probe("build from a warm cache, new process", "build", build_sampler(options)))
    probes.append(_probe("call() of a 16-element add", "call", call))
    probes.append(_probe("run() of a 16-element add", "run", run))
    host = Edge.prepare(folder / "edge", calls)
    host.warm()
    probes.append(_Probe(edge.GOALS, host.sample, skipped=host.skipped))
    probes.append(_Probe(edge.HIP_GOALS, host.sample_hip, skipped=host.skipped))
    sessions = Sessions(calls)
    probes.append(_Probe(session.GOALS, sessions.sample, skipped=sessions.skipped))
    return probes


def _probe(name: str, goal: str, sample: Callable[[], float], native: Callable[[], float] | None = None) -> _Probe:
    return _Probe({name: GOALS[goal]}, lambda: {name: sample()}, native)


def _sample(probe: _Probe, seen: dict[str, list[float]], native: dict[str, list[float]], *, native_first: bool) -> None:
    for is_native in (True, False) if native_first else (False, True):
        if not is_native:
            for name, value in probe.sample().items():
                seen[name].append(value)
        elif probe.native is not None:
            for name in probe.goals:
                native[name].append(probe.native())


def _unit(name: str) -> Unit:
    return "B" if "memory" in name else "s"
