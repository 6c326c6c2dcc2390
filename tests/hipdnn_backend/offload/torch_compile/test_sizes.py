"""Sizes that change from call to call: who answers, what is compiled in advance, and what may be padded."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402

from fusilli_ground.errors import OptionError  # noqa: E402 - needs torch
from hipdnn_backend.offload.background import background  # noqa: E402
from hipdnn_backend.offload.program.runner import InputError  # noqa: E402
from hipdnn_backend.offload.shape_counts import ShapeCount  # noqa: E402
from hipdnn_backend.offload.torch_compile import fusilli, sizes, torch_report  # noqa: E402
from hipdnn_backend.offload.torch_compile.options import CompileOptions  # noqa: E402
from hipdnn_backend.offload.torch_compile.report import _Entry  # noqa: E402

pytestmark = [pytest.mark.mlir, pytest.mark.usefixtures("fresh")]
nn, F = torch.nn, torch.nn.functional


class Net(nn.Module):
    """Rows of 4 that do not see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend=fusilli, dynamic=True, options=options)


def same(got: Any, want: Any) -> None:
    assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)


# ---- while there is no code


def test_pytorch_answers_until_there_is_code() -> None:
    """Sizes that come once are not compiled for; those that come again are, and no call waits for it."""
    model = Net()
    plain, call = copy.deepcopy(model), compiled(model)

    def step(rows: int) -> None:
        x = torch.randn(rows, 4)
        for one in (model, plain):
            one.zero_grad()
        made, wanted = call(x), plain(x)
        same(made, wanted)
        made.square().sum().backward()
        wanted.square().sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)

    for rows in (3, 5, 3):
        step(rows)
    assert background.wait(200)
    step(3)
    report = torch_report(call)
    assert sorted(graph.kind for graph in report.graphs) == ["backward", "forward"]
    assert report.shapes == {
        "x [3, 4]": ShapeCount(hits=1, fallbacks=2, compiles=1),
        "x [5, 4]": ShapeCount(fallbacks=1),
    }
    assert "for x [3, 4]: runs: 1 by its code, 2 in PyTorch; compiled 1 times" in str(report)


def test_with_error_only_named_sizes_run() -> None:
    call = compiled(lambda x: x.cumsum(0), shapes="x.0=2,3", on_new_shape="error")
    same(call(torch.ones(3, 2)), torch.ones(3, 2).cumsum(0))
    with pytest.raises(
        InputError, match=r"input 'x', dim 0 is 4; there is code for 2, 3; it is not padded: .*cumsum.*along dim 0"
    ):
        call(torch.ones(4, 2))
    with pytest.raises(InputError, match="input 'x', dim 1 is 5; there is code for none"):
        call(torch.ones(3, 5))


@pytest.mark.slow
def test_many_threads_and_sizes() -> None:
    """Tracers of PyTorch's change PyTorch while they run: one thread at a time traces."""
    model, wrong = Net().eval(), list[Any]()
    call = compiled(model, max_shapes=4)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(12):
                x = torch.randn(int(torch.randint(2, 8, (), generator=generator)), 4, generator=generator)
                if not torch.allclose(call(x), model(x), rtol=1e-4, atol=1e-5):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not torch_report(call).whole
    assert background.wait(300)


# ---- sizes in advance


@pytest.mark.thorough
def test_padded_where_that_is_harmless() -> None:
    model = Net()
    call = compiled(model, shapes={"x.0": [2, 8]}, on_new_shape="error")
    with torch.no_grad():
        for rows in (8, 3, 7, 2):
            x = torch.randn(rows, 4)
            same(call(x), model(x))
    report = torch_report(call)
    assert report.padding == {"x.0": ""}
    assert "dim 'x.0': padded to the next size" in str(report)
    assert len(report.graphs) == 2
    assert {text: (count.hits, count.padded) for text, count in report.shapes.items()} == {
        "x [2, 4]": (1, 0), "x [3, 4]": (0, 1), "x [7, 4]": (0, 1), "x [8, 4]": (1, 0)
    }  # fmt: skip
    x = torch.randn(3, 4)  # gradients add up along the rows
    with pytest.raises(InputError, match="dim 0 is 3; there is code for 2, 8"):
        call(x)


