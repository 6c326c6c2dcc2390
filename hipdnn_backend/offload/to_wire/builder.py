"""What rules build with: tensors, nodes, and elementwise operations in the order of axes that their operands have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusilli_ground.strides import row_major
from hipdnn_backend.offload.to_wire import values as viewing
from hipdnn_backend.offload.to_wire import views
from hipdnn_backend.offload.to_wire.operation import Op, splat_value
from hipdnn_backend.offload.to_wire.types import FLOATS, TensorType, compute_type, tensor_type, wire_type
from hipdnn_backend.offload.to_wire.values import Made, Padded, Source, Splat, Tensor, Value
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import (
    Attributes,
    DataType,
    PointwiseAttributes,
    PointwiseMode,
    ReductionAttributes,
    ReductionMode,
    TensorValue,
    TensorValueType,
    WireNode,
    WireTensor,
)

__all__ = ["Builder", "fields_of", "float32"]

Frame = tuple[int | None, ...]
"""For each dim of an elementwise node the axis of the model's tensor that it is; None: of size 1, and none of them."""

_SCALARS = {
    DataType.FLOAT: TensorValueType.Float32Value,
    DataType.DOUBLE: TensorValueType.Float64Value,
    DataType.INT32: TensorValueType.Int32Value,
    DataType.INT64: TensorValueType.Int64Value,
}


def float32(value: float) -> float:
    """``value`` as the wire's 32-bit fields hold it."""
    return float(np.float32(value))


