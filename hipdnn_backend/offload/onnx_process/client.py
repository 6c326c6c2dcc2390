"""onnx's native functions, asked in a process of their own: some models end the process that asks.

Operands without a type, attributes that are missing or out of range, and equations that are no text make onnx's shape
inference read what is not there, or go on until memory or time ends. Here that is an error, after bounded memory and
time. All that this package asks of onnx's C++ code about a model goes through this file.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError, EncodeError

from fusilli_ground.environment import environment
from fusilli_ground.locks import fork_safe_lock
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.onnx_process import worker

__all__ = [
    "OnnxError",
    "OnnxProcessError",
    "body_of",
    "check_model",
    "convert_version",
    "infer_shapes",
    "inline_functions",
    "inline_operators",
]

_WORKER: Final = Path(worker.__file__)
_ROOM: Final = 512 << 20
_TIMES: Final = 64
"""Bytes of memory that a question may take: so many, and so many for each byte of the model."""
_SECONDS: Final = 10.0
_SECONDS_PER_MIB: Final = 2.0


class OnnxError(OffloadError):
    """onnx refuses a model; the text is its own."""


class OnnxProcessError(OffloadError):
    """onnx did not survive a model, or could not be asked."""


class _Process:
    """The process, and the question that is being asked. Used by one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._sock = socket.socket(fileno=_above_standard(ours.detach()))
            numbers = map(str, (os.getpid(), _ROOM, _TIMES))
            words = [_python(), "-I", "-S", str(_WORKER), _extension(), *numbers]
            library_path = environment().get("LD_LIBRARY_PATH")
            try:
                self._process = subprocess.Popen(
                    words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                    env={"LD_LIBRARY_PATH": library_path} if library_path else {}, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                self._sock.close()
                raise OnnxProcessError(f"no process for onnx could be started ({words[0]}): {error}") from error

    def ask(self, header: list[Any], data: bytes) -> tuple[list[Any], bytes]:
        """One question and its answer. After an exception the process must not be used again."""
        self._sock.settimeout(_SECONDS + _SECONDS_PER_MIB * len(data) / (1 << 20))
        worker.send(self._sock, header, data)
        return worker.receive(self._sock)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> str:
        """End it; how it ended before, in words."""
        self._sock.close()
        code = self._process.poll()
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1) if code is None else code
        self._process.kill()
        self._process.wait()
        if code is None:
            return "was stopped"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def forget(self) -> None:
        """Of a process that the one before a fork has started."""
        self._sock.close()
        self._process.returncode = 0


_lock: Final = fork_safe_lock()
_process: _Process | None = None


def _after_fork() -> None:
    global _process
    if _process is not None:
        _process.forget()
        _process = None


os.register_at_fork(after_in_child=_after_fork)


def _ask(name: str, data: bytes, *arguments: Any) -> bytes:
    global _process
    with _lock:
        if _process is None or not _process.is_alive():
            if _process is not None:
                _process.end()
            _process = _Process()
        try:
            (error,), answer = _process.ask([name, *arguments], data)
        except (EOFError, OSError) as lost:
            how = _process.end()
            _process = None
            what = "took too long" if isinstance(lost, TimeoutError) else how
            raise OnnxProcessError(f"onnx does not survive this model: its {name} {what}; is it damaged?") from None
        except BaseException:
            _process.end()  # an answer may still come
            _process = None
            raise
    if error:
        raise OnnxError(error)
    return answer


def _of_model(name: str, model: onnx.ModelProto, *arguments: Any) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(_ask(name, _bytes(model), *arguments))
    except DecodeError as error:
        raise OnnxError(f"{name} gives what is no model: {error}") from error


def _bytes(message: onnx.ModelProto | onnx.NodeProto) -> bytes:
    try:
        return message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise OnnxError(f"the model cannot be written down: {error}") from error


def check_model(model: onnx.ModelProto) -> None:
    """See ``onnx.checker.check_model``; operators of other domains may be anything.

    Raises:
        OnnxError, OnnxProcessError: see there.
    """
    _ask("check_model", _bytes(model))


def infer_shapes(
    model: onnx.ModelProto, *, check_type: bool = False, strict_mode: bool = False, data_prop: bool = False
) -> onnx.ModelProto:
    """See ``onnx.shape_inference.infer_shapes``.

    Raises:
        OnnxError, OnnxProcessError: see there.
    """
    return _of_model("infer_shapes", model, check_type, strict_mode, data_prop)


def convert_version(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """See ``onnx.version_converter.convert_version``.

    Raises:
        OnnxError, OnnxProcessError: see there.
    """
    return _of_model("convert_version", model, version)


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without calls of its own functions, which are converted to its opset.

    Raises:
        OnnxError, OnnxProcessError: see there.
    """
    return _of_model("inline_functions", model)


def inline_operators(model: onnx.ModelProto, names: Sequence[tuple[str, str]]) -> onnx.ModelProto:
    """The model with the bodies of some operators, by domain and name, in their place.

    Raises:
        OnnxError, OnnxProcessError: see there.
    """
    return _of_model("inline_operators", model, names)


def body_of(node: onnx.NodeProto, opset: int, version: int, types: Sequence[onnx.TypeProto]) -> onnx.FunctionProto:
    """The body of an operator whose body depends on the node.

    Args:
        node: with its attributes.
        opset: of the model.
        version: of the opset that the body is written in.
        types: of the node's operands.

    Raises:
        OnnxError, OnnxProcessError: see there.
    """
    known = [each.SerializeToString().hex() for each in types]
    operator = (node.domain, node.op_type)
    return onnx.FunctionProto.FromString(_ask("body_of", _bytes(node), operator, opset, version, known))


def _above_standard(descriptor: int) -> int:
    """The same file with a descriptor over 2: a host may have closed its standard files, and print to them."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _extension() -> str:
    from onnx import onnx_cpp2py_export

    return str(onnx_cpp2py_export.__file__)


def _python() -> str:
    """An interpreter that loads the extension: of an embedding host, ``sys.executable`` may be the host itself."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = Path(onnx.__file__).parents[1]
    prefixes = [*([site.parents[2]] if site.parent.name == name else []), Path(sys.prefix), Path(sys.base_prefix)]
    for prefix in prefixes:
        if os.access(prefix / "bin" / name, os.X_OK):
            return str(prefix / "bin" / name)
    if sys.executable and Path(sys.executable).name.startswith("python"):
        return sys.executable
    raise OnnxProcessError(f"no {name} was found for onnx's process, in none of {', '.join(map(str, prefixes))}")
