"""If, Loop and Scan whose course only a run knows: bodies in our engine, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload import Model, compile_model, load
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.program.package import save_package

ort: Any = pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

F32 = np.float32
Array = np.ndarray[Any, Any]
Value = tuple[str, int, Sequence[int | str] | None]

FLOAT, INT64, BOOL = int(TensorProto.FLOAT), int(TensorProto.INT64), int(TensorProto.BOOL)


def node(op_type: str, inputs: str, outputs: str, **given: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), outputs.split()[0], **given)


def values(given: Sequence[Value]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(*each) for each in given]


def body(
    nodes: list[onnx.NodeProto], inputs: Sequence[Value], outputs: Sequence[Value], **constants: Array
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return helper.make_graph(nodes, "body", values(inputs), values(outputs), tensors)


def model(
    nodes: list[onnx.NodeProto], inputs: Sequence[Value], outputs: Sequence[Value], **constants: Array
) -> onnx.ModelProto:
    return helper.make_model(
        body(nodes, inputs, outputs, **constants), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )


def ours(proto: onnx.ModelProto, **more: Any) -> Model:
    return load(proto, device="cpu", engines=[FusilliEngine("cpu")], **more)


def check(made: Model, proto: onnx.ModelProto, *feeds: dict[str, Array]) -> None:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for each in feeds:
        for got, want in zip(made.run(each).values(), session.run(None, each), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def weight(*dims: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(dims) / dims[0] ** 0.5).astype(F32)


def halved(kind: str) -> onnx.ModelProto:
    """x is multiplied by a matrix until its largest element is small, or n times; how often is counted."""
    going = [
        node("Abs", "h", "a"),
        node("ReduceMax", "a", "m", keepdims=0),
        node("Greater", "m limit", "again"),
    ]
    nodes = [
        node("MatMul", "s w", "h0"),
        node("Mul", "h0 half", "h"),
        node("Add", "count one", "next"),
        *(going if kind != "for" else [node("Identity", "g", "again")]),
    ]
    inner = body(
        nodes,
        [("i", INT64, []), ("g", BOOL, []), ("s", FLOAT, [3, 8]), ("count", INT64, [])],
        [("again", BOOL, []), ("h", FLOAT, [3, 8]), ("next", INT64, [])],
        half=np.array(0.5, F32), one=np.array(1), limit=np.array(0.1, F32),
    )  # fmt: skip
    names = {"for": "n true", "while": "most go", "both": "n go"}[kind]
    loop = helper.make_node("Loop", [*names.split(), "x", "zero"], ["y", "steps"], "loop", body=inner)
    inputs: list[Value] = [("x", FLOAT, [3, 8])]
    inputs += [("n", INT64, [])] if "n" in names.split() else []
    inputs += [("go", BOOL, [])] if "go" in names.split() else []
    return model(
        [loop, node("Relu", "y", "z")], inputs, [("z", FLOAT, [3, 8]), ("steps", INT64, [])], w=weight(8, 8),
        zero=np.array(0), true=np.array(True), most=np.array(1000),
    )  # fmt: skip


@pytest.mark.a_few("both")
@pytest.mark.parametrize("kind", ["for", "while", "both"])
def test_a_loop_ends_when_a_run_says_so(kind: str) -> None:
    proto = halved(kind)
    feeds: list[dict[str, Array]] = []
    for scale, count, go in ((1, 3, True), (100, 5, True), (1, 0, True), (1000, 40, True), (1, 4, False)):
        each = {"x": weight(3, 8, seed=count) * F32(scale)}
        each |= {"n": np.array(count)} if kind != "while" else {}
        each |= {"go": np.array(go)} if kind != "for" else {}
        feeds.append(each)
    with ours(proto) as made:
        assert {graph.engine for graph in made.program.graphs} == {"FUSILLI_ENGINE", "CONTROL_ENGINE"}
        check(made, proto, *feeds)


def collected(length: int) -> onnx.ModelProto:
    """Running sums of a state, each step of which is kept; the model says how many steps there are."""
    inner = body(
        [node("Identity", "g", "again"), node("Add", "s x", "t"), node("Mul", "t t", "part")],
        [("i", INT64, []), ("g", BOOL, []), ("s", FLOAT, [4])],
        [("again", BOOL, []), ("t", FLOAT, [4]), ("part", FLOAT, [4])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y", "parts"], "loop", body=inner)
    return model([loop], [("x", FLOAT, [4]), ("n", INT64, [])], [("y", FLOAT, [4]), ("parts", FLOAT, [length, 4])])


def test_what_a_loop_collects_has_the_steps_that_the_model_says() -> None:
    proto, x = collected(5), weight(4)
    with ours(proto) as made:
        check(made, proto, {"x": x, "n": np.array(5)})
        for count, says in ((4, "makes 4 steps"), (6, "makes more than 5 steps")):
            with pytest.raises(EngineError, match=f"Loop 'loop': it {says}, and the model says that there are 5"):
                made.run({"x": x, "n": np.array(count)})
        check(made, proto, {"x": x, "n": np.array(5)})


def test_a_loop_in_a_loop_and_an_if_in_it() -> None:
    branches: dict[str, Any] = {
        "then_branch": body([node("Sub", "t x", "u1")], [], [("u1", FLOAT, [4])]),
        "else_branch": body([node("Mul", "t third", "u2")], [], [("u2", FLOAT, [4])], third=np.array(1 / 3, F32)),
    }
    inner = body(
        [node("Identity", "g2", "again2"), node("Add", "s2 x", "t2")],
        [("i2", INT64, []), ("g2", BOOL, []), ("s2", FLOAT, [4])],
        [("again2", BOOL, []), ("t2", FLOAT, [4])],
    )
    outer = body(
        [
            node("Identity", "g", "again"),
            helper.make_node("Loop", ["i", "", "s"], ["t"], "inner", body=inner),
            node("ReduceSum", "t", "total", keepdims=0),
            node("Greater", "total limit", "high"),
            helper.make_node("If", ["high"], ["u"], "choice", **branches),
        ],
        [("i", INT64, []), ("g", BOOL, []), ("s", FLOAT, [4])],
        [("again", BOOL, []), ("u", FLOAT, [4])],
        limit=np.array(3, F32),
    )
    proto = model(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], "outer", body=outer)],
        [("x", FLOAT, [4]), ("n", INT64, [])], [("y", FLOAT, [4])],
    )  # fmt: skip
    with ours(proto) as made:
        check(made, proto, *({"x": np.abs(weight(4, seed=n)), "n": np.array(n)} for n in (0, 1, 2, 5, 9)))


@pytest.mark.a_few("3", "4", "5")
@pytest.mark.parametrize("seed", range(6))
def test_a_scan_of_many_steps(seed: int) -> None:
    """More steps than are written out, along any axes, forward and backward."""
    rng = np.random.default_rng(seed)
    length, axis, out = 700, int(rng.integers(2)), int(rng.integers(2))
    nodes = [node("MatMul", "s w", "h0"), node("Add", "h0 a", "h1"), node("Tanh", "h1", "h")]
    nodes += [
        node(op_type, f"h{'' if i == 0 else f'x{i - 1}'}", f"hx{i}") for i, op_type in enumerate(["Neg", "Abs"] * 4)
    ]
    inner = body(
        nodes, [("s", FLOAT, [6]), ("a", FLOAT, [6])], [("h", FLOAT, [6]), ("hx7", FLOAT, [6])], w=weight(6, 6)
    )
    dims = [length, 6] if axis == 0 else [6, length]
    made_dims = [length, 6] if out == 0 else [6, length]
    scan = helper.make_node(
        "Scan", ["first", "x"], ["last", "all"], "scan", body=inner, num_scan_inputs=1, scan_input_axes=[axis],
        scan_output_axes=[out - 2 if rng.random() < 0.5 else out], scan_input_directions=[int(rng.integers(2))],
        scan_output_directions=[int(rng.integers(2))],
    )  # fmt: skip
    proto = model(
        [scan], [("first", FLOAT, [6]), ("x", FLOAT, dims)], [("last", FLOAT, [6]), ("all", FLOAT, made_dims)]
    )
    with ours(proto) as made:
        assert {graph.engine for graph in made.program.graphs} == {"CONTROL_ENGINE"}
        check(made, proto, {"first": weight(6, seed=seed), "x": rng.standard_normal(dims).astype(F32)})


@pytest.mark.thorough
def test_states_of_any_type_and_weights_of_any_size() -> None:
    """Booleans and integers as states; a large weight, which lies outside of the node, and a small one."""
    inner = body(
        [
            node("Identity", "g", "again"),
            node("Not", "flag", "other"),
            node("Cast", "i", "step", to=INT64),
            node("Add", "total step", "sum"),
            node("MatMul", "s large", "h0"),
            node("Add", "h0 small", "h"),
        ],
        [("i", INT64, []), ("g", BOOL, []), ("flag", BOOL, [2]), ("total", INT64, [1]), ("s", FLOAT, [2, 48])],
        [("again", BOOL, []), ("other", BOOL, [2]), ("sum", INT64, [1]), ("h", FLOAT, [2, 48])],
    )
    loop = helper.make_node("Loop", ["n", "", "b", "c", "x"], ["yb", "yc", "y"], "loop", body=inner)
    proto = model(
        [loop], [("n", INT64, [1]), ("b", BOOL, [2]), ("c", INT64, [1]), ("x", FLOAT, [2, 48])],
        [("yb", BOOL, [2]), ("yc", INT64, [1]), ("y", FLOAT, [2, 48])], large=weight(48, 48), small=weight(48),
    )  # fmt: skip
    with ours(proto) as made:
        first = {"b": np.array([True, False]), "c": np.array([7]), "x": weight(2, 48)}
        check(made, proto, *({"n": np.array([n]), **first} for n in (0, 3, 4)))


def test_it_is_saved_and_restored_without_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = halved("both")
    feeds = {"x": weight(3, 8) * F32(50), "n": np.array(30), "go": np.array(True)}
    with ours(proto) as made:
        made.save(tmp_path / "loop.fusilli")
    name, variants = compile_model(proto, {"cpu": [FusilliEngine("cpu")]})
    save_package(tmp_path / "again.fusilli", name, variants)

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("something was compiled")

    from hipdnn_backend.offload.control import engine

    monkeypatch.setattr(engine, "compiled", refuse)
    for file in ("loop.fusilli", "again.fusilli"):
        with load(tmp_path / file, device="cpu", engines=[FusilliEngine("cpu")]) as restored:
            check(restored, proto, feeds)


def test_a_model_in_a_file_and_as_bytes(tmp_path: Path) -> None:
    proto = halved("for")
    (tmp_path / "loop.onnx").write_bytes(proto.SerializeToString())
    for source in (tmp_path / "loop.onnx", proto.SerializeToString()):
        with load(source, device="cpu", engines=[FusilliEngine("cpu")]) as made:
            check(made, proto, {"x": weight(3, 8), "n": np.array(2)})


def test_states_that_change_their_dims_are_declined() -> None:
    inner = body(
        [node("Identity", "g", "again"), node("Concat", "s s", "t", axis=0)],
        [("i", INT64, []), ("g", BOOL, []), ("s", FLOAT, ["k"])],
        [("again", BOOL, []), ("t", FLOAT, ["k2"])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=inner)
    proto = model([loop], [("x", FLOAT, [4]), ("n", INT64, [])], [("y", FLOAT, [16])])
    with pytest.raises(ModelError, match=r"result 1 of a body of 'loop' is \[8\] float32, and has to be \[4\] float32"):
        ours(proto)


@pytest.mark.parametrize("cut", [10, 200, -30])
def test_a_damaged_plan_is_refused(cut: int) -> None:
    from hipdnn_backend.offload.control.engine import ControlEngine

    engine = ControlEngine([FusilliEngine("cpu")], "cpu", None)
    (variant,) = compile_model(halved("for"), {"cpu": [FusilliEngine("cpu")]})[1]
    payload = next(plan.payload for plan in variant.plans if plan.engine == "CONTROL_ENGINE")
    engine.restore(payload).close()
    with pytest.raises(EngineError, match="the plan is damaged or not for here"):
        engine.restore(payload[:cut])
    with pytest.raises(EngineError, match="was compiled for a device that is not here"):
        engine.restore(payload).execute(dict.fromkeys(range(1, 9), 64))