class Builder:
    """A wire graph that grows operation by operation.

    Attributes:
        nodes: so far.
        tensors: so far, in order of their uids except for unused inputs, which have none.
    """

    def __init__(self, inputs: Sequence[TensorType], names: Sequence[str]) -> None:
        self.nodes: list[WireNode] = []
        self.tensors: list[Tensor] = []
        self.inputs: list[Tensor | None] = [None] * len(inputs)
        self._names = list(names)
        self._values: dict[Any, Value] = {}
        self._next = len(inputs) + 1
        self._taken: dict[str, int] = {}

    # Values of the model

    def define(self, key: Any, value: Value) -> None:
        """Says what an `ir.Value` is."""
        self._values[key] = value

    def value(self, op: Op, index: int) -> Value:
        """What a tensor operand is.

        Raises:
            NotTranslated: it is neither an input, a result of these operations, nor one constant number.
        """
        key = op.operands[index]
        if key in self._values:
            return self._values[key]
        kind = tensor_type(str(key.type))
        if isinstance(kind, str):
            raise op.refuse(f"operand {index}: {kind}")
        owner = getattr(key.owner, "operation", None)
        if owner is not None and owner.name == "torch.vtensor.literal":
            number = splat_value(owner)
            if number is None:
                raise op.refuse(f"operand {index} is a constant tensor {kind.dims}; make it an input of the graph")
            return Splat(number, kind.dims, kind.dtype)
        raise op.refuse(f"operand {index} comes from outside and is none of the graph's inputs")

    def lookup(self, key: Any) -> Value | None:
        """What an `ir.Value` is, None if nothing defined it."""
        return self._values.get(key)

    # Views that must be there

    def reshaped(self, op: Op, value: Value, dims: Sequence[int], what: str = "the operand") -> Value:
        """``value`` in other dims of the same volume."""
        found = viewing.reshape(value, dims)
        if found is None:
            raise op.refuse(f"{what} of dims {value.dims} is no view of dims {tuple(dims)}: it would need a copy")
        return found

    def permuted(self, op: Op, value: Value, order: Sequence[int]) -> Value:
        """``value`` transposed."""
        found = viewing.permute(value, order)
        if found is None:
            raise op.refuse("a padded tensor has no transposed view")
        return found

    def expanded(self, op: Op, value: Value, dims: Sequence[int]) -> Value:
        """``value`` repeated."""
        found = viewing.expand(value, dims)
        if found is None:
            raise op.refuse("a padded tensor has no repeated view")
        return found

    # Tensors of the graph

    def tensor(self, op: Op, dims: Sequence[int], dtype: DataType, suffix: str = "") -> Tensor:
        """A new virtual tensor, named after the operation."""
        return self._add(self._name(f"{op.where}{suffix}"), tuple(dims), dtype)

    def scalar(self, op: Op, value: float | bool, dtype: DataType, rank: int = 1) -> Tensor:
        """A compile-time scalar of a type that one computes in: FLOAT, DOUBLE, INT32 or INT64."""
        if dtype not in FLOATS and not float(value).is_integer():
            raise op.refuse(f"{value} is no {dtype.name}")
        number: float | int = float(value) if dtype in FLOATS else int(value)
        if dtype is DataType.FLOAT:
            number = float32(number)
        elif dtype not in FLOATS and abs(number) >= 2 ** (31 if dtype is DataType.INT32 else 63):
            raise op.refuse(f"{value} is outside the range of {dtype.name}")
        tensor = self._add(self._name(f"{op.where}::scalar"), (1,) * max(rank, 1), dtype)
        tensor.virtual = False
        tensor.value = TensorValue(type=_SCALARS[dtype], value=number)
        return tensor

    def source(self, op: Op, view: Source, dims: Dims, strides: Dims) -> Tensor:
        """The tensor of an input, which can have one layout in a graph."""
        strides = views.filled(dims, strides)
        known = self.inputs[view.position]
        if known is None:
            known = Tensor(view.position + 1, self._name(self._names[view.position]), dims, view.dtype, strides, False)
            self.inputs[view.position] = known
        if (known.dims, known.strides) != (dims, strides):
            raise op.refuse(
                f"input '{known.name}' is used with dims {known.dims} and strides {known.strides} already, here with "
                f"{dims} and {strides}; a tensor of a graph has one layout"
            )
        return known

    def plain(self, op: Op, value: Value, what: str) -> Tensor:
        """The tensor of a value for a node that needs its axes in order.

        Raises:
            NotTranslated: no tensor of the graph has these dims in this order.
        """
        if isinstance(value, Source):
            return self.source(op, value, value.dims, value.strides)
        if isinstance(value, Padded):
            raise op.refuse(f"{what} is padded, which only convolutions and pooling take over")
        if isinstance(value, Splat):
            raise op.refuse(f"{what} is the constant {value.value}; make it an input of the graph")
        strides = value.strides()
        if (
            value.tensor.dims != value.dims
            or strides is None
            or views.filled(value.dims, strides) != row_major(value.dims)
        ):
            raise op.refuse(
                f"{what} is a view of an intermediate result (dims {value.tensor.dims}, seen as {value.dims}); a graph "
                "has views of its inputs and outputs only"
            )
        return value.tensor

    def aligned(self, op: Op, value: Value, what: str) -> Tensor:
        """The tensor of a value for a node that broadcasts it right-aligned: leading dims of 1 may be missing."""
        rank = len(value.dims)
        seen = None if isinstance(value, Padded | Splat) else self._seen(op, value, rank)
        if seen is None:
            return self.plain(op, value, what)
        labels, tensor = seen
        if any(label not in (None, rank - len(labels) + place) for place, label in enumerate(labels)):
            return self.plain(op, value, what)
        return tensor

    def made(self, tensor: Tensor, dims: Dims | None = None) -> Made:
        """What a node wrote, row-major in ``dims``."""
        found = viewing.reshape(Made(tensor, tensor.dims, tensor.dtype), tensor.dims if dims is None else dims)
        assert isinstance(found, Made)
        return found

    # Nodes

    def node(self, op: Op, attributes: Attributes, compute: DataType, suffix: str = "") -> None:
        """Adds a node, named after the operation."""
        name = f"{op.where}{suffix}"
        self.nodes.append(WireNode(name=name, compute_data_type=compute, attributes=attributes))

    def pointwise(
        self,
        op: Op,
        mode: PointwiseMode,
        operands: Sequence[Value | float],
        dtype: DataType,
        *,
        dims: Dims | None = None,
        compute: DataType | None = None,
        suffix: str = "",
        **parameters: float,
    ) -> Made:
        """Adds an elementwise node.

        Args:
            operands: tensors, which broadcast right-aligned, and numbers.
            dtype: of the result.
            dims: of the result; default: what the operands broadcast to.
            compute: default: from the operands and the result.
            parameters: further fields of the table.
        """
        tensors = [value for value in operands if not isinstance(value, int | float)]
        if any(isinstance(value, Padded) for value in tensors):
            raise op.refuse("an operand is padded, which only convolutions and pooling take over")
        result = dims if dims is not None else views.broadcast([value.dims for value in tensors])
        if not all(views.broadcasts(value.dims, result) for value in tensors):
            raise op.refuse(f"operands of dims {', '.join(str(value.dims) for value in tensors)} do not give {result}")
        wanted = [value.dtype for value in tensors if not isinstance(value, Splat)] or [v.dtype for v in tensors]
        compute = compute or compute_type(*wanted, dtype)
        frame = self._frame(op, tensors, result)
        uids = [self._operand(op, value, frame, result, compute).uid for value in operands]
        out = self.tensor(op, [1 if axis is None else result[axis] for axis in frame], dtype, suffix)
        names = ("in_0_tensor_uid", "in_1_tensor_uid", "in_2_tensor_uid")
        fields: dict[str, Any] = dict(zip(names, uids, strict=False))
        fields |= {name: float32(value) for name, value in parameters.items()}
        self.node(op, PointwiseAttributes(operation=mode, out_0_tensor_uid=out.uid, **fields), compute, suffix)
        return self._unframed(out, frame, result)

    def reduction(
        self, op: Op, mode: ReductionMode, value: Value, axes: Sequence[int], dtype: DataType, *, suffix: str = ""
    ) -> Made:
        """Adds a reduction; reduced axes stay, with size 1."""
        result = tuple(1 if axis in axes else size for axis, size in enumerate(value.dims))
        frame, tensor = self._seen(op, value, len(value.dims)) or self._fixed(op, value)
        sizes = dict(zip(frame, tensor.dims, strict=True))
        if any(size > 1 and sizes.get(axis) != size for axis, size in enumerate(value.dims)):
            raise op.refuse("the operand repeats along a dim; reduce it before")
        dims = [1 if label in axes else size for label, size in zip(frame, tensor.dims, strict=True)]
        if 1 not in dims:
            return self.pointwise(op, PointwiseMode.IDENTITY, [value], dtype, suffix=suffix)
        out = self.tensor(op, dims, dtype, suffix)
        table = ReductionAttributes(mode=mode, in_tensor_uid=tensor.uid, out_tensor_uid=out.uid)
        self.node(op, table, compute_type(value.dtype, dtype), suffix)
        return self._unframed(out, frame, result)

    # Results

    def output(self, op: Op, value: Value, kind: TensorType) -> Tensor:
        """The tensor that holds a result of the graph, row-major in memory: its own if it can be, else a copy's."""
        if value.dims != kind.dims:
            raise op.refuse(f"it makes dims {value.dims} where the model says {kind.dims}")
        if isinstance(value, Made) and value.tensor.virtual:
            strides = value.memory()
            if strides is not None:
                value.tensor.strides, value.tensor.virtual = strides, False
                return value.tensor
        copy = self.pointwise(op, PointwiseMode.IDENTITY, [value], value.dtype, dims=value.dims, suffix="::copy")
        strides = copy.memory()
        if strides is None:
            raise op.refuse(f"no strides of dims {copy.tensor.dims} make a row-major result of dims {value.dims}")
        copy.tensor.strides, copy.tensor.virtual = strides, False
        return copy.tensor

    def wire_tensors(self) -> tuple[WireTensor, ...]:
        """Every tensor, in order of uids."""
        used = [tensor for tensor in (*self.inputs, *self.tensors) if tensor is not None]
        return tuple(
            WireTensor(
                uid=tensor.uid,
                name=tensor.name,
                data_type=wire_type(tensor.dtype),
                strides=tensor.strides or row_major(tensor.dims),
                dims=tensor.dims,
                virtual=tensor.virtual,
                value=tensor.value,
            )
            for tensor in used
        )

    # Frames of elementwise nodes

    def _frame(self, op: Op, tensors: Sequence[Value], result: Dims) -> Frame:
        """The order of axes of the operand that has the most; further ones of the result come first."""
        known = [seen[0] for value in tensors if (seen := self._seen(op, value, len(result))) is not None]
        if not known:
            return tuple(range(len(result))) or (None,)
        rank = max(map(len, known))
        best = max(known, key=lambda frame: (sum(axis is not None for axis in frame), len(frame)))
        missing = [axis for axis, size in enumerate(result) if axis not in best and size > 1]
        filling: list[None] = [None] * max(rank - len(best) - len(missing), 0)
        return (*filling, *missing, *best)

    def _seen(self, op: Op, value: Value, rank: int) -> tuple[Frame, Tensor] | None:
        """The tensor that a value has already, and which axis of ``rank`` right-aligned ones each of its dims is."""
        tensor: Tensor | None
        if isinstance(value, Made):
            labels, tensor = value.labels(), value.tensor
            if labels is None:
                raise op.refuse(
                    f"an operand of dims {value.dims} is a view that splits or joins the dims {tensor.dims} of an "
                    "intermediate result; a graph has views of its inputs and outputs only"
                )
        elif isinstance(value, Source) and (tensor := self.inputs[value.position]) is not None:
            assert tensor.strides is not None
            labels = views.axes_of(tensor.dims, tensor.strides, value.dims, value.strides)
            if labels is None:
                return None
        else:
            return None
        lead = rank - len(value.dims)
        return tuple(None if axis is None else axis + lead for axis in labels), tensor

    def _fixed(self, op: Op, value: Value) -> tuple[Frame, Tensor]:
        """A value that has no tensor yet, in the model's order of axes."""
        if isinstance(value, Source) and 0 in value.strides:
            raise op.refuse(f"the operand is a repeated view (strides {value.strides}); reduce it before")
        return tuple(range(len(value.dims))), self.plain(op, value, "the operand")

    def _operand(self, op: Op, value: Value | float, frame: Frame, result: Dims, compute: DataType) -> Tensor:
        if isinstance(value, int | float):
            return self.scalar(op, value, compute, len(frame))
        if isinstance(value, Splat):
            return self.scalar(op, value.value, compute, len(frame))
        seen = self._seen(op, value, len(result))
        if seen is None:
            assert isinstance(value, Source)
            return self._framed_source(op, value, frame, len(result))
        labels, tensor = seen
        places = frame[len(frame) - len(labels) :]
        if any(size > 1 and label != place for size, label, place in zip(tensor.dims, labels, places, strict=True)):
            raise op.refuse(
                f"the axes of its operands lie in different orders ('{tensor.name}' has dims {tensor.dims}, seen as "
                f"{value.dims}); a graph has views of its inputs and outputs only, one of each"
            )
        return tensor

    def _framed_source(self, op: Op, value: Source, frame: Frame, rank: int) -> Tensor:
        lead = rank - len(value.dims)
        dims: list[int] = []
        strides: list[int] = []
        for label in frame:
            axis = -1 if label is None else label - lead
            repeated = axis < 0 or value.strides[axis] == 0
            dims.append(1 if repeated else value.dims[axis])
            strides.append(1 if repeated else value.strides[axis])
        return self.source(op, value, tuple(dims), tuple(strides))

    def _unframed(self, out: Tensor, frame: Frame, result: Dims) -> Made:
        """What a node wrote in a frame, in the model's order of axes."""
        places = [place for place, axis in enumerate(frame) if axis is None]
        places += sorted((p for p, axis in enumerate(frame) if axis is not None), key=lambda p: frame[p] or 0)
        found = viewing.permute(Made(out, out.dims, out.dtype), places)
        assert found is not None
        found = viewing.reshape(found, result)
        assert isinstance(found, Made)
        return found

    def _add(self, name: str, dims: Dims, dtype: DataType) -> Tensor:
        tensor = Tensor(self._next, name, dims, dtype)
        self._next += 1
        self.tensors.append(tensor)
        return tensor

    def _name(self, name: str) -> str:
        """``name``, or the first free one that begins with it."""
        found = name
        while found in self._taken:
            self._taken[name] += 1
            found = f"{name}_{self._taken[name]}"
        self._taken[found] = 1
        return found


def fields_of(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Uid fields of an operation table by port name."""
    return {f"{port}_tensor_uid": tensor.uid for port, tensor in tensors.items()}
