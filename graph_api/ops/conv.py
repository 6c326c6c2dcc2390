"""Convolution: forward, 1-D to 3-D, groups from the shapes, both convolution modes.

Source of the semantics: hipDNN's and cuDNN's front ends; cross-correlation is ``torch.nn.functional.conv*d``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product

import numpy as np

from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr, int_tuple

__all__ = ["ConvAttributes", "ConvBuilder", "ConvFpropNode", "ConvolutionMode"]

Dims = tuple[int, ...]


class ConvolutionMode(Enum):
    """How the filter is indexed."""

    CROSS_CORRELATION = "CROSS_CORRELATION"
    CONVOLUTION = "CONVOLUTION"


@dataclass(frozen=True, kw_only=True)
class ConvAttributes(Attributes):
    """Attributes of a convolution, one entry per spatial dim.

    Attributes:
        pre_padding, post_padding: zeros before and after each spatial dim of x, at least 0.
        stride, dilation: at least 1.
        convolution_mode: CROSS_CORRELATION uses the filter as it is, CONVOLUTION mirrors it in all spatial dims.
    """

    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    convolution_mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION

    def __post_init__(self) -> None:
        for field, least in (("pre_padding", 0), ("post_padding", 0), ("stride", 1), ("dilation", 1)):
            values = getattr(self, field)
            if len(values) != len(self.stride):
                raise GraphError(f"convolution: {field} {values} and stride {self.stride} differ in length")
            if any(not least <= value < 2**31 for value in values):
                raise GraphError(f"convolution: {field} {values} must be at least {least} in every spatial dim")

    def output_size(self, axis: int, size: int, window: int) -> int:
        """Size of y along spatial ``axis``; 0 or less if the filter does not fit."""
        span = self.dilation[axis] * (window - 1) + 1
        return (size + self.pre_padding[axis] + self.post_padding[axis] - span) // self.stride[axis] + 1

    def mirrored(self, w: Array) -> Array:
        """The filter as a cross-correlation uses it."""
        if self.convolution_mode is ConvolutionMode.CROSS_CORRELATION:
            return w
        return w[(..., *[slice(None, None, -1)] * len(self.stride))]

    def taps(self, window: Sequence[int], out: Sequence[int]) -> Iterator[tuple[Dims, tuple[slice, ...]]]:
        """Each filter position with the slices of padded x that it meets, one per spatial dim."""
        for position in product(*(range(size) for size in window)):
            starts = [f * d for f, d in zip(position, self.dilation, strict=True)]
            yield position, tuple(
                slice(start, start + stride * (size - 1) + 1, stride)
                for start, stride, size in zip(starts, self.stride, out, strict=True)
            )

    def pad(self, x: Array) -> Array:
        """x with its padding."""
        return np.pad(x, [(0, 0), (0, 0), *zip(self.pre_padding, self.post_padding, strict=True)])


class ConvNode(Node):
    """What the convolutions of all directions share."""

    attributes_type = ConvAttributes
    attributes: ConvAttributes

    def check_shapes(self, x: Dims, w: Dims) -> int:
        """Checks x [N, C, spatial...] against w [K, C/g, spatial...]; returns the number of groups g."""
        spatial = len(self.attributes.stride)
        if len(x) != spatial + 2 or len(w) != spatial + 2:
            raise self.fail(f"x {x} and w {w} must have {spatial} spatial dims as stride {self.attributes.stride} says")
        if x[1] % w[1]:
            raise self.fail(f"x {x} has C={x[1]} channels, w {w} takes {w[1]}; C must be a multiple (C/groups)")
        groups = x[1] // w[1]
        if w[0] % groups:
            raise self.fail(f"w {w} has K={w[0]} filters, which {groups} groups (C={x[1]} / {w[1]}) do not divide")
        return groups

    def products(self, y: TensorAttr, w: TensorAttr) -> int:
        """Floating-point operations of the convolution of filter w with result y: two per product."""
        return 2 * y.volume * math.prod(w.dims[1:])

    def output_dims(self, x: Dims, w: Dims) -> Dims:
        """Dims of y [N, K, spatial...]."""
        sizes = tuple(
            self.attributes.output_size(axis, size, window)
            for axis, (size, window) in enumerate(zip(x[2:], w[2:], strict=True))
        )
        if any(size < 1 for size in sizes):
            raise self.fail(f"filter {w[2:]} with dilation {self.attributes.dilation} is larger than padded x {x[2:]}")
        return (x[0], w[0], *sizes)


@register_op
class ConvFpropNode(ConvNode):
    """y[n,k,o] = sum over c in k's group, f of x[n, c, o*stride + f*dilation - pre_padding] * w[k, c, f].

    Shapes:  x [N, C, I...], w [K, C/g, F...] -> y [N, K, O...], O = floor((I + pre + post - (d(F-1)+1)) / s) + 1
    Dtypes:  any one for x and w; accumulates in the compute type
    Layout:  any strides; y takes the stride order of x unless it is set
    Raises:  GraphError if ranks, channels or groups do not fit, or the filter is larger than padded x
    Source:  hipDNN ConvolutionFwd; torch.nn.functional.conv1d/2d/3d with asymmetric zero padding
    """

    op = "conv_fprop"
    input_ports = ("x", "w")
    output_ports = ("y",)

    @property
    def groups(self) -> int:
        """Number of groups, from the shapes."""
        return self.inputs["x"].dims[1] // self.inputs["w"].dims[1]

    def validate(self) -> None:
        self.check_shapes(self.inputs["x"].dims, self.inputs["w"].dims)

    def infer(self) -> None:
        x, w = self.inputs["x"], self.inputs["w"]
        self.infer_output("y", self.output_dims(x.dims, w.dims), x)

    def flops(self) -> int:
        return self.products(self.outputs["y"], self.inputs["w"])

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"y": convolve(self.attributes, inputs["x"], inputs["w"], self.outputs["y"].dims)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, w = np.abs(inputs["x"]), np.abs(inputs["w"])
        terms = math.prod(inputs["w"].shape[1:])
        x_bound = self.gamma(terms) * x + errors["x"]
        bound = convolve(self.attributes, x_bound, w, self.outputs["y"].dims)
        if np.any(errors["w"]):
            bound = bound + convolve(self.attributes, x, np.broadcast_to(errors["w"], w.shape), self.outputs["y"].dims)
        return {"y": bound}


def convolve(attributes: ConvAttributes, x: Array, w: Array, y_dims: Dims) -> Array:
    """The forward convolution in numpy, one matrix product per filter position."""
    w = attributes.mirrored(w)
    n, c = x.shape[:2]
    k, per_group = w.shape[:2]
    groups, out = c // per_group, y_dims[2:]
    padded = attributes.pad(x)
    y = np.zeros((n, groups, k // groups, math.prod(out)))
    for position, window in attributes.taps(w.shape[2:], out):
        columns = padded[(slice(None), slice(None), *window)].reshape(n, groups, per_group, -1)
        y += w[(slice(None), slice(None), *position)].reshape(groups, k // groups, per_group) @ columns
    return y.reshape(y_dims)


class ConvBuilder(GraphBuilder):
    """Builder methods of the convolutions."""

    def conv_fprop(
        self,
        x: TensorAttr,
        w: TensorAttr,
        *,
        padding: int | Sequence[int] | None = None,
        pre_padding: int | Sequence[int] | None = None,
        post_padding: int | Sequence[int] | None = None,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        convolution_mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a forward convolution; see :class:`ConvFpropNode`.

        Args:
            x: [N, C, spatial...].
            w: [K, C/groups, spatial...]; the number of groups follows from the channels.
            padding: zeros on both sides of each spatial dim; or ``pre_padding`` and ``post_padding``.
            stride, dilation: per spatial dim, or one number for all.

        Returns:
            y [N, K, spatial...], virtual until ``set_output(True)``.

        Raises:
            GraphError: attributes that do not fit.
        """
        attributes = conv_attributes((x, w), padding, pre_padding, post_padding, stride, dilation, convolution_mode)
        node = self.add_node(ConvFpropNode, {"x": x, "w": w}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"]


def conv_attributes(
    tensors: Sequence[TensorAttr],
    padding: int | Sequence[int] | None,
    pre_padding: int | Sequence[int] | None,
    post_padding: int | Sequence[int] | None,
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
    convolution_mode: ConvolutionMode,
) -> ConvAttributes:
    """The attributes from a builder's arguments; the tensors whose dims are known tell the number of spatial dims."""
    for tensor in tensors:
        if not isinstance(tensor, TensorAttr):
            raise GraphError(f"convolution: expected a tensor of the graph, got {tensor!r}")
    if padding is not None and (pre_padding is not None or post_padding is not None):
        raise GraphError("convolution: give padding=, or pre_padding= and post_padding=, not both")
    if not isinstance(convolution_mode, ConvolutionMode):
        raise GraphError(f"convolution: convolution_mode must be a ConvolutionMode, got {convolution_mode!r}")
    rank = next((tensor.rank - 2 for tensor in tensors if tensor.has_dims), 0)
    if rank < 1:
        raise GraphError("convolution: x and w need dims [N, C, spatial...] with at least one spatial dim")

    def per_axis(value: int | Sequence[int] | None, what: str) -> tuple[int, ...]:
        value = 0 if value is None else value
        return int_tuple([value] * rank if not isinstance(value, Sequence | np.ndarray) else value, what)

    return ConvAttributes(
        pre_padding=per_axis(padding if pre_padding is None else pre_padding, "pre_padding"),
        post_padding=per_axis(padding if post_padding is None else post_padding, "post_padding"),
        stride=per_axis(stride, "stride"),
        dilation=per_axis(dilation, "dilation"),
        convolution_mode=convolution_mode,
    )
