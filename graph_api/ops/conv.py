"""Convolution: forward, data gradient, weight gradient; 1-D to 3-D, groups from the shapes, both convolution modes.

Source of the semantics: hipDNN's and cuDNN's front ends; cross-correlation is ``torch.nn.functional.conv*d``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.ops.conv_reference import Formula, convolve, data_gradient, weight_gradient
from graph_api.ops.spatial import LAYOUT_TIP, PerAxis, channels_first, per_axis, spatial_rank
from graph_api.tensor import TensorAttr, int_tuple

__all__ = ["ConvAttributes", "ConvBuilder", "ConvDgradNode", "ConvFpropNode", "ConvWgradNode", "ConvolutionMode"]

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
        groups: what the channels must say; None if they say it alone. It is part of no file: the dims hold it.
    """

    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    convolution_mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION
    groups: int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None:
            (groups,) = int_tuple([self.groups], "convolution: groups")
            if isinstance(self.groups, bool) or groups < 1:
                raise GraphError(f"convolution: groups must be at least 1, got {self.groups!r}")
            object.__setattr__(self, "groups", groups)
        if not self.stride:
            raise GraphError("convolution: stride () is empty; there must be at least one spatial dim")
        for field, least in (("pre_padding", 0), ("post_padding", 0), ("stride", 1), ("dilation", 1)):
            values = getattr(self, field)
            if len(values) != len(self.stride):
                raise GraphError(f"convolution: {field} {values} and stride {self.stride} differ in length")
            if any(not least <= value < 2**31 for value in values):
                raise GraphError(
                    f"convolution: {field} {values} must be at least {least} and less than 2^31 in every spatial dim"
                )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_json().items() if name != "groups"}

    @property
    def is_mirrored(self) -> bool:
        """True if the filter is mirrored in all spatial dims."""
        return self.convolution_mode is ConvolutionMode.CONVOLUTION

    def output_size(self, axis: int, size: int, window: int) -> int:
        """Size of y along spatial ``axis``; 0 or less if the filter does not fit."""
        span = self.dilation[axis] * (window - 1) + 1
        return (size + self.pre_padding[axis] + self.post_padding[axis] - span) // self.stride[axis] + 1

    def smallest_input(self, axis: int, size: int, window: int) -> int:
        """The smallest size of x along ``axis`` that gives y this ``size``; 0 or less if padding alone suffices."""
        span = self.dilation[axis] * (window - 1) + 1
        return self.stride[axis] * (size - 1) + span - self.pre_padding[axis] - self.post_padding[axis]

    def largest_window(self, axis: int, size: int, out: int) -> int:
        """The largest filter along ``axis`` that makes ``out`` of x of this ``size``; 0 or less if there is none."""
        room = size + self.pre_padding[axis] + self.post_padding[axis] - self.stride[axis] * (out - 1)
        return (room - 1) // self.dilation[axis] + 1


