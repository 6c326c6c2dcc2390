"""Convolution, bias and ReLU as one graph: built, compiled, run on the CPU, compared with NumPy in float64.

Run it:  python examples/conv_bias_relu.py
"""

import sys

import numpy as np

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Target, build, support

DEVICE = "cpu"  # "hip" on a machine with an AMD GPU


def make_graph() -> Graph:
    g = Graph("conv_bias_relu", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 32, 28, 28), layout="NHWC")
    w = g.tensor("w", dim=(64, 32, 3, 3), layout="NHWC")
    b = g.tensor("b", dim=(1, 64, 1, 1))
    y = g.conv_fprop(x, w, padding=(1, 1))
    y = g.pointwise(PointwiseMode.ADD, y, b)
    g.pointwise(PointwiseMode.RELU_FWD, y, name="relu").set_name("y").set_output(True)
    return g.validate()  # infers dims and data types, then freezes the graph


def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.zeros((*x.shape[:2], x.shape[2] + 2, x.shape[3] + 2))
    padded[:, :, 1:-1, 1:-1] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,kcij->nkhw", windows, w, optimize=True)


def main() -> int:
    graph = make_graph()
    for name in ("cpu", "gfx942"):
        answer = support(graph, Target.parse(name))  # compiles nothing; a no names the node, the rule and the reason
        print(f"{name}: {'served' if answer else answer.reason}")

    rng = np.random.default_rng(0)
    pack = {tensor.name: tensor.empty() for tensor in graph.tensors if not tensor.is_virtual}
    for name in ("x", "w", "b"):
        pack[name][...] = rng.standard_normal(pack[name].shape)
    build(graph, device=DEVICE).run(pack)  # writes pack["y"]; the compiled code is kept in a cache

    x, w, b = (pack[name].astype(np.float64) for name in ("x", "w", "b"))
    expected = np.maximum(convolve(x, w) + b, 0)
    # What may be off: the sum of 32 * 3 * 3 products and a bias in float32, and one rounding of the result to float16.
    tolerance = 289 * 2.0**-24 * (convolve(abs(x), abs(w)) + abs(b)) + 2.0**-11 * expected
    error = abs(pack["y"] - expected)
    wrong = np.count_nonzero(~(error <= tolerance))
    print(f"conv+bias+ReLU on {DEVICE}: {wrong} of {error.size} elements wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
