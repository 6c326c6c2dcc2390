"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.exact_sums import Centred, exact_convolution

__all__ = ["Window", "forward_window"]

operator("Conv", "ConvTranspose", weights=(1, 2))
operator("ConvInteger", static=(2, 3, 4))


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel moves, an entry per spatial dim.

    Attributes:
        kernel, strides, dilations: of the kernel.
        begin, end: padding.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Elements from the first to the last tap."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def forward_window(b: Builder, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a convolution or pool over ``sizes``, its ``auto_pad`` resolved."""
    rank = len(sizes)
    strides = tuple(b.given.get("strides") or (1,) * rank)
    dilations = tuple(b.given.get("dilations") or (1,) * rank)
    pads = list(b.given.get("pads") or (0,) * 2 * rank)
    if any(
        len(given) != count for given, count in ((kernel, rank), (strides, rank), (dilations, rank), (pads, 2 * rank))
    ):
        raise b.fail("window", f"kernel {list(kernel)}, strides {strides} and pads {pads} do not fit {rank} dims")
    begin, end = tuple(pads[:rank]), tuple(pads[rank:])
    auto = b.given.get("auto_pad", "NOTSET")
    if auto == "VALID":
        begin = end = (0,) * rank
    elif auto.startswith("SAME"):
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        missing = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, strides, extents, strict=True)]
        small, large = tuple(m // 2 for m in missing), tuple(m - m // 2 for m in missing)
        begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(tuple(kernel), strides, dilations, begin, end)


@rewrites("Conv")
def _explicit(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Padding as numbers, equal on both sides: what remains of it is a Pad in front."""
    dims, filters = b.dims(node.input[0]), b.dims(node.input[1])
    if dims is None or filters is None:
        return None
    window = forward_window(b, dims[2:], filters[2:])
    moved = _moved(window, dims[2:])
    if moved.begin == moved.end and moved == window and b.given.get("auto_pad", "NOTSET") == "NOTSET":
        return None
    x, begin, end = node.input[0], moved.begin, moved.end
    if begin != end:
        x = _padded(b, x, begin, end)
        begin = end = (0,) * len(begin)
    given = {"group": b.given.get("group", 1), "dilations": moved.dilations, "kernel_shape": moved.kernel}
    return [b.op("Conv", x, *node.input[1:], strides=moved.strides, pads=[*begin, *end], **given)]


def _moved(window: Window, sizes: Sequence[int]) -> Window:
    """Where the kernel has one position only, its stride is 1 and nothing behind it is read: IREE asks for that."""
    strides, ends = list(window.strides), list(window.end)
    for i, (size, extent) in enumerate(zip(sizes, window.extent, strict=True)):
        whole = size + window.begin[i] + window.end[i]
        if strides[i] > 1 and (whole - extent) // strides[i] == 0 and whole >= extent:
            strides[i], ends[i] = 1, window.end[i] - (whole - extent)
    return Window(window.kernel, tuple(strides), window.dilations, window.begin, tuple(ends))


def _padded(b: Builder, x: str, begin: Sequence[int], end: Sequence[int]) -> str:
    """Zeros around the spatial dims; negative numbers cut."""
    cut = [max(-number, 0) for number in end]
    if any(cut):
        axes = range(2, 2 + len(cut))
        stops = [-number if number else 2**31 - 1 for number in cut]
        x = b.op("Slice", x, b.constant([0] * len(cut)), b.constant(stops), b.constant(list(axes)))
    pads = [0, 0, *begin, 0, 0, *(max(number, 0) for number in end)]
    return b.op("Pad", x, b.constant(pads), b.like(b.node.input[0], 0)) if any(pads) else x


@rewrites("ConvTranspose")
def _explicit_transposed(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Padding as numbers, equal on both sides: what remains of it is cut off, or comes as output padding."""
    dims, filters = b.dims(node.input[0]), b.dims(node.input[1])
    if dims is None or filters is None:
        return None
    rank = len(dims) - 2
    window, extra = _transposed_window(b, dims[2:], filters[2:])
    same = b.given.get("auto_pad", "NOTSET") == "NOTSET" and not b.given.get("output_shape")
    if same and window.begin == window.end:
        return None
    given = {
        "group": b.given.get("group", 1),
        "strides": window.strides,
        "dilations": window.dilations,
        "kernel_shape": window.kernel,
    }
    common = tuple(max(min(pair), 0) for pair in zip(window.begin, window.end, strict=True))
    y = b.op("ConvTranspose", *node.input, pads=[*common, *common], output_padding=extra, **given)
    full = [
        (n - 1) * s + e + more - 2 * c
        for n, s, e, more, c in zip(dims[2:], window.strides, window.extent, extra, common, strict=True)
    ]
    starts = [begin - c for begin, c in zip(window.begin, common, strict=True)]
    stops = [size - (end - c) for size, end, c in zip(full, window.end, common, strict=True)]
    if any(start < 0 for start in starts) or any(stop > size for stop, size in zip(stops, full, strict=True)):
        pads = [0, 0, *(max(-s, 0) for s in starts), 0, 0, *(max(p - n, 0) for p, n in zip(stops, full, strict=True))]
        y = b.op("Pad", y, b.constant(pads), b.like(node.input[0], 0))
        shift = [max(-start, 0) for start in starts]
        starts = [start + more for start, more in zip(starts, shift, strict=True)]
        stops = [stop + more for stop, more in zip(stops, shift, strict=True)]
    if starts == [0] * rank and stops == full:
        return [y]
    return [b.op("Slice", y, b.constant(starts), b.constant(stops), b.constant(list(range(2, rank + 2))))]


def _transposed_window(b: Builder, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Window, tuple[int, ...]]:
    """The window of a transposed convolution and its output padding, from whichever attributes say so."""
    rank = len(sizes)
    plain = forward_window(b, sizes, kernel)
    extra = tuple(b.given.get("output_padding") or (0,) * rank)
    auto, wanted = b.given.get("auto_pad", "NOTSET"), b.given.get("output_shape")
    if wanted:
        wanted = wanted[-rank:]
    elif auto.startswith("SAME"):
        wanted = [n * s for n, s in zip(sizes, plain.strides, strict=True)]
    else:
        return plain, extra
    total = [
        (n - 1) * s + e + more - w
        for n, s, e, more, w in zip(sizes, plain.strides, plain.extent, extra, wanted, strict=True)
    ]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(plain.kernel, plain.strides, plain.dilations, begin, end), extra


@rewrites("ConvInteger")
def _integer(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """As float convolutions that are exact: an engine takes them, and torch-mlir's conversion lacks some forms."""
    dims, filters = b.dims(node.input[0]), b.dims(node.input[1])
    if dims is None or filters is None:
        return None
    window = forward_window(b, dims[2:], filters[2:])
    given = {"strides": window.strides, "dilations": window.dilations, "group": b.given.get("group", 1)}
    given["pads"] = [*window.begin, *window.end]
    return [exact_convolution(b, Centred(node.input[0], b.input(2)), Centred(node.input[1], b.input(3)), given)]
