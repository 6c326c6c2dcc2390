"""Products of f32 matrices on the CPU target, as one ``linalg.generic`` with tiles of our choice.

What the compiler makes of a named product by itself reaches a tenth to a half of what the processor can do.
``docs/performance.md`` has the measurements. The forms:

* columns as they lie, ``[taps, columns]``: nothing is copied, and a block of taps and columns stays in the nearest
  cache while all rows of a tile meet it;
* columns in panels ``[columns / b, taps, b]``, as wide as some vectors, whose rows follow each other in memory: for
  matrices that lie the other way, or are made for the product anyway, or whose rows take each other's places in the
  cache;
* one row: a sum of the rows of the other matrix;
* places of two images, of which each step of the inner loop takes some neighbours: the gradient of a filter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from graph_api import DataType
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand, generic
from iree_bridge.emit.reduction import total
from iree_bridge.targets.types import builtin_tensor
from iree_bridge.targets.variants import Kernels

__all__ = [
    "Shift", "as_computed", "by_columns", "by_panels", "by_places", "by_shifts", "by_stored_columns", "has_tiles",
    "kernel_of", "places_at_once", "product", "shift_columns",
]  # fmt: skip

_HALF: Final = (DataType.HALF, DataType.BFLOAT16)
_ROWS: Final = 64
"""Most rows of one tile."""
_STEP: Final = 4
"""Taps that one step of the inner loop takes."""
_TILES: Final = 32
"""Tiles that a product is cut into at least, if it can be: work for the threads."""
_FEW_TILES: Final = 4
"""Tiles that are too few to be larger than a block."""
_LARGE: Final = 16384
"""Elements of a tile of all rows, where tiles are no longer few."""
_CACHED: Final = 1 << 16
"""Elements of the columns that a tile of all rows meets: 256 KiB."""
_LEAST_COLUMNS: Final = 8
"""Columns below which vectors of the result are mostly empty."""
_LEAST_DEPTH: Final = 32
"""Taps that are summed for a tile at least before the next tile."""
_DEEP_ENOUGH: Final = 384
"""Terms of sums for which rows of the other matrix lie on many pages."""
_FEW_ROWS: Final = 32
"""Rows that do not pay for a copy of the other matrix."""
_PLACES: Final = 64
"""Places that `by_places` sums for a tile at least before the next ones."""
_PAGE: Final = 4096
"""Bytes after which lines of memory take each other's places in the nearest cache."""
_PAGED_ROWS: Final = 8
"""Rows that pay for `Kernel.paged`."""
_ROW_COLUMNS: Final = 512
"""Most columns of one tile of a product with one row: long pieces of the other matrix's rows are read at once."""
_ROW_VECTOR, _ROW_STEP = 64, 8
"""Columns and taps of its innermost loop; its sums are kept in the nearest cache meanwhile."""


@dataclass(frozen=True)
class Kernel:
    """What the innermost loops of a product compute at once.

    Attributes:
        rows: of the result.
        widths: columns of the result, the best first.
        block: elements of a tile, of the result or of columns, that the nearest cache holds beside other things. The
            compiler refuses to fill tiles of twice the size.
        many: rows of the result from which a copy of the columns into panels pays; None: it never does.
        deep: rows from which it pays where sums have `_DEEP_ENOUGH` terms; None: as elsewhere.
        paged: columns of a tile, and terms that are summed for it at a time, where rows of columns take each other's
            places in the cache; None: as elsewhere.
        channels: that `by_shifts` sums for a tile before the rest; 0: all. Of more than the nearest cache holds the
            columns are fetched anew for every few rows.
    """

    rows: int
    widths: tuple[int, ...]
    block: int
    many: int | None = None
    deep: int | None = None
    paged: tuple[int, int] | None = None
    channels: int = 0

    def width(self, columns: int) -> int:
        """The widest that leaves little of its last panel empty, else the one that leaves the least."""
        empty = {width: -columns % width for width in self.widths}
        return next((width for width in self.widths if 8 * empty[width] <= columns), min(empty, key=empty.__getitem__))


