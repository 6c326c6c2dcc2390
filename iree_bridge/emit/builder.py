"""Operations of the torch dialect, made one at a time: values, constants, casts, layouts, calls of own functions."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from fusilli_ground.late_numpy import np
from graph_api import DataType
from iree_bridge.emit import linalg, parts, small_floats
from iree_bridge.emit.corrections import builtin_type, correct, make_halves, reduce_angles
from iree_bridge.emit.index_bounds import keep_inside
from iree_bridge.emit.mlir import ir
from iree_bridge.targets.barriers import BARRIER
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import ELEMENT, TORCH_CODE, builtin_tensor, value_tensor

__all__ = ["Builder", "Value"]


@dataclass(frozen=True)
class Value:
    """A tensor value in the function: SSA value, logical dims, element type; what every element is, where known."""

    ssa: Any
    dims: tuple[int, ...]
    dtype: DataType
    number: float | None = None

    def named(self, dtype: DataType) -> Value:
        """The same bytes, said to be of another type of bytes."""
        return replace(self, dtype=dtype, number=None)


class Builder:
    """Makes operations at MLIR's insertion point, in a function whose constants stand at its start."""

    def __init__(self, target: Target, module: Any, *, bf16: bool) -> None:
        """``bf16``: whether values of the function may be rounded to BFLOAT16."""
        self.target = target
        self._module = module
        self._holds_bf16 = bf16 and target.backend == "llvm-cpu"
        self._types: dict[str, Any] = {}
        self._constants: dict[object, Any] = {}
        self._functions: dict[str, tuple[str, frozenset[int]]] = {}
        """By text: the name, and the numbers of the arguments of which elements are taken one by one."""
        self._padded: set[object] = set()
        self._entry: Any = None

    @contextlib.contextmanager
    def location(self, name: str) -> Generator[None]:
        """Operations made inside carry ``name`` in their location."""
        with ir.Location.name(name):
            yield

    @property
    def module_body(self) -> Any:
        """The block of the module, for rules that bring functions of their own."""
        return self._module.body

    def op(self, name: str, dims: Sequence[int], dtype: DataType, *operands: Any) -> Value:
        """A torch operation with one tensor result; operands are values, SSA values, or Python numbers and lists."""
        dims = tuple(dims)
        result = self.type(value_tensor(dims, dtype))
        made = ir.Operation.create(f"torch.{name}", results=[result], operands=[self.operand(o) for o in operands])
        return Value(made.result, dims, dtype)

    def operand(self, value: Any) -> Any:
        """The SSA value of an operand: bool, int, float, None and lists of ints become constants."""
        if isinstance(value, Value):
            return value.ssa
        if isinstance(value, bool | int | float | type(None)):
            return self.constant(value)
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            return self.list([self.operand(item) for item in items], items)
        return value

    def constant(self, value: bool | float | None) -> Any:
        """A torch scalar constant; made once, at the start of the function."""
        key = (type(value), value if not isinstance(value, float) else struct.pack("d", value))
        if key not in self._constants:
            self._constants[key] = self._at_start(lambda: self._scalar(value))
        return self._constants[key]

    def string(self, text: str) -> Any:
        """A torch string constant."""
        key = ("str", text)
        if key not in self._constants:
            attributes = {"value": ir.StringAttr.get(text)}
            result = self.type("!torch.str")
            self._constants[key] = self._at_start(
                lambda: ir.Operation.create("torch.constant.str", results=[result], attributes=attributes).result
            )
        return self._constants[key]

    def list(self, items: Sequence[Any], key: Sequence[Any] = ()) -> Any:
        """A list of scalars (ints by default) or of tensors."""
        kind = "vtensor" if items and "tensor" in str(items[0].type) else "int"
        if kind == "vtensor":
            result = self.type("!torch.list<vtensor>")
            return ir.Operation.create("torch.prim.ListConstruct", results=[result], operands=list(items)).result
        name = (list, tuple(key))
        if name not in self._constants:
            result = self.type("!torch.list<int>")
            self._constants[name] = self._at_start(
                lambda: ir.Operation.create("torch.prim.ListConstruct", results=[result], operands=list(items)).result
            )
        return self._constants[name]

    def type(self, text: str) -> Any:
        """An MLIR type, parsed once."""
        if text not in self._types:
            self._types[text] = ir.Type.parse(text)
        return self._types[text]

    def splat(self, value: float, dims: Sequence[int], dtype: DataType, *, through: DataType | None = None) -> Value:
        """A constant tensor of equal elements; ``through``: rounded to that type first."""
        number = np.asarray(value)
        if through is not None:
            number = through.rounded(number)
        number = number.astype(dtype.numpy)
        text = _literal(number, dtype)
        element = ELEMENT[dtype]
        shape = "x".join([*map(str, dims), element])
        made = ir.Operation.create(
            "torch.vtensor.literal",
            results=[self.type(value_tensor(dims, dtype))],
            attributes={"value": ir.Attribute.parse(f"dense<{text}> : tensor<{shape}>")},
        )
        return Value(made.result, tuple(dims), dtype, number.item())

    def cast(self, value: Value, dtype: DataType) -> Value:
        """``value`` in another element type; floats to integers truncate towards zero, to booleans compare with 0."""
        if value.dtype is dtype:
            return value
        if value.dtype.is_small_float:
            return self.cast(small_floats.decoded(self, value), dtype)
        if dtype.is_small_float:
            return small_floats.encoded(self, self._as_float(value), dtype)
        if value.dtype.is_packed:
            return self.cast(value.named(DataType.INT8), dtype)
        if dtype.is_packed:
            return self._clamped(value, dtype)
        if dtype is DataType.BOOLEAN:
            return self.op("aten.ne.Scalar", value.dims, dtype, value, 0.0 if value.dtype.is_float else 0)
        if dtype is DataType.BFLOAT16 and not value.dtype.is_float:
            return self.cast(self.cast(value, DataType.FLOAT), dtype)
        if value.dtype is DataType.BFLOAT16 and not dtype.is_float:
            value = self.cast(value, DataType.FLOAT)
        if dtype is DataType.UINT8 and value.dtype.is_float:
            # The compiler converts floats to signed bytes, whatever the type says: 128 to 254 would become 127.
            value = self.cast(value, DataType.INT32)
        if (value.dtype, dtype) == (DataType.DOUBLE, DataType.HALF) and self.target.backend == "llvm-cpu":
            # What IREE links in for it goes through FLOAT too, but makes 0 of all results below 2**-14.
            value = self.cast(value, DataType.FLOAT)
        if dtype.is_float and not value.dtype.is_float and self._holds_bf16:
            return self._number_for_bf16(value, dtype)
        return self.op("prims.convert_element_type", value.dims, dtype, value, TORCH_CODE[dtype])

    def _as_float(self, value: Value) -> Value:
        """``value`` in a type that small floats are made of: DOUBLE where FLOAT would round first."""
        exact = value.dtype.is_float or value.dtype.bits <= 16
        return self.cast(value, DataType.FLOAT if exact and value.dtype.bits <= 32 else DataType.DOUBLE)

    def _clamped(self, value: Value, dtype: DataType) -> Value:
        """``value`` as INT4 or UINT4: to nearest, ties to even, limited to what the type has; NaN is 0."""
        low, high = dtype.range
        if not value.dtype.is_float:
            number = self.cast(value, DataType.INT8) if value.dtype is DataType.BOOLEAN else value
            number = self.op("aten.clamp", number.dims, number.dtype, number, low, high)
            return self.cast(number, DataType.INT8).named(dtype)
        number = value if value.dtype is DataType.DOUBLE else self.cast(value, DataType.FLOAT)
        is_nan = self.op("aten.ne.Tensor", number.dims, DataType.BOOLEAN, number, number)
        zero = self.splat(0.0, (1,) * len(number.dims), number.dtype)
        number = self.op("aten.where.self", number.dims, number.dtype, is_nan, zero, number)
        number = self.op("aten.clamp", number.dims, number.dtype, number, float(low), float(high))
        number = self.op("aten.round", number.dims, number.dtype, number)
        return self.cast(number, DataType.INT8).named(dtype)

    def _number_for_bf16(self, value: Value, dtype: DataType) -> Value:
        """An integer or boolean as a float that may be rounded to bf16 later.

        The compiler folds the rounding into the conversion, and a CPU without bf16 instructions then lacks a library
        function (``__truncsfbf2``) at link time. The sum with 0 stands between them.
        """
        if value.dtype is DataType.BOOLEAN:
            one, zero = (self.splat(number, (1,) * len(value.dims), dtype) for number in (1, 0))
            return self.op("aten.where.self", value.dims, dtype, value, one, zero)
        number = self.op("prims.convert_element_type", value.dims, dtype, value, TORCH_CODE[dtype])
        return self.op("aten.add.Scalar", value.dims, dtype, number, 0.0, 1)

    def permute(self, value: Value, axes: Sequence[int]) -> Value:
        """``value`` with its dims reordered: dim i of the result is dim ``axes[i]``."""
        axes = list(axes)
        if axes == sorted(axes):
            return value
        return self.op("aten.permute", [value.dims[axis] for axis in axes], value.dtype, value, axes)

    def expand(self, value: Value, dims: Sequence[int]) -> Value:
        """``value`` broadcast to ``dims``."""
        if value.dims == tuple(dims):
            return value
        return self.op("aten.broadcast_to", dims, value.dtype, value, list(dims))

    def reshape(self, value: Value, dims: Sequence[int]) -> Value:
        """``value`` in row-major order with other dims."""
        if value.dims == tuple(dims):
            return value
        return self.op("aten.view", dims, value.dtype, value, list(dims))

    def pad(self, value: Value, amounts: Sequence[tuple[int, int]], fill: float = 0.0) -> Value:
        """``value`` with ``(before, after)`` constants for each of its trailing dims."""
        if not any(before or after for before, after in amounts):
            return value
        lead = len(value.dims) - len(amounts)
        dims = [*value.dims[:lead], *(d + b + a for d, (b, a) in zip(value.dims[lead:], amounts, strict=True))]
        if fill and value.dtype.bits == 64:
            around = [*[(0, 0)] * lead, *amounts]
            literal = _literal(np.asarray(fill, value.dtype.numpy), value.dtype)
            return self.call(linalg.padded(value.dims, value.dtype, around, literal), [value], dims, value.dtype)
        value = self.padded_once(value, amounts, fill)
        flat = [amount for pair in reversed(amounts) for amount in pair]
        number = fill if value.dtype.is_float else int(fill)
        return self.op("aten.constant_pad_nd", dims, value.dtype, value, flat, number)

    def padded_once(self, value: Value, amounts: Sequence[tuple[int, int]], fill: float = 0.0) -> Value:
        """``value``, which is about to be padded; behind a barrier if an equal one has been padded like this before.

        The compiler merges equal paddings, and for a GPU fails on one with two uses ("linalg.fill op write affecting
        operations on shared resources").
        """
        if not self.target.is_gpu or not any(before or after for before, after in amounts):
            return value
        key = (_computation(value.ssa, 8), tuple(amounts), fill)
        if key in self._padded:
            return self.barrier(value)
        self._padded.add(key)
        return value

    def slice(self, value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """``value[start:stop:step]`` along one dim."""
        if (start, stop, step) == (0, value.dims[axis], 1):
            return value
        dims = list(value.dims)
        dims[axis] = len(range(start, stop, step))
        return self.op("aten.slice.Tensor", dims, value.dtype, value, axis, start, stop, step)

    def barrier(self, value: Value) -> Value:
        """``value`` as something that the compiler does not look through until kernels are cut."""
        return Value(self._barrier(value.ssa), value.dims, value.dtype)

    def _barrier(self, value: Any) -> Any:
        """The same of an SSA value of the torch dialect."""
        builtin = builtin_type(value.type)
        plain = ir.Operation.create("torch_c.to_builtin_tensor", results=[builtin], operands=[value]).result
        kept = ir.Operation.create(BARRIER, results=[builtin], operands=[plain]).result
        return ir.Operation.create("torch_c.from_builtin_tensor", results=[value.type], operands=[kept]).result

    def call(self, text: str, operands: Sequence[Value], dims: Sequence[int], dtype: DataType) -> Value:
        """The result of a function on builtin tensors, for what the torch dialect cannot say.

        ``text`` is one ``func.func private @NAME``, whose signature is that of the operands and the result; the
        function is added to the module once and inlined by the compiler.
        """
        return self.calls(text, operands, [(dims, dtype)])[0]

    def calls(
        self, text: str, operands: Sequence[Value], results: Sequence[tuple[Sequence[int], DataType]]
    ) -> list[Value]:
        """As :meth:`call`, of a function with several results."""
        plain = [
            ir.Operation.create(
                "torch_c.to_builtin_tensor", results=[self.type(builtin_tensor(v.dims, v.dtype))], operands=[v.ssa]
            ).result
            for v in operands
        ]
        called = self.call_function(text, plain, [self.type(builtin_tensor(dims, dtype)) for dims, dtype in results])
        return [
            Value(
                ir.Operation.create(
                    "torch_c.from_builtin_tensor", results=[self.type(value_tensor(dims, dtype))], operands=[result]
                ).result,
                tuple(dims),
                dtype,
            )
            for result, (dims, dtype) in zip(called, results, strict=True)
        ]

    @contextlib.contextmanager
    def inside(self, block: Any) -> Generator[None]:
        """Constants that are made inside stand at the start of another function, whose first block this is."""
        kept = self._entry, self._constants
        self._entry, self._constants = block, {}
        try:
            yield
        finally:
            self._entry, self._constants = kept

    def call_function(
        self,
        text: str,
        operands: Sequence[Any],
        results: Sequence[Any],
        finish: Callable[[Any], None] = lambda function: None,
    ) -> list[Any]:
        """The SSA results, of these types, of the function ``text``, which joins the module under a unique name.

        ``finish`` may rewrite the function once it has joined.
        """
        if text not in self._functions:
            parsed = ir.Operation.parse(text)
            name = f"{ir.StringAttr(parsed.attributes['sym_name']).value}_{len(self._functions)}"
            parsed.attributes["sym_name"] = ir.StringAttr.get(name)
            is_torch = "torch." in text  # looking at operations of other dialects loads their Python, and numpy with it
            if is_torch:
                self._put_right(parsed)
            taken = frozenset[int]()
            if self.target.is_gpu:
                taken = parts.copy_own_parts(parsed, self._barrier) if is_torch else parts.taken_from(text)
            self._module.body.append(parsed)
            self._functions[text] = name, taken
            finish(parsed)
        name, taken = self._functions[text]
        operands = [self._whole(x) if number in taken else x for number, x in enumerate(operands)]
        callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
        made = ir.Operation.create("func.call", results=list(results), operands=list(operands), attributes=callee)
        return list(made.results)

    def _whole(self, value: Any) -> Any:
        """An operand of a function that takes elements of it one by one: copied, if it is a part of a tensor."""
        if not parts.is_part(value):
            return value
        if str(value.type).startswith("!torch"):
            return self._barrier(value)
        return ir.Operation.create(BARRIER, results=[value.type], operands=[value]).result

    def _put_right(self, function: Any) -> None:
        """Torch operations that the compiler lowers to something else, or reads outside of tensors for."""
        keep_inside(function)
        correct(function)
        if not self.target.is_gpu:
            reduce_angles(function)
        if not self.target.rounds_to_half:
            make_halves(function, self.call_function)

    def _scalar(self, value: bool | float | None) -> Any:
        if value is None:
            return ir.Operation.create("torch.constant.none", results=[self.type("!torch.none")]).result
        if isinstance(value, bool):
            attribute, kind = ir.BoolAttr.get(value), "bool"
        elif isinstance(value, int):
            attribute, kind = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value), "int"
        else:
            attribute, kind = ir.FloatAttr.get(ir.F64Type.get(), value), "float"
        result = self.type(f"!torch.{kind}")
        return ir.Operation.create(f"torch.constant.{kind}", results=[result], attributes={"value": attribute}).result

    def _at_start(self, make: Callable[[], Any]) -> Any:
        """Creates a constant among those at the start of the entry block, so that all nodes share it."""
        with ir.InsertionPoint.at_block_begin(self._entry):
            made = make()
        anchor = self._constants.get("anchor")
        if anchor is None:
            self._constants["anchor"] = made
        else:
            made.owner.move_after(anchor.owner)
            self._constants["anchor"] = made
        return made


def _computation(ssa: Any, depth: int) -> object:
    """How a value is computed, equal for values that the compiler sees as one; ``depth`` operations are looked at."""
    if depth == 0 or isinstance(ssa.owner, ir.Block):
        return ssa
    made = ssa.owner.operation
    operands = tuple(_computation(operand, depth - 1) for operand in made.operands)
    attributes = tuple((name, str(made.attributes[name])) for name in made.attributes)
    return (made.name, attributes, str(ssa.type), operands)


def _literal(number: Any, dtype: DataType) -> str:
    """The text of a dense element: floats as bits, so that nothing is rounded twice."""
    if dtype is DataType.BOOLEAN:
        return "true" if bool(number) else "false"
    if dtype.is_float:
        return f"0x{int.from_bytes(number.tobytes()[::-1], 'big'):0{dtype.bits // 4}X}"
    return str(int(number))
