"""Models that are damaged or made to harm: a `ModelError`, in little time, whatever they say."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from tests.hipdnn_backend.offload.frontend.test_growth import model, node
from tests.hipdnn_backend.offload.frontend.test_nesting import functions

_PROGRAM = """
import logging, sys, time, warnings
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare
from tests.support.hostile_models import of_operator, operators

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
done = refused = 0
for schema in operators(old=sys.argv[3] == "old"):
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        print(schema.domain, schema.name, schema.since_version, seed, flush=True)
        data, begin = of_operator(schema, seed), time.process_time()
        try:
            prepare(data)
        except ModelError:
            refused += 1
        assert time.process_time() - begin < 1
        done += 1
print("all", done, refused)
"""


def _all_operators(first: int, last: int, which: str) -> tuple[int, int]:
    """How many models there were, and how many were refused."""
    command = [sys.executable, "-c", _PROGRAM, str(first), str(last), which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"status {done.returncode} at {done.stdout[-60:]}: {done.stderr[-2000:]}"
    count, refused = map(int, done.stdout.splitlines()[-1].split()[1:])
    return count, refused


def test_each_operator_used_in_an_odd_way() -> None:
    count, refused = _all_operators(0, 1, "newest")
    assert count > 150
    assert 0 < refused < count


@pytest.mark.slow
def test_each_operator_used_in_many_odd_ways() -> None:
    _all_operators(1, 9, "newest")
    _all_operators(0, 2, "old")


def _typed(model_bytes: bytes, **elements: int) -> bytes:
    proto = onnx.load_model_from_string(model_bytes)
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        if value.name in elements:
            value.type.tensor_type.elem_type = elements[value.name]
    return proto.SerializeToString()


def _loop(results: int) -> bytes:
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["go"], "go")], "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("on", 9, []),
         helper.make_tensor_value_info("s", 1, [2])],
        [helper.make_tensor_value_info("go", 9, []), helper.make_tensor_value_info("s", 1, [2])][:results],
    )  # fmt: skip
    loop = node("Loop", "n go0 x", "y", body=body)
    return model([loop], [2], TensorProto.FLOAT, n=np.asarray(3), go0=np.asarray(True))


def _learning(op_type: str, dims: list[int], **given: Any) -> bytes:
    proto = onnx.load_model_from_string(model([node(op_type, "x", "y", **given)], dims, TensorProto.FLOAT))
    proto.graph.node[0].domain = "ai.onnx.ml"
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto.SerializeToString()


def _unknown_operator_in_a_function() -> bytes:
    proto = functions(2, 1)
    proto.functions[1].node[0].domain = "nobody"
    return proto.SerializeToString()


MODELS: dict[str, bytes] = {
    "an input of no type": _typed(model([node("Relu", "x", "y")], [0], TensorProto.FLOAT), x=2**31 - 1),
    "an output of no type": _typed(model([node("Relu", "x", "y")], [2], TensorProto.FLOAT), y=12345),
    "more elements than there are numbers": model([node("Size", "x", "y")], [2**62, 2**62]),
    "no elements, but for one dim": model([node("Relu", "x", "y")], [0, 2**62, 2**62], TensorProto.FLOAT),
    "random numbers without end": model([node("RandomNormal", "", "r", shape=[0, 2**62, 2**62]),
                                         node("Identity", "r", "y")], [1], TensorProto.FLOAT),
    "a slice without bounds": model([node("Shape", "x", "s"), node("Slice", "s none none", "t"),
                                     node("Reshape", "x t", "y")], [2], none=np.zeros(0, np.int64)),
    "a loop without its state": _loop(1),
    "a loop without results": _loop(0),
    "features without end": _learning("FeatureVectorizer", [2, 2], inputdimensions=[2**63 - 1] * 3),
    "a mean of texts": model([node("MeanVarianceNormalization", "x", "y")], [2, 2], TensorProto.STRING),
    "an operator that a function has from nowhere": _unknown_operator_in_a_function(),
    **{f"the equation {text}": model([node("Einsum", "x", "y", equation=text)], [2, 3], TensorProto.FLOAT)
       for text in ("i.j", "....", "i\tj", "i-j", "i->j->", "ij->i.")},
}  # fmt: skip
"""Each of which was another exception, or the end of the process, or none."""
_READ = ("a slice without bounds", "features without end", "an operator that a function has from nowhere")


@pytest.mark.parametrize("name", MODELS)
def test_damage_is_refused_or_means_something(name: str) -> None:
    begin = time.process_time()
    if name in _READ:
        assert prepare(MODELS[name]).outputs[0].name == "y"
    else:
        with pytest.raises(ModelError, match=r".+ \[[a-z-]+\]$"):
            prepare(MODELS[name])
    assert time.process_time() - begin < 1