_KERNELS: Final = {
    16: Kernel(rows=4, widths=(8, 4), block=1024, many=256),
    32: Kernel(rows=4, widths=(16, 8), block=2048, many=256, deep=160, paged=(128, 16), channels=8),
    64: Kernel(rows=8, widths=(32, 16, 8), block=4096),
}
"""Bytes of a vector → as many sums as the registers hold beside their factors."""
_OTHERS: Final = {
    (16, Kernels.TALL): Kernel(rows=6, widths=(8, 4), block=1024),
    (16, Kernels.WIDE): Kernel(rows=2, widths=(16, 8, 4), block=1024),
    (32, Kernels.TALL): Kernel(rows=6, widths=(16, 8), block=2048),
    (32, Kernels.WIDE): Kernel(rows=2, widths=(32, 16, 8), block=2048),
    (64, Kernels.TALL): Kernel(rows=12, widths=(32, 16, 8), block=4096),
    (64, Kernels.WIDE): Kernel(rows=6, widths=(64, 32, 16, 8), block=4096),
}


def kernel_of(e: Emitter) -> Kernel:
    """The kernel of a CPU target, in the graph's variant."""
    nbytes = e.target.vector_bytes
    return _OTHERS.get((nbytes, e.variant.kernels), _KERNELS[nbytes])


def has_tiles(e: Emitter) -> bool:
    """Whether products have tiles of ours."""
    return not e.target.is_gpu and e.variant.kernels is not Kernels.COMPILER


def as_computed(e: Emitter, value: Value) -> Value:
    """f16 and bf16 operands as f32 on the CPU.

    A kernel of their own makes them, so that the inner loop of the product has one element type.
    """
    if e.target.is_gpu or value.dtype not in _HALF:
        return value
    return e.barrier(e.cast(value, DataType.FLOAT))


def product(e: Emitter, a: Value, b: Value, *, across: bool, cut: bool = True) -> Value | None:
    """a [B, M, K] times b [B, K, N] with an equal batch, or [M, K] times [K, N]; None: the torch form is as good.

    Args:
        across: the columns of b lie one after the other in memory, not its rows.
        cut: there are N columns; else there may be more, whatever they hold, since cutting them off is a copy.
    """
    if not has_tiles(e) or {a.dtype, b.dtype} - {DataType.FLOAT, *_HALF}:
        return None
    m, n = a.dims[-2], b.dims[-1]
    copies = across or b.dtype in _HALF
    if n < _LEAST_COLUMNS or (copies and m < _FEW_ROWS):
        return None
    parts = _parts(m, a.dims[-1], n)
    if parts > 1:
        return _in_parts(e, a, b, parts, across=across)
    a = as_computed(e, a)
    if across:
        return _by_copied_columns(e, a, b, across=True) if cut else _in_panels(e, a, b, across=True)
    return _one_row(e, a, as_computed(e, b)) if m == 1 else by_stored_columns(e, a, b)


