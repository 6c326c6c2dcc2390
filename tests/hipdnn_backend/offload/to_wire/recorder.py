"""Writes torch operations down as MLIR while PyTorch runs them: the text is translated, PyTorch's results are expected.

PyTorch computes in float64 what the text calls f32 (or another type), so that the expectation has no rounding of its
own; graphs are run by their float64 reference, on buffers as a caller would lay them out.
"""

# PyTorch's operators have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import import_graph
from graph_api import Graph
from hipdnn_backend import wire
from hipdnn_backend.offload.mlir import ir, new_context
from hipdnn_backend.offload.to_wire import Translation, translate, translate_leftover
from iree_bridge import Options

__all__ = ["Recorder", "Ref"]

_CONTEXT: list[Any] = []
_INTEGERS = {torch.int64: "si64", torch.int32: "si32", torch.uint8: "ui8", torch.int8: "si8", torch.bool: "i1"}
_CODES = {torch.float64: 6, torch.int64: 4, torch.int32: 3, torch.bool: 11, torch.uint8: 0}  # float64 stands for f32


def context() -> Any:
    """One context for all tests of a process; making one takes long."""
    if not _CONTEXT:
        _CONTEXT.append(new_context())
    return _CONTEXT[0]


@dataclass(frozen=True)
class Ref:
    """A value of the recorded function: its name in the text, its type, what PyTorch says it is."""

    name: str
    type: str
    value: torch.Tensor


