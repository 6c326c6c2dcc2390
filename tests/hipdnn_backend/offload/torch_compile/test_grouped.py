"""Products in groups of rows, against loops over the groups in float64."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hipdnn_backend.offload.torch_compile import fusilli, grouped, torch_report  # noqa: E402

pytestmark = [pytest.mark.mlir, pytest.mark.usefixtures("fresh")]
ENDS = {"even": (16, 32, 48, 64), "some empty": (0, 40, 40, 64), "rows left": (8, 8, 30, 50), "none": (0, 0, 0, 0)}
_LIMIT = {torch.bfloat16: 2.0**-7, torch.float32: 2e-6}


def by_loop(x: Any, w: Any, ends: Any) -> Any:
    """Rows behind the last end are zeros."""
    out, start = torch.zeros(x.shape[0], w.shape[2], dtype=torch.float64), 0
    for expert, end in enumerate(ends.tolist()):
        out[start:end] = x[start:end].double() @ w[expert].double()
        start = end
    return out


def _largest(value: Any) -> float:
    return value.abs().max().item() if value.numel() else 0.0


def close(got: Any, want: Any, dtype: Any) -> None:
    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), want, rtol=_LIMIT[dtype], atol=_LIMIT[dtype] * (1 + _largest(want)))


@pytest.mark.parametrize("ends", ENDS)
def test_pytorchs_own_and_its_gradients(ends: str) -> None:
    torch.manual_seed(0)
    offs = torch.tensor(ENDS[ends], dtype=torch.int32)
    x = torch.randn(64, 32).bfloat16().requires_grad_()
    w = torch.randn(4, 32, 16).bfloat16().requires_grad_()
    dy = torch.randn(64, 16).bfloat16()
    dy[offs[-1] :] = 0
    y = torch.compile(torch._grouped_mm, backend=fusilli)(x, w, offs)
    y.backward(dy)
    a, b = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    want = by_loop(a, b, offs)
    want.backward(dy.double())
    used = slice(0, int(offs[-1]))
    close(y.detach()[used], want.detach()[used], torch.bfloat16)
    assert x.grad is not None
    assert w.grad is not None
    close(x.grad[used], a.grad[used], torch.bfloat16)
    close(w.grad, b.grad, torch.bfloat16)


def test_its_other_forms() -> None:
    torch.manual_seed(1)
    offs = torch.tensor([16, 16, 40, 64], dtype=torch.int32)
    x, y = torch.randn(4, 24, 32).bfloat16(), torch.randn(32, 64).bfloat16()
    left, right = torch.randn(24, 64).bfloat16(), torch.randn(64, 16).bfloat16()

    def step(x: Any, y: Any, left: Any, right: Any) -> Any:
        return torch._grouped_mm(x, y, offs), torch._grouped_mm(left, right, offs), torch._grouped_mm(x, x.mT)

    function = torch.compile(step, backend=fusilli)
    columns, sums, batch = function(x, y, left, right)
    close(columns, by_loop(y.t(), x.transpose(1, 2), offs).t(), torch.bfloat16)
    bounds = [0, *offs.tolist()]
    parts = [left[:, a:b].double() @ right[a:b].double() for a, b in itertools.pairwise(bounds)]
    close(sums, torch.stack(parts), torch.bfloat16)
    close(batch, x.double() @ x.double().mT, torch.bfloat16)
    assert torch_report(function).flop_share == 1.0
    assert not [node for graph in torch_report(function).graphs for node in graph.eager]


@pytest.fixture
def transformers() -> Any:
    """Operators by the names and signatures that Transformers gives them; they may not run."""
    library = torch.library.Library("transformers", "FRAGMENT")
    library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    signature = "(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)"
    library.define(f"grouped_mm_fallback_backward{signature}")

    @torch.library.register_fake("transformers::grouped_mm_fallback", lib=library)
    def _(x: Any, w: Any, offs: Any) -> Any:
        return x.new_empty(x.shape[0], w.shape[2])

    @torch.library.register_fake("transformers::grouped_mm_fallback_backward", lib=library)
    def _(x: Any, w: Any, offs: Any, dy: Any) -> Any:
        return torch.empty_like(x), torch.empty_like(w)

    yield torch.ops.transformers
    library._destroy()


@pytest.mark.parametrize("ends", ENDS)
def test_transformers_own(transformers: Any, ends: str) -> None:
    torch.manual_seed(2)
    offs = torch.tensor(ENDS[ends], dtype=torch.int64)
    x, w, dy = torch.randn(64, 24), torch.randn(4, 24, 20), torch.randn(64, 20)

    def step(x: Any, w: Any, dy: Any, offs: Any) -> Any:
        made = transformers.grouped_mm_fallback(x, w, offs)
        return made * 2, *transformers.grouped_mm_fallback_backward(x, w, offs, dy)

    function = torch.compile(step, backend=fusilli)
    y, dx, dw = function(x, w, dy, offs)
    a, b = x.double().requires_grad_(), w.double().requires_grad_()
    want = by_loop(a, b, offs)
    want.backward(dy.double())
    close(y, 2 * want.detach(), torch.float32)
    close(dx, a.grad, torch.float32)
    close(dw, b.grad, torch.float32)
    assert not [node for graph in torch_report(function).graphs for node in graph.eager]


def test_pytorch_runs_them_where_no_engine_does() -> None:
    torch.manual_seed(3)
    ends = torch.tensor([5, 5, 20, 30])
    first = torch.tensor([0, 5, 5, 20], dtype=torch.int32)
    x, w, dy = torch.randn(30, 6), torch.randn(4, 6, 3), torch.randn(30, 3)
    close(torch.ops.fusilli.grouped_mm(x, w, first), by_loop(x, w, ends), torch.float32)
    b = w.double().requires_grad_()
    by_loop(x, b, ends).backward(dy.double())
    close(torch.ops.fusilli.grouped_mm_gradient(dy, x, first), b.grad, torch.float32)


def test_only_signatures_that_are_known_are_replaced() -> None:
    library = torch.library.Library("transformers", "FRAGMENT")
    try:
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs, int more) -> Tensor")
        assert torch.ops.transformers.grouped_mm_fallback.default not in grouped.decompositions()
    finally:
        library._destroy()


def test_what_nobody_counts_is_told_and_checks_are_pytorchs() -> None:
    library = torch.library.Library("others", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

    def step(x: Any) -> Any:
        torch.ops.aten._assert_async.msg((x > 0).all(), "negative")
        return torch.ops.others.twice(x @ x) + 1

    try:
        function = torch.compile(step, backend=fusilli)
        x = torch.full((4, 4), 0.5)
        torch.testing.assert_close(function(x), torch.full((4, 4), 3.0))
        (report,) = torch_report(function).graphs
        assert [node.operator for node in report.uncounted] == ["others.twice.default"]
        assert "100.0 % of the FLOPs in engines (not counting 1 operations of others)" in str(report)
        rules = {node.operator: node.rule for node in report.eager}
        assert rules == {"others.twice.default": "unknown", "aten._assert_async.msg": "no-operator"}
        assert [node.operator for node in report.unexpected] == ["others.twice.default"]
    finally:
        library._destroy()
