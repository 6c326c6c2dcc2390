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

    def take() -> tuple[list[np.ndarray], tuple[int, ...]]:
        return memory.take() or pytest.fail("there is none")

    first, at = take()
    assert [array.shape for array in first] == [(8, 4), (3,)]
    assert tuple(array.__array_interface__["data"][0] for array in first) == at
    assert all(address % 64 == 0 for address in at)
    part = first[0][2:].T
    del first
    second, elsewhere = take()
    assert not set(elsewhere) & set(at)
    del part
    third, again = take()
    assert again == at
    others = [take() for _ in range(2)]
    assert len({at, elsewhere, *(each for _, each in others)}) == 4
    assert memory.take() is None
    del second, third, others
    assert take()[1] in {at, elsewhere}


def _placed(offset: int, number: float) -> np.ndarray:
    """An array of numbers at a multiple of 64 bytes plus ``offset``."""
    raw = np.empty(4 * _DIMS[0] * _DIMS[1] + 128, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64 + offset
    array = raw[start : start + 4 * _DIMS[0] * _DIMS[1]].view(np.float32).reshape(_DIMS)
    array[...] = number
    return array


@pytest.mark.iree_cpu
@pytest.mark.parametrize("offset", [0, 16, 48, 4, 20])
def test_an_input_that_stays_in_its_place_is_read_there(offset: int) -> None:
    x = _placed(offset, 1)
    with _model() as model:
        for number in range(1, 6):  # read where it lies from the second run on
            x[...] = number
            _check(model.run({"x": x}), number)
        others = [_placed(16 * number, 10 + number) for number in range(4)]
        for _ in range(4):
            for number, other in enumerate(others):
                _check(model.run({"x": other}), 10 + number)
        x[...] = 7
        strided = np.full((_DIMS[1], _DIMS[0]), 8, np.float32).T
        frozen = _placed(16, 9)
        frozen.setflags(write=False)
        for _ in range(3):
            _check(model.run({"x": x}), 7)
            _check(model.run({"x": strided}), 8)
            _check(model.run({"x": frozen}), 9)
        given = {"y": np.empty(_DIMS, np.float32), "z": np.empty(_DIMS, np.float32)}
        for number in (3, 4, 5):
            x[...] = number
            model.run({"x": x}, given)
            _check(given, number)
            assert (model.run({"x": x}, {"y": x})["z"] == number * number).all()  # written over what it has read
            assert (x == 2 * number).all()


@pytest.mark.iree_cpu
def test_a_result_that_is_an_input_again_stays_what_it_was() -> None:
    with _model() as model:
        value = np.full(_DIMS, 1.0, np.float32)
        kept = [value]
        for _ in range(12):
            value = model.run({"x": value})["y"]
            kept.append(value)
    for number, each in enumerate(kept):
        assert (each == 2.0**number).all()