class ConvNode(Node):
    """What the convolutions of all directions share."""

    attributes_type = ConvAttributes
    attributes: ConvAttributes

    def validate(self) -> None:
        self.compute_floats_in_float()
        self.check_inputs(*self.inputs.values())

    @abstractmethod
    def check_inputs(self, first: TensorAttr, second: TensorAttr) -> None:
        """Raises GraphError unless the inputs, in order of the ports, fit together."""

    def check_shapes(self, x: Dims, w: Dims) -> None:
        """Checks x [N, C, spatial...] against w [K, C/g, spatial...]."""
        spatial = len(self.attributes.stride)
        if len(x) != spatial + 2 or len(w) != spatial + 2:
            raise self.fail(f"x {x} and w {w} must have {spatial} spatial dims as stride {self.attributes.stride} says")
        tip = LAYOUT_TIP if self._fits_otherwise(x, w) else ""
        asked = self.attributes.groups
        if asked is not None and asked * w[1] != x[1]:
            raise self.fail(
                f"groups={asked} and w {w} need C={asked * w[1]} channels, x {x} has {x[1]}; w is "
                f"[K, C/groups, spatial...]{tip}"
            )
        if x[1] % w[1]:
            raise self.fail(f"x {x} has C={x[1]} channels, w {w} takes {w[1]}; C must be a multiple (C/groups){tip}")
        groups = x[1] // w[1]
        if w[0] % groups:
            raise self.fail(f"w {w} has K={w[0]} filters, which {groups} groups (C={x[1]} / {w[1]}) do not divide{tip}")

    def _fits_otherwise(self, x: Dims, w: Dims) -> bool:
        """Whether dims in the order of channels-last memory, of both or of one, would make a convolution."""
        filters = {w, channels_first(w), (w[-1], w[-2], *w[:-2])}
        return any(
            not image[1] % each[1]
            and not each[0] % (image[1] // each[1])
            and self.attributes.groups in (None, image[1] // each[1])
            and min(self._sizes_of(image, each)) >= 1
            for image in {x, channels_first(x)}
            for each in filters
            if (image, each) != (x, w)
        )

    def _sizes_of(self, x: Dims, w: Dims) -> Dims:
        pairs = zip(x[2:], w[2:], strict=True)
        return tuple(self.attributes.output_size(axis, size, window) for axis, (size, window) in enumerate(pairs))

    @property
    def groups(self) -> int:
        """Number of groups, from the shapes."""
        x, w, _ = self.roles()
        return x.dims[1] // w.dims[1]

    @abstractmethod
    def roles(self) -> tuple[TensorAttr, TensorAttr, TensorAttr]:
        """The tensors of the shapes of x, w and y of the forward convolution."""

    def flops(self) -> int:
        """Two per product."""
        _, w, y = self.roles()
        return 2 * y.volume * math.prod(w.dims[1:])

    def check_gradient(self) -> None:
        """Checks that x, w and y are the shapes of one convolution."""
        x, w, y = self.roles()
        self.check_shapes(x.dims, w.dims)
        expected = self.output_dims(x.dims, w.dims)
        if y.dims != expected:
            raise self.fail(
                f"dy '{y.name}' has dims {y.dims}, but x {x.dims} convolved with w {w.dims} gives {expected}; "
                f"set the dims of '{next(iter(self.outputs.values())).name}' to those of the forward convolution"
            )

    def check_known(self, first: TensorAttr, second: TensorAttr) -> None:
        """Checks that both inputs of a gradient have the rank that the attributes say."""
        spatial = len(self.attributes.stride)
        for tensor in (first, second):
            if tensor.rank != spatial + 2:
                raise self.fail(
                    f"'{tensor.name}' has dims {tensor.dims}, "
                    f"but stride {self.attributes.stride} says {spatial} spatial dims"
                )

    def bilinear_error(self, formula: Formula, inputs: Arrays, errors: Arrays, result: str, terms: int) -> Array:
        """Error bound of a sum of ``terms`` products of the two inputs, which ``formula`` computes."""
        first, second = self.inputs
        a, b = np.abs(inputs[first]), np.abs(inputs[second])
        dims = self.outputs[result].dims
        bound = formula(self.attributes, self.gamma(terms) * a + errors[first], b, dims)
        if np.any(errors[second]):
            bound = bound + formula(self.attributes, a, np.broadcast_to(errors[second], b.shape), dims)
        return bound

    def output_dims(self, x: Dims, w: Dims) -> Dims:
        """Dims of y [N, K, spatial...]."""
        sizes = self._sizes_of(x, w)
        if any(size < 1 for size in sizes):
            tip = LAYOUT_TIP if self._fits_otherwise(x, w) else ""
            raise self.fail(
                f"filter {w[2:]} with dilation {self.attributes.dilation} is larger than padded x {x[2:]}{tip}"
            )
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

    def roles(self) -> tuple[TensorAttr, TensorAttr, TensorAttr]:
        return self.inputs["x"], self.inputs["w"], self.outputs["y"]

    def check_inputs(self, first: TensorAttr, second: TensorAttr) -> None:
        self.check_shapes(first.dims, second.dims)

    def infer(self) -> None:
        x, w = self.inputs["x"], self.inputs["w"]
        self.infer_output("y", self.output_dims(x.dims, w.dims), x)

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"y": convolve(self.attributes, inputs["x"], inputs["w"], self.outputs["y"].dims)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        return {"y": self.bilinear_error(convolve, inputs, errors, "y", math.prod(inputs["w"].shape[1:]))}


@register_op
class ConvDgradNode(ConvNode):
    """dx[n,c,i] = sum over k in c's group, f, o with o*stride + f*dilation - pre_padding = i of dy[n,k,o] * w[k,c,f].

    Shapes:  dy [N, K, O...], w [K, C/g, F...] -> dx [N, C, I...]; where dx has no dims: as many groups as the
             attributes say, else one, and the smallest I that gives O, s(O-1) + d(F-1) + 1 - pre - post. Set the dims
             of dx for a larger I.
    Dtypes:  any one for dy and w; accumulates in the compute type
    Layout:  any strides; dx takes the stride order of dy unless it is set
    Raises:  GraphError if ranks, channels or groups do not fit, or dims of dx do not give those of dy
    Source:  hipDNN ConvolutionBwd; torch.nn.grad.conv*d_input
    """

    op = "conv_dgrad"
    input_ports = ("dy", "w")
    output_ports = ("dx",)

    def roles(self) -> tuple[TensorAttr, TensorAttr, TensorAttr]:
        return self.outputs["dx"], self.inputs["w"], self.inputs["dy"]

    def check_inputs(self, first: TensorAttr, second: TensorAttr) -> None:
        self.check_known(first, second)
        if first.dims[1] != second.dims[0]:
            tip = LAYOUT_TIP if first.dims[-1] in (second.dims[0], second.dims[-1]) else ""
            raise self.fail(
                f"dy {first.dims} has K={first.dims[1]} channels, w {second.dims} has K={second.dims[0]} filters{tip}"
            )

    def infer(self) -> None:
        dims = self.outputs["dx"].dims if self.outputs["dx"].has_dims else self._smallest(self.attributes.groups or 1)
        self.infer_output("dx", dims, self.inputs["dy"])
        self.check_gradient()

    def respecified_dims(self, port: str, old: Node) -> Dims:
        """As many groups, and as many rows beyond the smallest size, as before."""
        assert isinstance(old, ConvDgradNode)
        beyond = [size - least for size, least in zip(old.outputs["dx"].dims, old._sizes(), strict=True)][2:]
        n, c, *spatial = self._sizes()
        return (n, c * old.groups, *(size + more for size, more in zip(spatial, beyond, strict=True)))

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"dx": data_gradient(self.attributes, inputs["dy"], inputs["w"], self.outputs["dx"].dims)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        k, _, *window = inputs["w"].shape
        steps = [s // math.gcd(s, d) for s, d in zip(self.attributes.stride, self.attributes.dilation, strict=True)]
        terms = k // self.groups * math.prod(-(-size // step) for size, step in zip(window, steps, strict=True))
        return {"dx": self.bilinear_error(data_gradient, inputs, errors, "dx", terms)}

    def _sizes(self) -> Dims:
        """[N, C/g, smallest I...]."""
        dy, w = self.inputs["dy"].dims, self.inputs["w"].dims
        pairs = zip(dy[2:], w[2:], strict=True)
        return (
            dy[0],
            w[1],
            *(self.attributes.smallest_input(i, size, window) for i, (size, window) in enumerate(pairs)),
        )

    def _smallest(self, groups: int) -> Dims:
        n, c, *spatial = self._sizes()
        dims = (n, c * groups, *spatial)
        if any(size < 1 for size in dims):
            raise self.fail(f"the smallest dx would have dims {dims}: padding alone gives dy; set the dims of dx")
        return dims


@register_op
class ConvWgradNode(ConvNode):
    """dw[k,c,f] = sum over n, o of dy[n,k,o] * x[n, c of k's group, o*stride + f*dilation - pre_padding].

    Shapes:  dy [N, K, O...], x [N, C, I...] -> dw [K, C/g, F...]; where dw has no dims: as many groups as the
             attributes say, else one, and the largest F that gives O. Set the dims of dw for a smaller F.
    Dtypes:  any one for dy and x; accumulates in the compute type
    Layout:  any strides; dw takes the stride order of x unless it is set
    Raises:  GraphError if ranks, batches or channels do not fit, or dims of dw do not give those of dy
    Source:  hipDNN ConvolutionWrw; torch.nn.grad.conv*d_weight
    """

    op = "conv_wgrad"
    input_ports = ("dy", "x")
    output_ports = ("dw",)

    def roles(self) -> tuple[TensorAttr, TensorAttr, TensorAttr]:
        return self.inputs["x"], self.outputs["dw"], self.inputs["dy"]

    def check_inputs(self, first: TensorAttr, second: TensorAttr) -> None:
        self.check_known(first, second)
        if first.dims[0] != second.dims[0]:
            raise self.fail(f"dy {first.dims} and x {second.dims} differ in the batch N")

    def infer(self) -> None:
        dims = self.outputs["dw"].dims if self.outputs["dw"].has_dims else self._largest()
        self.infer_output("dw", dims, self.inputs["x"])
        self.check_gradient()

    def respecified_dims(self, port: str, old: Node) -> Dims:
        """As many groups and the same filter size as before."""
        assert isinstance(old, ConvWgradNode)
        return (self.inputs["dy"].dims[1], self.inputs["x"].dims[1] // old.groups, *old.outputs["dw"].dims[2:])

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"dw": weight_gradient(self.attributes, inputs["dy"], inputs["x"], self.outputs["dw"].dims)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        n, _, *out = inputs["dy"].shape
        return {"dw": self.bilinear_error(weight_gradient, inputs, errors, "dw", n * math.prod(out))}

    def _largest(self) -> Dims:
        dy, x = self.inputs["dy"].dims, self.inputs["x"].dims
        pairs = zip(x[2:], dy[2:], strict=True)
        window = [self.attributes.largest_window(i, size, out) for i, (size, out) in enumerate(pairs)]
        if any(size < 1 for size in window):
            raise self.fail(
                f"no filter gives dy {dy[2:]} from x {x[2:]} with stride {self.attributes.stride} and this padding"
            )
        groups = self.attributes.groups or 1
        if x[1] % groups:
            raise self.fail(f"groups={groups} do not divide the C={x[1]} channels of x {x}")
        return (dy[1], x[1] // groups, *window)


class ConvBuilder(GraphBuilder):
    """Builder methods of the convolutions."""

    def conv_fprop(
        self,
        x: TensorAttr,
        w: TensorAttr,
        *,
        padding: PerAxis = None,
        pre_padding: PerAxis = None,
        post_padding: PerAxis = None,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        groups: int | None = None,
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
            groups: checked against the channels, where it is given.

        Returns:
            y [N, K, spatial...], virtual until ``set_output(True)``.

        Raises:
            GraphError: attributes that do not fit.
        """
        attributes = conv_attributes(self, (x, w), padding, pre_padding, post_padding, stride, dilation,
                                     convolution_mode, groups)  # fmt: skip
        node = self.add_node(ConvFpropNode, {"x": x, "w": w}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"]

    def conv_dgrad(
        self,
        dy: TensorAttr,
        w: TensorAttr,
        *,
        padding: PerAxis = None,
        pre_padding: PerAxis = None,
        post_padding: PerAxis = None,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        groups: int | None = None,
        convolution_mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds the gradient of a convolution by its input; see :class:`ConvDgradNode`.

        Args:
            dy: [N, K, spatial...], gradient by the result of the forward convolution.
            w: [K, C/groups, spatial...].
            padding, pre_padding, post_padding, stride, dilation, groups: of the forward convolution, as in
                ``conv_fprop``.

        Returns:
            dx [N, C, spatial...], virtual until ``set_output(True)``. Set its dims where the stride left a remainder,
            or where there are groups and ``groups`` is not given; otherwise they are inferred.

        Raises:
            GraphError: attributes that do not fit.
        """
        attributes = conv_attributes(self, (dy, w), padding, pre_padding, post_padding, stride, dilation,
                                     convolution_mode, groups)  # fmt: skip
        node = self.add_node(ConvDgradNode, {"dy": dy, "w": w}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["dx"]

    def conv_wgrad(
        self,
        dy: TensorAttr,
        x: TensorAttr,
        *,
        padding: PerAxis = None,
        pre_padding: PerAxis = None,
        post_padding: PerAxis = None,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        groups: int | None = None,
        convolution_mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds the gradient of a convolution by its filter; see :class:`ConvWgradNode`.

        Args:
            dy: [N, K, spatial...], gradient by the result of the forward convolution.
            x: [N, C, spatial...], input of the forward convolution.
            padding, pre_padding, post_padding, stride, dilation, groups: of the forward convolution, as in
                ``conv_fprop``.

        Returns:
            dw [K, C/groups, spatial...], virtual until ``set_output(True)``. Set its dims where the filter is not the
            largest that fits, or where there are groups and ``groups`` is not given; otherwise they are inferred.

        Raises:
            GraphError: attributes that do not fit.
        """
        attributes = conv_attributes(self, (dy, x), padding, pre_padding, post_padding, stride, dilation,
                                     convolution_mode, groups)  # fmt: skip
        node = self.add_node(ConvWgradNode, {"dy": dy, "x": x}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["dw"]


def conv_attributes(
    builder: GraphBuilder,
    tensors: Sequence[TensorAttr],
    padding: PerAxis,
    pre_padding: PerAxis,
    post_padding: PerAxis,
    stride: PerAxis,
    dilation: PerAxis,
    convolution_mode: object,
    groups: int | None,
) -> ConvAttributes:
    """The attributes from a builder's arguments; the tensors whose rank is known tell the number of spatial dims."""
    if padding is not None and (pre_padding is not None or post_padding is not None):
        raise GraphError("convolution: give padding=, or pre_padding= and post_padding=, not both")
    if not isinstance(convolution_mode, ConvolutionMode):
        raise GraphError(f"convolution: convolution_mode must be a ConvolutionMode, got {convolution_mode!r}")
    arguments = {"stride": stride, "dilation": dilation, "padding": padding, "pre_padding": pre_padding,
                 "post_padding": post_padding}  # fmt: skip
    rank = spatial_rank(builder, "convolution", tensors, arguments)
    return ConvAttributes(
        pre_padding=per_axis(padding if pre_padding is None else pre_padding, rank, "pre_padding"),
        post_padding=per_axis(padding if post_padding is None else post_padding, rank, "post_padding"),
        stride=per_axis(stride, rank, "stride"),
        dilation=per_axis(dilation, rank, "dilation"),
        convolution_mode=convolution_mode,
        groups=groups,
    )
