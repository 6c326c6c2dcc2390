"""Models of a few hundred bytes that would take gigabytes, or for ever; each is loaded in a process with a limit."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import prepare

_LIMIT = 1 << 30
"""Bytes of address space above what a process has after its imports: glibc's arenas and numpy's threads are in it."""
_PROGRAM = """
import resource, sys, time
from pathlib import Path
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import loading

def status(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) << 10

resource.setrlimit(resource.RLIMIT_AS, (status("VmSize:") + int(sys.argv[1]),) * 2)
for path in sys.argv[2:]:
    data = Path(path).read_bytes()
    print(path, flush=True)
    Path("/proc/self/clear_refs").write_text("5")  # the most memory that was ever used is measured anew
    before, begin = status("VmRSS:"), time.monotonic()
    try:
        loading.prepare(data)
    except ModelError:
        pass
    grown = status("VmHWM:") - before
    print(grown >> 20, "MiB")
    assert grown <= (192 << 20) + 20 * len(data), f"{path} takes {grown} bytes"
    assert time.monotonic() - begin < 20, f"{path} takes too long"
"""


def node(op_type: str, inputs: str, outputs: str, name: str = "", **given: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name or outputs.split()[0], **given)


def model(nodes: list[onnx.NodeProto], dims: list[int], kind: int = TensorProto.INT64, **constants: Any) -> bytes:
    """From ``x`` to ``y``, as bytes."""
    graph = helper.make_graph(
        nodes, "growing", [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.elem_type = kind
    imports = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def doubled(op_type: str, count: int, first: str = "x", **given: Any) -> list[onnx.NodeProto]:
    """``t = op(t, t)``, again and again."""
    names = [first, *(f"t{i}" for i in range(count - 1)), "y"]
    return [node(op_type, f"{a} {a}", b, **given) for a, b in pairwise(names)]


def branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    value = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    return helper.make_graph(nodes, "body", [], [value])


_LONG = 10**8
_COUNTED: dict[str, Any] = {f"x{i}": [i] for i in range(800)}
MODELS: dict[str, bytes] = {
    "doubled input": model(doubled("Concat", 30, axis=0), [1]),
    "doubled input of floats": model(doubled("Concat", 30, axis=0), [1], TensorProto.FLOAT),
    "doubled constant": model([*doubled("Concat", 30, "c", axis=0)], [1], c=[1]),
    "two constants in turn": model(
        [n for i in range(30) for n in (
            node("Concat", f"a{i} b{i}", f"a{i + 1}", axis=0), node("Concat", f"b{i} a{i}", f"b{i + 1}", axis=0)
        )] + [node("Add", "a30 b30", "y")], [1], a0=[1], b0=[2],
    ),
    "long input": model([node("Add", "x x", "y")], [_LONG]),
    "long input, cast": model([node("Cast", "x", "y", to=7)], [_LONG]),
    "flattened": model([node("Reshape", "x flat", "t"), node("Mul", "t t", "y")], [10**4, 10**4], flat=[-1]),
    "flattened by its own dims": model(
        [node("Shape", "x", "s"), node("ReduceProd", "s", "n", keepdims=1), node("Reshape", "x n", "t"),
         node("Mul", "t t", "y")], [10**4, 10**4],
    ),
    "flattened by propagated dims": model(
        [node("Shape", "x", "s"), node("Gather", "s zero", "a"), node("Gather", "s one", "b"), node("Mul", "a b", "n"),
         node("Reshape", "x n", "t"), node("Mul", "t t", "y")], [10**4, 10**4], zero=[0], one=[1],
    ),
    "a range": model([node("Range", "a b c", "t"), node("Add", "t t", "y")], [1], a=0, b=_LONG, c=1),
    "doubled in a branch": model(
        [node("Cast", "x", "t", to=9), node("Reshape", "t none", "c"),
         node("If", "c", "y", then_branch=branch(doubled("Concat", 30, axis=0)),
              else_branch=branch([node("Identity", "x", "y")]))], [1], none=np.zeros(0, np.int64),
    ),
    "many dims": model(doubled("Gather", 30), [2, 2]),
    "many dims of a constant": model([node("Reshape", "x c", "t0"), *doubled("Add", 30, "t0")], [1],
                                     c=np.ones(10**5, np.int64)),
    "positions along a long axis": model(
        [node("Resize", "x none none n", "y", mode="linear")], [1, 1, 2], TensorProto.FLOAT,
        none=np.zeros(0, np.float32), n=[1, 1, 10**9],
    ),
    "a mask": model([node("Attention", "x x x", "y", is_causal=1, softcap=2.0)], [1, 1, 10**5, 1], TensorProto.FLOAT),
    "many constants": model(
        [node("Expand", f"x{i} n", f"e{i}") for i in range(800)]
        + [node("Sum", " ".join(f"e{i}" for i in range(800)), "s"), node("ReduceMax", "s", "m")]
        + [node("Add", "m x", "y")],
        [1], n=[1 << 16], **_COUNTED,
    ),
}  # fmt: skip


def test_small_models_take_little_memory(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in MODELS]
    for path in paths:
        path.write_bytes(MODELS[path.name])
    command = [sys.executable, "-c", _PROGRAM, str(_LIMIT), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("MiB") == len(MODELS)


def test_many_dims_are_declined() -> None:
    with pytest.raises(ModelError, match="at most 64 are supported") as caught:
        prepare(model(doubled("Gather", 8), [2, 2]))
    assert caught.value.rule == "rank"


def test_dims_that_depend_on_dims_are_found_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where data is not propagated, each round of folding finds the dims behind one Reshape only."""
    from hipdnn_backend.offload.frontend import loading

    nodes, last = [], "x"
    for i in range(20):
        nodes += [
            node("Shape", last, f"s{i}"), node("Slice", f"s{i} zero last", f"front{i}"),
            node("Concat", f"front{i} heads", f"c{i}", axis=0), node("Reshape", f"{last} c{i}", f"r{i}"),
            node("Transpose", f"r{i}", f"t{i}", perm=[0, 2, 1, 3]), node("Mul", f"t{i} t{i}", f"m{i}"),
            node("Transpose", f"m{i}", f"b{i}", perm=[0, 2, 1, 3]), node("Concat", f"front{i} all", f"d{i}", axis=0),
            node("Reshape", f"b{i} d{i}", f"o{i}"), node("Add", f"o{i} x", f"a{i}"),
        ]  # fmt: skip
        last = f"a{i}"
    nodes.append(node("Relu", last, "y"))
    rounds = []
    monkeypatch.setattr(loading, "fold", lambda graph, fold=loading.fold: rounds.append(graph) or fold(graph))
    graph = prepare(model(nodes, [1, 6, 8], TensorProto.FLOAT, zero=[0], last=[-1], heads=[2, 4], all=[8]))
    assert len(rounds) <= 3
    types = [graph.type(output.value) for output in graph.outputs]
    assert [type_.static for type_ in types if type_] == [(1, 6, 8)]


def test_a_split_into_thousands_takes_no_square_of_the_time() -> None:
    begin = time.process_time()
    count = 3000
    nodes = [node("Split", "x", " ".join(f"o{i}" for i in range(count)), num_outputs=count, axis=0)]
    graph = prepare(model([*nodes, node("Add", "o0 o1", "y")], [count], TensorProto.FLOAT))
    assert [each.op_type for each in graph.nodes] == ["Slice", "Slice", "Add"]
    assert time.process_time() - begin < 20  # 170 s before, on the same machine


def test_weights_are_still_folded() -> None:
    """What replaces a large weight is no growth."""
    weight = np.arange(3 << 20, dtype=np.float32).reshape(3, -1)
    nodes = [node("Transpose", "w", "a", perm=[1, 0]), node("Neg", "a", "b"), node("Transpose", "b", "c", perm=[1, 0])]
    graph = prepare(model([*nodes, node("Add", "x c", "y")], [3, 1 << 20], TensorProto.FLOAT, w=weight))
    assert [each.op_type for each in graph.nodes] == ["Add"]
    np.testing.assert_array_equal(graph.constants[graph.nodes[0].input[1]], -weight)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
