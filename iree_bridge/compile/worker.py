"""The compile worker: a process around IREE's in-process compiler, started by ``iree_bridge.compile.pool``.

Some inputs crash the compiler and some end its process, so it never runs in the process of a caller. Run as
``python -I [-S] .../compile/worker.py FD PARENT_PID [SITE_DIR...]``; serves one request at a time on socket FD:

    hello {global_flags, memory, idle, scratch, lifeline} -> hello {versions}
    emit {target, form}, payload graph JSON              -> reply, payload IR without locations + IR with locations
    compile {flags, phase?, inspect?}, payload MLIR text -> reply {dispatches, the hazards by name, facts?,
                                                            vmfb_size?, ...}, payload vmfb (IR if phase; vmfb + assembly
                                                            if inspect)

Each request is answered by ``started`` at once, so that the parent can tell a worker that was lost before the request
from one that the request killed. ``lifeline`` is the reading end of a pipe whose other end the parent holds; nothing is
sent through it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import queue
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

if __package__ in (None, ""):
    # Imports leave no garbage, and looking for some takes a tenth of their time; see _serve.
    gc.disable()
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        # Python leaves half a file of bytecode where there is a limit, and fails to read it the next time.
        sys.dont_write_bytecode = True
    # Run by path, isolated: the folders that hold our packages and what they need may not be on sys.path.
    _ROOT = str(Path(__file__).resolve().parents[2])
    if _ROOT not in sys.path:
        sys.path.insert(0, _ROOT)
    sys.path += [folder for folder in sys.argv[3:] if folder not in sys.path]

from graph_api.errors import GraphError, NotSupportedError
from iree_bridge.compile import messages
from iree_bridge.compile.messages import Header

__all__ = ["STDERR_NAME", "main"]

STDERR_NAME: Final = "stderr.txt"
_PARENT_POLL: Final = 0.5  # seconds


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the parent goes away or nothing is asked for some time."""
    _reset_signals()
    fd, parent = arguments[:2]
    sock = socket.socket(fileno=int(fd))
    hello, _ = messages.receive(sock)
    scratch = Path(hello["scratch"])
    _end_with(hello["lifeline"])
    try:
        _serve(sock, hello, int(parent), scratch)
    except messages.PeerGoneError:
        _leave(scratch)  # nobody else is there to remove it


def _serve(sock: socket.socket, hello: Header, parent: int, scratch: Path) -> NoReturn:
    _limit_memory(hello["memory"])
    from iree_bridge.compile import iree_compiler

    iree_compiler.set_global_flags(hello["global_flags"])
    requests: queue.SimpleQueue[tuple[Header, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sock, requests, scratch), daemon=True).start()
    threading.Thread(target=_watch_parent, args=(parent, scratch), daemon=True).start()
    server = _Server(scratch)
    messages.send(sock, {"op": "hello", "compiler": iree_compiler.version(), "python": sys.version})
    while True:
        try:
            header, payload = requests.get(timeout=hello["idle"])
        except queue.Empty:
            _leave(scratch)
        messages.send(sock, {"op": "started"})
        messages.send(sock, *server.serve(header, payload))
        if not gc.isenabled():
            gc.freeze()  # what was imported stays
            gc.enable()


def _reset_signals() -> None:
    # Dispositions and the mask come from the host. With SIGCHLD ignored the compiler cannot wait for its linker and
    # every CPU compile fails; a blocked mask is inherited by that linker too.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # an error of a write then
        signal.signal(number, signal.SIG_IGN)
    # An interrupt of the terminal is the parent's business; it ends or keeps its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _limit_memory(size: int) -> None:
    # RLIMIT_DATA counts what can be written. RLIMIT_AS would also count address space that allocators and thread stacks
    # only reserve, which on machines with many cores is more than any sensible limit.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(sock: socket.socket, requests: queue.SimpleQueue[tuple[Header, bytes]], scratch: Path) -> None:
    try:
        while True:
            requests.put(messages.receive(sock))
    except messages.PeerGoneError:
        _leave(scratch)


def _watch_parent(parent: int, scratch: Path) -> None:
    # The end of the connection is not enough: a process that the host forked keeps it open.
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL)
    _leave(scratch)


