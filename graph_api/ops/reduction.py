"""Reductions: nine modes over any set of axes, which the dims of the result tell.

Source of the semantics: hipDNN's and cuDNN's front ends.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from fusilli_ground.late_numpy import np
from graph_api.bounded import Bounded, bounded_input
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr

__all__ = ["ReductionAttributes", "ReductionBuilder", "ReductionMode", "ReductionNode"]

Dims = tuple[int, ...]


class ReductionMode(Enum):
    """What is made of the elements; ``FORMULAS`` says how."""

    ADD = "ADD"
    MUL = "MUL"
    MIN = "MIN"
    MAX = "MAX"
    AMAX = "AMAX"
    AVG = "AVG"
    NORM1 = "NORM1"
    NORM2 = "NORM2"
    MUL_NO_ZEROS = "MUL_NO_ZEROS"


FORMULAS: dict[ReductionMode, Callable[[Array, tuple[int, ...]], Array]] = {
    ReductionMode.ADD: lambda x, axes: np.sum(x, axes, keepdims=True),
    ReductionMode.MUL: lambda x, axes: np.prod(x, axes, keepdims=True),
    ReductionMode.MIN: lambda x, axes: np.min(x, axes, keepdims=True),
    ReductionMode.MAX: lambda x, axes: np.max(x, axes, keepdims=True),
    ReductionMode.AMAX: lambda x, axes: np.max(np.abs(x), axes, keepdims=True),
    ReductionMode.AVG: lambda x, axes: np.mean(x, axes, keepdims=True),
    ReductionMode.NORM1: lambda x, axes: np.sum(np.abs(x), axes, keepdims=True),
    ReductionMode.NORM2: lambda x, axes: np.sqrt(np.sum(x * x, axes, keepdims=True)),
    ReductionMode.MUL_NO_ZEROS: lambda x, axes: np.prod(np.where(x == 0, 1.0, x), axes, keepdims=True),
}
"""Every mode on float64 arrays. The product of no elements is 1."""

_REAL = (ReductionMode.AVG, ReductionMode.NORM2)
_PICKS = (ReductionMode.MIN, ReductionMode.MAX, ReductionMode.AMAX)


@dataclass(frozen=True, kw_only=True)
class ReductionAttributes(Attributes):
    """Attributes of a reduction.

    Attributes:
        mode: what is made of the elements.
        is_deterministic: the result must not depend on scheduling. Compiled code never lets it: sums are made in an
            order that is fixed when they are compiled, without atomic additions.
    """

    mode: ReductionMode
    is_deterministic: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.mode, ReductionMode):
            raise GraphError(f"reduction: mode must be a ReductionMode, got {self.mode!r}")
        if not isinstance(self.is_deterministic, bool):
            raise GraphError(f"reduction: is_deterministic must be a bool, got {self.is_deterministic!r}")


@register_op
class ReductionNode(Node):
    """y = mode over the axes of x whose dim in y is 1.

    Shapes:  x [D...] -> y of the same rank; each dim of y is 1 (reduced) or x's, at least one is 1. The user sets
             y's dims.
    Dtypes:  any; accumulates in the compute type. With an integer compute type AVG and NORM2 compute in FLOAT, or in
             DOUBLE from 64-bit integers; integer results truncate towards zero
    Layout:  any strides; y takes the stride order of x unless it is set
    Raises:  GraphError if y has no dims or dims that do not fit, or the compute type is an integer and x is not
    Source:  hipDNN Reduction; ``FORMULAS`` states each mode
    """

    op = "reduction"
    attributes_type = ReductionAttributes
    attributes: ReductionAttributes
    input_ports = ("x",)
    output_ports = ("y",)

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduced axes, in order; an axis of size 1 may be one of them."""
        return tuple(axis for axis, dim in enumerate(self.outputs["y"].dims) if dim == 1)

    @property
    def terms(self) -> int:
        """Elements of x per element of y."""
        return math.prod(self.inputs["x"].dims[axis] for axis in self.axes)

    def validate(self) -> None:
        x, y = self.inputs["x"], self.outputs["y"]
        if not y.has_dims:
            raise self.fail(f"output '{y.name}' has no dims; set_dim says which of x {x.dims} are reduced, by a 1")
        if len(y.dims) != len(x.dims) or any(out not in (1, dim) for out, dim in zip(y.dims, x.dims, strict=True)):
            raise self.fail(f"output '{y.name}' has dims {y.dims}; each must be 1 (reduced) or that of x {x.dims}")
        if 1 not in y.dims:
            raise self.fail(
                f"output '{y.name}' has the dims of x {x.dims}; nothing is reduced, use a pointwise IDENTITY"
            )
        if x.data_type.is_float and not self.compute.is_float:
            raise self.fail(f"x is {x.data_type.name} and compute_data_type {self.compute.name}; use FLOAT or DOUBLE")
        if self.attributes.mode in _REAL and not self.compute.is_float:
            self.compute = DataType.DOUBLE if self.compute is DataType.INT64 else DataType.FLOAT

    def infer(self) -> None:
        self.infer_output("y", self.outputs["y"].dims, self.inputs["x"])

    def respecified_dims(self, port: str, old: Node) -> Dims | None:
        """The same axes stay reduced; axes of size 1 in both old tensors count as kept."""
        before, after, x = old.inputs["x"].dims, old.outputs["y"].dims, self.inputs["x"].dims
        return tuple(1 if out == 1 and dim != 1 else new for dim, out, new in zip(before, after, x, strict=True))

    def flops(self) -> int:
        return self.inputs["x"].volume

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"y": FORMULAS[self.attributes.mode](inputs["x"], self.axes)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x = bounded_input(self, "x", inputs["x"], errors["x"])
        mode = self.attributes.mode
        if mode in _PICKS:
            return {"y": np.max(x.error, self.axes, keepdims=True)}
        if mode in (ReductionMode.MUL, ReductionMode.MUL_NO_ZEROS):
            return {"y": self._product_error(x, outputs["y"])}
        if mode is ReductionMode.NORM2:
            return {"y": x.square().sum(self.axes).sqrt().error}
        total = x.abs() if mode is ReductionMode.NORM1 else x
        return {"y": (total.mean(self.axes) if mode is ReductionMode.AVG else total.sum(self.axes)).error}

    def _product_error(self, x: Bounded, y: Array) -> Array:
        """How far the product may move if each factor does, and the rounding of each multiplication."""
        largest = np.abs(x.value) + x.error
        if self.attributes.mode is ReductionMode.MUL_NO_ZEROS:
            may_vanish = np.abs(x.value) <= x.error
            largest = np.where(may_vanish, np.maximum(largest, 1.0), largest)
            flip = np.any(may_vanish & (x.error > 0), self.axes, keepdims=True)
            y = np.where(flip, 0.0, y)
        bound = np.prod(largest, self.axes, keepdims=True) * (1.0 + self.gamma(self.terms)) - np.abs(y)
        return np.maximum(bound, 0.0)


class ReductionBuilder(GraphBuilder):
    """Builder method of the reductions."""

    def reduction(
        self,
        x: TensorAttr,
        y: TensorAttr | None = None,
        *,
        mode: ReductionMode,
        is_deterministic: bool = False,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a reduction; see :class:`ReductionNode`.

        Args:
            x: any rank.
            y: tensor of the graph to write to; default: a new one.
            mode: what is made of the elements.
            is_deterministic: see :class:`ReductionAttributes`.

        Returns:
            y, virtual until ``set_output(True)``. Its dims must be set: ``y.set_dim(...)`` with 1 for each reduced
            axis.

        Raises:
            GraphError: a mode that is none.
        """
        attributes = ReductionAttributes(mode=mode, is_deterministic=is_deterministic)
        node = self.add_node(ReductionNode, {"x": x}, name=name, attributes=attributes,
                             outputs={} if y is None else {"y": y}, compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"]