@pytest.mark.slow
def test_backward_graphs_are_made_in_advance() -> None:
    model = nn.Linear(4, 2)
    call = compiled(lambda x: model(x).sin(), shapes={"x.0": [3, 5]}, on_new_shape="error")
    call(torch.randn(5, 4))
    assert sorted(graph.kind for graph in torch_report(call).graphs) == ["backward"] * 2 + ["forward"] * 2
    x = torch.randn(3, 4)
    call(x).sum().backward()
    got, model.weight.grad = model.weight.grad, None
    model(x).sin().sum().backward()
    torch.testing.assert_close(got, model.weight.grad)
    assert len(torch_report(call).graphs) == 4


@pytest.mark.parametrize(
    ("shapes", "dynamic", "message"),
    [
        ({"y.0": [1]}, True, r"shapes: y.0=1: no input has an open dim .*; open dims are: x.0 \(input 'x', dim 0\)"),
        ({"x.3": [2]}, True, "shapes: x.3=2: no input has an open dim of this name"),
        ({"x.0": [2, 4]}, False, r"shapes: x.0=2,4: dim 0 of input 'x' is 3 in this graph .* dynamic=True"),
        ({"x.0": []}, True, "shapes: dim 'x.0' has no sizes"),
        ({"x.0": [0]}, True, "shapes: dim 'x.0': 0 is no size"),
        ({"x.0": 4}, True, "option 'shapes' .* it takes sizes by the dim of an argument"),
        ("x.0=4..2", True, "shapes: dim 'x.0': the range 4..2 is empty"),
    ],
)
def test_shapes_that_mean_nothing(shapes: Any, dynamic: bool, message: str) -> None:
    call = torch.compile(lambda x: x.sin() * 2, backend=fusilli, dynamic=dynamic, options={"shapes": shapes})
    with pytest.raises(BackendCompilerFailed, match=message) as caught:
        call(torch.ones(3, 5))
    assert isinstance(caught.value.inner_exception, OptionError)
    with pytest.raises(BackendCompilerFailed, match="it takes fallback, wait, error"):
        torch.compile(lambda x: x + 1, backend=fusilli, options={"on_new_shape": "never"})(torch.ones(3))


# ---- the proof that rows which are added reach nothing, against PyTorch with NaN in them


