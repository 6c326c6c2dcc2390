"""onnx's native code in a process of its own: what ends it is an error, and the next question is answered."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from hipdnn_backend.offload.frontend.folding import evaluate
from hipdnn_backend.offload.onnx_process import client
from hipdnn_backend.offload.onnx_process.client import OnnxError, OnnxProcessError, infer_shapes
from hipdnn_backend.offload.onnx_process.worker import SIZES, receive


def _model(*nodes: onnx.NodeProto, dims: tuple[int, ...] = (2, 3)) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.BOOL, None)
    imports = [helper.make_opsetid(domain, version) for domain, version in (("", 22), ("odd", 1), ("ai.onnx.ml", 2))]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=10)


def _odd(op_type: str, **given: Any) -> onnx.ModelProto:
    """An operator whose operand has no type, since another domain's operator makes it."""
    domain = given.pop("domain", "")
    nodes = [helper.make_node("Odd", ["x"], ["t"], "odd", domain="odd")]
    return _model(*nodes, helper.make_node(op_type, ["t"], ["y"], "n", domain=domain, **given))


RELU = _model(helper.make_node("Relu", ["x"], ["y"], "n"))
ENDING: dict[str, onnx.ModelProto] = {
    "an operand without a type": _odd("RegexFullMatch", pattern="a"),
    "keys without values": _odd("LabelEncoder", domain="ai.onnx.ml", keys_int64s=[1], values_floats=[1.0]),
    "too many outputs": _model(helper.make_node("Split", ["x"], ["y", "y1", "y2"], "n", num_outputs=1)),
    "an axis far outside": _model(helper.make_node("LayerNormalization", ["x", "x"], ["y", "m"], "n", axis=2**62)),
}
"""What ends the process that infers its shapes, with some version of onnx."""


def _process() -> Any:
    infer_shapes(RELU)
    return client._process


@pytest.mark.parametrize("name", ENDING)
def test_no_model_ends_this_process(name: str) -> None:
    with pytest.raises((OnnxError, OnnxProcessError)):
        infer_shapes(ENDING[name], strict_mode=True, check_type=True)
    with pytest.raises(ModelError):
        prepare(ENDING[name].SerializeToString())
    assert infer_shapes(RELU).graph.node[0].op_type == "Relu"


def test_the_error_says_what_happened() -> None:
    """A process that dies while it is asked, whatever of; here by a signal from elsewhere."""
    process = _process()
    waiting = threading.Timer(0.2, os.kill, (process._process.pid, signal.SIGKILL))
    os.kill(process._process.pid, signal.SIGSTOP)
    waiting.start()
    with pytest.raises(OnnxProcessError, match="does not survive this model: its infer_shapes was ended by SIGKILL"):
        infer_shapes(RELU)


def test_a_question_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SECONDS", 0.3)
    process = _process()
    os.kill(process._process.pid, signal.SIGSTOP)
    with pytest.raises(OnnxProcessError, match="its infer_shapes took too long"):
        infer_shapes(RELU)
    assert process._process.returncode == -signal.SIGKILL
    assert infer_shapes(RELU).graph.node[0].op_type == "Relu"


def test_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference with data keeps an entry for each element: 2**26 of them here."""
    nodes = [helper.make_node("Shape", ["x"], ["t0"])]
    nodes += [helper.make_node("Concat", [f"t{i}"] * 2, [f"t{i + 1}"], axis=0) for i in range(26)]
    with pytest.raises((OnnxError, OnnxProcessError)):
        infer_shapes(_model(*nodes, helper.make_node("Cast", ["t26"], ["y"], to=9)), data_prop=True)


def test_a_process_that_has_left_is_replaced() -> None:
    """It leaves when it has nothing to do, or is killed meanwhile."""
    process = _process()
    process._process.kill()
    process._process.wait()
    assert infer_shapes(RELU).graph.node[0].op_type == "Relu"
    assert _process() is not process


def test_a_forked_child_has_one_of_its_own() -> None:
    """The parent's goes on answering the parent, whoever was asking it."""
    before = _process()._process.pid
    client._lock.acquire()  # another thread asks
    child = os.fork()
    if not child:
        ok = infer_shapes(RELU).graph.node[0].op_type == "Relu" and _process()._process.pid != before
        os._exit(0 if ok else 1)
    client._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _process()._process.pid == before


