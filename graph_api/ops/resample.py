"""Resampling: pooling forward, 1-D to 3-D, maximum and average, with an optional index of the maximum.

Source of the semantics: hipDNN's front end; ``torch.nn.functional.max_pool*d`` and ``avg_pool*d``, with padding that
may differ at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from types import EllipsisType

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.ops.spatial import PerAxis, per_axis, spatial_rank
from graph_api.tensor import TensorAttr, flag

__all__ = ["PaddingMode", "ResampleAttributes", "ResampleBuilder", "ResampleFwdNode", "ResampleMode"]


class ResampleMode(Enum):
    """What becomes of the elements of a window."""

    MAXPOOL = "MAXPOOL"
    AVGPOOL_EXCLUDE_PADDING = "AVGPOOL_EXCLUDE_PADDING"
    AVGPOOL_INCLUDE_PADDING = "AVGPOOL_INCLUDE_PADDING"


class PaddingMode(Enum):
    """What a maximum sees outside the image."""

    NEG_INF_PAD = "NEG_INF_PAD"
    ZERO_PAD = "ZERO_PAD"


@dataclass(frozen=True, kw_only=True)
class ResampleAttributes(Attributes):
    """Attributes of pooling, one entry per spatial dim.

    Attributes:
        mode: MAXPOOL; AVGPOOL_EXCLUDE_PADDING divides by the number of elements of the window that lie inside the
            image, AVGPOOL_INCLUDE_PADDING by the volume of the window.
        padding_mode: of MAXPOOL: NEG_INF_PAD ignores the padding, with ZERO_PAD it competes as 0. Averages add 0.
        pre_padding, post_padding: at least 0. stride, window: at least 1.
        generate_index: MAXPOOL also writes where the maximum came from.
    """

    mode: ResampleMode
    padding_mode: PaddingMode = PaddingMode.NEG_INF_PAD
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    window: tuple[int, ...]
    generate_index: bool = False

    def __post_init__(self) -> None:
        for field, kind in (("mode", ResampleMode), ("padding_mode", PaddingMode)):
            if not isinstance(getattr(self, field), kind):
                raise GraphError(f"resample: {field} must be a {kind.__name__}, got {getattr(self, field)!r}")
        for field, least in (("pre_padding", 0), ("post_padding", 0), ("stride", 1), ("window", 1)):
            values = getattr(self, field)
            if len(values) != len(self.window):
                raise GraphError(f"resample: {field} {values} and window {self.window} differ in length")
            if any(not least <= value < 2**31 for value in values):
                raise GraphError(
                    f"resample: {field} {values} must be at least {least} and less than 2^31 in every spatial dim"
                )
        object.__setattr__(self, "generate_index", flag(self.generate_index, "resample: generate_index"))
        if self.generate_index and self.mode is not ResampleMode.MAXPOOL:
            raise GraphError(f"resample: generate_index belongs to MAXPOOL, the mode is {self.mode.name}")

    @property
    def is_max(self) -> bool:
        """True for MAXPOOL."""
        return self.mode is ResampleMode.MAXPOOL

    def output_size(self, axis: int, size: int) -> int:
        """Size of y along spatial ``axis``; 0 or less if the window does not fit."""
        return (size + self.pre_padding[axis] + self.post_padding[axis] - self.window[axis]) // self.stride[axis] + 1

    def counts(self, axis: int, size: int) -> list[int]:
        """By what each output along ``axis`` is divided: the elements that its window holds; 1 if it holds none."""
        window, out = self.window[axis], self.output_size(axis, size)
        if self.mode is not ResampleMode.AVGPOOL_EXCLUDE_PADDING:
            return [window] * out
        starts = [o * self.stride[axis] - self.pre_padding[axis] for o in range(out)]
        return [max(min(start + window, size) - max(start, 0), 1) for start in starts]

    def divisor(self, sizes: Sequence[int]) -> Array:
        """The same for all axes of pooled dims ``sizes``, [1, 1, spatial...]."""
        divisor = np.ones((1, 1))
        for axis, size in enumerate(sizes):
            divisor = divisor[..., None] * np.array(self.counts(axis, size), np.float64)
        return divisor

    def padded(self, x: Array, outside: float) -> Array:
        """[N, C, spatial...] with ``outside`` in the padding."""
        return np.pad(x, [(0, 0), (0, 0), *zip(self.pre_padding, self.post_padding, strict=True)],
                      constant_values=outside)  # fmt: skip

    def taps(self, made: Sequence[int]) -> Iterator[tuple[EllipsisType | slice, ...]]:
        """For each position in a window, in row-major order: where ``made`` windows have it in what is padded."""
        for start in product(*(range(size) for size in self.window)):
            yield (..., *(
                slice(first, first + step * (size - 1) + 1, step)
                for first, step, size in zip(start, self.stride, made, strict=True)
            ))  # fmt: skip


def positions(sizes: Sequence[int]) -> Array:
    """The row-major position of each element of spatial dims, [1, 1, spatial...]."""
    return np.arange(math.prod(sizes), dtype=np.float64).reshape(1, 1, *sizes)


@register_op
class ResampleFwdNode(Node):
    """y[n,c,o] = maximum or average of x[n, c, o*stride + w - pre_padding] over the window positions w.

    Shapes:  x [N, C, I...] -> y, index [N, C, O...], O = floor((I + pre + post - window) / stride) + 1
    Dtypes:  any number; averages accumulate in the compute type, of floats in FLOAT if it is an integer type; an
             integer average truncates towards zero.
             index is INT8 or INT32: the row-major spatial position of the first maximum, -1 if that is padding, and
             where the maximum is minus infinity or NaN
    Layout:  any strides; y takes the stride order of x and index that of y, unless they are set
    Raises:  GraphError if ranks do not fit, the window is larger than padded x, or the positions exceed INT8
    Source:  hipDNN ResampleFwd; a window of nothing but ignored padding gives minus infinity, or 0 as an average
    """

    op = "resample_fwd"
    attributes_type = ResampleAttributes
    attributes: ResampleAttributes
    input_ports = ("x",)
    output_ports = ("y", "index")
    optional_outputs = ("index",)

    def validate(self) -> None:
        x, spatial = self.inputs["x"], len(self.attributes.window)
        if x.rank != spatial + 2:
            raise self.fail(f"x {x.dims} must have {spatial} spatial dims as window {self.attributes.window} says")
        if ("index" in self.outputs) != self.attributes.generate_index:
            raise self.fail("an index output needs generate_index, and generate_index an index output")
        if "index" in self.outputs:
            check_index(self, self.outputs["index"], math.prod(x.dims[2:]), (DataType.INT8, DataType.INT32))
        self.compute_floats_in_float()

    def infer(self) -> None:
        x = self.inputs["x"]
        sizes = [self.attributes.output_size(axis, size) for axis, size in enumerate(x.dims[2:])]
        if any(size < 1 for size in sizes):
            raise self.fail(f"window {self.attributes.window} is larger than padded x {x.dims[2:]}")
        dims = (*x.dims[:2], *sizes)
        self.infer_output("y", dims, x)
        if "index" in self.outputs:
            self.infer_output("index", dims, self.outputs["y"])

    def flops(self) -> int:
        return self.outputs["y"].volume * math.prod(self.attributes.window)

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        x = inputs["x"]
        if not self.attributes.is_max:
            average = self._sum(x) / self.attributes.divisor(x.shape[2:])
            return {"y": average if self.compute.is_float else np.trunc(average)}
        y = np.full(self.outputs["y"].dims, -np.inf)
        index = np.full(y.shape, -1.0)
        for candidate, position in self._taps(x):
            index = np.where(candidate > y, position, index)
            y = np.maximum(y, candidate)
        found = {"y": y, "index": np.where(np.isnan(y), -1.0, index)}
        return {port: found[port] for port in self.outputs}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x = inputs["x"]
        shift = errors["x"] + np.where(
            self.inputs["x"].data_type.eps < self.compute.eps, self.compute.eps, 0.0
        ) * np.abs(x)
        shift = np.broadcast_to(shift, x.shape)
        if not self.attributes.is_max:
            terms = math.prod(self.attributes.window)
            total = self._sum(self.sum_gamma(terms) * np.abs(x) + shift) / self.attributes.divisor(x.shape[2:])
            return {"y": total + self.accumulation_eps * np.abs(outputs["y"])}
        bound = np.zeros(outputs["y"].shape)
        for moved, _ in self._taps(shift):
            bound = np.maximum(bound, np.where(np.isinf(moved), 0.0, moved))
        found = {"y": bound, "index": self._index_error(x, shift, outputs["y"] - bound)}
        return {port: found[port] for port in self.outputs}

    def _index_error(self, x: Array, shift: Array, least: Array) -> Array:
        """Any position where errors of x let another element than the greatest win."""
        rivals = np.zeros(least.shape)
        for candidate, _ in self._taps(x + shift):
            rivals += candidate > least
        return np.where((rivals > 1) & np.any(shift), float(math.prod(x.shape[2:])), 0.0)

    def _taps(self, x: Array) -> Iterator[tuple[Array, Array]]:
        """For each window position, in row-major order: the elements that meet it, and their spatial positions."""
        a = self.attributes
        outside = -np.inf if a.is_max and a.padding_mode is PaddingMode.NEG_INF_PAD else 0.0
        values, places = a.padded(x, outside), a.padded(positions(x.shape[2:]), -1.0)
        for window in a.taps(self.outputs["y"].dims[2:]):
            yield values[window], places[window]

    def _sum(self, x: Array) -> Array:
        total = np.zeros(self.outputs["y"].dims)
        for candidate, _ in self._taps(x):
            total += candidate
        return total


def check_index(node: Node, index: TensorAttr, positions: int, types: Sequence[DataType]) -> None:
    """Checks the data type of an index of spatial positions in x."""
    if index.data_type not in types:
        known = " or ".join(dtype.name for dtype in types)
        raise node.fail(f"index '{index.name}' must be {known}, it is {index.data_type.name}")
    if index.data_type is DataType.INT8 and positions > 128:
        raise node.fail(f"x has {positions} spatial positions, an INT8 index can name 128; make it INT32")


def attributes_of(
    graph: GraphBuilder, op: str, source: TensorAttr, mode: ResampleMode, window: PerAxis, stride: PerAxis,
    paddings: Mapping[str, PerAxis], padding_mode: PaddingMode, *, generate_index: bool = False,
) -> ResampleAttributes:  # fmt: skip
    """Attributes from arguments of a builder method, one entry per spatial dim of ``source``."""
    padding, before, after = (paddings[name] for name in ("padding", "pre_padding", "post_padding"))
    if padding is not None and (before is not None or after is not None):
        raise GraphError(f"{op}: give padding=, or pre_padding= and post_padding=, not both")
    rank = spatial_rank(graph, op, (source,), {"window": window, "stride": stride, **paddings})
    return ResampleAttributes(
        mode=mode,
        padding_mode=padding_mode,
        pre_padding=per_axis(padding if before is None else before, rank, "pre_padding"),
        post_padding=per_axis(padding if after is None else after, rank, "post_padding"),
        stride=per_axis(window if stride is None else stride, rank, "stride"),
        window=per_axis(window, rank, "window"),
        generate_index=generate_index,
    )


class ResampleBuilder(GraphBuilder):
    """Builder methods of the pooling operations."""

    def resample_fwd(
        self,
        x: TensorAttr,
        *,
        mode: ResampleMode,
        window: PerAxis,
        stride: PerAxis = None,
        padding: PerAxis = None,
        pre_padding: PerAxis = None,
        post_padding: PerAxis = None,
        padding_mode: PaddingMode = PaddingMode.NEG_INF_PAD,
        generate_index: bool = False,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> tuple[TensorAttr, TensorAttr | None]:
        """Adds forward pooling; see :class:`ResampleFwdNode`.

        Args:
            x: [N, C, spatial...].
            mode, padding_mode, generate_index: see :class:`ResampleAttributes`.
            window: per spatial dim, or one number for all.
            stride: likewise; default: the window.
            padding: on both sides of each spatial dim; or ``pre_padding`` and ``post_padding``.

        Returns:
            y [N, C, spatial...], and the index of the same dims, INT32 unless set, or None without ``generate_index``;
            both virtual until ``set_output(True)``.

        Raises:
            GraphError: attributes that do not fit.
        """
        paddings = {"padding": padding, "pre_padding": pre_padding, "post_padding": post_padding}
        attributes = attributes_of(self, "resample", x, mode, window, stride, paddings, padding_mode,
                                   generate_index=generate_index)  # fmt: skip
        optional = ("index",) if attributes.generate_index else ()
        node = self.add_node(ResampleFwdNode, {"x": x}, name=name, attributes=attributes, optional_outputs=optional,
                             compute_data_type=compute_data_type)  # fmt: skip
        index = node.outputs.get("index")
        if index is not None:
            index.set_data_type(DataType.INT32)
        return node.outputs["y"], index
