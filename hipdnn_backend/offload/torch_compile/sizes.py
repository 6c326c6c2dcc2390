"""Graphs with symbolic sizes: which code serves the sizes of a call, and who answers while there is none."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from torch._dynamo.convert_frame import compile_lock

from fusilli_ground.errors import OptionError
from fusilli_ground.locks import fork_safe_lock
from hipdnn_backend.offload.buckets import (
    Dims,
    Extent,
    OnNewShape,
    OpenDim,
    check_names,
    combinations,
    padded,
    served_by,
)
from hipdnn_backend.offload.frontend.padding import NotPaddableError
from hipdnn_backend.offload.program.runner import InputError
from hipdnn_backend.offload.shape_counts import ShapeCounts
from hipdnn_backend.offload.torch_compile.options import CompileOptions
from hipdnn_backend.offload.torch_compile.row_walk import expression, is_symbol
from hipdnn_backend.offload.torch_compile.rows import Argument, Traced, traced

__all__ = ["BySizes", "Told", "check_shapes"]

_MET: Final = 1024
"""Sizes that are remembered to have been met."""


class Told(Protocol):
    """Where is told what became of sizes."""

    shapes: ShapeCounts
    padding: dict[str, str]


class Compile(Protocol):
    """What compiles the graph for arguments.

    ``later``: it is traced, and PyTorch runs it until its code is there.
    ``backward``: what its gradients need is compiled at once, too.
    """

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, later: bool, backward: bool
    ) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class _Input:
    """An argument of the graph whose sizes may change.

    Attributes:
        number: of the argument.
        name: as the user's function has it, ``x`` or ``args[0]``.
        dims: an extent, or the expression of an open one.
        strides: likewise.
    """

    number: int
    name: str
    dims: tuple[Any, ...]
    strides: tuple[Any, ...]


@dataclass(frozen=True)
class _Padding:
    """How a call is padded.

    Attributes:
        dims: of the inputs, padded.
        sizes: open dim → its size here, and that to which it is padded.
    """

    dims: Dims
    sizes: Mapping[str, tuple[int, int]]


class BySizes:
    """A graph of Dynamo's with symbolic sizes. Code has sizes, so it is compiled for those of calls."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        options: CompileOptions,
        compile_: Compile,
        told: Told,
    ) -> None:
        self._module = module
        self._options = options
        self._compile = compile_
        self._told = told
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._inputs = [
            _Input(number, input_name(node), *(tuple(map(expression, each)) for each in (value.shape, value.stride())))
            for number, node in enumerate(placeholders)
            if isinstance(value := node.meta.get("example_value"), torch.Tensor) and _is_open(value)
        ]  # fmt: skip
        self._integers = {
            number: expression(node.meta["example_value"])
            for number, node in enumerate(placeholders)
            if is_symbol(node.meta.get("example_value"))
        }
        self._floats = _numbers(module.graph)
        self._others = [
            number for number, node in enumerate(placeholders)
            if not isinstance(node.meta.get("example_value"), torch.Tensor | torch.SymInt)
        ]  # fmt: skip
        self._symbols = self._named()
        self._opened: tuple[OpenDim, ...] = ()
        self._traced: Traced | None = None
        self._is_ahead = not self._symbols
        self._ahead: dict[Any, Callable[..., Any]] = {}
        self._made: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
        self._met: Counter[Any] = Counter()
        self._lock = fork_safe_lock()

    def _named(self) -> dict[str, Any]:
        """The open dims that option ``shapes`` has sizes for → their symbols."""
        found: dict[str, Any] = {}
        for each in self._inputs:
            for axis, dim in enumerate(each.dims):
                name = f"{each.name}.{axis}"
                if name not in self._options.shapes or isinstance(dim, int):
                    continue
                if dim in found.values():
                    first = next(other for other, symbol in found.items() if symbol == dim)
                    raise OptionError(f"shapes: '{name}' and '{first}' are one dim; give its sizes once")
                if not dim.is_Symbol:
                    raise OptionError(f"shapes: '{name}' is {dim} here, which follows from other dims; name those")
                found[name] = dim
        return found

    def call(self, *given: Any) -> Any:
        """Runs the graph on tensors, and numbers for its sizes.

        Raises:
            InputError: option ``on_new_shape`` is ``error``, and there is no code for these sizes.
        """
        dims = tuple(tuple(given[each.number].shape) for each in self._inputs)
        key = self._key(given)
        self._make_ahead(given)
        with self._lock:
            count = self._told.shapes.at(self._shown(dims))
            self._met[key] += 1
            while len(self._met) > _MET:
                del self._met[next(iter(self._met))]
            call = self._ahead.get(key)
            if call is None and key in self._made:
                self._made.move_to_end(key)
                call = self._made[key]
            padding = self._padding(given, dims) if call is None else None
            if padding is not None:
                count.padded += 1
        if call is None and padding is not None:
            return self._run_padded(given, padding)
        if call is None:
            call = self._new(given, key, dims)
        with self._lock:
            running = getattr(call, "is_ready", True)
            count.hits += running
            count.fallbacks += not running
        return call(*given)

    # ---- sizes that are new

    def _new(self, given: Sequence[Any], key: Any, dims: Dims) -> Callable[..., Any]:
        waits = self._options.strict or self._options.on_new_shape is OnNewShape.WAIT
        if self._options.on_new_shape is OnNewShape.ERROR:
            raise self._unserved(dims)
        with self._lock:
            if not waits and not self._is_worth_it(key):
                return _InPyTorch(self._module.forward)
        with compile_lock:  # PyTorch's tracers change PyTorch while they run
            with self._lock:
                made = self._made.get(key)
            if made is not None:
                return made
            made = self._compiled(given, later=not waits)
            with self._lock:
                self._told.shapes.at(self._shown(dims)).compiles += 1
                self._made[key] = made
                while len(self._made) > self._options.max_shapes:
                    self._made.popitem(last=False)
        return made

    def _is_worth_it(self, key: Any) -> bool:
        """Whether sizes are compiled for: if they come again, and more often than those that they would push out."""
        if len(self._made) < self._options.max_shapes:
            return self._met[key] > 1
        return self._met[key] > max(1, self._met[next(iter(self._made))])

    def _compiled(self, given: Sequence[Any], *, later: bool = False, backward: bool = False) -> Callable[..., Any]:
        numbers = {number: given[number].item() for number in self._floats}
        return self._compile(_with_numbers(self._module, numbers), given, later=later, backward=backward)

    def _unserved(self, dims: Dims) -> InputError:
        """The error about the first open dim that has no code."""
        for each, extents in zip(self._inputs, dims, strict=True):
            for axis, (dim, size) in enumerate(zip(each.dims, extents, strict=True)):
                opened = next((one for one in self._opened if self._symbols[one.name] == dim), None)
                if isinstance(dim, int) or (opened is not None and size in opened.sizes):
                    continue
                sizes = ", ".join(map(str, opened.sizes)) if opened else "none, option shapes does not name it"
                why = f"; it is not padded: {opened.refusal}" if opened and opened.refusal else ""
                return InputError(
                    f"input '{each.name}', dim {axis} is {size}; there is code for {sizes}{why}, and option "
                    "on_new_shape is 'error'; 'fallback' lets PyTorch run it"
                )
        return InputError(f"there is no code for {self._shown(dims)}, and option on_new_shape is 'error'")

    # ---- sizes in advance

    def _make_ahead(self, given: Sequence[Any]) -> None:
        """At the first call: the sizes that option ``shapes`` names, with the other open dims as they are in it."""
        if self._is_ahead:
            return
        with compile_lock:
            if self._is_ahead:
                return
            self._opened = self._open(given)
            needs_gradients = _needs_gradients(given)
            values = self._values(given)
            for bucket in combinations({each.name: each.sizes for each in self._opened}):
                sizes = {**values, **{self._symbols[name]: size for name, size in bucket.items()}}
                arguments = self._resized(given, sizes)
                shown = self._shown(tuple(tuple(arguments[each.number].shape) for each in self._inputs))
                self._ahead[self._key(arguments)] = self._compiled(arguments, backward=needs_gradients)
                with self._lock:
                    self._told.shapes.at(shown).compiles += 1
            self._is_ahead = True

    def _open(self, given: Sequence[Any]) -> tuple[OpenDim, ...]:
        """The dims that have sizes in advance, and whether they may be padded."""
        found: list[OpenDim] = []
        arguments = [self._argument(number, value) for number, value in enumerate(given)]
        sizes = self._options.shapes
        # no two alike, and none below 2: PyTorch takes equal sizes for one, and 1 for a dim that broadcasts
        hints: dict[str, int] = {}
        for name in self._symbols:
            hint = max(sizes[name][-1], 2)
            while hint in hints.values():
                hint += 1
            hints[name] = hint
        reason = ""
        try:
            self._traced = traced(self._module_for(given), arguments, hints)
        except NotPaddableError as error:
            reason = str(error)
        for name, symbol in self._symbols.items():
            places, why = self._places(symbol)
            dim = OpenDim(name, sizes[name], places, refusal=reason or why)
            if self._traced is not None and not dim.refusal:
                try:
                    dim = replace(dim, outputs=self._traced.outputs(name))
                except NotPaddableError as error:
                    dim = replace(dim, refusal=str(error))
            self._told.padding[name] = dim.refusal
            found.append(dim)
        return tuple(found)

    def _module_for(self, given: Sequence[Any]) -> torch.fx.GraphModule:
        return _with_numbers(self._module, {number: given[number].item() for number in self._floats})

    def _places(self, symbol: Any) -> tuple[tuple[Extent, ...], str]:
        """The extents of inputs that are an open dim, and what speaks against padding it."""
        places: list[Extent] = []
        for at, each in enumerate(self._inputs):
            for axis, dim in enumerate(each.dims):
                if isinstance(dim, int) or symbol not in dim.free_symbols:
                    continue
                if dim != symbol:
                    return (), f"dim {axis} of input '{each.name}' is {dim}, which follows from it"
                places.append(Extent(at, axis))
        if any(value != symbol and symbol in value.free_symbols for value in self._integers.values()):
            return (), "an argument of PyTorch's is computed with it"
        return tuple(places), ""

    def _argument(self, number: int, value: Any) -> Argument:
        names = {symbol: name for name, symbol in self._symbols.items()}
        if isinstance(value, torch.Tensor):
            at = next((each for each in self._inputs if each.number == number), None)
            dims = at.dims if at is not None else tuple(value.shape)
            return Argument(value, tuple(names.get(dim, "") for dim in dims))
        symbol = self._integers.get(number)
        return Argument(value, (names[symbol],) if symbol in names else ())

    def _values(self, given: Sequence[Any]) -> dict[Any, int]:
        """Symbol → its value in a call."""
        found: dict[Any, int] = {}
        for each in self._inputs:
            for dim, size in zip(each.dims, given[each.number].shape, strict=True):
                if not isinstance(dim, int) and dim.is_Symbol:
                    found[dim] = int(size)
        for number, symbol in self._integers.items():
            if symbol.is_Symbol:
                found[symbol] = int(given[number])
        return found

    def _resized(self, given: Sequence[Any], values: Mapping[Any, int]) -> list[Any]:
        """The arguments of a call with other sizes; what tensors that change hold is undefined."""
        made = list(given)
        for each in self._inputs:
            dims, strides = ([_evaluated(size, values) for size in sizes] for sizes in (each.dims, each.strides))
            like = given[each.number]
            if tuple(dims) != tuple(like.shape):
                made[each.number] = torch.empty_strided(
                    dims, strides, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
                )
        for number, symbol in self._integers.items():
            made[number] = _evaluated(symbol, values)
        return made

    # ---- padded calls

    def _padding(self, given: Sequence[Any], dims: Dims) -> _Padding | None:
        """How a call may be padded to sizes that have code; None if it may not."""
        if self._traced is None or not self._opened or _needs_gradients(given):
            return None
        if not all(each.inputs for each in self._opened):
            return None
        served = served_by(self._opened, dims)
        if served is None:
            return None
        have, bucket = served
        if have == bucket or not (self._traced.holds(have) and self._traced.holds(bucket)):
            return None
        return _Padding(padded(self._opened, dims, bucket), {name: (have[name], bucket[name]) for name in have})

    def _run_padded(self, given: Sequence[Any], padding: _Padding) -> Any:
        """Copies of the last rows are added, for which code does nothing that it does not do for the caller's own."""
        values = self._values(given)
        values |= {self._symbols[name]: whole for name, (_, whole) in padding.sizes.items()}
        arguments = self._resized(given, values)
        for each, dims in zip(self._inputs, padding.dims, strict=True):
            value = given[each.number]
            if tuple(value.shape) != dims:
                _fill(arguments[each.number], value)
        results = self._ahead[self._key(arguments)](*arguments)
        return self._cut(results, {name: size for name, (size, _) in padding.sizes.items()})

    def _cut(self, results: Any, sizes: Mapping[str, int]) -> Any:
        assert self._traced is not None, "it was padded"
        many = isinstance(results, tuple | list)
        found = []
        for result, made in zip(self._traced.results, results if many else [results], strict=True):
            dims, strides = (
                [self._traced.evaluated(size, sizes) for size in each] for each in (result.dims, result.strides)
            )
            part = made[tuple(slice(0, extent) for extent in dims)]
            found.append(torch.empty_strided(dims, strides, dtype=made.dtype, device=made.device).copy_(part))
        return type(results)(found) if many else found[0]

    # ---- words

    def _key(self, given: Sequence[Any]) -> Any:
        """What calls have in common that are served by one code; Dynamo's guards have the rest."""
        return (
            *((tuple(given[each.number].shape), given[each.number].stride()) for each in self._inputs),
            *(given[number] for number in (*self._integers, *self._others)),
            *(given[number].item() for number in self._floats),
        )

    def _shown(self, dims: Dims) -> str:
        return ", ".join(f"{each.name} {list(extents)}" for each, extents in zip(self._inputs, dims, strict=True))


