"""Convolution on the CPU target as a product of matrices with tiles of our choice.

The compiler's own ways fall off cliffs: strided 1x1 convolutions and widths that vectors do not divide are left to
scalar loops, and around a channels-last tensor it folds transposes into a loop nest that it does not vectorise.
``docs/performance.md`` has the measurements. Here what the filter meets at each place of the result is copied into a
matrix (1x1 convolutions of stride 1 need no copy), and one ``linalg.generic`` multiplies that with the filter:

* results with channels last: rows are places ``[places, taps]``, and the filters lie in panels ``[filters / b, taps,
  b]``, as wide as some vectors, whose rows follow each other in memory. A kernel makes them of a filter in any layout.
* results with channels first: rows are filters ``[filters, taps]``, and the places lie in panels ``[places / b, taps,
  b]`` where vectors divide the rows of the result, else in columns ``[taps, places]``. Columns a power of 2 apart
  displace each other from the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as places_of
from typing import Final

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes, ConvDgradNode, ConvFpropNode, ConvWgradNode
from iree_bridge.emit.conv.depthwise import depthwise
from iree_bridge.emit.conv.shifted import shifted
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Operand, generic
from iree_bridge.emit.products_cpu import (
    by_columns,
    by_panels,
    by_places,
    by_stored_columns,
    has_tiles,
    kernel_of,
    places_at_once,
    product,
)
from iree_bridge.emit.reduction import total
from iree_bridge.emit.window_frame import cropped, met
from iree_bridge.targets.types import builtin_tensor
from iree_bridge.targets.variants import is_by_taps, is_channels_last

__all__ = ["Tap", "data_gradient", "few_places_gradient", "filter_gradient", "forward", "has_few_places"]

_INTEGERS: Final = (DataType.INT8, DataType.INT32)
_FEW: Final = 8
"""Filters that are too few for a matrix of what they meet."""
_TAPS_FIRST: Final = {1: (2, 1, 0), 2: (2, 3, 1, 0), 3: (2, 3, 4, 1, 0)}
"""Number of spatial dims → axes of filters [K, C, window...] as [window..., C, K]."""
_MATRIX: Final = 1 << 26
"""Bytes that the matrix of places may have; a larger one is made and multiplied in parts."""
_WHOLE: Final = 1 << 28
"""Bytes that the matrix of groups, or of integers, may have: all its parts are in memory at one time."""
_WASTE: Final = 6.0
"""Places that a data gradient computes at most, by those of its result."""
_MOST_PLACES: Final = 1
_STRIDED_PLACES: Final = 16
"""Places of dy, by its channels, for which a data gradient rearranges no filters; under a stride, whose other form
multiplies with zeros."""
_MOST_POSITIONS: Final = 27
_MOST_PHASES: Final = 8
"""Positions of a window, and phases of a stride, that are written out."""
_SUMS, _TERMS, _MOST_TERMS = 1 << 24, 1024, 4096
"""Bytes that the parts of a filter's gradient may take; places that are summed in one part, if there is room, and at
most."""
_IN_TURN: Final = 1 << 23
_PARTS: Final = 64
"""Bytes of the matrix of parts that are made one after the other, in the same memory; how many parts there may be."""


def forward(e: Emitter, node: ConvFpropNode, x: Value, w: Value) -> Value | None:
    """The forward convolution of x [N, C, spatial...] and w [K, C/g, filter...], logical; None: the torch form serves.

    Served are f32 operands: depthwise ones for the most part, and others but for a few filters of stride 1, for which
    the compiler's loops cost less than copying what the filters meet. Groups of several channels, and integers of 8 and
    32 bits in one group, up to some size.
    """
    if not has_tiles(e):
        return None
    is_last = is_channels_last(node.inputs["x"])
    conv = _Conv.of(node.attributes, x, w, is_last=is_last)
    if x.dtype in _INTEGERS and node.compute in (DataType.INT32, DataType.FLOAT) and node.groups == 1:
        return _of_integers(e, conv, x, w) if conv.matrix_bytes <= _WHOLE else None
    if (x.dtype, node.compute) != (DataType.FLOAT, DataType.FLOAT):
        return None
    if node.groups == x.dims[1] == w.dims[0]:
        return depthwise(e, node.attributes, x, w, is_last=is_last)
    # y may be virtual; a result of the graph has the layout in which the product is to be written.
    result = next((t for t in e.graph.arguments().outputs if t.rank == len(x.dims)), node.inputs["x"])
    if not is_last and not is_channels_last(result):
        made = shifted(e, node.attributes, x, w, node.groups)
        if made is not None:
            return made
    if node.groups > 1:
        is_served = w.dims[1] > 1 and conv.matrix_bytes <= _WHOLE
        return _in_groups(e, conv, x, w, node.groups) if is_served else None
    if w.dims[0] < _FEW and max(node.attributes.stride) == 1 and math.prod(w.dims[2:]) > 1:
        return None
    if not is_channels_last(result):
        return _channels_first(e, conv, x, w)
    return _channels_last(e, conv, x, w, by_taps=is_by_taps(node.inputs["w"]))


def data_gradient(e: Emitter, node: ConvDgradNode, a: ConvAttributes, dy: Value, kernel: Value) -> Value | None:
    """What the convolution ``a`` of stride 1 makes of dy and the rearranged filters; None: the torch form serves.

    Served are row-major f32 operands.
    """
    tensors = node.inputs["dy"], node.outputs["dx"]
    if not has_tiles(e) or {dy.dtype, kernel.dtype, node.compute} != {DataType.FLOAT}:
        return None
    if any(is_channels_last(tensor) for tensor in tensors):
        return None
    if node.groups == dy.dims[1] == kernel.dims[0]:
        return depthwise(e, a, dy, kernel, is_last=False)
    return shifted(e, a, dy, kernel, node.groups, most_waste=_WASTE)


@dataclass(frozen=True)
class Tap:
    """A term of a sum over a window.

    Attributes:
        position: in the window, its dims flattened.
        offset: of what it meets from the place of the result, along each spatial dim of padded dy.
    """

    position: int
    offset: tuple[int, ...]


def has_few_places(e: Emitter, node: ConvDgradNode, dy: Value, w: Value) -> bool:
    """Whether `few_places_gradient` serves a data gradient.

    Rearranging the filters, in every run, costs more than the product where there are few places. Served are row-major
    f32 operands of one group, and windows and strides that are written out in a line or two.
    """
    if not has_tiles(e) or {dy.dtype, w.dtype, node.compute} != {DataType.FLOAT} or node.groups != 1:
        return False
    if any(is_channels_last(tensor) for tensor in (node.inputs["dy"], node.outputs["dx"], node.inputs["w"])):
        return False
    n, k, *out = dy.dims
    c, *window = w.dims[1:]
    stride = node.attributes.stride
    places, positions = n * math.prod(out), math.prod(window)
    if not 1 < positions <= _MOST_POSITIONS or math.prod(stride) > _MOST_PHASES or min(k, c) < _FEW:
        return False
    most = (_STRIDED_PLACES if max(stride) > 1 else _MOST_PLACES) * k
    return places <= most and 4 * places * c * positions <= _MATRIX


def few_places_gradient(
    e: Emitter,
    dy: Value,
    w: Value,
    frame: Sequence[tuple[int, int]],
    rows: Sequence[int],
    phases: Sequence[Sequence[Tap]],
) -> list[Value]:
    """A data gradient as what each place of dy gives to its window, and the sums of that.

    One product, whose columns are the filters as they lie: ``[places, K]`` times ``[K, C * window]``.

    Args:
        frame: padding of dy.
        rows: spatial dims of a phase of dx.
        phases: what is summed for each; of no taps it is zero.

    Returns:
        [N, C, rows...] for each phase.
    """
    n, k, *out = dy.dims
    c, *window = w.dims[1:]
    positions = math.prod(window)
    given = e.barrier(e.permute(dy, (0, *range(2, 2 + len(out)), 1)))
    made = product(e, e.reshape(given, (n * math.prod(out), k)), e.reshape(w, (k, c * positions)), across=False)
    assert made is not None  # f32, and columns enough
    made = e.reshape(e.barrier(made), (n, *out, c, positions))  # a product does not write in another order
    made = e.permute(made, (0, 1 + len(out), 2 + len(out), *range(1, 1 + len(out))))
    made = e.barrier(e.pad(*cropped(e, made, frame)))
    return [_tap_sum(e, made, taps, (n, c, *rows)) for taps in phases]


def _tap_sum(e: Emitter, given: Value, taps: Sequence[Tap], dims: Sequence[int]) -> Value:
    """The sum of parts of given [N, C, window, spatial...], each of one position of the window."""
    total: Value | None = None
    for tap in taps:
        part = e.slice(given, 2, tap.position, tap.position + 1)
        for axis, (begin, extent) in enumerate(zip(tap.offset, dims[2:], strict=True), start=3):
            part = e.slice(part, axis, begin, begin + extent)
        part = e.reshape(part, dims)
        total = part if total is None else e.op("aten.add.Tensor", dims, DataType.FLOAT, total.ssa, part.ssa, 1)
    return e.splat(0.0, dims, DataType.FLOAT) if total is None else total


def filter_gradient(e: Emitter, node: ConvWgradNode, dy: Value, x: Value, window: Sequence[int]) -> Value | None:
    """The sums over places of dy [N, K, spatial...] and x [N, C, spatial...], logical; None: the torch form serves.

    A product for each place of the window, where that serves. Else one product: rows are filters ``[filters, places]``,
    columns what a place meets ``[places, taps]``. Served are f32 operands of one group.
    """
    if not has_tiles(e) or {dy.dtype, x.dtype, node.compute} != {DataType.FLOAT} or node.groups != 1:
        return None
    n, k, *out = dy.dims
    conv = _Conv(
        node.attributes, n, x.dims[1], k, tuple(x.dims[2:]), tuple(window), tuple(out), is_last=True
    )  # fmt: skip
    if k < _FEW or conv.taps < _FEW:
        return None
    image = _framed(e, conv, x)
    if not is_channels_last(node.inputs["x"]):
        image = e.barrier(image)  # else vectors of channels are read element by element
    parts = _parts_of_places(conv)
    if parts:
        return _sums_of_places(e, conv, dy, image, parts)
    sums: Value | None = None
    for rows in conv.parts(in_turn=True):
        part = e.slice(dy, 2, rows.start, rows.stop) if len(rows) < out[0] else dy
        filters = e.barrier(e.permute(part, (1, 0, *range(2, 2 + len(out)))))
        places = math.prod(filters.dims[1:])
        matrix = e.reshape(_matrix(e, conv, image, rows, last=True, after=sums), (places, conv.taps))
        made = product(e, e.reshape(filters, (k, places)), matrix, across=False)
        if made is None:
            return None
        sums = made if sums is None else e.op("aten.add.Tensor", made.dims, DataType.FLOAT, sums.ssa, made.ssa, 1)
    assert sums is not None
    sums = e.barrier(sums)  # a product does not write its result in another order
    return e.permute(e.reshape(sums, (k, *window, conv.c)), (0, 1 + len(window), *range(1, 1 + len(window))))


def _parts_of_places(conv: _Conv) -> int:
    """Into how many parts the pictures are cut whose products are summed apart; 0: `_sums_of_places` does not serve.

    So that no sum has many terms, unless the sums of all parts would take much memory.
    """
    taps, places = math.prod(conv.window), math.prod(conv.out)
    if not 1 < taps <= _MOST_POSITIONS or conv.c < _FEW or not places_at_once(conv.out):
        return 0
    most = max(_SUMS // (4 * taps * conv.k * conv.c), 1)
    fitting = [count for count in range(1, min(conv.n, most) + 1) if conv.n % count == 0]
    parts = next((count for count in fitting if conv.n // count * places <= _TERMS), fitting[-1])
    return parts if conv.n // parts * places <= _MOST_TERMS else 0


def _sums_of_places(e: Emitter, conv: _Conv, dy: Value, image: Value, parts: int) -> Value:
    """A filter's gradient as one product for each place of the window: nothing is copied but to put channels last."""
    rows = e.barrier(e.permute(dy, conv.axes_last))
    columns = image if conv.is_last else e.barrier(e.permute(image, conv.axes_last))
    rows, columns = (e.reshape(each, (parts, conv.n // parts, *each.dims[1:])) for each in (rows, columns))
    made: list[Value] = []
    for place in places_of(*map(range, conv.window)):
        begin = [at * dilation for at, dilation in zip(place, conv.a.dilation, strict=True)]
        made.append(by_places(e, rows, columns, begin, conv.a.stride))
    sums = e.barrier(_joined(e, made, 0))
    sums = e.reshape(sums, (len(made), parts, conv.k, conv.c))
    sums = e.reshape(total(e, sums, [1]) if parts > 1 else sums, (*conv.window, conv.k, conv.c))
    rank = len(conv.window)
    return e.permute(sums, (rank, rank + 1, *range(rank)))


@dataclass(frozen=True)
class _Conv:
    """Sizes of a convolution: x [n, c, spatial...], w [k, c, window...], y [n, k, out...].

    Attributes:
        is_last: the channels of x lie next to each other.
    """

    a: ConvAttributes
    n: int
    c: int
    k: int
    size: tuple[int, ...]
    window: tuple[int, ...]
    out: tuple[int, ...]
    is_last: bool

    @staticmethod
    def of(a: ConvAttributes, x: Value, w: Value, *, is_last: bool) -> _Conv:
        n, c, *size = x.dims
        k, _, *window = w.dims
        out = tuple(a.output_size(i, size[i], window[i]) for i in range(len(size)))
        return _Conv(a, n, c, k, tuple(size), tuple(window), out, is_last)

    @property
    def taps(self) -> int:
        return self.c * math.prod(self.window)

    @property
    def is_point(self) -> bool:
        """The filter has one position, which meets every place of padded x."""
        return math.prod(self.window) == 1 and max(self.a.stride) == 1

    @property
    def axes_last(self) -> tuple[int, ...]:
        """What makes [N, spatial..., C] of logical dims."""
        return (0, *range(2, 2 + len(self.size)), 1)

    @property
    def axes_first(self) -> tuple[int, ...]:
        """What makes logical dims of [N, spatial..., C]."""
        return (0, 1 + len(self.size), *range(1, 1 + len(self.size)))

    @property
    def matrix_bytes(self) -> int:
        """Of what the filters meet at all places, as numbers of 32 bits."""
        return 4 * self.n * math.prod(self.out) * self.taps

    def parts(self, *, in_turn: bool) -> list[range]:
        """Rows of the result, cut so that the matrix of each part is small enough."""
        rows, nbytes = self.out[0], self.matrix_bytes
        most = min(_PARTS, -(-nbytes // _IN_TURN)) if in_turn else -(-nbytes // _MATRIX)
        count = 1 if self.is_point else min(rows, most)
        cuts = [rows * i // count for i in range(count + 1)]
        return [range(cuts[i], cuts[i + 1]) for i in range(count)]


def _channels_last(e: Emitter, conv: _Conv, x: Value, w: Value, *, by_taps: bool) -> Value:
    image = _framed(e, conv, x)
    filters = e.reshape(e.permute(w, _TAPS_FIRST[len(conv.size)]), (conv.taps, conv.k)) if by_taps else _panels(e, w)
    made: list[Value] = []
    y: Value | None = None
    for rows in conv.parts(in_turn=True):
        matrix = _matrix(e, conv, image, rows, last=True, after=y)
        matrix = e.reshape(matrix, (math.prod(matrix.dims) // conv.taps, conv.taps))
        if by_taps:
            y = by_stored_columns(e, matrix, filters)
        else:
            y = by_panels(e, matrix, filters)
            y = e.slice(e.reshape(y, (y.dims[0], math.prod(y.dims[1:]))), 1, 0, conv.k)
        made.append(e.reshape(y, (conv.n, len(rows), *conv.out[1:], conv.k)))
    return e.permute(_joined(e, made, 1), conv.axes_first)


def _channels_first(e: Emitter, conv: _Conv, x: Value, w: Value) -> Value:
    image, filters = _framed(e, conv, x), e.reshape(w, (conv.k, conv.taps))
    lead = (conv.n,) if conv.n > 1 else ()
    widths = () if conv.is_point else kernel_of(e).widths[:-1]
    width = next((width for width in widths if conv.out[-1] % width == 0), 0)
    in_turn = conv.n == 1  # else the compiler crashes on panels
    made: list[Value] = []
    y: Value | None = None
    for rows in conv.parts(in_turn=in_turn):
        out = (len(rows), *conv.out[1:])
        matrix = _matrix(e, conv, image, rows, last=False, width=width, after=y if in_turn else None)
        if width:
            y = by_panels(e, filters, e.reshape(matrix, (*lead, math.prod(out) // width, conv.taps, width)))
            y = e.reshape(y, (conv.n, conv.k, *out[:-1], out[-1] // width, width))
        else:
            times = by_stored_columns if conv.is_point else by_columns
            y = times(e, filters, e.reshape(matrix, (*lead, conv.taps, math.prod(out))))
        made.append(e.reshape(y, (conv.n, conv.k, *out)))
    return _joined(e, made, 2)


def _in_groups(e: Emitter, conv: _Conv, x: Value, w: Value, groups: int) -> Value:
    """A product for each group: its filters by the matrix of what they meet, places side by side."""
    image, share, taps = _framed(e, conv, x), conv.k // groups, conv.taps // groups
    filters = e.reshape(w, (groups, share, taps))
    made: list[Value] = []
    for rows in conv.parts(in_turn=False):
        matrix = _matrix(e, conv, image, rows, last=False)
        places = len(rows) * math.prod(conv.out[1:])
        matrix = e.reshape(matrix, (conv.n, groups, taps, places))
        if conv.n == 1:
            y = by_columns(e, filters, e.reshape(matrix, (groups, taps, places)))
        else:
            y = by_columns(e, filters, e.barrier(e.permute(matrix, (1, 0, 2, 3))))
            y = e.permute(y, (1, 0, 2, 3))
        made.append(e.reshape(y, (conv.n, conv.k, len(rows), *conv.out[1:])))
    return _joined(e, made, 2)


def _of_integers(e: Emitter, conv: _Conv, x: Value, w: Value) -> Value:
    """One product, whose sums have 32 bits: the compiler's loops over windows of integers are not vectors."""
    image = _framed(e, conv, x)
    filters = e.reshape(e.permute(w, _TAPS_FIRST[len(conv.size)]), (conv.taps, conv.k))
    made: list[Value] = []
    for rows in conv.parts(in_turn=False):
        matrix = _matrix(e, conv, image, rows, last=True)
        matrix = e.reshape(matrix, (math.prod(matrix.dims) // conv.taps, conv.taps))
        y = e.op("aten.mm", (matrix.dims[0], conv.k), DataType.INT32, matrix, filters)
        made.append(e.reshape(y, (conv.n, len(rows), *conv.out[1:], conv.k)))
    return e.permute(_joined(e, made, 1), conv.axes_first)


def _framed(e: Emitter, conv: _Conv, x: Value) -> Value:
    """Padded x, in the order of its memory; what no window meets is cut off where the compiler checks for it."""
    frame = met(conv.a, conv.size, conv.window, conv.out)
    frame = [(pre, end if out == 1 else max(end, 0)) for (pre, end), out in zip(frame, conv.out, strict=True)]
    if conv.is_last:
        return e.pad(*cropped(e, e.permute(x, conv.axes_last), [*frame, (0, 0)]))
    return e.pad(*cropped(e, x, frame))


def _matrix(
    e: Emitter, conv: _Conv, image: Value, rows: range, *, last: bool, width: int = 0, after: Value | None = None
) -> Value:
    """What the filter meets in some rows of the result.

    Of a point it is the image itself; a transpose is kept apart, or the compiler reads vectors element by element.
    Made ``after`` a value, it may take the memory of what that was made of: it takes an element for no number that
    there is, and only the compiler of a kernel finds out.

    Returns:
        [N, out..., window..., C] if ``last``, else [N, C, window..., out...]; with a ``width``, which divides the last
        dim of the result, [N, out... / width, C, window..., width].
    """
    if conv.is_point:
        if last == conv.is_last:
            return image
        return e.barrier(e.permute(image, conv.axes_last if last else conv.axes_first))
    a, rank = conv.a, len(conv.size)
    axis = 1 if conv.is_last else 2
    stop = a.stride[0] * (len(rows) - 1) + a.dilation[0] * (conv.window[0] - 1) + 1
    if len(rows) < conv.out[0]:
        image = e.slice(image, axis, a.stride[0] * rows.start, a.stride[0] * rows.start + stop)
    batch, channels = ("n", conv.n), ("c", conv.c)
    out = [(f"out{i}", size) for i, size in enumerate((len(rows), *conv.out[1:]))]
    window = [(f"window{i}", size) for i, size in enumerate(conv.window)]
    if last:
        loops = [batch, *out, *window, channels]
    elif width:
        out[-1] = (out[-1][0], out[-1][1] // width)
        loops = [batch, *out, channels, *window, ("inner", width)]
    else:
        loops = [batch, channels, *window, *out]
    at = {name: f"d{i}" for i, (name, _) in enumerate(loops)}
    met_at = [at[name] for name, _ in out]
    if width:
        met_at[-1] = f"({met_at[-1]} * {width} + {at['inner']})"
    places = [f"{met_at[i]} * {a.stride[i]} + {at[f'window{i}']} * {a.dilation[i]}" for i in range(rank)]
    index = [at["n"], *places, at["c"]] if conv.is_last else [at["n"], at["c"], *places]
    dims = tuple(size for _, size in loops)
    source, result = (builtin_tensor(d, image.dtype) for d in (image.dims, dims))
    given, operands, body, element = f"%x: {source}", [Operand("%x", source, index)], list[str](), "%i0"
    if after is not None:
        for axis in range(len(after.dims)):
            after = e.slice(after, axis, 0, 1)
        after = e.reshape(after, ())
        given += ", %before: tensor<f32>"
        operands.append(Operand("%before", "tensor<f32>", []))
        body = [
            "%zero = arith.constant 0.0 : f32",
            "%unordered = arith.cmpf uno, %i1, %i1 : f32",
            "%is_zero = arith.cmpf oeq, %i1, %zero : f32",
            "%never = arith.andi %unordered, %is_zero : i1",
            "%taken = arith.select %never, %i1, %i0 : f32",
        ]
        element = "%taken"
    lines = [
        f"func.func private @matrix({given}) -> {result} {{",
        f"  %empty = tensor.empty() : {result}",
        *generic(
            "%y",
            operands,
            Operand("%empty", result, list(at.values())),
            ["parallel"] * len(dims),
            body,
            element,
        ),
        f"  return %y : {result}",
        "}",
    ]
    values = [image] if after is None else [image, after]
    return e.call("\n".join(lines), values, dims, image.dtype)


def _joined(e: Emitter, parts: Sequence[Value], axis: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    dims = list(parts[0].dims)
    dims[axis] = sum(part.dims[axis] for part in parts)
    return e.op("aten.cat", dims, parts[0].dtype, e.list([part.ssa for part in parts]), axis)


def _panels(e: Emitter, w: Value) -> Value:
    """w [K, C, window...] as [panels, window... and C, width]; filters of 0 fill the last panel."""
    k, c, *window = w.dims
    width = kernel_of(e).width(k)
    w = e.pad(w, [(0, -k % width), *[(0, 0)] * (len(w.dims) - 1)])
    split = e.reshape(w, (w.dims[0] // width, width, c, *window))
    split = e.permute(split, (0, *range(3, 3 + len(window)), 2, 1))
    return e.reshape(e.barrier(split), (split.dims[0], c * math.prod(window), width))
