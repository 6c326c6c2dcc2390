"""``torch.compile`` with hipDNN's engines: a small network is trained, and compared with PyTorch's own training.

Run it:  python examples/torch_compile.py
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fusilli_plugin import torch_report

STEPS = 10


class Net(nn.Module):
    """Two convolutions with a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return self.head((y + self.second(y)).mean((2, 3)))


def train(model: nn.Module, call: Callable[..., Any], x: torch.Tensor, classes: torch.Tensor) -> list[float]:
    optimiser, losses = torch.optim.SGD(model.parameters(), lr=0.1), list[float]()
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(call(x), classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    torch.manual_seed(0)
    model, x, classes = Net(), torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="fusilli")
    losses = train(model, compiled, x, classes)
    train(plain, plain, x, classes)
    print(torch_report(compiled))
    state, expected = model.state_dict(), plain.state_dict()
    wrong = sum(not torch.allclose(state[name], expected[name], rtol=1e-3, atol=1e-5) for name in state)
    print(f"training: loss {losses[0]:.3f} to {losses[-1]:.3f}, {wrong} parameters wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
