"""The fastest right form of a graph on this machine: measured once, then taken by every build.

Run it:  python examples/tuning.py
"""

import sys
import tempfile

import numpy as np

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Options, build
from iree_bridge.tuning import tune

DEVICE = "cpu"  # "hip" on a machine with an AMD GPU


def make_graph() -> Graph:
    g = Graph("linear+ReLU", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x, w = g.tensor("x", dim=(1, 64, 256)), g.tensor("w", dim=(1, 256, 128))
    g.pointwise(PointwiseMode.RELU_FWD, g.matmul(x, w)).set_name("y").set_output(True)
    return g.validate()


def main() -> int:
    graph = make_graph()
    with tempfile.TemporaryDirectory() as folder:  # usually the user's cache, where results stay
        options = Options.from_env(cache_dir=folder)
        record = tune(graph, DEVICE, options, budget=60)
        for figure in record.figures:
            time = f"{1e6 * figure.seconds:8.1f} us" if figure.seconds else figure.text
            print(f"{figure.form:20} {figure.verdict:10} {time}")
        executable = build(graph, DEVICE, options=options)

        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 64, 256), (1, 256, 128)))
        y = np.empty((1, 64, 128), np.float32)
        executable.run({"x": x, "w": w, "y": y})
    expected = np.maximum(x.astype(np.float64) @ w, 0)
    wrong = int(np.sum(~(abs(y - expected) <= 1e-4 * (1 + abs(expected)))))
    print(f"'{record.winner}' on {DEVICE}: {wrong} of {y.size} elements wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
