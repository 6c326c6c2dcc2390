"""``fusilli bench --suite models``: what its networks compute, and where trained ones are looked for."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from fusilli_plugin.bench import models
from fusilli_plugin.bench.models import MADE, TRAINED, Trained, names, subjects
from fusilli_plugin.bench.networks.quantised import quantised
from fusilli_plugin.bench.networks.recurrent import recurrent
from fusilli_plugin.cli.main import cli


def answers(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"input": x})[0]


def weight(model: onnx.ModelProto, name: str) -> np.ndarray[Any, Any]:
    return next(onnx.numpy_helper.to_array(each) for each in model.graph.initializer if each.name == name)


@pytest.mark.ort
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_network_is_what_pytorch_computes(kind: str) -> None:
    torch = pytest.importorskip("torch")
    model = recurrent(kind, steps=5, features=6, hidden=4, layers=2, classes=3)
    layer = getattr(torch.nn, kind)(6, 4, 2)
    # ONNX orders gates i o f c and z r h, PyTorch i f g o and r z n
    order = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2]}[kind]

    def gates(array: np.ndarray[Any, Any]) -> Any:
        return torch.from_numpy(np.concatenate([np.split(array, len(order))[i] for i in order]))

    with torch.no_grad():
        for number in range(2):
            bias = weight(model, f"rnn.bias_l{number}")[0]
            for name, array in {
                "weight_ih": weight(model, f"rnn.weight_ih_l{number}")[0],
                "weight_hh": weight(model, f"rnn.weight_hh_l{number}")[0],
                "bias_ih": bias[: len(bias) // 2],
                "bias_hh": bias[len(bias) // 2 :],
            }.items():
                getattr(layer, f"{name}_l{number}").copy_(gates(array))
        x = np.random.default_rng(0).standard_normal((5, 1, 6), np.float32)
        hidden = layer(torch.from_numpy(x))[0].numpy()
    expected = hidden @ weight(model, "onnx::MatMul_fc") + weight(model, "fc.bias")
    np.testing.assert_allclose(answers(model, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.ort
def test_a_quantised_network_rounds_everything_to_8_bits() -> None:
    model = quantised(size=16, widths=(8, 16), classes=5)
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16), np.float32)
    probabilities = answers(model, x)
    assert probabilities.shape == (1, 5)
    assert np.std(probabilities) > 0.05
    ops = [node.op_type for node in model.graph.node]
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    makers = {output: node.op_type for node in model.graph.node for output in node.output}
    assert len(convolutions) == 6
    assert all(makers[name] == "DequantizeLinear" for node in convolutions for name in node.input)
    assert ops.count("QuantizeLinear") == 1 + 6 + 2
    # rounded: the first layer's result takes at most 256 values
    rounded = next(node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear")
    model.graph.output.append(onnx.helper.make_tensor_value_info(rounded, onnx.TensorProto.INT8, None))
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = session.run([rounded], {"input": x})
    np.testing.assert_array_equal(got, np.clip(np.rint(x / np.float32(4 / 127)), -128, 127))


def test_trained_models_are_read_where_packages_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder and in a wheel, without importing the package."""
    fails = "raise RuntimeError('imported')"
    folder = tmp_path / "site" / "in_folder"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text(fails)
    (folder / "data" / "m.onnx").write_bytes(b"one")
    wheel = tmp_path / "in_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("in_wheel/__init__.py", fails)
        archive.writestr("in_wheel/data/m.onnx", b"two")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.syspath_prepend(wheel)
    found = {name: Trained(f"{name}/data/m.onnx", {"n": 2}) for name in ("in_folder", "in_wheel", "in_nothing")}
    assert [each.read() for each in found.values()] == [b"one", b"two", None]
    assert Trained("in_folder/data/absent.onnx", {}).read() is None
    monkeypatch.setattr(models, "TRAINED", found)
    assert names() == [*MADE, "in_folder", "in_wheel"]
    rows = list(subjects(tmp_path, "in_"))
    assert [(row.name, row.load["dims"], row.sides) for row in rows] == [
        ("in_folder", {"n": 2}, ("ours", "onnxruntime")), ("in_wheel", {"n": 2}, ("ours", "onnxruntime")),
    ]  # fmt: skip
    assert [Path(row.load["path"]).read_bytes() for row in rows] == [b"one", b"two"]


def test_names_are_rows_of_their_own() -> None:
    assert not set(MADE) & set(TRAINED)
    assert len(MADE) == 8


@pytest.mark.slow
@pytest.mark.ort
@pytest.mark.mlir
@pytest.mark.iree_cpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "bound"), [*((name, 2e-3) for name in MADE if "QDQ" not in name), ("QDQ", 0.05)])
def test_a_model_of_the_suite_is_measured_and_right(name: str, bound: float, tmp_path: Path) -> None:
    rows = tmp_path / "rows.md"
    arguments = ["--filter", name, "--rounds", "1", "--json", str(tmp_path / "rows.json"), "--markdown", str(rows)]
    done = CliRunner().invoke(cli, ["bench", "--suite", "models", *arguments])
    assert done.exit_code == 0, done.output
    cells = next(line for line in rows.read_text().splitlines() if line.startswith(f"| {name}")).split("|")
    assert float(cells[4]) > 0
    assert float(cells[5]) > 0
    assert float(cells[10]) < bound
