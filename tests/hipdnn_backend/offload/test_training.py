"""A training step, as PyTorch traces it: convolutions backward are dgrad and wgrad graphs, gradients are PyTorch's."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload import load

pytestmark = pytest.mark.mlir

torch = pytest.importorskip("torch")


def normalised(x: Any, w: Any, scale: Any, shift: Any) -> Any:
    """Convolution of stride 2, batch norm in training, ReLU."""
    y = torch.nn.functional.conv2d(x, w, None, stride=2, padding=1)
    return torch.relu(torch.nn.functional.batch_norm(y, None, None, scale, shift, training=True))


def grouped(x: Any, w: Any, b: Any, v: Any) -> Any:
    """A grouped convolution with a bias and a dilated one, SiLU after each."""
    y = torch.nn.functional.silu(torch.nn.functional.conv2d(x, w, b, groups=2))
    return torch.nn.functional.silu(torch.nn.functional.conv2d(y, v, None, padding=2, dilation=2))


def layers(x: Any, scale: Any, shift: Any, w: Any) -> Any:
    """Layer norm, matrix product, GELU."""
    return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (12,), scale, shift) @ w)


def attends(x: Any, q: Any, k: Any, v: Any, w: Any) -> Any:
    """Products whose columns are heads, causal attention, another product."""
    heads = [(x @ weights).view(2, 6, 2, 8).transpose(1, 2) for weights in (q, k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    return y.transpose(1, 2).reshape(2, 6, 16) @ w


NETS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conv_batchnorm_relu": (normalised, ((2, 4, 9, 8), (6, 4, 3, 3), (6,), (6,))),
    "grouped_and_dilated": (grouped, ((2, 4, 7, 8), (6, 2, 2, 3), (6,), (5, 6, 3, 3))),
    "attention": (attends, ((2, 6, 12), (12, 16), (12, 16), (12, 16), (16, 12))),
    "layernorm_matmul_gelu": (layers, ((3, 10, 12), (12,), (12,), (12, 7))),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["conv_batchnorm_relu", *(pytest.param(name, marks=pytest.mark.slow) for name in list(NETS)[1:])]
)
def test_gradients_of_a_training_step(name: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    net, shapes = NETS[name]
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(shape, generator=generator) for shape in shapes]
    args.append(torch.randn(net(*args).shape, generator=generator))

    def step(*given: Any) -> Any:
        made, pull = torch.func.vjp(net, *given[:-1])
        return (made, *pull(given[-1]))

    with load(make_fx(step)(*args), device="cpu", example=args) as model:
        graphs = model.about["graphs"].values()
        left_over = {operation for graph in graphs if graph["custom"] for operation in graph["operations"]}
        # PyTorch's ones in SiLU's gradient, and copies of the three gradients of an attention.
        assert left_over <= {"torch.aten.empty_like", "torch.aten.fill.Scalar", "torch.aten.transpose.int"}
        done = [operation for graph in graphs for operation in graph["operations"]]
        assert done.count("torch.aten.convolution_backward") == sum(len(shape) == 4 for shape in shapes[1:])
        backward = "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward"
        assert done.count(backward) == (name == "attention")
        feeds = {tensor.name: arg.numpy() for tensor, arg in zip(model.inputs, args, strict=True)}
        results = model.run(feeds)
    expected = step(*(arg.double() for arg in args))
    assert len(results) == len(expected) == 1 + len(shapes)
    for got, want in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=2e-6 * float(want.abs().max()))


F = torch.nn.functional
ROWS, IMAGES = (6, 4), (2, 4, 3, 3)
STEPS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t, ignore_index=1, label_smoothing=0.1), ROWS),
    "cross_entropy_weighted": (lambda x, t: F.cross_entropy(x, t, x.new_tensor([1.0, 2, 3, 4])), ROWS),
    "cross_entropy_of_images": (lambda x, t: F.cross_entropy(x, t[:2, None, None].expand(2, 3, 3)), IMAGES),
    "mse": (lambda x, t: F.mse_loss(x, x.detach().cos()), ROWS),
    "smooth_l1": (lambda x, t: F.smooth_l1_loss(x, x.detach().cos()), ROWS),
    "huber": (lambda x, t: F.huber_loss(x, x.detach().cos()), ROWS),
    "binary_cross_entropy": (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t[:, None] / 3.0 + 0 * x.detach()), ROWS),
    "kl_div": (lambda x, t: F.kl_div(F.log_softmax(x, 1), x.detach().softmax(1), reduction="batchmean"), ROWS),
    "soft_margin": (lambda x, t: F.soft_margin_loss(x, 1.0 - 2 * (t[:, None] % 2) + 0 * x.detach()), ROWS),
    "embedding": (lambda x, t: F.embedding(t, x, padding_idx=0).square().mean(), ROWS),
    "index_select": (lambda x, t: x.index_select(1, t).square().mean(), ROWS),
    "slice": (lambda x, t: x[1:4, ::2].square().mean(), ROWS),
    "select": (lambda x, t: x[:, 2].square().mean(), ROWS),
    "pad": (lambda x, t: F.pad(x, (1, -1, 2, 1)).square().mean(), IMAGES),
    "pad_reflecting": (lambda x, t: F.pad(x, (1, 1, 1, 1), mode="reflect").square().mean(), IMAGES),
    "glu": (lambda x, t: F.glu(x).square().mean(), ROWS),
    "hardswish": (lambda x, t: F.hardswish(x).square().mean(), ROWS),
    "hardsigmoid": (lambda x, t: F.hardsigmoid(x).square().mean(), ROWS),
    "mish": (lambda x, t: F.mish(x).square().mean(), ROWS),
    "logsigmoid": (lambda x, t: F.logsigmoid(x).mean(), ROWS),
    "prelu": (lambda x, t: F.prelu(x, x.new_tensor([0.3])).square().mean(), ROWS),
}
QUICK = ("cross_entropy", "mse", "embedding", "slice", "pad")


@pytest.mark.a_few("mse")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STEPS]
)
def test_losses_and_what_torch_mlir_has_no_gradient_of(name: str) -> None:
    """PyTorch traces them as operators that torch-mlir does not know or compile."""
    from torch.fx.experimental.proxy_tensor import make_fx

    loss, dims = STEPS[name]
    x = torch.randn(dims, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 3, 1, 2, 2, 0])

    def step(x: Any, targets: Any) -> Any:
        made, pull = torch.func.vjp(lambda given: loss(given, targets), x)
        return made, pull(torch.ones_like(made))[0]

    with load(make_fx(step)(x, targets), device="cpu", example=(x, targets)) as model:
        names = [tensor.name for tensor in model.inputs]
        results = model.run(dict(zip(names, (x.numpy(), targets.numpy()), strict=True)))
    for got, want in zip(results.values(), step(x.double(), targets), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
