"""Networks that PyTorch users train, small: what ``torch.compile(backend="fusilli")`` is tried and measured with.

Needs PyTorch.
"""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

__all__ = ["NETWORKS", "Step", "loss_of", "network"]


class Residual(nn.Module):
    """Two convolutions with batch norms, and what they are added to."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.b, self.m = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        is_plain = stride == 1 and inner == outer
        way = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.skip = nn.Identity() if is_plain else way

    def forward(self, x: Any) -> Any:
        y = F.relu(self.n(self.a(x)))
        return F.relu(self.m(self.b(y)) + self.skip(x))


class ResNet(nn.Module):
    """For pictures of 32x32: a stem of 3x3, residual blocks, a mean. Four widths and depth 2 are ResNet-18."""

    def __init__(self, widths: tuple[int, ...], depth: int) -> None:
        super().__init__()
        before = widths[0]
        layers: list[nn.Module] = [nn.Conv2d(3, before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
        for number, width in enumerate(widths):
            for place in range(depth):
                layers.append(Residual(before, width, 2 if number and not place else 1))
                before = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, 10)

    def forward(self, x: Any) -> Any:
        return self.head(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


class Block(nn.Module):
    """Attention and two layers, normalised first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n, self.m = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any, is_causal: bool = False) -> Any:
        b, t, d = x.shape
        parts = self.qkv(self.n(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.layers(self.m(x))


class ViT(nn.Module):
    """Patches of 4x4, a token of the class, blocks."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class GPT(nn.Module):
    """As GPT-2: embeddings, causal blocks, the head's weight is the embedding's."""

    def __init__(self, words: int, places: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.words.weight.data *= 0.1
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        y = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y, is_causal=True)
        return self.head(self.norm(y)).flatten(0, 1)


class UNet(nn.Module):
    """Two levels down and up again by transposed convolutions, group norms."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def level(inner: int, outer: int) -> nn.Module:
            layers = [
                (nn.Conv2d(each, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.SiLU()) for each in (inner, outer)
            ]
            return nn.Sequential(*(layer for three in layers for layer in three))

        self.down = nn.ModuleList([level(3, width), level(width, 2 * width), level(2 * width, 4 * width)])
        self.wider = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([level(4 * width, 2 * width), level(2 * width, width)])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        c = self.down[2](F.max_pool2d(b, 2))
        d = self.up[0](torch.cat([self.wider[0](c), b], 1))
        return self.head(self.up[1](torch.cat([self.wider[1](d), a], 1)))


class Recurrent(nn.Module):
    """An LSTM and what is made of its last step."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(inner, width, batch_first=True), nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def perceptron(inner: int, width: int, outer: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(inner, width), nn.ReLU(), nn.Linear(width, outer))


Draw = Callable[..., Any]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Draw, Draw], tuple[Any, Any]]]] = {
    "mlp": (lambda: perceptron(32, 64, 10), lambda real, word: (real(16, 32), word(10, 16))),
    "cnn": (lambda: ResNet((8, 16), 1), lambda real, word: (real(4, 3, 16, 16), word(10, 4))),
    "resnet18": (lambda: ResNet((64, 128, 256, 512), 2), lambda real, word: (real(8, 3, 32, 32), word(10, 8))),
    "vit": (lambda: ViT(64, 4, 2), lambda real, word: (real(4, 3, 32, 32), word(10, 4))),
    "gpt": (lambda: GPT(97, 32, 64, 4, 2), lambda real, word: (word(97, 4, 32), word(97, 4 * 32))),
    "unet": (lambda: UNet(8), lambda real, word: (real(2, 3, 16, 16), word(2, 2, 16, 16))),
    "lstm": (lambda: Recurrent(16, 32), lambda real, word: (real(4, 8, 16), word(5, 4))),
    "vit_large": (lambda: ViT(192, 3, 6), lambda real, word: (real(8, 3, 32, 32), word(10, 8))),
    "gpt_large": (lambda: GPT(1000, 128, 256, 4, 4), lambda real, word: (word(1000, 4, 128), word(1000, 4 * 128))),
    "unet_large": (lambda: UNet(32), lambda real, word: (real(4, 3, 64, 64), word(2, 4, 64, 64))),
    "lstm_large": (lambda: Recurrent(64, 128), lambda real, word: (real(16, 32, 64), word(5, 16))),
}
"""Name → what makes the network, and what makes inputs and classes of drawn numbers and words."""


def network(name: str) -> tuple[nn.Module, Any, Any]:
    """A network, inputs and classes: the same in every call."""
    generator = torch.Generator().manual_seed(0)
    make, draw = NETWORKS[name]
    x, classes = draw(
        lambda *dims: torch.randn(dims, generator=generator),
        lambda top, *dims: torch.randint(top, dims, generator=generator),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(), x, classes


def loss_of(made: Any, classes: Any) -> Any:
    """Cross entropy."""
    return F.cross_entropy(made, classes)


class Step:
    """A step of training, forward, backward and SGD, of one of the networks.

    Args:
        name: of the network.
        backend: what ``torch.compile`` takes; None: PyTorch as it is.
    """

    def __init__(self, name: str, backend: Any = None) -> None:
        self._model, self._x, self._classes = network(name)
        torch._dynamo.reset()  # else sizes that differ from the last network's of its kind count as open ones
        torch._dynamo.config.allow_rnn = True
        self.call = self._model if backend is None else torch.compile(self._model, backend=backend)
        # The same numbers in every step, nearly: else there are soon none left to learn, and what is timed are zeros.
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=1e-6)

    def run(self) -> Any:
        """One step; its loss."""
        loss = loss_of(self.call(self._x), self._classes)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return loss.item()

    def results(self) -> list[Any]:
        """The loss and the gradients of one step, as arrays."""
        loss = self.run()
        return [loss, *(each.grad.numpy() for each in self._model.parameters() if each.grad is not None)]
