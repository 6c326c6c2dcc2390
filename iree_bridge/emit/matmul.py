"""Emission of matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graph_api import DataType, TensorAttr
from graph_api.ops.matmul import MatmulNode, batch_factors
from iree_bridge.emit import products_cpu, products_fp8
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.few_rows import missing_terms
from iree_bridge.targets.types import carried, multiplied

__all__ = ["matmul", "product", "served_types", "widened"]

_BYTES = {DataType.INT8, DataType.UINT8, DataType.BOOLEAN}


@rule("matmul")
def matmul(e: Emitter, node: MatmulNode) -> None:
    """torch.aten.mm or bmm on operands of one type; the result has the compute type, in which it accumulates."""
    a, b = node.inputs["a"], node.inputs["b"]
    across = b.physical.order[-1] == len(b.dims) - 2
    dims = a.dims[-2], b.dims[-1], a.dims[-1]
    if products_fp8.is_native(e.target, a.data_type, b.data_type, dims, node.compute):
        codes = e.read(a, a.data_type), e.read(b, b.data_type)
        e.write(node, "c", product(e, *codes, DataType.FLOAT, across=across))
        return
    types = multiplied(a.data_type, is_gpu=e.target.is_gpu), multiplied(b.data_type, is_gpu=e.target.is_gpu)
    if 1 in dims[:2]:
        types = carried(a.data_type), carried(b.data_type)
    operand, result = served_types(e, types, node.compute, a.dims[-1])
    if e.target.is_gpu and operand is DataType.INT32 and not set(types) <= _BYTES:
        operand = result = (
            DataType.INT64
        )  # in 32 bits the kernel spills hundreds of registers; the low half is the same
    converted = all(tensor.data_type is not operand for tensor in (a, b))
    apart = converted and operand.is_float and e.target.is_gpu
    left, right = (widened(e, _unpacked(e, tensor, apart=apart), operand) for tensor in (a, b))
    e.write(node, "c", product(e, left, right, result, across=across))


def _unpacked(e: Emitter, tensor: TensorAttr, *, apart: bool) -> Value:
    """The tensor as it is carried; ``apart``: of less than 8 bits, unpacked by a kernel of its own.

    One that unpacks an operand, converts or unpacks the other and multiplies reads registers that nobody wrote, see
    ``docs/gpu_findings.md``.
    """
    if not apart or not tensor.data_type.is_packed:
        return e.read(tensor)
    return e.cast(e.barrier(e.read(tensor, tensor.data_type)), carried(tensor.data_type))


def widened(e: Emitter, value: Value, dtype: DataType) -> Value:
    """An operand in ``dtype``.

    The GPU compiler folds a widening conversion into the product, which then has operands of two types: no matrix
    instruction, hundreds of spilled registers, or no code at all. A sum with 0 keeps floats apart from the conversion
    and costs nothing; 64-bit integers, whose sum with 0 is folded too, need a barrier. Bytes in 32 bits do well.
    """
    same_kind = value.dtype.is_float == dtype.is_float and value.dtype is not DataType.BOOLEAN
    widens = same_kind and value.dtype.bits < dtype.bits
    value = e.cast(value, dtype)
    if not widens or not e.target.is_gpu:
        return value
    if dtype.is_float:
        return e.op("aten.add.Scalar", value.dims, dtype, value, 0.0, 1)
    return e.barrier(value) if dtype is DataType.INT64 else value


def served_types(
    e: Emitter, types: tuple[DataType, DataType], compute: DataType, terms: int
) -> tuple[DataType, DataType]:
    """`matmul_types` on a target."""
    operand, result = matmul_types(*types, compute, terms)
    if operand is DataType.BFLOAT16 and e.target.chip == "gfx908":
        operand = DataType.FLOAT  # its bf16 matrix instructions are not used: scalar code that spills
    return operand, result


def matmul_types(a: DataType, b: DataType, compute: DataType, terms: int) -> tuple[DataType, DataType]:
    """The type in which operands are multiplied, and that of the sums over ``terms`` products.

    Floats are multiplied in the wider type, which must hold both operands. 8-bit integers are summed in 32 bits, if
    these hold the sum, which is then exact; signed ones are multiplied as they are. Two compiler faults shape the rest:
    products of ui8 are computed as if they were si8, and half-precision operands with an f64 result are accumulated in
    f32.
    """
    if a in _BYTES and b in _BYTES:
        unsigned = (a is DataType.UINT8) + (b is DataType.UINT8)
        if terms * 2 ** (14 + unsigned) >= 2**31 and compute is not DataType.INT32:
            return compute, compute
        return (DataType.INT32 if unsigned else DataType.INT8), DataType.INT32
    if compute is not DataType.FLOAT:
        return compute, compute
    wide = {dtype for dtype in (a, b) if dtype not in _BYTES}
    narrow = wide <= {DataType.HALF} or wide <= {DataType.BFLOAT16}
    return (wide.pop() if narrow else compute), compute


def product(e: Emitter, a: Value, b: Value, dtype: DataType, *, across: bool, cut: bool = True) -> Value:
    """a [batch..., M, K] times b [batch..., K, N] in ``dtype``, repeating the smaller batch dims.

    An operand is never repeated in memory: batch dims that only a has become rows of a, those that only b has become
    columns of b.

    Args:
        across: the columns of b lie one after the other in memory, not its rows.
        cut: there are N columns; else there may be more, as `products_cpu.product` makes them.
    """
    factors = batch_factors(a.dims[:-2], b.dims[:-2])
    rank = len(factors)
    shared, a_own, b_own = (math.prod(factor[i] for factor in factors) for i in range(3))
    m, k, n = a.dims[-2], a.dims[-1], b.dims[-1]
    lead = (shared,) if shared > 1 else ()
    shared_axes, own_axes = [*range(0, 2 * rank, 2)], [*range(1, 2 * rank, 2)]
    rows, columns = 2 * rank, 2 * rank + 1
    a_split = [*(size for s, own, _ in factors for size in (s, own)), m, k]
    a = _rearrange(e, a, a_split, [*shared_axes, *own_axes, rows, columns], (*lead, a_own * m, k))
    b_split = [*(size for s, _, own in factors for size in (s, own)), k, n]
    b = _rearrange(e, b, b_split, [*shared_axes, rows, *own_axes, columns], (*lead, k, b_own * n))
    cut = cut or b_own > 1
    c = products_cpu.product(e, a, b, across=across, cut=cut) if dtype is DataType.FLOAT else None
    if a.dtype.is_small_float:
        c = products_fp8.product(e, a, b, across=across)
    if c is None:
        a, b = _with_terms(e, a, b, _missing(e, a, b, apart=b_own > 1))
        c = e.op("aten.bmm" if lead else "aten.mm", (*lead, a_own * m, b_own * n), dtype, a, b)
    n = n if b_own > 1 else c.dims[-1]
    c_split = [*(f[0] for f in factors), *(f[1] for f in factors), m, *(f[2] for f in factors), n]
    batch_axes = [axis for i in range(rank) for axis in (i, rank + i, 2 * rank + 1 + i)]
    dims = (*(math.prod(factor) for factor in factors), m, n)
    return _rearrange(e, c, c_split, [*batch_axes, 2 * rank, 3 * rank + 1], dims)


def _missing(e: Emitter, a: Value, b: Value, *, apart: bool) -> int:
    """How many terms a [(B,) M, K] times b [(B,) K, N] needs more for the GPU's compiler.

    It masks what a step of matrix instructions reads beyond K, but in a batched product only along rows: for the rows
    of b beyond K it reads what lies behind the matrix, or registers that nobody wrote. The other factor is zero, and
    zero times NaN or infinity is NaN. Plain products are right, and those with one row or column use no such steps.

    Args:
        apart: the columns of b are those of several matrices, whose batch the compiler keeps as a loop of its own.
    """
    terms, sides = a.dims[-1], (a.dims[-2], b.dims[-1])
    if len(a.dims) == 2 and not apart:
        return missing_terms(e, a.dtype, terms, sides)
    if not e.target.is_gpu or not a.dtype.is_float or 1 in sides:
        return 0
    return -terms % (16 if a.dtype.bits <= 16 else 4)


def _with_terms(e: Emitter, a: Value, b: Value, more: int) -> tuple[Value, Value]:
    """a [..., M, K] and b [..., K, N] with ``more`` zeros at the end of K."""
    if not more:
        return a, b
    return e.barrier(e.pad(a, [(0, 0), (0, more)])), e.barrier(e.pad(b, [(0, more), (0, 0)]))


def _rearrange(e: Emitter, value: Value, split: Sequence[int], order: Sequence[int], dims: Sequence[int]) -> Value:
    """``value`` viewed with dims ``split``, these put in ``order``, the result viewed with dims ``dims``.

    The first view only splits dims and the last only merges them: that costs nothing, doing both at once is a copy.
    """
    kept = [axis for axis, size in enumerate(split) if size > 1]
    value = e.reshape(value, [split[axis] for axis in kept])
    value = e.permute(value, [kept.index(axis) for axis in order if split[axis] > 1])
    return e.reshape(value, dims)
