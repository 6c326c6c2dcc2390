"""The PyTorch path and the torch-dialect text path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import load

torch = pytest.importorskip("torch")


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.dropout = torch.nn.Dropout()
        self.register_buffer("shift", torch.arange(8.0))
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x: Any, y: Any) -> Any:
        h = self.dropout(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return torch.softmax(h + self.shift * torch.tensor([1.0, 2.0] * 4) + y, -1), h


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exported", [False, True])
def test_a_module(exported: bool) -> None:
    example = (torch.randn(2, 3, 8, 8), torch.randn(8))
    net = _Net()
    net.norm.eval()
    source = torch.export.export(net.eval(), example) if exported else net
    net.train()
    net.norm.eval()
    imported = load(source, example=() if exported else example)
    assert net.training
    assert net.dropout.training
    assert not net.norm.training
    text = imported.module.operation.get_asm(enable_debug_info=True)
    assert all(f"torch.aten.{op}" in text for op in ("conv2d", "batch_norm", "relu", "mean.dim", "softmax.int"))
    assert 'loc("conv/conv2d")' in text
    assert [(info.name, info.dims) for info in imported.inputs] == [("x", (2, 3, 8, 8)), ("y", (8,))]
    assert [info.dims for info in imported.outputs] == [(2, 8), (2, 8)]
    values = {constant.name: constant.value for constant in imported.constants}
    state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    assert {"conv.weight", "conv.bias", "norm.weight", "norm.running_var", "shift"} <= values.keys()
    assert all(np.array_equal(values[name], state[name]) for name in values if name in state)
    assert not any(name.startswith("unused") for name in values)
    arguments = imported.module.body.operations[0].operation.regions[0].blocks[0].arguments
    assert len(list(arguments)) == len(imported.inputs) + len(imported.constants)


@pytest.mark.filterwarnings("ignore")
def test_bfloat16_weights_and_whole_attention() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
            self.norm = torch.nn.RMSNorm(4, dtype=torch.bfloat16)

        def forward(self, q: Any) -> Any:
            return self.norm(torch.nn.functional.scaled_dot_product_attention(q, q, self.linear(q), is_causal=True))

    imported = load(Net(), example=(torch.randn(1, 2, 3, 4, dtype=torch.bfloat16),))
    assert {str(constant.value.dtype) for constant in imported.constants} == {"bfloat16"}
    assert "torch.aten.scaled_dot_product_attention" in str(imported.module)


@pytest.mark.filterwarnings("ignore")
def test_modules_that_cannot_be_loaded() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelError, match="give example="):
        load(_Net())
    with pytest.raises(ModelError, match=r"torch\.export failed") as caught:
        load(Branches(), example=(torch.randn(3),))
    assert caught.value.rule == "torch-export"
    with pytest.raises(ModelError, match="from list"):
        load([1, 2])


_TEXT = """
func.func @relu_of_sum(%arg0: !torch.vtensor<[2,3],f32> loc("left"), %arg1: !torch.vtensor<[2,3],f32>)
    -> !torch.vtensor<[2,3],f32> {
  %int1 = torch.constant.int 1
  %w = torch.vtensor.literal(dense<[1.0, 2.0, 3.0]> : tensor<3xf32>) : !torch.vtensor<[3],f32> loc("w")
  %0 = torch.aten.add.Tensor %arg0, %arg1, %int1 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.int
      -> !torch.vtensor<[2,3],f32>
  %1 = torch.aten.mul.Tensor %0, %w : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3],f32> -> !torch.vtensor<[2,3],f32>
  return %1 : !torch.vtensor<[2,3],f32>
}
"""


def _load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "m.mlir"
    path.write_text(text)
    return load(path)


def test_text(tmp_path: Path) -> None:
    imported = _load(tmp_path, _TEXT)
    assert imported.name == "relu_of_sum"
    assert "@main" in str(imported.module)
    assert [info.dims for info in imported.inputs] == [(2, 3), (2, 3)]
    assert [(constant.name, constant.value.tolist()) for constant in imported.constants] == [("w", [1, 2, 3])]
    assert [info.dims for info in imported.outputs] == [(2, 3)]


def test_text_in_the_onnx_form_is_converted(tmp_path: Path) -> None:
    text = """
    func.func @f(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> attributes {
        torch.onnx_meta.opset_version = 17 : si64} {
      %0 = torch.operator "onnx.Relu"(%x) : (!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>
      return %0 : !torch.vtensor<[2],f32>
    }
    """
    assert "torch.aten.relu" in str(_load(tmp_path, text).module)
    with pytest.raises(ModelError, match="Frobnicate") as caught:
        _load(tmp_path, text.replace("onnx.Relu", "onnx.Frobnicate"))
    assert caught.value.rule == "unsupported-operator"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("func.func @f(", "no valid MLIR"),
        ("", "0 functions"),
        (_TEXT + _TEXT.replace("relu_of_sum", "other"), "2 functions"),
        (_TEXT.replace("[2,3]", "[?,3]"), "only a run knows"),
        (_TEXT.replace("torch.aten.add.Tensor", "torch.aten.frobnicate"), "no valid MLIR"),
        ("func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }", "no tensor with value"),
        ("func.func @f() { %c = arith.constant 1 : i32\n return }", "arith.constant is not of the torch dialect"),
        ("func.func private @f()", "must be one func.func with a body"),
    ],
)
def test_text_that_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        _load(tmp_path, text)
