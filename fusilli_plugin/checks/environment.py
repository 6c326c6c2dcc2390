"""What this machine and this installation offer: the probes behind ``fusilli doctor``.

Each probe answers with :class:`Finding` objects and raises nothing. Drivers are loaded in a child process: a broken one
may end the process that loads it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from fusilli_plugin.checks import plugins, selftest
from graph_api import FusilliError
from hipdnn_backend.engine import engine_id
from iree_bridge import Options
from iree_bridge.compile import versions
from iree_bridge.compile.cache import Cache
from iree_bridge.targets.cpu import host_arch, host_extensions

__all__ = ["Finding", "Status", "probe"]

_PROBE_SECONDS = 60
_MINIMUM_PYTHON = (3, 11)
_OUR_PLUGIN = "fusilli-plugin"  # what the shim says in hipdnnPluginGetName


class Status(Enum):
    """How a finding bears on the user's work."""

    OK = "ok"
    ABSENT = "absent"  # not there, and not needed for what works
    BROKEN = "broken"  # has to be mended


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: what was looked at.
        status: whether it works.
        detail: what was seen.
        advice: how to mend it, or what works without it; "" if nothing is to be done.
    """

    what: str
    status: Status
    detail: str
    advice: str = ""


def probe(options: Options, say: Callable[[str], None]) -> Iterator[Finding]:
    """All findings, in the order of the report. ``say`` hears what is being looked at."""
    yield _python()
    yield from _packages()
    yield _processor()
    say("asking the drivers for devices")
    devices = _devices(options)
    yield from devices.values()
    yield from _cache(options)
    say("asking hipDNN's plugins for their engines")
    yield from _plugins(options)
    say("compiling and running a small graph on the CPU")
    yield _self_test("cpu")
    say("saving the graph's code, loading it and running it")
    yield _saved_code("cpu")
    driver = devices.get(options.device.partition(":")[0])
    if driver is not None and driver.status is Status.OK:
        say(f"compiling and running a small graph on {options.device}")
        yield _self_test(options.device)
        yield _saved_code(options.device)


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if sys.version_info < _MINIMUM_PYTHON:
        return Finding("python", Status.BROKEN, detail, "Python 3.11 or newer is needed")
    return Finding("python", Status.OK, detail)


def _packages() -> Iterator[Finding]:
    """Every package that the distribution requires or can use, and whether the IREE pair fits."""
    required, optional = _requirements()
    for name in required:
        version = _version(name)
        if version is None:
            yield Finding(name, Status.BROKEN, "not installed", f"pip install {name}")
        else:
            yield Finding(name, Status.OK, version)
    try:
        versions.check()
        yield Finding("IREE pair", Status.OK, f"compiler and runtime {versions.iree_version()}")
    except FusilliError as error:
        yield Finding("IREE pair", Status.BROKEN, str(error), "pip install the same version of both")
    for name, extra in optional.items():
        version = _version(name)
        if version is None:
            yield Finding(name, Status.ABSENT, "not installed", f"only needed for fusilli-plugin[{extra}]")
        else:
            yield Finding(name, Status.OK, version)


def _requirements() -> tuple[list[str], dict[str, str]]:
    """Names of the required packages, and extra by name of the optional ones that users meet."""
    optional = {"onnx": "onnx", "torch-mlir": "onnx", "onnxruntime": "ort", "torch": "torch"}
    try:
        lines = importlib.metadata.requires("fusilli-plugin") or []
    except importlib.metadata.PackageNotFoundError:
        return ["fusilli-plugin"], optional
    required = [_distribution_name(line) for line in lines if "extra ==" not in line]
    return ["fusilli-plugin", *required], optional


def _distribution_name(requirement: str) -> str:
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> Finding:
    known = ("avx2", "avx512f", "avx512bf16", "avx512fp16", "sve")
    wide = [name for name in known if name in host_extensions()]
    return Finding("cpu", Status.OK, f"{host_arch()}, {os.cpu_count()} threads, {' '.join(wide) or 'no wide vectors'}")


def _cache(options: Options) -> Iterator[Finding]:
    """Each cache folder, as the cache itself judges it."""
    yield _folder("cache", options.cache_dir, Cache(options.cache_dir, limit=options.cache_size))
    for path in options.cache_readonly:
        yield _folder("read-only cache", path, Cache(path / "unused", readonly=(path,)))


def _folder(what: str, path: Path, cache: Cache) -> Finding:
    try:
        cache.code_key("0" * 64)  # looks whether the folders may be trusted
        info = path.stat()
    except FileNotFoundError:
        if what == "cache":
            return Finding(what, Status.OK, f"{path}: will be made at the first compile")
        return Finding(what, Status.BROKEN, f"{path}: not there", "make it, or change FUSILLI_CACHE_READONLY")
    except (FusilliError, OSError) as error:
        return Finding(what, Status.BROKEN, str(error), "until then nothing can be compiled or run")
    detail = f"{path}: mode {stat.S_IMODE(info.st_mode):04o}"
    if what != "cache":
        return Finding(what, Status.OK, detail)
    if not os.access(path, os.W_OK | os.X_OK):
        advice = "every process compiles anew; chmod 700 it, or name another in FUSILLI_CACHE_DIR"
        return Finding(what, Status.BROKEN, f"{detail}, not writable", advice)
    stats = cache.stats()
    size, limit = (stats.graph_bytes + stats.code_bytes + stats.refusal_bytes) / 2**20, stats.limit / 2**20
    return Finding(what, Status.OK, f"{detail}, {stats.codes} compiled graphs, {size:.1f} of {limit:.0f} MiB")


def _plugins(options: Options) -> Iterator[Finding]:
    """Which engine plugins hipDNN loads here, and whether one of them stands in the way of ours."""
    found, problems = plugins.installed_plugins()
    yield from (
        Finding("hipDNN plugins", Status.BROKEN, problem, "see HIPDNN_PLUGIN_DIR and `fusilli plugin-dir`")
        for problem in problems
    )
    if not found and not problems:
        yield Finding("hipDNN plugins", Status.ABSENT, "no hipDNN with plugins is here", "the embedded host needs none")
    identity = engine_id(options.engine_name)
    claimants = [plugin for plugin in found if identity in dict(plugin.engines)]
    for plugin in found:
        if plugin.problem:
            yield Finding("hipDNN plugin", Status.ABSENT, f"{plugin}: {plugin.problem}", "hipDNN leaves it out")
        elif plugin not in claimants or (plugin.name == _OUR_PLUGIN and len(claimants) == 1):
            yield Finding("hipDNN plugin", Status.OK, str(plugin))
        else:
            yield _same_engine(plugin, claimants, options.engine_name)


def _same_engine(plugin: plugins.Plugin, claimants: Sequence[plugins.Plugin], name: str) -> Finding:
    """Two plugins with one engine id: hipDNN refuses the second one whole."""
    what = f"engine {name} twice" if len(claimants) > 1 else f"engine {name} of another plugin"
    fate = f"{plugin} has the same engine id as {'ours' if len(claimants) == 1 else claimants[0].path}"
    if plugin is claimants[0]:
        fate = f"{plugin} is loaded first and keeps the engine id"
    advice = "hipDNN refuses the plugin that comes later: remove one, or name ours differently in FUSILLI_ENGINE_NAME"
    return Finding(what, Status.BROKEN, fate, advice)


def _self_test(device: str) -> Finding:
    what = f"self-test on {device}"
    try:
        return Finding(what, Status.OK, selftest.run(device))
    except FusilliError as error:
        return Finding(what, Status.BROKEN, str(error), "run again with --debug; see the lines above")


def _saved_code(device: str) -> Finding:
    """Whether what is compiled for this machine is loaded by it."""
    what = f"saved code on {device}"
    try:
        return Finding(what, Status.OK, selftest.run_saved(device))
    except (FusilliError, OSError) as error:
        return Finding(what, Status.BROKEN, str(error), "until then compile on the machine that runs it, each time")


def _devices(options: Options) -> dict[str, Finding]:
    """What the HIP and the CUDA driver show, by kind of device."""
    try:
        answers = _ask_drivers()
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        seen = f"asking them ended the process: {lines[-1]}"
        return {"hip": Finding("GPU drivers", Status.BROKEN, seen, "reinstall the GPU driver")}
    return {kind: _device(kind, answer, options) for kind, answer in answers.items()}


def _ask_drivers() -> dict[str, dict[str, Any]]:
    """What ``fusilli_plugin.checks.drivers`` finds, in a process of its own."""
    command = [sys.executable, "-m", "fusilli_plugin.checks.drivers"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
    answers: dict[str, dict[str, Any]] = json.loads(child.stdout.splitlines()[-1])
    return answers


def _device(kind: str, answer: dict[str, Any], options: Options) -> Finding:
    what = f"{kind} devices"
    if answer["devices"] and answer.get("missing"):
        seen = f"{', '.join(answer['devices'])} through {answer['library']}, which lacks {', '.join(answer['missing'])}"
        return Finding(what, Status.BROKEN, seen, "graphs for these devices are declined; update ROCm")
    if answer["devices"]:
        return Finding(what, Status.OK, f"{', '.join(answer['devices'])} through {answer['library']}")
    by_default = options.device == Options.device
    asked_for = not by_default and options.device.partition(":")[0] == kind
    advice = "compiling for such a device works without one, and so does everything with --device cpu"
    if by_default and kind == "hip":
        advice += "; export FUSILLI_DEVICE=cpu makes that the default"
    seen = answer["reason"] if asked_for or answer["library"] else "no driver is installed"
    return Finding(what, Status.BROKEN if asked_for else Status.ABSENT, seen, advice)
