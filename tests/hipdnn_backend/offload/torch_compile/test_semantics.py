"""What PyTorch promises holds for compiled functions: writes, views, types, forms in memory, draws, threads."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hipdnn_backend import offload  # noqa: E402 - needs torch
from hipdnn_backend.offload.program.runner import Prepared  # noqa: E402
from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402

pytestmark = [pytest.mark.mlir, pytest.mark.usefixtures("fresh")]
nn, F = torch.nn, torch.nn.functional


def compiled(function: Callable[..., Any], **settings: Any) -> Any:
    return torch.compile(function, backend=fusilli, **settings)


def same(got: Any, want: Any, close: float = 1e-5) -> None:
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other, close)
        return
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    torch.testing.assert_close(got, want, rtol=close, atol=close, equal_nan=True)


def test_arguments_that_are_written_to() -> None:
    def step(x: Any, y: Any) -> Any:
        x.mul_(2).add_(y)
        x[1:3].add_(1)
        x.t()[0].zero_()
        return x.relu()

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    other = x.clone()
    result, expected = compiled(step)(x, y), step(other, y)
    same((x, result), (other, expected))


def test_statistics_of_batch_norms_and_other_buffers() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.norm(x) * self.calls

    model, x = Counting(), torch.randn(4, 3, 5, 5) * 3 + 1
    plain, call = copy.deepcopy(model), compiled(model)
    for _ in range(3):
        same(call(x), plain(x))
    same(list(model.buffers()), list(plain.buffers()))
    model.eval()
    same(call(x), plain.eval()(x))


def test_results_that_share_memory() -> None:
    def views(x: Any) -> Any:
        y = x.relu()
        return y, y.view(-1), y.t(), x.t(), x

    x = torch.randn(4, 5)
    result = compiled(views)(x)
    same(result, views(x))
    assert result[0].data_ptr() == result[1].data_ptr() == result[2].data_ptr()
    assert result[3].data_ptr() == x.data_ptr()
    assert result[4] is x


def test_results_are_not_overwritten_by_the_next_call() -> None:
    call = compiled(lambda x: x + 1)
    results = [call(torch.full((4,), float(number))) for number in range(8)]
    assert [float(result[0]) for result in results] == [number + 1.0 for number in range(8)]
    kept = results[0].numpy()
    del results
    call(torch.zeros(4))
    assert kept[0] == 1.0


@pytest.mark.thorough
def test_types_are_promoted() -> None:
    def mixed(x: Any, i: Any, h: Any, s: Any) -> Any:
        return x + i, i / 3, h * x, s * i, h + 1.5, i**2, (i > 1) + i, x * True, torch.where(i > 1, h, x)

    given = (torch.randn(3, 4), torch.arange(4), torch.randn(3, 4).half(), torch.tensor(2.5, dtype=torch.float64))
    same(compiled(mixed)(*given), mixed(*given))


@pytest.mark.thorough
def test_autocast_and_no_grad() -> None:
    model, x = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)), torch.randn(8, 16)
    call = compiled(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(call(x), model(x), close=3e-2)
        call(x).float().sum().backward()
    got = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x).float().sum().backward()
    same(got, [parameter.grad for parameter in model.parameters()], close=6e-2)
    with torch.no_grad():
        result = call(x)
    assert not result.requires_grad
    same(result, model(x).detach())


@pytest.mark.thorough
def test_channels_last_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 10).to(memory_format=torch.channels_last).requires_grad_()
    call = compiled(model)
    result = call(x)
    assert result.is_contiguous(memory_format=torch.channels_last)
    same(result, model(x))
    (got,) = torch.autograd.grad(result.square().sum(), x)
    (want,) = torch.autograd.grad(model(x).square().sum(), x)
    same(got, want, close=1e-4)
    programs = [program for graph in torch_report(call).graphs for program in graph.programs]
    moved = [name for program in programs for graph in program["graphs"].values() for name in graph["operations"]]
    assert "torch.aten.clone" not in moved


@pytest.mark.slow
def test_strided_empty_and_single_tensors() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * 2 + y).tanh()

    call, y = compiled(f, dynamic=False), torch.randn(1, 3).expand(4, 3)
    for x in (torch.randn(8, 10)[::2, 1::3], torch.randn(10, 8).t()[::2, 1::3], torch.randn(13)[1:].view(4, 3)):
        same(call(x, y), f(x, y))

    def g(s: Any, e: Any, x: Any) -> Any:
        return s * x, e + 1, torch.cat([e, x]), (x.sum() * s).exp(), e.sum(), s + 1, e @ x.t()

    given = (torch.tensor(0.5), torch.empty(0, 3), torch.randn(4, 3) / 9)
    same(compiled(g)(*given), g(*given))


@pytest.mark.thorough
def test_other_sizes_are_compiled_for_and_right() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    call = compiled(model, dynamic=True, options={"max_shapes": 2, "on_new_shape": "wait"})
    for rows in (3, 5, 3, 4, 5):
        x = torch.randn(rows, 8)
        result = call(x)
        same(result, model(x))
    # 3, 5 and 4; then 5 again, which 3 and 4 have driven out
    assert [graph.kind for graph in torch_report(call).graphs] == ["forward"] * 4
    result.sum().backward()
    same(model[2].bias.grad, torch.full((4,), 5.0))


@pytest.mark.thorough
def test_draws_are_pytorchs() -> None:
    def f(x: Any) -> Any:
        y = F.dropout(x * 2, 0.5) + torch.rand_like(x)
        return y.exp(), torch.bernoulli(x.sigmoid()), torch.randn(3, 4) + y

    x, call = torch.randn(3, 4), compiled(f)
    torch.manual_seed(3)
    result = call(x)
    torch.manual_seed(3)
    same(result, f(x))
    rules = {node.rule for graph in torch_report(call).graphs for node in graph.eager}
    assert rules == {"random"}


def test_what_a_graph_cannot_hold_runs_in_pytorch_and_is_told() -> None:
    def f(x: Any) -> Any:
        return torch.fft.fft(x).abs().sum() + (x * 2).sin().sum(), torch.linalg.inv(torch.eye(3) * x[:3])

    x, call = torch.rand(8) + 1, compiled(f)
    same(call(x), f(x))
    report = torch_report(call)
    told = {node.operator: node.rule for graph in report.graphs for node in graph.eager}
    assert told["aten._fft_r2c.default"] == "unknown"
    assert told["aten.abs.default"] == "type"
    assert "the torch dialect has no torch.aten._fft_r2c" in str(report)


def test_sizes_that_only_a_run_knows() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):

        def f(x: Any) -> Any:
            return x.exp() * x.argmax().item(), x[x > 0] * 2

        x = torch.randn(10)
        same(compiled(f, fullgraph=True)(x), f(x))


def test_threads_and_a_forked_child() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    call, given = compiled(model), [torch.randn(16, 32) for _ in range(6)]
    wrong: list[int] = []
    with torch.no_grad():
        expected = [model(x) for x in given]
        call(given[0])

        def work(number: int) -> None:
            with torch.no_grad():
                for _ in range(40):
                    if not torch.allclose(call(given[number]), expected[number], rtol=1e-4, atol=1e-5):
                        wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        child = os.fork()
        if not child:
            os._exit(0 if torch.allclose(call(given[1]), expected[1], rtol=1e-4, atol=1e-5) else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_transforms_of_functions() -> None:
    def f(x: Any, w: Any) -> Any:
        gradient = torch.func.grad(lambda a: (a @ w).sin().sum())(x)
        return torch.func.vmap(lambda a: (a @ w).tanh())(x), gradient

    given = (torch.randn(3, 4, 5), torch.randn(5, 2))
    same(compiled(f)(*given), f(*given))


def test_after_a_reset_it_is_compiled_again() -> None:
    call, x = compiled(lambda x: x.tanh()), torch.randn(5)
    same(call(x), x.tanh())
    torch.compiler.reset()
    same(call(x), x.tanh())
    assert len(torch_report(call).graphs) == 2


@pytest.mark.thorough
def test_counted_from_the_end() -> None:
    """Torch-MLIR's lowering of a negative index writes nowhere, of a negative dim elsewhere."""

    def f(x: Any, y: Any) -> Any:
        return torch.select_scatter(x, y, 1, -1) + 1

    x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([10.0, 20.0])
    expected = torch.tensor([[1.0, 2.0, 11.0], [4.0, 5.0, 21.0]])
    same(compiled(f)(x, y), expected)

    def g(x: Any, index: Any, y: Any) -> Any:
        return torch.scatter(x, -2, index, y) + 1, torch.scatter_add(x, -2, index, y) + 1

    index, rows = torch.tensor([[1, 0, 1]]), torch.tensor([[10.0, 20.0, 30.0]])
    written = torch.tensor([[1.0, 21.0, 3.0], [11.0, 5.0, 31.0]])
    added = torch.tensor([[1.0, 22.0, 3.0], [14.0, 5.0, 36.0]])
    same(compiled(g)(x, index, rows), (written, added))


