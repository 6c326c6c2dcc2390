"""20 steps of training with ``torch.compile(backend="fusilli")`` are PyTorch's own steps, and engines do the work."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusilli_plugin.bench.networks.training import loss_of, network  # noqa: E402
from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402 - needs torch

pytestmark = pytest.mark.mlir

STEPS = 20
CLOSE = 2e-4
"""How far weights may be off PyTorch's after 20 steps, of the largest of a tensor."""
LOSS_CLOSE = 2e-5
AS_PYTORCH = 5
"""Training that amplifies roundings (ResNet-18 here): how much farther from float64 than PyTorch's float32 may be."""


@pytest.fixture(autouse=True)
def _recurrences() -> Iterator[None]:
    """Dynamo leaves recurrent modules to PyTorch unless it is told otherwise."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def _optimiser(name: str, model: Any) -> Any:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    # An epsilon that counts: without it Adam's step is the sign of a gradient, also where that is rounding alone.
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)


def _train(model: Any, call: Any, optimiser: str, x: Any, classes: Any) -> list[float]:
    steps, losses = _optimiser(optimiser, model), list[float]()
    for _ in range(STEPS):
        loss = loss_of(call(x), classes)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def _far(one: Any, other: Any) -> float:
    """The largest difference of weights and statistics, of the largest number of each."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in pairs)


def _check(name: str, optimiser: str) -> None:
    model, x, classes = network(name)
    plain, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=fusilli)
    losses = _train(model, compiled, optimiser, x, classes)
    expected = _train(plain, plain, optimiser, x, classes)
    exact = _train(wide, wide, optimiser, x.double() if x.is_floating_point() else x, classes)
    report, apart = torch_report(compiled), _far(plain, wide)
    print(f"{name}, {optimiser}: losses {losses[0]:.4f} to {losses[-1]:.4f}; weights off PyTorch's by "
          f"{_far(model, plain):.1e}, off float64 by {_far(model, wide):.1e}, PyTorch's by {apart:.1e}")  # fmt: skip
    print(report)
    print(f"share of FLOPs in engines: {report.flop_share:.3f}")
    assert losses[-1] < losses[0]
    assert _far(model, plain) < CLOSE or _far(model, wide) < AS_PYTORCH * apart
    for loss, other, right in zip(losses, expected, exact, strict=True):
        close = pytest.approx(other, rel=LOSS_CLOSE, abs=LOSS_CLOSE)
        assert loss == close or abs(loss - right) < AS_PYTORCH * abs(other - right)
    assert not report.whole
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]
    assert report.flop_share >= 0.95


@pytest.mark.thorough
def test_a_small_cnn() -> None:
    _check("cnn", "sgd")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["cnn", "resnet18", "vit", "gpt", "unet", "lstm"])
def test_twenty_steps(name: str, optimiser: str) -> None:
    _check(name, optimiser)
