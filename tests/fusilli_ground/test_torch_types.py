"""Tensor types of the torch dialect, read."""

from __future__ import annotations

import pytest

from fusilli_ground.torch_types import ValueTensor, value_tensor_type


@pytest.mark.parametrize(
    ("text", "dims", "element"),
    [
        ("!torch.vtensor<[2,3],f32>", (2, 3), "f32"),
        ("!torch.vtensor<[],si64>", (), "si64"),
        ("!torch.vtensor<[?,0],f8E4M3FN>", (None, 0), "f8E4M3FN"),
        ("!torch.vtensor<[ 1, 2 ],i1>", (1, 2), "i1"),
    ],
)
def test_types(text: str, dims: tuple[int | None, ...], element: str) -> None:
    assert value_tensor_type(text) == ValueTensor(dims, element)


@pytest.mark.parametrize(
    "text",
    [
        "", "!torch.vtensor", "!torch.vtensor<*,f32>", "!torch.vtensor<[2,3],unk>x", "!torch.tensor<[2],f32>",
        "!torch.vtensor<[-1],f32>", "!torch.vtensor<[2,],f32>", "!torch.vtensor<[2],!torch.qint8>", "tensor<2xf32>",
        "!torch.vtensor<[2 3],f32>",
    ],
)  # fmt: skip
def test_other_types(text: str) -> None:
    assert value_tensor_type(text) is None


def test_what_is_asked_of_a_type() -> None:
    of = {name: ValueTensor((4,), name) for name in ("f32", "bf16", "f8E5M2", "ui8", "si32", "i1")}
    assert [name for name, kind in of.items() if kind.is_float] == ["f32", "bf16", "f8E5M2"]
    assert [name for name, kind in of.items() if kind.is_unsigned] == ["ui8"]
    assert [of[name].bits for name in ("f32", "bf16", "ui8", "si32", "i1")] == [32, 16, 8, 32, 1]
    assert ValueTensor((2, None), "f32").of("ui8") == "!torch.vtensor<[2,?],ui8>"
    assert not ValueTensor((2, None), "f32").is_static
