"""Block scaling: numbers of few bits with a common scale for each block, as MXFP8, MXFP6, MXFP4 and NVFP4 have them.

Source of the semantics: hipDNN's front end and its CPU references.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import stride_order, strides_in_order
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr, flag, int_tuple

__all__ = [
    "BlockScaleBuilder",
    "BlockScaleDequantizeAttributes",
    "BlockScaleDequantizeNode",
    "BlockScaleQuantizeAttributes",
    "BlockScaleQuantizeNode",
]

Dims = tuple[int, ...]
_LEAST_NORMAL = 2.0**-126


@dataclass(frozen=True, kw_only=True)
class BlockScaleDequantizeAttributes(Attributes):
    """Attributes of a dequantisation.

    Attributes:
        block_size: elements that share a scale, along each of the trailing dims.
        is_negative_scale: a scale s stands for the factor 2 ** -s.
    """

    block_size: Dims
    is_negative_scale: bool = False

    def __post_init__(self) -> None:
        sizes = int_tuple(self.block_size, "block_scale_dequantize: block_size")
        if not sizes or min(sizes) < 1 or max(sizes) >= 2**31:
            raise GraphError(f"block_scale_dequantize: block_size {sizes} must be one or more sizes from 1 to 2^31 - 1")
        object.__setattr__(self, "block_size", sizes)
        flag(self.is_negative_scale, "block_scale_dequantize: is_negative_scale")


@dataclass(frozen=True, kw_only=True)
class BlockScaleQuantizeAttributes(Attributes):
    """Attributes of a quantisation.

    Attributes:
        block_size: elements that share a scale, along the axis.
        axis: from 0; None: the last.
        transpose: y and scale get the axis as their fastest, unless their strides are set. Dims stay as they are.
    """

    block_size: int
    axis: int | None = None
    transpose: bool = False

    def __post_init__(self) -> None:
        (size,) = int_tuple([self.block_size], "block_scale_quantize: block_size")
        if not 1 <= size < 2**31:
            raise GraphError(f"block_scale_quantize: block_size {size} must be from 1 to 2^31 - 1")
        if self.axis is not None:
            int_tuple([self.axis], "block_scale_quantize: axis")
        flag(self.transpose, "block_scale_quantize: transpose")


@register_op
class BlockScaleDequantizeNode(Node):
    """y = x * scale of the block, or x * 2 ** -scale.

    Shapes:  x [D...], scale of the same rank: of the trailing dims that ``block_size`` names ceil(D / size), of others
             D -> y [D...]. The last block of a dim may have fewer elements.
    Dtypes:  any; multiplied in the compute type
    Layout:  any strides; y takes the stride order of x unless it is set
    Raises:  GraphError if there are more sizes than dims, dims of the scale do not fit, or the compute type is no float
    Source:  hipDNN BlockScaleDequantize and its CPU reference; cuDNN's front end wants y virtual and multiplies
             likewise
    """

    op = "block_scale_dequantize"
    attributes_type = BlockScaleDequantizeAttributes
    attributes: BlockScaleDequantizeAttributes
    input_ports = ("x", "scale")
    output_ports = ("y",)

    @property
    def blocks(self) -> Dims:
        """Elements that share a scale, along each dim of x."""
        given = self.attributes.block_size
        return (*(1 for _ in range(self.inputs["x"].rank - len(given))), *given)

    def validate(self) -> None:
        x, scale = self.inputs["x"], self.inputs["scale"]
        _check_compute(self)
        if len(self.attributes.block_size) > x.rank:
            raise self.fail(f"block_size {self.attributes.block_size} has more sizes than x {x.dims} has dims")
        expected = tuple(math.ceil(dim / size) for dim, size in zip(x.dims, self.blocks, strict=True))
        if scale.dims != expected:
            raise self.fail(
                f"scale '{scale.name}' has dims {scale.dims}; of x {x.dims} in blocks of {self.blocks} they are "
                f"{expected}"
            )

    def infer(self) -> None:
        self.infer_output("y", self.inputs["x"].dims, self.inputs["x"])

    def flops(self) -> int:
        return self.inputs["x"].volume

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"y": inputs["x"] * self._factor(inputs["scale"])}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, factor = np.abs(inputs["x"]), np.abs(self._factor(inputs["scale"]))
        s, off = self._spread(inputs["scale"]), self._spread(errors["scale"])
        if self.attributes.is_negative_scale:
            high = np.exp2(off - s)
            factor_error = high - factor + 8 * self.compute.eps * (1 + np.abs(s)) * factor
        else:
            factor_error = off + self._conversion(factor, "scale")
        x_error = errors["x"] + self._conversion(x, "x")
        exact = self._is_exact and not np.any(x_error) and not np.any(factor_error)
        rounding = 0.0 if exact else self.compute.eps
        y = np.abs(outputs["y"])
        return {"y": x * factor_error + factor * x_error + x_error * factor_error + rounding * y}

    @property
    def _is_exact(self) -> bool:
        """Whether a product is the number itself: x of few bits times a power of two or another of few bits."""
        x, scale = self.inputs["x"].data_type, self.inputs["scale"].data_type
        few = x.is_small_float or (x.is_integer and x.bits <= 8)
        fits = scale.is_small_float or (scale in (DataType.HALF, DataType.BFLOAT16) and x.is_small_float)
        return few and fits and not self.attributes.is_negative_scale

    def _conversion(self, magnitude: Array, port: str) -> Array:
        dtype = self.inputs[port].data_type
        narrower = dtype.eps < self.compute.eps and not (dtype.is_integer and dtype.bits <= 8)
        return 0.5 * self.compute.eps * magnitude if narrower else np.zeros(())

    def _factor(self, scale: Array) -> Array:
        spread = self._spread(scale)
        return np.exp2(-spread) if self.attributes.is_negative_scale else spread

    def _spread(self, of_blocks: Array) -> Array:
        """A number of each block as one of each element."""
        for axis, (dim, size) in enumerate(zip(self.inputs["x"].dims, self.blocks, strict=True)):
            if of_blocks.ndim and size > 1:
                of_blocks = np.repeat(of_blocks, size, axis).take(range(dim), axis)
        return of_blocks


@register_op
class BlockScaleQuantizeNode(Node):
    """scale = the largest |x| of a block / the largest value of y's type, rounded up; y = x / scale, 0 if that is 0.

    Shapes:  x [D...] -> y [D...], scale [D...] with ceil(D / block_size) along the axis; the last block may have fewer
             elements
    Dtypes:  x any; the scale is FLOAT, which rounds to nearest, or the least of its type that is not smaller: HALF and
             BFLOAT16 (infinite beyond their range), FP8_E8M0 (of zeros 2 ** -127), FP8_E4M3 (at most 448). NaN does not
             count in a block, and becomes what y's type makes of it. Computes in FLOAT or DOUBLE
    Layout:  any strides; y and scale take the stride order of x, with ``transpose`` that order turned until the axis is
             the fastest, unless they are set
    Raises:  GraphError if the axis is none of x's, dims do not fit, or the compute type is another
    Source:  hipDNN BlockScaleQuantize and its CPU reference, which rounds scales up and has no FP8_E4M3 ones; the front
             ends of hipDNN and cuDNN want dims that the blocks divide, the reference does not. cuDNN's front end states
             no rounding of scales
    """

    op = "block_scale_quantize"
    attributes_type = BlockScaleQuantizeAttributes
    attributes: BlockScaleQuantizeAttributes
    input_ports = ("x",)
    output_ports = ("y", "scale")

    @property
    def axis(self) -> int:
        """The axis along which there are blocks."""
        axis = self.attributes.axis
        return self.inputs["x"].rank - 1 if axis is None else axis

    @property
    def largest(self) -> float:
        """The largest value of y's type."""
        dtype = self.outputs["y"].data_type
        return float(dtype.finfo.max) if dtype.is_float else float(dtype.range[1])

    def validate(self) -> None:
        x, axis = self.inputs["x"], self.attributes.axis
        _check_compute(self)
        if not x.rank:
            raise self.fail(f"x '{x.name}' has no dims; a block needs one to lie along, give it dims (1,)")
        if axis is not None and not 0 <= axis < x.rank:
            raise self.fail(f"axis {axis} of x {x.dims} must be from 0 to {x.rank - 1}")
        for port, tensor in self.outputs.items():
            if tensor.has_data_type and tensor.data_type is DataType.BOOLEAN:
                raise self.fail(f"{port} '{tensor.name}' is BOOLEAN, which has no scale; use a type of numbers")

    def infer(self) -> None:
        x = self.inputs["x"]
        scale = list(x.dims)
        scale[self.axis] = math.ceil(x.dims[self.axis] / self.attributes.block_size)
        order = stride_order(x.dims, x.strides)
        if self.attributes.transpose and self.attributes.axis is not None:
            place = order.index(self.axis) + 1
            order = (*order[place:], *order[:place])
        for port, dims in (("y", x.dims), ("scale", tuple(scale))):
            if self.attributes.transpose and not self.outputs[port].has_strides:
                self.outputs[port].resolve(strides=strides_in_order(dims, order))
            self.infer_output(port, dims, x)

    def flops(self) -> int:
        return 3 * self.inputs["x"].volume

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        scale = self._scale(self._most(np.abs(inputs["x"])))
        factor = self._spread(scale)
        with np.errstate(all="ignore"):
            return {"y": np.where(factor == 0, 0.0, inputs["x"] / factor), "scale": scale}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, off = np.abs(inputs["x"]), np.broadcast_to(errors["x"], inputs["x"].shape)
        if self.inputs["x"].data_type.eps < self.compute.eps:
            off = off + 0.5 * self.compute.eps * x
        exact = self.outputs["scale"].data_type is not DataType.FLOAT
        eps = 0.0 if exact and not np.any(off) else self.compute.eps
        scale = outputs["scale"]
        low = self._scale(self._most(np.maximum(x - off, 0.0)) * (1 - eps))
        high = self._scale(self._most(x + off) * (1 + eps))
        scale_error = np.maximum(high - scale, scale - low) + (0.0 if exact else eps * scale)
        with np.errstate(all="ignore"):
            largest = (x + off) / self._spread(np.maximum(low - (0.0 if exact else eps * scale), 0.0))
            least = np.maximum(x - off, 0.0) / self._spread(high)
            y = np.abs(outputs["y"])
            y_error = np.maximum(largest - y, y - least)
        power = self.outputs["scale"].data_type is DataType.FP8_E8M0
        y_error = y_error + (0.0 if power else 2 * self.compute.eps * y)
        tiny = self._spread(scale) < (0.0 if self.compute is DataType.DOUBLE or power else _LEAST_NORMAL)
        nothing = (x == 0) & (off == 0)
        y_error = np.where(tiny | np.isnan(y_error), np.where(nothing, 0.0, np.inf), y_error)
        return {"y": np.minimum(y_error, 2 * self.largest), "scale": np.nan_to_num(scale_error, nan=0.0)}

    def _scale(self, most: Array) -> Array:
        """The scale of a block whose largest magnitude is ``most``."""
        wanted = most / self.largest
        dtype = self.outputs["scale"].data_type
        if dtype is DataType.FP8_E8M0:
            part, power = np.frexp(np.minimum(wanted, 2.0**127))
            return np.exp2(np.clip(np.where(part == 0.5, power - 1, np.where(wanted > 0, power, -127)), -127, 127))
        with np.errstate(all="ignore"):
            near = dtype.rounded(wanted)
            if not dtype.is_float or dtype in (DataType.FLOAT, DataType.DOUBLE):
                return near.astype(np.float64)
            end = np.asarray(dtype.finfo.max, near.dtype)
            above = np.minimum(near.view(f"u{near.itemsize}") + 1, end.view(f"u{near.itemsize}")).view(near.dtype)
            return np.where(near.astype(np.float64) < wanted, above, near).astype(np.float64)

    def _most(self, magnitude: Array) -> Array:
        """The largest of each block; NaN does not count."""
        starts = range(0, magnitude.shape[self.axis], self.attributes.block_size)
        counted = np.where(np.isnan(magnitude), 0.0, magnitude)
        return np.maximum.reduceat(counted, list(starts), self.axis)

    def _spread(self, of_blocks: Array) -> Array:
        """A number of each block as one of each element."""
        dim = self.inputs["x"].dims[self.axis]
        return np.repeat(of_blocks, self.attributes.block_size, self.axis).take(range(dim), self.axis)


