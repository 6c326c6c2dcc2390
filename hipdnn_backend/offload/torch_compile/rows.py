"""Whether more rows along an open dim of a graph of Dynamo's leave the rows that were there as they are.

What `hipdnn_backend.offload.frontend.padding` shows of ONNX models is shown here of PyTorch's operators. The graph is
traced once with symbols for the open dims, so extents are expressions: what holds for them holds for all sizes that
keep the conditions under which PyTorch traced.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from hipdnn_backend.offload.buckets import Extent
from hipdnn_backend.offload.frontend.padding import NotPaddableError, Rows
from hipdnn_backend.offload.torch_compile import row_rules as _row_rules  # noqa: F401  registers the rules
from hipdnn_backend.offload.torch_compile.row_walk import Walk, expression

__all__ = ["Argument", "Traced", "traced"]

Node = torch.fx.Node


@dataclass(frozen=True)
class Argument:
    """An argument of a graph.

    Attributes:
        value: a tensor that it has, or a number.
        names: of a tensor's dims, "" for those that stay; of a number, one name.
    """

    value: Any
    names: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """A result of a graph, in the symbols of the open dims.

    Attributes:
        dims: expressions, or numbers.
        strides: likewise.
    """

    dims: tuple[Any, ...]
    strides: tuple[Any, ...]


class Traced:
    """A graph that was traced with symbols for its open dims."""

    def __init__(self, graph: torch.fx.Graph, env: ShapeEnv, symbols: Mapping[str, Any]) -> None:
        self._graph = graph
        self._env = env
        self._symbols = symbols
        self._output = next(node for node in graph.nodes if node.op == "output")

    @property
    def results(self) -> list[Result]:
        """In order."""
        return [
            Result(tuple(map(expression, value.shape)), tuple(map(expression, value.stride())))
            for value in (node.meta["val"] for node in self._tensors())
        ]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes keep the conditions under which PyTorch traced."""
        given: Any = {symbol: sizes[name] for name, symbol in self._symbols.items()}
        for symbol, size in given.items():
            range_ = self._env.var_to_range.get(symbol)
            if range_ is not None and not range_.lower <= size <= range_.upper:
                return False
        return all(guard.expr.subs(given) in (True,) for guard in self._env.guards)

    def evaluated(self, value: Any, sizes: Mapping[str, int]) -> int:
        """An expression of a result with these sizes."""
        if isinstance(value, int):
            return value
        return int(value.subs({symbol: sizes[name] for name, symbol in self._symbols.items()}))

    def outputs(self, name: str) -> tuple[Extent, ...]:
        """Where the rows of an open dim are in the results.

        Raises:
            NotPaddableError: rows that are added reach what is kept, or that cannot be told.
        """
        symbol = self._symbols[name]
        if symbol in self._env.replacements:
            raise NotPaddableError(f"PyTorch's trace wants it to be {self._env.replacements[symbol]}")
        self._check_memory()
        walk = Walk(symbol)
        for node in self._graph.nodes:
            if node.op != "output":
                walk.through(node)
        found = []
        for number, node in enumerate(self._tensors()):
            state = walk.states[node]
            if isinstance(state, Rows):
                found.append(Extent(number, state.axis, state.per))
        return tuple(found)

    def _tensors(self) -> list[Node]:
        results = self._output.args[0]
        results = results if isinstance(results, tuple | list) else [results]
        if not all(isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor) for node in results):
            raise NotPaddableError("a result is no tensor")
        return list(results)

    def _check_memory(self) -> None:
        """Results that are looks at arguments, or at each other, would be looks at what is padded."""
        bases: set[Node] = set()
        for node in self._tensors():
            base = _base(node)
            if base.op == "placeholder":
                raise NotPaddableError("a result shares memory with an argument")
            if base in bases:
                raise NotPaddableError("two results share memory")
            bases.add(base)


def traced(module: torch.fx.GraphModule, arguments: Sequence[Argument], sizes: Mapping[str, int]) -> Traced:
    """Trace a graph of Dynamo's with symbols for its open dims.

    Args:
        module: the graph.
        arguments: of it.
        sizes: a size for each open dim with which it is traced, no two alike and none below 2.

    Raises:
        NotPaddableError: PyTorch does not trace it so.
    """
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    symbols: dict[str, Any] = {}
    made: dict[int, Any] = {}
    numbers: dict[str, Any] = {}
    for number, argument in enumerate(arguments):
        if isinstance(argument.value, torch.Tensor):
            made[number] = fake = _fake(mode, argument, sizes)
            for name, size in zip(argument.names, fake.shape, strict=True):
                if name and isinstance(expression(size), int):
                    raise NotPaddableError(f"PyTorch's trace wants it to be {size}")
                if name:
                    symbols[name], numbers[name] = expression(size), size
    for number, argument in enumerate(arguments):
        if number not in made:
            made[number] = numbers.get(argument.names[0], argument.value) if argument.names else argument.value

    def call(*given: Any) -> Any:
        return module.forward(*given)

    try:
        with torch.no_grad(), mode, enable_python_dispatcher():
            graph = make_fx(torch.func.functionalize(call))(*(made[number] for number in range(len(arguments)))).graph
    except Exception as error:  # whatever the operators of a user's raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise NotPaddableError(f"PyTorch does not trace it with open dims: {reason}") from error
    return Traced(graph, env, symbols)


def _fake(mode: FakeTensorMode, argument: Argument, sizes: Mapping[str, int]) -> Any:
    """A tensor of no memory with symbols for the open dims; dims of one name have one symbol, as their size is one."""
    value = argument.value
    if not any(argument.names):
        return mode.from_tensor(value, static_shapes=True)
    dims = [sizes[name] if name else size for name, size in zip(argument.names, value.shape, strict=True)]
    strides, step = [0] * value.dim(), 1
    for axis in sorted(range(value.dim()), key=value.stride):
        strides[axis], step = step, step * max(dims[axis], 1)
    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DUCK if name else DimDynamic.STATIC for name in argument.names]
    )
    empty = torch.empty_strided(dims, strides, dtype=value.dtype, device=value.device)  # its memory is never touched
    return mode.from_tensor(empty, symbolic_context=context)


def _base(node: Node) -> Node:
    """Whose memory a value is."""
    while isinstance(node.target, torch._ops.OpOverload) and any(
        argument.alias_info is not None for argument in node.target._schema.arguments
    ):
        node = node.all_input_nodes[0]
    return node if node.target is not operator.getitem else _base(node.all_input_nodes[0])