def _end_with(lifeline: int) -> None:
    """Have the kernel end this process a second after the last process that can write to a pipe.

    Our threads end it sooner and more cleanly, unless a native call keeps the GIL from them.
    """
    # The hang-up signals SIGHUP. Its number is the argument of its handler: the C function `alarm` takes it for the
    # seconds until SIGALRM ends the process. Neither runs Python. LLVM passes signals on to the handler it found.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    # The group: with the linker that a compile may have started.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if os.getpgrp() == os.getpid() else os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGHUP)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)


def _leave(scratch: Path) -> NoReturn:
    """End at once, from any thread, with the linker that a compile may have started."""
    shutil.rmtree(scratch, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


class _Server:
    """Answers requests; ``scratch`` is this worker's private folder."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._operations: dict[str, Callable[[Header, bytes], tuple[Header, bytes]]] = {
            "emit": self._emit,
            "compile": self._compile,
        }

    def serve(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        """One request to its reply; exceptions become replies."""
        os.ftruncate(2, 0)
        begin = time.perf_counter()
        try:
            reply, data = self._operations[header["op"]](header, payload)
        except (NotSupportedError, GraphError, MemoryError) as error:
            reply, data = _failure(type(error).__name__, str(error)), b""
            if isinstance(error, NotSupportedError):
                reply |= {"node": error.node, "rule": error.rule, "reason": error.reason}
        except Exception as error:  # the worker lives on; the parent gets the traceback
            reply, data = _failure("Exception", f"{type(error).__name__}: {error}"), b""
            reply["diagnostics"] = [["error", traceback.format_exc()]]
        reply["seconds"] = time.perf_counter() - begin
        return reply, data

    def _emit(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        from graph_api import Graph
        from iree_bridge.emit.module import emit_module
        from iree_bridge.targets.target import Target

        graph = Graph.from_json(payload.decode())
        graph.validate()
        module = emit_module(graph, Target(**header["target"]), header["form"])
        ir = module.ir.encode()
        return {"ok": True, "ir_size": len(ir)}, ir + module.located_ir.encode()

    def _compile(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        """Compiles IR. For AMD chips the assembly is dumped too, since faults of the code are looked for in it."""
        from iree_bridge.compile import iree_compiler

        flags = tuple(header["flags"])
        folder = self._scratch / "dump"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        is_amd = "--iree-hal-target-backends=rocm" in flags
        dumps = [f"--iree-hal-dump-executable-intermediates-to={folder}/intermediates"] if is_amd else []
        try:
            compiled = iree_compiler.compile_text(
                payload.decode(),
                (*flags, *dumps),
                statistics=folder / "statistics.json",
                phase=header.get("phase"),
                configured="--iree-hal-target-backends=llvm-cpu" not in flags,
            )
        except iree_compiler.RejectedError as failure:
            reply = _failure("RejectedError", f"{failure.stage} failed")
            return reply | {"diagnostics": _pairs(failure.diagnostics)}, b""
        except iree_compiler.UnknownFlagError as failure:
            return _failure("UnknownFlagError", str(failure)) | {"flag": failure.flag}, b""
        reply: Header = {
            "ok": True,
            "dispatches": compiled.dispatches,
            "diagnostics": _pairs(compiled.diagnostics),
            **_hazards(folder / "intermediates", compiled.configured),
        }
        if header.get("inspect"):
            from iree_bridge.compile.assembly import read_assembly, read_dispatches

            reply["facts"] = [asdict(fact) for fact in read_dispatches(folder / "intermediates")]
            reply["vmfb_size"] = len(compiled.output)
            return reply, compiled.output + read_assembly(folder / "intermediates").encode()
        return reply, compiled.output


def _hazards(folder: Path, configured: str) -> dict[str, list[str]]:
    from iree_bridge.compile.hazards import crowded_kernels, endless_kernels, lost_sums, split_barriers

    texts = [path.read_text("utf-8", "replace") for path in sorted(folder.rglob("*.rocmasm"))]
    return {
        "lost_sums": lost_sums(configured),
        "crowded_kernels": crowded_kernels(configured),
        "split_barriers": [name for text in texts for name in split_barriers(text)],
        "endless_kernels": [name for text in texts for name in endless_kernels(text)],
    }


def _failure(kind: str, message: str) -> Header:
    return {"ok": False, "kind": kind, "message": message, "diagnostics": []}


def _pairs(diagnostics: Sequence[Any]) -> list[list[str]]:
    return [[diagnostic.severity, diagnostic.text] for diagnostic in diagnostics]


if __name__ == "__main__":
    main(sys.argv[1:])