class _InPyTorch:
    """The graph as it is."""

    is_ready = False

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)


def check_shapes(module: torch.fx.GraphModule, options: CompileOptions, arguments: Sequence[str] | None) -> None:
    """Refuse sizes of dims that a graph does not leave open.

    Args:
        module: a graph of Dynamo's.
        options: of the user.
        arguments: of the user's function; None: what was called is not known, or not the first that is compiled.

    Raises:
        OptionError: names the dim, its sizes and what there is.
    """
    inputs: dict[str, tuple[int | None, ...]] = {}
    for node in module.graph.nodes:
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            inputs[input_name(node)] = tuple(None if is_symbol(size) else int(size) for size in value.shape)
    for name, sizes in options.shapes.items():
        owner, _, axis = name.rpartition(".")
        dims = inputs.get(owner)
        if dims is not None and axis.isdecimal() and int(axis) < len(dims) and dims[int(axis)] is not None:
            size = dims[int(axis)]
            if size not in (0, 1):  # Dynamo has graphs of their own for these
                raise OptionError(
                    f"shapes: {name}={','.join(map(str, sizes))}: dim {axis} of input '{owner}' is {size} in this "
                    f"graph and nothing else; torch.compile(..., dynamic=True) or "
                    f"torch._dynamo.mark_dynamic({owner}, {axis}) leaves it open"
                )
        elif dims is not None or (arguments is not None and _root(owner) not in arguments):
            check_names({name: sizes}, inputs)


