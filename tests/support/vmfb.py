"""Small compiled functions for tests of the runtime, made without the emitter: IR in, VMFB bytes out."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from graph_api.dtypes import DataType
from graph_api.graph import Arguments
from graph_api.layout import packed_strides
from graph_api.tensor import TensorAttr

__all__ = [
    "ADD",
    "CHAIN",
    "DTYPES",
    "add_arguments",
    "chain_arguments",
    "compiled",
    "dtype_arguments",
    "dtypes_ir",
    "relu_ir",
    "tensor",
]

_FLAGS: Final = {
    "cpu": (
        "--iree-hal-target-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
        "--iree-input-demote-f64-to-f32=false",
    ),
    "gfx942": ("--iree-hal-target-backends=rocm", "--iree-rocm-target=gfx942"),
    "sm_80": ("--iree-hal-target-backends=cuda", "--iree-cuda-target=sm_80"),
}

ADD: Final = """
module @add {
  func.func @main(%y: !torch.tensor<[16],f32>, %a: !torch.vtensor<[16],f32>, %b: !torch.vtensor<[16],f32>) {
    %one = torch.constant.int 1
    %sum = torch.aten.add.Tensor %a, %b, %one
        : !torch.vtensor<[16],f32>, !torch.vtensor<[16],f32>, !torch.int -> !torch.vtensor<[16],f32>
    torch.overwrite.tensor.contents %sum overwrites %y : !torch.vtensor<[16],f32>, !torch.tensor<[16],f32>
    return
  }
}
"""
"""y = a + b, 16 x f32, one dispatch, no workspace."""

CHAIN: Final = """
module @chain {
  func.func @main(%y: !torch.tensor<[96,96],f32>, %a: !torch.vtensor<[96,96],f32>, %b: !torch.vtensor<[96,96],f32>) {
    %p = torch.aten.mm %a, %b
        : !torch.vtensor<[96,96],f32>, !torch.vtensor<[96,96],f32> -> !torch.vtensor<[96,96],f32>
    %q = torch.aten.mm %p, %b
        : !torch.vtensor<[96,96],f32>, !torch.vtensor<[96,96],f32> -> !torch.vtensor<[96,96],f32>
    %r = torch.aten.mm %q, %p
        : !torch.vtensor<[96,96],f32>, !torch.vtensor<[96,96],f32> -> !torch.vtensor<[96,96],f32>
    torch.overwrite.tensor.contents %r overwrites %y : !torch.vtensor<[96,96],f32>, !torch.tensor<[96,96],f32>
    return
  }
}
"""
"""p = a b, q = p b, y = q p: three dispatches that wait for each other, temporaries in the workspace."""

DTYPES: Final[dict[DataType, str]] = {
    DataType.FLOAT: "f32",
    DataType.HALF: "f16",
    DataType.BFLOAT16: "bf16",
    DataType.DOUBLE: "f64",
    DataType.UINT8: "ui8",
    DataType.INT8: "si8",
    DataType.INT32: "si32",
    DataType.INT64: "si64",
    DataType.BOOLEAN: "i1",
}
"""Data types and what they are called in the torch dialect."""


def dtypes_ir() -> str:
    """y = x + x on one tensor [2, 3] of each data type (bool: y = not x), and on one f32 tensor of rank 0."""
    kinds = [*(f"[2,3],{name}" for name in DTYPES.values()), "[],f32"]
    outputs = [f"%y{i}: !torch.tensor<{kind}>" for i, kind in enumerate(kinds)]
    inputs = [f"%x{i}: !torch.vtensor<{kind}>" for i, kind in enumerate(kinds)]
    body = ["%one = torch.constant.int 1"]
    for i, kind in enumerate(kinds):
        value = f"!torch.vtensor<{kind}>"
        if kind.endswith("i1"):
            body.append(f"%r{i} = torch.aten.logical_not %x{i} : {value} -> {value}")
        else:
            body.append(f"%r{i} = torch.aten.add.Tensor %x{i}, %x{i}, %one : {value}, {value}, !torch.int -> {value}")
        body.append(f"torch.overwrite.tensor.contents %r{i} overwrites %y{i} : {value}, !torch.tensor<{kind}>")
    lines = "\n    ".join([*body, "return"])
    return f"module @dtypes {{\n  func.func @main({', '.join(outputs + inputs)}) {{\n    {lines}\n  }}\n}}\n"


def relu_ir(shape: tuple[int, ...]) -> str:
    """y = relu(x) on f32 tensors of one physical shape."""
    kind = f"[{','.join(map(str, shape))}],f32"
    return f"""
module @relu {{
  func.func @main(%y: !torch.tensor<{kind}>, %x: !torch.vtensor<{kind}>) {{
    %r = torch.aten.relu %x : !torch.vtensor<{kind}> -> !torch.vtensor<{kind}>
    torch.overwrite.tensor.contents %r overwrites %y : !torch.vtensor<{kind}>, !torch.tensor<{kind}>
    return
  }}
}}
"""


def tensor(
    name: str,
    uid: int,
    dims: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    data_type: DataType = DataType.FLOAT,
) -> TensorAttr:
    """A frozen tensor, row-major unless strides are given."""
    made = TensorAttr(name=name, uid=uid, dims=dims, data_type=data_type)
    made.set_stride(list(packed_strides(dims) if strides is None else strides))
    made.freeze()
    return made


def add_arguments() -> Arguments:
    """The tensors of ``ADD``: y; a, b."""
    return Arguments((tensor("y", 2, (16,)),), (tensor("a", 0, (16,)), tensor("b", 1, (16,))))


def chain_arguments() -> Arguments:
    """The tensors of ``CHAIN``: y; a, b."""
    return Arguments((tensor("y", 2, (96, 96)),), (tensor("a", 0, (96, 96)), tensor("b", 1, (96, 96))))


def dtype_arguments() -> Arguments:
    """The tensors of ``dtypes_ir``."""
    kinds: list[tuple[str, tuple[int, ...], DataType]] = [(kind.name, (2, 3), kind) for kind in DTYPES]
    kinds.append(("rank0", (), DataType.FLOAT))
    outputs = [tensor(f"y_{name}", 100 + i, dims, data_type=kind) for i, (name, dims, kind) in enumerate(kinds)]
    inputs = [tensor(f"x_{name}", i, dims, data_type=kind) for i, (name, dims, kind) in enumerate(kinds)]
    return Arguments(tuple(outputs), tuple(inputs))


@functools.cache
def compiled(ir: str, target: str = "cpu") -> Path:
    """A file with the code of ``ir``; made once per test run, whatever the number of test processes."""
    folder = Path(os.environ["FUSILLI_CACHE_DIR"]).parent / "vmfb"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{target}-{hashlib.sha256(ir.encode()).hexdigest()}.vmfb"
    if not path.exists():
        from iree.compiler.tools import compile_str  # slow to import; what only loads code does without

        flags = ["--iree-torch-externalize-transients", *_FLAGS[target]]
        code = compile_str(ir, input_type="torch", extra_args=flags)
        assert code is not None
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    return path