def _forms(random: np.random.Generator) -> list[Callable[[Any], Any]]:
    """Steps from a tensor of dims [rows, 4, 6] to another; some mix rows, some look as if they did."""
    dim, other = (int(each) for each in random.integers(0, 3, 2))
    linear, conv, norm = nn.Linear(6, 6), nn.Conv1d(4, 4, 3, padding=1), nn.LayerNorm(6)
    batch, group = nn.BatchNorm1d(4).train(bool(random.integers(2))), nn.GroupNorm(2, 4)
    words, heads = nn.Embedding(9, 6), nn.MultiheadAttention(6, 2, batch_first=True).eval()
    keep = torch.tensor([0, 2, 1, 3])
    return [
        linear, conv, norm, batch, group,
        lambda x: x.softmax(dim),
        lambda x: x.cumsum(dim),
        lambda x: x - x.mean(dim, keepdim=True),
        lambda x: x + x.amax(dim).unsqueeze(dim),
        lambda x: x * x.sum(),
        lambda x: x.transpose(dim, other).relu(),
        lambda x: x.flatten(dim, min(dim + 1, 2)).sin().view(x.shape),
        lambda x: x.transpose(0, 1).reshape(x.shape),
        lambda x: x.reshape(-1, 6).tanh().view(x.shape),
        lambda x: x.reshape(-1, x.shape[0], 6).transpose(0, 1) + x,
        lambda x: torch.cat([x, x * 2], dim)[tuple(slice(0, size) for size in x.shape)],
        lambda x: x.flip(dim),
        lambda x: x + torch.arange(x.shape[0]).view(-1, 1, 1),
        lambda x: x / x.shape[0],
        lambda x: x + x[:1],
        lambda x: x + x[-1:],
        lambda x: x + x.select(dim, 0).unsqueeze(dim),
        lambda x: x.roll(1, dim),
        lambda x: x + words(x.abs().argmax(dim).clamp(max=8)).sum(),
        lambda x: x.sort(dim)[0],
        lambda x: heads(x, x, x, need_weights=False)[0],
        lambda x: x.masked_fill(x > 0, 0.5),
        lambda x: x.index_select(1, keep),
        lambda x: F.pad(x, (1, 1)).narrow(2, 1, 6),
        lambda x: x @ x.transpose(1, 2) @ x,
        lambda x: x + x.new_ones(x.shape[0], 1, 1),
        lambda x: torch.where(x > x.mean(), x, -x),
        lambda x: torch.stack([x, x + 1], dim).amax(dim),
        lambda x: x.expand(2, *x.shape).mean(0),
        lambda x: F.max_pool1d(x, 3, 1, 1),
        lambda x: x + torch.full((x.shape[0], 1, 1), 2.0),
        lambda x: x.var(dim, keepdim=True) + x,
        lambda x: x.unsqueeze(0).squeeze(0) * 1.5,
        lambda x: x.split(2, 1)[1].repeat(1, 2, 1),
        lambda x: torch.einsum("rst,sut->rut", x, torch.ones(4, 4, 6)),
        lambda x: x + torch.ones(x.shape[0], 4).cumsum(0).unsqueeze(2),
        lambda x: x.sum((0, 2), keepdim=True) + x,
    ]  # fmt: skip


def _proof(seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a random function was padded; if it was, its results are PyTorch's."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    steps = [_forms(random)[number] for number in random.integers(0, len(_forms(random)), random.integers(1, 5))]
    several, told = bool(random.integers(2)), _Entry()

    def function(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return (x * 2, x.sum(2)) if several else x + 1

    def backend(module: Any, _: Any) -> Any:
        options = CompileOptions.read({"shapes": {"x.0": [2, 5, 9]}, "on_new_shape": "fallback"}, None)
        made = sizes.BySizes(module, options, lambda module, example_inputs, **_: module.forward, told)
        return torch._dynamo.disable(made.call)

    def filled(target: Any, value: Any) -> None:
        target.fill_(float("nan"))
        target[: value.shape[0]] = value

    monkeypatch.setattr(sizes, "_fill", filled)
    torch._dynamo.reset()
    call = torch.compile(function, backend=backend, dynamic=True)
    with torch.no_grad():
        for rows in (9, int(random.integers(3, 5)), int(random.integers(6, 9))):
            x = torch.randn(rows, 4, 6, generator=torch.Generator().manual_seed(seed))
            torch._dynamo.maybe_mark_dynamic(x, 0)
            for axis in (1, 2):
                torch._dynamo.mark_static(x, axis)
            try:
                want = function(x)
            except (RuntimeError, IndexError):  # steps that do not fit each other
                return False
            got = call(x)
            for one, other in zip(got if several else [got], want if several else [want], strict=True):
                same(one, other)
    return any(count.padded for count in told.shapes.copy().values())


def test_what_is_padded_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = [_proof(seed, monkeypatch) for seed in range(4)]
    assert 0 < sum(padded) < len(padded)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_what_is_padded_is_pytorchs_in_many_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = [_proof(seed, monkeypatch) for seed in range(100, 400)]
    print(f"{sum(padded)} of {len(padded)} functions were padded")
    assert 30 < sum(padded) < 250
