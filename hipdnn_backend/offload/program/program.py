"""The program: what a model has become once the compiler is done. Plain frozen data that JSON can hold; no MLIR.

A program reads its inputs and constants, runs its steps in order, and has its outputs written. A step runs a compiled
graph on operands or copies one view to another. Operands are views of buffers; the buffers that only the program sees
(temporaries) and the workspaces of the graphs share one arena. The first steps may be a setup: they depend on constants
alone, so they run once, and what later steps read of their results is kept in buffers of its own (folded).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, TypeAlias

import ml_dtypes  # noqa: F401 - numpy knows its types by name from here on
import numpy as np

from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.memory import Lifetime, Need, PlacementError, lifetimes, plan, verify

__all__ = [
    "CODES",
    "DTYPES",
    "Buffer",
    "Copy",
    "Execute",
    "Named",
    "PlannedGraph",
    "Program",
    "ProgramError",
    "Space",
    "Step",
    "View",
    "lives",
    "placed",
]

CODES: Final = frozenset(
    {
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
    }
)
"""Those of which an element is a byte that graphs may see as an integer: what arguments have, not temporaries."""

DTYPES: Final = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16"),
        *CODES,
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    }
)
"""Element types by numpy's names."""


class ProgramError(OffloadError):
    """A program contradicts itself: it was damaged, or made by something else."""


