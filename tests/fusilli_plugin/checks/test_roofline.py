"""Times beside what a device can do: ceilings by hand, a clock of our own, two small graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusilli_plugin.checks import roofline
from fusilli_plugin.checks.roofline import Ceiling, measure, workloads
from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Device, Options, Target, support
from iree_bridge.devices import hip

CPU = Device.parse("cpu")


def test_the_least_time_is_that_of_the_slower_part() -> None:
    ceiling = Ceiling(1e9, {"HALF": 1e12}, "known")
    assert ceiling.least(10**6, 0, "HALF") == (1e-3, "memory")
    assert ceiling.least(10**6, 2 * 10**9, "HALF") == (2e-3, "products")
    assert ceiling.least(10**6, 5 * 10**8, "HALF") == (1e-3, "memory")
    assert ceiling.least(10**6, 2 * 10**9, "FLOAT") == (1e-3, "memory"), "no rate is known"


@pytest.mark.parametrize(
    ("chip", "units", "clock", "half", "single"),
    [  # what AMD publishes of a card: MI100, a die of MI250X, MI300X, MI355X; tera operations a second
        ("gfx908", 120, 1.502e9, 184.6, 46.1),
        ("gfx90a", 110, 1.7e9, 191.5, 47.9),
        ("gfx942", 304, 2.1e9, 1307.4, 163.4),
        ("gfx950", 256, 2.4e9, 2516.6, 157.3),
    ],
)
def test_rates_of_amd_chips_are_the_published_ones(
    chip: str, units: int, clock: float, half: float, single: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hip, "arch", lambda index: chip)
    monkeypatch.setattr(hip, "cycles_per_s", lambda index: units * clock)
    rates, source = roofline._products(Device.parse("hip"))
    assert source == "known"
    assert rates["HALF"] == pytest.approx(half * 1e12, rel=1e-3)
    assert rates["FLOAT"] == pytest.approx(single * 1e12, rel=1e-3)
    monkeypatch.setattr(hip, "cycles_per_s", lambda index: 0.0)
    assert roofline._products(Device.parse("hip")) == ({}, "not known")


def test_the_least_of_several_batches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of our own: steps of 1 ms, the first one of 1 s, one in ten of 5 ms; waiting takes nothing."""
    now, steps = 0.0, 0

    def step() -> None:
        nonlocal now, steps
        steps += 1
        now += 1.0 if steps == 1 else 5e-3 if steps in range(60, 120, 10) else 1e-3

    monkeypatch.setattr(roofline.time, "perf_counter", lambda: now)
    assert roofline._least(step, lambda: None) == pytest.approx(1e-3)
    assert steps == 1 + 2 + 5 * 50


@pytest.mark.iree_cpu
def test_graphs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_COPIED", {True: 1 << 20, False: 1 << 20})
    monkeypatch.setattr(roofline, "_SECONDS", 1e-4)
    g = Graph("small", io_data_type=DataType.FLOAT)
    g.matmul(g.tensor("a", dim=(32, 16)), g.tensor("b", dim=(16, 8))).set_output(True)
    declined = Graph("sine", io_data_type=DataType.DOUBLE, compute_data_type=DataType.DOUBLE)
    declined.pointwise(PointwiseMode.SIN, declined.tensor("x", dim=(4,))).set_output(True)
    graphs = {"small": (g.validate(), 2 * 32 * 16 * 8), "sine": (declined.validate(), 0)}
    found = measure(CPU, replace(Options.from_env(), claim="all"), graphs)
    small, sine = found.timings
    assert small.nbytes == 4 * (32 * 16 + 16 * 8 + 32 * 8)
    least = max(small.nbytes / found.ceiling.bytes_per_s, small.operations / found.ceiling.products_per_s["FLOAT"])
    assert small.share == pytest.approx(least / small.seconds, rel=1e-2, abs=1e-3)
    assert (sine.seconds, sine.share) == (0.0, 0.0)
    assert "sine of f64" in sine.text
    assert found.ceiling.products_are == "measured"
    assert found.as_json()["graphs"][0]["name"] == "small"


@pytest.mark.parametrize("name", ["cpu", "hip", "cuda"])
def test_what_is_timed_is_served(name: str) -> None:
    for graph, operations in workloads(Device.parse(name)).values():
        target = Target.parse({"cpu": "cpu", "hip": "gfx942", "cuda": "sm_80"}[name])
        assert support(graph, target), f"{graph.name} for {name}"
        assert operations >= 0
