"""Reductions, softmax, moments against PyTorch, per element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder

pytestmark = pytest.mark.mlir


@pytest.mark.parametrize("name", ["sum.dim_IntList", "mean.dim", "amax", "amin"])
@pytest.mark.parametrize("dims", [[0], [-1, 1], []])
@pytest.mark.parametrize("keep", [True, False])
def test_over_dims(name: str, dims: list[int], keep: bool) -> None:
    r = Recorder()
    x = r.input(2, 3, 4)
    graph = r.check(r.op("exp", r.op(name, r.op("mul.Scalar", x, 2.0), dims, keep)))
    assert [node.op for node in graph.nodes] == ["pointwise", "reduction", "pointwise"]


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_over_all(name: str) -> None:
    r = Recorder()
    r.check(r.op(name, r.input(2, 3, 4)))


@pytest.mark.parametrize("name", ["max.dim", "min.dim", "prod.dim_int"])
@pytest.mark.parametrize("keep", [True, False])
def test_over_one(name: str, keep: bool) -> None:
    r = Recorder()
    made = r.op(name, r.input(2, 3, 4), 1, keep)
    r.check(made[0] if isinstance(made, list) else made)


def test_positions_are_refused() -> None:
    r = Recorder()
    made = r.op("max.dim", r.input(2, 3), 1, False)
    with pytest.raises(NotTranslated, match="positions"):
        r.translate(*made)


def test_integers_and_booleans() -> None:
    r = Recorder()
    x = r.input(3, 4, integers=True)
    truth = r.op("gt.Scalar", x, 0)
    graph = r.check(r.op("sum.dim_IntList", x, [1], False), r.op("any.dim", truth, 0), r.op("all", truth))
    assert graph.arguments().outputs[0].data_type.name == "INT64"


def test_a_dim_of_one() -> None:
    r = Recorder()
    r.check(r.op("mean.dim", r.input(3, 1, 2), [1], False))


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_norms(order: float) -> None:
    r = Recorder()
    x = r.input(3, 4)
    r.check(r.op("linalg_vector_norm", x, order, [1], True), r.op("norm.ScalarOpt_dim", x, order, [0], False))


@pytest.mark.parametrize("name", ["softmax.int", "_softmax", "log_softmax.int", "_log_softmax"])
@pytest.mark.parametrize("axis", [0, -1])
def test_softmax(name: str, axis: int) -> None:
    r = Recorder()
    x = r.op("mul.Scalar", r.input(3, 5), 100.0)
    r.check(r.op(name, x, axis, False) if name.startswith("_") else r.op(name, x, axis))


def test_logsumexp() -> None:
    r = Recorder()
    r.check(r.op("logsumexp", r.input(3, 4, 2), [1], False))


def test_logsumexp_of_infinities() -> None:
    """As PyTorch has it: nothing but minus infinity is minus infinity, what has infinity is infinity."""
    inf, r = math.inf, Recorder()
    data = np.array([[-inf, -inf], [inf, 1], [-inf, 3], [inf, -inf], [1, 2], [np.nan, inf]], np.float32)
    r.run(r.op("logsumexp", r.input(6, 2, data=data), [1], False))


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("keep", [True, False])
def test_variances(correction: int, keep: bool) -> None:
    r = Recorder()
    x = r.input(3, 4, 5)
    both = r.op("var_mean.correction", x, [0, 2], correction=correction, keepdim=keep)
    one = r.op("std.dim", x, [1], bool(correction), keep)
    r.check(*both, one, r.op("var.correction", x, [-1], correction=correction, keepdim=keep), r.op("std", x))


def test_squeezed_means_join_what_they_came_from() -> None:
    """x - mean(x), the reduced dims gone and put back: views of an intermediate result between elementwise nodes."""
    r = Recorder()
    x = r.input(2, 3, 4, 5)
    mean = r.op("mean.dim", x, [2, 3], False)
    back = r.op("unsqueeze", r.op("unsqueeze", r.op("tanh", mean), -1), -1)
    graph = r.check(r.op("sub.Tensor", x, back), mean)
    assert [node.op for node in graph.nodes] == ["reduction", "pointwise", "pointwise"]


def test_wider_sums() -> None:
    r = Recorder()
    x = r.input(3, 4, integers=True)
    r.check(r.op("sum.dim_IntList", r.op("to.dtype", x, torch.int32), [0], False))