class Recorder:
    """A function that grows operation by operation.

    Args:
        element: what floating-point tensors are called in the text.
    """

    def __init__(self, element: str = "f32") -> None:
        self.element = element
        self.inputs: list[Ref] = []
        self.lines: list[str] = []
        self._count = 0

    def input(self, *dims: int, integers: bool = False, positive: bool = False, data: Any = None) -> Ref:
        """An argument with random contents that depend on its place alone."""
        rng = np.random.default_rng(len(self.inputs))
        array = np.asarray(data) if data is not None else rng.standard_normal(dims)
        if integers:
            array = rng.integers(-9, 9, dims)
        tensor = torch.from_numpy(np.abs(array) + 0.1 if positive else array)
        ref = self._ref(tensor)
        self.inputs.append(ref)
        return ref

    def op(self, name: str, *args: Any, where: str = "", **kwargs: Any) -> Any:
        """Records and runs ``aten.<name>``; the result, or a list of them."""
        base, _, overload = name.removeprefix("aten.").partition(".")
        function = getattr(getattr(torch.ops.aten, base), overload or "default")
        operands: list[Any] = []
        for index, argument in enumerate(function._schema.arguments):
            given = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
            operands.append((argument, given))
        positional = [_torch(given) for argument, given in operands if not argument.kwarg_only]
        keywords = {argument.name: _torch(given) for argument, given in operands if argument.kwarg_only}
        made = function(*positional, **keywords)
        results = [
            self._none() if value is None else self._ref(value)
            for value in (made if isinstance(made, tuple | list) else [made])
        ]
        names = [self._operand(given, str(argument.type)) for argument, given in operands]
        shown = ", ".join(result.name for result in results)
        kinds = ", ".join(result.type for result in results)
        called = f'"torch.aten.{name.removeprefix("aten.")}"'
        if not context().is_registered_operation(called.strip('"')):
            called = f"torch.operator {called}"
        self.lines.append(
            f"{shown} = {called}({', '.join(item for item, _ in names)}) : "
            f'({", ".join(kind for _, kind in names)}) -> ({kinds}) loc("{where or base}")'
        )
        return results if isinstance(made, tuple | list) else results[0]

    def module(self, outputs: Sequence[Ref]) -> Any:
        """The parsed module."""
        arguments = ", ".join(f'{ref.name}: {ref.type} loc("x{i}")' for i, ref in enumerate(self.inputs))
        kinds = ", ".join(ref.type for ref in outputs)
        body = "\n  ".join(self.lines)
        shown = ", ".join(ref.name for ref in outputs)
        text = f"func.func @main({arguments}) -> ({kinds}) {{\n  {body}\n  return {shown} : {kinds}\n}}"
        module = ir.Module.parse(text, context())
        assert module.operation.verify()
        return module

    def translate(self, *outputs: Ref, leftover: bool = False) -> Translation:
        """The recorded operations as a graph."""
        module = self.module(outputs)  # its parts do not keep it alive
        block = module.body.operations[0].regions[0].blocks[0]
        *ops, last = list(block.operations)
        make = translate_leftover if leftover else translate
        made = make(ops, list(block.arguments), list(last.operation.operands), "graph")
        encoded = wire.encode_graph(made.graph)
        assert wire.decode_graph(encoded) == made.graph
        assert wire.encode_graph(wire.decode_graph(encoded)) == encoded
        wire.check_graph(made.graph)
        return made

    def check(self, *outputs: Ref, tolerance: float = 2e-6) -> Graph:
        """Translates, runs the graph's reference, compares every element with PyTorch; the graph for further checks."""
        made = self.translate(*outputs)
        graph = import_graph(made.graph)
        pack: dict[int, Any] = {}
        for ref, uid in zip(self.inputs, made.inputs, strict=True):
            if uid is not None:
                pack[uid] = _as_seen(ref.value.numpy(), made.graph.tensor(uid))
        results = graph.reference(cast("dict[Any, object]", pack))
        for ref, uid in zip(outputs, made.outputs, strict=True):
            tensor = made.graph.tensor(uid)
            memory = np.full(ref.value.numel(), np.nan)
            _view(memory, tensor)[...] = results[graph.find(uid)]
            got = memory.reshape(tuple(ref.value.shape))
            np.testing.assert_allclose(got, ref.value.to(torch.float64).numpy(), tolerance, tolerance)
        return graph

    def run(self, *outputs: Ref, leftover: bool = False, tolerance: float = 1e-5) -> None:
        """Compiles the graph with the engine and runs it on the CPU, on row-major buffers of the torch types."""
        made = self.translate(*outputs, leftover=leftover)
        engine = FusilliEngine("cpu", options=replace(Options.from_env(), claim="all"))
        data = wire.encode_graph(made.graph)
        answer = engine.support(data)
        assert answer, answer
        plan = engine.build(data, wire.EngineConfig(engine_id=engine.id))
        arrays = {uid: self._memory(ref) for ref, uid in zip(self.inputs, made.inputs, strict=True) if uid is not None}
        results = {uid: np.zeros_like(self._memory(ref)) for ref, uid in zip(outputs, made.outputs, strict=True)}
        workspace = np.zeros(plan.workspace_size + 64, np.uint8)
        address = workspace.ctypes.data + -workspace.ctypes.data % 64 if plan.workspace_size else 0
        plan.execute({u: a.ctypes.data for u, a in (arrays | results).items()}, workspace=address)
        plan.close()
        for ref, uid in zip(outputs, made.outputs, strict=True):
            expected = ref.value.to(torch.float64).numpy()
            np.testing.assert_allclose(results[uid].astype(np.float64), expected, tolerance, tolerance)

    def _memory(self, ref: Ref) -> Any:
        dtype = {"f32": np.float32, "f16": np.float16, "f64": np.float64}.get(ref.type.split(",")[-1].rstrip(">"))
        array = np.ascontiguousarray(ref.value.numpy()).reshape(tuple(ref.value.shape))
        return array.astype(np.uint8) if array.dtype == np.bool_ else array.astype(dtype or array.dtype)

    def _ref(self, value: torch.Tensor) -> Ref:
        element = _INTEGERS.get(value.dtype, self.element)
        self._count += 1
        dims = ",".join(map(str, value.shape))
        return Ref(f"%v{self._count}", f"!torch.vtensor<[{dims}],{element}>", value)

    def _none(self) -> Ref:
        self._count += 1
        return Ref(f"%v{self._count}", "!torch.none", torch.empty(0))

    def _operand(self, given: Any, kind: str) -> tuple[str, str]:
        """Name and type of an operand; constants get a line of their own."""
        if isinstance(given, Ref):
            return given.name, given.type
        if isinstance(given, torch.dtype):
            given = _CODES[given]
        if isinstance(given, list | tuple):
            items = [self._operand(item, kind) for item in given]
            inner = items[0][1] if items else "!torch.int"
            listed = f"({', '.join(inner for _ in items)}) -> !torch.list<{inner.removeprefix('!torch.')}>"
            return self._line(f"torch.prim.ListConstruct {', '.join(i for i, _ in items)} : {listed}"), (
                f"!torch.list<{inner.removeprefix('!torch.')}>"
            )
        if given is None:
            return self._line("torch.constant.none"), "!torch.none"
        if isinstance(given, bool):
            return self._line(f"torch.constant.bool {str(given).lower()}"), "!torch.bool"
        if isinstance(given, str):
            return self._line(f'torch.constant.str "{given}"'), "!torch.str"
        if isinstance(given, int) and "float" not in kind.lower():
            return self._line(f"torch.constant.int {given}"), "!torch.int"
        bits = np.float64(given).view(np.uint64)
        return self._line(f"torch.constant.float {bits:#018x}"), "!torch.float"

    def _line(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"


def _torch(given: Any) -> Any:
    if isinstance(given, Ref):
        return given.value
    return [_torch(item) for item in given] if isinstance(given, list | tuple) else given


def _view(memory: Any, tensor: wire.WireTensor) -> Any:
    """The tensor of the graph in a flat buffer."""
    assert 1 + sum((d - 1) * s for d, s in zip(tensor.dims, tensor.strides, strict=True)) <= memory.size
    bytes_ = [stride * memory.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(memory, tensor.dims, bytes_)


def _as_seen(array: Any, tensor: wire.WireTensor) -> Any:
    """A row-major array as the graph sees it; PyTorch's booleans are bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return _view(flat.astype(np.uint8) if flat.dtype == np.bool_ else flat, tensor)
