"""Everything that a user may set, in one frozen object.

``Options.from_env`` is the only reader of the ``FUSILLI_*`` variables.
"""

from __future__ import annotations

import numbers
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from fusilli_ground.environment import environment, is_privileged
from fusilli_ground.errors import OptionError

__all__ = ["CompileMode", "Options", "TuneMode"]

_MAX_SECONDS: Final = 1_000_000  # what sockets can wait is little more


class CompileMode(Enum):
    """When the compiler may be started.

    Attributes:
        AUTO: when code is wanted; a host of the hipDNN plugin wants it when it asks whether a graph is served.
        LATE: the plugin answers that without it, and compiles for the first plan.
        NEVER: only code in the cache serves.
    """

    AUTO = "auto"
    LATE = "late"
    NEVER = "never"


class TuneMode(Enum):
    """Which form of a graph serves, where several are right.

    Attributes:
        OFF: the one that is best for most graphs of its kind.
        CACHED: the one that was measured to be fastest on this device, if that was done.
        MEASURE: likewise; what was not measured yet is measured when it is built, which takes seconds to minutes.
    """

    OFF = "off"
    CACHED = "cached"
    MEASURE = "measure"


def _default_cache_dir() -> Path:
    if is_privileged():
        import pwd

        return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".cache" / "fusilli-plugin"
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fusilli-plugin", appauthor=False))


def _default_workers() -> int:
    return min(len(os.sched_getaffinity(0)), 4)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to compile and where to keep the results.

    Raises:
        OptionError: a value means nothing. Paths may be texts, and ``compile`` and ``tune`` the text of a mode.

    Attributes:
        cache_dir: where compiled code is kept (``FUSILLI_CACHE_DIR``).
        cache_readonly: further caches that are read and never written (``FUSILLI_CACHE_READONLY``, ``:``-separated).
        cache_size: bytes that ``cache_dir`` may grow to (``FUSILLI_CACHE_SIZE``; ``K``, ``M``, ``G`` are understood).
        compile: when a cache miss may start the compiler (``FUSILLI_COMPILE`` = ``auto``, ``late`` or ``never``).
        tune: which form of a graph serves (``FUSILLI_TUNE`` = ``off``, ``cached`` or ``measure``).
        extra_flags: compiler flags appended to those of the target (``FUSILLI_EXTRA_COMPILER_FLAGS``, shell quoting).
        timeout: seconds one compile may take (``FUSILLI_COMPILE_TIMEOUT``).
        memory: bytes of data one worker may allocate (``FUSILLI_COMPILE_MEMORY``).
        workers: worker processes that may exist at the same time (``FUSILLI_COMPILE_WORKERS``).
        idle: seconds after which an unused worker ends (``FUSILLI_COMPILE_IDLE``).
        failures: reproducer folders that are kept (``FUSILLI_KEEP_FAILURES``).
        python: interpreter that has the compiler installed (``FUSILLI_PYTHON``); None: found beside the packages.
        device: default device of the command line, the plugin and the ORT provider (``FUSILLI_DEVICE``).
        log_level: level of the command line's log, e.g. ``DEBUG`` (``FUSILLI_LOG_LEVEL``).
        engine_name: what the hipDNN plugin calls its engine (``FUSILLI_ENGINE_NAME``).
        claim: which graphs the hipDNN plugin claims: ``off``, ``fallback``, ``all`` or a file of rules
            (``FUSILLI_CLAIM``); "" is ``all`` on the CPU and on devices that passed the self-test, else ``fallback``.
        verify_first: the plugin checks code with a test vector on its device before it first serves
            (``FUSILLI_VERIFY`` = ``auto``, ``first`` or ``never``); None: on GPUs until the self-test has passed there.
        newest_dtypes: hipDNN graphs number data types from 16 on as the newest schema does (``FUSILLI_WIRE_DTYPES`` =
            ``settled`` or ``newest``).
        wire_reading: how ambiguous parts of hipDNN graphs are read, see ``fusilli_plugin.engine.importers.Reading``
            (``FUSILLI_WIRE_READING``, comma-separated).
    """

    cache_dir: Path = field(default_factory=_default_cache_dir)
    cache_readonly: tuple[Path, ...] = ()
    cache_size: int = 4 << 30
    compile: CompileMode = CompileMode.AUTO
    tune: TuneMode = TuneMode.CACHED
    extra_flags: tuple[str, ...] = ()
    timeout: float = 600.0
    memory: int = 8 << 30
    workers: int = field(default_factory=_default_workers)
    idle: float = 120.0
    failures: int = 32
    python: Path | None = None
    device: str = "hip"
    log_level: str = "WARNING"
    engine_name: str = "FUSILLI_ENGINE"
    claim: str = ""
    verify_first: bool | None = None
    newest_dtypes: bool = False
    wire_reading: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Values from code and from the environment take one form here, and are refused with one kind of error."""
        for name, form in _FORMS.items():
            given = getattr(self, name)
            try:
                object.__setattr__(self, name, form(given))
            except (TypeError, ValueError) as error:
                raise OptionError(f"option {name}={given!r}: {error}") from None
        for name in ("cache_size", "timeout", "memory", "workers", "idle"):
            if not getattr(self, name) > 0:
                raise OptionError(f"option {name}={getattr(self, name)!r} must be positive")
        for name in ("timeout", "idle"):
            if getattr(self, name) > _MAX_SECONDS:
                raise OptionError(f"option {name}={getattr(self, name)!r} must be at most {_MAX_SECONDS} seconds")
        if self.memory >= 2**63:
            raise OptionError(f"option memory={self.memory} must be below 2^63 bytes")
        if self.failures < 0:
            raise OptionError(f"option failures={self.failures} must not be negative")
        for flag in self.extra_flags:
            try:
                flag.encode()
            except UnicodeEncodeError:
                raise OptionError(f"option extra_flags: {flag!r} is no UTF-8 text") from None

    @classmethod
    def or_env(cls, given: Options | None) -> Options:
        """What a caller gave, or where that is None, what the environment asks for.

        Raises:
            OptionError: he gave something else, or see `from_env`.
        """
        if given is None:
            return cls.from_env()
        if not isinstance(given, Options):
            raise OptionError(f"expected Options, got {given!r}; write Options(timeout=60), say")
        return given

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Options:
        """The options that the environment asks for; defaults where it says nothing.

        Variables are ignored in a process that runs with more rights than whoever started it, see `environment`.

        Args:
            environ: default: the process's.
            given: options by name that the environment does not decide.

        Raises:
            OptionError: a variable, or an option, has a value that means nothing.
            TypeError: there is no such option.
        """
        if environ is None:
            environ = environment()
        values: dict[str, Any] = {}
        for variable, (name, parse) in _VARIABLES.items():
            text = environ.get(variable, "").strip()
            if not text:
                continue
            try:
                values[name] = parse(text)
            except ValueError as error:
                raise OptionError(f"{variable}={text!r}: {error}") from None
        return cls(**values | given)


