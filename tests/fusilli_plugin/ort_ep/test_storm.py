"""Threads call one session with many shapes while its compilers are killed: all answers are right, and come soon."""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import fusilli_plugin
from fusilli_plugin.ort_ep import nodes, offloading
from hipdnn_backend.offload.background import background
from hipdnn_backend.offload.shape_counts import ShapeCount
from tests.fusilli_plugin.ort_ep.models import Array, Model, check, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

F32 = np.float32


def mixed(seed: int) -> Model:
    """Maps of open batch, height and width: convolved, pooled, joined, and a product for each picture."""
    model = Model(f"mixed{seed}")
    x = model.input("x", "n", 3, "h", "w")
    y = model.add("Relu", model.add("Conv", x, model.constant("w0", weight(seed, 8, 3, 3, 3)), pads=[1] * 4))
    z = model.add("Conv", y, model.constant("w1", weight(seed + 1, 8, 8, 1, 1)))
    y = model.add("Relu", model.add("Add", y, z))
    y = model.add("Flatten", model.add("GlobalAveragePool", y), axis=1)
    return model.output(model.add("MatMul", y, model.constant("w2", weight(seed + 2, 8, 5))))


def plain(seed: int) -> Model:
    """A product for each of an open number of rows: code for it is soon made."""
    model = Model(f"plain{seed}")
    y = model.add("MatMul", model.input("x", "n", "h"), model.input("y", "h", "w"))
    return model.output(model.add("Relu", y))


def shapes_of(count: int) -> list[dict[str, int]]:
    return [{"n": 1 + i % 3, "h": 8 + 2 * i, "w": 20 - i % 7} for i in range(count)]


def compilers() -> list[int]:
    """The compile workers of this process: its children that run the worker's file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid() and b"compile/worker.py" in command:
            found.append(int(folder.name))
    return found


def storm(model: Model, threads: int, count: int, seconds: float, **options: str) -> tuple[Any, int]:
    """Call a session from threads for some time, and kill its compilers; the session, and how many were killed."""
    rng = random.Random(count)
    theirs: Any = ort.InferenceSession(model.data(), providers=["CPUExecutionProvider"])
    feeds = [model.feeds(number, sizes) for number, sizes in enumerate(shapes_of(count))]
    wants: list[Array] = [theirs.run(None, each)[0] for each in feeds]
    made = session(model, **{"max_shapes": str(count), **options})
    wrong: list[str] = []
    end = time.monotonic() + seconds
    runs = [0] * threads

    def work(thread: int) -> None:
        order = random.Random(thread)
        while time.monotonic() < end and not wrong:
            number = order.randrange(count)
            try:
                (got,) = made.run(None, feeds[number])
                np.testing.assert_allclose(got, wants[number], rtol=1e-4, atol=1e-5)
            except Exception as error:  # whatever it is, this answer is not right
                wrong.append(f"shape {number}: {error}")
            runs[thread] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for each in workers:
        each.start()
    killed = 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.05, 0.4))
        for pid in compilers():
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                continue
    for each in workers:
        each.join()
    assert not wrong, wrong[:3]
    assert min(runs) > 0
    return made, killed


def all_have_code(model: Model, made: Any, count: int) -> None:
    """Once nobody kills them, the compilers make code for every shape that goes on coming."""
    end = time.monotonic() + 1200
    while fusilli_plugin.ep_report(made).elsewhere or len(compiled(made)) < count:
        for number, sizes in enumerate(shapes_of(count)):
            made.run(None, model.feeds(number, sizes))
        assert background.wait(1200)
        time.sleep(0.1)
        assert time.monotonic() < end, fusilli_plugin.ep_report(made)
    before = compiled(made)
    for number, sizes in enumerate(shapes_of(count)):
        check(model, made, 1e-4, model.feeds(number, sizes))
    assert all(each.hits == before[name].hits + 1 for name, each in compiled(made).items())


def compiled(made: Any) -> dict[str, ShapeCount]:
    """The shapes that there is code for."""
    (found,) = fusilli_plugin.ep_report(made).shapes.values()
    return {name: count for name, count in found.items() if count.compiles}


@pytest.mark.thorough
@pytest.mark.usefixtures("cold_cache")
def test_threads_get_right_answers_while_compilers_are_killed() -> None:
    model = plain(10)
    made, killed = storm(model, threads=4, count=4, seconds=3)
    assert killed > 0
    all_have_code(model, made, 4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cold_cache")
@pytest.mark.parametrize("options", [{}, {"on_new_shape": "wait"}, {"shapes": "n=4 h=8,10 w=20", "max_shapes": "4"}])
def test_twelve_threads_and_twenty_shapes(options: dict[str, str]) -> None:
    model = mixed(20 + 10 * len(options))
    made, killed = storm(model, threads=12, count=20, seconds=60, **options)
    assert killed > 0
    if not options:
        all_have_code(model, made, 20)


def test_a_compile_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plain(30)
    made = session(model)
    original, tries = offloading._compile, []

    def picky(*given: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("killed by SIGKILL")
        return original(*given)

    monkeypatch.setattr(offloading, "_compile", picky)
    monkeypatch.setattr(nodes, "_PATIENCE", 0.0)
    feeds = model.feeds(0, {"n": 2, "h": 9, "w": 9})
    made.run(None, feeds)
    assert background.wait(60)
    assert list(fusilli_plugin.ep_report(made).elsewhere)
    for _ in range(2):
        check(model, made, 1e-4, feeds)
        assert background.wait(60)
    report = fusilli_plugin.ep_report(made)
    assert (len(tries), dict(report.elsewhere)) == (2, {})
    made.run(None, feeds)
    ((count,),) = [found.values() for found in fusilli_plugin.ep_report(made).shapes.values()]
    assert count.hits > 0


def test_what_never_compiles_is_tried_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plain(31)
    made, tries = session(model), []

    def refuse(*_: Any) -> Any:
        tries.append(1)
        raise RuntimeError("no code today")

    monkeypatch.setattr(offloading, "_compile", refuse)
    now = [1000.0]
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in range(40):
        made.run(None, model.feeds(0, {"n": 1, "h": 8, "w": 8}))
        assert background.wait(60)
        now[0] += 1
    assert len(tries) == 6  # at 0, 1, 3, 7, 15 and 31 seconds


def test_the_first_answer_for_a_new_shape_comes_soon(capsys: pytest.CaptureFixture[str]) -> None:
    model = mixed(40)
    theirs: Any = ort.InferenceSession(model.data(), providers=["CPUExecutionProvider"])
    made = session(model)
    times: list[tuple[float, float]] = []
    for number, sizes in enumerate(shapes_of(20)):
        feeds = model.feeds(number, sizes)
        start = time.perf_counter()
        theirs.run(None, feeds)
        middle = time.perf_counter()
        made.run(None, feeds)
        times.append((time.perf_counter() - middle, middle - start))
    ours, right = (statistics.median(each) for each in zip(*times, strict=True))
    with capsys.disabled():
        print(f"\nfirst answer for a new shape: {1e3 * ours:.2f} ms, ONNX Runtime {1e3 * right:.2f} ms (medians of 20)")
    assert ours <= 1.5 * right + 0.020
