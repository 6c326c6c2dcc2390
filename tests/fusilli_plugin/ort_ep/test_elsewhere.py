"""Groups whose code is missing or fails: ONNX Runtime's kernels run them, and it is told."""

from __future__ import annotations

import gc
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import fusilli_plugin
from fusilli_plugin.ort_ep import nodes, offloading
from fusilli_plugin.ort_ep.abi import OrtError
from hipdnn_backend.offload.background import Background, background
from tests.fusilli_plugin.ort_ep.models import Model, add, check, conv_relu, reference, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

F32 = np.float32


def wait_for_code() -> None:
    assert background.wait(120)


def broken(*_: object) -> Any:
    raise RuntimeError("the device is on fire")


def refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing compiles."""

    def refuse(*_: object) -> Any:
        raise RuntimeError("no code today")

    monkeypatch.setattr(offloading, "_compile", refuse)


def product(rows: int | str = "n") -> Model:
    """x · w - b, of dims that only run time knows by default."""
    model = Model("product")
    h = model.add("MatMul", model.input("x", rows, 8), model.constant("w", weight(0, 8, 4)))
    return model.output(model.add("Sub", h, model.constant("b", weight(1, 4))))


def test_a_new_shape_is_served_at_once_and_compiled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[float] = []
    original = offloading._compile
    monkeypatch.setattr(offloading, "_compile", lambda *given: (started.append(time.monotonic()), original(*given))[1])
    model = product()
    made = session(model)
    for size in (3, 5):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    wait_for_code()
    report = fusilli_plugin.ep_report(made)
    assert (list(report.specialisations.values()), dict(report.elsewhere)) == ([2], {})
    kernels: list[int] = []
    monkeypatch.setattr(nodes.CompiledNode, "run_elsewhere", lambda *_: kernels.append(1))
    for size in (3, 5):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    assert (len(started), kernels) == (2, [])


def test_who_waits_gets_code_in_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.CompiledNode, "run_elsewhere", broken)
    model = product()
    made = session(model, on_new_shape="wait")
    check(model, made, 1e-6, model.feeds(0, {"n": 6}))
    assert list(fusilli_plugin.ep_report(made).specialisations.values()) == [1]


@pytest.mark.parametrize("how", ["fallback", "wait"])
def test_a_shape_that_does_not_compile_runs_in_the_kernels_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    model = product()
    made = session(model, on_new_shape=how)
    refuses(monkeypatch)
    for size in (2, 7, 2, 7, 2):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
        wait_for_code()
    (found,) = fusilli_plugin.ep_report(made).elsewhere.values()
    assert {dims: reason.startswith("does not compile: no code today") for dims, reason in found.items()} == {
        "x [2, 8]": True,
        "x [7, 8]": True,
    }
    assert "ONNX Runtime's kernels, does not compile: no code today" in str(fusilli_plugin.ep_report(made))
    told = [each for each in caplog.records if "CPU kernels instead" in each.getMessage()]
    assert [each.levelno for each in told if each.levelno >= logging.WARNING] == [logging.WARNING]
    assert "MatMul 'matmul_0'" in told[0].getMessage()


def test_a_strict_session_raises_where_others_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = product()
    made = session(model, strict="1")
    refuses(monkeypatch)
    with pytest.raises(Exception, match="MatMul 'matmul_0'.*no code today"):
        made.run(None, model.feeds(0, {"n": 2}))


@pytest.mark.a_few("4")
@pytest.mark.parametrize("rows", [4, 4096])  # on C's stage, on ONNX Runtime's addresses
def test_a_launch_that_fails_is_done_by_the_kernels(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    model = product(rows)
    monkeypatch.setattr(nodes.ShapePlan, "launcher", lambda self: broken)
    monkeypatch.setattr(nodes.ShapePlan, "run", broken)
    made = session(model)
    assert fusilli_plugin.ep_report(made).claimed == 2
    for seed in range(3):
        check(model, made, 1e-6, model.feeds(seed))
    (found,) = fusilli_plugin.ep_report(made).elsewhere.values()
    assert found == {f"x [{rows}, 8]": "did not run: the device is on fire"}


def test_a_launch_for_a_new_shape_that_fails_is_done_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.ShapePlan, "run", broken)
    model = product()
    made = session(model, on_new_shape="wait")
    for size in (2, 3, 2):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    (found,) = fusilli_plugin.ep_report(made).elsewhere.values()
    assert set(found.values()) == {"did not run: the device is on fire"}


@pytest.mark.thorough
def test_dims_that_a_run_gives_otherwise_than_inferred() -> None:
    """The first node says nothing of its dims but in the model's own words, which are wrong."""
    model = Model("wrong")
    x, count = model.input("x", 4, 8), model.input("count", 2, dtype=np.int64)
    h = model.add("Expand", x, count)
    model.output(model.add("Relu", model.add("Tanh", h)))
    proto = model.proto()
    from onnx import TensorProto, helper

    proto.graph.value_info.append(helper.make_tensor_value_info(h, TensorProto.FLOAT, [4, 8]))
    made: Any = session(proto.SerializeToString())
    feeds = {"x": np.ones((4, 8), F32), "count": np.array([4, 8])}
    np.testing.assert_allclose(made.run(None, feeds)[0], np.tanh(np.ones((4, 8))), rtol=1e-6)


