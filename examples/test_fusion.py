"""A fusion test for pytest: a fused graph, its steps run one by one, and float64 agree, under several compiler flags.

Needs PyTorch and pytest (pip install pytest 'fusilli-plugin[torch]').

Run it:  python -m pytest -q examples/test_fusion.py
"""

import numpy as np
import pytest
import torch

from fusilli_plugin.testing import assert_fusion_right, place
from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Options

FLAGS = {"default": (), "aggressive fusion": ("--iree-dispatch-creation-enable-aggressive-fusion",)}
DIMS = {"x": (2, 8, 16, 16), "w": (16, 8, 3, 3), "b": (1, 16, 1, 1)}


@pytest.fixture
def graph() -> Graph:
    g = Graph("conv_bias_relu", io_data_type=DataType.FLOAT)
    x, w, b = (g.tensor(name, dim=dims) for name, dims in DIMS.items())
    y = g.conv_fprop(x, w, padding=(1, 1))
    y = g.pointwise(PointwiseMode.ADD, y, b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g.validate()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(dims).astype(np.float32) for name, dims in DIMS.items()}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_fused_graph_and_steps_and_float64_agree(
    flags: tuple[str, ...], graph: Graph, arrays: dict[str, np.ndarray]
) -> None:
    options = Options.from_env(extra_flags=flags)  # they come after the target's own, so they win
    worst = assert_fusion_right(graph, device=place("cpu", options=options), inputs=arrays)
    assert 0 < worst["fused"] <= 1  # of each element's own bound


def test_float64_is_what_pytorch_computes(graph: Graph, arrays: dict[str, np.ndarray]) -> None:
    x, w, b = (torch.from_numpy(array).double() for array in arrays.values())
    expected = torch.nn.functional.conv2d(x, w, padding=1).add(b).relu().numpy()
    (found,) = graph.reference(arrays).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
