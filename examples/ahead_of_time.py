"""A graph compiled for an AMD GPU and for the CPU without a device, saved in one file, loaded from it and run.

Run it:  python examples/ahead_of_time.py
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Artifact, Device, Executable, Target, compile_graph

ROWS, DEPTH, COLUMNS = 64, 96, 128


def make_graph() -> Graph:
    g = Graph("linear_relu", io_data_type=DataType.FLOAT)
    x, w, b = g.tensor("x", dim=(ROWS, DEPTH)), g.tensor("w", dim=(DEPTH, COLUMNS)), g.tensor("b", dim=(1, COLUMNS))
    y = g.pointwise(PointwiseMode.ADD, g.matmul(x, w), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_name("y").set_output(True)
    return g.validate()


def save(path: Path) -> None:
    """What a build machine does: it needs the compiler, and no GPU."""
    artifact = compile_graph(make_graph(), [Target.parse("gfx942"), Target.parse("cpu")])
    artifact.save(path)
    for name, code in artifact.codes.items():
        print(f"  for {name}: {code.dispatches} kernel(s), {len(code.vmfb)} bytes")


def load(path: Path, device: Device) -> Executable:
    """What the machine that runs it does: it needs no compiler. The file is native code, so trust who made it."""
    artifact = Artifact.load(path)  # checks that nothing in it is damaged
    return Executable(artifact.graph.arguments(), artifact.code_for(device.target).vmfb, device)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear_relu.fusilli"
        save(path)
        executable = load(path, Device.parse("cpu"))  # "hip" on a machine with an AMD GPU

    rng = np.random.default_rng(0)
    shapes = {"x": (ROWS, DEPTH), "w": (DEPTH, COLUMNS), "b": (1, COLUMNS)}
    pack = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    pack["y"] = np.empty((ROWS, COLUMNS), np.float32)
    executable.run(pack)

    x, w, b = (pack[name].astype(np.float64) for name in ("x", "w", "b"))
    tolerance = (DEPTH + 1) * 2.0**-24 * (abs(x) @ abs(w) + abs(b))  # of a sum of that many terms in float32
    wrong = np.count_nonzero(~(abs(pack["y"] - np.maximum(x @ w + b, 0)) <= tolerance))
    print(f"linear+ReLU from the file on cpu: {wrong} of {pack['y'].size} elements wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
