"""Training, each step one graph from the forward pass to the update, compared with PyTorch, which is needed here.

Run it:  python examples/training.py
"""

import sys

import numpy as np
import torch
from torch import nn

from graph_api import DataType, Graph, PointwiseMode, ReductionMode
from iree_bridge import build

DEVICE, STEPS, RATE = "cpu", 20, 2.0**-8  # "hip" on a machine with an AMD GPU
DIMS = {"w": (4, 3, 3, 3), "scale": (1, 4, 1, 1), "bias": (1, 4, 1, 1), "v": (5, 4, 8, 8)}


def make_graph() -> Graph:
    g, mode = Graph("step", io_data_type=DataType.FLOAT), PointwiseMode
    x, target = g.tensor("x", dim=(8, 3, 8, 8)), g.tensor("target", dim=(8, 5, 1, 1))
    w, scale, bias, v = (g.tensor(name, dim=dims) for name, dims in DIMS.items())
    a = g.conv_fprop(x, w, padding=1)
    b, mean, inverse, _, _ = g.batchnorm(a, scale, bias, epsilon=1e-5)
    c = g.pointwise(mode.RELU_FWD, b)
    off = g.pointwise(mode.SUB, g.conv_fprop(c, v), target)
    g.reduction(off, mode=ReductionMode.NORM2).set_dim((1, 1, 1, 1)).set_output().set_name("distance")
    db = g.pointwise(mode.RELU_BWD, g.conv_dgrad(off, v).set_dim((8, 4, 8, 8)), b)
    da, dscale, dbias = g.batchnorm_backward(db, a, scale, mean=mean, inv_variance=inverse)
    gradients = (g.conv_wgrad(da, x, padding=1), dscale, dbias, g.conv_wgrad(off, c))
    for (name, dims), p, dp in zip(DIMS.items(), (w, scale, bias, v), gradients, strict=True):
        g.pointwise(mode.SUB, p, g.pointwise(mode.MUL, dp.set_dim(dims), RATE)).set_output().set_name(f"next_{name}")
    return g.validate()


def main() -> int:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 8, bias=False)
    net = nn.Sequential(*layers)
    x, target, distances = torch.randn(8, 3, 8, 8), torch.randn(8, 5, 1, 1), []
    pack = {name: p.detach().numpy().reshape(DIMS[name]) for name, p in zip(DIMS, net.parameters(), strict=True)}
    pack |= {f"next_{name}": np.empty(dims, np.float32) for name, dims in DIMS.items()}
    pack |= {"x": x.numpy(), "target": target.numpy(), "distance": np.empty((1, 1, 1, 1), np.float32)}
    step, optimiser = build(make_graph(), device=DEVICE), torch.optim.SGD(net.double().parameters(), lr=RATE)
    for _ in range(STEPS):
        step.run(pack)
        pack |= {name: pack[f"next_{name}"].copy() for name in DIMS}
        distances.append(pack["distance"].item())
        net.zero_grad()
        (0.5 * (net(x.double()) - target.double()) ** 2).sum().backward()
        optimiser.step()
    exact = {name: p.detach().numpy().reshape(DIMS[name]) for name, p in zip(DIMS, net.parameters(), strict=True)}
    allowed = 10 * STEPS * 2.0**-24  # of the largest element: ten roundings a step, one after the other
    wrong = sum(int(np.sum(~(abs(pack[name] - e) <= allowed * abs(e).max()))) for name, e in exact.items())
    print(f"training on {DEVICE}: distance {distances[0]:.2f} to {distances[-1]:.2f}, {wrong} parameters wrong")
    return 0 if distances[-1] < distances[0] and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
