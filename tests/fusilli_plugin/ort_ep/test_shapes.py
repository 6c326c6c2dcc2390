"""Shapes of sessions: sizes that are compiled in advance, padding, and what a new shape does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest

import fusilli_plugin
from fusilli_plugin.ort_ep import offloading, plans
from hipdnn_backend.offload.background import background
from hipdnn_backend.offload.shape_counts import ShapeCount
from tests.fusilli_plugin.ort_ep.models import Model, check, conv_relu, session, weight

pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu, pytest.mark.usefixtures("provider")]

F32 = np.float32


def rows(dim: int | str = "n", seed: int = 0) -> Model:
    """tanh(x · w + b): each row for itself."""
    model = Model("rows")
    y = model.add("MatMul", model.input("x", dim, 8), model.constant("w", weight(seed, 8, 4)))
    y = model.add("Add", y, model.constant("b", weight(1, 4)))
    return model.output(model.add("Tanh", y))


def columns() -> Model:
    """softmax(x · w) along the open dim."""
    model = Model("columns")
    y = model.add("MatMul", model.input("x", "n", 8), model.constant("w", weight(0, 8, 4)))
    return model.output(model.add("Softmax", y, axis=0))


def text(heads: int = 2, size: int = 16) -> Model:
    """Attention over a number of rows, for a batch: the batch may be padded, the rows may not."""
    model = Model("text", opset=20)
    x = model.input("x", "batch", "rows", size)
    shape = model.add("Shape", x)
    first = model.add("Slice", shape, *(model.constant(f"i{i}", np.array([i], np.int64)) for i in (0, 2)), "i0")
    target = model.add("Concat", first, model.constant("h", np.array([heads, size // heads], np.int64)), axis=0)
    parts = []
    for number in range(3):
        part = model.add("MatMul", x, model.constant(f"w{number}", weight(number, size, size)))
        parts.append(model.add("Transpose", model.add("Reshape", part, target), perm=[0, 2, 1, 3]))
    scores = model.add("MatMul", parts[0], model.add("Transpose", parts[1], perm=[0, 1, 3, 2]))
    y = model.add("MatMul", model.add("Softmax", scores, axis=-1), parts[2])
    y = model.add("Transpose", y, perm=[0, 2, 1, 3])
    y = model.add("Reshape", y, model.constant("back", np.array([0, 0, size], np.int64)))
    ones, zeros = model.constant("ones", np.ones(size, F32)), model.constant("zeros", np.zeros(size, F32))
    return model.output(model.add("LayerNormalization", model.add("Add", x, y), ones, zeros, axis=-1))


def counts(made: Any) -> dict[str, ShapeCount]:
    (found,) = fusilli_plugin.ep_report(made).shapes.values()
    return dict(found)


@contextmanager
def nothing_compiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_: object) -> Any:
            raise RuntimeError("no code today")

        patch.setattr(offloading, "_compile", refuse)
        yield
        assert background.wait(120)


# ---- what a new shape does


def test_an_error_names_the_input_its_dim_and_the_shapes_there_are() -> None:
    made = session(rows(), on_new_shape="error", shapes="n=2,4")
    model = rows()
    for size in (2, 4, 3, 1):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    with pytest.raises(
        Exception, match=r"Gemm 'matmul_0.*input 'x', dim 0 \('n'\) is 5, .*code for x \[2, 8\]; x \[4, 8\]"
    ):
        made.run(None, model.feeds(0, {"n": 5}))


@pytest.mark.thorough
def test_an_error_says_why_a_dim_is_not_padded() -> None:
    made = session(columns(), on_new_shape="error", shapes="n=4")
    with pytest.raises(Exception, match=r"is 3, .*'n' is not padded: Softmax 'softmax_1': it adds up along dim 0"):
        made.run(None, columns().feeds(0, {"n": 3}))


def test_a_session_that_could_run_nothing_is_refused() -> None:
    with pytest.raises(
        Exception, match="on_new_shape is 'error', and no shape of .* has code; name the sizes with option"
    ):
        session(rows(), on_new_shape="error")
    session(rows(4), on_new_shape="error")  # here they are known


@pytest.mark.thorough
def test_runs_are_counted_by_shape() -> None:
    model = rows()
    made = session(model)
    for size in (3, 3, 5):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    assert background.wait(120)
    for size in (3, 5, 5, 5):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    assert counts(made) == {"x [3, 8]": ShapeCount(1, 0, 2, 1), "x [5, 8]": ShapeCount(3, 0, 1, 1)}
    text = str(fusilli_plugin.ep_report(made))
    assert "for x [3, 8]: runs: 1 by its code, 2 in ONNX Runtime's kernels; compiled 1 times" in text


def test_runs_of_known_shapes_and_of_code_that_fails_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(rows(4))
    for _ in range(3):
        made.run(None, rows(4).feeds())
    assert counts(made) == {"x [4, 8]": ShapeCount(3, 0, 0, 1)}

    def broken(*_: object) -> Any:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(plans.ShapePlan, "run", broken)
    made = session(rows(), on_new_shape="wait")
    for _ in range(3):
        check(rows(), made, 1e-6, rows().feeds(0, {"n": 4}))
    assert counts(made) == {"x [4, 8]": ShapeCount(0, 0, 3, 1)}


# ---- sizes in advance


def test_sizes_are_compiled_when_the_session_is_made() -> None:
    model = rows()
    made = session(model, shapes="n=1,4")
    with nothing_compiles():
        for size in (4, 1, 4):
            check(model, made, 1e-6, model.feeds(size, {"n": size}))
    assert counts(made) == {"x [1, 8]": ShapeCount(1, 0, 0, 1), "x [4, 8]": ShapeCount(2, 0, 0, 1)}


@pytest.mark.a_few("5", "7", "8")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8])
def test_smaller_shapes_are_padded(size: int) -> None:
    model = rows()
    made = session(model, shapes="n=4,8")
    with nothing_compiles():
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    assert counts(made)[f"x [{size}, 8]"].padded == (size != 8)


@pytest.mark.thorough
def test_padding_of_nan_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are added are copies of the last one; here they are NaN, and shown to be there."""
    original = plans.bind_pad

    def with_nan(memory: Any, stream: int, target: int, padded: Any, source: int, dims: Any, dtype: str) -> Any:
        calls = original(memory, stream, target, padded, source, dims, dtype)
        whole = np.full(padded, np.nan, dtype)
        memory.write(target, whole)
        return calls[:1]

    monkeypatch.setattr(plans, "bind_pad", with_nan)
    for model, sizes, feeds in (
        (rows(), "n=8", [{"n": n} for n in (1, 5)]),
        (text(), "batch=4 rows=6", [{"batch": n, "rows": 6} for n in (1, 3)]),
        (conv_relu(batch="n"), "n=4", [{"n": 3}]),
    ):
        made = session(model, shapes=sizes)
        with nothing_compiles():
            for each in feeds:
                check(model, made, 1e-5, model.feeds(1, each))
        assert sum(count.padded for found in fusilli_plugin.ep_report(made).shapes.values() for count in found.values())


