"""Matrix products against PyTorch, per element."""

from __future__ import annotations

from typing import Any

import pytest

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder

pytestmark = pytest.mark.mlir


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("mm", (3, 4), (4, 5)),
        ("bmm", (2, 3, 4), (2, 4, 5)),
        ("matmul", (2, 3, 4), (4, 5)),
        ("matmul", (3, 4), (2, 4, 5)),
        ("matmul", (2, 1, 3, 4), (6, 4, 5)),
        ("matmul", (4,), (4, 5)),
        ("matmul", (2, 3, 4), (4,)),
        ("matmul", (4,), (4,)),
        ("matmul", (4,), (2, 4, 5)),
        ("mv", (3, 4), (4,)),
        ("dot", (4,), (4,)),
    ],
)
def test_products(name: str, left: Any, right: Any) -> None:
    r = Recorder()
    graph = r.check(r.op(name, r.input(*left), r.input(*right)))
    assert [node.op for node in graph.nodes] == ["matmul"]


def test_transposed_operands_are_strides() -> None:
    r = Recorder()
    a, b = r.op("transpose.int", r.input(2, 4, 3), 1, 2), r.op("permute", r.input(5, 2, 4), [1, 2, 0])
    graph = r.check(r.op("matmul", a, b))
    assert [node.op for node in graph.nodes] == ["matmul"]
    r = Recorder()
    a, b = r.op("t", r.input(4, 3)), r.op("numpy_T", r.input(5, 4))
    assert len(r.check(r.op("mm", a, b)).nodes) == 1


def test_repeated_batches() -> None:
    r = Recorder()
    wide = r.op("expand", r.input(2, 1, 3, 4), [2, 5, 3, 4])
    graph = r.check(r.op("matmul", wide, r.input(2, 5, 4, 3)))
    assert graph.nodes[0].inputs["a"].dims == (2, 1, 3, 4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_linear(bias: bool, lead: tuple[int, ...]) -> None:
    r = Recorder()
    x, w = r.input(*lead, 4), r.input(5, 4)
    r.check(r.op("relu", r.op("linear", x, w, r.input(5) if bias else None)))


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2.0), (0, 1.5)])
def test_addmm(beta: float, alpha: float) -> None:
    r = Recorder()
    c, a, b = r.input(5), r.input(3, 4), r.input(4, 5)
    r.check(r.op("addmm", c, a, b, beta=beta, alpha=alpha))
    r = Recorder()
    c, a, b = r.input(2, 3, 5), r.input(2, 3, 4), r.input(2, 4, 5)
    r.check(r.op("baddbmm", c, a, b, beta=beta, alpha=alpha))


def test_two_layers() -> None:
    """A Gemm of ONNX is transpose, mm, add."""
    r = Recorder()
    x, w1, b1, w2, b2 = r.input(3, 4), r.input(6, 4), r.input(6), r.input(6, 2), r.input(2)
    hidden = r.op("relu", r.op("add.Tensor", r.op("mm", x, r.op("transpose.int", w1, 0, 1)), b1))
    graph = r.check(r.op("add.Tensor", r.op("mm", hidden, w2), b2))
    assert [node.op for node in graph.nodes] == ["matmul", "pointwise", "pointwise", "matmul", "pointwise"]


def test_transposed_intermediate_is_refused() -> None:
    r = Recorder()
    hidden = r.op("relu", r.input(3, 4))
    made = r.op("mm", r.op("t", hidden), r.input(3, 2), where="mm_3")
    with pytest.raises(NotTranslated, match="view of an intermediate result") as caught:
        r.translate(made)
    assert caught.value.location == "mm_3"


def test_transposed_result_is_strides() -> None:
    r = Recorder()
    made = r.op("permute", r.op("bmm", r.input(2, 3, 4), r.input(2, 4, 5)), [1, 0, 2])
    graph = r.check(r.op("reshape", made, [3, 10]))
    assert graph.arguments().outputs[0].strides == (5, 10, 1)


def test_one_layout_per_input() -> None:
    r = Recorder()
    x = r.input(4, 4)
    made = r.op("mm", x, r.op("t", x))
    with pytest.raises(NotTranslated, match="a tensor of a graph has one layout"):
        r.translate(made)
