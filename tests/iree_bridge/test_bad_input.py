"""What users hand to ``build``, ``compile_graph`` and ``run`` that is odd or wrong: it works, or it is a clear error.

``test_runtime.py`` has the checks of single buffers on hand-written IR; here they meet real graphs.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

from graph_api import (
    CompileError,
    DataType,
    ExecutionError,
    FusilliError,
    Graph,
    GraphError,
    NotSupportedError,
    PointwiseMode,
    TensorAttr,
)
from iree_bridge import Artifact, Options, Target, build, compile_graph, support
from iree_bridge.compile.options import CompileMode

pytestmark = pytest.mark.iree_cpu

M = PointwiseMode
CPU = Target.parse("cpu")
DIMS = (2, 3, 4, 5)
Array = np.ndarray[Any, Any]


def square_graph() -> Graph:
    """z = x * x + b; x NCHW, z NHWC: a result that no loop can write over its input in place."""
    g = Graph("square", io_data_type=DataType.FLOAT)
    x, b = g.tensor("x", dim=DIMS), g.tensor("b", dim=(1, 3, 1, 1))
    z = g.pointwise(M.ADD, g.pointwise(M.MUL, x, x), b).set_output().set_name("z")
    z.set_stride((60, 1, 15, 3))
    return g.validate()


def filled(graph: Graph) -> dict[str, Array]:
    """Arrays for all arguments by name: outputs of NaN, inputs of small whole numbers, so that results are exact."""
    pack = {tensor.name: array for tensor, array in graph.random_inputs().items()}
    for array in pack.values():
        np.rint(4 * array, out=array)
    for tensor in graph.arguments().outputs:
        pack[tensor.name] = tensor.empty()
        pack[tensor.name][...] = np.nan
    return pack


def expected(pack: dict[str, Array]) -> Array:
    return pack["x"] * pack["x"] + pack["b"]


# ---- odd, and fine -------------------------------------------------------------------------------------------------


def test_the_same_tensor_twice_in_a_node() -> None:
    g = square_graph()
    pack = filled(g)
    build(g, "cpu").run(pack)
    np.testing.assert_array_equal(pack["z"], expected(pack))


def test_names_that_are_no_identifiers_compile_and_run() -> None:
    g = Graph('0x/"g" \n', io_data_type=DataType.FLOAT)
    names = ["layer-1/add", "0x", "größe \n%arg0", "x" * 3000]
    a, b = (g.tensor(name, dim=(7,)) for name in names[:2])  # dims of no other test: nothing comes from the cache
    y = g.pointwise(M.SUB, g.pointwise(M.ADD, a, b, name=names[0]), 1.0, name="名前\0")
    y.set_output().set_name(names[2])
    g.pointwise(M.NEG, y, name=names[3]).set_output().set_name(names[3])
    g.validate()
    pack = {**{name: np.full(7, value, np.float32) for name, value in zip(names, (2, 3, np.nan, np.nan), strict=True)}}
    build(g, "cpu").run(pack)
    np.testing.assert_array_equal(pack[names[2]], 4)
    np.testing.assert_array_equal(pack[names[3]], -4)


def test_an_output_that_is_an_input_is_written_as_if_it_were_not() -> None:
    g = square_graph()
    executable = build(g, "cpu")
    pack = filled(g)
    block = np.zeros(120, np.float32)
    pack["z"] = block.reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)
    source = pack["x"].copy()
    pack["x"] = block.reshape(DIMS)
    pack["x"][...] = source
    for entry in (executable.run, lambda pack: executable.bind(pack)()):
        pack["x"][...] = source
        entry(pack)
        np.testing.assert_array_equal(pack["z"], source * source + pack["b"])


def test_a_bound_input_that_the_caller_drops_stays_alive() -> None:
    g = square_graph()
    pack = filled(g)
    want = expected(pack)
    call = build(g, "cpu").bind(pack)
    out = pack["z"]
    pack.clear()
    gc.collect()
    junk = [np.full(DIMS, 99, np.float32) for _ in range(200)]
    call()
    np.testing.assert_array_equal(out, want)
    assert junk


def test_temporary_inputs_live_as_long_as_the_run() -> None:
    g = square_graph()
    z = g.arguments().outputs[0].empty()
    build(g, "cpu").run({"x": np.full(DIMS, 3, np.float32), "b": np.ones((1, 3, 1, 1), np.float32), "z": z})
    np.testing.assert_array_equal(z, 10)


def test_an_executable_outlives_its_graph() -> None:
    pack = filled(square_graph())
    executable = build(square_graph(), "cpu")
    gc.collect()
    executable.run(pack)
    np.testing.assert_array_equal(pack["z"], expected(pack))


def test_an_unvalidated_graph_is_validated() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.pointwise(M.MUL, g.tensor("x", dim=(4, 4)), 2.0).set_output().set_name("y")
    y = np.zeros((4, 4), np.float32)
    build(g, "cpu").run({"x": np.ones((4, 4), np.float32), "y": y})
    assert g.is_validated
    np.testing.assert_array_equal(y, 2)


# ---- wrong buffers -------------------------------------------------------------------------------------------------


def _nhwc(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", np.zeros((2, 3, 5, 4), np.float32), r"input 'x': dims: expected \(2, 3, 4, 5\), got \(2, 3, 5, 4\)"),
        ("x", np.zeros((2, 4, 5, 3), np.float32), r"input 'x': dims: .*; dims are logical \(N, C, spatial\)"),
        ("x", np.zeros(DIMS, np.float16), "input 'x': dtype: expected float32, got float16; convert it"),
        (
            "x",
            _nhwc(np.zeros(DIMS, np.float32)),
            r"input 'x': strides: expected \(60, 20, 5, 1\), got \(60, 1, 15, 3\)",
        ),
        ("z", np.zeros(DIMS, np.float32), r"output 'z': strides: expected \(60, 1, 15, 3\), got \(60, 20, 5, 1\)"),
        ("b", np.zeros(3, np.float32), r"input 'b': rank: expected 4, got 1"),
        ("z", None, "no buffer for 'z'; add"),
        ("b", None, "no buffer for 'b'; add"),
        ("pointwise_0::out_0", np.zeros(DIMS, np.float32), "is no input or output; there are 'z', 'x', 'b'"),
    ],
)
def test_buffers_that_do_not_fit(name: str, value: Array | None, message: str) -> None:
    g = square_graph()
    pack = filled(g)
    pack[name] = value  # type: ignore[assignment]
    if value is None:
        del pack[name]
    executable = build(g, "cpu")
    with pytest.raises(ExecutionError, match=message):
        executable.run(pack)
    if "z" in pack and name != "z":
        assert np.isnan(pack["z"]).all(), "nothing ran"


@pytest.mark.parametrize("offset", [1, 2, 4, 8, 60])
def test_misaligned_buffers_work(offset: int) -> None:
    """Even where an element does not lie at a multiple of its own size, as in a packed file."""
    g = square_graph()
    pack = filled(g)
    want = expected(pack)
    for name in ("x", "z"):
        source = pack[name]
        raw = np.zeros(source.nbytes + 128, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        pack[name] = np.ndarray(DIMS, np.float32, raw, start, source.strides)
        pack[name][...] = source
    build(g, "cpu").run(pack)
    np.testing.assert_array_equal(pack["z"], want)


def test_a_tensor_of_another_graph_is_no_key() -> None:
    g, other = square_graph(), square_graph()
    pack: dict[Any, Array] = {**filled(g)}
    pack[other.find("x")] = pack.pop("x")
    with pytest.raises(ExecutionError, match="tensor 'x', of another graph or without a buffer, is no input or output"):
        build(g, "cpu").run(pack)


# ---- wrong graphs, devices, targets --------------------------------------------------------------------------------


def test_a_graph_that_is_not_valid_never_reaches_a_compiler() -> None:
    never = Options(compile=CompileMode.NEVER)
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.conv_fprop(g.tensor("x", dim=(1, 5, 8, 8)), g.tensor("w", dim=(4, 3, 3, 3))).set_output()
    for ask in (
        lambda: build(g, "cpu", options=never),
        lambda: compile_graph(g, [CPU], options=never),
        lambda: support(g, CPU),
    ):
        with pytest.raises(GraphError, match="conv_fprop 'conv_fprop_0': x .1, 5, 8, 8. has C=5 channels"):
            ask()


def test_a_graph_that_is_declined_never_reaches_a_compiler() -> None:
    never = Options(compile=CompileMode.NEVER)
    g = Graph("g", io_data_type=DataType.FLOAT)
    y, scale = g.block_scale_quantize(g.tensor("x", dim=(4,)), block_size=2, name="n")
    y.set_output().set_name("y")
    scale.set_output()
    answer = support(g, CPU)
    assert (bool(answer), answer.node, answer.rule) == (False, "n", "dtype")
    for ask in (lambda: build(g, "cpu", options=never), lambda: compile_graph(g, [CPU], options=never)):
        with pytest.raises(NotSupportedError, match="node 'n': y 'y' is FLOAT; quantised to are .* .dtype.") as caught:
            ask()
        assert (caught.value.node, caught.value.rule) == ("n", "dtype")


@pytest.mark.parametrize(
    ("mode", "lacks"), [(M.ERF, "the error function"), (M.GELU_FWD, "the error function"), (M.SIN, "the sine")]
)
def test_functions_that_a_target_lacks_are_named(mode: M, lacks: str) -> None:
    g = Graph("g", io_data_type=DataType.DOUBLE)
    g.pointwise(mode, g.tensor("x", dim=(4,)), name="n").set_output()
    answer = support(g, CPU)
    assert (answer.node, answer.rule) == ("n", "dtype")
    assert f"{mode.name} in DOUBLE needs {lacks} of f64, which the CPU target lacks" in answer.reason


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda g: build(g, "tpu"), ExecutionError, "device 'tpu' is unknown; use 'cpu', 'hip'"),
        (lambda g: build(g, ""), ExecutionError, "device '' is unknown"),
        (lambda g: build(g, 3), ExecutionError, "device 3 is unknown"),  # type: ignore[arg-type]
        (lambda g: build(g, "cpu", stream=1), ExecutionError, "stream"),
        (lambda g: compile_graph(g, []), NotSupportedError, "no target was given"),
        (
            lambda g: compile_graph(g, [Target.parse("gfx000")]),
            NotSupportedError,
            "target 'gfx000' is unknown .did you mean gfx1200\\?.; known are",
        ),
        (
            lambda g: build(g, "cpu", options=Options(compile=CompileMode.NEVER)),
            CompileError,
            "graph 'never seen' is not in the cache for target cpu and FUSILLI_COMPILE=never forbids",
        ),
    ],
)
def test_wrong_devices_and_targets(ask: Any, kind: type[FusilliError], message: str) -> None:
    g = Graph("never seen", io_data_type=DataType.FLOAT)
    g.pointwise(M.NEG, g.tensor("x", dim=(3, 11, 13))).set_output()
    with pytest.raises(kind, match=message):
        ask(g.validate())


def test_the_arguments_are_the_graphs() -> None:
    g = square_graph()
    executable = build(g, "cpu")
    assert all(isinstance(tensor, TensorAttr) for tensor in (*executable.outputs, *executable.inputs))
    assert (executable.outputs, executable.inputs) == g.arguments()


# ---- anything at all -----------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, "x", b"x", 1, -1, 1.5, float("nan"), 2**70, True, [], ["x"], [None], ["a", "b", "c"], [1, 2, 3], (1, 2, 3),
    {}, {"x": 1}, object(), np.zeros(3), "\ud800", "a\0b",
]  # fmt: skip


@pytest.fixture(scope="module")
def square() -> Any:
    graph = square_graph()
    pack = filled(graph)
    executable = build(graph, device="cpu")
    places = [pack[tensor.name].ctypes.data for tensor in (*executable.outputs, *executable.inputs)]
    return graph, executable, pack, places


ASKED: dict[str, Any] = {
    "run": lambda g, exe, pack, places, odd: exe.run(odd),
    "run, a value": lambda g, exe, pack, places, odd: exe.run({**pack, "x": odd}),
    "call": lambda g, exe, pack, places, odd: exe(odd, odd),
    "bind": lambda g, exe, pack, places, odd: exe.bind(odd),
    "bind, constants": lambda g, exe, pack, places, odd: exe.bind(pack, constants=odd),
    "bind_pointers": lambda g, exe, pack, places, odd: exe.bind_pointers(odd),
    "bind_pointers, one": lambda g, exe, pack, places, odd: exe.bind_pointers([places[0], odd, places[2]]),
    "bind_pointers, workspace": lambda g, exe, pack, places, odd: exe.bind_pointers(places, odd),
    "bind_pointers, mask": lambda g, exe, pack, places, odd: exe.bind_pointers(places, 0, odd),
    "on_stream": lambda g, exe, pack, places, odd: exe.on_stream(odd),
    "forget_stream": lambda g, exe, pack, places, odd: exe.forget_stream(odd),
    "build": lambda g, exe, pack, places, odd: build(odd, device="cpu"),
    "build, options": lambda g, exe, pack, places, odd: build(g, device="cpu", options=odd),
    "build, tune": lambda g, exe, pack, places, odd: build(g, device="cpu", tune=odd),
    "compile_graph, targets": lambda g, exe, pack, places, odd: compile_graph(g, odd),
    "compile_graph, options": lambda g, exe, pack, places, odd: compile_graph(g, [CPU], options=odd),
    "Artifact.load": lambda g, exe, pack, places, odd: Artifact.load(odd),
    "TensorAttr.pack": lambda g, exe, pack, places, odd: exe.inputs[0].pack(odd),
    "TensorAttr.unpack": lambda g, exe, pack, places, odd: exe.inputs[0].unpack(odd),
    "TensorAttr.set_output": lambda g, exe, pack, places, odd: Graph().tensor("t", dim=(1,)).set_output(odd),
}


@pytest.mark.parametrize("asked", ASKED)
def test_whatever_is_given_is_taken_or_refused_with_an_error_of_ours(square: Any, asked: str) -> None:
    refused = 0
    for odd in ODD:
        try:
            ASKED[asked](*square, odd)
        except FusilliError:
            refused += 1
    assert refused > len(ODD) / 2


@pytest.mark.parametrize("odd", ["x", 1.5, [0]])
def test_addresses_of_another_kind_are_refused_at_launches_too(square: Any, odd: object) -> None:
    _, executable, _, places = square
    with pytest.raises(ExecutionError, match="the address of 'x' is .*; expected an integer"):
        executable.run_pointers([places[0], odd, places[2]])


@pytest.mark.parametrize("odd", [0, 1, 2**70, 1.5, None, [], "a\0b", "\ud800"])
def test_files_are_named_by_paths(square: Any, odd: Any) -> None:
    artifact = compile_graph(square[0], [CPU])
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FusilliError, match="path of a file"):
        artifact.save(odd)
    assert os.listdir("/proc/self/fd") == before  # of a number: the file that is open there


def test_targets_may_be_whatever_gives_them(square: Any) -> None:
    assert compile_graph(square[0], (each for each in [CPU])).targets == (CPU,)
