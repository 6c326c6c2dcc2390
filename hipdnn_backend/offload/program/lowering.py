"""The final memref module as a `Program`: the one place after the passes that reads MLIR."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import ml_dtypes  # noqa: F401 - numpy knows its types by name from here on
import numpy as np

from fusilli_ground.strides import row_major
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.program.program import (
    CODES,
    Buffer,
    Copy,
    Execute,
    Named,
    PlannedGraph,
    Program,
    Space,
    Step,
    View,
    placed,
)
from hipdnn_backend.offload.program.setup import with_setup
from hipdnn_backend.wire import WireGraph, WireTensor, decode_graph

__all__ = ["Compiled", "Lowered", "LoweringError", "lower"]

_TYPES: Final = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"},
    **{"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"},
    **{"f8E4M3FNUZ": "float8_e4m3fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz"},
    "i1": "bool",
    **{f"{sign}i{bits}": f"int{bits}" for sign in ("", "s") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""MLIR's element types → numpy's names; an i1 takes a byte."""

# Results of these look at the memory of their first operand, as their type says.
_VIEWS: Final = frozenset(
    {
        "memref.subview",
        "memref.collapse_shape",
        "memref.expand_shape",
        "memref.reinterpret_cast",
        "memref.cast",
        "memref.transpose",
    }
)
# These say nothing about what to do at run time.
_IGNORED: Final = frozenset({"memref.dealloc", "func.return", "memref.assume_alignment"})


