"""This project's execution provider in an InferenceSession of ONNX Runtime, beside ONNX Runtime's own CPU provider.

Needs ONNX, Torch-MLIR and ONNX Runtime (pip install 'fusilli-plugin[onnx,ort]').

Run it:  python examples/onnxruntime_session.py
"""

import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import fusilli_plugin


def make_model() -> bytes:
    """LayerNormalization, a linear layer and GELU; Unique, whose result has a size that only a run knows."""
    rng = np.random.default_rng(0)
    weights = {"scale": rng.random(64), "shift": rng.random(64), "w": rng.standard_normal((64, 128)) / 8}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["norm"], name="norm"),
        helper.make_node("MatMul", ["norm", "w"], ["linear"], name="linear"),
        helper.make_node("Gelu", ["linear"], ["y"], name="gelu"),
        helper.make_node("Unique", ["x"], ["values"], name="unique"),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 128]),
            helper.make_tensor_value_info("values", TensorProto.FLOAT, ["n"]),
        ],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


def main() -> int:
    model = make_model()
    fusilli_plugin.register_ep(cpu=True)  # without cpu=True: AMD GPUs only
    options = ort.SessionOptions()
    options.add_provider_for_devices(fusilli_plugin.ep_devices(), {"strict": "1"})  # strict: no quiet other way
    session = ort.InferenceSession(model, options)
    print(fusilli_plugin.ep_report(session))  # which node runs where, and why

    feeds = {"x": np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32)}
    cpu = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    errors = {}
    for name in ("y", "values"):
        got, expected = (np.asarray(each.run([name], feeds)[0]) for each in (session, cpu))
        errors[name] = float(abs(got - expected).max() / abs(expected).max())
        print(f"'{name}': error {errors[name]:.1e} against ONNX Runtime's CPU provider, 1e-05 allowed")
    return 0 if all(error <= 1e-5 for error in errors.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