def test_what_onnx_runtime_has_no_kernel_for_waits_for_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise OrtError("CreateSessionFromArray: no kernel")

    monkeypatch.setattr(nodes, "Kernels", refuse)
    model = product()
    made = session(model)
    check(model, made, 1e-6, model.feeds(0, {"n": 3}))
    assert list(fusilli_plugin.ep_report(made).specialisations.values()) == [1]
    refuses(monkeypatch)
    with pytest.raises(Exception, match="MatMul 'matmul_0'.*no code today"):
        made.run(None, model.feeds(0, {"n": 4}))


def test_what_the_kernels_refuse_for_a_shape_is_tried_with_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise OrtError("Run: not this shape")

    monkeypatch.setattr(nodes.Kernels, "run", refuse)
    model = product()
    made = session(model)
    check(model, made, 1e-6, model.feeds(0, {"n": 3}))
    refuses(monkeypatch)
    with pytest.raises(Exception, match="MatMul 'matmul_0'.*not this shape"):
        made.run(None, model.feeds(0, {"n": 4}))


def test_scalars_empty_tensors_several_results_and_all_widths() -> None:
    """In the kernels, each for a shape that was not met before."""
    for dtype in (np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64):
        model = Model("several", dtype)
        x, one = model.input("x", "n", 3), model.constant("one", np.ones((), dtype))
        first = model.add("Add", x, one)
        model.output(first, model.add("Mul", first, model.input("s")))
        made = session(model)
        for size in (0, 1, 4):
            check(model, made, 0, model.feeds(size, {"n": size}))
    wait_for_code()


# ---- what lives in the background


def test_wishes_are_served_newest_first_and_once() -> None:
    import threading

    queue, first, done = Background(), threading.Event(), []
    assert queue.wants("first", lambda: (done.append("first"), first.wait(60))[0])
    while not done:
        time.sleep(0.01)
    for key in ("a", "b", "first", "a"):  # the one that runs is not wished for again
        queue.wants(key, lambda key=key: done.append(key))
    queue.wants("c", lambda: 1 / 0)  # type: ignore[arg-type]
    queue.forget(lambda key: key == "b")
    first.set()
    assert queue.wait(60)
    assert done == ["first", "a"]
    queue.close()
    assert not queue.wants("d", lambda: None)


@pytest.mark.thorough
def test_a_session_that_is_gone_wishes_for_nothing() -> None:
    model = product()
    made = session(model)
    for size in range(1, 6):
        made.run(None, model.feeds(size, {"n": size}))
    del made
    gc.collect()
    assert background.wait(120)


@pytest.mark.thorough
def test_shapes_that_are_met_once_do_not_push_out_others() -> None:
    model = product()
    made = session(model, max_shapes="2")
    for size in (1, 2):
        made.run(None, model.feeds(size, {"n": size}))
        wait_for_code()
    for size in (3, 4, 5, 6):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
        wait_for_code()
    assert list(fusilli_plugin.ep_report(made).specialisations.values()) == [2]
    for _ in range(3):  # what comes again does
        check(model, made, 1e-6, model.feeds(7, {"n": 7}))
        wait_for_code()
    assert list(fusilli_plugin.ep_report(made).specialisations.values()) == [3]


# ---- threads, dumps


def cpu_share_elsewhere(threads: int) -> float:
    """The part of the CPU time of 20 runs that is not the calling thread's."""
    model = Model("convs")
    y = model.input("x", 1, 32, 48, 48)
    for layer in range(3):
        y = model.add("Conv", y, model.constant(f"w{layer}", weight(layer, 32, 32, 3, 3)), pads=[1] * 4)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.add_provider_for_devices(fusilli_plugin.ep_devices("cpu"), {})
    made: Any = ort.InferenceSession(model.output(y).data(), settings, enable_fallback=0)
    feeds = model.feeds()
    check(model, made, 1e-5, feeds)
    caller, process = time.thread_time(), time.process_time()
    for _ in range(20):
        made.run(None, feeds)
    caller, process = time.thread_time() - caller, time.process_time() - process
    return (process - caller) / process


@pytest.mark.thorough
def test_a_session_of_one_thread_works_in_the_callers() -> None:
    wait_for_code()
    assert cpu_share_elsewhere(1) < 0.15


@pytest.mark.thorough
def test_threads_that_are_asked_for_are_found() -> None:
    from fusilli_plugin.ort_ep import attach

    seen: list[int] = []
    original = attach.asked_threads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attach, "asked_threads", lambda *given: (seen.append(original(*given)), seen[-1])[1])
        for threads in (0, 1, 0):
            settings = ort.SessionOptions()
            settings.intra_op_num_threads = threads
            settings.add_provider_for_devices(fusilli_plugin.ep_devices("cpu"), {})
            check(add(), ort.InferenceSession(add().data(), settings), 0, add().feeds())
    assert seen == [0, 1, 0]


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_dump_folder_that_cannot_be_written_is_refused(tmp_path: Path, strict: str) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(Exception, match="option 'dump'.*a folder that can be written"):
            session(add(), dump=str(folder), strict=strict)


@pytest.mark.thorough
def test_slow_compiles_are_warned_of_once_for_each_group(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nodes, "_SLOW", 0.0)
    model = conv_relu(batch="n")
    made = session(model, on_new_shape="wait")
    with caplog.at_level(logging.INFO, "fusilli_plugin"):
        for size in (1, 2, 3):
            np.testing.assert_allclose(
                made.run(None, model.feeds(size, {"n": size}))[0],
                reference(model, model.feeds(size, {"n": size}))[0],
                rtol=1e-4, atol=1e-5,
            )  # fmt: skip
    levels = [each.levelno for each in caplog.records if "compiled for x" in each.getMessage()]
    assert levels == [logging.WARNING, logging.INFO, logging.INFO]
