"""An ONNX model compiled as a whole: its nodes in fused graphs, one memory plan; compared with ONNX Runtime.

Needs ONNX, Torch-MLIR and ONNX Runtime (pip install 'fusilli-plugin[onnx,ort]').

Run it:  python examples/onnx_model.py
The command line does the same: fusilli run MODEL.onnx --device cpu --check, and names the first graph that differs.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload import load

DEVICE = "cpu"  # "hip" on a machine with an AMD GPU


def make_model() -> onnx.ModelProto:
    """A small classifier of images; the batch size is left open."""
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 3, 3, 3), "b": (16,), "dense": (16, 10)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["classes"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main() -> int:
    proto = make_model()
    feeds = {"image": np.random.default_rng(1).standard_normal((4, 3, 32, 32)).astype(np.float32)}
    with load(proto, device=DEVICE, dims={"batch": 4}) as model:
        print(model)
        got = model.run(feeds)["classes"]

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = np.asarray(session.run(["classes"], feeds)[0])
    error = abs(got - expected).max() / abs(expected).max()  # as --check does: a part of the largest value
    print(f"classifier on {DEVICE}: error {error:.1e} against ONNX Runtime, 1e-04 allowed")
    return 0 if error <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