def _path(given: str | os.PathLike[str]) -> Path:
    if not os.fspath(given) or "\0" in str(given):
        raise ValueError("no path can be made of it")
    try:
        os.fsencode(given)
        return Path(given).expanduser().absolute()
    except (RuntimeError, OSError, UnicodeError) as error:  # ~ of nobody; a relative path in a folder that is gone
        raise ValueError(f"no path can be made of it: {error}") from None


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise ValueError("not a size; write bytes, or a number with K, M, G or T, e.g. 4G")
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("not a number of seconds") from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("not a whole number")
    return int(text)


_Mode = TypeVar("_Mode", bound=Enum)


def _mode(modes: type[_Mode], given: str | _Mode) -> _Mode:
    if isinstance(given, modes):
        return given
    try:
        return modes(str(given).lower())
    except ValueError:
        raise ValueError(f"known are {', '.join(mode.value for mode in modes)}") from None


_compile_mode = partial(_mode, CompileMode)
_tune_mode = partial(_mode, TuneMode)


def _texts(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"give a sequence of texts, e.g. ({given!r},)")
    return tuple(map(_text, given))


def _text(given: str) -> str:
    if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise TypeError(f"{given!r} is no text")
    return given


def _number(given: float) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("not a number")
    return float(given)


def _whole(given: int) -> int:
    if isinstance(given, bool):
        raise TypeError("not a whole number")
    return operator.index(given)


def _flag(given: bool) -> bool:
    if not isinstance(given, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("give True or False")
    return given


def _several_paths(given: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(given, str | os.PathLike):
        raise TypeError("give a sequence of paths")
    return tuple(map(_path, given))


_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "cache_dir": _path,
    "cache_readonly": _several_paths,
    "cache_size": _whole,
    "compile": _compile_mode,
    "tune": _tune_mode,
    "extra_flags": _texts,
    "timeout": _number,
    "memory": _whole,
    "workers": _whole,
    "idle": _number,
    "failures": _whole,
    "python": lambda given: None if given is None else _path(given),
    "device": _text,
    "log_level": lambda given: _level(_text(given)),
    "engine_name": _text,
    "claim": _text,
    "verify_first": lambda given: None if given is None else _flag(given),
    "newest_dtypes": _flag,
    "wire_reading": _texts,
}
"""Option → what makes its value of what a caller gives; each raises TypeError or ValueError if that means nothing."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _choice(no: str, yes: str) -> Callable[[str], bool]:
    def parse(text: str) -> bool:
        if text.lower() not in (no, yes):
            raise ValueError(f"known are {no}, {yes}")
        return text.lower() == yes

    return parse


def _verification(text: str) -> bool | None:
    return None if text.lower() == "auto" else _choice("never", "first")(text)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError("known are DEBUG, INFO, WARNING, ERROR, CRITICAL")
    return text.upper()


_VARIABLES: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "FUSILLI_CACHE_DIR": ("cache_dir", _path),
    "FUSILLI_CACHE_READONLY": ("cache_readonly", _paths),
    "FUSILLI_CACHE_SIZE": ("cache_size", _size),
    "FUSILLI_COMPILE": ("compile", _compile_mode),
    "FUSILLI_TUNE": ("tune", _tune_mode),
    "FUSILLI_EXTRA_COMPILER_FLAGS": ("extra_flags", _words),
    "FUSILLI_COMPILE_TIMEOUT": ("timeout", _seconds),
    "FUSILLI_COMPILE_MEMORY": ("memory", _size),
    "FUSILLI_COMPILE_WORKERS": ("workers", _count),
    "FUSILLI_COMPILE_IDLE": ("idle", _seconds),
    "FUSILLI_KEEP_FAILURES": ("failures", _count),
    "FUSILLI_PYTHON": ("python", _path),
    "FUSILLI_DEVICE": ("device", str),
    "FUSILLI_LOG_LEVEL": ("log_level", _level),
    "FUSILLI_ENGINE_NAME": ("engine_name", str),
    "FUSILLI_CLAIM": ("claim", str),
    "FUSILLI_VERIFY": ("verify_first", _verification),
    "FUSILLI_WIRE_DTYPES": ("newest_dtypes", _choice("settled", "newest")),
    "FUSILLI_WIRE_READING": ("wire_reading", _list),
}
