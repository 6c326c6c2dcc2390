"""Compiled code on disk, in two levels, shared by processes.

    <root>/v1/graphs/ab/<key>.json   graph key -> code key: a hit needs neither MLIR nor the compiler
    <root>/v1/code/ab/<key>.bin      code key  -> code: equal IR from different graphs is stored once
    <root>/v1/refused/ab/<key>.json  key of a text -> why the compiler refuses it, as it would again
    <root>/v1/tuned/ab/<key>.json    key of a graph -> which form of it is fastest, see ``iree_bridge.compile.tuned``
    <root>/v1/locks/<key>.lock       held while the entry is made
    <root>/failures/                 reproducers of failed compiles, see ``iree_bridge.compile.reproducer``

Entries are code that will run in the caller's process. So an entry is read only if it and each folder above it up to
the root belong to this user (for shared caches: or to root) and can be written by nobody else; see SECURITY.md.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fusilli_ground.files import write_whole
from graph_api.errors import FusilliError

__all__ = ["Cache", "CacheStats", "Code", "Refusal", "UntrustedCacheError", "key_of"]

_LOG = logging.getLogger(__name__)
_FORMAT: Final = "v1"
_MAGIC: Final = b"FUSILLI-CODE-1\n"
_SIZES: Final = struct.Struct("<IQ")  # bytes of the JSON header, bytes of the code
_MAX_ENTRY: Final = 2 << 30
_LOCK_POLL: Final = 0.01  # seconds
_STALE: Final = 24 * 3600  # seconds after which a left-over lock or temporary file is removed
_LEVELS: Final = ("graphs", "code", "refused", "tuned")
_TRIMMED: Final = ("graphs", "code", "refused")
"""Levels of what can be made again without a device."""
_SHARED_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class UntrustedCacheError(FusilliError):
    """The cache folder belongs to somebody else or can be written by others: what lies in it must not be run."""


class Code(NamedTuple):
    """What the second level keeps: the vmfb, and facts about its making (plain JSON values)."""

    vmfb: bytes
    facts: Mapping[str, Any]


class Refusal(NamedTuple):
    """That the compiler refuses a text.

    Attributes:
        message: what it said.
        reproducer: folder that was written then, "" if none was.
        path: of the entry, "" if it is not kept yet; without the entry the text is compiled again.
    """

    message: str
    reproducer: str
    path: str = ""


class CacheStats(NamedTuple):
    """Number and bytes of the entries of each level, reproducers, and the limit in bytes."""

    graphs: int
    graph_bytes: int
    codes: int
    code_bytes: int
    refusals: int
    refusal_bytes: int
    failures: int
    limit: int


def key_of(kind: str, parts: Mapping[str, str]) -> str:
    """The key made of named parts, in hex. Each part's hash is logged at DEBUG, so that a miss can be explained."""
    digest = hashlib.sha256(f"{kind}\0".encode())
    for name in sorted(parts):
        part = hashlib.sha256(parts[name].encode()).hexdigest()
        digest.update(f"{name}\0{part}\0".encode())
        _LOG.debug("%s key part %s: %s", kind, name, part[:16])
    key = digest.hexdigest()
    _LOG.debug("%s key: %s", kind, key)
    return key


