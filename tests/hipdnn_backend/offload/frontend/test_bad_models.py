"""Damaged and wrong models: a `ModelError` that names the node or tensor, and nothing worse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graph_api import FusilliError
from hipdnn_backend.offload.errors import ModelError, OffloadError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_models import bert_layer, llama_block, mlp, small_cnn


def _node(op_type: str, inputs: str, outputs: str, name: str = "", **given: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name, **given)


def _model(
    *nodes: onnx.NodeProto, x: Any = (2, 3), constants: dict[str, np.ndarray] | None = None, opset: int = 17
) -> onnx.ModelProto:
    """A model from float ``x`` to ``y``."""
    graph = helper.make_graph(
        list(nodes), "bad", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


_CASES: dict[str, tuple[onnx.ModelProto, str, str, str]] = {
    "cycle": (
        _model(_node("Add", "x c", "a", "first"), _node("Relu", "a", "b", "second"), _node("Neg", "b", "c", "third"),
               _node("Relu", "c", "y", "last")),
        "first", "graph", "cycle: first → second → third → first",
    ),
    "undefined input": (_model(_node("Add", "x nothing", "y", "sum")), "sum", "graph", "'nothing' is made by no node"),
    "defined twice": (
        _model(_node("Relu", "x", "y", "one"), _node("Neg", "x", "y", "two")), "two", "graph", "'y' is defined twice",
    ),
    "missing output": (_model(_node("Relu", "x", "z", "one")), "y", "graph", "made by no node"),
    "unknown operator": (
        _model(_node("Frobnicate", "x", "y", "odd")), "odd", "unknown-operator", "No Op registered for Frobnicate",
    ),
    "unknown domain": (
        _model(_node("Frobnicate", "x", "y", "odd", domain="acme")), "odd", "static-dims", "Frobnicate",
    ),
    "unknown domain of a known name": (
        _model(_node("Relu", "x", "y", "odd", domain="acme")), "odd", "static-dims", r"acme\.Relu is not known here",
    ),
    "unknown attribute": (_model(_node("Relu", "x", "y", "odd", slope=1.0)), "odd", "checker", "slope"),
    "a slope of more dims": (
        _model(_node("PRelu", "x slope", "y", "odd"), constants={"slope": np.ones((2, 1, 3), np.float32)}),
        "odd", "broadcast", r"the slope has dims \[2, 1, 3\], which do not broadcast to \[2, 3\]",
    ),
    "a slope of a larger dim": (
        _model(_node("PRelu", "x slope", "y", "odd"), x=(1, 3), constants={"slope": np.ones((2, 1), np.float32)}),
        "odd", "broadcast", r"the slope has dims \[2, 1\], which do not broadcast to \[1, 3\]",
    ),
    "wrong shapes": (
        _model(_node("MatMul", "x w", "y", "product"), constants={"w": np.ones((4, 5), np.float32)}),
        "product", "shapes", r"MatMul of x \[2, 3\], w \[4, 5\]",
    ),
    "wrong types": (
        _model(_node("Add", "x w", "y", "sum"), constants={"w": np.ones(3, np.int64)}), "sum", "shapes", "Add of x",
    ),
    "dim not given": (_model(_node("Relu", "x", "y"), x=("batch", 3)), "x", "dims", r"\{'batch': N\}.* --dim batch=N"),
    "unnamed dim": (_model(_node("Relu", "x", "y"), x=(None, 3)), "x", "dims", r"--dim x\.0=N"),
    "no rank": (_model(_node("Relu", "x", "y"), x=None), "x", "dims", "no rank"),
    "opset": (_model(_node("Relu", "x", "y"), opset=99), "", "opset", "opset 99 is outside 7 to"),
    "data-dependent dims": (_model(_node("NonZero", "x", "a", "zeros"), _node("Cast", "a", "y", "cast", to=1)),
                            "zeros", "static-dims", "NonZero"),
    "not converted": (
        _model(_node("StringNormalizer", "s", "z", "text"), _node("Relu", "x", "y"),
               constants={"s": np.array(["a"], object)}),
        "", "", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [name for name in _CASES if name != "not converted"])
def test_an_error_names_the_node(case: str) -> None:
    model, node, rule, reason = _CASES[case]
    with pytest.raises(ModelError, match=reason) as caught:
        load(model)
    assert (caught.value.node, caught.value.rule) == (node, rule)


def test_strings_that_no_node_reads() -> None:
    model = _model(_node("Identity", "x", "y"))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(ModelError, match="elements are of type STRING, which the torch dialect lacks") as caught:
        load(model)
    assert (caught.value.node, caught.value.rule) == ("x", "element-type")


def test_what_no_result_needs_is_not_converted() -> None:
    assert "relu" in str(load(_CASES["not converted"][0]).module)


def test_an_operator_without_conversion_is_named_with_its_operands() -> None:
    model = _model(_node("MaxPool", "x", "y", "pool", kernel_shape=[2] * 4), x=(1, 1, 2, 2, 2, 2))
    with pytest.raises(ModelError, match=r"pool: MaxPool of x \[1, 1, 2, 2, 2, 2\] is not supported") as caught:
        load(model)
    assert caught.value.rule == "unsupported-operator"


@pytest.mark.parametrize(
    "break_it",
    [
        lambda tensor: tensor.dims.__setitem__(0, 7),
        lambda tensor: tensor.dims.__setitem__(0, -1),
        lambda tensor: setattr(tensor, "data_type", 99),
        lambda tensor: setattr(tensor, "raw_data", b"abc"),
        lambda tensor: tensor.ClearField("raw_data"),
    ],
)
def test_damaged_tensors(break_it: Callable[[TensorProto], None]) -> None:
    model = mlp()
    break_it(model.graph.initializer[0])
    with pytest.raises(ModelError) as caught:
        load(model)
    assert (caught.value.node, caught.value.rule) == ("fc0.weight", "tensor-data")


@pytest.mark.parametrize("data", [b"", b"hello", bytes(100), b"\xff" * 64, b"\x08\x0a"])
def test_bytes_that_are_no_model(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        load(data)
    assert caught.value.rule == "model-file"


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        load(tmp_path / "missing.onnx")
    with pytest.raises(ModelError, match="cannot read"):
        load(tmp_path)
    whole = small_cnn().SerializeToString()
    path = tmp_path / "truncated.onnx"
    for size in (1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            load(path)


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(ModelError, match="cannot read .*null") as caught:
        load("a\0b.onnx")
    assert caught.value.rule == "model-file"


def test_too_little_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("hipdnn_backend.offload.frontend.loading.infer_all", fail)
    with pytest.raises(ModelError, match="not enough memory"):
        load(_model(_node("Relu", "x", "y")))


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ({"batch": 1}, "'sequence'"),
        ({"batch": 1, "sequence": -4}, "no size"),
        ({"batch": 1, "sequence": True}, "no size"),
        ({"batch": 1, "sequence": 4.0}, "no size"),
        (
            {"batch": 1, "sequence": 4, "width": 3},
            "no input has a dim of this name; symbolic dims are: batch, sequence",
        ),
        (
            {"batc": 1, "sequence": 4},
            r"^batc: no input has a dim of this name \(did you mean batch\?\); symbolic dims are: batch, sequence",
        ),
    ],
)
def test_dims(dims: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        prepare(bert_layer(hidden=8, heads=2, dynamic=True), dims=dims)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"nothing": 1}, "its inputs are hidden_states, attention_mask"),
        ({"attention_mask": np.ones((1, 5))}, r"has dims \[1, 4\], the value \[1, 5\]"),
        ({"attention_mask": "abc"}, "is no int64 tensor"),
    ],
)
def test_bound_inputs(inputs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        prepare(bert_layer(hidden=8, heads=2, sequence=4), inputs=inputs)


def test_a_function_that_calls_itself() -> None:
    model = _model(_node("Loopy", "x", "y", "call", domain="local"))
    body = [_node("Loopy", "a", "b", domain="local")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model.functions.append(helper.make_function("local", "Loopy", ["a"], ["b"], body, imports))
    model.opset_import.append(helper.make_opsetid("local", 1))
    with pytest.raises(ModelError, match="Loopy: the model's function calls itself"):
        load(model)


def _mutated(random: np.random.Generator, data: bytes) -> bytes:
    """Cut, overwritten, shortened inside or with a piece doubled; mostly in the structure, which comes first."""
    changed, head = bytearray(data), min(len(data), 6000)
    kind, at = random.integers(4), int(random.integers(head))
    if kind == 0:
        return data[: random.integers(len(data))]
    if kind == 1:
        changed[at] = random.integers(256)
    elif kind == 2:
        del changed[at : at + random.integers(1, 30)]
    else:
        source = int(random.integers(head))
        changed[at:at] = changed[source : source + 20]
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_mutated_models_load_or_raise(seed: int) -> None:
    random = np.random.default_rng(seed)
    small: dict[str, Any] = {"hidden": 16, "heads": 2, "sequence": 4}
    models = [small_cnn(size=8), bert_layer(**small), llama_block(**small, kv_heads=1, feed_forward=8, opset=23)]
    data = [model.SerializeToString() for model in models]
    for i in range(100):
        mutant = _mutated(random, data[i % len(data)])
        child = os.fork()
        if not child:
            code = 2
            try:
                load(mutant)
                code = 0
            except ModelError:
                code = 1
            finally:
                os._exit(code)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) in (0, 1), f"seed {seed}, mutant {i}"


def test_errors_of_models_have_the_common_base() -> None:
    """One ``except`` is enough for whoever uses graphs and models."""
    from hipdnn_backend import BackendError

    assert issubclass(OffloadError, BackendError)
    assert issubclass(BackendError, FusilliError)
