"""Random models with an open dim ``n``, of operators that keep its rows apart and of such as mix them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["RowModel", "row_model"]

Array = np.ndarray[Any, Any]
F32 = np.float32
N = "n"


@dataclass
class _Value:
    """A tensor: its dims, of which at most some are `N`, or multiples of it as (N, k)."""

    name: str
    dims: list[Any]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def rows(self) -> list[int]:
        return [axis for axis, dim in enumerate(self.dims) if not isinstance(dim, int)]


@dataclass
class RowModel:
    """A model and how to feed it.

    Attributes:
        proto: the model.
        inputs: name → dims, ``n`` where the open dim is, and type.
    """

    proto: onnx.ModelProto
    inputs: dict[str, tuple[tuple[int | str, ...], Any]] = field(default_factory=dict)

    def feeds(self, n: int, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        found: dict[str, Array] = {}
        for name, (dims, dtype) in self.inputs.items():
            shape = [n if dim == N else int(dim) for dim in dims]
            whole = np.issubdtype(dtype, np.integer)
            found[name] = (rng.integers(0, 5, shape) if whole else rng.uniform(-1, 1, shape)).astype(dtype)
        return found

    def padded(self, feeds: dict[str, Array], n: int) -> dict[str, Array]:
        """The same with rows of NaN, or of other whole numbers, up to ``n``."""
        found: dict[str, Array] = {}
        for name, (dims, dtype) in self.inputs.items():
            array = feeds[name]
            for axis, dim in enumerate(dims):
                if dim == N:
                    more = list(array.shape)
                    more[axis] = n - array.shape[axis]
                    junk = np.full(more, 4 if np.issubdtype(dtype, np.integer) else np.nan, dtype)
                    array = np.concatenate([array, junk], axis)
            found[name] = array
        return found


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[tuple[int | str, ...], Any]] = {}
        self.values: list[_Value] = []

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *dims: int) -> str:
        return self.constant((self.rng.standard_normal(dims) / max(np.prod(dims[1:]), 1) ** 0.5).astype(F32))

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(
            helper.make_node(op_type, list(inputs), names, name=f"{op_type}_{len(self.nodes)}", **attributes)
        )
        return name

    def input(self, *dims: int | str, dtype: Any = F32) -> _Value:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = dims, dtype
        return _Value(name, list(dims))

    def extent(self, x: _Value, axis: int) -> str:
        """A vector of one element: an extent as the model computes it."""
        return self.op("Slice", self.op("Shape", x.name), self.numbers(axis), self.numbers(axis + 1), self.numbers(0))

    def dims_of(self, x: _Value, dims: list[Any]) -> str:
        """Dims as a model computes them from a value whose rows are N."""
        parts = [self.extent(x, x.dims.index(dim)) if not isinstance(dim, int) else self.numbers(dim) for dim in dims]
        return self.op("Concat", *parts, axis=0)


_Step = Callable[[_Maker, _Value], "_Value | None"]


def _unary(m: _Maker, x: _Value) -> _Value:
    return _Value(m.op(m.pick(["Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Identity"]), x.name), x.dims)


def _scaled(m: _Maker, x: _Value) -> _Value:
    dims = [1 if not isinstance(dim, int) or m.rng.random() < 0.5 else dim for dim in x.dims]
    return _Value(m.op(m.pick(["Add", "Mul", "Max"]), x.name, m.weight(*dims)), x.dims)


def _joined(m: _Maker, x: _Value) -> _Value | None:
    others = [value for value in m.values if value.dims == x.dims]
    return _Value(m.op(m.pick(["Add", "Mul", "Sub"]), x.name, m.pick(others).name), x.dims) if others else None


def _broadcast(m: _Maker, x: _Value) -> _Value | None:
    """Rows of one value against those of another, perhaps across: [n, 1] and [1, n]."""
    if x.rank < 2 or x.rows != [x.rank - 2] or x.dims[-2] != N:
        return None
    other = m.op("ReduceSum", x.name, m.numbers(-1), keepdims=1)  # [.., n, 1]
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return _Value(m.op("Add", other, m.op("Transpose", other, perm=perm)), [*x.dims[:-1], N])


def _reduce(m: _Maker, x: _Value) -> _Value | None:
    if x.rank < 2:
        return None
    axis, keep = int(m.rng.integers(x.rank)), int(m.rng.integers(2))
    op_type = m.pick(["ReduceSum", "ReduceMean", "ReduceMax"])
    axes = m.numbers(axis - m.pick([0, x.rank]))
    name = m.op(op_type, x.name, axes, keepdims=keep)
    dims = list(x.dims)
    dims[axis : axis + 1] = [1] if keep else []
    return _Value(name, dims)


def _softmax(m: _Maker, x: _Value) -> _Value:
    return _Value(m.op(m.pick(["Softmax", "LogSoftmax"]), x.name, axis=int(m.rng.integers(x.rank))), x.dims)


def _norm(m: _Maker, x: _Value) -> _Value | None:
    first = int(m.rng.integers(x.rank))
    rest = x.dims[first:]
    if not all(isinstance(dim, int) for dim in rest):
        return None
    return _Value(m.op("LayerNormalization", x.name, m.weight(*rest), axis=first - x.rank), x.dims)


def _transpose(m: _Maker, x: _Value) -> _Value:
    perm = [int(axis) for axis in m.rng.permutation(x.rank)]
    return _Value(m.op("Transpose", x.name, perm=perm), [x.dims[axis] for axis in perm])


def _product(m: _Maker, x: _Value) -> _Value | None:
    if x.rank < 2 or not isinstance(x.dims[-1], int):
        return None
    return _Value(m.op("MatMul", x.name, m.weight(x.dims[-1], 4)), [*x.dims[:-1], 4])


def _left_product(m: _Maker, x: _Value) -> _Value | None:
    if x.rank < 2 or not isinstance(x.dims[-2], int):
        return None
    return _Value(m.op("MatMul", m.weight(3, x.dims[-2]), x.name), [*x.dims[:-2], 3, x.dims[-1]])


def _scores(m: _Maker, x: _Value) -> _Value | None:
    """x · xᵀ: of rows with rows, or of each row with itself."""
    if x.rank < 2:
        return None
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    turned = m.op("Transpose", x.name, perm=perm)
    if m.rng.random() < 0.5:
        return _Value(m.op("MatMul", x.name, turned), [*x.dims[:-1], x.dims[-2]])
    return _Value(m.op("MatMul", turned, x.name), [*x.dims[:-2], x.dims[-1], x.dims[-1]])


def _gemm(m: _Maker, x: _Value) -> _Value | None:
    if x.rank != 2:
        return None
    turned = int(m.rng.integers(2))
    inner, outer = (x.dims[0], x.dims[1]) if turned else (x.dims[1], x.dims[0])
    if not isinstance(inner, int):
        return None
    return _Value(m.op("Gemm", x.name, m.weight(inner, 3), m.weight(3), transA=turned), [outer, 3])


def _merge(m: _Maker, x: _Value) -> _Value | None:
    """Two dims become one."""
    if x.rank < 2:
        return None
    axis = int(m.rng.integers(x.rank - 1))
    pair = x.dims[axis : axis + 2]
    if not all(isinstance(dim, int) or dim == N for dim in x.dims) or pair == [N, N] or x.dims.count(N) > 1:
        return None
    product = pair[0] * pair[1] if N not in pair else (N, pair[0] if pair[1] == N else pair[1])
    dims = [*x.dims[:axis], product, *x.dims[axis + 2 :]]
    if N not in pair and m.rng.random() < 0.5:
        return _Value(m.op("Reshape", x.name, m.dims_of(x, dims)), dims)
    if N not in pair and N not in dims:
        return None
    target = m.numbers(*(dim if isinstance(dim, int) else -1 for dim in dims))
    return _Value(m.op("Reshape", x.name, target), dims)


def _split_dim(m: _Maker, x: _Value) -> _Value | None:
    even = [axis for axis, dim in enumerate(x.dims) if isinstance(dim, int) and dim % 2 == 0 and dim > 2]
    if not even or x.rank > 4 or not all(isinstance(dim, int) or dim == N for dim in x.dims):
        return None
    axis = m.pick(even)
    dims = [*x.dims[:axis], 2, x.dims[axis] // 2, *x.dims[axis + 1 :]]
    return _Value(m.op("Reshape", x.name, m.dims_of(x, dims)), dims)


def _regroup(m: _Maker, x: _Value) -> _Value | None:
    """Rows laid out otherwise: [n, 4] as [4, n], say."""
    if x.rank < 2 or x.dims.count(N) != 1 or not all(isinstance(dim, int) or dim == N for dim in x.dims):
        return None
    perm = m.rng.permutation(x.rank)
    dims = [x.dims[axis] for axis in perm]
    return _Value(m.op("Reshape", x.name, m.dims_of(x, dims)), dims)


def _flatten(m: _Maker, x: _Value) -> _Value | None:
    if x.rank < 2 or x.dims[0] != N or len(x.rows) != 1:
        return None
    return _Value(m.op("Flatten", x.name, axis=1), [N, int(np.prod(x.dims[1:]))])


def _doubled(m: _Maker, x: _Value) -> _Value | None:
    axis = int(m.rng.integers(x.rank))
    if not isinstance(x.dims[axis], int):
        if x.dims[axis] != N:
            return None
        dims = [*x.dims[:axis], (N, 2), *x.dims[axis + 1 :]]
    else:
        dims = [*x.dims[:axis], 2 * x.dims[axis], *x.dims[axis + 1 :]]
    if m.rng.random() < 0.5:
        return _Value(m.op("Concat", x.name, x.name, axis=axis), dims)
    return _Value(m.op("Tile", x.name, m.numbers(*(2 if a == axis else 1 for a in range(x.rank)))), dims)


def _slice(m: _Maker, x: _Value) -> _Value | None:
    axis = int(m.rng.integers(x.rank))
    dim = x.dims[axis]
    far = (1 << 62) + 1
    start, end, step, left = m.pick([(0, far, 1, dim), (-1, -far, -1, dim), (-1, far, 1, 1), (0, 1, 1, 1)])
    dims = [*x.dims[:axis], left, *x.dims[axis + 1 :]]
    if m.rng.random() < 0.3 and dim == N and start == 0:
        ends = m.extent(x, axis)
        return _Value(m.op("Slice", x.name, m.numbers(0), ends, m.numbers(axis)), x.dims)
    return _Value(m.op("Slice", x.name, m.numbers(start), m.numbers(end), m.numbers(axis), m.numbers(step)), dims)


def _gather(m: _Maker, x: _Value) -> _Value | None:
    if x.rank < 2:
        return None
    axis = int(m.rng.integers(x.rank))
    index = m.constant(np.array(m.pick([0, 0, -1]), np.int64))
    return _Value(m.op("Gather", x.name, index, axis=axis), [*x.dims[:axis], *x.dims[axis + 1 :]])


def _positions(m: _Maker, x: _Value) -> _Value | None:
    """The number of each row is added, or how many there are."""
    if x.dims.count(N) != 1:
        return None
    axis = x.dims.index(N)
    count = m.op("Squeeze", m.extent(x, axis), m.numbers(0))
    if m.rng.random() < 0.6:
        zero, one = (m.constant(np.array(value, np.int64)) for value in (0, 1))
        count = m.op("Range", zero, count, one)
        count = m.op("Reshape", count, m.numbers(-1, *[1] * (x.rank - 1 - axis)))
    return _Value(m.op(m.pick(["Add", "Mul"]), x.name, m.op("Cast", count, to=TensorProto.FLOAT)), x.dims)


def _table(m: _Maker, x: _Value) -> _Value | None:
    """The first n rows of a constant are added."""
    if x.dims.count(N) != 1 or any(not isinstance(dim, int) and dim != N for dim in x.dims):
        return None
    axis = x.dims.index(N)
    whole = [1 if dim != N else 64 for dim in x.dims[axis:]]
    begin, end = m.numbers(0), m.extent(x, axis)
    if m.rng.random() < 0.3:  # those from n on
        begin, end = end, m.op("Add", end, end)
    part = m.op("Slice", m.weight(*whole), begin, end, m.numbers(0))
    return _Value(m.op("Add", x.name, part), x.dims)


def _expanded(m: _Maker, x: _Value) -> _Value | None:
    """A constant for each row."""
    if x.dims.count(N) != 1 or any(not isinstance(dim, int) and dim != N for dim in x.dims):
        return None
    dims = [1 if dim == N else dim for dim in x.dims]
    return _Value(m.op("Mul", x.name, m.op("Expand", m.weight(*dims), m.op("Shape", x.name))), x.dims)


def _mean(m: _Maker, x: _Value) -> _Value | None:
    """Divided by how many there are, of one dim or of all."""
    if x.dims.count(N) > 1:
        return None
    axis = int(m.rng.integers(x.rank))
    count = m.op("Size", x.name) if m.rng.random() < 0.3 else m.op("Squeeze", m.extent(x, axis), m.numbers(0))
    return _Value(m.op("Div", x.name, m.op("Cast", count, to=TensorProto.FLOAT)), x.dims)


def _conv(m: _Maker, x: _Value) -> _Value | None:
    if x.rank != 4 or not isinstance(x.dims[1], int):
        return None
    kind = m.pick(
        ["Conv", "MaxPool", "AveragePool", "BatchNormalization", "InstanceNormalization", "GlobalAveragePool"]
    )
    channels = x.dims[1]
    if kind == "Conv":
        return _Value(m.op(kind, x.name, m.weight(4, channels, 3, 3), pads=[1] * 4), [x.dims[0], 4, *x.dims[2:]])
    if kind in ("MaxPool", "AveragePool"):
        return _Value(m.op(kind, x.name, kernel_shape=[3, 3], pads=[1] * 4), x.dims)
    if kind == "GlobalAveragePool":
        return _Value(m.op(kind, x.name), [*x.dims[:2], 1, 1])
    scale = [m.weight(channels) for _ in range(2)]
    if kind == "InstanceNormalization":
        return _Value(m.op(kind, x.name, *scale), x.dims)
    variance = m.constant(np.full(channels, 0.5, F32))
    return _Value(m.op(kind, x.name, *scale, m.weight(channels), variance), x.dims)


def _recurrent(m: _Maker, x: _Value) -> _Value | None:
    if x.rank != 3 or not isinstance(x.dims[2], int):
        return None
    size, kind = x.dims[2], m.pick(["LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * 3
    y = m.op(kind, x.name, m.weight(1, gates, size), m.weight(1, gates, 3), hidden_size=3)
    return _Value(m.op("Squeeze", y, m.numbers(1)), [*x.dims[:2], 3])


def _more(m: _Maker, x: _Value) -> _Value | None:
    axis = int(m.rng.integers(x.rank))
    kind = m.pick(
        ["CumSum", "TopK", "ArgMax", "Unsqueeze", "Split", "Pad", "OneHot", "Hardmax", "Einsum", "LpNormalization"]
    )
    dims, dim = x.dims, x.dims[axis]
    if kind == "CumSum":
        return _Value(m.op(kind, x.name, m.numbers(axis)), dims)
    if kind in ("Hardmax", "LpNormalization"):
        return _Value(m.op(kind, x.name, axis=axis), dims)
    if kind == "TopK":
        return _Value(m.op(kind, x.name, m.numbers(1), axis=axis, outputs=2), [*dims[:axis], 1, *dims[axis + 1 :]])
    if kind == "ArgMax":
        found = m.op(kind, x.name, axis=axis, keepdims=1)
        return _Value(m.op("Cast", found, to=TensorProto.FLOAT), [*dims[:axis], 1, *dims[axis + 1 :]])
    if kind == "Unsqueeze" and x.rank < 5:
        return _Value(m.op(kind, x.name, m.numbers(axis)), [*dims[:axis], 1, *dims[axis:]])
    if kind == "Split" and isinstance(dim, int) and dim % 2 == 0:
        return _Value(
            m.op(kind, x.name, outputs=2, axis=axis, num_outputs=2), [*dims[:axis], dim // 2, *dims[axis + 1 :]]
        )
    if kind == "Pad" and isinstance(dim, int):
        pads = [0] * (2 * x.rank)
        pads[axis] = 1
        return _Value(m.op(kind, x.name, m.numbers(*pads)), [*dims[:axis], dim + 1, *dims[axis + 1 :]])
    if kind == "OneHot" and x.rank < 4:
        index = m.op("ArgMax", x.name, axis=axis, keepdims=0)
        if x.rank == 1:
            return None
        left = [*dims[:axis], *dims[axis + 1 :]]
        return _Value(m.op(kind, index, m.numbers(3), m.constant(np.array([0, 1], F32)), axis=0), [3, *left])
    if (
        kind == "Einsum"
        and x.rank == 3
        and all(isinstance(each, int) or each == N for each in dims)
        and dims.count(N) == 1
    ):
        return _Value(m.op(kind, x.name, x.name, equation="abc,abd->acd"), [dims[0], dims[2], dims[2]])
    return None


_STEPS: tuple[_Step, ...] = (
    _unary, _scaled, _joined, _broadcast, _reduce, _softmax, _norm, _transpose, _product, _left_product, _scores, _gemm,
    _merge, _split_dim, _regroup, _flatten, _doubled, _slice, _gather, _positions, _table, _expanded, _mean, _conv,
    _recurrent, _more,
)  # fmt: skip


def row_model(seed: int) -> RowModel:
    """The model of a number: up to six steps from an input, or from what a table has for whole numbers."""
    m = _Maker(seed)
    dims = m.pick([(N, 4), (N, 3, 4), (2, N, 4), (N, 3, 4, 4), (4, N), (2, 4, N, 4), (N,)])
    if m.rng.random() < 0.15:
        index = m.input(*dims, dtype=np.int64)
        x = _Value(m.op("Gather", m.weight(5, 4), index.name, axis=0), [*index.dims, 4])
    else:
        x = m.input(*dims)
    m.values.append(x)
    if m.rng.random() < 0.3:
        m.values.append(m.input(*dims))
    wanted = int(m.rng.integers(1, 6))
    for _ in range(40):
        if len(m.nodes) >= 60 or wanted <= 0:
            break
        step = m.pick(_STEPS)
        if x.rank == 0 or x.rank > 5:
            break
        made = step(m, x)
        if made is not None:
            wanted -= 1
            x = made
            m.values.append(x)
    value_infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
        for name, (shape, dtype) in m.inputs.items()
    ]
    out = helper.make_tensor_value_info(x.name, TensorProto.FLOAT, None)
    used = {name for node in m.nodes for name in node.input}
    if x.name in m.inputs:
        out = helper.make_tensor_value_info(m.op("Identity", x.name), TensorProto.FLOAT, None)
        used.add(x.name)
    graph = helper.make_graph(m.nodes, f"rows{seed}", [each for each in value_infos if each.name in used], [out],
                              [each for each in m.constants if each.name in used])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return RowModel(proto, {name: given for name, given in m.inputs.items() if name in used})