class Cache:
    """The cache in one folder, with further read-only ones behind it. Thread safe.

    Args:
        root: folder to read and write; made (0700) when something is stored.
        readonly: folders of the same form that are only read; root may own them.
        limit: bytes that ``root`` may grow to.
    """

    def __init__(self, root: Path, *, readonly: Sequence[Path] = (), limit: int = 4 << 30) -> None:
        self.root = root
        self._limit = limit
        self._owned = _Store(root, (os.geteuid(),), writable=True)
        self._stores = (self._owned, *(_Store(path, (os.geteuid(), 0), writable=False) for path in readonly))
        self._written: int | None = None  # bytes since the size was last looked at; None: never looked
        self._warned = False

    def check(self) -> None:
        """Look whether the folders may be trusted, those that are there; what cannot be read or written is no error.

        Raises:
            UntrustedCacheError: one belongs to somebody else, or others can write to it.
        """
        for store in self._stores:
            store.check()

    def has_refusals(self) -> bool:
        """Whether a cache has any refusal, told quickly."""
        return any(store.has("refused") for store in self._stores)

    def code_key(self, graph_key: str) -> str | None:
        """First level: the code key of a graph key, None if it is not there.

        Raises:
            UntrustedCacheError: the folder is not this user's own.
        """
        for store, entry in self._noted("graphs", graph_key):
            if _is_key(entry.get("code")):
                return entry["code"]
            store.drop("graphs", graph_key, ".json", "it is no valid entry")
        return None

    def _noted(self, level: str, key: str) -> Iterator[tuple[_Store, Mapping[str, Any]]]:
        """What the caches that have an entry note under a key; one that is damaged is dropped."""
        for store in self._stores:
            data = store.read(level, key, ".json")
            if data is None:
                continue
            entry = None
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(data)
            if isinstance(entry, dict) and entry.get("key") == key:
                yield store, entry
            else:
                store.drop(level, key, ".json", "it is no valid entry")

    def code(self, code_key: str) -> Code | None:
        """Second level: the code of a key, None if it is not there or is damaged.

        Raises:
            UntrustedCacheError: the folder is not this user's own.
        """
        for store in self._stores:
            data = store.read("code", code_key, ".bin")
            if data is None:
                continue
            try:
                return _decode(data, code_key)
            except (ValueError, RecursionError) as error:
                store.drop("code", code_key, ".bin", str(error))
        return None

    def store(self, code_key: str, code: Code, *, graph_key: str | None = None) -> bool:
        """Keep ``code``, and that ``graph_key`` leads to it; False if the folder cannot be written."""
        data = _encode(code_key, code)
        try:
            self._owned.write("code", code_key, ".bin", data)
            if graph_key is not None:
                self.link(graph_key, code_key)
        except OSError as error:
            self._cannot_keep("compiled code", error)
            return False
        self._trim(len(data))
        return True

    def refusal(self, key: str) -> Refusal | None:
        """What is kept of a text that the compiler refuses, None if nothing is.

        Raises:
            UntrustedCacheError: the folder is not this user's own.
        """
        for store, entry in self._noted("refused", key):
            message, reproducer = entry.get("message"), entry.get("reproducer")
            if isinstance(message, str) and isinstance(reproducer, str):
                return Refusal(message, reproducer, str(store.path("refused", key, ".json")))
            store.drop("refused", key, ".json", "it is no valid entry")
        return None

    def refuse(self, key: str, refusal: Refusal) -> None:
        """Keep that the compiler refuses a text; nothing happens if the folder cannot be written."""
        text = json.dumps({"key": key, "message": refusal.message, "reproducer": refusal.reproducer}) + "\n"
        try:
            self._owned.write("refused", key, ".json", text.encode())
        except OSError as error:
            self._cannot_keep("a refusal of the compiler", error)

    def has_tuned(self) -> bool:
        """Whether a cache has any result of tuning, told quickly."""
        return any(store.has("tuned") for store in self._stores)

    def tuned(self, key: str) -> Iterator[Mapping[str, Any]]:
        """What the caches keep of measurements under a key.

        Raises:
            UntrustedCacheError: a folder is not this user's own.
        """
        return (entry for _, entry in self._noted("tuned", key))

    def tuned_keys(self) -> list[str]:
        """The keys of what ``root`` keeps of measurements."""
        return sorted(path.stem for path, _ in self._owned.entries("tuned"))

    def keep_tuned(self, key: str, document: Mapping[str, Any]) -> None:
        """Keep measurements in the place of those under the key; nothing happens if the folder cannot be written."""
        try:
            self._owned.write("tuned", key, ".json", (json.dumps({"key": key, **document}) + "\n").encode())
        except OSError as error:
            self._cannot_keep("a measurement", error)

    def link(self, graph_key: str, code_key: str) -> None:
        """Keep that ``graph_key`` leads to ``code_key``; nothing happens if the folder cannot be written."""
        text = json.dumps({"key": graph_key, "code": code_key}) + "\n"
        try:
            self._owned.write("graphs", graph_key, ".json", text.encode())
        except OSError as error:
            self._cannot_keep("a graph key", error)

    def remove(self, code_key: str) -> None:
        """Forget one entry of the second level, e.g. since the runtime refused to load it."""
        self._owned.drop("code", code_key, ".bin", "it was found to be unusable")

    @contextlib.contextmanager
    def lock(self, key: str, timeout: float) -> Iterator[bool]:
        """Hold the lock of ``key`` among all processes and threads.

        Yields False at once if the folder cannot be written, and after ``timeout`` seconds: the work is then done
        twice, which is harmless.
        """
        fd = self._open_lock(key)
        if fd is None:
            yield False
            return
        try:
            yield _lock_until(fd, time.monotonic() + timeout)
        finally:
            # Unlocked by name: a forked child may have inherited the descriptor and would keep the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def stats(self) -> CacheStats:
        """What is there now."""
        graphs = list(self._owned.entries("graphs"))
        codes = list(self._owned.entries("code"))
        refusals = list(self._owned.entries("refused"))
        failures = self.root / "failures"
        return CacheStats(
            graphs=len(graphs),
            graph_bytes=sum(status.st_size for _, status in graphs),
            codes=len(codes),
            code_bytes=sum(status.st_size for _, status in codes),
            refusals=len(refusals),
            refusal_bytes=sum(status.st_size for _, status in refusals),
            failures=len(list(failures.iterdir())) if failures.is_dir() else 0,
            limit=self._limit,
        )

    def entries(self) -> Iterator[tuple[str, int, float, Mapping[str, Any]]]:
        """Key, bytes, time of last use and facts of each code entry, oldest use first."""
        found = sorted(self._owned.entries("code"), key=lambda item: item[1].st_mtime)
        for path, status in found:
            code = self.code(path.stem)
            if code is not None:
                yield path.stem, status.st_size, status.st_mtime, code.facts

    def clear(self) -> int:
        """Remove all entries; returns how many there were."""
        count = 0
        for level in _LEVELS:
            for path, _ in self._owned.entries(level):
                with contextlib.suppress(OSError):
                    path.unlink()
                    count += 1
        return count

    def _cannot_keep(self, what: str, error: OSError) -> None:
        """Told to people once: each process compiles anew until that is mended."""
        level = logging.INFO if self._warned else logging.WARNING
        self._warned = True
        _LOG.log(
            level,
            "%s is not kept in %s, and what comes later may not be either: %s; make the folder writable for you alone "
            "(chmod 700), free space, or name another one in FUSILLI_CACHE_DIR",
            what, self.root, error,
        )  # fmt: skip

    def _open_lock(self, key: str) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            folder = self._owned.make("locks")
            return os.open(folder / f"{key}.lock", flags, 0o600)
        except OSError:
            return None

    def _trim(self, size: int) -> None:
        """Look at the total size now and then, and remove what was not used for longest."""
        self._written = None if self._written is None else self._written + size
        if self._written is not None and self._written < self._limit // 64:
            return
        self._written = 0
        entries = [entry for level in _TRIMMED for entry in self._owned.entries(level)]
        total = sum(status.st_size for _, status in entries)
        if total > self._limit:
            for path, status in sorted(entries, key=lambda item: item[1].st_mtime):
                if total <= self._limit * 9 // 10:
                    break
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= status.st_size
        self._owned.sweep(time.time() - _STALE)