def input_name(node: torch.fx.Node) -> str:
    """What the user calls an argument of Dynamo's: ``x``, ``args[0]``, ``batch['ids']``."""
    source = getattr(node.meta.get("grapharg"), "source", None) or getattr(node, "_dynamo_source", None)
    if source is None:
        return node.name
    name = source.name if isinstance(source.name, str) else source.name()
    return name[3:].replace("']", "", 1) if name.startswith("L['") else name


def _root(name: str) -> str:
    return name.partition("[")[0].partition(".")[0]


def _is_open(value: torch.Tensor) -> bool:
    return any(map(is_symbol, (*value.shape, *value.stride())))


def _evaluated(expression: Any, values: Mapping[Any, int]) -> int:
    return expression if isinstance(expression, int) else int(expression.subs(values))


def _needs_gradients(given: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in given)


def _fill(target: torch.Tensor, value: torch.Tensor) -> None:
    """The value, and behind it copies of its last row along each dim in which the target is longer."""
    target[tuple(slice(0, extent) for extent in value.shape)] = value
    for axis, extent in enumerate(value.shape):
        if target.shape[axis] > extent:
            target.narrow(axis, extent, target.shape[axis] - extent)[:] = target.narrow(axis, extent - 1, 1)


def _numbers(graph: torch.fx.Graph) -> tuple[int, ...]:
    """The arguments that are numbers in a tensor, as Dynamo passes an epsilon where sizes are symbolic."""
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    return tuple(number for number, node in enumerate(arguments) if node.users and all(map(_is_item, node.users)))


def _is_item(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _with_numbers(module: torch.fx.GraphModule, numbers: Mapping[int, float]) -> torch.fx.GraphModule:
    """The graph for these numbers, which operators take as attributes."""
    if not numbers:
        return module
    made = copy.deepcopy(module.graph)
    arguments = [node for node in made.nodes if node.op == "placeholder"]
    for number, value in numbers.items():
        for item in list(arguments[number].users):
            for user in list(item.users):
                user.args, user.kwargs = torch.fx.map_arg(
                    (user.args, user.kwargs), lambda each, item=item, value=value: value if each is item else each
                )
            made.erase_node(item)
    return torch.fx.GraphModule(module, made)