# ---- sizes that change ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("marked", [False, True])
def test_blocks_with_norms_train_at_any_size(marked: bool) -> None:
    """Dynamo passes a norm's epsilon in a tensor then; a changed one counts. Sizes seen before compile nothing."""
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    dynamic, options = None if marked else True, {"on_new_shape": "wait"}
    plain, call = copy.deepcopy(model), compiled(model, dynamic=dynamic, options=options)
    for rows, graphs in ((4, 2), (5, 4), (4, 4)):
        x = torch.randn(rows, 6)
        if marked:
            torch._dynamo.mark_dynamic(x, 0)
        model.zero_grad()
        plain.zero_grad()
        same(call(x), plain(x))
        call(x).square().sum().backward()
        plain(x).square().sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            same(one.grad, other.grad, close=1e-4)
        report = torch_report(call)
        assert not report.whole
        assert len(report.graphs) == graphs
        assert report.flop_share == 1.0
    model[1].eps = plain[1].eps = 0.5
    same(call(torch.ones(4, 6)), plain(torch.ones(4, 6)))


def test_a_trained_module_is_exported_and_saved(tmp_path: Path) -> None:
    """The way to run it ahead of time: what `torch.export` gives, compiled into a file that needs no compiler."""
    model, x = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), torch.randn(4, 6)
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled(model)(x).square().sum().backward()
    step.step()
    program = torch.export.export(model.eval(), (x,))
    offload.load(program, device="cpu").save(tmp_path / "model.fusilli")
    loaded = offload.load(tmp_path / "model.fusilli", device="cpu")
    (name,) = [each.name for each in loaded.inputs]
    (made,) = loaded.run({name: x.numpy()}).values()
    same(torch.from_numpy(made), model(x).detach())


