"""Runs control operations: which body comes next is read from the device's memory, which waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusilli_ground.strides import row_major
from hipdnn_backend.device.memory import Buffer, Memory
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.control.described import Control, Port
from hipdnn_backend.offload.program.copying import bind_copy
from hipdnn_backend.offload.program.program import View
from hipdnn_backend.offload.program.runner import Prepared
from hipdnn_backend.onnx_op import CONTROL_ENGINE

__all__ = ["bind_control"]

Array = np.ndarray[Any, Any]
Call = Callable[[], None]


def bind_control(
    control: Control, bodies: Sequence[Prepared], constants: Sequence[Array], pack: Mapping[int, int], stream: int
) -> Call:
    """What runs a control operation on addresses.

    Args:
        control: the operation.
        bodies: its bodies on a device.
        constants: by their numbers.
        pack: uid → address.
        stream: where the bodies run.
    """
    return {"If": _If, "Loop": _Loop, "Scan": _Scan}[control.kind](control, bodies, constants, pack, stream).run


class _Bound:
    """Memory for what goes between a control operation and its bodies."""

    def __init__(
        self,
        control: Control,
        bodies: Sequence[Prepared],
        constants: Sequence[Array],
        pack: Mapping[int, int],
        stream: int,
    ) -> None:
        self.control = control
        self.bodies = bodies
        self.memory: Memory = bodies[0].memory
        self.stream = stream
        self._pack = pack
        self._buffers: list[Buffer] = []
        self._constants = [self._constant(each) for each in constants]
        self.operands = [0 if port is None else self.address(port) for port in control.operands]

    def _constant(self, value: Array) -> int:
        place = self.scratch(value.nbytes)
        if value.nbytes:
            self.memory.write(place, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return place

    def scratch(self, nbytes: int) -> int:
        """New memory."""
        buffer = self.memory.allocate(max(nbytes, 1))
        self._buffers.append(buffer)
        return buffer.address

    def address(self, port: Port) -> int:
        """Where a tensor is."""
        return self._constants[port.constant] if port.constant >= 0 else self._pack[port.uid]

    def captured(self, body: int) -> list[int]:
        """What a body reads of the graph around it."""
        return [self.address(port) for port in self.control.captured[body]]

    def truth(self, place: int) -> bool:
        """A boolean in the device's memory, once it is there."""
        self.memory.synchronize(self.stream)
        return self.memory.read(place, 1) != b"\0"

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy."""
        if nbytes and target != source:
            self.memory.copy_rows(target, nbytes, source, nbytes, nbytes, 1, self.stream)

    def results_of(self, body: int) -> list[View]:
        """What a body gives."""
        program = self.bodies[body].program
        return [program.views[each.view] for each in program.outputs]

    def fail(self, reason: str) -> EngineError:
        """An error of a run."""
        return EngineError(CONTROL_ENGINE, f"{self.control.kind} '{self.control.name}': {reason}")


class _If(_Bound):
    """One of two bodies, which write the results themselves."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._calls: list[Call] = []
        for number, body in enumerate(self.bodies):
            places = [
                self.scratch(view.count * view.itemsize) if port is None else self.address(port)
                for port, view in zip(self.control.results, self.results_of(number), strict=True)
            ]
            self._calls.append(body.bind([*self.captured(number), *places]))

    def run(self) -> None:
        """Run the body that the condition says."""
        self._calls[0 if self.truth(self.operands[0]) else 1]()