class LoweringError(OffloadError):
    """The module is not what the passes promise at their end."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"{where}: {reason}")


class _Plan(Protocol):
    @property
    def workspace_size(self) -> int: ...


class _Engine(Protocol):
    @property
    def name(self) -> str: ...


class Compiled(Protocol):
    """What is read of a compiled graph."""

    @property
    def wire(self) -> bytes:
        """The graph in hipDNN's wire format."""
        ...

    @property
    def engine(self) -> _Engine:
        """Who compiled it."""
        ...

    @property
    def plan(self) -> _Plan:
        """What it was compiled to; equal graphs share one object."""
        ...

    @property
    def inputs(self) -> Sequence[int | None]:
        """A uid for each operand that comes in, None for one that the graph does not read."""
        ...

    @property
    def outputs(self) -> Sequence[int]:
        """A uid for each operand that goes out."""
        ...

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the source nodes."""
        ...

    @property
    def varies(self) -> bool:
        """Results may differ from run to run on the same operands."""
        ...

    @property
    def arranged(self) -> Collection[int]:
        """Uids of operands whose elements lie in memory as the graph's strides say, not in row-major order."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A program and what belongs to it.

    Attributes:
        program: planned and checked.
        plans: plans by the numbers that the graphs of the program name.
        literals: constants that stood in the module, by their names in the program.
    """

    program: Program
    plans: tuple[Any, ...]
    literals: Mapping[str, np.ndarray[Any, Any]]


def lower(
    module: Any,
    graphs: Mapping[str, Compiled],
    *,
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
    name: str = "main",
    alignment: int = 64,
    dtypes: Sequence[Any] | None = None,
) -> Lowered:
    """Read the program from the one public function of a module.

    Its arguments are the inputs, the constants, then the outputs; it returns nothing. Supported are ``memref.alloc``,
    views with static layouts, ``memref.copy``, ``memref.get_global`` and ``hipdnn.execute``. An operand whose memory
    the graph cannot use as it lies (strides or alignment) is copied to or from a temporary of its own. Steps that
    depend on constants alone become the program's setup.

    Args:
        module: an ``ir.Module`` after ``hipdnn-finalize-memrefs``.
        graphs: compiled graphs by the names that ``hipdnn.execute`` uses.
        inputs: names.
        constants: names.
        outputs: names.
        name: of the program.
        alignment: bytes to which temporaries and workspaces are aligned: 64 for CPUs, 256 for GPUs.
        dtypes: numpy type of each input, constant and output, in this order; memrefs have lost which integers are
            unsigned. Default: what the memrefs say.

    Raises:
        LoweringError: the module has something else in it, or a type is not static.
        ProgramError: it writes what is only to be read.
    """
    reader = _Reader(graphs, alignment)
    with module.context:
        reader.read(module, (*inputs, *constants, *outputs), len(inputs), len(constants), dtypes)
    arguments = reader.arguments
    split = len(inputs) + len(constants)
    program = Program(
        name=name,
        inputs=tuple(arguments[: len(inputs)]),
        constants=tuple(map(reader.as_arranged, arguments[len(inputs) : split])) + tuple(reader.literal_views),
        outputs=tuple(arguments[split:]),
        buffers=tuple(reader.buffers),
        views=tuple(reader.views),
        graphs=tuple(reader.graphs),
        steps=tuple(reader.steps),
        alignment=alignment,
    )
    varying = frozenset(name for name, graph in graphs.items() if graph.varies)
    return Lowered(placed(with_setup(program, varying)), tuple(reader.plans), reader.literals)


@dataclass
class _Reader:
    """Collects the parts of a program while it walks over the module."""

    compiled: Mapping[str, Compiled]
    alignment: int
    buffers: list[Buffer] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    graphs: list[PlannedGraph] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    plans: list[Any] = field(default_factory=list)
    arguments: list[Named] = field(default_factory=list)
    literals: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    literal_views: list[Named] = field(default_factory=list)
    arranged: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _views: dict[View, int] = field(default_factory=dict)
    _graphs: dict[str, int] = field(default_factory=dict)
    _wires: dict[str, WireGraph] = field(default_factory=dict)
    _globals: dict[str, Any] = field(default_factory=dict)

    def read(
        self, module: Any, names: Sequence[str], inputs: int, constants: int, dtypes: Sequence[Any] | None
    ) -> None:
        function = None
        for view in module.body.operations:
            op = view.operation
            if op.name == "memref.global":
                self._globals[ir.StringAttr(op.attributes["sym_name"]).value] = op
            elif op.name == "func.func" and not _is_private(op):
                if function is not None:
                    raise LoweringError(str(op.location), "the module has two public functions")
                function = op
            elif op.name != "func.func":
                raise LoweringError(str(op.location), f"operation {op.name} has no meaning at the top of a program")
        if function is None:
            raise LoweringError("module", "it has no public function")
        (block,) = function.regions[0].blocks
        if len(block.arguments) != len(names):
            raise LoweringError(
                "func.func", f"it takes {len(block.arguments)} arguments; the inputs, constants and outputs are {names}"
            )
        spaces = [Space.INPUT] * inputs + [Space.CONSTANT] * constants
        spaces += [Space.OUTPUT] * (len(names) - len(spaces))
        known = [None] * len(names) if dtypes is None else dtypes
        for argument, name, space, dtype in zip(block.arguments, names, spaces, known, strict=True):
            self._new_buffer(argument, space, name)
            self.arguments.append(Named(name, self._seen_as(self._numbers[argument], dtype, name)))
        for view in block.operations:
            self._operation(view.operation)

    # ---- operations

    def _operation(self, op: Any) -> None:
        if op.name == "hipdnn.execute":
            self._execute(op)
        elif op.name == "memref.copy":
            self._copy(self._number(op.operands[0], op), self._number(op.operands[1], op))
        elif op.name in ("memref.alloc", "memref.alloca"):
            self._new_buffer(op.results[0], Space.TEMPORARY, f"temporary {len(self.buffers)}")
        elif op.name == "memref.get_global":
            self._get_global(op)
        elif op.name in _VIEWS:
            self._look(op)
        elif op.name == "arith.constant" or op.name in _IGNORED:
            if op.name == "func.return" and len(op.operands):
                raise LoweringError(
                    str(op.location), "the function returns values; hipdnn-finalize-memrefs leaves none"
                )
        else:
            raise LoweringError(str(op.location), f"operation {op.name} is none that a program can have")

    def _execute(self, op: Any) -> None:
        """A tensor that does not lie as its graph wants it is copied before the call, a result after it."""
        name = _string(op.attributes["graph"])
        taken, given = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        number = self._graph(name, op)
        wire, compiled = self._wires[name], self.compiled[name]
        uids = (*compiled.inputs, *compiled.outputs)
        if (taken, given) != (len(compiled.inputs), len(compiled.outputs)):
            raise LoweringError(
                f"hipdnn.execute {name}",
                f"{taken} ins and {given} outs; the graph has {len(compiled.inputs)} and {len(compiled.outputs)}",
            )
        operands: list[int] = []
        after: list[tuple[int, int]] = []
        for index, (value, uid) in enumerate(zip(op.operands, uids, strict=True)):
            if uid is None:
                continue
            given_view = self._number(value, op)
            where = f"hipdnn.execute {name}: tensor {uid}"
            used = self._usable(given_view, wire.tensor(uid), where)
            self._arrange(self.views[given_view], wire.tensor(uid), uid in compiled.arranged, where)
            if used != given_view and index < taken:
                self._copy(given_view, used)
            elif used != given_view:
                after.append((used, given_view))
            operands.append(used)
        self.steps.append(Execute(number, tuple(operands)))
        for source, target in after:
            self._copy(source, target)

    def _arrange(self, view: View, tensor: WireTensor, is_arranged: bool, where: str) -> None:
        """A constant has its elements in the order in which its graphs read them."""
        if self.buffers[view.buffer].space is not Space.CONSTANT:
            return
        strides = tuple(tensor.strides) if is_arranged else None
        known = self.arranged.setdefault(view.buffer, strides)
        if known != strides:
            raise LoweringError(where, f"a constant is read with strides {strides} and {known}")

    def _copy(self, source: int, target: int) -> None:
        if source != target:
            self.steps.append(Copy(source, target))

    def _usable(self, number: int, tensor: WireTensor, where: str) -> int:
        """The view itself if the graph can work on it, else a new dense temporary of the same dims."""
        view = self.views[number]
        if tensor.is_runtime_pass_by_value and tensor.value is None:
            raise LoweringError(where, f"'{tensor.name}' is passed by value, which operands in device memory are not")
        if _extent(tensor.dims, tensor.strides) > view.end - view.offset:
            raise LoweringError(
                where, f"'{tensor.name}' has dims {tensor.dims}, strides {tensor.strides}; the operand has {view.dims}"
            )
        aligned = view.offset * view.itemsize % min(tensor.alignment, self.alignment) == 0
        # How the elements of dense memory are arranged is settled between the graphs that share it.
        if aligned and (view.is_dense or _layout(tensor.dims, tensor.strides) == _layout(view.dims, view.strides)):
            return number
        if _layout(tensor.dims, tensor.strides) != _layout(tensor.dims, row_major(tensor.dims)) and not view.is_dense:
            raise LoweringError(
                where,
                f"'{tensor.name}' has strides {tensor.strides}, the operand of dims {view.dims} has {view.strides}",
            )
        return self._temporary(view)

    def _temporary(self, view: View) -> int:
        self.buffers.append(Buffer(Space.TEMPORARY, f"temporary {len(self.buffers)}", view.count * view.itemsize))
        return self._add(View(len(self.buffers) - 1, 0, view.dims, row_major(view.dims), view.dtype))

    def _graph(self, name: str, op: Any) -> int:
        """Graphs with one compiled plan share its number, so a saved model holds it once."""
        if name in self._graphs:
            return self._graphs[name]
        if name not in self.compiled:
            raise LoweringError(str(op.location), f"graph '{name}' was not compiled; there are {sorted(self.compiled)}")
        found = self.compiled[name]
        plan = next((n for n, known in enumerate(self.plans) if known is found.plan), len(self.plans))
        if plan == len(self.plans):
            self.plans.append(found.plan)
        self._wires[name] = decode_graph(found.wire)
        self.graphs.append(
            PlannedGraph(
                name,
                found.engine.name,
                plan,
                tuple(uid for uid in found.inputs if uid is not None),
                tuple(found.outputs),
                found.plan.workspace_size,
                tuple(found.nodes),
            )
        )
        self._graphs[name] = len(self.graphs) - 1
        return self._graphs[name]

    # ---- memory

    def _number(self, value: Any, op: Any) -> int:
        """The number of the view that a value is."""
        if value not in self._numbers:
            raise LoweringError(str(op.location), f"operation {op.name} uses a value that is no memory: {value.type}")
        return self._numbers[value]

    def _add(self, view: View) -> int:
        """The number of a view; equal ones share it."""
        number = self._views.get(view)
        if number is None:
            number = self._views[view] = len(self.views)
            self.views.append(view)
        return number

    def _new_buffer(self, value: Any, space: Space, name: str) -> None:
        view = _view_of(value, len(self.buffers), name)
        self.buffers.append(Buffer(space, name, view.end * view.itemsize))
        self._numbers[value] = self._add(view)

    def _seen_as(self, number: int, dtype: Any, name: str) -> int:
        """An argument as its caller sees it; the steps go on using what the memref says, so that copies agree."""
        view = self.views[number]
        if dtype is None or np.dtype(dtype).name == view.dtype:
            return number
        wanted = np.dtype(dtype)
        is_code = wanted.name in CODES and view.dtype in ("int8", "uint8")
        if not is_code and (wanted.kind != "u" or f"u{view.dtype}" != wanted.name):
            raise LoweringError(f"argument '{name}'", f"it is {wanted} to its caller, its memory holds {view.dtype}")
        return self._add(replace(view, dtype=wanted.name))

    def as_arranged(self, constant: Named) -> Named:
        """The constant with the strides in which its elements are to lie; the steps see dense memory."""
        view = self.views[constant.view]
        strides = self.arranged.get(view.buffer)
        if strides is None:
            return constant
        return Named(constant.name, self._add(replace(view, strides=strides)))

    def _look(self, op: Any) -> None:
        source = self.views[self._number(op.operands[0], op)]
        view = _view_of(op.results[0], source.buffer, str(op.location), source)
        self._numbers[op.results[0]] = self._add(view)

    def _get_global(self, op: Any) -> None:
        symbol = ir.FlatSymbolRefAttr(op.attributes["name"]).value
        name = f"@{symbol}"
        if name not in self.literals:
            if symbol not in self._globals:
                raise LoweringError(str(op.location), f"there is no memref.global {name}")
            self._new_buffer(op.results[0], Space.CONSTANT, name)
            number = self._numbers[op.results[0]]
            view = self.views[number]
            self.literals[name] = _values(self._globals[symbol], view.dims, view.dtype)
            self.literal_views.append(Named(name, number))
            return
        self._numbers[op.results[0]] = next(each.view for each in self.literal_views if each.name == name)


def _is_private(function: Any) -> bool:
    attributes = function.attributes
    return "sym_visibility" in attributes and ir.StringAttr(attributes["sym_visibility"]).value == "private"


def _string(attribute: Any) -> str:
    """A name, written as a string or as a symbol."""
    return str(attribute.value) if isinstance(attribute, ir.StringAttr | ir.FlatSymbolRefAttr) else str(attribute)


def _view_of(value: Any, buffer: int, where: str, source: View | None = None) -> View:
    """The view that a value's type describes; a cast to a dynamic layout keeps what is known of its source."""
    try:
        memref = ir.MemRefType(value.type)
    except ValueError:
        raise LoweringError(where, f"a memref is expected, got {value.type}") from None
    dtype = _TYPES.get(str(memref.element_type))
    if dtype is None:
        raise LoweringError(where, f"element type {memref.element_type} has no counterpart in memory")
    if not memref.has_static_shape:
        raise LoweringError(where, f"dims are not static: {memref}")
    if 0 in memref.shape:  # no element lies anywhere; MLIR's strides of such a type are not numbers
        return View(buffer, 0, tuple(memref.shape), row_major(memref.shape), dtype)
    strides, offset = memref.get_strides_and_offset()
    unknown = ir.ShapedType.get_dynamic_stride_or_offset()
    if unknown in (*strides, offset):
        if source is None or tuple(memref.shape) != source.dims:
            raise LoweringError(where, f"the layout is not static: {memref}")
        strides, offset = source.strides, source.offset
    if min((*strides, offset), default=0) < 0:
        raise LoweringError(where, f"the layout runs backwards: {memref}")
    return View(buffer, offset, tuple(memref.shape), tuple(strides), dtype)


