"""Results of a model in host memory: what a caller keeps is never written again, what he drops is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

from hipdnn_backend.offload import load
from hipdnn_backend.offload.model import Model
from hipdnn_backend.offload.program.program import View
from hipdnn_backend.offload.program.results import ResultMemory

pytestmark = pytest.mark.mlir

_DIMS = [64, 512]  # 128 KiB: large enough not to be copied


def _model() -> Model:
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, _DIMS) for name in ("x", "y", "z")]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Mul", ["x", "x"], ["z"])]
    graph = helper.make_graph(nodes, "g", types[:1], types[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return load(proto.SerializeToString(), device="cpu")


def _check(results: dict[str, np.ndarray], number: float) -> None:
    assert (results["y"] == 2 * number).all()
    assert (results["z"] == number * number).all()


def _input(number: float) -> dict[str, np.ndarray]:
    return {"x": np.full(_DIMS, number, np.float32)}


@pytest.mark.iree_cpu
def test_results_that_are_kept_stay() -> None:
    with _model() as model:
        kept = [model.run(_input(number)) for number in range(10)]
        for number, results in enumerate(kept):
            _check(results, number)
        parts = [
            model.run(_input(number))["z"][3:5, 7] for number in range(20, 26)
        ]  # what is made of a result keeps it
        views = [memoryview(model.run(_input(number))["y"]) for number in range(30, 36)]
    for number, results in enumerate(kept):  # nor do they end with the model
        _check(results, number)
    assert [part[0] for part in parts] == [number * number for number in range(20, 26)]
    assert [view[5, 5] for view in views] == [2 * number for number in range(30, 36)]


@pytest.mark.iree_cpu
def test_threads_have_results_of_their_own() -> None:
    wrong: list[int] = []
    with _model() as model:

        def work(number: int) -> None:
            for _ in range(50):
                results = model.run(_input(number))
                if not ((results["y"] == 2 * number).all() and (results["z"] == number * number).all()):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    memory = ResultMemory([View(0, 0, (8, 4), (4, 1), "float32"), View(1, 0, (3,), (1,), "int64")])
    bound: list[tuple[int, ...]] = []

    def bind(addresses: object) -> int:
        bound.append(tuple(addresses))  # type: ignore[arg-type]
        return len(bound)

    first, which = memory.take(bind) or pytest.fail("there is none")
    assert which == 1
    assert [array.shape for array in first] == [(8, 4), (3,)]
    assert [array.__array_interface__["data"][0] for array in first] == list(bound[0])
    assert all(address % 64 == 0 for address in bound[0])
    part = first[0][2:].T
    del first
    second, which = memory.take(bind) or pytest.fail("there is none")
    assert which == 2
    del part
    third, which = memory.take(bind) or pytest.fail("there is none")
    assert which == 1
    others = [memory.take(bind) for _ in range(2)]
    assert memory.take(bind) is None
    assert len(bound) == 4
    del second, third, others
    assert memory.take(bind) is not None
    assert len(bound) == 4