def _parts(m: int, k: int, n: int) -> int:
    """Into how many parts of the depth a product is cut, so that no sum adds thousands of terms one by one.

    As few as leave at most some hundreds to each, of equal size, and no more than make the parts of the result as large
    as the factors are.
    """
    if m == 1 or k < _DEEP:
        return 1
    most = k * (m + n) // (m * n)
    fitting = (count for count in range(-(-k // _DEEPEST_PART), min(most, k // _LEAST_PART) + 1)
               if k % count == 0 and k // count % _STEP == 0)  # fmt: skip
    return next(fitting, 1)


_DEEP, _DEEPEST_PART, _LEAST_PART = 4096, 1024, 256


def _in_parts(e: Emitter, a: Value, b: Value, parts: int, *, across: bool) -> Value | None:
    """The sum of the products of as many parts of the depth."""
    *lead, m, k = a.dims
    n, depth, at = b.dims[-1], k // parts, len(lead)
    a = e.permute(e.reshape(a, (*lead, m, parts, depth)), [*range(at), at + 1, at, at + 2])
    b = e.reshape(b, (*lead, parts, depth, n))
    c = product(e, a, b, across=across)
    if c is None:
        return None
    return e.reshape(total(e, c, [at]), (*lead, m, n))


def _copies(e: Emitter, m: int, k: int, n: int) -> bool:
    """Whether the columns are worth a copy into panels though they lie row by row.

    Most caches find their lines by the address modulo 4096, so rows of some widths take each other's places.
    """
    kernel = kernel_of(e)
    if 4 * n % _PAGE == 0:
        return m >= _ROWS
    enough = kernel.deep if kernel.deep and k >= _DEEP_ENOUGH else kernel.many
    return enough is not None and m >= enough and n % kernel.widths[0] == 0


def by_stored_columns(e: Emitter, rows: Value, columns: Value) -> Value:
    """`by_columns` of a matrix that was not made for this product; copied into panels if that pays."""
    if _copies(e, rows.dims[-2], rows.dims[-1], columns.dims[-1]):
        return _by_copied_columns(e, rows, columns, across=False)
    return by_columns(e, rows, as_computed(e, columns))


def _by_copied_columns(e: Emitter, a: Value, b: Value, *, across: bool) -> Value:
    return e.slice(_in_panels(e, a, b, across=across), len(b.dims) - 1, 0, b.dims[-1])


def _in_panels(e: Emitter, a: Value, b: Value, *, across: bool) -> Value:
    """a [B..., M, K] times b [B..., K, N]: [B..., M, N and what fills the last panel]."""
    *lead, k, n = b.dims
    width, at = kernel_of(e).width(n), len(lead)
    if across:  # columns are filled up as they lie, or one kernel would turn them and another one make the panels
        b = e.pad(e.permute(b, [*range(at), at + 1, at]), [(0, -n % width), (0, 0)])
        b = e.permute(e.reshape(b, (*lead, b.dims[at] // width, width, k)), [*range(at), at, at + 2, at + 1])
    else:
        b = e.pad(b, [(0, -n % width)])
        b = e.permute(e.reshape(b, (*lead, k, b.dims[-1] // width, width)), [*range(at), at + 1, at, at + 2])
    b = e.cast(b, DataType.FLOAT)
    c = by_panels(e, a, e.barrier(b))
    return e.reshape(c, (*lead, a.dims[-2], math.prod(c.dims[-2:])))


def _one_row(e: Emitter, a: Value, b: Value) -> Value:
    """a [B..., 1, K] times b [B..., K, N]: [B..., 1, N]. Loops of extent 1 would cost the compiler's tiles."""
    *lead, k, n = b.dims
    tile = _tile(n, _LEAST_COLUMNS, _ROW_COLUMNS, whole=_ROW_COLUMNS)
    batch = [f"d{i}" for i in range(len(lead))]
    j, t = (f"d{i + len(lead)}" for i in range(2))
    factors = (e.reshape(a, (*lead, k)), [*batch, t]), (b, [*batch, t, j])
    ones = [1] * len(lead)
    y = _sum_of_products(
        e, factors, (*lead, n), (*ones, tile), (*ones, min(tile, _ROW_VECTOR)), step=_ROW_STEP, depth=_ROW_STEP
    )
    return e.reshape(y, (*lead, 1, n))


def by_panels(e: Emitter, rows: Value, panels: Value) -> Value:
    """rows [M, taps] or [batch..., M, taps] times panels [batch..., B, taps, b]: [batch..., M, B, b]."""
    kernel, m, (*lead, count, _, width) = kernel_of(e), rows.dims[-2], panels.dims
    height = _tile(m, kernel.rows, _ROWS, whole=4 * _ROWS)
    share = _largest_divisor(count, max(kernel.block // (height * width), 1))
    while share > 1 and math.prod(lead) * -(-m // height) * (count // share) < _TILES:
        share = _largest_divisor(count, share - 1)
    batch = [f"d{axis}" for axis in range(len(lead))]
    i, b, j, t = (f"d{axis + len(lead)}" for axis in range(4))
    ones = [1] * len(lead)
    tile, vector = (*ones, height, share, width), (*ones, min(m, kernel.rows), 1, width)
    factors = (rows, [*batch[: len(rows.dims) - 2], i, t]), (panels, [*batch, b, t, j])
    return _sum_of_products(e, factors, (*lead, m, count, width), tile, vector)


def by_columns(e: Emitter, rows: Value, columns: Value) -> Value:
    """rows [M, taps] or [batch..., M, taps] times columns [batch..., taps, P]: [batch..., M, P]."""
    kernel, m, (*lead, _, places) = kernel_of(e), rows.dims[-2], columns.dims
    height, across, width = _column_tiles(kernel, m, rows.dims[-1], places, math.prod(lead))
    batch = [f"d{axis}" for axis in range(len(lead))]
    i, j, t = (f"d{axis + len(lead)}" for axis in range(3))
    ones = [1] * len(lead)
    tile, vector = (*ones, height, across), (*ones, min(m, kernel.rows), width)
    factors = (rows, [*batch[: len(rows.dims) - 2], i, t]), (columns, [*batch, t, j])
    depth = max(kernel.block // across, _LEAST_DEPTH) if height * across <= kernel.block else 0
    if kernel.paged and 4 * places % _PAGE == 0 and 4 * places > _PAGE and _PAGED_ROWS <= m < _ROWS:
        across, depth = kernel.paged
    return _sum_of_products(e, factors, (*lead, m, places), tile, vector, depth=depth)


@dataclass(frozen=True)
class Shift:
    """A matrix of columns in a larger tensor.

    Attributes:
        image: which tensor it is in.
        lead: index of the leading dims of that.
        offset: of the first column.
    """

    image: int
    lead: tuple[int, ...]
    offset: int


def shift_columns(e: Emitter) -> int:
    """What the number of columns of `by_shifts` is a multiple of."""
    return kernel_of(e).widths[0]


def by_shifts(e: Emitter, rows: Value, images: Sequence[Value], shifts: Sequence[Shift], columns: int) -> Value:
    """The sum of the products rows [..., :, :, t] [M, K] times the columns [K, P] at shift t of the images.

    The sum over t is written out in the innermost loop.

    Args:
        rows: [groups..., M, K, T].
        images: each [lead..., batch..., groups..., K, L].
        shifts: T of them.
        columns: P, which `shift_columns` divides.

    Returns:
        [batch..., groups..., M, P]
    """
    kernel, (*groups, m, depth, _) = kernel_of(e), rows.dims
    skip = len(shifts[0].lead)
    lead = images[0].dims[skip:-2]
    dims = (*lead, m, columns)
    matrix, part = (
        builtin_tensor((*groups, m, depth), DataType.FLOAT),
        builtin_tensor((*lead, depth, columns), DataType.FLOAT),
    )
    sources = [builtin_tensor(each.dims, DataType.FLOAT) for each in images]
    batch = [f"d{i}" for i in range(len(lead))]
    i, j, t = (f"d{i + len(lead)}" for i in range(3))
    row_index, column_index = [*batch[len(lead) - len(groups) :], i, t], [*batch, t, j]
    lines, ins, code, total = list[str](), list[Operand](), Code(), ""
    for at, shift in enumerate(shifts):
        begin = [*shift.lead, *[0] * (len(lead) + 1), shift.offset]
        sizes = [*[1] * skip, *lead, depth, columns]
        lines += [
            f"  %w{at} = tensor.extract_slice %w{[*[0] * (len(groups) + 2), at]} {[*groups, m, depth, 1]} "
            f"{[1] * len(rows.dims)} : {builtin_tensor(rows.dims, DataType.FLOAT)} to {matrix}",
            f"  %x{at} = tensor.extract_slice %image{shift.image}{begin} {sizes} {[1] * len(sizes)} : "
            f"{sources[shift.image]} to {part}",
        ]
        ins += [Operand(f"%w{at}", matrix, row_index), Operand(f"%x{at}", part, column_index)]
        term = code.op("mulf", f"%i{2 * at}", f"%i{2 * at + 1}", "f32")
        total = code.op("addf", total, term, "f32") if total else term
    value = code.op("addf", total, "%o", "f32")
    width, ones = kernel.widths[0], [1] * len(lead)
    channels = kernel.channels * (8 if len(shifts) == 1 else 1)  # sums are kept in memory between two turns
    in_turn = channels if channels and depth > channels and depth % channels == 0 else 0
    across = 2 * width if in_turn and columns % (2 * width) == 0 else width
    tile = (*ones, _tile(m, kernel.rows, _ROWS, whole=2 * _ROWS), across)
    vector = (*ones, min(m, kernel.rows), width)
    given = ", ".join(f"%image{number}: {kind}" for number, kind in enumerate(sources))
    result = builtin_tensor(dims, DataType.FLOAT)
    text = [
        f"func.func private @shifted(%w: {builtin_tensor(rows.dims, DataType.FLOAT)}, {given}) -> {result} {{",
        *lines,
        *_summed(ins, code, value, dims, tile, vector, step=1, depth=in_turn),
        "}",
    ]
    return e.call("\n".join(text), [rows, *images], dims, DataType.FLOAT)


def places_at_once(out: Sequence[int]) -> int:
    """How many neighbours one step of `by_places` takes; 0: it does not serve such places.

    The compiler drops loops of extent 1, and with them the tiles, and makes scalars of a sum of single products over
    several loops.
    """
    fitting = (count for count in (4, 2) if out[-1] % count == 0 and out[-1] > count)
    return next(fitting, 0) if min(out) > 1 else 0


def by_places(e: Emitter, dy: Value, image: Value, begin: Sequence[int], stride: Sequence[int]) -> Value:
    """The sums over places of the products of all rows and all columns that meet there.

    Args:
        dy: rows, [parts, N, out..., K].
        image: columns, [parts, N, spatial..., C]; of each spatial dim ``begin`` meets the first place, and the next
            ones are ``stride`` apart.

    Returns:
        [parts, K, C]
    """
    kernel, (parts, count, *out, k), c = kernel_of(e), dy.dims, image.dims[-1]
    at_once = places_at_once(out)
    out[-1] //= at_once
    places = [f"at{axis}" for axis in range(len(out))]
    sizes = {"part": parts, "row": k, "column": c, "picture": count, **dict(zip(places, out, strict=True))}
    loops = {name: f"d{i}" for i, name in enumerate(name for name, size in sizes.items() if size > 1)}
    lead = [name for name in ("part", "picture") if name in loops]
    lead_dims = [sizes[name] for name in lead]
    dy, image = e.reshape(dy, (*lead_dims, *dy.dims[2:])), e.reshape(image, (*lead_dims, *image.dims[2:]))
    lines, ins, code, total = list[str](), list[Operand](), Code(), ""
    for at in range(at_once):
        own = [*[0] * (len(out) - 1), at], [*[1] * (len(out) - 1), at_once]
        met = [*begin[:-1], begin[-1] + at * stride[-1]], [*stride[:-1], at_once * stride[-1]]
        for name, value, axis, (first, step) in (("dy", dy, "row", own), ("x", image, "column", met)):
            dims = [*lead_dims, *out, sizes[axis]]
            view = builtin_tensor(dims, DataType.FLOAT)
            lines.append(
                f"  %{name}{at} = tensor.extract_slice %{name}{[*[0] * len(lead), *first, 0]} {dims} "
                f"{[*[1] * len(lead), *step, 1]} : {builtin_tensor(value.dims, DataType.FLOAT)} to {view}"
            )
            ins.append(Operand(f"%{name}{at}", view, [loops[each] for each in (*lead, *places, axis)]))
        term = code.op("mulf", f"%i{2 * at}", f"%i{2 * at + 1}", "f32")
        total = code.op("addf", total, term, "f32") if total else term
    total = code.op("addf", total, "%o", "f32")
    height, across, width = _column_tiles(kernel, k, None, c, parts)
    block = {"picture": 1, **dict.fromkeys(places[:-1], 1)}
    if len(out) > 1:
        block[places[-2]] = _largest_divisor(out[-2], max(_PLACES // (at_once * out[-1]), 1))
    tiles = _Tiles(
        tile={"part": 1, "row": height, "column": across},
        block=block,
        vector={"part": 1, "row": min(k, kernel.rows), "column": width},
        step=dict.fromkeys(("picture", *places), 1),
    )
    results = [name for name in ("part", "row", "column") if name in loops]
    dims = [sizes[name] for name in results]
    result, given = builtin_tensor(dims, DataType.FLOAT), [builtin_tensor(v.dims, DataType.FLOAT) for v in (dy, image)]
    kinds = ["parallel" if name in results else "reduction" for name in loops]
    begun = Operand("%begun", result, [loops[name] for name in results])
    text = [
        f"func.func private @places(%dy: {given[0]}, %x: {given[1]}) -> {result} {{",
        *lines,
        *_begun(result),
        *generic("%y", ins, begun, kinds, code.lines, total, attributes=tiles.attributes(list(loops))),
        f"  return %y : {result}",
        "}",
    ]
    return e.reshape(e.call("\n".join(text), [dy, image], dims, DataType.FLOAT), (parts, k, c))


@dataclass(frozen=True)
class _Tiles:
    """Extents by loop: of a tile, of what is summed for it at a time, of the kernel, and of a step of its sums."""

    tile: Mapping[str, int]
    block: Mapping[str, int]
    vector: Mapping[str, int]
    step: Mapping[str, int]

    def attributes(self, loops: Sequence[str]) -> str:
        """What tells the compiler."""
        each = self.tile, self.block, self.vector, self.step
        tile, block, vector, step = ([extents.get(loop, 0) for loop in loops] for extents in each)
        blocks = f"cache_reduction = {block}, " if any(block) else ""
        return (
            "{compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<"
            f"distribution = {tile}, cache_parallel = {tile}, {blocks}vector_common_parallel = {vector}, "
            f"vector_reduction = {step}>, translation_info = #iree_codegen.translation_info<"
            "pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, {enable_loop_peeling}>>}"
        )


def _begun(result: str) -> list[str]:
    return [
        "  %zero = arith.constant 0.0 : f32",
        f"  %empty = tensor.empty() : {result}",
        f"  %begun = linalg.fill ins(%zero : f32) outs(%empty : {result}) -> {result}",
    ]


def _column_tiles(kernel: Kernel, m: int, terms: int | None, places: int, others: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, columns of the kernel.

    What is left at the end of the columns is done in scalars where it is a tile of its own, so tiles divide the
    columns, or are all of them, if they can. Where vectors do not divide them, tiles may be larger than a block: all
    taps are then done at once.

    Args:
        terms: of each sum; None: they are summed in turns, for tiles that are not much larger than a block.
        others: how many such products there are.
    """
    most = kernel.block // (2 * kernel.rows)
    for width in kernel.widths[:-1]:
        whole = [across for across in range(width, min(most, places) + 1, width) if places % across == 0]
        if whole:
            few = [across for across in whole if across * min(m, _ROWS) <= kernel.block]
            across = max(few) if few else min(whole)
            return _height(kernel, m, terms, across, others * places // across), across, width
    width = next((width for width in kernel.widths if 8 * (places % width) <= places), kernel.widths[-1])
    width = min(width, places)
    if places <= most:
        return _height(kernel, m, terms, places, others), places, width
    limit = 2 * _LARGE if terms is not None else 3 * kernel.block // 2
    most = min(most, limit // min(m, _ROWS))
    divisors = [n for n in range(2 * width, most + 1) if places % n == 0 and _is_vector(n % width)]
    across = max(divisors, default=2 * width)
    return _tile(m, kernel.rows, _ROWS, whole=min(4 * _ROWS, limit // across), even=terms is None), across, width


def _sum_of_products(
    e: Emitter,
    factors: Sequence[tuple[Value, Sequence[str]]],
    dims: Sequence[int],
    tile: Sequence[int],
    vector: Sequence[int],
    *,
    step: int = _STEP,
    depth: int = 0,
) -> Value:
    """The sums over the last loop of the products of two factors, each with its index; ``dims`` are the other loops.

    Args:
        tile, vector: extents for each loop.
        step: of the last loop, what one step of the kernel takes, if that divides it.
        depth: of the last loop, what is done for a whole tile before the rest; 0: all.
    """
    types = [builtin_tensor(value.dims, DataType.FLOAT) for value, _ in factors]
    code = Code()
    total = code.op("addf", "%o", code.op("mulf", "%i0", "%i1", "f32"), "f32")
    ins = [Operand(name, kind, index) for name, kind, (_, index) in zip(("%a", "%b"), types, factors, strict=True)]
    taps = factors[0][0].dims[-1]
    lines = [
        f"func.func private @product(%a: {types[0]}, %b: {types[1]}) -> {builtin_tensor(dims, DataType.FLOAT)} {{",
        *_summed(
            ins,
            code,
            total,
            dims,
            tile,
            vector,
            step=step if taps % step == 0 else 1,
            depth=depth if taps > depth else 0,
        ),
        "}",
    ]
    return e.call("\n".join(lines), [value for value, _ in factors], dims, DataType.FLOAT)


def _summed(
    ins: Sequence[Operand],
    code: Code,
    value: str,
    dims: Sequence[int],
    tile: Sequence[int],
    vector: Sequence[int],
    *,
    step: int,
    depth: int = 0,
) -> list[str]:
    """The rest of a function: it returns the sum over one loop more than there are ``dims``; `_sum_of_products`."""
    result = builtin_tensor(dims, DataType.FLOAT)
    *loops, sums = (f"d{i}" for i in range(len(dims) + 1))
    begun = Operand("%begun", result, loops)
    tiles = _Tiles(
        tile=dict(zip(loops, tile, strict=True)),
        block={sums: depth},
        vector=dict(zip(loops, vector, strict=True)),
        step={sums: step},
    )
    kinds = [*["parallel"] * len(dims), "reduction"]
    return [
        *_begun(result),
        *generic("%y", ins, begun, kinds, code.lines, value, attributes=tiles.attributes([*loops, sums])),
        f"  return %y : {result}",
    ]


def _is_vector(elements: int) -> bool:
    """Whether a vector of so many elements needs no parts of several lengths; there may be none."""
    return elements & (elements - 1) == 0


def _height(kernel: Kernel, m: int, terms: int | None, across: int, others: int) -> int:
    """Rows of a tile that has so many columns, which have so many terms, of so many tiles side by side.

    A tile of all rows is larger than a block, so all terms are summed for it at once, and the columns are to fit into a
    cache; sums in turns, of no number of terms, have none.
    """
    most = min(_ROWS, max(kernel.block // across, kernel.rows))
    fits = terms is not None and terms * across <= _CACHED
    whole = _LARGE if others >= _FEW_TILES and fits else 3 * kernel.block // 2
    return _tile(m, kernel.rows, most, whole=min(4 * _ROWS, whole // across), even=not fits)


def _tile(size: int, step: int, most: int, *, whole: int, even: bool = False) -> int:
    """Extent of the tiles of a loop: a multiple of ``step`` up to ``most``, which leaves the smallest rest.

    What is left behind the last tile is slow, so a loop up to ``whole`` that no tile divides is one tile.

    Args:
        even: otherwise the last tile is to be about as large as the others.
    """
    if size <= most:
        return size
    tile = min(range(most // step * step, most // 3, -step), key=lambda tile: size % tile)
    if size % tile == 0 or (size > whole and not even):
        return tile
    count = -(-size // most)
    return size if size <= whole else -(-size // (step * count)) * step


def _largest_divisor(value: int, most: int) -> int:
    return max(divisor for divisor in range(1, most + 1) if value % divisor == 0)