class Space(StrEnum):
    """Whose memory a buffer is."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    FOLDED = "folded"
    TEMPORARY = "temporary"


_READ_ONLY: Final = frozenset({Space.INPUT, Space.CONSTANT})


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that views look at.

    Attributes:
        space: whose it is. Inputs and constants are only read, folded ones are written in the setup alone.
        name: for messages.
        nbytes: bytes.
        offset: where a temporary starts, in bytes from the start of the arena; 0 for the others.
    """

    space: Space
    name: str
    nbytes: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """A strided look at a buffer.

    Attributes:
        buffer: number of the buffer.
        offset: of the first element from the start of the buffer, in elements.
        dims: extents.
        strides: in elements, as many as dims, none negative.
        dtype: numpy's name of the element type.
    """

    buffer: int
    offset: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def end(self) -> int:
        """Elements from the start of the buffer to behind the last one that is looked at."""
        if not self.count:
            return self.offset
        reach = sum((dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True))
        return self.offset + reach + 1

    @property
    def is_dense(self) -> bool:
        """The elements follow each other in row-major order without gaps."""
        expected = 1
        for dim, stride in zip(reversed(self.dims), reversed(self.strides), strict=True):
            if dim != 1 and stride != expected:
                return not self.count
            expected *= dim
        return True


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A compiled graph as the steps name it.

    Attributes:
        name: unique in the program.
        engine: name of the engine that compiled it.
        plan: number of its plan; equal graphs share one.
        inputs: uids of the tensors that a step gives first.
        outputs: uids of the tensors that a step gives after them.
        workspace_size: bytes.
        nodes: names of the source nodes that it computes.
    """

    name: str
    engine: str
    plan: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace_size: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a graph.

    Attributes:
        graph: its number.
        operands: numbers of views, in the order of the graph's inputs, then outputs.
        workspace: where the graph's workspace starts, in bytes from the start of the arena.
    """

    graph: int
    operands: tuple[int, ...]
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy one view to another of the same dims and type.

    Attributes:
        source: number of the view that is read.
        target: number of the view that is written.
    """

    source: int
    target: int


Step: TypeAlias = Execute | Copy


@dataclass(frozen=True, slots=True)
class Named:
    """An argument of the program and the view that it is."""

    name: str
    view: int


@dataclass(frozen=True)
class Program:
    """See the module.

    Attributes:
        name: of the model.
        inputs: what a caller gives.
        outputs: what a caller gets.
        constants: what is known when the program is loaded: weights and literals, by name.
        buffers: all memory.
        views: all looks at it.
        graphs: all compiled graphs.
        steps: what to do, in order.
        setup: how many of the first steps are done once, when the program is loaded.
        arena: bytes of the arena.
        alignment: bytes to which temporaries and workspaces are aligned.
    """

    name: str
    inputs: tuple[Named, ...]
    outputs: tuple[Named, ...]
    constants: tuple[Named, ...]
    buffers: tuple[Buffer, ...]
    views: tuple[View, ...]
    graphs: tuple[PlannedGraph, ...]
    steps: tuple[Step, ...]
    setup: int = 0
    arena: int = 0
    alignment: int = 64

    @cached_property
    def naive(self) -> int:
        """Bytes that the arena would have if nothing shared memory."""
        return sum(life.room for life in lives(self) if life.is_live)

    @cached_property
    def plans(self) -> int:
        """Number of different plans."""
        return 1 + max((graph.plan for graph in self.graphs), default=-1)

    def step_name(self, step: Step) -> str:
        """What a step does, in words."""
        if isinstance(step, Execute):
            return self.graphs[step.graph].name
        source, target = self.views[step.source], self.views[step.target]
        return f"copy {self.buffers[source.buffer].name} to {self.buffers[target.buffer].name}"

    def written(self, step: Step) -> tuple[int, ...]:
        """Numbers of the views that a step writes."""
        if isinstance(step, Copy):
            return (step.target,)
        return step.operands[len(self.graphs[step.graph].inputs) :]

    def touched(self, step: Step) -> tuple[int, ...]:
        """Numbers of the views that a step reads or writes."""
        return (step.source, step.target) if isinstance(step, Copy) else step.operands

    def check(self) -> None:
        """Check that every number names something, every view lies in its buffer, and the arena is placed right.

        Raises:
            ProgramError: it is not so; the message says where.
        """
        for number, view in enumerate(self.views):
            self._check_view(number, view)
        for what, named in (("input", self.inputs), ("output", self.outputs), ("constant", self.constants)):
            self._check_arguments(what, named)
        if self.setup > len(self.steps):
            raise ProgramError(f"the setup has {self.setup} steps, all steps are {len(self.steps)}")
        filled: set[int] = set()
        for number, step in enumerate(self.steps):
            self._check_step(number, step)
            self._check_filled(number, step, filled)
        found = lives(self)
        try:
            verify(found, _offsets(self), self.arena)
        except PlacementError as error:
            raise ProgramError(f"the memory plan of program '{self.name}' is wrong: {error}") from error

    def _check_view(self, number: int, view: View) -> None:
        where = f"view {number}"
        if view.dtype not in DTYPES:
            raise ProgramError(f"{where}: element type {view.dtype!r} is unknown")
        if not 0 <= view.buffer < len(self.buffers):
            raise ProgramError(f"{where}: there is no buffer {view.buffer}")
        if len(view.dims) != len(view.strides) or min((*view.dims, *view.strides, view.offset), default=0) < 0:
            raise ProgramError(f"{where}: dims {view.dims}, strides {view.strides}, offset {view.offset} fit no memory")
        buffer = self.buffers[view.buffer]
        if view.end * view.itemsize > buffer.nbytes:
            raise ProgramError(
                f"{where} reaches to byte {view.end * view.itemsize} of '{buffer.name}', which has {buffer.nbytes}"
            )

    def _check_arguments(self, what: str, named: Sequence[Named]) -> None:
        names = [each.name for each in named]
        if len(set(names)) != len(names):
            raise ProgramError(f"two {what}s have one name among {names}")
        for each in named:
            self._view(each.view, f"{what} '{each.name}'")
            space = self.buffers[self.views[each.view].buffer].space
            if space != what:
                raise ProgramError(f"{what} '{each.name}' lies in memory of another kind: {space}")

    def _check_step(self, number: int, step: Step) -> None:
        where = f"step {number}"
        if isinstance(step, Execute) and not 0 <= step.graph < len(self.graphs):
            raise ProgramError(f"{where}: there is no graph {step.graph}")
        for view in self.touched(step):
            self._view(view, where)
        for view in self.written(step):
            buffer = self.buffers[self.views[view].buffer]
            if buffer.space in _READ_ONLY or (buffer.space is Space.FOLDED and number >= self.setup):
                raise ProgramError(f"{where} ({self.step_name(step)}) writes {buffer.space} '{buffer.name}'")
        if number < self.setup:
            self._check_setup(where, step)
        # A program may come from a file, so nothing of it is taken for granted: a wrong view is a write anywhere.
        if isinstance(step, Execute):
            graph = self.graphs[step.graph]
            if len(step.operands) != len(graph.inputs) + len(graph.outputs):
                raise ProgramError(
                    f"{where}: {len(step.operands)} operands for graph '{graph.name}', "
                    f"which takes {len(graph.inputs)} and {len(graph.outputs)}"
                )
        else:
            source, target = self.views[step.source], self.views[step.target]
            if (source.dims, source.dtype) != (target.dims, target.dtype):
                raise ProgramError(
                    f"{where} copies {source.dims} {source.dtype} to {target.dims} {target.dtype}; they must be alike"
                )

    def _check_filled(self, number: int, step: Step, filled: set[int]) -> None:
        """Folded buffers are read after a step of the setup has written them."""
        written = set(self.written(step))
        for view in self.touched(step):
            place = self.views[view].buffer
            if self.buffers[place].space is not Space.FOLDED:
                continue
            if view in written:
                filled.add(place)
            elif place not in filled:
                raise ProgramError(
                    f"step {number} reads folded '{self.buffers[place].name}', which nothing has written"
                )

    def _check_setup(self, where: str, step: Step) -> None:
        """There are no inputs and outputs yet when the setup runs."""
        for view in self.touched(step):
            buffer = self.buffers[self.views[view].buffer]
            if buffer.space in (Space.INPUT, Space.OUTPUT):
                raise ProgramError(f"{where} is of the setup and uses {buffer.space} '{buffer.name}'")

    def _view(self, number: int, where: str) -> None:
        if not 0 <= number < len(self.views):
            raise ProgramError(f"{where}: there is no view {number}")


def lives(program: Program) -> list[Lifetime]:
    """When each temporary and each workspace is in use: the temporaries in the order of the buffers, then one
    workspace for each step, of no bytes where it needs none.
    """  # noqa: D205 - one sentence
    temporaries = [number for number, buffer in enumerate(program.buffers) if buffer.space is Space.TEMPORARY]
    place = {number: index for index, number in enumerate(temporaries)}
    needs = [
        Need(program.buffers[number].name, program.buffers[number].nbytes, program.alignment) for number in temporaries
    ]
    touched = [
        {place[buffer] for view in program.touched(step) if (buffer := program.views[view].buffer) in place}
        for step in program.steps
    ]
    return lifetimes(needs, touched, [_scratch(program, step) for step in program.steps])


def _scratch(program: Program, step: Step) -> Need:
    if not isinstance(step, Execute):
        return Need("no workspace", 0, program.alignment)
    graph = program.graphs[step.graph]
    return Need(f"workspace of {graph.name}", graph.workspace_size, program.alignment)


def _offsets(program: Program) -> list[int]:
    temporaries = [buffer.offset for buffer in program.buffers if buffer.space is Space.TEMPORARY]
    return temporaries + [step.workspace if isinstance(step, Execute) else 0 for step in program.steps]


def placed(program: Program) -> Program:
    """The program with its arena planned."""
    found = lives(program)
    made = plan(found)
    offsets = iter(made.offsets)
    buffers = tuple(
        replace(buffer, offset=next(offsets)) if buffer.space is Space.TEMPORARY else buffer
        for buffer in program.buffers
    )
    steps: list[Step] = []
    for step, offset in zip(program.steps, offsets, strict=True):
        steps.append(replace(step, workspace=offset) if isinstance(step, Execute) else step)
    result = replace(program, buffers=buffers, steps=tuple(steps), arena=made.size)
    result.check()
    return result