class _Loop(_Bound):
    """A body over and over, between two sets of states that take turns."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._states = [port for port in self.control.operands[2:] if port is not None]
        count = len(self._states)
        views = self.results_of(0)
        self._number, self._going, self._goes = (self.scratch(size) for size in (8, 1, 1))
        self._sets = [[self.scratch(port.nbytes) for port in self._states] for _ in range(2)]
        self._parts = [self.scratch(view.count * view.itemsize) for view in views[1 + count :]]
        self._sizes = [view.count * view.itemsize for view in views[1 + count :]]
        self._made = list(zip(self.control.results[count:], self._parts, self._sizes, strict=True))
        self._calls = [
            self.bodies[0].bind(
                [self._number, self._going, *self._sets[turn], *self.captured(0), self._goes, *self._sets[1 - turn],
                 *self._parts]
            )
            for turn in range(2)
        ]  # fmt: skip

    def run(self) -> None:
        """Go on until the condition or the number of steps says no.

        Raises:
            EngineError: a body failed, or it makes another number of steps than the model says that there are.
        """
        most, going = self.control.operands[0], self.operands[1]
        limit = int(np.frombuffer(self._read(self.operands[0], 8), np.int64)[0]) if most is not None else None
        for place, source, port in zip(self._sets[0], self.operands[2:], self._states, strict=True):
            self.copy(place, source, port.nbytes)
        goes = self.truth(going) if self.control.operands[1] is not None else True
        step = 0
        while goes and (limit is None or step < limit):
            self.memory.write(self._number, np.array(step, np.int64).tobytes())
            self.memory.write(self._going, b"\1")
            self._calls[step % 2]()
            for port, part, size in self._made:
                if port is not None:
                    self._check(port, step < port.dims[0], f"more than {port.dims[0]}")
                    self.copy(self.address(port) + step * size, part, size)
            goes = self.truth(self._goes)
            step += 1
        for port, _, _ in self._made:
            if port is not None:
                self._check(port, step == port.dims[0], str(step))
        for port, source in zip(self.control.results, self._sets[step % 2], strict=False):
            if port is not None:
                self.copy(self.address(port), source, port.nbytes)

    def _check(self, port: Port, right: bool, made: str) -> None:
        if not right:
            raise self.fail(f"it makes {made} steps, and the model says that there are {port.dims[0]}")

    def _read(self, place: int, size: int) -> bytes:
        self.memory.synchronize(self.stream)
        return self.memory.read(place, size)


class _Scan(_Bound):
    """A body for each step of sequences."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        control = self.control
        carried = len(control.operands) - control.sequences
        ports = [port for port in control.operands if port is not None]
        self._states = ports[:carried]
        self._steps = ports[carried].dims[control.in_axes[0]]
        views = self.results_of(0)[carried:]
        self._sets = [[self.scratch(port.nbytes) for port in self._states] for _ in range(2)]
        taken = [self.scratch(port.nbytes // max(self._steps, 1)) for port in ports[carried:]]
        made = [self.scratch(view.count * view.itemsize) for view in views]
        self._before = [
            [
                self._step(port, axis, self._at(step, backward), place, into=True)
                for port, axis, backward, place in zip(
                    ports[carried:], control.in_axes, control.in_backward, taken, strict=True
                )
            ]
            for step in range(self._steps)
        ]
        self._after = [
            [
                self._step(port, axis % len(port.dims), self._at(step, backward), place, into=False)
                for port, axis, backward, place in zip(
                    control.results[carried:], control.out_axes, control.out_backward, made, strict=True
                )
                if port is not None
            ]
            for step in range(self._steps)
        ]
        self._calls = [
            self.bodies[0].bind([*self._sets[turn], *taken, *self.captured(0), *self._sets[1 - turn], *made])
            for turn in range(2)
        ]

    def _at(self, step: int, backward: bool) -> int:
        return self._steps - 1 - step if backward else step

    def _step(self, port: Port, axis: int, step: int, place: int, *, into: bool) -> Call:
        """What copies one step of a sequence to or from a place of its own."""
        strides = row_major(port.dims)
        dims = (*port.dims[:axis], *port.dims[axis + 1 :])
        part = View(0, 0, dims, (*strides[:axis], *strides[axis + 1 :]), port.dtype)
        alone = View(0, 0, dims, row_major(dims), port.dtype)
        at = self.address(port) + step * strides[axis] * part.itemsize
        target, source = ((place, alone), (at, part)) if into else ((at, part), (place, alone))
        return bind_copy(self.memory, self.stream, *target, *source)

    def run(self) -> None:
        """All steps.

        Raises:
            EngineError: a body failed.
        """
        for place, source, port in zip(self._sets[0], self.operands, self._states, strict=False):
            self.copy(place, source, port.nbytes)
        for step in range(self._steps):
            for call in self._before[step]:
                call()
            self._calls[step % 2]()
            for call in self._after[step]:
                call()
        for port, source in zip(self.control.results, self._sets[self._steps % 2], strict=False):
            if port is not None:
                self.copy(self.address(port), source, port.nbytes)
