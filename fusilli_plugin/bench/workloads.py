"""What is timed: ONNX models of one operation and what follows it, and the same in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

__all__ = ["SUITES", "Workload", "feeds_of", "find", "workloads"]

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]
Torch = Callable[[Any, Mapping[str, Any]], Any]
"""Takes the torch module and tensors by name (weights too)."""


@dataclass(frozen=True)
class Workload:
    """One row of a suite.

    Attributes:
        name: unique in its suite.
        nodes: ONNX nodes: operator, inputs, output, attributes.
        inputs: dims by name; of these one batch is given to every run.
        weights: dims by name; constants of the model.
        torch: the same in PyTorch.
        dtype: numpy's name of the type of inputs and weights.
        out: likewise of the result "y".
        opset: version of the operators.
    """

    name: str
    nodes: Sequence[tuple[str, Sequence[str], str, Mapping[str, Any]]]
    inputs: Mapping[str, Dims]
    weights: Mapping[str, Dims]
    torch: Torch
    dtype: str = "float32"
    out: str = "float32"
    opset: int = 20

    def arrays(self) -> dict[str, Array]:
        """Weights and inputs by name, the same in every process."""
        rng = np.random.default_rng(17)
        return {name: self._array(rng, name, dims) for name, dims in {**self.weights, **self.inputs}.items()}

    def _array(self, rng: np.random.Generator, name: str, dims: Dims) -> Array:
        if self.dtype in ("int8", "uint8"):
            limits = np.iinfo(self.dtype)
            return rng.integers(limits.min, limits.max, dims, np.dtype(self.dtype).type, endpoint=True)
        scale = 1.0 if name in self.inputs else 1.0 / np.sqrt(max(int(np.prod(dims[1:])), 1))
        return (np.abs if name.startswith("var") else np.asarray)(
            (rng.standard_normal(dims) * scale).astype(self.dtype)
        )

    def model(self) -> Any:
        """The ``ModelProto``.

        Raises:
            ImportError: onnx is not installed.
        """
        from onnx import helper, numpy_helper

        element = helper.np_dtype_to_tensor_dtype
        arrays = self.arrays()
        graph = helper.make_graph(
            [helper.make_node(op, list(ins), [out], **dict(attributes)) for op, ins, out, attributes in self.nodes],
            self.name,
            [helper.make_tensor_value_info(n, element(np.dtype(self.dtype)), dims) for n, dims in self.inputs.items()],
            [helper.make_tensor_value_info("y", element(np.dtype(self.out)), None)],
            [numpy_helper.from_array(arrays[name], name) for name in self.weights],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)


def feeds_of(workload: Workload) -> dict[str, Array]:
    """Its inputs by name."""
    arrays = workload.arrays()
    return {name: arrays[name] for name in workload.inputs}


def _conv(
    x: Dims, filters: int, window: int, *, stride: int = 1, groups: int = 1, dilation: int = 1, dtype: str = "float32"
) -> Workload:
    rank = len(x) - 2
    pad = dilation * (window // 2)
    attributes = {"strides": [stride] * rank, "pads": [pad] * 2 * rank, "group": groups, "dilations": [dilation] * rank}

    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        run = getattr(torch.nn.functional, f"conv{rank}d")
        return run(t["x"], t["w"], t["b"], stride=stride, padding=pad, groups=groups, dilation=dilation).relu()

    size = "x".join(map(str, x))
    extra = (
        f"/{stride}" * (stride > 1) + f" in {groups} groups" * (groups > 1) + f" dilated {dilation}" * (dilation > 1)
    )
    return Workload(
        f"conv {size}, {filters} of {'x'.join([str(window)] * rank)}{extra}{_of(dtype)}",
        [("Conv", ["x", "w", "b"], "c", attributes), ("Relu", ["c"], "y", {})],
        {"x": x},
        {"w": (filters, x[1] // groups, *[window] * rank), "b": (filters,)},
        in_torch,
        dtype,
        dtype,
    )


def _of(dtype: str) -> str:
    return {"float32": "", "float16": " f16"}.get(dtype, f" {dtype}")


def _product(
    rows: int, depth: int, columns: int, *, batch: int = 1, gelu: bool = False, dtype: str = "float32"
) -> Workload:
    nodes: list[tuple[str, Sequence[str], str, Mapping[str, Any]]] = [
        ("MatMul", ["x", "w"], "c", {}), ("Add", ["c", "b"], "d" if gelu else "y", {}),
    ]  # fmt: skip
    if gelu:
        nodes.append(("Gelu", ["d"], "y", {}))
    w = (depth, columns) if batch == 1 else (batch, depth, columns)

    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        found = t["x"] @ t["w"] + t["b"]
        return torch.nn.functional.gelu(found) if gelu else found

    return Workload(
        f"product {f'{batch} of ' * (batch > 1)}{rows}x{depth}x{columns}{' gelu' * gelu}{_of(dtype)}",
        nodes, {"x": (batch, rows, depth)}, {"w": w, "b": (columns,)}, in_torch, dtype, dtype,
    )  # fmt: skip


def _attention(batch: int, heads: int, length: int, width: int) -> Workload:
    dims = (batch, heads, length, width)
    nodes = [
        ("Transpose", ["k"], "kt", {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["q", "kt"], "s", {}),
        ("Mul", ["s", "scale"], "t", {}),
        ("Softmax", ["t"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], "y", {}),
    ]

    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        return ((t["q"] @ t["k"].transpose(-1, -2)) * t["scale"]).softmax(-1) @ t["v"]

    return Workload(
        f"attention {batch}x{heads}x{length}x{width}", nodes, dict.fromkeys("qkv", dims), {"scale": ()}, in_torch
    )


def _one(
    name: str, op: str, x: Dims, torch: Torch, *, weights: Mapping[str, Dims] | None = None, **attributes: Any
) -> Workload:
    weights = weights or {}
    return Workload(name, [(op, ["x", *weights], "y", attributes)], {"x": x}, weights, torch)


def _norm(rows: int, width: int) -> Workload:
    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch.nn.functional.layer_norm(t["x"], (width,), t["scale"], t["b"])

    weights = {"scale": (width,), "b": (width,)}
    x = (1, rows, width)
    return _one(f"layer norm {rows}x{width}", "LayerNormalization", x, in_torch, weights=weights, axis=-1)


def _batchnorm(x: Dims) -> Workload:
    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch.nn.functional.batch_norm(t["x"], t["mean"], t["var"], t["scale"], t["b"])

    weights = {name: (x[1],) for name in ("scale", "b", "mean", "var")}
    return _one(f"batch norm {'x'.join(map(str, x))}", "BatchNormalization", x, in_torch, weights=weights)


def _pool(kind: str, x: Dims, window: int, stride: int) -> Workload:
    pad = window // 2

    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        return getattr(torch.nn.functional, f"{kind}_pool2d")(t["x"], window, stride, pad)

    op = {"max": "MaxPool", "avg": "AveragePool"}[kind]
    attributes: dict[str, Any] = {"count_include_pad": 1} if kind == "avg" else {}
    name = f"{kind} pool {'x'.join(map(str, x))}, {window}x{window}/{stride}"
    shape = {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return _one(name, op, x, in_torch, **shape, **attributes)


def _int8_product(rows: int, depth: int, columns: int) -> Workload:
    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch._int_mm(t["x"], t["w"])

    return Workload(
        f"int8 product {rows}x{depth}x{columns}", [("MatMulInteger", ["x", "w"], "y", {})],
        {"x": (rows, depth)}, {"w": (depth, columns)}, in_torch, "int8", "int32",
    )  # fmt: skip


def _int8_conv(x: Dims, filters: int) -> Workload:
    def in_torch(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch.nn.functional.conv2d(t["x"].double(), t["w"].double(), padding=1).to(torch.int32)

    return Workload(
        f"int8 conv {'x'.join(map(str, x))}, {filters} of 3x3",
        [("ConvInteger", ["x", "w"], "y", {"pads": [1] * 4})],
        {"x": x}, {"w": (filters, x[1], 3, 3)}, in_torch, "uint8", "int32",
    )  # fmt: skip


def _cpu() -> Iterator[Workload]:
    yield _conv((1, 3, 224, 224), 64, 7, stride=2)
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield _conv((1, channels, size, size), channels, 3)
        yield _conv((1, channels, size, size), 4 * channels, 1)
        yield _conv((1, 4 * channels, size, size), channels, 1)
        yield _conv((1, channels, 2 * size, 2 * size), channels, 3, stride=2)
    yield _conv((8, 64, 28, 28), 64, 3)
    yield _conv((1, 256, 56, 56), 512, 1, stride=2)
    for channels, size, stride in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (192, 28, 2), (384, 14, 1), (960, 7, 1)):
        yield _conv((1, channels, size, size), channels, 3, stride=stride, groups=channels)
    yield _conv((1, 128, 28, 28), 128, 3, groups=32)
    yield _conv((1, 64, 28, 28), 64, 3, groups=2)
    yield _conv((1, 16, 64, 64), 16, 3)
    yield _conv((1, 32, 64, 64), 3, 3)
    yield _conv((1, 64, 40, 40), 64, 3, dilation=2)
    yield _conv((1, 80, 1000), 256, 5)
    yield _conv((1, 16, 16, 32, 32), 16, 3)
    for rows, depth, columns in ((1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (64, 512, 1408), (128, 768, 768),
                                 (128, 3072, 768), (197, 768, 768), (512, 512, 512), (128, 768, 1000)):  # fmt: skip
        yield _product(rows, depth, columns)
    yield _product(128, 768, 3072, gelu=True)
    yield _product(64, 512, 1408, gelu=True)
    yield _product(128, 64, 128, batch=12)
    yield _product(128, 128, 64, batch=12)
    for dims in ((1, 12, 128, 64), (1, 12, 384, 64), (1, 8, 64, 64), (4, 4, 197, 64)):
        yield _attention(*dims)
    for rows, width in ((128, 768), (512, 1024), (197, 768), (64, 4096)):
        yield _norm(rows, width)
    yield _batchnorm((1, 64, 56, 56))
    yield _batchnorm((8, 256, 14, 14))
    yield _pool("max", (1, 64, 112, 112), 3, 2)
    yield _pool("max", (8, 64, 28, 28), 3, 1)
    yield _pool("avg", (1, 64, 56, 56), 3, 2)
    yield _one("average of 2048x7x7", "GlobalAveragePool", (1, 2048, 7, 7), lambda torch, t: t["x"].mean((2, 3), True))
    for rows, width in ((1536, 128), (128, 1000), (1, 18385)):
        yield _one(f"softmax {rows}x{width}", "Softmax", (rows, width), lambda torch, t: t["x"].softmax(-1), axis=-1)
    yield _one("gelu 128x3072", "Gelu", (128, 3072), lambda torch, t: torch.nn.functional.gelu(t["x"]))
    yield _one("sigmoid 64x56x56", "Sigmoid", (1, 64, 56, 56), lambda torch, t: t["x"].sigmoid())
    for rows, depth, columns in ((64, 512, 512), (128, 768, 768)):
        yield _int8_product(rows, depth, columns)
    yield _int8_conv((1, 64, 28, 28), 64)
    yield _product(128, 768, 768, dtype="float16")
    yield _product(16, 1024, 1024, dtype="float16")
    yield _conv((1, 64, 28, 28), 64, 3, dtype="float16")


def _latency() -> Iterator[Workload]:
    for count in (16, 1 << 12, 1 << 16):
        yield Workload(
            f"add {count}", [("Add", ["x", "b"], "y", {})], {"x": (count,)}, {"b": (count,)},
            lambda torch, t: t["x"] + t["b"],
        )  # fmt: skip
    yield _product(1, 64, 64)
    yield _product(8, 128, 128)
    yield _conv((1, 8, 16, 16), 8, 3)
    yield _norm(8, 256)
    yield _attention(1, 2, 16, 32)


SUITES: Final[Mapping[str, Callable[[], Iterator[Workload]]]] = {"cpu": _cpu, "latency": _latency}
"""Suite → its workloads, on CPUs."""


def workloads(suite: str) -> list[Workload]:
    """Those of a suite, in its order."""
    return list(SUITES[suite]())


def find(suite: str, name: str) -> Workload:
    """The workload of a name.

    Raises:
        LookupError: there is none.
    """
    for each in workloads(suite):
        if each.name == name:
            return each
    raise LookupError(f"suite {suite} has no row '{name}'")
