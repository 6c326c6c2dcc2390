"""Positions that a run computes: right where PyTorch has an answer, and never outside a tensor where it has none."""

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

ROWS, COLUMNS = 5, 4


def _put(x: Any, i: Any) -> Any:
    return torch.ops.aten.index_put(x, [i], torch.full((3, COLUMNS), 7.0))


def _put_columns(x: Any, i: Any) -> Any:
    return torch.ops.aten.index_put(x, [None, i], torch.full((ROWS, 3), 7.0))


CASES: dict[str, tuple[Callable[[Any, Any], Any], int, bool]] = {
    "gather": (lambda x, i: torch.gather(x, 0, i.reshape(3, 1).expand(3, COLUMNS)), ROWS, False),
    "index_select": (lambda x, i: torch.index_select(x, 1, i), COLUMNS, False),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), ROWS, False),
    "index": (lambda x, i: x[i], ROWS, True),
    "index_columns": (lambda x, i: x[:, i], COLUMNS, True),
    "index_two": (lambda x, i: x[i, torch.arange(3)], ROWS, True),
    "index_put": (_put, ROWS, True),
    "index_put_columns": (_put_columns, COLUMNS, True),
    "scatter": (lambda x, i: torch.scatter(x, 0, i.reshape(3, 1).expand(3, COLUMNS), 9.0), ROWS, False),
}
X = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
FAR = np.array([2**40, -(2**40), 1], np.int64)


@pytest.mark.a_few("index_select", "index_columns")
@pytest.mark.parametrize("name", CASES)
def test_positions_stay_inside(name: str) -> None:
    take, size, counts_from_end = CASES[name]

    class Taking(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            return take(x, i)

    def expected(positions: np.ndarray) -> np.ndarray:
        return take(torch.from_numpy(X), torch.from_numpy(positions)).numpy()

    valid = np.array([size - 1, -size + 2 if counts_from_end else 0, 2], np.int64)
    with load(Taking(), device="cpu", example=(torch.from_numpy(X), torch.from_numpy(valid))) as model:
        x, i = (tensor.name for tensor in model.inputs)
        (y,) = model.run({x: X, i: valid}).values()
        np.testing.assert_array_equal(y, expected(valid))
        (y,) = model.run({x: X, i: FAR}).values()
        np.testing.assert_array_equal(y, expected(np.clip(FAR, 0, size - 1)))


@pytest.mark.thorough
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_samples_of_an_image_stay_inside(padding: str) -> None:
    """Positions outside the image are allowed here, and PyTorch says what is there."""

    class Sampling(torch.nn.Module):
        def forward(self, x: Any, grid: Any) -> Any:
            return torch.nn.functional.grid_sample(x, grid, padding_mode=padding, align_corners=False)

    image = torch.from_numpy(X.reshape(1, 1, ROWS, COLUMNS))
    chance = torch.Generator().manual_seed(0)
    near = torch.rand(1, 2, 3, 2, generator=chance) * 2 - 1
    with load(Sampling(), device="cpu", example=(image, near)) as model:
        x, grid = (tensor.name for tensor in model.inputs)
        for scale in (1.0, 5.0, 1e6):
            (y,) = model.run({x: image.numpy(), grid: (near * scale).numpy()}).values()
            np.testing.assert_allclose(y, Sampling()(image, near * scale).numpy(), rtol=1e-5, atol=1e-5)