class _Store:
    """One cache folder: trust, reading, atomic writing."""

    def __init__(self, root: Path, owners: tuple[int, ...], *, writable: bool) -> None:
        self._base = root / _FORMAT
        self._root = root
        self._writable = writable
        self._owners = owners
        self._trusted: set[Path] = set()

    def check(self) -> None:
        """Look whether the folders above the entries may be trusted.

        Raises:
            UntrustedCacheError: they may not.
        """
        for path in (self._root, self._base, *(self._base / level for level in (*_LEVELS, "locks"))):
            if not self._trust_folder(path):
                break

    def has(self, level: str) -> bool:
        """Whether there is a folder for a level."""
        return os.path.isdir(self._base / level)  # not there either if this user may not look

    def path(self, level: str, key: str, suffix: str) -> Path:
        """Where an entry is."""
        return self._base / level / key[:2] / f"{key}{suffix}"

    def read(self, level: str, key: str, suffix: str) -> bytes | None:
        """The bytes of an entry, None if there is none that may be trusted."""
        folder = self._base / level / key[:2]
        for path in (self._root, self._base, self._base / level):
            if not self._trust_folder(path):
                return None
        try:
            if not self._trust_folder(folder):
                return None
        except UntrustedCacheError as error:  # of the entries in it alone
            _LOG.warning("%s", error)
            return None
        try:
            fd = os.open(folder / f"{key}{suffix}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.drop(level, key, suffix, "it is a symbolic link")
            return None
        try:
            status = os.fstat(fd)
            reason = self._distrust(status)
            if reason is None and not stat.S_ISREG(status.st_mode):
                reason = "it is no regular file"
            if reason is None and status.st_size > _MAX_ENTRY:
                reason = f"it has {status.st_size} bytes"
            if reason is not None:
                self.drop(level, key, suffix, reason)
                return None
            data = _read_all(fd, status.st_size)
            if self._writable:
                # The time of last use decides what is removed first.
                with contextlib.suppress(OSError):
                    os.utime(fd)
            return data
        finally:
            os.close(fd)

    def write(self, level: str, key: str, suffix: str, data: bytes) -> None:
        """Put an entry in place as a whole.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = self.make(level, key[:2])
        write_whole(folder / f"{key}{suffix}", data, mode=0o600)

    def make(self, *parts: str) -> Path:
        """A folder below the root, made with mode 0700 where it is missing, and trusted."""
        folder = self._base
        if not self._root.exists():
            self._root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self._root, self._base, *(folder := folder / part for part in parts)):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            try:
                if not self._trust_folder(path):
                    raise OSError(errno.ENOTDIR, "no folder that may be used", str(path))
            except UntrustedCacheError as error:
                if len(parts) < 2 or path != folder:
                    raise
                raise OSError(errno.EPERM, str(error)) from error  # of the entries in it alone
        return folder

    def drop(self, level: str, key: str, suffix: str, reason: str) -> None:
        """Say why an entry is not used, and remove it where that is possible."""
        path = self.path(level, key, suffix)
        _LOG.warning("cache entry %s is ignored: %s", path, reason)
        if self._writable:
            with contextlib.suppress(OSError):
                path.unlink()

    def entries(self, level: str) -> Iterator[tuple[Path, os.stat_result]]:
        """The entries of a level with their status.

        Raises:
            UntrustedCacheError: the folder is not this user's own.
        """
        for folder in self._folders(level):
            for path in folder.glob("[!.]*"):
                with contextlib.suppress(OSError):
                    yield path, path.lstat()

    def sweep(self, before: float) -> None:
        """Remove lock files and temporary files that nobody has touched since ``before``."""
        levels = [folder for level in _LEVELS for folder in self._folders(level)]
        locks = self._base / "locks"
        found = [path for folder in levels for path in folder.glob(".*.tmp")]
        found += locks.glob("*.lock") if self._trust_folder(locks) else ()
        for path in found:
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    path.unlink()

    def _folders(self, level: str) -> Iterator[Path]:
        """The folders of a level that hold entries. Links are left out: files are removed from these folders."""
        above = (self._root, self._base, self._base / level)
        if all(self._trust_folder(path) for path in above):
            for path in (self._base / level).glob("??"):
                with contextlib.suppress(UntrustedCacheError):
                    if self._trust_folder(path):
                        yield path

    def _trust_folder(self, path: Path) -> bool:
        if path in self._trusted:
            return True
        try:
            # Only the root, which the user named, may be a link.
            status = path.stat() if path == self._root else path.lstat()
        except FileNotFoundError:
            return False
        except OSError as error:
            _LOG.info("cache folder %s cannot be read: %s", path, error)
            return False
        if not stat.S_ISDIR(status.st_mode):
            return False
        reason = self._distrust(status)
        if reason is not None:
            raise UntrustedCacheError(
                f"cache folder {path}: {reason}; code in it must not be run. Make it your own (chown, chmod 700), "
                "remove it, or name another one with FUSILLI_CACHE_DIR"
            )
        self._trusted.add(path)
        return True

    def _distrust(self, status: os.stat_result) -> str | None:
        if status.st_uid not in self._owners:
            return f"it belongs to user {status.st_uid}, not to {' or '.join(str(owner) for owner in self._owners)}"
        if status.st_mode & _SHARED_WRITE:
            return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
        return None


def _encode(code_key: str, code: Code) -> bytes:
    header = json.dumps({"key": code_key, "facts": dict(code.facts)}, separators=(",", ":")).encode()
    body = _SIZES.pack(len(header), len(code.vmfb)) + header + code.vmfb
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes, code_key: str) -> Code:
    """The code in the bytes of an entry; ValueError with the reason if they are not whole."""
    start = len(_MAGIC) + 32
    body = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or len(body) < _SIZES.size:
        raise ValueError("it is no code entry, or cut short")
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        raise ValueError("its checksum differs")
    header_size, code_size = _SIZES.unpack_from(body)
    end = _SIZES.size + header_size
    if end + code_size != len(body):
        raise ValueError("its sizes do not add up")
    header = json.loads(bytes(body[_SIZES.size : end]))
    if not isinstance(header, dict) or header.get("key") != code_key or not isinstance(header.get("facts"), dict):
        raise ValueError("it is the entry of another key")
    return Code(bytes(body[end:]), header["facts"])


def _read_all(fd: int, size: int) -> bytes:
    chunks: list[bytes] = []
    while size > 0 and (chunk := os.read(fd, size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _lock_until(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL)
        except OSError:  # a file system without locks
            return False


def _is_key(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(letter in "0123456789abcdef" for letter in value)
