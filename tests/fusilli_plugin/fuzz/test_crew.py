"""What a worker meets is a verdict, and the next case goes on; no compiler takes part."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusilli_plugin.fuzz.cases import Case
from fusilli_plugin.fuzz.crew import Interrupted, Worker
from fusilli_plugin.fuzz.examine import Setting, Verdict
from graph_api import DataType, FusilliError, Graph, PointwiseMode
from tests.fusilli_plugin.fuzz.faulty import environment

FAULT = """
if graph.name == "crash": os.abort()
if graph.name == "exit": os._exit(3)
if graph.name == "hang": time.sleep(1000)
if graph.name == "memory": bytearray(1 << 50)
if graph.name == "kill": os.kill(os.getpid(), 9)
if graph.name == "raise": {}["key"]
if graph.name == "refuse": raise ExecutionError("the device 'x' said 17 at 0x7f00")
if graph.name == "wrong": found = {t: v + 1 for t, v in found.items()}
if graph.name == "nan": found = {t: v * np.float32("nan") for t, v in found.items()}
if graph.name == "chatty": print("of the compiler's", flush=True)
if graph.name == "alone_neg": found = {t: v + 1 for t, v in found.items()}
if graph.name == "layout" and any(t.strides[0] == 1 for t in graph.arguments().inputs):
    found = {t: v + 1 for t, v in found.items()}
"""


def case(name: str) -> Case:
    g = Graph(name, io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(3, 4))
    g.pointwise(PointwiseMode.ADD, g.pointwise(PointwiseMode.NEG, x, name=f"{name}_neg"), x).set_output(True)
    return Case.of(g.validate())


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    for name, value in environment(tmp_path, FAULT).items():
        monkeypatch.setenv(name, value)
    with Worker(Setting(device="cpu", memory=4 << 30), 10.0, tmp_path / "cache") as made:
        yield made


@pytest.mark.a_few("raise-run-raises KeyError", "wrong-reference-wrong", "alone-alone-wrong")
@pytest.mark.parametrize(
    ("name", "check", "kind"),
    [
        ("crash", "run", "crash SIGABRT"),
        ("exit", "run", "exit 3"),
        ("memory", "run", "memory"),
        ("kill", "run", "killed"),
        ("raise", "run", "raises KeyError"),
        ("refuse", "run", "does not run"),
        ("wrong", "reference", "wrong"),
        ("nan", "reference", "not finite"),
        ("alone", "alone", "wrong"),
    ],
)
def test_what_happens_is_a_verdict_and_the_next_goes_on(name: str, check: str, kind: str, worker: Worker) -> None:
    found = worker.examine(case(name))
    assert (found.outcome, found.check, found.kind) == ("failed", check, kind), found.text
    assert worker.examine(case("right")) == Verdict("right")


def test_a_hang_is_one(tmp_path: Path, worker: Worker) -> None:
    worker._limit = 2.0
    assert worker.examine(case("hang")).kind == "hang"
    worker._limit = 10.0
    assert worker.examine(case("right")).outcome == "right"


def test_what_is_printed_is_no_answer(worker: Worker) -> None:
    assert worker.examine(case("chatty")) == Verdict("right")


def test_strides_are_changed(worker: Worker) -> None:
    assert worker.examine(case("layout"), ("reference",)).outcome == "right"
    found = worker.examine(case("layout"), ("layout",))
    assert (found.check, found.kind) == ("layout", "wrong")


def test_signatures_have_no_names_and_numbers() -> None:
    one = Verdict("failed", "run", "does not run", "the device 'x' said 17 at 0x7f00 in /tmp/a/b.so")
    other = Verdict("failed", "run", "does not run", "the device 'yy' said 4 at 0x11 in /opt/c.so")
    assert one.signature == other.signature
    assert one.signature != Verdict("failed", "run", "does not run", "the host 'x' said 17").signature
    compile_ = Verdict("failed", "run", "compile refused", "graph 'a' could not be compiled\nx:1: error: bad shape 3x4")
    assert "bad shape" in compile_.signature[2]
    refused = "graph 'a' could not be compiled\n  node 'b': 'vector.store' op {} restricted\nnor in the other forms"
    two = [Verdict("failed", "run", "compile refused", refused.format(word)) for word in ("is", "was")]
    assert two[0].signature != two[1].signature


def test_a_setting_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with (
        Worker(Setting(device="cpu", engine="/no/such.so"), 10.0, tmp_path) as made,
        pytest.raises(FusilliError, match="one engine is needed"),
    ):
        made.start()


@pytest.mark.thorough
def test_a_worker_that_is_stopped_while_it_is_asked(worker: Worker) -> None:
    threading.Timer(3.0, worker.stop).start()
    begin = time.monotonic()
    with pytest.raises(Interrupted):
        worker.examine(case("hang"))
    assert time.monotonic() - begin < 9