def _values(op: Any, dims: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """The elements of a ``memref.global``."""
    attribute = op.attributes.get("initial_value", None)
    wanted = np.dtype(dtype)
    try:
        if isinstance(attribute, ir.DenseResourceElementsAttr):
            return np.frombuffer(memoryview(attribute).tobytes(), wanted, _product(dims)).reshape(dims).copy()
        if isinstance(attribute, ir.DenseElementsAttr):
            narrow = dtype.startswith(("bfloat16", "float8"))
            found = _from_text(str(attribute), wanted) if narrow else np.array(attribute)
            whole = found.size == _product(dims)
            return np.broadcast_to(found.reshape(dims) if whole else found, dims).astype(wanted).copy()
    except MemoryError as error:
        nbytes = _product(dims) * wanted.itemsize
        raise LoweringError(str(op.location), f"there is no memory for a constant of {nbytes} bytes") from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise LoweringError(str(op.location), f"the values of a memref.global cannot be read: {error}") from error
    raise LoweringError(str(op.location), f"a memref.global without values, or of a kind not known: {attribute}"[:300])


def _from_text(text: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Elements of a ``dense<...>``; for types that the bindings have no way to read."""
    body = text[text.index("<") + 1 : text.rindex(">", 0, text.rindex(":"))]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), dtype)
    words = body.replace("[", " ").replace("]", " ").replace(",", " ").split()
    bits = np.dtype(f"uint{8 * dtype.itemsize}")  # what is not finite is printed as bits
    items = [np.array(int(word, 16), bits).view(dtype) if word.startswith("0x") else float(word) for word in words]
    return np.array(items, np.float64).astype(dtype)


def _layout(dims: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """What matters of dims and strides: those of dims that are not 1."""
    return [(dim, stride) for dim, stride in zip(dims, strides, strict=True) if dim != 1]


def _extent(dims: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to behind the last."""
    if not _product(dims):
        return 0
    return 1 + sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True))


def _product(dims: Sequence[int]) -> int:
    return int(np.prod(dims, dtype=np.int64))