@pytest.mark.thorough
def test_a_batch_is_padded_and_rows_that_attend_to_each_other_are_not() -> None:
    model = text()
    made = session(model, shapes="batch=2,4 rows=5,6")
    with nothing_compiles():
        for batch, length in ((3, 5), (1, 6), (4, 6)):
            check(model, made, 1e-5, model.feeds(batch, {"batch": batch, "rows": length}))
    report = fusilli_plugin.ep_report(made)
    (padding,) = report.padding.values()
    assert padding["batch"] == ""
    assert "MatMul" in padding["rows"]
    assert "dim 'rows': exact sizes only: MatMul" in str(report)
    check(model, made, 1e-5, model.feeds(0, {"batch": 2, "rows": 4}))  # in ONNX Runtime's kernels
    assert counts(made)["x [2, 4, 16]"].fallbacks == 1


@pytest.mark.thorough
def test_dims_between_groups_follow_from_those_of_the_model() -> None:
    """A node that stays with ONNX Runtime stands between two groups."""
    model = Model("parted")
    y = model.add("MatMul", model.input("x", "n", 6), model.constant("w", weight(0, 6, 6)))
    y = model.add("Unique", model.add("Relu", y), axis=1, outputs=4)
    model.nodes[-1].output[0] = "left"
    joined = model.add("Concat", model.nodes[1].output[0], model.nodes[1].output[0], axis=0)
    y = model.add("MatMul", joined, model.constant("v", weight(1, 6, 3)))
    model.output(model.add("Tanh", y), "left")
    made = session(model, shapes="n=2,4")
    with nothing_compiles():
        for size in (2, 3, 4):
            check(model, made, 1e-6, model.feeds(size, {"n": size}))


