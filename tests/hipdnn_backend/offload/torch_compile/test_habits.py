"""What people do with modules around a compiled one: tied weights, hooks, loading, copying, pickling, forking."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import copy
import os
import pickle  # noqa: TID251 - what is pickled is our own
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hipdnn_backend.offload.background import background  # noqa: E402 - needs torch
from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402

pytestmark = [pytest.mark.mlir, pytest.mark.slow, pytest.mark.usefixtures("fresh")]
nn, F = torch.nn, torch.nn.functional


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(F.gelu(self.a(x)))


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_tied_weights_and_frozen_ones() -> None:
    model = Tied()
    plain, call, x = copy.deepcopy(model), torch.compile(model, backend=fusilli), torch.randn(3, 6)
    for _ in range(2):  # gradients are added up
        call(x).square().sum().backward()
        plain(x).square().sum().backward()
    same(model.a.weight.grad, plain.a.weight.grad)
    for one in (model, plain):
        one.zero_grad()
        one.a.bias.requires_grad_(False)
        one(x).square().sum().backward()
    call(x)
    assert model.a.bias.grad is None
    same(model.a.weight.grad, plain.a.weight.grad)


def test_hooks_of_modules_and_tensors() -> None:
    model = Tied()
    plain = copy.deepcopy(model)
    for one in (model, plain):
        one.a.register_forward_hook(lambda module, given, made: made * 2)
        one.b.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        one.a.bias.register_hook(lambda gradient: gradient * 5)
    call, x = torch.compile(model, backend=fusilli), torch.randn(3, 6)
    made, wanted = call(x), plain(x)
    same(made, wanted)
    made.square().sum().backward()
    wanted.square().sum().backward()
    same(model.a.bias.grad, plain.a.bias.grad)


def test_weights_that_are_loaded_or_replaced_later_count() -> None:
    model, x = Tied(), torch.randn(3, 6)
    call = torch.compile(model, backend=fusilli)
    call(x)
    model.load_state_dict(Tied().state_dict())
    same(call(x), model(x))
    model.load_state_dict(Tied().state_dict(), assign=True)
    same(call(x), model(x))
    model.a.weight.data = torch.randn(6, 6)
    same(call(x), model(x))


def test_copies_and_pickles_of_what_is_compiled() -> None:
    model, x = Tied(), torch.randn(3, 6)
    call = torch.compile(model, backend="fusilli")
    call(x)
    other = copy.deepcopy(call)
    with torch.no_grad():
        other._orig_mod.a.bias.add_(1)
    same(other(x), other._orig_mod(x))
    same(call(x), model(x))
    same(pickle.loads(pickle.dumps(call))(x), model(x))


def test_arguments_that_share_memory_and_are_written_to() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return x + y

    call, one = torch.compile(f, backend=fusilli), torch.randn(8)
    other = one.clone()
    same(call(one[:6], one[2:]), f(other[:6], other[2:]))
    same(call(one, one), f(other, other))
    same(one, other)


def test_complex_numbers() -> None:
    def f(z: Any) -> Any:
        return (z @ z.conj()).abs().sum() + torch.view_as_real(z * z).sin().sum()

    z = torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
    (got,) = torch.autograd.grad(torch.compile(f, backend=fusilli)(z), z)
    (want,) = torch.autograd.grad(f(z), z)
    same(got, want)


def test_a_child_that_was_forked_before_the_code_was_there() -> None:
    """It has neither the thread nor what that compiles; it compiles for itself."""

    def f(x: Any) -> Any:
        return x.sin() * 2 + x

    call, x = torch.compile(f, backend=fusilli, dynamic=True), torch.randn(5, 3)
    for _ in range(2):
        same(call(x), f(x))
    child = os.fork()
    if not child:
        right = torch.allclose(call(x), f(x), atol=1e-5) and background.wait(100)
        right = right and torch.allclose(call(x), f(x), atol=1e-5) and len(torch_report(call).graphs) == 1
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert background.wait(100)
    same(call(x), f(x))
    assert torch_report(call).shapes["x [5, 3]"].hits == 1
