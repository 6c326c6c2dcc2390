"""A folder per failed compile, with all that is needed to see it again: ``fusilli replay DIR`` or ``iree-compile``."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from graph_api.errors import FusilliError
from iree_bridge.targets.barriers import CUT, DROP, DROP_OPTION, is_behind_cut
from iree_bridge.targets.target import Target

__all__ = ["Reproducer", "load", "require_own", "save", "write"]

_LOG = logging.getLogger(__name__)
_FORMAT: Final = 1
_NAME: Final = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{8}")
_MAX_FILE: Final = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Reproducer:
    """A failed compile.

    Attributes:
        name: of the graph or module.
        target: what it was compiled for.
        flags: session flags, in order.
        global_flags: flags that are global to the compiler's process.
        graph_json: the graph; None if MLIR text was compiled.
        ir: MLIR with locations; None if emission failed.
        diagnostics: the compiler's messages and what it printed.
        versions: of the packages that took part.
    """

    name: str
    target: Target
    flags: tuple[str, ...]
    global_flags: tuple[str, ...]
    graph_json: str | None
    ir: str | None
    diagnostics: str
    versions: dict[str, str | None]

    def command(self) -> str:
        """The command line that repeats the compile without this package, in the reproducer's folder."""
        flags = (*self.global_flags, *self.flags)
        if not is_behind_cut(self.ir or "", None):
            return shlex.join(["iree-compile", "module.mlir", "-o", "module.vmfb", *flags])
        halves = (
            ["iree-compile", "module.mlir", f"--compile-to={CUT}", *flags],
            ["iree-opt", f"--{DROP}={DROP_OPTION}"],
            ["iree-compile", "-", f"--compile-from={CUT}", "-o", "module.vmfb", *flags],
        )
        return " | ".join(shlex.join(words) for words in halves)


def save(failures: Path, reproducer: Reproducer, *, keep: int) -> Path | None:
    """Write a reproducer into a new private folder below ``failures`` and remove the oldest over ``keep``.

    Returns:
        The folder; None if it cannot be written or ``keep`` is 0.
    """
    if keep == 0:
        return None
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", reproducer.name)[:40].strip("._") or "module"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = failures / f"{stamp}-{name}-{secrets.token_hex(4)}"
    try:
        # Path.mkdir gives its mode to the last folder only; the cache folder must be private too.
        failures.parent.parent.mkdir(parents=True, exist_ok=True)
        failures.parent.mkdir(mode=0o700, exist_ok=True)
        failures.mkdir(mode=0o700, exist_ok=True)
        if failures.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link is not followed", str(failures))
        folder.mkdir(mode=0o700)
        write(folder, reproducer)
        _prune(failures, keep)
    except OSError as error:
        _LOG.warning("the failed compile could not be kept in %s: %s", failures, error)
        return None
    return folder


def write(folder: Path, reproducer: Reproducer, **more: str) -> None:
    """Write a reproducer's files, and ``more`` texts by their names, into a folder that has none of these names.

    Raises:
        OSError: they cannot be written.
    """
    for name, text in (_files(reproducer) | more).items():
        _write(folder / name, text)


def load(folder: Path) -> Reproducer:
    """Read a reproducer back.

    Raises:
        FusilliError: the folder is none, is damaged, or others may write to it.
    """
    status = _status(folder)
    _check_owner(folder, status)
    try:
        meta = json.loads(_read(folder / "versions.json") or "")
        target = Target.restored(meta["target"])
        flags, global_flags = (_lines(folder / name) for name in ("flags.txt", "global_flags.txt"))
        graph_json, ir = _read(folder / "graph.json"), _read(folder / "module.mlir")
        if graph_json is None and ir is None:
            raise ValueError("it has neither graph.json nor module.mlir")
        return Reproducer(
            name=str(meta["name"]),
            target=target,
            flags=flags,
            global_flags=global_flags,
            graph_json=graph_json,
            ir=ir,
            diagnostics=_read(folder / "diagnostics.txt") or "",
            versions={str(name): version and str(version) for name, version in meta["versions"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
        raise FusilliError(
            f"{folder} is no reproducer folder, or is damaged: {type(error).__name__}: {error}"
        ) from error


def _files(reproducer: Reproducer) -> dict[str, str]:
    meta: dict[str, Any] = {
        "format": _FORMAT,
        "name": reproducer.name,
        "target": asdict(reproducer.target),
        "versions": reproducer.versions,
    }
    files = {
        "versions.json": json.dumps(meta, indent=1) + "\n",
        "flags.txt": _text(reproducer.flags),
        "global_flags.txt": _text(reproducer.global_flags),
        "command.txt": reproducer.command() + "\n",
        "diagnostics.txt": reproducer.diagnostics,
    }
    if reproducer.graph_json is not None:
        files["graph.json"] = reproducer.graph_json
    if reproducer.ir is not None:
        files["module.mlir"] = reproducer.ir
    return files


def _write(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _lines(path: Path) -> tuple[str, ...]:
    text = _read(path)
    if text is None:
        raise ValueError(f"{path.name} is missing")
    return tuple(line for line in text.split("\n") if line)  # not at what else splits lines: it would hide in one


def _read(path: Path) -> str | None:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(number, "rb") as file:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is no file")
        _check_owner(path, status)
        if status.st_size > _MAX_FILE:
            raise FusilliError(f"{path} has {status.st_size} bytes; the limit is {_MAX_FILE}")
        return file.read().decode()


def require_own(path: Path) -> None:
    """Refuse a file or folder that others can write to: what it says is to be run.

    Raises:
        FusilliError: they can, or it cannot be read.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise FusilliError(f"{path} cannot be read: {error}") from error
    _check_owner(path, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise FusilliError(
            f"{path} belongs to user {status.st_uid} with mode {mode:o}: the flags of a reproducer may name files and "
            "programs, so all of it must be yours and writable by you alone; look at flags.txt, then copy the folder"
        )


def _status(folder: Path) -> os.stat_result:
    try:
        status = folder.stat()
    except OSError as error:
        raise FusilliError(f"reproducer folder {folder} cannot be read: {error}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise FusilliError(f"{folder} is no folder; give the folder that the compile error named")
    return status


def _prune(failures: Path, keep: int) -> None:
    # Names begin with the time, so that their order is their age; those of one second differ in their random end only.
    # Other folders are not ours: the user may have named a folder of his own as the cache.
    folders = sorted(path for path in failures.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))
    for path in folders[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
