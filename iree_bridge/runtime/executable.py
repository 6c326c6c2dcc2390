"""A compiled graph on a device: ``run`` with checked buffers, ``bind`` for repeated calls."""

from __future__ import annotations

import ctypes
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import getpid
from typing import Any, Final, Self

import numpy as np

from fusilli_ground.locks import fork_safe_lock
from fusilli_ground.spelling import did_you_mean
from graph_api.errors import ExecutionError
from graph_api.graph import Arguments
from graph_api.tensor import TensorAttr
from iree_bridge.devices.buffers import ALIGNMENT, StridedMemory
from iree_bridge.devices.device import Device, Driver, inherited_driver, task_threads
from iree_bridge.devices.iree_runtime import VmModule, reason
from iree_bridge.runtime.arguments import Argument, PackReader
from iree_bridge.runtime.launch_state import Key, LanePool
from iree_bridge.runtime.program import DirectProgram, HostProgram, Program, load_module, workspace_size

__all__ = ["BoundCall", "Executable"]

_LOG: Final = logging.getLogger(__name__)
_MAX_STREAMS: Final = 8
# A first guess of what one core does: about 20 GFLOP/s in matrix products, and it streams about 20 GB/s. Handing work
# to IREE's thread pool and back costs 10 to 20 us, more when the machine is busy: it pays from 100 us of work on.
_FLOPS_PER_S: Final = 20e9
_BYTES_PER_S: Final = 20e9
_POOL_PAYS_FROM_S: Final = 100e-6
# Vectors that lie across two cache lines are slower to read: a product of matrices at multiples of 16 took 1.4 times as
# long. What reads each number often is worth a copy to a better address, what reads it once or twice is not.
_FLOPS_PER_BYTE: Final = 8
# What IREE's bindings raise.
_IREE_ERRORS: Final = (RuntimeError, ValueError, IndexError, NotImplementedError, OSError)


