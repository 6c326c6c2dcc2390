"""Normalisations against PyTorch, per element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hipdnn_backend.offload.to_wire import NotTranslated
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder

pytestmark = pytest.mark.mlir


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("spatial", [(), (5,), (4, 3)])
def test_batch_norm(affine: bool, spatial: tuple[int, ...]) -> None:
    r = Recorder()
    x, mean, variance = r.input(2, 3, *spatial), r.input(3), r.input(3, positive=True)
    scale, bias = (r.input(3), r.input(3)) if affine else (None, None)
    graph = r.check(r.op("batch_norm", x, scale, bias, mean, variance, False, 0.1, 1e-3, True))
    assert (graph.nodes[0].op == "batchnorm_inference_variance_ext") == affine


def test_batch_norm_in_training() -> None:
    r = Recorder()
    x, scale, bias = r.input(4, 3, 5), r.input(3), r.input(3)
    graph = r.check(*r.op("native_batch_norm", x, scale, bias, None, None, True, 0.1, 1e-5))
    assert [node.op for node in graph.nodes] == ["batchnorm"]
    r = Recorder()
    x, mean = r.input(4, 3, 5), r.input(3)
    made = r.op("batch_norm", x, None, None, mean, mean, True, 0.1, 1e-5, False)
    with pytest.raises(NotTranslated, match="training"):
        r.translate(made)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spatial", [(), (5,), (4, 3)])
def test_batch_norm_backward(affine: bool, training: bool, spatial: tuple[int, ...]) -> None:
    r = Recorder()
    dy, x = r.input(4, 3, *spatial), r.input(4, 3, *spatial)
    mean, spread, scale = r.input(3), r.input(3, positive=True), r.input(3) if affine else None
    given = (None, None, mean, spread) if training else (mean, spread, None, None)
    mask = [True, affine, affine]
    made = r.op("native_batch_norm_backward", dy, x, scale, *given, training, 1e-3, mask)
    graph = r.check(*made[: 1 + 2 * affine])
    assert ([node.op for node in graph.nodes] == ["batchnorm_backward"]) == (affine and training)


def test_batch_norm_backward_without_statistics() -> None:
    r = Recorder()
    dy, x, mean = r.input(4, 3, 5), r.input(4, 3, 5), r.input(3)
    made = r.op("native_batch_norm_backward", dy, x, None, None, None, mean, mean, True, 1e-3, [True, False, False])[0]
    r.lines[-1] = (
        r.lines[-1]
        .replace(f"{mean.name}, {mean.name}", f"{mean.name}, %none")
        .replace(f"{mean.type}, {mean.type}", f"{mean.type}, !torch.none")
    )
    r.lines.insert(0, "%none = torch.constant.none")
    with pytest.raises(NotTranslated, match="needs the statistics of the batch"):
        r.translate(made)


@pytest.mark.parametrize("shape", [[5], [4, 5], [2, 4, 5]])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_backward(shape: list[int], affine: bool) -> None:
    r = Recorder()
    dy, x = r.input(2, 4, 5), r.input(2, 4, 5)
    statistics = (2, 4, 5)[: 3 - len(shape)] + (1,) * len(shape)
    mean, inverse = r.input(*statistics), r.input(*statistics, positive=True)
    scale, bias = (r.input(*shape), r.input(*shape)) if affine else (None, None)
    mask = [True, affine, affine]
    made = r.op("native_layer_norm_backward", dy, x, shape, mean, inverse, scale, bias, mask)
    graph = r.check(*made[: 1 + 2 * affine])
    assert ([node.op for node in graph.nodes] == ["layernorm_backward"]) == affine


@pytest.fixture(scope="module")
def rms_gradient() -> Iterator[None]:
    """PyTorch has no kernel of it for CPUs; this one multiplies with the Jacobian, whatever the mask says."""

    def gradient(dy: Any, x: Any, shape: list[int], inverse: Any, weight: Any, _mask: list[bool]) -> Any:
        width = weight.numel()
        rows, r, g = x.reshape(-1, width), inverse.reshape(-1, 1, 1), (dy * weight).reshape(-1, width)
        jacobian = r * torch.eye(width, dtype=x.dtype) - r**3 / width * torch.einsum("bi,bj->bij", rows, rows)
        dx = torch.einsum("bij,bi->bj", jacobian, g)
        dscale = torch.einsum("bi,bi,b->i", dy.reshape(-1, width), rows, r.reshape(-1))
        return dx.reshape(x.shape), dscale.reshape(shape)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm_backward", gradient, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("rms_gradient")
@pytest.mark.parametrize("shape", [[5], [4, 5], [2, 4, 5]])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_rms_norm_backward(shape: list[int], wanted: tuple[bool, bool]) -> None:
    r = Recorder()
    dy, x = r.input(2, 4, 5), r.input(2, 4, 5)
    inverse = r.input(*(2, 4, 5)[: 3 - len(shape)], *(1 for _ in shape), positive=True)
    made = r.op("_fused_rms_norm_backward", dy, x, shape, inverse, r.input(*shape), list(wanted))
    graph = r.check(*(result for result, asked in zip(made, wanted, strict=True) if asked))
    assert ([node.op for node in graph.nodes] == ["rmsnorm_backward"]) == (all(wanted) and len(shape) < 3)


@pytest.mark.parametrize("shape", [[5], [4, 5]])
@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, False)])
def test_layer_norm(shape: list[int], affine: tuple[bool, bool]) -> None:
    r = Recorder()
    x = r.input(2, 4, 5)
    scale, bias = (r.input(*shape) if wanted else None for wanted in affine)
    y = r.op("layer_norm", x, shape, scale, bias, 1e-5, False)
    graph = r.check(r.op("add.Tensor", y, x))
    assert (graph.nodes[0].op == "layernorm") == all(affine)


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_with_statistics(affine: bool) -> None:
    r = Recorder()
    x, scale, bias = r.input(2, 4, 5), *((r.input(5), r.input(5)) if affine else (None, None))
    r.check(*r.op("native_layer_norm", x, [5], scale, bias, 1e-5))


@pytest.mark.parametrize("dims", [(2, 4, 5), (1, 1, 5), (5,)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("epsilon", [1e-4, None])
def test_rms_norm(dims: tuple[int, ...], affine: bool, epsilon: float | None) -> None:
    r = Recorder()
    x = r.input(*dims)
    graph = r.check(r.op("rms_norm", x, [5], r.input(5) if affine else None, epsilon))
    assert (graph.nodes[0].op == "rmsnorm") == (affine and len(dims) > 1)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups: int) -> None:
    r = Recorder()
    x, scale, bias = r.input(2, 6, 4, 3), r.input(6), r.input(6)
    r.check(r.op("group_norm", x, groups, scale, bias, 1e-5, False))
    r = Recorder()
    x = r.input(2, 6, 4, 3)
    r.check(r.op("native_group_norm", x, None, None, 2, 6, 12, groups, 1e-5)[0])


def test_instance_norm() -> None:
    r = Recorder()
    x, scale, bias = r.input(2, 3, 4, 5), r.input(3), r.input(3)
    r.check(r.op("relu", r.op("instance_norm", x, scale, bias, None, None, True, 0.1, 1e-5, False)))