def _check_compute(node: Node) -> None:
    if node.compute not in (DataType.FLOAT, DataType.DOUBLE):
        raise node.fail(f"compute_data_type is {node.compute.name}; use FLOAT or DOUBLE")


class BlockScaleBuilder(GraphBuilder):
    """Builder methods of block scaling."""

    def block_scale_dequantize(
        self,
        x: TensorAttr,
        scale: TensorAttr,
        *,
        block_size: Sequence[int] | int,
        is_negative_scale: bool = False,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a dequantisation; see :class:`BlockScaleDequantizeNode`.

        Args:
            x: any rank.
            scale: a number for each block.
            block_size: for each of the trailing dims; a number is that of the last dim.
            is_negative_scale: see :class:`BlockScaleDequantizeAttributes`.

        Returns:
            y, virtual until ``set_output(True)``.

        Raises:
            GraphError: sizes that are none.
        """
        many = isinstance(block_size, Sequence | np.ndarray)
        sizes = int_tuple(block_size if many else [block_size], "block_scale_dequantize: block_size")
        attributes = BlockScaleDequantizeAttributes(block_size=sizes, is_negative_scale=is_negative_scale)
        node = self.add_node(BlockScaleDequantizeNode, {"x": x, "scale": scale}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"]

    def block_scale_quantize(
        self,
        x: TensorAttr,
        *,
        block_size: int,
        axis: int | None = None,
        transpose: bool = False,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, TensorAttr]:
        """Adds a quantisation; see :class:`BlockScaleQuantizeNode`.

        Args:
            x: any rank from 1 on.
            block_size: along the axis.
            axis: from 0; default: the last.
            transpose: see :class:`BlockScaleQuantizeAttributes`.

        Returns:
            (y, scale), virtual until ``set_output(True)``; both need a data type.

        Raises:
            GraphError: a size or an axis that is none.
        """
        attributes = BlockScaleQuantizeAttributes(block_size=block_size, axis=axis, transpose=transpose)
        node = self.add_node(BlockScaleQuantizeNode, {"x": x}, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["y"], node.outputs["scale"]
