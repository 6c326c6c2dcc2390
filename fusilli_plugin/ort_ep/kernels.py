"""A group of nodes run by ONNX Runtime's own CPU kernels: the way out where no engine has code for a shape.

The group's model is opened as a session of the ONNX Runtime that runs us, through its C functions, so that it needs no
other package and has the kernels that the nodes would have had without this provider.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import Api, address, c_text
from fusilli_plugin.ort_ep.memory import gpu
from iree_bridge import Device

__all__ = ["Kernels", "Places", "Result", "StoredModel"]

_IN_MEMORY: Final = 16 << 20  # bytes of a model that are kept there; larger ones go to a temporary file
_FATAL: Final = 4  # OrtLoggingLevel: what fails is told by a status anyway
_ARENA, _DEFAULT_MEMORY = 1, 0  # OrtAllocatorType, OrtMemType


class StoredModel:
    """A model that may never be needed again: if it is large, a file without a name takes less than memory.

    Raises:
        OSError: there is no room for the file.
        ValueError: protobuf does not serialize it: it is larger than 2 GiB.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        data = _shapeless(model).SerializeToString()
        self._lock = threading.Lock()
        self._data = data if len(data) <= _IN_MEMORY else b""
        self._file: Any = None
        if not self._data:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
            self._file.write(data)

    @classmethod
    def of(cls, model: onnx.ModelProto) -> StoredModel | None:
        """None if it cannot be stored."""
        try:
            return cls(model)
        except (OSError, ValueError):
            return None

    def data(self) -> bytes:
        """The model, serialized."""
        if self._file is None:
            return self._data
        with self._lock:
            self._file.seek(0)
            return self._file.read()

    def close(self) -> None:
        """Free the memory or the file."""
        self._data = b""
        if self._file is not None:
            self._file.close()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()