# ---- what a call costs, and what it rests on --------------------------------------------------------------------


@pytest.mark.thorough
def test_arguments_at_ever_new_places_are_prepared_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are copied to one place; large ones are read where they lie. Results are right all the time."""
    prepared: list[int] = []
    prepare = Prepared._call
    monkeypatch.setattr(Prepared, "_call", lambda self, *given: prepared.append(1) or prepare(self, *given))
    for size, settles in ((64, True), (1 << 17, False)):
        call = compiled(lambda x: (x * 2 + 1).sin())
        kept = [torch.randn(size) for _ in range(24)]  # all alive, so each lies at a place of its own
        counts = []
        for x in kept:
            same(call(x), (x * 2 + 1).sin())
            counts.append(len(prepared))
        assert (counts[-1] == counts[11]) == settles
        torch._dynamo.reset()


@pytest.mark.thorough
def test_results_that_others_see_by_one_view() -> None:
    """They come in that form; where somebody sees the result itself, another view or only a part, they do not."""

    def seen(x: Any, w: Any) -> Any:
        a, b, c = x @ w, x.relu() @ w, x.sigmoid() @ w
        return (
            a.t(),
            b.reshape(2, 2, 3),
            b.t(),
            c[1:],
            (c * 2).unsqueeze(0).transpose(0, 2),
            (x + 1).t().contiguous().t(),
        )

    x, w = torch.randn(4, 5), torch.randn(5, 3)
    same(compiled(seen)(x, w), seen(x, w))

    def halfway(x: Any, w: Any) -> Any:
        made = (x @ w).t()
        drawn = torch.bernoulli((made * 0).clamp(0, 1))  # by PyTorch; another program goes on
        return drawn + made.exp() @ made.t().exp() @ made

    same(compiled(halfway)(x, w), halfway(x, w))

    def written(x: Any, w: Any) -> Any:
        made = (x @ w).t()
        made.add_(1)
        return made, made.view(-1) if made.is_contiguous() else made.t().reshape(-1)

    same(compiled(written)(x, w), written(x, w))


def test_gradients_that_are_transposed_are_written_so() -> None:
    layer, x = nn.Linear(6, 3), torch.randn(5, 6)
    plain, call = copy.deepcopy(layer), compiled(layer)
    call(x).sin().sum().backward()
    plain(x).sin().sum().backward()
    same(layer.weight.grad, plain.weight.grad)
    assert not any("aten.t" in str(each) for graph in torch_report(call).graphs for each in graph.eager)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("channels", "window", "stride", "bias"),
    [(4, (2, 2), 2, True), (4, (3, 2), (3, 2), False), (2, (2, 3, 1), (2, 3, 1), True), (4, (3, 3), 2, True)],
)
def test_transposed_convolutions(channels: int, window: tuple[int, ...], stride: Any, bias: bool) -> None:
    """Windows side by side are a product; the last ones overlap."""
    torch.manual_seed(0)
    kind = nn.ConvTranspose3d if len(window) == 3 else nn.ConvTranspose2d
    layer = kind(channels, 3, window, stride, bias=bias)
    x = torch.randn(2, channels, *range(4, 4 + len(window)), requires_grad=True)
    plain, other, call = copy.deepcopy(layer), x.detach().clone().requires_grad_(), compiled(layer)
    made, wanted = call(x), plain(other)
    same(made, wanted)
    made.sin().sum().backward()
    wanted.sin().sum().backward()
    for one, two in ((x, other), *zip(layer.parameters(), plain.parameters(), strict=True)):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-4)


def test_a_batch_norm_without_running_statistics_and_its_gradients() -> None:
    def gradients(function: Any) -> Any:
        x = torch.linspace(-1, 2, 150).square().reshape(2, 3, 5, 5).detach().requires_grad_()
        weight = torch.ones(3).requires_grad_()
        y = function(x, weight)
        (y * torch.arange(150.0).reshape(y.shape)).sum().backward()
        return y, x.grad, weight.grad

    def step(x: Any, weight: Any) -> Any:
        return F.batch_norm(x, None, None, weight, training=True)

    function = compiled(step)
    same(gradients(function), gradients(step), 2e-3)
    assert not [node for graph in torch_report(function).graphs for node in graph.eager]


_UNIFORM: dict[str, Callable[[], Any]] = {
    "float": lambda: torch.full((3,), 0.25),
    "negative": lambda: torch.full((3,), -2.0),
    "zeros": lambda: torch.zeros(3),
    "half": lambda: torch.full((3,), 0.5, dtype=torch.float16),
    "double": lambda: torch.full((3,), 0.1, dtype=torch.float64),
    "integer": lambda: torch.full((3,), -7, dtype=torch.int32),
    "long": lambda: torch.full((3,), 2),
    "byte": lambda: torch.full((3,), 200, dtype=torch.uint8),
    "truth": lambda: torch.ones(3, dtype=torch.bool),
}
_OF_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda c, s: c + s,
    "rsub": lambda c, s: s - (c.int() if c.dtype is torch.bool else c),  # PyTorch has no difference of truth values
    "mul": lambda c, s: c * s,
    "floor_divide": lambda c, s: c // s,
    "remainder": torch.remainder,
    "lt": lambda c, s: c < s,
    "ge": lambda c, s: c >= s,
    "eq": lambda c, s: c == s,
    "pow": lambda c, s: torch.pow(c.double(), torch.full((3,), s)),
}


@pytest.mark.a_few("lt", "remainder")
@pytest.mark.parametrize("name", list(_OF_NUMBERS))
def test_constants_and_numbers_of_every_kind(name: str) -> None:
    """Torch-MLIR folds some of these to other numbers, and ended the process where integers meet a fraction."""
    function = _OF_NUMBERS[name]

    def step(x: Any) -> Any:
        made = [x + 1]
        for constant in _UNIFORM.values():
            for number in (1, -2, 3, 0.5, -1.5):
                if constant().dtype is not torch.uint8 or number > 0:
                    made.append(function(constant(), number))
        return tuple(made)

    x = torch.ones(3)
    same(compiled(step)(x), step(x), 0.0)


@pytest.mark.parametrize("element", [torch.float32, torch.int32])
def test_powers_of_a_constant(element: Any) -> None:
    """Odd powers of 0.25 were negative: a comparison of the constant with 0 was folded to its opposite."""

    def step(x: Any) -> Any:
        return torch.pow(torch.full((), 0.25), x), torch.pow(torch.full((4,), -2.0), x)

    x = torch.tensor([1, 2, 3, -1]).to(element)
    want = torch.tensor([0.25, 0.0625, 0.015625, 4.0]), torch.tensor([-2.0, 4.0, -8.0, -0.5])
    same(compiled(step)(x), want)


@pytest.mark.parametrize("mask", ["zeros", "half", "true"])
def test_masks_that_hide_nothing(mask: str) -> None:
    def step(q: Any, k: Any) -> Any:
        made = {"zeros": torch.zeros(1, 4, 7, 12), "half": torch.full((7, 12), -0.5), "true": torch.ones(7, 12).bool()}
        return F.scaled_dot_product_attention(q, k, k, attn_mask=made[mask], scale=1.0)

    q, k = torch.randn(2, 4, 7, 16), torch.randn(2, 4, 12, 16)
    function = compiled(step)
    with torch.no_grad():
        same(function(q, k).contiguous(), step(q, k).contiguous())
    assert not [node for graph in torch_report(function).graphs for node in graph.eager]


@pytest.mark.parametrize("dim", [0, 2])
def test_a_normalised_weight_and_its_gradients(dim: int) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, padding=1), dim=dim)
    other = copy.deepcopy(layer)
    x = torch.randn(2, 8, 10)
    function = compiled(layer)
    got, want = function(x), other(x)
    (got * torch.arange(10)).sum().backward()
    (want * torch.arange(10)).sum().backward()
    same(got, want)
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        same(one.grad, two.grad, 1e-4)
    assert not [node for graph in torch_report(function).graphs for node in graph.eager]


def test_a_batch_norm_without_training_by_its_own_name() -> None:
    def step(x: Any, mean: Any, variance: Any) -> Any:
        return torch.ops.aten._native_batch_norm_legit_no_training(x, None, None, mean, variance, 0.1, 1e-5)[0]

    arguments = torch.randn(2, 3, 5, 5), torch.randn(3), torch.rand(3) + 0.5
    function = compiled(step)
    with torch.no_grad():
        same(function(*arguments), step(*arguments))
    assert not [node for graph in torch_report(function).graphs for node in graph.eager]


@pytest.mark.parametrize(("start", "end", "step"), [(0, 5, 1), (1, 8, 3), (-6, 100, 2), (2, -1, 4)])
def test_gradients_of_slices(start: int, end: int, step: int) -> None:
    def gradient(function: Any) -> Any:
        x = torch.arange(24.0).reshape(3, 8).requires_grad_()
        y = function(x)
        (y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum().backward()
        return x.grad

    def step_of(x: Any) -> Any:
        return (x * 0.1)[:, start:end:step].exp()

    function = compiled(step_of)
    same(gradient(function), gradient(step_of))
    assert not [node for graph in torch_report(function).graphs for node in graph.eager if node.rule == "unknown"]


def test_an_exported_program_keeps_its_constants() -> None:
    class Shifted(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + (torch.full((2048, 1024), 0.25) - 2).remainder(-1.5)

    example = (torch.ones(1024),)
    program = torch.export.export(Shifted(), example)
    before = str(program.graph)
    model = offload.load(program)
    (got,) = model.run({model.inputs[0].name: example[0].numpy()}).values()
    assert str(program.graph) == before
    same(torch.from_numpy(got), torch.full((2048, 1024), 1.0 - 0.25))
