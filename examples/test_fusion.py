"""A fusion test for pytest: a fused graph, its steps run one by one, and PyTorch agree, under several compiler flags.

Needs PyTorch and pytest (pip install pytest 'fusilli-plugin[torch]').

Run it:  python -m pytest -q examples/test_fusion.py
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Options, build

STEPS = ("conv", "bias", "relu")
FLAGS = {"default": (), "aggressive fusion": ("--iree-dispatch-creation-enable-aggressive-fusion",)}


def run(steps: tuple[str, ...], arrays: dict[str, np.ndarray], options: Options) -> np.ndarray:
    g = Graph("_".join(steps), io_data_type=DataType.FLOAT)
    y = g.tensor("x", dim=arrays["x"].shape)
    if "conv" in steps:
        y = g.conv_fprop(y, g.tensor("w", dim=arrays["w"].shape), padding=(1, 1))
    if "bias" in steps:
        y = g.pointwise(PointwiseMode.ADD, y, g.tensor("b", dim=arrays["b"].shape))
    if "relu" in steps:
        y = g.pointwise(PointwiseMode.RELU_FWD, y)
    y.set_output(True)
    pack = {tensor: arrays[tensor.name] for tensor in g.arguments().inputs} | {y: y.empty()}
    build(g, device="cpu", options=options).run(pack)
    return pack[y]


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_fused_graph_and_steps_and_pytorch_agree(flags: tuple[str, ...]) -> None:
    options = replace(Options.from_env(), extra_flags=flags)  # they come after the target's own, so they win
    rng = np.random.default_rng(0)
    dims = {"x": (2, 8, 16, 16), "w": (16, 8, 3, 3), "b": (1, 16, 1, 1)}
    arrays = {name: rng.standard_normal(each).astype(np.float32) for name, each in dims.items()}
    fused, y = run(STEPS, arrays, options), arrays["x"]
    for step in STEPS:
        y = run((step,), arrays | {"x": y}, options)

    x, w, b = (torch.from_numpy(arrays[name]).double() for name in ("x", "w", "b"))
    expected = torch.nn.functional.conv2d(x, w, padding=1).add(b).relu().numpy()
    magnitude = torch.nn.functional.conv2d(x.abs(), w.abs(), padding=1).add(b.abs()).numpy()
    tolerance = 73 * 2.0**-24 * magnitude  # of each element: the sum of 8 * 3 * 3 products and a bias in float32
    assert np.all(abs(fused - expected) <= tolerance)
    assert np.all(abs(y - expected) <= tolerance)
