"""What a tensor of the model is while its graph is built: a buffer, a node's result, or a constant, seen through views.

Views cost nothing until somebody needs memory: an input is described to the engine with the strides of its view, a
result is written with the strides that its last view asks for, and elementwise operations work in whatever order of
axes their operands have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from fusilli_ground.strides import row_major
from hipdnn_backend.offload.to_wire import views
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import DataType, TensorValue

__all__ = ["Made", "Padded", "Source", "Splat", "Step", "Tensor", "Value", "expand", "permute", "reshape"]


@dataclass(eq=False)
class Tensor:
    """A tensor of the wire graph that is being built.

    Attributes:
        dims: as the nodes see them.
        strides: None until something outside decides them; virtual tensors stay packed.
        dtype: BOOLEAN is written as UINT8.
        virtual: no buffer.
        value: compile-time scalar.
    """

    uid: int
    name: str
    dims: Dims
    dtype: DataType
    strides: Dims | None = None
    virtual: bool = True
    value: TensorValue | None = None


class Step(NamedTuple):
    """A view of a result: ``permute`` (argument: order of axes), ``reshape`` or ``expand`` (argument: new dims)."""

    kind: Literal["permute", "reshape", "expand"]
    argument: Dims
    before: Dims


@dataclass(frozen=True)
class Source:
    """A graph input, or a strided view of its buffer.

    Attributes:
        position: among the inputs.
        dims: what the model sees.
        strides: in elements of the buffer; 0 repeats.
    """

    position: int
    dims: Dims
    dtype: DataType
    strides: Dims


@dataclass(frozen=True)
class Made:
    """The result of a node, or a view of it.

    Attributes:
        tensor: what the node writes.
        dims: what the model sees.
        steps: the views between the two.
    """

    tensor: Tensor
    dims: Dims
    dtype: DataType
    steps: tuple[Step, ...] = ()

    def strides(self) -> Dims | None:
        """Strides of ``dims`` if the tensor were packed; None if no strides describe the view."""
        dims, strides = self.tensor.dims, row_major(self.tensor.dims)
        for step in self.steps:
            if step.kind == "permute":
                dims, strides = views.permuted(dims, step.argument), views.permuted(strides, step.argument)
                continue
            if step.kind == "expand":
                found = views.expanded(dims, strides, step.argument)
            else:
                found = views.reshaped(dims, strides, step.argument)
            if found is None:
                return None
            dims, strides = step.argument, found
        return strides

    def memory(self) -> Dims | None:
        """Strides of the tensor with which ``dims`` lie row-major in memory; None if there are none."""
        dims, strides = self.dims, row_major(self.dims)
        for step in reversed(self.steps):
            if step.kind == "expand":
                return None
            if step.kind == "permute":
                order = [step.argument.index(axis) for axis in range(len(step.argument))]
                dims, strides = views.permuted(dims, order), views.permuted(strides, order)
                continue
            found = views.reshaped(dims, strides, step.before)
            if found is None:
                return None
            dims, strides = step.before, found
        return views.filled(dims, strides)

    def labels(self) -> tuple[int | None, ...] | None:
        """For each dim of the tensor the axis of ``dims`` that it is, see `views.axes_of`."""
        strides = self.strides()
        tensor = self.tensor.dims
        return None if strides is None else views.axes_of(tensor, row_major(tensor), self.dims, strides)


@dataclass(frozen=True)
class Splat:
    """One number in every place."""

    value: float | int | bool
    dims: Dims
    dtype: DataType


@dataclass(frozen=True)
class Padded:
    """A tensor within a frame of constants; convolutions and pooling take the frame as their own padding.

    Attributes:
        before, after: elements per axis, at least 0.
        value: the constant.
    """

    inner: Source | Made
    before: Dims
    after: Dims
    value: float
    dims: Dims
    dtype: DataType


Value = Source | Made | Splat | Padded


def permute(value: Value, order: Sequence[int]) -> Value | None:
    """``value`` with its axes in another order; None if it has no such view."""
    order = tuple(order)
    dims = views.permuted(value.dims, order)
    if order == tuple(range(len(order))):
        return value
    if isinstance(value, Padded):
        return None
    if isinstance(value, Source):
        return replace(value, dims=dims, strides=views.permuted(value.strides, order))
    if isinstance(value, Made):
        return replace(value, dims=dims, steps=(*value.steps, Step("permute", order, value.dims)))
    return replace(value, dims=dims)


def reshape(value: Value, dims: Sequence[int]) -> Value | None:
    """``value`` row-major in other dims of the same volume; None if it has no such view."""
    dims = tuple(dims)
    assert math.prod(dims) == math.prod(value.dims), (value.dims, dims)
    if dims == value.dims:
        return value
    if isinstance(value, Padded):
        return None
    if isinstance(value, Source):
        strides = views.reshaped(value.dims, value.strides, dims)
        return None if strides is None else replace(value, dims=dims, strides=strides)
    if isinstance(value, Made):
        return replace(value, dims=dims, steps=(*value.steps, Step("reshape", dims, value.dims)))
    return replace(value, dims=dims)


def expand(value: Value, dims: Sequence[int]) -> Value | None:
    """``value`` repeated along dims of size 1 and new leading ones; None if it has no such view."""
    dims = tuple(dims)
    if dims == value.dims:
        return value
    if isinstance(value, Padded):
        return None
    if isinstance(value, Source):
        return replace(value, dims=dims, strides=views.expanded(value.dims, value.strides, dims))
    if isinstance(value, Made):
        return replace(value, dims=dims, steps=(*value.steps, Step("expand", dims, value.dims)))
    return replace(value, dims=dims)
