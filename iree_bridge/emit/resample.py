"""Emission of pooling: one ``linalg.generic`` over the tensor as it lies in memory, in any rank and layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

from fusilli_ground.late_numpy import np
from graph_api import DataType, PaddingMode
from graph_api.ops.resample import ResampleAttributes, ResampleFwdNode
from iree_bridge.emit import ordered
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.linalg import Code, Operand, element_type, generic
from iree_bridge.emit.rounded import is_elementwise
from iree_bridge.emit.window_frame import cropped
from iree_bridge.emit.window_terms import MOST_TERMS, WindowTerms, has_terms, vector_row
from iree_bridge.targets.types import builtin_tensor
from iree_bridge.targets.variants import reads_parts

__all__ = ["resample_fwd"]


@dataclass(frozen=True)
class _Pool:
    """One pooling.

    Attributes:
        attributes: of the node.
        order: the dims of x in memory order; the functions below work on tensors of this order.
        size: dims of x.
        x: padded x, in memory order.
        out: dims of y, in memory order.
        compute: type of the arithmetic.
        by_keys: the maximum is taken of keys.
        around: the padding in front of and behind each spatial dim, if x has none.
    """

    attributes: ResampleAttributes
    order: tuple[int, ...]
    size: tuple[int, ...]
    x: Value
    out: tuple[int, ...]
    compute: DataType
    by_keys: bool = False
    around: tuple[tuple[int, int], ...] = ()

    @property
    def ignores_padding(self) -> bool:
        """True if padding can never be the maximum."""
        return self.attributes.padding_mode is PaddingMode.NEG_INF_PAD

    @property
    def loops(self) -> list[str]:
        return ["parallel"] * len(self.order) + ["reduction"] * len(self.attributes.window)

    @property
    def parallel(self) -> list[str]:
        return [f"d{i}" for i in range(len(self.order))]

    def loop(self, spatial: int) -> int:
        """The loop over the output along a spatial dim."""
        return self.order.index(spatial + 2)

    def sources(self) -> list[Operand]:
        """x as the windows meet it, and a tensor that gives the reduction loops their extent."""
        rank = len(self.order)
        index = [f"d{i}" for i in range(rank)]
        for spatial, stride in enumerate(self.attributes.stride):
            index[self.loop(spatial)] = f"d{self.loop(spatial)} * {stride} + d{rank + spatial}"
        window = [f"d{rank + i}" for i in range(len(self.attributes.window))]
        return [
            Operand("%x", builtin_tensor(self.x.dims, self.x.dtype), index),
            Operand("%window", builtin_tensor(self.attributes.window, DataType.INT8), window),
        ]

    def met(self, code: Code, place: Sequence[int]) -> str:
        """What each window has at a place: the nearest element of x is read, and is it unless that is padding."""
        where, inside = [code.loop(axis) for axis in range(len(self.order))], ""
        for spatial, offset in enumerate(place):
            at, most = self.loop(spatial), self.size[spatial + 2] - 1
            start = code.scale(where[at], self.attributes.stride[spatial])
            met = code.op("addi", start, code.constant(offset - self.around[spatial][0]))
            where[at] = code.op("minsi", code.op("maxsi", met, code.constant(0)), code.constant(most))
            if not self._reaches(spatial):
                holds = code.line(f"arith.cmpi eq, {met}, {where[at]} : index")
                inside = code.op("andi", inside, holds, "i1") if inside else holds
        kind = element_type(self.x.dtype)
        element = code.line(f"tensor.extract %x[{', '.join(where)}] : {builtin_tensor(self.x.dims, self.x.dtype)}")
        if not inside:
            return element
        fill = _literal(_outside(self.attributes, self.x.dtype), self.x.dtype)
        outside = code.line(f"arith.constant {fill} : {kind}")
        return code.line(f"arith.select {inside}, {element}, {outside} : {kind}")

    def _reaches(self, spatial: int) -> bool:
        """Whether the nearest element is as good as padding: each window along this dim takes its maximum anyway."""
        before, _ = self.around[spatial]
        begin = self.attributes.stride[spatial] * (self.out[self.loop(spatial)] - 1)
        meets = before < self.attributes.window[spatial] and begin < before + self.size[spatial + 2]
        return self.attributes.is_max and self.ignores_padding and meets

    def widen(self, code: Code, value: str = "%i0") -> str:
        """An element of x in the compute type."""
        source, target = element_type(self.x.dtype), element_type(self.compute)
        if source == target:
            return value
        kind = "extf" if self.compute.is_float else "extui" if self.x.dtype is DataType.UINT8 else "extsi"
        return code.line(f"arith.{kind} {value} : {source} to {target}")


@rule("resample_fwd")
def resample_fwd(e: Emitter, node: ResampleFwdNode) -> None:
    """Pads x in its own type, then reduces in the compute type; the index is searched for once the maximum is known."""
    a, x = node.attributes, node.inputs["x"]
    value = e.read(x)
    is_truth = value.dtype is DataType.BOOLEAN  # the maximum of 0 and 1
    if is_truth or value.dtype.is_float != node.compute.is_float or value.dtype.bits > node.compute.bits:
        value = e.cast(value, node.compute)
    order = x.physical.order
    y_dims = node.outputs["y"].dims
    by_terms = _is_by_terms(e, a, order, value)
    made = (*y_dims[:-1], vector_row(y_dims[-1])) if by_terms else y_dims
    around = _around(a, x.dims, y_dims)
    by_place = _is_by_place(e, node, around)
    pool = _Pool(
        attributes=a,
        order=order,
        size=x.dims,
        around=around if by_place else (),
        x=_image(e, node, order, value) if by_place else _padded(e, node, order, value, made, even=by_terms),
        out=tuple(y_dims[axis] for axis in order),
        compute=_sums(e, node),
        by_keys=a.is_max and ordered.is_keyed(e, node.compute),
    )
    back = [order.index(axis) for axis in range(len(order))]
    y = _by_terms(e, pool, made) if by_terms else _by_loops(e, pool)
    e.write(node, "y", e.permute(y, back))
    if "index" in node.outputs:
        searched = replace(pool, x=_padded(e, node, order, value, y_dims))
        e.write(node, "index", e.permute(_index(e, searched, y), back))


def _by_loops(e: Emitter, pool: _Pool) -> Value:
    result = ordered.key_kind(pool.compute) if pool.by_keys else pool.compute
    text = _placed_function(pool) if pool.around else _pool_function(pool)
    y = e.call(text, [pool.x], pool.out, result)
    return ordered.decoded(e, y, pool.compute) if pool.by_keys else y


def _is_by_terms(e: Emitter, a: ResampleAttributes, order: Sequence[int], x: Value) -> bool:
    """Whether the window is written out: on a CPU, where the last spatial dim is innermost in memory."""
    is_row_major = list(order) == list(range(len(order)))
    return (
        not e.target.is_gpu and is_row_major and math.prod(a.window) <= MOST_TERMS and has_terms(a.stride[-1], x.dtype)
    )


def _is_by_place(e: Emitter, node: ResampleFwdNode, around: Sequence[tuple[int, int]]) -> bool:
    """Whether a GPU's kernel sees to the padding, of which the window is written out.

    The search of an index reads padded x anyway, and y as it is made: the compiler would join a window with that.
    """
    is_padded, is_small = max(map(max, around)) > 0, math.prod(node.attributes.window) <= _MOST_PLACES
    return e.target.is_gpu and is_padded and is_small and "index" not in node.outputs


def _by_terms(e: Emitter, pool: _Pool, made: Sequence[int]) -> Value:
    """y, of rows as long as ``made``, which the compiler has vectors for."""
    y = e.call(_terms_function(pool, made), [pool.x], made, pool.compute)
    if tuple(made) != pool.out:
        y = e.slice(e.barrier(y), len(made) - 1, 0, pool.out[-1])  # else rows of the length that is cut out are summed
    return y if pool.attributes.is_max else e.call(_average_function(pool), [y], pool.out, pool.compute)


def _sums(e: Emitter, node: ResampleFwdNode) -> DataType:
    """The type of the arithmetic: long averages are summed in 64 bits on a CPU, see ``accumulator``."""
    long = math.prod(node.attributes.window) >= _LONG and not node.attributes.is_max and not e.target.is_gpu
    return DataType.DOUBLE if long and node.compute is DataType.FLOAT else node.compute


_LONG = 1024
_MOST_PLACES = 27
"""Of a window that is written out on a GPU."""


def _index(e: Emitter, pool: _Pool, y: Value) -> Value:
    """Where the maxima y of the pool's padded x came from, in memory order.

    Each step is a kernel of its own, and pads for itself: the CPU compiler fails on the search together with the
    maximum, the GPU compiler on padding with two uses.
    """
    place = e.call(_search_function(pool), [pool.x, e.barrier(y)], pool.out, DataType.INT32)
    if pool.ignores_padding:
        return place
    return e.call(_decoding_function(pool), [e.barrier(place)], pool.out, DataType.INT32)


def _image(e: Emitter, node: ResampleFwdNode, order: Sequence[int], x: Value) -> Value:
    """x in memory order."""
    value = e.permute(x, order)
    return e.barrier(value) if reads_parts(node) else value


def _padded(
    e: Emitter, node: ResampleFwdNode, order: Sequence[int], x: Value, y_dims: Sequence[int], *, even: bool = False
) -> Value:
    """x in memory order, with exactly what the windows meet; ``even``: at the end of rows as much as strides divide.

    What is cut off would be cut off in the kernel of a convolution that makes x, which the compiler for a GPU may not
    be able to distribute then.
    """
    a = node.attributes
    around = [(0, 0), (0, 0), *_around(a, x.dims, y_dims)]
    if even:
        before, after = around[-1]
        around[-1] = before, after + -(x.dims[-1] + before + after) % a.stride[-1]
    image = _image(e, node, order, x)
    if e.target.is_gpu and min(map(min, around)) < 0 and not is_elementwise(e.graph, node.inputs["x"]):
        image = e.barrier(image)
    value, left = cropped(e, image, [around[axis] for axis in order], _outside(a, x.dtype))
    return e.pad(value, left, _outside(a, x.dtype))


def _around(a: ResampleAttributes, size: Sequence[int], out: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """What the windows meet in front of and behind each spatial dim; less than nothing, where they leave some of it."""
    return tuple(
        (pre, a.stride[i] * (out[i + 2] - 1) + a.window[i] - size[i + 2] - pre) for i, pre in enumerate(a.pre_padding)
    )


def _outside(a: ResampleAttributes, dtype: DataType) -> float:
    """What the padding holds."""
    return _least(dtype) if a.is_max and a.padding_mode is PaddingMode.NEG_INF_PAD else 0.0


def _least(dtype: DataType) -> float:
    return float("-inf") if dtype.is_float else dtype.range[0]


def _literal(value: float, dtype: DataType) -> str:
    if not dtype.is_float:
        return str(int(value))
    return f"0x{int.from_bytes(np.asarray(value, dtype.numpy).tobytes(), 'little'):0{dtype.bits // 4}X}"


def _start(pool: _Pool, name: str, first: str, dtype: DataType) -> list[str]:
    """Makes %window, and the tensor %NAME that is filled with ``first``."""
    out, element = builtin_tensor(pool.out, dtype), element_type(dtype)
    return [
        f"  %window = tensor.empty() : {builtin_tensor(pool.attributes.window, DataType.INT8)}",
        f"  %first = arith.constant {first} : {element}",
        f"  %empty = tensor.empty() : {out}",
        f"  %{name} = linalg.fill ins(%first : {element}) outs(%empty : {out}) -> {out}",
    ]


def _combination(pool: _Pool, number: DataType) -> str:
    """What joins two elements of a window, in the type ``number``: see `_key`."""
    if pool.by_keys:
        return ordered.operation(number, least=False)[0]
    operation = {(True, True): "maximumf", (True, False): "maxsi", (False, True): "addf", (False, False): "addi"}
    return operation[pool.attributes.is_max, number.is_float]


def _key(pool: _Pool, code: Code, element: str) -> str:
    """An element of x as it is compared or added."""
    element = pool.widen(code, element)
    return ordered.key_of(code, element, pool.compute) if pool.by_keys else element


def _pool_function(pool: _Pool) -> str:
    """From x to y, or the keys of y, both in memory order."""
    a, code = pool.attributes, Code()
    number = ordered.key_kind(pool.compute) if pool.by_keys else pool.compute
    out = builtin_tensor(pool.out, number)
    first = _literal(_least(pool.compute) if a.is_max else 0, pool.compute)
    if pool.by_keys:
        first = str(ordered.operation(number, least=False)[1])
    value = code.op(_combination(pool, number), "%o", _key(pool, code, "%i0"), element_type(number))
    result = Operand("%begun", out, pool.parallel)
    lines = [
        f"func.func private @pool(%x: {builtin_tensor(pool.x.dims, pool.x.dtype)}) -> {out} {{",
        *_start(pool, "begun", first, number),
        *generic("%total", pool.sources(), result, pool.loops, code.lines, value),
        *([] if a.is_max else _division(pool)),
        f"  return {'%total' if a.is_max else '%average'} : {out}",
        "}",
    ]
    return "\n".join(lines)


def _placed_function(pool: _Pool) -> str:
    """The same of an x without padding, with the window written out: one kernel, where padding is another one."""
    a, code = pool.attributes, Code()
    number = ordered.key_kind(pool.compute) if pool.by_keys else pool.compute
    out, name = builtin_tensor(pool.out, number), _combination(pool, number)
    keys = [_key(pool, code, pool.met(code, place)) for place in product(*map(range, a.window))]
    value = reduce(lambda one, other: code.op(name, one, other, element_type(number)), keys)
    result, loops = Operand("%empty", out, pool.parallel), ["parallel"] * len(pool.order)
    lines = [
        f"func.func private @pool(%x: {builtin_tensor(pool.x.dims, pool.x.dtype)}) -> {out} {{",
        f"  %empty = tensor.empty() : {out}",
        *generic("%total", [], result, loops, code.lines, value),
        *([] if a.is_max else _division(pool)),
        f"  return {'%total' if a.is_max else '%average'} : {out}",
        "}",
    ]
    return "\n".join(lines)


def _terms_function(pool: _Pool, dims: Sequence[int]) -> str:
    """From x to the maxima, or the sums, of windows, of these dims."""
    a, code, kind = pool.attributes, Code(), element_type(pool.compute)
    places = tuple(product(*map(range, a.window)))
    terms = WindowTerms(pool.x.dims, pool.x.dtype, tuple(dims), tuple(a.stride), places)
    lines, ins, elements = terms.written(code)
    elements = [pool.widen(code, element) for element in elements]
    if not a.is_max:
        value = reduce(
            lambda one, other: code.op("addf" if pool.compute.is_float else "addi", one, other, kind), elements
        )
    elif pool.compute.is_float:
        value = _greatest(code, elements, pool.compute)
    else:
        value = reduce(lambda one, other: code.op("maxsi", one, other, kind), elements)
    out = builtin_tensor(dims, pool.compute)
    result = Operand("%empty", out, [f"d{i}" for i in range(len(dims))])
    return "\n".join([
        f"func.func private @pool(%x: {builtin_tensor(pool.x.dims, pool.x.dtype)}) -> {out} {{",
        *lines,
        f"  %empty = tensor.empty() : {out}",
        *generic("%y", ins, result, ["parallel"] * len(dims), code.lines, value),
        f"  return %y : {out}",
        "}",
    ])  # fmt: skip


def _greatest(code: Code, elements: Sequence[str], dtype: DataType) -> str:
    """The greatest of floats, NaN if there is one: one comparison each, and one for two, where ``maximumf`` is six."""
    kind = element_type(dtype)
    greatest = elements[0]
    for element in elements[1:]:
        above = code.line(f"arith.cmpf ogt, {greatest}, {element} : {kind}")
        greatest = code.line(f"arith.select {above}, {greatest}, {element} : {kind}")
    unordered = ""
    for one, other in zip(elements[::2], [*elements[1::2], elements[-1]], strict=False):
        found = code.line(f"arith.cmpf uno, {one}, {other} : {kind}")
        unordered = code.line(f"arith.ori {unordered}, {found} : i1") if unordered else found
    nan = code.line(f"arith.constant {_literal(float('nan'), dtype)} : {kind}")
    return code.line(f"arith.select {unordered}, {nan}, {greatest} : {kind}")


def _average_function(pool: _Pool) -> str:
    """From sums of windows to their averages."""
    out = builtin_tensor(pool.out, pool.compute)
    lines = [
        f"func.func private @average(%total: {out}) -> {out} {{",
        f"  %empty = tensor.empty() : {out}",
        *_division(pool),
        f"  return %average : {out}",
        "}",
    ]
    return "\n".join(lines)


def _division(pool: _Pool) -> list[str]:
    """%average: %total by the number of elements that count."""
    out, kind = builtin_tensor(pool.out, pool.compute), element_type(pool.compute)
    ins = [Operand("%total", out, pool.parallel)]
    code, volume = Code(), 1
    lines: list[str] = []
    factors: list[str] = []
    for spatial, size in enumerate(pool.size[2:]):
        counts = pool.attributes.counts(spatial, size)
        if len(set(counts)) == 1:
            volume *= counts[0]
            continue
        kind_of_counts = builtin_tensor((len(counts),), pool.compute)
        text = ", ".join(_literal(count, pool.compute) for count in counts)
        lines.append(f"  %counts{spatial} = arith.constant dense<[{text}]> : {kind_of_counts}")
        factors.append(f"%i{len(ins)}")
        ins.append(Operand(f"%counts{spatial}", kind_of_counts, [f"d{pool.loop(spatial)}"]))
    if volume != 1 or not factors:
        factors.append(code.line(f"arith.constant {_literal(volume, pool.compute)} : {kind}"))
    divisor = factors[0]
    for factor in factors[1:]:
        divisor = code.op("mulf" if pool.compute.is_float else "muli", divisor, factor, kind)
    value = code.op("divf" if pool.compute.is_float else "divsi", "%i0", divisor, kind)
    loops = ["parallel"] * len(pool.order)
    return [*lines, *generic("%average", ins, Operand("%empty", out, pool.parallel), loops, code.lines, value)]


def _search_function(pool: _Pool) -> str:
    """From x and y to the position of the first element of each window that equals y, in i32; -1 without one.

    The position is one in x, or where padding can be the maximum, one in padded x. As an unsigned number -1 is the
    largest, so the first position is the unsigned minimum.
    """
    y, index = builtin_tensor(pool.out, pool.compute), builtin_tensor(pool.out, DataType.INT32)
    x, window = pool.sources()
    code = Code()
    element, kind = pool.widen(code), element_type(pool.compute)
    equal = "cmpf oeq" if pool.compute.is_float else "cmpi eq"
    hit = code.line(f"arith.{equal}, {element}, %i1 : {kind}")
    if pool.compute.is_float:
        least = code.line(f"arith.constant {_literal(_least(pool.compute), pool.compute)} : {kind}")
        real = code.line(f"arith.cmpf ogt, %i1, {least} : {kind}")
        hit = code.line(f"arith.andi {hit}, {real} : i1")
    place = _padded_position(pool, code)
    if pool.ignores_padding:
        inside, place = _image_position(pool, code, place)
        hit = code.line(f"arith.andi {hit}, {inside} : i1")
    number = code.line(f"arith.index_cast {place} : index to i32")
    best = code.line(f"arith.select {hit}, {number}, {code.constant(-1, 'i32')} : i32")
    value = code.op("minui", "%o", best, "i32")
    sources = [x, Operand("%y", y, pool.parallel), window]
    lines = [
        f"func.func private @search(%x: {builtin_tensor(pool.x.dims, pool.x.dtype)}, %y: {y}) -> {index} {{",
        *_start(pool, "begun", "-1", DataType.INT32),
        *generic("%place", sources, Operand("%begun", index, pool.parallel), pool.loops, code.lines, value),
        f"  return %place : {index}",
        "}",
    ]
    return "\n".join(lines)


def _decoding_function(pool: _Pool) -> str:
    """From positions in padded x, or -1, to positions in x, -1 for padding."""
    index = builtin_tensor(pool.out, DataType.INT32)
    code = Code()
    known = code.line(f"arith.cmpi sge, %i0, {code.constant(0, 'i32')} : i32")
    inside, position = _image_position(pool, code, code.line("arith.index_cast %i0 : i32 to index"))
    valid = code.line(f"arith.andi {inside}, {known} : i1")
    number = code.line(f"arith.index_cast {position} : index to i32")
    value = code.line(f"arith.select {valid}, {number}, {code.constant(-1, 'i32')} : i32")
    ins, out = Operand("%place", index, pool.parallel), Operand("%empty", index, pool.parallel)
    lines = [
        f"func.func private @decoding(%place: {index}) -> {index} {{",
        f"  %empty = tensor.empty() : {index}",
        *generic("%index", [ins], out, ["parallel"] * len(pool.order), code.lines, value),
        f"  return %index : {index}",
        "}",
    ]
    return "\n".join(lines)


def _extents(pool: _Pool) -> list[int]:
    """Spatial sizes of padded x."""
    return [pool.x.dims[pool.loop(spatial)] for spatial in range(len(pool.attributes.window))]


def _padded_position(pool: _Pool, code: Code) -> str:
    """The row-major spatial position in padded x that the loops stand at."""
    place = code.constant(0)
    for spatial, extent in enumerate(_extents(pool)):
        start = code.scale(code.loop(pool.loop(spatial)), pool.attributes.stride[spatial])
        row = code.op("addi", start, code.loop(len(pool.order) + spatial))
        place = code.op("addi", code.scale(place, extent), row)
    return place


def _image_position(pool: _Pool, code: Code, place: str) -> tuple[str, str]:
    """Whether a position in padded x lies in x, and which position in x that is."""
    rows: list[str] = []
    for extent in reversed(_extents(pool)):
        rows.insert(0, code.op("remsi", place, code.constant(extent)))
        place = code.op("divsi", place, code.constant(extent))
    inside, position = code.line("arith.constant true"), code.constant(0)
    for spatial, row in enumerate(rows):
        size = pool.size[spatial + 2]
        row = code.op("subi", row, code.constant(pool.attributes.pre_padding[spatial]))
        for condition in (f"sge, {row}, {code.constant(0)}", f"slt, {row}, {code.constant(size)}"):
            holds = code.line(f"arith.cmpi {condition} : index")
            inside = code.line(f"arith.andi {inside}, {holds} : i1")
        position = code.op("addi", code.scale(position, size), row)
    return inside, position
