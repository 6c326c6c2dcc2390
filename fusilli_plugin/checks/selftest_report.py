"""The report of a self-test: a JSON document, made here and read back from anybody."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fusilli_plugin import __version__
from fusilli_plugin.checks.device_tests import DeviceTest
from fusilli_plugin.checks.roofline import Roofline, Timing
from fusilli_plugin.checks.selftest_cases import Result
from graph_api import FusilliError
from iree_bridge import Device
from iree_bridge.compile import versions
from iree_bridge.targets.cpu import host_arch

__all__ = ["FORMAT", "facts", "make_report", "read_report", "timings"]

FORMAT: Final = "fusilli-selftest"
_MAX_BYTES: Final = 8 << 20
_OUTCOMES: Final = ("right", "wrong", "declined", "failed", "skipped")
_GOOD: Final = ("right", "declined", "skipped")


def make_report(
    device: Device,
    driver: str,
    results: Sequence[Result],
    tests: Sequence[DeviceTest],
    roofline: Roofline,
    seconds: float,
) -> dict[str, Any]:
    """The document."""
    return {
        "format": FORMAT,
        "version": 1,
        "made_by": f"fusilli-plugin {__version__}",
        "device": str(device),
        "target": str(device.target),
        "driver": driver,
        "iree": versions.iree_version() or "",
        "emitter": versions.emitter_version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {host_arch()}",
        "seconds": round(seconds, 1),
        "ok": all(each.outcome in _GOOD for each in (*results, *tests)) and any(r.outcome == "right" for r in results),
        "cases": [result.as_json() for result in results],
        "tests": [{"name": test.name, "outcome": test.outcome, "text": test.text} for test in tests],
        "roofline": roofline.as_json(),
    }


def read_report(path: Path) -> dict[str, Any]:
    """A document that somebody sent.

    Raises:
        FusilliError: it is none, or damaged.
        OSError: it cannot be read.
    """
    if path.stat().st_size > _MAX_BYTES:
        raise FusilliError(f"{path} has more than {_MAX_BYTES} bytes: it is no report of `fusilli selftest -o`")
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT or document["version"] != 1:
            raise ValueError(f"format {document['format']!r}, version {document['version']!r}")
        for name, kind in _FIELDS.items():
            if not isinstance(document[name], kind):
                raise ValueError(f"{name} is {document[name]!r}")
        for entry in (*document["cases"], *document["tests"]):
            if (
                entry["outcome"] not in _OUTCOMES
                or not isinstance(entry["name"], str)
                or not isinstance(entry["text"], str)
            ):
                raise ValueError(f"an entry is {entry!r}")
        for case in document["cases"]:
            for name in ("operations", "types"):
                if not all(isinstance(each, str) for each in case[name]):
                    raise ValueError(f"{name} of a case are {case[name]!r}")
            case["seconds"] = float(case["seconds"])
        _check_roofline(document["roofline"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{path} is no report of `fusilli selftest -o`, or damaged: {type(error).__name__}: {error}"
        raise FusilliError(text) from error
    return document


def _check_roofline(found: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless it is what `Roofline.as_json` gives."""
    entries = [({"bytes_per_s": 0.0, "products_are": ""}, found)]
    entries += [(asdict(Timing("")), timing) for timing in found["graphs"]]
    for form, entry in entries:
        for name, like in form.items():
            kind = str if isinstance(like, str) else (int, float)
            if not isinstance(entry[name], kind) or (kind is not str and not 0 <= entry[name] < 1e300):
                raise ValueError(f"{name} of the roofline is {entry[name]!r}")
    if not all(isinstance(rate, int | float) and 0 < rate < 1e300 for rate in found["products_per_s"].values()):
        raise ValueError(f"rates of products are {found['products_per_s']!r}")


def timings(document: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Graph, its time, what it moves or multiplies in a second, and its part of the roofline; in words."""
    rows: list[tuple[str, str, str, str]] = []
    for timing in document["roofline"]["graphs"]:
        seconds, bound = timing["seconds"], timing["bound"]
        if not seconds:
            rows.append((timing["name"], "not timed", timing["text"], ""))
            continue
        done, unit = (timing["nbytes"], "B/s") if bound == "memory" else (timing["operations"], "operations/s")
        rows.append(
            (
                timing["name"],
                f"{1e3 * seconds:.4g} ms",
                _rate(done / seconds, unit),
                f"{timing['share']:.0%} of {bound}",
            )
        )
    return rows


def _rate(each: float, unit: str) -> str:
    scale, letter = next((s for s in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if each >= s[0]), (1.0, ""))
    return f"{each / scale:.3g} {letter}{unit}"


def facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What stands above the rows."""
    counts = Counter(case["outcome"] for case in document["cases"])
    names = ("device", "target", "driver", "iree", "emitter", "made_by", "python", "system")
    return [
        *((name.replace("_", " "), document[name]) for name in names if document[name]),
        ("graphs", ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])),
        ("copies", _rate(document["roofline"]["bytes_per_s"], "B/s, measured")),
        ("products", _products(document["roofline"])),
        ("time", f"{document['seconds']:.0f} s"),
    ]


def _products(roofline: dict[str, Any]) -> str:
    rates = [f"{name} {_rate(rate, 'operations/s')}" for name, rate in roofline["products_per_s"].items()]
    return ", ".join((*rates, roofline["products_are"]))


_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("made_by", "device", "target", "driver", "iree", "emitter", "python", "system"), str),
    "seconds": (int, float),
    "ok": bool,
    "cases": list,
    "tests": list,
    "roofline": dict,
}