class Executable:
    """A compiled graph, loaded on a device. Threads may share it.

    On the CPU a call returns when the outputs are written. On a GPU with a stream (``device.stream``) work is enqueued
    there: what the caller enqueued before is seen, what he enqueues after sees the results, and only arrays in host
    memory are waited for. On a GPU without a stream a call first waits for all earlier work of the device and returns
    when the outputs are written; so does every call on CUDA, where a stream only narrows what is waited for.

    Attributes:
        device: where it runs.
        outputs: tensors that ``run`` writes.
        inputs: tensors that ``run`` reads.
        workspace_size: bytes of temporary memory that a launch needs; kept here unless ``run_pointers`` is given some.
    """

    def __init__(
        self,
        arguments: Arguments,
        code: bytes,
        device: Device,
        *,
        flops: int | None = None,
        alignment: int = ALIGNMENT,
    ) -> None:
        """Loads compiled code.

        Args:
            arguments: ``graph.arguments()`` of the graph that the code was compiled from.
            code: VMFB bytes for ``device.target``.
            device: where to run.
            flops: floating-point operations of one run, if known; a first guess of how many threads pay on ``cpu``, and
                of whether its buffers are read often.
            alignment: bytes of which the code expects addresses to be multiples, see `CompiledCode.alignment`.

        Raises:
            ExecutionError: the device is not there, or the code does not load on it; or IREE's driver would launch it
                on a HIP stream that is being captured.
        """
        arguments = Arguments(*arguments)
        moved = sum(tensor.nbytes for tensors in arguments for tensor in tensors)
        self._expected_seconds = max((flops or 0) / _FLOPS_PER_S, moved / _BYTES_PER_S)
        reads_often = flops is None or flops > _FLOPS_PER_BYTE * moved
        self._alignment = ALIGNMENT if reads_often else alignment
        self._setup(arguments, load_module(code), code, device)

    def _setup(self, arguments: Arguments, module: VmModule, code: bytes, device: Device) -> None:
        self.outputs: tuple[TensorAttr, ...] = tuple(arguments.outputs)
        self.inputs: tuple[TensorAttr, ...] = tuple(arguments.inputs)
        self.device = device
        self.workspace_size = workspace_size(module)
        self._module = module
        self._code = code
        self._arguments = (
            *(Argument(tensor, is_output=True) for tensor in self.outputs),
            *(Argument(tensor, is_output=False) for tensor in self.inputs),
        )
        # On a GPU numpy arrays go through copies, so nothing is quick to serve.
        self._reader = PackReader(self._arguments, quick=not device.is_gpu)
        self._place = (device.kind, device.index)
        self._lock = fork_safe_lock()
        self._streams: OrderedDict[int | None, Executable] = OrderedDict()
        self._load()

    def _load(self) -> None:
        self._in_driver = False
        self._program = self._direct_program() or self._host_program() or self._hal_program()
        self._pool = LanePool(self._program)
        # Threads and GPU contexts do not survive a fork; a driver that works in the calling thread does.
        self._pid = None if self._program.synchronous else os.getpid()
        self._broken = False

    def _hal_program(self) -> Program:
        driver = inherited_driver(self._cpu_driver()) if self.device.kind == "cpu" else None
        if self.device.kind == "hip":
            self._in_driver = True
            self._refuse_capture()
        if self.device.kind == "cuda":
            self.device.enter()
        return Program(self._module, self.device, driver, self._arguments, self.workspace_size)

    def _refuse_capture(self) -> None:
        """IREE's HIP driver asks for events in a thread of its own, which ends a capture and then the process."""
        from iree_bridge.runtime.recorded.driver import Hip  # HIP only

        self.device.enter()
        if Hip.get().is_capturing(self.device.stream):
            names = ", ".join(f"'{tensor.name}'" for tensor in self.outputs)
            raise ExecutionError(
                f"the launch that computes {names} cannot be captured into a HIP graph: IREE's driver makes it, since "
                f"it cannot be recorded or '{self.device}' asks for the driver; run it outside the capture"
            )

    def _direct_program(self) -> DirectProgram | None:
        """On HIP: launches without IREE's driver, if what the code does can be recorded."""
        if self.device.kind != "hip" or self.device.driver:
            return None
        from iree_bridge.runtime.recorded.launching import load  # HIP only
        from iree_bridge.runtime.recorded.recording import UnrecordableError

        self.device.enter()
        sizes = [argument.nbytes for argument in self._arguments]
        try:
            loaded = load(self._code, sizes, self.workspace_size, self.device.index)
        except UnrecordableError as error:
            _LOG.info("%r is launched by IREE's driver: its launches cannot be recorded: %s", self, error)
            return None
        return DirectProgram(self.device, self._arguments, self.workspace_size, loaded)

    def _host_program(self) -> HostProgram | None:
        """On the CPU: runs without IREE's driver, if what the code does can be recorded."""
        if self.device.kind != "cpu" or self.device.driver == "local":
            return None
        from iree_bridge.runtime.host.launching import load  # CPU only
        from iree_bridge.runtime.recorded.recording import UnrecordableError

        sizes = [argument.nbytes for argument in self._arguments]
        try:
            loaded = load(self._code, sizes, self.workspace_size, self._expected_seconds)
        except UnrecordableError as error:
            _LOG.info("%r is run by IREE's driver: %s", self, error)
            return None
        threads = 1 if self.device.driver == "local-sync" else task_threads()
        return HostProgram(self.device, self._arguments, self.workspace_size, loaded, threads, self._alignment)

    def _cpu_driver(self) -> Driver:
        """The driver of IREE that is asked for, or that is faster: in this thread, or in a pool that costs time."""
        if self.device.driver in ("local-sync", "local-task"):
            return self.device.driver
        pays = task_threads() > 1 and self._expected_seconds >= _POOL_PAYS_FROM_S
        return "local-task" if pays else "local-sync"

    @property
    def keeps_memory(self) -> bool:
        """True if a launch needs device memory that no caller can give; launches by ``run_pointers`` share it."""
        return isinstance(self._program, DirectProgram) and bool(self._program.loaded.recording.temporaries)

    def run(self, pack: Mapping[Any, object]) -> None:
        """Runs the graph; outputs are written in place.

        Args:
            pack: ``{tensor | name | uid: buffer}`` for every output and input. A buffer is a numpy array or an object
                with ``__dlpack__``, of the tensor's logical dims, dtype and strides (those of size-1 dims do not
                count), writable if it is an output. Host memory is accepted by every device. Buffers that do not start
                at a multiple of 64 bytes (16 on the CPU, where that is faster than a copy), and an output that shares
                memory with an input, are served through a copy.
                Types whose elements share bytes: the bytes of the tensor, uint8 ``[nbytes]`` as ``TensorAttr.pack``
                makes them and ``unpack`` takes them, or, of an input, a numpy array of its values (``ml_dtypes.int4``
                and the like), which is packed for the call.

        Raises:
            ExecutionError: a buffer does not fit (nothing is launched then), or the device reports a failure.
        """
        key = self._reader.quick_key(pack)
        if key is None:
            # Referenced until the launch: they keep exported copies alive, and what values were packed into.
            memories = self._checked(pack)
            key = self._key(memories)
        self._launch(key)

    def __call__(self, *inputs: object, **named: object) -> Any:
        """Runs the graph on arrays; results are new arrays.

        Args:
            inputs: arrays as for `run`, in the order of ``self.inputs``.
            named: the others by name; ``**{"conv::x": x}`` for names that are no words of Python.

        Returns:
            The numpy array of the output, or a tuple of them in the order of ``self.outputs``. Types whose elements
            share bytes come as their values.

        Raises:
            ExecutionError: an input is missing, unknown or given twice, or does not fit.
        """
        pack = self._named(inputs, named)
        results = [tensor.memory() for tensor in self.outputs]
        self.run({**pack, **dict(zip(self.outputs, results, strict=True))})
        arrays = tuple(
            tensor.unpack(made) if tensor.data_type.is_packed else made
            for tensor, made in zip(self.outputs, results, strict=True)
        )
        return arrays[0] if len(arrays) == 1 else arrays

    def _named(self, inputs: Sequence[object], named: Mapping[str, object]) -> dict[TensorAttr, object]:
        """The arrays of a call by the tensors of the inputs."""
        names = [tensor.name for tensor in self.inputs]
        if len(inputs) > len(names):
            raise ExecutionError(f"{self!r} takes {len(names)} inputs, {', '.join(names)}; got {len(inputs)}")
        pack = dict(zip(names, inputs, strict=False))
        for name, value in named.items():
            if name in pack:
                raise ExecutionError(f"input '{name}' is given by position and by name; leave one out")
            if name not in names:
                near = did_you_mean(name, names)
                raise ExecutionError(f"{self!r} has no input '{name}'{near}; it has {', '.join(names)}")
            pack[name] = value
        missing = [name for name in names if name not in pack]
        if missing:
            raise ExecutionError(
                f"{self!r}: no array for {', '.join(map(repr, missing))}; inputs are {', '.join(names)}"
            )
        return {tensor: pack[tensor.name] for tensor in self.inputs}

    def bind(self, pack: Mapping[Any, object], constants: Iterable[TensorAttr | str | int] = ()) -> BoundCall:
        """Checks and binds buffers once, for calls that launch at once.

        Args:
            pack: as for ``run``, but values of packed inputs only for ``constants``.
            constants: inputs whose contents will not change any more, in place of which a prepared form may be used.

        Raises:
            ExecutionError: a buffer does not fit, or a constant is no input.
        """
        if isinstance(constants, str) or not isinstance(constants, Iterable):
            raise ExecutionError(f"constants are a list of inputs, got {constants!r}; write [{constants!r}]")
        constant = {self._arguments[self._reader.index(name)] for name in constants}
        for argument in constant:
            if argument.is_output:
                raise ExecutionError(f"'{argument.tensor.name}' is an output and cannot be constant; name inputs only")
        memories = self._checked(pack, packable=constant)
        return BoundCall(self, self._key(memories), memories)

    def run_pointers(self, pointers: Sequence[int], workspace: int = 0, on_host: int = 0) -> None:
        """Runs the graph on raw addresses, for callers that have checked shapes and dtypes themselves.

        Args:
            pointers: one address for each of ``outputs``, then ``inputs``: memory of the device (CPU: host memory),
                ``tensor.nbytes`` bytes each, laid out as the tensor's strides say.
            workspace: address of ``workspace_size`` bytes of device memory that nothing else uses until the work is
                done; 0: memory kept here. A misaligned workspace is not used.
            on_host: bit ``i`` says that address ``i`` is host memory, which on a GPU goes through a copy.

        Raises:
            ExecutionError: an address is NULL, the number of addresses is wrong, outputs overlap, the device fails.
        """
        try:
            if len(pointers) != len(self._arguments) or not all(pointers):
                raise self._wrong_pointers(pointers)
            mask = on_host if self.device.is_gpu else 0
            self._launch((*pointers, workspace, mask) if workspace or mask else tuple(pointers))
        except (ctypes.ArgumentError, TypeError, ValueError):  # a launch is not the time to look at each
            self._check_pointers(pointers, workspace, on_host)
            raise

    def bind_pointers(self, pointers: Sequence[int], workspace: int = 0, on_host: int = 0) -> BoundCall:
        """What ``run_pointers`` does, prepared for calls that launch at once; arguments and errors are the same."""
        self._check_pointers(pointers, workspace, on_host)
        if len(pointers) != len(self._arguments) or not all(pointers):
            raise self._wrong_pointers(pointers)
        mask = on_host if self.device.is_gpu else 0
        return BoundCall(self, (*pointers, workspace, mask) if workspace or mask else tuple(pointers), None)

    def on_stream(self, stream: int | None) -> Executable:
        """This executable with its work going to another stream of the same device; cached, so calls are cheap.

        Raises:
            ExecutionError: the stream is no stream handle, or the device has no streams.
        """
        if type(stream) is not int and stream is not None:
            self.device.on_stream(stream)  # says what is wrong with it
        if stream == self.device.stream:
            return self
        with self._lock:
            other = self._streams.get(stream)
            if other is None:
                other = Executable.__new__(Executable)
                arguments = Arguments(self.outputs, self.inputs)
                other._expected_seconds, other._alignment = self._expected_seconds, self._alignment
                other._setup(arguments, self._module, self._code, self.device.on_stream(stream))
                self._streams[stream] = other
                if len(self._streams) > _MAX_STREAMS:
                    self._streams.popitem(last=False)
            else:
                self._streams.move_to_end(stream)
            return other

    def forget_stream(self, stream: int | None) -> None:
        """Drops what ``on_stream`` keeps for a stream that is about to be destroyed.

        Raises:
            ExecutionError: it is no stream handle.
        """
        if type(stream) is not int and stream is not None:
            self.device.on_stream(stream)
        with self._lock:
            self._streams.pop(stream, None)

    def __repr__(self) -> str:
        names = ", ".join(tensor.name for tensor in self.inputs), ", ".join(tensor.name for tensor in self.outputs)
        return f"<Executable ({names[0]}) -> ({names[1]}) on {self.device}>"

    def _reading_stream(self) -> int | None:
        """The stream that an object on the GPU is told about, in DLPack's numbering."""
        stream = self.device.stream
        if stream is None:
            return -1  # the device is waited for before a launch
        return 1 if self.device.kind == "cuda" and stream == 0 else stream

    def _checked(self, pack: Mapping[Any, object], packable: set[Argument] | None = None) -> list[StridedMemory]:
        """The memory of all arguments; ``packable``: those that may come as values of a packed type, None for all."""
        values, stream = self._reader.values(pack), self._reading_stream()
        return [
            argument.check(value, self._place, stream=stream, may_copy=packable is None or argument in packable)
            for argument, value in zip(self._arguments, values, strict=True)
        ]

    def _key(self, memories: Sequence[StridedMemory]) -> Key:
        key = tuple(memory.pointer for memory in memories)
        if self.device.is_gpu:
            mask = sum((memory.device[0] == "cpu") << index for index, memory in enumerate(memories))
            return (*key, 0, mask) if mask else key
        return key

    def _launch(self, key: Key) -> None:
        if self._pid is not None:
            self._before_launch()
        idle = self._pool.idle
        try:
            lane = idle.pop()
        except IndexError:
            lane = self._pool.new_lane()
        try:
            lane.launch(key)
        except _IREE_ERRORS as error:
            raise self._failure(error) from error
        idle.append(lane)

    def _before_launch(self) -> None:
        """What drivers other than the synchronous one need: threads that exist, work of the caller that is done."""
        if self._is_stale():
            with self._lock:
                if self._is_stale():
                    self._load()
        if self._in_driver:
            self._refuse_capture()
        if self._program.waits:
            self.device.wait_for_caller()

    def _is_stale(self) -> bool:
        return self._broken or self._pid not in (None, os.getpid())

    def _prepared(self, key: Key) -> Callable[[], None]:
        """A launch of ``key`` on a lane of its own."""
        if self.device.kind == "cuda":
            self.device.enter()
        try:
            return self._pool.new_lane().prepare(key)
        except _IREE_ERRORS as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> ExecutionError:
        """The error of a failed launch. A GPU device starts anew after it: IREE repeats its first error for ever."""
        if self.device.is_gpu:
            if isinstance(self._program, Program):
                self.device.discard(self._program.hal)
            self._broken = True
        names = ", ".join(f"'{tensor.name}'" for tensor in self.outputs)
        return ExecutionError(f"the launch that computes {names} failed on {self.device}: {reason(error)}")

    def _check_pointers(self, pointers: Sequence[int], workspace: int, on_host: int) -> None:
        """That all are what an address may be; what is there nobody can know."""
        if isinstance(pointers, str | bytes) or not isinstance(pointers, Sequence | np.ndarray):
            raise ExecutionError(f"addresses are a list of integers, got {pointers!r} for {self!r}")
        named = [(f"the address of '{a.tensor.name}'", p) for a, p in zip(self._arguments, pointers, strict=False)]
        for what, value in (*named, ("the address of the workspace", workspace), ("the mask on_host", on_host)):
            if not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
                raise ExecutionError(
                    f"{what} is {value!r}; expected an integer from 0 to 2^64-1, such as data.ctypes.data"
                )

    def _wrong_pointers(self, pointers: Sequence[int]) -> ExecutionError:
        if len(pointers) != len(self._arguments):
            return ExecutionError(f"got {len(pointers)} addresses for {len(self._arguments)} arguments of {self!r}")
        names = [a.tensor.name for a, pointer in zip(self._arguments, pointers, strict=True) if not pointer]
        return ExecutionError(
            f"the address of {', '.join(map(repr, names))} is NULL; every output and input needs a buffer"
        )


