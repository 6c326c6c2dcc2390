"""The function of one graph: its arguments, its nodes by their rules, its results.

Arguments are buffers in physical layout, results first::

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

from collections.abc import Callable, Sequence
from typing import Any

from graph_api import DataType, Graph, Node, TensorAttr
from iree_bridge.emit import gaps, packed, rounded
from iree_bridge.emit.builder import Builder, Value
from iree_bridge.emit.corrections import make_halves, reduce_angles
from iree_bridge.emit.last_use import used_last
from iree_bridge.emit.mlir import ir
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import argument_form, carried, stored, value_tensor
from iree_bridge.targets.variants import Variant, is_usual

__all__ = ["RULES", "Emitter", "Value", "rule"]

RULES: dict[str, Callable[[Emitter, Any], None]] = {}
"""Emission rule of each operation by name."""


_PRODUCTS = ("conv_dgrad", "conv_fprop", "conv_wgrad", "matmul", "moe_grouped_matmul", "moe_grouped_matmul_bwd")
_ELEMENTWISE = ("pointwise", "batchnorm_inference", "batchnorm_inference_variance_ext")


def rule(op: str) -> Callable[[Callable[[Emitter, Any], None]], Callable[[Emitter, Any], None]]:
    """Decorator: registers the emission rule of operation ``op``."""

    def register(function: Callable[[Emitter, Any], None]) -> Callable[[Emitter, Any], None]:
        if op in RULES:
            raise ValueError(f"operation {op!r} has the rules {RULES[op].__module__} and {function.__module__}")
        RULES[op] = function
        return function

    return register


class Emitter(Builder):
    """Builds the function of one graph; rules use its methods to read inputs, create operations and set outputs."""

    def __init__(
        self, graph: Graph, target: Target, variant: Variant, module: Any, guarded: frozenset[int] = frozenset()
    ) -> None:
        """``guarded``: positions of the results that a kernel has to make though they are inputs."""
        super().__init__(target, module, bf16=any(t.data_type is DataType.BFLOAT16 for t in graph.tensors))
        self.graph = graph
        self.variant = variant
        self._guarded = guarded
        self._convolves = target.backend == "rocm" and any(node.op.startswith("conv_") for node in graph.nodes)
        self._values: dict[TensorAttr, Value] = {}
        self._results: dict[TensorAttr, Value] = {}
        self.updates_in_place = False
        """Set where an operation may become an update, e.g. a sort. The compiler makes one in place after the last use
        of a tensor, inputs included, so each input gets a use at the end (``last_use.py``)."""

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
            kept: list[Value] = []
            if self.updates_in_place:
                kept = [Value(x, *argument_form(t)) for t, x in zip(inputs, buffers[len(outputs) :], strict=True)]
            for index, tensor in enumerate(outputs):
                with self.location(tensor.name):
                    self._store(tensor, buffers[index], kept, guarded=index in self._guarded)
            ir.Operation.create("func.return")
        if not self.target.is_gpu:
            reduce_angles(function)
        if not self.target.rounds_to_half:
            make_halves(function, self.call_function)

    def read(self, tensor: TensorAttr, dtype: DataType | None = None) -> Value:
        """The logical value of a tensor, converted to ``dtype`` (default: as it is carried)."""
        if tensor.value is not None and tensor not in self._values:
            return self.splat(tensor.value, tensor.dims, dtype or carried(tensor.data_type), through=tensor.data_type)
        value = self._values[tensor]
        return self.cast(value, carried(value.dtype) if dtype is None else dtype)

    def again(self, tensor: TensorAttr) -> Value:
        """The value of a tensor, as one that the compiler does not know to be computed already, in memory order.

        What is computed element by element is computed again, of operands that are read again.
        """
        made = self.graph.maker(tensor)
        if made is None or made.op not in _ELEMENTWISE or not tensor.is_virtual or self._ends_a_product(made):
            order = tensor.physical.order
            value = self.barrier(self.permute(self._values[tensor], order))
            return self.permute(value, [order.index(axis) for axis in range(len(order))])
        kept = dict(self._values)
        self._values |= {operand: self.again(operand) for operand in made.inputs.values() if operand.value is None}
        RULES[made.op](self, made)
        value, self._values = self._values[tensor], kept
        return value

    def write(self, node: Node, port: str, value: Value) -> None:
        """Makes ``value`` the output of ``node`` at ``port``.

        Floating-point tensors are carried in the wider of their data type and the compute type; small floats and all
        others in their type, and on GPUs those that are also stored (``iree_bridge.emit.rounded``).
        """
        tensor = node.outputs[port]
        if value.dims != tensor.dims:
            raise AssertionError(f"{node!r}: emitted {value.dims} for '{tensor.name}' {tensor.dims}")
        kept = tensor.data_type
        if kept.is_float and not kept.is_small_float and value.dtype.is_float and value.dtype.eps < kept.eps:
            kept = value.dtype
        value = self.cast(value, kept)
        is_read = kept is not tensor.data_type and rounded.is_read_again(self.graph, tensor, self.target)
        if is_read and not rounded.is_read_by_a_norm(self.graph, tensor):
            value = self.cast(value, tensor.data_type)
        self._values[tensor] = self.barrier(value) if self.variant.apart else value

    def supersede(self, tensor: TensorAttr, value: Value) -> None:
        """Makes ``value`` what later nodes read of a tensor; the same numbers, made together with others."""
        self._values[tensor] = value

    def _ends_a_product(self, node: Node) -> bool:
        """Whether an operand is a product's result, and so the kernel that makes it the one to store what is read.

        Were that stored as well, on gfx942 a wave wrote shared memory that another one had yet to read.
        """
        makers = (self.graph.maker(operand) for operand in node.inputs.values() if operand.is_virtual)
        return any(maker is not None and maker.op in _PRODUCTS for maker in makers)

    def stored_beside(self, value: Value, tensor: TensorAttr) -> Value:
        """``value``, made of all of ``tensor``; if that is a result to be rounded, it is stored by the same kernel."""
        kept = self._values.get(tensor)
        is_open = kept is not None and tensor not in self._results and kept.dtype is not tensor.data_type
        if kept is None or not is_open or not rounded.is_read_again(self.graph, tensor, self.target):
            return value
        value, self._results[tensor] = rounded.stored_beside(self, value, kept, tensor)
        return value

    def _from_physical(self, tensor: TensorAttr, argument: Any) -> Value:
        layout = tensor.physical
        value = Value(argument, *argument_form(tensor))
        if tensor.data_type.is_packed:
            value = packed.unpack(self, tensor, value)
        if not layout.dense:
            value = gaps.gather(self, tensor, value)
        order = layout.order
        value = self.permute(value, [order.index(axis) for axis in range(len(order))])
        value = value if value.dims == tensor.dims else self.expand(value, tensor.dims)
        if self.variant.apart and order != tuple(range(len(order))):
            value = self.barrier(value)
        return value if value.dtype is tensor.data_type else value.named(tensor.data_type)

    def _store(self, tensor: TensorAttr, argument: Any, kept: Sequence[Value], *, guarded: bool) -> None:
        layout = tensor.physical
        value = self._results.get(tensor) or self.cast(self._values[tensor], tensor.data_type)
        if stored(tensor.data_type) is not tensor.data_type:
            value = value.named(stored(tensor.data_type))
        if self._is_stored_apart(tensor):
            value = self.barrier(value)
        value = self.permute(value, layout.order)
        if not layout.dense:
            value = gaps.scatter(self, tensor, value, argument)
        if tensor.data_type.is_packed:
            value = packed.pack(self, tensor, value)
        if guarded:
            value = self._computed(value)
        value = used_last(self, value, kept)
        ir.Operation.create("torch.overwrite.tensor.contents", operands=[value.ssa, argument])

    def _is_stored_apart(self, tensor: TensorAttr) -> bool:
        """Whether a result is stored by a kernel of its own: what makes a result works in the order of its strides.

        A convolution for AMD then gathers its image in that order, where it must not.
        """
        return self.variant.apart or (self._convolves and not is_usual(tensor))

    def _computed(self, value: Value) -> Value:
        """The same numbers, as the result of a kernel: a sum with a zero that the compiler cannot see.

        A plain copy into the result would need an access right that imported buffers do not grant (DISCARD_WRITE).
        """
        number = self.cast(value, DataType.INT32) if value.dtype is DataType.BOOLEAN else value
        zero = -0.0 if number.dtype.is_float else 0
        hidden = self.barrier(self.splat(zero, (1,) * max(len(value.dims), 1), number.dtype))
        return self.cast(self.op("aten.add.Tensor", value.dims, number.dtype, number, hidden, 1), value.dtype)