def test_dims_without_names_are_called_by_their_input() -> None:
    model = rows()
    proto = model.proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    made = session(proto.SerializeToString(), shapes="x.0=4")
    with nothing_compiles():
        check(model, made, 1e-6, model.feeds(3, {"n": 3}))


def test_a_size_that_does_not_compile_runs_in_the_kernels_and_is_an_error_in_strict_mode() -> None:
    with pytest.MonkeyPatch.context() as patch:
        original = offloading._compile

        def picky(model: onnx.ModelProto, *rest: Any) -> Any:
            if model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4:
                raise RuntimeError("not for 4")
            return original(model, *rest)

        patch.setattr(offloading, "_compile", picky)
        made = session(rows(seed=7), shapes="n=2,4")
        with pytest.raises(Exception, match="not for 4"):
            session(rows(seed=7), shapes="n=2,4", strict="1")
    for size in (1, 2, 3, 4):
        check(rows(seed=7), made, 1e-6, rows(seed=7).feeds(size, {"n": size}))
    found = counts(made)
    assert (found["x [1, 8]"].padded, found["x [2, 8]"].hits, found["x [4, 8]"].fallbacks) == (1, 1, 1)


def test_an_empty_tensor_is_not_padded() -> None:
    made = session(rows(), shapes="n=4")
    assert made.run(None, {"x": np.zeros((0, 8), F32)})[0].shape == (0, 4)
    assert counts(made)["x [0, 8]"].padded == 0


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ("m=4", r"shapes: m=4: no input has an open dim of this name.*open dims are: n \(input 'x', dim 0\)"),
        ("x.1=4", "shapes: x.1=4: dim 1 of input 'x' is 8 in the model"),
        ("x.0=4", "shapes: x.0=4: dim 0 of input 'x' is called 'n'; use that name"),
        ("n=8..4:2", "dim 'n': the range 8..4:2 is empty: 8 is above 4"),
        ("n=4..8:0", "its step is 0"),
        ("n=0", "a size is from 1"),
        ("n=x", "'x' is no size"),
        ("n", "is not NAME=SIZES"),
        ("", "it names no dim"),
        ("n=1 n=2", "dim 'n' is given twice"),
        ("n=1..4000", "more than 256 sizes"),
        ("n=1..100 m=1..100", "are 10000 combinations"),
    ],
)
def test_bad_sizes_are_refused(shapes: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        session(rows(), shapes=shapes)


def test_a_dim_of_another_input_that_has_no_sizes_is_told() -> None:
    model = Model("two")
    a, b = model.input("a", "n", 4), model.input("b", 4, "m")
    model.output(model.add("MatMul", a, b))
    made = session(model, shapes="n=4")
    assert any("dim 1 of 'b' is open, and the option gives no sizes for it" in each for each in
               fusilli_plugin.ep_report(made).problems)  # fmt: skip
    check(model, made, 1e-6, model.feeds(0, {"n": 3, "m": 5}))


@pytest.mark.thorough
def test_values_are_not_taken_from_the_shape_that_was_padded() -> None:
    """What follows from the number of rows refuses the padding: the mean of rows here."""
    model = Model("mean")
    x = model.input("x", "n", 4)
    count = model.add("Gather", model.add("Shape", x), model.constant("zero", np.array(0, np.int64)))
    y = model.add("Div", x, model.add("Cast", count, to=int(onnx.TensorProto.FLOAT)))
    model.output(model.add("Relu", model.add("MatMul", y, model.constant("w", weight(0, 4, 4)))))
    made = session(model, shapes="n=4,8")
    for size in (3, 4, 5):
        check(model, made, 1e-6, model.feeds(size, {"n": size}))
    assert not any(count.padded for found in fusilli_plugin.ep_report(made).shapes.values() for count in found.values())
