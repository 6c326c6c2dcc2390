"""The gradient of pooling, 1-D to 3-D: of maxima by the index that the forward pass wrote, of both averages.

Source of the semantics: hipDNN's front end; ``torch.nn.functional.max_pool*d`` and ``avg_pool*d`` under autograd.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import cast

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.node import Array, Arrays, Node, register_op
from graph_api.ops.resample import (
    PaddingMode,
    ResampleAttributes,
    ResampleBuilder,
    ResampleMode,
    attributes_of,
    check_index,
    positions,
)
from graph_api.ops.spatial import PerAxis
from graph_api.tensor import TensorAttr

__all__ = ["ResampleBackwardBuilder", "ResampleBwdNode"]


@register_op
class ResampleBwdNode(Node):
    """dx[n,c,i] = sum over the windows o that hold i of what dy[n,c,o] gives to i.

    An average gives each element dy / count, by the count that it was divided by. A maximum gives all to the element
    that index names: a row-major spatial position in dx. An index outside its window, as -1 for padding, gives nothing,
    so nothing is read or written by it that is not there.

    Shapes:  dy, index [N, C, O...] -> dx [N, C, I...] with O = floor((I + pre + post - window) / stride) + 1; unless it
             is set the smallest, (O - 1) * stride + window - pre - post
    Dtypes:  dy any float; adds in the compute type. index INT8, INT32 or INT64
    Layout:  any strides; dx takes the stride order of dy unless it is set
    Raises:  GraphError if dims do not fit, MAXPOOL has no index or an average has one, or positions exceed INT8
    Source:  hipDNN ResampleBwd, whose index is INT8 or INT32; INT64 is PyTorch's
    """

    op = "resample_bwd"
    attributes_type = ResampleAttributes
    attributes: ResampleAttributes
    input_ports = ("dy", "index")
    optional_inputs = ("index",)
    output_ports = ("dx",)

    def validate(self) -> None:
        a, dy, index = self.attributes, self.inputs["dy"], self.inputs.get("index")
        if dy.rank != len(a.window) + 2:
            raise self.fail(f"dy {dy.dims} must have {len(a.window)} spatial dims as window {a.window} says")
        if a.generate_index:
            raise self.fail("generate_index belongs to resample_fwd; here index is an operand")
        if a.is_max != (index is not None):
            raise self.fail(
                "MAXPOOL needs the index that resample_fwd wrote with generate_index, or x to compute it again"
                if a.is_max
                else f"an index belongs to MAXPOOL, the mode is {a.mode.name}"
            )
        if index is not None and index.dims != dy.dims:
            raise self.fail(f"index '{index.name}' has dims {index.dims}, dy has {dy.dims}; they must be equal")
        if not self.compute.is_float:
            self.compute = DataType.FLOAT

    def infer(self) -> None:
        a, dy, out = self.attributes, self.inputs["dy"], self.outputs["dx"]
        smallest = [
            (size - 1) * a.stride[axis] + a.window[axis] - a.pre_padding[axis] - a.post_padding[axis]
            for axis, size in enumerate(dy.dims[2:])
        ]
        dims = out.dims if out.has_dims else (*dy.dims[:2], *smallest)
        if len(dims) != dy.rank or dims[:2] != dy.dims[:2] or min(dims) < 1:
            raise self.fail(f"dx cannot have dims {tuple(dims)}; dy {dy.dims} has its first two")
        made = tuple(a.output_size(axis, size) for axis, size in enumerate(dims[2:]))
        if made != dy.dims[2:]:
            raise self.fail(f"pooling of dx {tuple(dims)} makes spatial dims {made}, dy has {dy.dims[2:]}")
        self.infer_output("dx", dims, dy)
        index = self.inputs.get("index")
        if index is not None:
            check_index(self, index, math.prod(dims[2:]), (DataType.INT8, DataType.INT32, DataType.INT64))

    def respecified_dims(self, port: str, old: Node) -> tuple[int, ...] | None:
        before, now = old.inputs["dy"].dims, self.inputs["dy"].dims
        dims = old.outputs["dx"].dims
        extra = (dim + step * (new - was) for dim, step, new, was
                 in zip(dims[2:], self.attributes.stride, now[2:], before[2:], strict=True))  # fmt: skip
        return (*now[:2], *extra)

    def flops(self) -> int:
        return self.inputs["dy"].volume * math.prod(self.attributes.window)

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        a, dy = self.attributes, inputs["dy"]
        share = dy if a.is_max else dy / a.divisor(self.outputs["dx"].dims[2:])
        total = self._padded_zeros()
        for window, places in self._taps():
            total[window] += np.where(inputs["index"] == places, dy, 0.0) if a.is_max else share
        return {"dx": self._cropped(total)}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        a, dy = self.attributes, inputs["dy"]
        loss = self.compute.eps if self.inputs["dy"].data_type.eps < self.compute.eps else 0.0
        shift = np.broadcast_to(errors["dy"] + loss * np.abs(dy), dy.shape)
        terms = math.prod(-(-size // step) for size, step in zip(a.window, a.stride, strict=True))
        rounding = (self.sum_gamma(terms) if terms > 1 else 0.0) + (0.0 if a.is_max else self.accumulation_eps)
        share = rounding * np.abs(dy) + shift
        if not a.is_max:
            share = share / a.divisor(self.outputs["dx"].dims[2:])
        total = self._padded_zeros()
        for window, places in self._taps():
            if a.is_max:
                unsure = np.broadcast_to(errors["index"], dy.shape) > 0
                bound = np.where(inputs["index"] == places, share, 0.0)
                total[window] += np.where(unsure, np.abs(dy) + shift, bound)
            else:
                total[window] += share
        return {"dx": self._cropped(total)}

    def _padded_zeros(self) -> Array:
        """Zeros in the dims of padded dx, as far as windows reach."""
        return self.attributes.padded(np.zeros(self.outputs["dx"].dims), 0.0)

    def _cropped(self, padded: Array) -> Array:
        inside = zip(self.attributes.pre_padding, self.outputs["dx"].dims[2:], strict=True)
        return padded[(..., *(slice(before, before + size) for before, size in inside))]

    def _taps(self) -> Iterator[tuple[tuple[EllipsisType | slice, ...], Array]]:
        """For each position in a window: what all windows have there of padded dx, its positions; NaN in padding."""
        a = self.attributes
        places = a.padded(positions(self.outputs["dx"].dims[2:]), np.nan)
        for window in a.taps(self.inputs["dy"].dims[2:]):
            yield window, places[window]


class ResampleBackwardBuilder(GraphBuilder):
    """Builder method of the gradient of pooling."""

    def resample_bwd(
        self,
        dy: TensorAttr,
        *,
        mode: ResampleMode,
        window: PerAxis,
        stride: PerAxis = None,
        padding: PerAxis = None,
        pre_padding: PerAxis = None,
        post_padding: PerAxis = None,
        padding_mode: PaddingMode = PaddingMode.NEG_INF_PAD,
        index: TensorAttr | None = None,
        x: TensorAttr | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds the gradient of pooling; see :class:`ResampleBwdNode`.

        Args:
            dy: [N, C, spatial...]; the gradient of the loss by y.
            mode, padding_mode: see :class:`ResampleAttributes`.
            window, stride, padding, pre_padding, post_padding: as those of ``resample_fwd``.
            index: of MAXPOOL, as the forward pass wrote it.
            x: of MAXPOOL, instead of index: what was pooled. A ``resample_fwd`` is added that computes the index again.

        Returns:
            dx [N, C, spatial...], virtual until ``set_output(True)``. It has the dims of x if these are known; else set
            them where the last windows did not reach the end of x.

        Raises:
            GraphError: attributes that do not fit.
        """
        if x is not None:
            x = self.known(name or "resample_bwd", "x", x)
        paddings = {"padding": padding, "pre_padding": pre_padding, "post_padding": post_padding}
        attributes = attributes_of(self, "resample_bwd", dy, mode, window, stride, paddings, padding_mode)
        if x is not None and index is None and attributes.is_max:
            _, index = ResampleBuilder.resample_fwd(
                cast("ResampleBuilder", self), x, mode=mode, padding_mode=padding_mode, window=attributes.window,
                stride=attributes.stride, pre_padding=attributes.pre_padding, post_padding=attributes.post_padding,
                generate_index=True, compute_data_type=compute_data_type,
            )  # fmt: skip
        node = self.add_node(ResampleBwdNode, {"dy": dy, "index": index}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        dx = node.outputs["dx"]
        return dx.set_dim(x.dims) if x is not None and x.has_dims else dx