class BoundCall(partial[None]):
    """A launch with its buffers bound; made by ``Executable.bind``. Call it as often as you like.

    It keeps the bound objects alive. Threads may share it; calls that overlap in time write the same outputs. What has
    happened when a call returns: see ``Executable``. A call raises ExecutionError if the device reports a failure.

    Attributes:
        func: what a call does, as a function.
    """

    # A partial, because calling one costs less than calling a __call__ of ours.

    def __new__(cls, executable: Executable, key: Key, kept: object) -> Self:
        made = super().__new__(cls, _bound_launch(executable, key))
        made._kept = kept
        return made

    _kept: object


def _bound_launch(executable: Executable, key: Key) -> Callable[[], None]:
    """A launch of ``key`` in the form that takes least time: a function whose variables are cells."""
    idle = [executable._prepared(key)]

    def launch() -> None:
        try:
            run = idle.pop()
        except IndexError:  # another thread is in a call, or the last launch failed
            run = executable._prepared(key)
        try:
            run()
        except _IREE_ERRORS as error:
            raise executable._failure(error) from error
        idle.append(run)

    if executable._pid is None:
        return launch
    program = executable._program
    waits = program.waits or executable._in_driver

    def checked_launch() -> None:
        nonlocal program
        if waits or executable._broken or executable._pid != getpid() or executable._program is not program:
            executable._before_launch()
            if executable._program is not program:  # loaded anew, after a fork or a failure
                program = executable._program
                idle.clear()
        launch()

    return checked_launch