def _shapeless(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the dims of its arguments: what comes from another node may have others than were inferred."""
    if not any(each.type.tensor_type.HasField("shape") for each in (*model.graph.input, *model.graph.output)):
        return model
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    for value in (*stripped.graph.input, *stripped.graph.output):
        value.type.tensor_type.ClearField("shape")
    return stripped


@dataclass(frozen=True)
class Result:
    """A result in host memory, valid as long as `Kernels.run` says.

    Attributes:
        dims: extents.
        address: of its elements.
        nbytes: of them.
    """

    dims: tuple[int, ...]
    address: int
    nbytes: int


class Kernels:
    """A session of ONNX Runtime's CPU provider. Threads may share it.

    Args:
        api: functions of the ONNX Runtime.
        model: serialized.
        inputs: name and ONNX's number of the element type of each.
        outputs: names.
        threads: as `SessionOptions.intra_op_num_threads`, 0 for ONNX Runtime's own choice.

    Raises:
        OrtError: ONNX Runtime does not take the model.
    """

    def __init__(
        self, api: Api, model: bytes, inputs: Sequence[tuple[str, int]], outputs: Sequence[str], threads: int = 0
    ) -> None:
        self._api = api
        self._types = [element for _, element in inputs]
        self._texts = [c_text(name) for name in (*(name for name, _ in inputs), *outputs)]
        self._inputs: Any = ffi.new("char *[]", self._texts[: len(inputs)] or [ffi.NULL])
        self._outputs: Any = ffi.new("char *[]", self._texts[len(inputs) :] or [ffi.NULL])
        self._count = len(outputs)
        self._session: Any = ffi.NULL
        self._env: Any = api.get("CreateEnv", "void *", _FATAL, c_text("fusilli"))  # the one that there is
        options = api.get("CreateSessionOptions", "void *")
        try:
            api.call("SetSessionLogSeverityLevel", options, _FATAL)
            api.call("SetIntraOpNumThreads", options, threads)
            # its threads would otherwise burn the cores between two runs, which the compiled groups need
            api.call("AddSessionConfigEntry", options, c_text("session.intra_op.allow_spinning"), c_text("0"))
            data: Any = ffi.from_buffer(model)
            self._session = api.get("CreateSessionFromArray", "void *", self._env, data, len(model), options)
            self._host: Any = api.get("CreateCpuMemoryInfo", "void *", _ARENA, _DEFAULT_MEMORY)
        except BaseException:
            self.close()
            raise
        finally:
            api.plain("ReleaseSessionOptions", options)

    def run(self, inputs: Sequence[tuple[int, Sequence[int], int]], use: Callable[[list[Result]], None]) -> None:
        """Run once.

        Args:
            inputs: address, dims and number of bytes of each input in host memory.
            use: gets the results, which are valid during that call.

        Raises:
            OrtError: a kernel failed.
        """
        api, values = self._api, [ffi.NULL] * len(inputs)
        results: Any = ffi.new("void *[]", max(self._count, 1))
        try:
            for number, (place, dims, nbytes) in enumerate(inputs):
                shape: Any = ffi.new("int64_t[]", list(dims) or [0])
                element = self._types[number]
                data: Any = ffi.cast("void *", place)
                values[number] = api.get(
                    "CreateTensorWithDataAsOrtValue", "void *", self._host, data, nbytes, shape, len(dims), element
                )
            given: Any = ffi.new("void *[]", values or [ffi.NULL])
            api.call(
                "Run", self._session, ffi.NULL, self._inputs, given, len(values), self._outputs, self._count, results
            )
            use([self._result(results[number]) for number in range(self._count)])
        finally:
            for value in (*values, *results[0 : self._count]):
                if value != ffi.NULL:
                    api.plain("ReleaseValue", value)

    def _result(self, value: Any) -> Result:
        nbytes = self._api.get("GetTensorSizeInBytes", "size_t", value)
        place = address(self._api.get("GetTensorMutableData", "void *", value))
        return Result(self._api.dims(value), place, nbytes)

    def close(self) -> None:
        """Free the session; nothing may run it. A second call does nothing."""
        for name, held in (("ReleaseSession", self._session), ("ReleaseEnv", self._env)):
            if held != ffi.NULL:
                self._api.plain(name, held)
        if getattr(self, "_host", ffi.NULL) != ffi.NULL:
            self._api.plain("ReleaseMemoryInfo", self._host)
        self._session = self._env = self._host = ffi.NULL

    def __del__(self) -> None:
        self.close()


class Places:
    """Tensors where a device has them, as host memory for kernels.

    Args:
        device: where they are.
        stream: HIP's handle of the stream that the work belongs to.
    """

    def __init__(self, device: Device, stream: int) -> None:
        self._gpu = gpu(device.index) if device.is_gpu else None
        self._stream = stream
        self._copies: list[Any] = []

    def fetch(self, places: Iterable[tuple[int, Sequence[int], int]]) -> list[tuple[int, Sequence[int], int]]:
        """Addresses in host memory of the same elements."""
        if self._gpu is None:
            return list(places)
        found: list[tuple[int, Sequence[int], int]] = []
        for place, dims, nbytes in places:
            copy: Any = ffi.new("char[]", max(nbytes, 1))
            self._copies.append(copy)
            if nbytes:
                self._gpu.copy(address(copy), place, nbytes, self._stream)
            found.append((address(copy), dims, nbytes))
        self._gpu.synchronize(self._stream)
        return found

    def store(self, results: Sequence[Result], addresses: Sequence[int]) -> None:
        """Write results to where they belong."""
        for result, place in zip(results, addresses, strict=True):
            if not result.nbytes:
                continue
            if self._gpu is None:
                ffi.memmove(ffi.cast("char *", place), ffi.cast("char *", result.address), result.nbytes)
            else:
                self._gpu.copy(place, result.address, result.nbytes, self._stream)
        if self._gpu is not None:
            self._gpu.synchronize(self._stream)
