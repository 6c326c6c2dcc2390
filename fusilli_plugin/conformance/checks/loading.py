"""What happens when hipDNN loads a plugin, before any graph."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_char_p, c_int, c_uint32
from typing import Any

from fusilli_plugin.conformance.bench import Bench, check
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.subject import RESTORE, SERIALIZE, SERIALIZE_NEWEST, Subject
from hipdnn_backend.engine import engine_id
from hipdnn_backend.plugins.abi import CALLBACK, PluginType, Severity, Status

_OVERRIDES = "ExecuteOpGraphWithOverrides"


@check("load")
def load(bench: Bench) -> str:
    """The functions that every version of the interface has; type, name, version, engines."""
    subject = bench.subject
    kind = c_int(-1)
    subject.call("hipdnnPluginGetType", byref(kind))
    if kind.value != PluginType.ENGINE:
        raise BrokenRule(f"hipdnnPluginGetType: {kind.value}, engines have {PluginType.ENGINE.value}")
    name, version = subject.string("hipdnnPluginGetName"), subject.string("hipdnnPluginGetVersion")
    return f"{name} {version}: {len(subject.ids)} engine{'' if len(subject.ids) == 1 else 's'}"


@check("load-deepbind")
def load_deepbind(bench: Bench) -> str:
    """HipDNN of November 2025 loads with RTLD_DEEPBIND."""
    subject = Subject(bench.path, os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    return f"{subject.string('hipdnnPluginGetName')} loads"


@check("load-again")
def load_again(bench: Bench) -> str:
    """HipDNN unloads plugins behind the last handle, and loads them again at the next."""
    first = bench.subject
    ids = first.ids
    first.call("Destroy", first.handle())
    bench.say("unloading it")
    dlclose = ctypes.CDLL(None).dlclose
    dlclose.argtypes = (ctypes.c_void_p,)
    dlclose(first.library._handle)
    bench.say("loading it again")
    again = Subject(bench.path)
    if again.ids != ids:
        raise BrokenRule(f"its engines were {ids}, and are {again.ids} when it is loaded again")
    again.call("Destroy", again.handle())
    return "a handle before and after"


@check("names")
def names(bench: Bench) -> str:
    """Engines have names whose hash is their id."""
    subject = bench.subject
    subject.needs("GetEngineName")
    found: list[str] = []
    for id_ in subject.ids:
        text = c_char_p()
        status = subject.status("GetEngineName", id_, byref(text))
        if status == Status.NOT_APPLICABLE:
            continue
        if status != Status.SUCCESS or text.value is None:
            raise BrokenRule(f"GetEngineName fails for its own engine {id_} (status {status}); hipDNN drops the engine")
        name = text.value.decode(errors="replace")
        if engine_id(name) != id_:
            raise BrokenRule(f"'{name}' hashes to {engine_id(name)}, its id is {id_}; hipDNN drops the engine")
        found.append(name)
    stranger = next(id_ for id_ in range(1, 1 << 20) if id_ not in subject.ids)
    if subject.status("GetEngineName", stranger, byref(c_char_p())) == Status.SUCCESS:
        raise BrokenRule(f"GetEngineName names engine {stranger}, which it does not have")
    return ", ".join(found) or "no names of its own"


@check("api-version")
def api_version(bench: Bench) -> str:
    """The version of the interface, and the functions that it promises."""
    subject = bench.subject
    subject.needs("hipdnnPluginGetApiVersion")
    text = subject.string("hipdnnPluginGetApiVersion")
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise BrokenRule(f"'{text}' is no version MAJOR.MINOR.PATCH; hipDNN refuses the plugin")
    version = tuple(map(int, parts))
    if version >= (2, 0, 0):
        raise BrokenRule(f"version {text}; hipDNN takes major version 1")
    promised = [name for floor, name in (((1, 1, 0), _OVERRIDES), ((1, 4, 0), "GetEngineName")) if version >= floor]
    missing = [name for name in promised if not subject.has(name)]
    if missing:
        raise BrokenRule(f"version {text} promises hipdnnEnginePlugin{missing[0]}, which is missing")
    trio = [name for name in (RESTORE, "DestroySerializedExecutionContext") if subject.has(name)]
    saving = [name for name in (SERIALIZE, SERIALIZE_NEWEST) if subject.has(name)]
    if (trio or saving) and not (len(trio) == 2 and saving):
        raise BrokenRule(f"of the functions that save plans it has {', '.join(trio + saving)} only; hipDNN needs three")
    if not saving:
        saves = "saves no plans"
    elif SERIALIZE not in saving:
        saves = "saves plans in hipDNN of summer 2026 and later"
    elif SERIALIZE_NEWEST not in saving:
        saves = "saves plans in hipDNN before summer 2026"
    else:
        saves = "saves plans"
    return f"{text}, {saves}"


@check("log")
def log(bench: Bench) -> str:
    """The log: callback and levels."""
    subject = bench.subject
    subject.needs("hipdnnPluginSetLoggingCallback")
    lines: list[tuple[int, bytes]] = []
    callback = CALLBACK(lambda severity, message: lines.append((severity, message)))
    _forever.append(callback)
    subject.refuses("NULL as a callback", "hipdnnPluginSetLoggingCallback", CALLBACK())
    subject.call("hipdnnPluginSetLoggingCallback", callback)
    handle, count = subject.handle(), c_uint32()
    levels = list(Severity) if subject.has("hipdnnPluginSetLogLevel") else []
    for level in levels:
        subject.call("hipdnnPluginSetLogLevel", level)
        lines.clear()
        bench.say(f"an error at level {level.name}")
        subject.status("GetApplicableEngineIds", handle, None, None, 0, byref(count))
        below = [line for line in lines if line[0] < level]
        if below:
            raise BrokenRule(f"at level {level.name} it logs a line of level {below[0][0]}: {below[0][1][:80]!r}")
    for severity, message in lines:
        if message is None or severity not in list(Severity):
            raise BrokenRule(f"a line of the log has level {severity} and text {message!r}")
        message.decode()
    subject.call("Destroy", handle)
    return f"{len(levels)} levels" if levels else "one level"


@check("errors")
def errors(bench: Bench) -> str:
    """Error texts: never NULL, of the thread that failed."""
    subject = bench.subject
    subject.error()  # before anything has failed
    subject.functions["hipdnnPluginGetLastErrorString"](None)
    if not subject.status("hipdnnPluginGetName", None):
        raise BrokenRule("hipdnnPluginGetName takes NULL as the place of the name")
    own = subject.error()
    if not own:
        raise NotTried("hipdnnPluginGetName leaves no text for NULL")
    seen: list[Any] = []

    def elsewhere() -> None:
        try:
            seen.append(subject.error())
        except BrokenRule as error:
            seen.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    if isinstance(seen[0], BrokenRule):
        raise seen[0]
    if seen[0] == own:
        raise BrokenRule(f"another thread reads the error of this one: {own[:80]}")
    return f"e.g. {own[:80]}"


_forever: list[Any] = []  # plugins keep the pointer for good
