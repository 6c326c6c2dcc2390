"""From a validated Graph to torch-dialect IR. Runs in a worker process only.

The module has one function. Arguments are buffers in physical layout, results first::

    module @module {
      func.func @main(%out0: !torch.tensor<[8,56,56,64],f16>, %in0: !torch.vtensor<[8,56,56,64],f16>, ...) {
        %0 = torch.aten.permute %in0, ...           // physical -> logical
        %1 = torch.aten.convolution ...             // loc("conv_fprop_0")
        ...
        torch.overwrite.tensor.contents %9 overwrites %out0
        return
      }
    }
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graph_api import CompileError, DataType, Graph, Node, TensorAttr
from graph_api._numpy import np
from iree_bridge import packed, padded
from iree_bridge._mlir import PassManager, ir
from iree_bridge.corrections import correct, reduce_angles
from iree_bridge.positions import keep_inside
from iree_bridge.target import Target
from iree_bridge.types import ELEMENT, TORCH_CODE, argument_form, builtin_tensor, carried, value_tensor
from iree_bridge.variants import Variant, is_usual, variants

__all__ = ["EMITTER_VERSION", "RULES", "EmittedModule", "Emitter", "Value", "emit_module", "rule"]

EMITTER_VERSION = 11
"""Part of the first-level cache key: raise it when the same graph is emitted differently."""


@dataclass(frozen=True)
class EmittedModule:
    """Verified IR of a graph.

    Attributes:
        ir: text without locations; equal graphs give equal text. The second-level cache key is made of it.
        located_ir: the same with locations named after the nodes, for the compiler's diagnostics.
    """

    ir: str
    located_ir: str


@dataclass(frozen=True)
class Value:
    """A tensor value in the function: SSA value, logical dims, element type; what every element is, where known."""

    ssa: Any
    dims: tuple[int, ...]
    dtype: DataType
    number: float | None = None


RULES: dict[str, Callable[[Emitter, Any], None]] = {}
"""Emission rule of each operation by name."""


def rule(op: str) -> Callable[[Callable[[Emitter, Any], None]], Callable[[Emitter, Any], None]]:
    """Decorator: registers the emission rule of operation ``op``."""

    def register(function: Callable[[Emitter, Any], None]) -> Callable[[Emitter, Any], None]:
        if op in RULES:
            raise ValueError(f"operation {op!r} has the rules {RULES[op].__module__} and {function.__module__}")
        RULES[op] = function
        return function

    return register


def emit_module(graph: Graph, target: Target, form: str = "") -> EmittedModule:
    """The verified module of a validated graph, for ``target``, in the variant called ``form``, by default the first.

    Raises:
        CompileError: MLIR refuses what was emitted; a fault of an emission rule, or of a custom operation's text.
    """
    import iree_bridge.emit  # noqa: F401 - fills RULES; imported late since the rules import this module

    known = variants(graph, target)
    variant = next(it for it in known if it.name == form) if form else known[0]
    with ir.Context(), ir.Location.name(graph.name or "graph"):
        module = _verified(graph, target, variant)
        aliased = _aliased_results(graph, module)
        if aliased:
            module = _verified(graph, target, variant, aliased)
        return EmittedModule(
            module.operation.get_asm(enable_debug_info=False),
            module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False),
        )


def _verified(graph: Graph, target: Target, variant: Variant, guarded: frozenset[int] = frozenset()) -> Any:
    module = ir.Module.create()
    Emitter(graph, target, variant, module, guarded).emit()
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise CompileError(f"graph '{graph.name}': the emitted IR does not verify: {error}") from error
    return module


def _aliased_results(graph: Graph, module: Any) -> frozenset[int]:
    """Positions of the results that folding turns into an input as it stands, x * 1 say, or an unsigned constant.

    The compiler dies on a buffer that is overwritten with an argument, and makes signed constants of unsigned ones.
    """
    folded = ir.Module.parse(str(module))
    try:
        PassManager.parse(_FOLDING).run(folded.operation)
    except ir.MLIRError as error:
        raise CompileError(
            f"graph '{graph.name}': MLIR refuses what the emitted IR folds to; if it has a custom operation, do the "
            f"types in its text agree with its operations? {error}"
        ) from error
    main = next(op for op in folded.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    block = main.regions[0].blocks[0]
    stores = [op for op in block.operations if op.operation.name == "torch.overwrite.tensor.contents"]
    return frozenset(i for i, op in enumerate(stores) if _is_aliased(op.operands[0]))


_FOLDING = "builtin.module(inline,func.func(torch-decompose-complex-ops),canonicalize)"


def _is_aliased(stored: Any) -> bool:
    if isinstance(stored.owner, ir.Block):
        return True
    return stored.owner.name == "torch.vtensor.literal" and ",ui" in str(stored.type)


class Emitter:
    """Builds the function of one graph; rules use its methods to read inputs, create operations and set outputs."""

    def __init__(
        self, graph: Graph, target: Target, variant: Variant, module: Any, guarded: frozenset[int] = frozenset()
    ) -> None:
        """``guarded``: positions of the results that a kernel has to make though they are inputs."""
        self.graph = graph
        self.target = target
        self.variant = variant
        self._module = module
        self._guarded = guarded
        self._convolves = any(node.op.startswith("conv_") for node in graph.nodes)
        self._types: dict[str, Any] = {}
        self._values: dict[TensorAttr, Value] = {}
        self._constants: dict[object, Any] = {}
        self._functions: dict[str, str] = {}
        self._padded: set[object] = set()
        self._entry: Any = None
        self.updates_in_place = False
        """Set where an operation may become an update, e.g. a sort. The compiler makes one in place after the last use
        of a tensor, inputs included, so each input gets a use at the end."""

    # ---- the function --------------------------------------------------------------------------------------------

    def emit(self) -> None:
        """Emits the whole function."""
        outputs, inputs = self.graph.arguments()
        types = [self.type(value_tensor(*argument_form(t), mutable=True)) for t in outputs]
        types += [self.type(value_tensor(*argument_form(t))) for t in inputs]
        with ir.InsertionPoint(self._module.body):
            function = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": ir.StringAttr.get("main"),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                    "torch.assume_strict_symbolic_shapes": ir.UnitAttr.get(),
                },
                regions=1,
            )
        block = function.regions[0].blocks.append(*types)
        buffers = list(block.arguments)
        self._entry = block
        with ir.InsertionPoint(block):
            for tensor, argument in zip(inputs, buffers[len(outputs) :], strict=True):
                with self.location(tensor.name):
                    self._values[tensor] = self._from_physical(tensor, argument)
            for node in self.graph.nodes:
                with self.location(node.name):
                    RULES[node.op](self, node)
            for index, tensor in enumerate(outputs):
                with self.location(tensor.name):
                    self._store(tensor, buffers[index], guarded=index in self._guarded)
            if self.updates_in_place:
                for tensor, argument in zip(inputs, buffers[len(outputs) :], strict=True):
                    self.barrier(Value(argument, *argument_form(tensor)))
            ir.Operation.create("func.return")
        if not self.target.is_gpu:
            reduce_angles(function)

    @contextlib.contextmanager
    def location(self, name: str) -> Iterator[None]:
        """Operations made inside carry ``name`` in their location."""
        with ir.Location.name(name):
            yield

    @property
    def module_body(self) -> Any:
        """The block of the module, for rules that bring functions of their own."""
        return self._module.body

    # ---- tensors of the graph ------------------------------------------------------------------------------------

    def read(self, tensor: TensorAttr, dtype: DataType | None = None) -> Value:
        """The logical value of a tensor, converted to ``dtype`` (default: as it is carried)."""
        if tensor.value is not None and tensor not in self._values:
            return self.splat(tensor.value, tensor.dims, dtype or carried(tensor.data_type), through=tensor.data_type)
        value = self._values[tensor]
        return value if dtype is None else self.cast(value, dtype)

    def write(self, node: Node, port: str, value: Value) -> None:
        """Makes ``value`` the output of ``node`` at ``port``.

        Floating-point tensors are carried in the wider of their data type and the compute type, others in their type.
        """
        tensor = node.outputs[port]
        if value.dims != tensor.dims:
            raise AssertionError(f"{node!r}: emitted {value.dims} for '{tensor.name}' {tensor.dims}")
        carried = tensor.data_type
        if carried.is_float and value.dtype.is_float and value.dtype.eps < carried.eps:
            carried = value.dtype
        self._values[tensor] = self.cast(value, carried)

    def _from_physical(self, tensor: TensorAttr, argument: Any) -> Value:
        layout = tensor.physical
        value = Value(argument, *argument_form(tensor))
        if tensor.data_type is DataType.INT4:
            value = packed.unpack(self, tensor, value)
        if not layout.dense:
            value = padded.gather(self, tensor, value)
        order = layout.order
        value = self.permute(value, [order.index(axis) for axis in range(len(order))])
        return value if value.dims == tensor.dims else self.expand(value, tensor.dims)

    def _store(self, tensor: TensorAttr, argument: Any, *, guarded: bool) -> None:
        layout = tensor.physical
        value = self.cast(self._values[tensor], tensor.data_type)
        if self.target.backend == "rocm" and self._convolves and not is_usual(tensor):
            value = self.barrier(value)  # else a convolution works in this order, and gathers its image in another
        value = self.permute(value, layout.order)
        if not layout.dense:
            value = padded.scatter(self, tensor, value, argument)
        if guarded:
            value = self._computed(value)
        ir.Operation.create("torch.overwrite.tensor.contents", operands=[value.ssa, argument])

    # ---- values --------------------------------------------------------------------------------------------------

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
            return self.list([self.operand(item) for item in value], value)
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
            number = number.astype(through.numpy)
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
        if dtype.is_float and not value.dtype.is_float and self._rounds_to_bf16:
            return self._number_for_bf16(value, dtype)
        return self.op("prims.convert_element_type", value.dims, dtype, value, TORCH_CODE[dtype])

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

    @property
    def _rounds_to_bf16(self) -> bool:
        return self.target.backend == "llvm-cpu" and any(t.data_type is DataType.BFLOAT16 for t in self.graph.tensors)

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

    def _computed(self, value: Value) -> Value:
        """The same numbers, as the result of a kernel: a sum with a zero that the compiler cannot see.

        A plain copy into the result would need an access right that imported buffers do not grant (DISCARD_WRITE).
        """
        number = self.cast(value, DataType.INT32) if value.dtype is DataType.BOOLEAN else value
        zero = -0.0 if number.dtype.is_float else 0
        hidden = self.barrier(self.splat(zero, (1,) * max(len(value.dims), 1), number.dtype))
        return self.cast(self.op("aten.add.Tensor", value.dims, number.dtype, number, hidden, 1), value.dtype)

    def barrier(self, value: Value) -> Value:
        """``value`` as something that the optimiser does not look through."""
        builtin = self.type(builtin_tensor(value.dims, value.dtype))
        plain = ir.Operation.create("torch_c.to_builtin_tensor", results=[builtin], operands=[value.ssa]).result
        kept = ir.Operation.create("util.optimization_barrier", results=[builtin], operands=[plain]).result
        torch = self.type(value_tensor(value.dims, value.dtype))
        made = ir.Operation.create("torch_c.from_builtin_tensor", results=[torch], operands=[kept])
        return Value(made.result, value.dims, value.dtype)

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

    def call_function(self, text: str, operands: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The SSA results, of these types, of the function ``text``, which joins the module under a unique name."""
        if text not in self._functions:
            parsed = ir.Operation.parse(text)
            name = f"{ir.StringAttr(parsed.attributes['sym_name']).value}_{len(self._functions)}"
            parsed.attributes["sym_name"] = ir.StringAttr.get(name)
            keep_inside(parsed)
            correct(parsed)
            if not self.target.is_gpu:
                reduce_angles(parsed)
            self._module.body.append(parsed)
            self._functions[text] = name
        callee = {"callee": ir.FlatSymbolRefAttr.get(self._functions[text])}
        made = ir.Operation.create("func.call", results=list(results), operands=list(operands), attributes=callee)
        return list(made.results)

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
