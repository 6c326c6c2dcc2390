"""PyTorch modules, exported, compiled and run: results are PyTorch's own in float64."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import ModelError, PassError

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.filterwarnings("ignore")]

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Decoder(nn.Module):
    """Embeddings by token and by place (``arange`` names a device), a causal transformer layer, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(6, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 20)
        self.register_buffer("mask", torch.triu(torch.full((6, 6), float("-inf")), 1))

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.layer(x, src_mask=self.mask))


class Recurrent(nn.Module):
    """What torch-mlir does not know: PyTorch unrolls it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(3, 4, batch_first=True), nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.gru(self.lstm(x)[0])[0][:, -1]


class Resized(nn.Module):
    """Operations that PyTorch has to decompose, beside a batch norm, which it then decomposes too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        y = F.interpolate(self.norm(self.conv(x)), scale_factor=2.0, mode="bilinear", align_corners=False)
        return y, F.unfold(x, 3)


class Shared(nn.Module):
    """One input that a sort, which compilers do in place, shares with what comes after it."""

    def forward(self, x: Any) -> Any:
        return torch.topk(x, 3)[0], torch.cumsum(x, 1), torch.sort(x, descending=True)[0], x.masked_fill(x > 0.5, -1.0)


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "decoder": (Decoder, (2, 6)),
    "recurrent": (Recurrent, (2, 3, 3)),
    "resized": (Resized, (1, 2, 5, 6)),
    "shared": (Shared, (3, 7)),
}


@pytest.mark.a_few("shared")
@pytest.mark.parametrize("name", [pytest.param("recurrent", marks=pytest.mark.slow), "decoder", "resized", "shared"])
def test_a_module_computes_what_pytorch_computes(name: str) -> None:
    make, dims = CASES[name]
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randint(0, 20, dims) if name == "decoder" else torch.randn(dims)
    with load(module, device="cpu", example=(x,)) as model:
        results = list(model.run({model.inputs[0].name: x.numpy()}).values())
    with torch.no_grad():
        expected = module.double()(x.double() if x.is_floating_point() else x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(results) == len(expected)
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.a_few("<lambda>1", "<lambda>3", "<lambda>5")
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.ones_like(x, dtype=torch.bool),
        lambda x: torch.zeros_like(x, dtype=torch.int8),
        lambda x: torch.triu(torch.ones_like(x, dtype=torch.bool), 1),
        lambda x: torch.full_like(x, 200, dtype=torch.uint8),
        lambda x: torch.ones_like(x, dtype=torch.bool) & (torch.cumsum(x, 0) > -1e9),
        lambda x: x[:0],
        lambda x: torch.cat([x[:, :0], x[:, 1:]], 1),
        lambda x: x[:0].sum(0),
    ],
)
def test_results_that_no_input_decides(make: Callable[[Any], Any]) -> None:
    """Constants, and tensors without elements."""

    class Constant(nn.Module):
        def forward(self, x: Any) -> Any:
            return make(x)

    x = torch.arange(6.0).reshape(2, 3)
    with load(Constant(), device="cpu", example=(x,)) as model:
        (got,) = model.run({each.name: x.numpy() for each in model.inputs}).values()
    want = make(x).numpy()
    np.testing.assert_array_equal(got, want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)


def test_an_example_that_is_no_tuple_is_told() -> None:
    with pytest.raises(
        ModelError, match=r"example is a tuple of the arguments of forward, e.g. example=\(x,\); got Tensor"
    ):
        load(nn.Linear(4, 4), example=torch.ones(2, 4))


@pytest.mark.parametrize(
    "draw", [lambda x: torch.rand_like(x) - torch.rand_like(x), lambda x: torch.multinomial(x, 200, replacement=True)]
)
def test_random_modules_are_refused(draw: Any) -> None:
    """Two draws were one, and multinomial corrupted memory."""

    class Random(nn.Module):
        def forward(self, x: Any) -> Any:
            return draw(x)

    with pytest.raises(PassError, match="is refused: compiled code gives draws that look alike the same numbers"):
        load(Random(), example=(torch.rand(4, 6),))


class _Sequence(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrence_of_many_steps_is_one_graph(kind: Any) -> None:
    """33 steps are more values than a custom operation has results."""
    torch.manual_seed(0)
    layer, x = kind(4, 4, batch_first=True, bidirectional=kind is nn.RNN).eval(), torch.randn(1, 33, 4)
    with load(_Sequence(layer).eval(), example=(x,)) as model:
        (have,) = model.run({model.inputs[0].name: x.numpy()}).values()
        assert sum(len(graph.nodes) > 33 for graph in model.program.graphs) == 1
        assert len(model.program.graphs) <= 2
    expected = layer.double()(x.double())[0].detach().numpy()
    np.testing.assert_allclose(have, expected, rtol=1e-5, atol=1e-6)
