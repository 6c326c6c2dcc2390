"""What was learnt about code and devices by running: checked code, wrong code, devices that passed the self-test.

Kept as small files in the compile cache's folder, which belongs to this user alone; foreign files are ignored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fusilli_ground.files import write_whole
from fusilli_plugin.errors import QuarantinedError
from graph_api import FusilliError, Graph, NotSupportedError, TensorAttr
from iree_bridge import Device, Executable, Options, Target
from iree_bridge.compile import versions
from iree_bridge.compile.compiler import CompiledCode

__all__ = [
    "device_software",
    "has_passed_selftest",
    "is_quarantined",
    "record_selftest",
    "release",
    "require_affordable",
    "verify",
]

_LOG: Final = logging.getLogger(__name__)
_VERIFIED, _WRONG, _SELFTEST = "verified", "quarantine", "selftest"
# These count where the folder cannot be written, too.
_wrong_in_this_process: Final[set[str]] = set()
_right_in_this_process: Final[set[str]] = set()


def device_software(device: Device) -> str:
    """Chip, driver and compiler, in words that may be shown to others: they do not tell one card from another."""
    chip = (device.kind, device.arch, device.driver_versions) if device.is_gpu else ("cpu",)
    return " ".join((*chip, versions.iree_version()))


def _identity(device: Device) -> str:
    """What decides whether code runs right: this card, its driver and the compiler."""
    return f"{device_software(device)} {device.card}".strip()


def require_affordable(graph: Graph, device: Device) -> None:
    """Decline a graph whose results `verify` would not check, before it is compiled.

    Raises:
        NotSupportedError: it is one.
    """
    from iree_bridge.artifact.vectors import affordable

    reason = affordable(graph)
    if isinstance(reason, str):
        raise _unverifiable(device, reason)


def _unverifiable(device: Device, reason: str) -> NotSupportedError:
    advice = f"`fusilli selftest --device {device.kind}:{device.index}` has not passed there, which would do as well"
    reason = f"its results cannot be checked on {device}: {reason}; {advice}, and so would FUSILLI_VERIFY=never"
    return NotSupportedError("", "unverified", reason)


def verify(
    graph: Graph, code: CompiledCode, executable: Executable, options: Options, *, is_needed: bool = False
) -> None:
    """Run the test vector of a graph on a device, unless this code has passed there before.

    Args:
        graph: what the code computes.
        code: with its key.
        executable: the code on the device.
        options: where it is remembered.
        is_needed: a graph that has no vector is declined; without it, it serves unchecked.

    Raises:
        QuarantinedError: the results are wrong, now or before; the engine declines the graph from now on.
        NotSupportedError: there is no vector, and one is needed.
        ExecutionError: the device failed.
    """
    from iree_bridge.artifact.vectors import make_inputs, make_sampled_vector

    identity = _identity(executable.device)
    name = _name(code.key, identity)
    wrong_name = _name(_graph_key(graph, code.target), identity)
    if wrong_name in _wrong_in_this_process or _read(options, _WRONG, wrong_name) is not None:
        raise QuarantinedError(f"the code of graph '{graph.name}' gave wrong results on {executable.device} before")
    if name in _right_in_this_process or _read(options, _VERIFIED, name) is not None:
        return
    vector = make_sampled_vector(graph, 0)
    if isinstance(vector, str):
        if is_needed:
            raise _unverifiable(executable.device, vector)
        _LOG.warning("graph '%s' is not verified on %s: %s", graph.name, executable.device, vector)
        return
    outputs = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    given = make_inputs(graph, vector.seed)
    executable.run({**given, **outputs})  # arrays in host memory are waited for
    wrong = [str(each) for each in vector.check(graph, {t.uid: array for t, array in outputs.items()}) if not each.ok]
    if not wrong:
        _right_in_this_process.add(name)
        _write(options, _VERIFIED, name, {"graph": graph.name, "device": identity})
        return
    facts = {"graph": graph.name, "device": identity, "wrong": wrong, "code": code.key}
    _write(options, _WRONG, wrong_name, facts)
    _wrong_in_this_process.add(wrong_name)
    capsule = _capsule(graph, code, executable.device, options, given, outputs, wrong)
    _LOG.error(
        "graph '%s' gives wrong results on %s and is quarantined: %s%s",
        graph.name, executable.device, wrong[0], f"; see {capsule}" if capsule else "",
    )  # fmt: skip
    raise QuarantinedError(f"graph '{graph.name}' gives wrong results on {executable.device}: {wrong[0]}")


def _capsule(
    graph: Graph,
    code: CompiledCode,
    device: Device,
    options: Options,
    given: Mapping[TensorAttr, Any],
    outputs: Mapping[TensorAttr, Any],
    wrong: Sequence[str],
) -> Path | None:
    """A folder with all that shows the fault again; None where it cannot be written."""
    from iree_bridge.artifact.arrays import save_outputs
    from iree_bridge.compile import reproducer

    advice = f"fusilli run graph.json --inputs inputs.npz --check --device {device.kind}:{device.index}"
    made = reproducer.Reproducer(
        name=graph.name,
        target=code.target,
        flags=code.flags,
        global_flags=(),
        graph_json=graph.to_json(),
        ir=None,
        diagnostics="\n".join((f"wrong results on {device_software(device)}", *wrong, f"in this folder: {advice}", "")),
        versions={
            "iree-base-compiler": versions.compiler_version(),
            "iree-base-runtime": versions.runtime_version(),
            "emitter": versions.emitter_version(),
        },
    )
    folder = reproducer.save(options.cache_dir / "failures", made, keep=options.failures)
    if folder is not None:
        try:
            for name, arrays in (("inputs.npz", given), ("results.npz", outputs)):
                save_outputs(arrays, folder / name)
        except (OSError, FusilliError) as error:
            _LOG.warning("the data of a wrong graph are not kept in %s: %s", folder, error)
    return folder


def is_quarantined(graph: Graph, target: Target, device: Device, options: Options) -> bool:
    """Whether the code of a graph was found to be wrong on a device with this driver."""
    if not _wrong_in_this_process and not os.path.isdir(options.cache_dir / _WRONG):
        return False
    name = _name(_graph_key(graph, target), _identity(device))
    return name in _wrong_in_this_process or _read(options, _WRONG, name) is not None


def release(options: Options) -> int:
    """Forget all quarantines; returns how many there were."""
    _wrong_in_this_process.clear()
    found = list((options.cache_dir / _WRONG).glob("*.json"))
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def record_selftest(device: Device, options: Options) -> None:
    """Remember that this card has passed the self-test with this driver and this version of the compiler."""
    _write(options, _SELFTEST, _name(_identity(device)), {"device": _identity(device)})


def has_passed_selftest(device: Device, options: Options) -> bool:
    """Whether `record_selftest` was called for this card, its driver and this version of the compiler."""
    return _read(options, _SELFTEST, _name(_identity(device))) is not None


def _graph_key(graph: Graph, target: Target) -> str:
    return f"{graph.canonical_json()}\0{target}\0{versions.emitter_version()}"


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() + ".json"


def _read(options: Options, kind: str, name: str) -> dict[str, Any] | None:
    path = options.cache_dir / kind / name
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _write(options: Options, kind: str, name: str, facts: dict[str, Any]) -> None:
    folder = options.cache_dir / kind
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / name, json.dumps(facts).encode(), mode=0o600)
    except OSError as error:
        _LOG.info("what was learnt is not kept in %s: %s", folder, error)
