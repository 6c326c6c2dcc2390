"""Recurrent modules written out: cut into few custom operations, right at any length."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusilli_plugin.bench.networks.training import Recurrent  # noqa: E402
from hipdnn_backend.offload.torch_compile import fusilli, torch_report  # noqa: E402 - needs torch
from hipdnn_backend.offload.torch_compile.recurrences import wholes  # noqa: E402

pytestmark = pytest.mark.mlir


@pytest.fixture(autouse=True)
def _recurrences(fresh: None) -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


class Stacked(torch.nn.Module):
    """Two layers in both directions."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, num_layers=2, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(x)[0]


def _gradients(model: Any, call: Any, x: Any) -> list[Any]:
    x = x.clone().requires_grad_()
    model.zero_grad()
    made = call(x)
    (made * torch.linspace(-1, 1, made.numel()).reshape(made.shape)).sum().backward()
    return [made, x.grad, *(each.grad for each in model.parameters())]


def _check(model: Any, x: Any) -> Any:
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend=fusilli)
    for _ in range(2):
        for ours, theirs in zip(_gradients(model, compiled, x), _gradients(plain, plain, x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    return torch_report(compiled)


_SLOW = pytest.mark.slow


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [pytest.param(1, marks=_SLOW), 3, pytest.param(40, marks=_SLOW)])
def test_an_lstm_of_any_length_trains_in_few_graphs(steps: int) -> None:
    torch.manual_seed(0)
    report = _check(Recurrent(6, 8), torch.randn(3, steps, 6))
    assert report.flop_share == 1.0
    assert max(graph.graphs for graph in report.graphs) <= 40, "ten for each step before they were cut into pieces"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [pytest.param(torch.nn.LSTM, marks=_SLOW), pytest.param(torch.nn.GRU, marks=_SLOW), torch.nn.RNN]
)
def test_layers_in_both_directions(kind: Any) -> None:
    torch.manual_seed(0)
    assert _check(Stacked(kind), torch.randn(7, 3, 6)).flop_share == 1.0


@pytest.mark.parametrize("steps", [4, pytest.param(40, marks=pytest.mark.thorough)])
def test_inference_of_many_steps(steps: int) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(6, 8).eval(), torch.randn(3, steps, 6)
    compiled = torch.compile(model, backend=fusilli)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
    assert torch_report(compiled).flop_share == 1.0


def _written_out(steps: int, kept: bool) -> tuple[Any, dict[str, str]]:
    """h = tanh(h @ w + x[i]) for some steps; each h is a result if it is kept."""
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, w, h = (graph.placeholder(name) for name in "xwh")
    parts: dict[str, str] = {}
    made = []
    for step in range(steps):
        looked = graph.call_function(aten.select.int, (x, 0, step))
        product = graph.call_function(aten.mm.default, (h, w))
        added = graph.call_function(aten.add.Tensor, (product, looked))
        h = graph.call_function(aten.tanh.default, (added,))
        parts |= {node.name: "rnn" for node in (product, added, h)}
        made.append(h)
    graph.output(tuple(made) if kept else (h,))
    return graph, parts


def test_what_fits_is_one_piece() -> None:
    graph, parts = _written_out(12, kept=False)
    assert set(wholes(graph, parts).values()) == {"rnn"}


@pytest.mark.parametrize(("steps", "kept"), [(100, False), (100, True), (17, True)])
def test_pieces_have_whole_steps_and_ports_enough(steps: int, kept: bool) -> None:
    graph, parts = _written_out(steps, kept)
    found = wholes(graph, parts)
    assert found.keys() == parts.keys()
    order = {node.name: number for number, node in enumerate(graph.nodes)}
    pieces: dict[str, list[Any]] = {}
    for node in graph.nodes:
        if node.name in found:
            pieces.setdefault(found[node.name], []).append(node)
    sizes = [len(piece) for piece in pieces.values()]
    assert all(size % 3 == 0 for size in sizes)
    assert len(set(sizes[:-1])) <= 1, "alike, so that they are compiled once"
    for piece in pieces.values():
        inside = set(piece)
        assert len({source for node in piece for source in node.all_input_nodes} - inside) <= 32
        assert len([node for node in piece if set(node.users) - inside]) <= 32
    ends = [(order[piece[0].name], order[piece[-1].name]) for piece in pieces.values()]
    assert all(end < start for (_, end), (start, _) in pairwise(ends))


def test_a_product_that_is_done_once_stays_an_operation_of_its_own() -> None:
    """The input's projection in front of all steps is one large product, for which engines have a graph."""
    graph, parts = _written_out(40, kept=True)
    x = next(iter(graph.nodes))
    with graph.inserting_after(x):
        projected = graph.call_function(torch.ops.aten.mm.default, (x, x))
    for user in list(x.users):
        if user is not projected:
            user.replace_input_with(x, projected)
    assert projected.name not in wholes(graph, parts | {projected.name: "rnn"})
