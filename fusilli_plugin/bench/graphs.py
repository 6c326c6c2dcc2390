"""Graphs for GPUs: what ``--suite gfx`` reads the code of, and ``--suite gpu`` runs beside PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from graph_api import DataType, Graph, NormFwdPhase, PointwiseMode, ResampleMode, TensorAttr

__all__ = ["GraphRow", "Kind", "find_graph", "gfx_rows", "gpu_rows"]

Dims = tuple[int, ...]
InTorch = Callable[[Any, Sequence[Any]], Any]
"""Takes the torch module and the graph's inputs, in their order; gives its first result."""
_TYPES: Final = {"f16": DataType.HALF, "bf16": DataType.BFLOAT16, "f32": DataType.FLOAT, "int8": DataType.INT8}


class Kind(StrEnum):
    """What a graph mostly is; goals are set for each."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORM = "norm"
    POOLING = "pooling"
    POINTWISE = "pointwise"


@dataclass(frozen=True)
class GraphRow:
    """A row of a suite.

    Attributes:
        name: of the row.
        kind: what it mostly is.
        make: builds the graph, which is validated then.
        torch: the same in PyTorch; None: it has no one operation for it.
        prepare: makes the operands of PyTorch's operation of the graph's inputs, which is not timed.
        channels: the least extent that matrix instructions see: channels of a convolution in a group, or of a product.
        is_gradient: whether several kernels are allowed.
    """

    name: str
    kind: Kind
    make: Callable[[], Graph]
    torch: InTorch | None = None
    prepare: Callable[[Sequence[Any]], Sequence[Any]] = list
    channels: int = 0
    is_gradient: bool = False

    def graph(self) -> Graph:
        """The graph, validated and called as the row."""
        made = self.make()
        made.name = self.name
        return made.validate()


def _graph(dtype: str) -> Graph:
    compute = DataType.INT32 if dtype == "int8" else DataType.FLOAT
    return Graph(io_data_type=_TYPES[dtype], compute_data_type=compute)


def _stored(graph: Graph, name: str, dims: Dims, *, by_columns: bool = False) -> TensorAttr:
    """A matrix, or a batch of them; by columns: the last dim but one is the one without gaps."""
    stride = None
    if by_columns:
        matrix = dims[-1] * dims[-2]
        batch = [matrix * math.prod(dims[i + 1 : -2]) for i in range(len(dims) - 2)]
        stride = (*batch, 1, dims[-2])
    return graph.tensor(name, dim=dims, stride=stride)


def _result(y: TensorAttr, dtype: str) -> None:
    y.set_output(True)
    if dtype == "int8":
        y.set_data_type(DataType.INT32)


def _product(
    rows: int, depth: int, columns: int, *, dtype: str = "f16", a_by_columns: bool = False, b_by_columns: bool = False,
    batch: int = 1, gelu: bool = False, bias: bool = True,
) -> GraphRow:  # fmt: skip
    bias = bias and dtype != "int8"

    def make() -> Graph:
        g = _graph(dtype)
        lead = (batch,) if batch > 1 else ()
        a = _stored(g, "a", (*lead, rows, depth), by_columns=a_by_columns)
        y = g.matmul(a, _stored(g, "b", (*lead, depth, columns), by_columns=b_by_columns))
        if bias:
            y = g.pointwise(PointwiseMode.ADD, y, g.tensor("bias", dim=(*(1 for _ in lead), 1, columns)))
        if gelu:
            y = g.pointwise(PointwiseMode.GELU_FWD, y)
        _result(y, dtype)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        if dtype == "int8":
            return torch._int_mm(*given[:2])
        functional = torch.nn.functional
        if bias and batch == 1:
            y = functional.linear(given[0], given[1].t(), given[2].reshape(-1))
        else:
            y = given[0] @ given[1]
            y = y + given[2] if bias else y
        return functional.gelu(y) if gelu else y

    order = f"{'c' if a_by_columns else 'r'}{'c' if b_by_columns else 'r'}"
    size = f"{f'{batch} of ' * (batch > 1)}{rows}x{depth}x{columns}"
    return GraphRow(
        f"product {dtype} {size} {order}{' gelu' * gelu}",
        Kind.PRODUCT,
        make,
        in_torch,
        channels=min(rows, depth, columns),
    )


def _convolution(
    kind: str, x: Dims, filters: int, window: int, *, layout: str = "nhwc", dtype: str = "f16", stride: int = 1,
    groups: int = 1,
) -> GraphRow:  # fmt: skip
    """Forward with bias and ReLU (not in integers), or a gradient."""
    pad = window // 2
    w = (filters, x[1] // groups, window, window)
    dy = (x[0], filters, *((size + 2 * pad - window) // stride + 1 for size in x[2:]))
    options: dict[str, Any] = {"padding": pad, "stride": stride}

    def make() -> Graph:
        g = _graph(dtype)
        image, weight, gradient = (("x", x), ("w", w), ("dy", dy))
        used = {"fprop": (image, weight), "dgrad": (gradient, weight), "wgrad": (gradient, image)}[kind]
        tensors = [g.tensor(name, dim=dims, layout=layout) for name, dims in used]
        if kind == "fprop":
            y = g.conv_fprop(*tensors, **options)
            if dtype != "int8":
                y = g.pointwise(PointwiseMode.ADD, y, g.tensor("bias", dim=(1, filters, 1, 1)))
                y = g.pointwise(PointwiseMode.RELU_FWD, y)
        else:
            add = g.conv_dgrad if kind == "dgrad" else g.conv_wgrad
            y = add(*tensors, **options).set_dim(x if kind == "dgrad" else w)
        _result(y, dtype)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        if kind == "fprop":
            bias = given[2].reshape(-1)
            return torch.nn.functional.conv2d(
                given[0], given[1], bias, stride=stride, padding=pad, groups=groups
            ).relu_()
        if kind == "dgrad":
            return torch.nn.grad.conv2d_input(x, given[1], given[0], stride=stride, padding=pad, groups=groups)
        return torch.nn.grad.conv2d_weight(given[1], w, given[0], stride=stride, padding=pad, groups=groups)

    extra = f"/{stride}" * (stride > 1) + f" in {groups} groups" * (groups > 1)
    name = f"{kind} {dtype} {layout} {'x'.join(map(str, x))}, {filters} of {window}x{window}{extra}"
    return GraphRow(
        name, Kind.CONVOLUTION, make, None if dtype == "int8" else in_torch, channels=min(x[1], filters) // groups,
        is_gradient=kind != "fprop",
    )  # fmt: skip


def _attention(
    batch: int, heads: int, queries: int, keys: int, width: int, *, dtype: str = "f16", causal: bool = False
) -> GraphRow:
    def make() -> Graph:
        g = _graph(dtype)
        q, k, v = (
            g.tensor(name, dim=(batch, heads, length, width))
            for name, length in zip("qkv", (queries, keys, keys), strict=True)
        )
        g.sdpa(q, k, v, attn_scale=width**-0.5, causal_mask=causal)[0].set_output(True)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal)

    size = f"{batch}x{heads}x{queries}{f'x{keys} keys' * (keys != queries)} of {width}"
    name = f"attention {dtype} {size}{' causal' * causal}"
    return GraphRow(name, Kind.ATTENTION, make, in_torch, channels=min(queries, width))


def _layer_norm(rows: int, width: int, dtype: str = "f16") -> GraphRow:
    def make() -> Graph:
        g = _graph(dtype)
        x = g.tensor("x", dim=(rows, width))
        scale, bias = (g.tensor(name, dim=(1, width)) for name in ("scale", "bias"))
        y, *_ = g.layernorm(x, scale, bias, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)
        _result(y, dtype)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        return torch.nn.functional.layer_norm(given[0], (width,), given[1].reshape(-1), given[2].reshape(-1), 1e-5)

    return GraphRow(f"layer norm {dtype} {rows}x{width}", Kind.NORM, make, in_torch)


def _rms_norm(rows: int, width: int, dtype: str = "f16") -> GraphRow:
    def make() -> Graph:
        g = _graph(dtype)
        x, scale = g.tensor("x", dim=(rows, width)), g.tensor("scale", dim=(1, width))
        _result(g.rmsnorm(x, scale, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)[0], dtype)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        return torch.nn.functional.rms_norm(given[0], (width,), given[1].reshape(-1), 1e-5)

    return GraphRow(f"RMS norm {dtype} {rows}x{width}", Kind.NORM, make, in_torch)


def _batch_norm(x: Dims, layout: str, dtype: str = "f16") -> GraphRow:
    """In inference, with ReLU."""

    def make() -> Graph:
        g = _graph(dtype)
        image = g.tensor("x", dim=x, layout=layout)
        names = ("mean", "inv_variance", "scale", "bias")
        y = g.batchnorm_inference(image, *(g.tensor(n, dim=(1, x[1], 1, 1), data_type=DataType.FLOAT) for n in names))
        _result(g.pointwise(PointwiseMode.RELU_FWD, y), dtype)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        return torch.nn.functional.batch_norm(*given, eps=0.0).relu_()

    def prepare(given: Sequence[Any]) -> Sequence[Any]:
        mean, inverse, scale, bias = (each.reshape(-1) for each in given[1:])
        return given[0], mean, inverse**-2, scale * inverse.sign(), bias  # PyTorch's variance has no sign

    name = f"batch norm {dtype} {layout} {'x'.join(map(str, x))}"
    return GraphRow(name, Kind.NORM, make, in_torch, prepare)


def _pool(x: Dims, layout: str, mode: ResampleMode, dtype: str = "f16") -> GraphRow:
    """3x3, stride 2."""

    def make() -> Graph:
        g = _graph(dtype)
        image = g.tensor("x", dim=x, layout=layout)
        _result(g.resample_fwd(image, mode=mode, window=3, stride=2, padding=1)[0], dtype)
        return g

    kind = "max" if mode is ResampleMode.MAXPOOL else "avg"

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        more = {"count_include_pad": False} if kind == "avg" else {}
        return getattr(torch.nn.functional, f"{kind}_pool2d")(given[0], 3, 2, 1, **more)

    name = f"{kind} pool {dtype} {layout} {'x'.join(map(str, x))}"
    return GraphRow(name, Kind.POOLING, make, in_torch)


def _gelu(rows: int, width: int, dtype: str = "f16") -> GraphRow:
    def make() -> Graph:
        g = _graph(dtype)
        y = g.pointwise(PointwiseMode.ADD, g.tensor("x", dim=(rows, width)), g.tensor("bias", dim=(1, width)))
        _result(g.pointwise(PointwiseMode.GELU_FWD, y), dtype)
        return g

    def in_torch(torch: Any, given: Sequence[Any]) -> Any:
        return torch.nn.functional.gelu(given[0] + given[1])

    return GraphRow(f"bias gelu {dtype} {rows}x{width}", Kind.POINTWISE, make, in_torch)


def _add(count: int, dtype: str = "f16") -> GraphRow:
    def make() -> Graph:
        g = _graph(dtype)
        x, y = (g.tensor(name, dim=(count,)) for name in "xy")
        _result(g.pointwise(PointwiseMode.ADD, x, y), dtype)
        return g

    return GraphRow(f"add {dtype} {count}", Kind.POINTWISE, make, lambda torch, given: given[0] + given[1])


_ORDERS: Final = tuple((a, b) for a in (False, True) for b in (False, True))
_LAYOUTS: Final = ("nchw", "nhwc")


def gfx_rows() -> Iterator[GraphRow]:
    """What networks are made of, at the sizes of real layers: products, convolutions, attention, norms, pooling."""
    for a, b in _ORDERS:
        yield _product(4096, 4096, 4096, a_by_columns=a, b_by_columns=b, bias=False)
        yield _product(1024, 1024, 1024, a_by_columns=a, b_by_columns=b, bias=False)
    yield from (_product(1024, 1024, 1024, dtype=dtype) for dtype in ("bf16", "f32", "int8"))
    yield _product(512, 1024, 4096, gelu=True, b_by_columns=True)
    for rows, depth, columns in ((1, 4096, 4096), (16, 1024, 4096), (64, 4096, 1024), (128, 768, 768)):
        yield _product(rows, depth, columns, b_by_columns=True)
    yield _product(128, 64, 128, batch=96)
    for layout in _LAYOUTS:
        conv = partial(_convolution, layout=layout)
        yield conv("fprop", (32, 256, 56, 56), 256, 3)
        for dtype in ("f16", "bf16", "f32", "int8"):
            yield conv("fprop", (8, 64, 56, 56), 64, 3, dtype=dtype)
        yield conv("fprop", (8, 3, 224, 224), 64, 7, stride=2)
        yield conv("fprop", (8, 256, 56, 56), 64, 1)
        yield conv("fprop", (8, 512, 7, 7), 2048, 1)
        yield conv("fprop", (8, 128, 56, 56), 128, 3, stride=2)
        yield conv("fprop", (8, 128, 28, 28), 128, 3, groups=32)
        yield conv("fprop", (8, 96, 56, 56), 96, 3, groups=96)
        for gradient in ("dgrad", "wgrad"):
            for dtype in ("f16", "bf16"):
                yield conv(gradient, (8, 64, 56, 56), 64, 3, dtype=dtype)
            yield conv(gradient, (8, 128, 56, 56), 128, 3, stride=2)
            yield conv(gradient, (8, 256, 56, 56), 64, 1)
    for width in (64, 128):
        yield _attention(2, 8, 1024, 1024, width)
    yield _attention(2, 8, 1024, 1024, 64, dtype="bf16")
    yield _attention(2, 8, 1024, 1024, 64, causal=True)
    yield _attention(2, 8, 197, 197, 64)
    yield _attention(8, 32, 1, 1024, 128)
    yield _layer_norm(4096, 1024)
    yield _layer_norm(4096, 1024, "f32")
    yield _rms_norm(4096, 4096)
    for layout in _LAYOUTS:
        yield _batch_norm((32, 64, 56, 56), layout)
        yield _pool((8, 64, 112, 112), layout, ResampleMode.MAXPOOL)
        yield _pool((8, 64, 112, 112), layout, ResampleMode.AVGPOOL_EXCLUDE_PADDING)


def gpu_rows() -> Iterator[GraphRow]:
    """What is timed on a GPU, f16; the first row is an empty call as nearly as there is one."""
    yield _add(16)
    for size in (512, 1024, 2048):
        yield _product(size, size, size, b_by_columns=True)
    yield _product(1024, 1024, 1024)
    yield _product(512, 1024, 4096, gelu=True, b_by_columns=True)
    for rows, depth, columns in ((1, 4096, 4096), (16, 1024, 4096), (64, 4096, 1024), (128, 768, 768)):
        yield _product(rows, depth, columns, b_by_columns=True)
    yield _product(128, 64, 128, batch=24)
    for layout in _LAYOUTS:
        conv = partial(_convolution, "fprop", layout=layout)
        yield conv((8, 64, 56, 56), 64, 3)
        yield conv((8, 256, 14, 14), 256, 3)
        yield conv((4, 256, 28, 28), 512, 1, stride=2)
        yield conv((2, 64, 56, 56), 256, 1)
        yield conv((32, 256, 56, 56), 64, 1)
        yield conv((8, 3, 224, 224), 64, 7, stride=2)
        yield conv((8, 96, 56, 56), 96, 3, groups=96)
    for queries, width in ((256, 64), (512, 64), (256, 128), (2048, 64)):
        yield _attention(2 if queries < 512 else 1, 8, queries, queries, width)
    yield _attention(8, 32, 1, 1024, 128)
    yield _layer_norm(512, 4096)
    yield _layer_norm(8192, 1024)
    yield _rms_norm(4096, 4096)
    for layout in _LAYOUTS:
        yield _batch_norm((32, 64, 56, 56), layout)
    yield _pool((8, 64, 112, 112), "nhwc", ResampleMode.MAXPOOL)
    yield _gelu(512, 4096)
    yield _gelu(8192, 4096)
    yield _add(1 << 24)


def find_graph(name: str) -> GraphRow:
    """The row of a name, of either suite.

    Raises:
        LookupError: there is none.
    """
    for rows in (gpu_rows(), gfx_rows()):
        for row in rows:
            if row.name == name:
                return row
    raise LookupError(f"no suite has a row '{name}'")