def test_threads_may_ask_at_the_same_time() -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(30):
            dims = [each.dim_value for each in infer_shapes(
                _model(helper.make_node("IsNaN", ["x"], ["y"], "n"), dims=(number,))
            ).graph.output[0].type.tensor_type.shape.dim]  # fmt: skip
            if dims != [number]:
                wrong.append((number, dims))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "said",
    [SIZES.pack(2, 1 << 60) + b"[]", SIZES.pack(1 << 31, 0), SIZES.pack(2, 0) + b"{]", SIZES.pack(200, 0) + b"[" * 200],
    ids=["data", "list", "syntax", "open"],
)
def test_what_is_no_answer(said: bytes) -> None:
    """The process read a stranger's model, so what it says is a stranger's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receive(ours)


def test_it_ends_with_its_parent() -> None:
    """Also where a process that the parent forked keeps the connection open."""
    code = (
        "import os, time, onnx\nfrom hipdnn_backend.offload.onnx_process import client\n"
        "try:\n    client.check_model(onnx.ModelProto())\nexcept client.OnnxError:\n    pass\n"
        "print(client._process._process.pid, flush=True)\n"
        "os.register_at_fork(after_in_child=lambda: None)\n"
        # without the standard output, for whose end is waited here
        "if not os.fork():\n    os.close(1); time.sleep(20)\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    pid, until = int(done.stdout.split()[0]), time.monotonic() + 15
    while time.monotonic() < until and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")


def test_closed_standard_files_are_not_taken() -> None:
    """A host may have closed them, and print."""
    code = (
        "import os, sys, onnx\nfrom hipdnn_backend.offload.onnx_process import client\n"
        "kept = os.dup(2)\nfor each in (0, 1, 2):\n    os.close(each)\n"
        "for _ in range(2):\n    try:\n        client.check_model(onnx.ModelProto())\n"
        "    except client.OnnxError as error:\n        os.write(kept, b'refused ')\n"
        "assert client._process._sock.fileno() > 2\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "refused refused ")


_BIG: dict[str, tuple[onnx.NodeProto, dict[str, Any]]] = {
    "Expand": (helper.make_node("Expand", ["a", "b"], ["y"]), {"a": np.zeros(1), "b": np.asarray([2**40])}),
    "ConstantOfShape": (helper.make_node("ConstantOfShape", ["b"], ["y"]), {"b": np.asarray([2**33, 2])}),
    "Tile": (helper.make_node("Tile", ["a", "b"], ["y"]), {"a": np.zeros(1000), "b": np.asarray([2**33])}),
    "Range": (helper.make_node("Range", ["a", "b", "c"], ["y"]),
              {"a": np.asarray(0), "b": np.asarray(2**50), "c": np.asarray(1)}),
    "Pad": (helper.make_node("Pad", ["a", "b"], ["y"]), {"a": np.zeros(3), "b": np.asarray([0, 2**40])}),
    "a random one": (helper.make_node("RandomUniformLike", ["a"], ["y"]), {"a": np.zeros(3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", _BIG)
def test_what_would_be_large_is_not_evaluated(name: str) -> None:
    node, values = _BIG[name]
    begin = time.process_time()
    assert evaluate(node, {"": 22}, values, {}) is None
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("node", "expected"),
    [(helper.make_node("Shape", ["a"], ["y"], start=1), [2**40, 3]),
     (helper.make_node("Size", ["a"], ["y"]), 2**40 * 15)],
)  # fmt: skip
def test_extents_are_known_without_elements(node: onnx.NodeProto, expected: object) -> None:
    results = evaluate(node, {"": 22}, {}, {"a": (5, 2**40, 3)})
    assert results is not None
    np.testing.assert_array_equal(results[0], np.asarray(expected))


def test_an_interrupted_question_leaves_no_old_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    process = _process()

    def interrupted(*_: Any) -> Callable[[], None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.worker, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        infer_shapes(RELU)
    monkeypatch.undo()
    assert infer_shapes(RELU).graph.node[0].op_type == "Relu"
    assert _process() is not process
