"""The IREE compiler's C API, and the only import of it. For the worker process: some inputs crash or end the process.

One session per compile: a session shared by threads crashes, and reuse saves nothing.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from iree.compiler import version as _version
from iree.compiler.api import Invocation, Output, Session, Source, ctypes_dl

from iree_bridge.targets.barriers import CUT, DROP, DROP_OPTION, is_behind_cut

__all__ = [
    "Compiled",
    "Diagnostic",
    "RejectedError",
    "UnknownFlagError",
    "compile_text",
    "set_global_flags",
    "version",
]

_SEVERITIES: Final = ("note", "warning", "error", "remark")
_DROP: Final = f"{DROP}{{{DROP_OPTION}}}".encode()
_CONFIGURED: Final = b"executable-configurations"
_UNKNOWN_FLAG: Final = re.compile(r"option not found: ([\w-]+)")

_DIAGNOSTIC_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

# Bound here since the Python class offers only diagnostics on the console, which cannot be told from other output.
_dylib: Any = ctypes_dl._dylib
_enable_diagnostics: Any = _dylib.ireeCompilerInvocationEnableCallbackDiagnostics
_enable_diagnostics.argtypes = [ctypes.c_void_p, ctypes.c_int, _DIAGNOSTIC_CALLBACK, ctypes.c_void_p]
_enable_diagnostics.restype = None
_begin_behind: Any = _dylib.ireeCompilerInvocationSetCompileFromPhase
_end_with: Any = _dylib.ireeCompilerInvocationSetCompileToPhase
_run_passes: Any = _dylib.ireeCompilerInvocationRunPassPipeline
for _function in (_begin_behind, _end_with, _run_passes):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    _function.restype = None
_run_passes.restype = ctypes.c_bool


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler: ``severity`` is note, warning, error or remark."""

    severity: str
    text: str


@dataclass(frozen=True)
class Compiled:
    """What a compile gave.

    Attributes:
        output: the vmfb, or the IR text if the compile was told to stop at a phase.
        configured: the IR in which loops are shared out to threads, if that was asked for.
    """

    output: bytes
    configured: str
    diagnostics: tuple[Diagnostic, ...]
    dispatches: int | None


class RejectedError(Exception):
    """The compiler refused the module; it is fine for further work."""

    def __init__(self, stage: str, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__(stage)
        self.stage = stage
        self.diagnostics = tuple(diagnostics)


class UnknownFlagError(Exception):
    """A session does not know the flag; it may be one of those that are global to the process."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag


def version() -> str:
    """Version and revision of the compiler library."""
    return f"{_version.VERSION} {_version.REVISIONS.get('IREE', '')}".strip()


def set_global_flags(flags: Sequence[str]) -> None:
    """Set the flags that the library keeps per process. Call once, before the first session.

    A flag that the library does not know ends the process; its message is on stderr.
    """
    if flags:
        ctypes_dl._initializeGlobalCL("worker", *flags)


def compile_text(
    text: str,
    flags: Sequence[str],
    *,
    statistics: Path | None = None,
    phase: str | None = None,
    configured: bool = False,
) -> Compiled:
    """Compile one module.

    Args:
        text: MLIR assembly.
        flags: flags of the session.
        statistics: file for the scheduling statistics; gives ``Compiled.dispatches``.
        phase: stop after this compilation phase and return IR.
        configured: halt where loops are shared out, for ``Compiled.configured``, unless it stops at a phase.

    Raises:
        RejectedError: the compiler refused the module.
        UnknownFlagError: the session does not know one of the flags.
    """
    diagnostics: list[Diagnostic] = []

    def collect(severity: int, data: int, size: int, _user: object) -> None:
        message = ctypes.string_at(data, size).decode("utf-8", "replace")
        name = _SEVERITIES[severity] if 0 <= severity < len(_SEVERITIES) else "error"
        diagnostics.append(Diagnostic(name, message))

    callback = _DIAGNOSTIC_CALLBACK(collect)
    shared_out = b""
    with Session() as session:
        _set_flags(session, flags)
        if statistics is not None:
            session.set_flags(
                "--iree-scheduling-dump-statistics-format=json", f"--iree-scheduling-dump-statistics-file={statistics}"
            )
        with session.invocation() as invocation:
            _enable_diagnostics(invocation._inv_p, 0, callback, None)
            source = Source.wrap_buffer(session, text.encode() + b"\0", buffer_name="module.mlir")
            if not invocation.parse_source(source):
                raise RejectedError("parsing", diagnostics)
            if is_behind_cut(text, phase):
                _end_with(invocation._inv_p, CUT.encode())
                if not (invocation.execute() and _run_passes(invocation._inv_p, _DROP)):
                    raise RejectedError("compiling", diagnostics)
                _begin_behind(invocation._inv_p, CUT.encode())
            if configured and phase is None:
                _end_with(invocation._inv_p, _CONFIGURED)
                if not invocation.execute():
                    raise RejectedError("compiling", diagnostics)
                shared_out = _output(invocation, ir=True)
                _begin_behind(invocation._inv_p, _CONFIGURED)
            _end_with(invocation._inv_p, (phase or "end").encode())
            if not invocation.execute():
                raise RejectedError("compiling", diagnostics)
            code = _output(invocation, ir=phase is not None)
    return Compiled(code, shared_out.decode(), tuple(diagnostics), _dispatches(statistics))


def _set_flags(session: Session, flags: Sequence[str]) -> None:
    for flag in flags:
        try:
            session.set_flags(flag)
        except ValueError as error:
            if _UNKNOWN_FLAG.search(str(error)):
                raise UnknownFlagError(flag, str(error)) from None
            text = f"flag {flag}: {error}"
            raise RejectedError("setting flags", [Diagnostic("error", text)]) from None


def _output(invocation: Invocation, *, ir: bool) -> bytes:
    output = Output.open_membuffer()
    try:
        if ir:
            invocation.output_ir(output)
        else:
            invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())
    finally:
        output.close()


def _dispatches(statistics: Path | None) -> int | None:
    if statistics is None or not statistics.exists():
        return None
    record = json.loads(statistics.read_text())
    return int(record["stream-aggregate"]["execution"]["dispatch-count"])
