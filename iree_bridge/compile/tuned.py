"""Which form of a graph was measured to be the fastest right one: records beside the compiled code.

    <root>/v1/tuned/ab/<key>.json    key of graph, target and compiler -> what was measured on each device

Another version of the compiler or of the emission makes other keys, so what was measured with it does not count.
Nothing here imports MLIR or the compiler, or opens a device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fusilli_ground.errors import FusilliError
from graph_api import Graph
from iree_bridge.compile import versions
from iree_bridge.compile.cache import Cache, key_of
from iree_bridge.targets.cpu import processor
from iree_bridge.targets.executed import was_executed
from iree_bridge.targets.target import Target
from iree_bridge.targets.variants import Variant, choose, named

__all__ = [
    "BY_CODE",
    "Figure",
    "Record",
    "TuningFileError",
    "keep",
    "key_for",
    "place_of",
    "read_file",
    "records",
    "winner",
    "write_file",
]

_FORMAT: Final = "fusilli-tuning"
_VERSION: Final = 1
_MOST: Final = 64
"""Devices that a record is kept of."""
RIGHT: Final = "right"
BY_CODE: Final = "figures of the code"
"""The place of a record that no device has measured: seconds are estimates, forms were executed in the emulator."""


class TuningFileError(FusilliError):
    """The file holds no results of tuning, or damaged ones."""


class Figure(NamedTuple):
    """What was seen of a form.

    Attributes:
        form: its name.
        verdict: ``right``, ``wrong``, ``failed`` to compile or run, or ``not tried``.
        seconds: median of a run; 0 if it was not timed.
        spread: half of what the middle half of the runs spans, in seconds.
        text: why not, for a form that is not right; else empty.
    """

    form: str
    verdict: str
    seconds: float = 0.0
    spread: float = 0.0
    text: str = ""


class Record(NamedTuple):
    """What was measured of a graph on a device.

    Attributes:
        key: of graph, target and compiler.
        graph: its name then.
        target: what it was compiled for.
        place: device and driver, as `place_of` says it.
        winner: name of the form that serves.
        figures: of all forms, the graph's default first.
    """

    key: str
    graph: str
    target: str
    place: str
    winner: str
    figures: tuple[Figure, ...]


def key_for(graph: Graph, target: Target, flags: Sequence[str] = ()) -> str:
    """The key of a graph's records; ``flags`` are what the user adds to the compiler's."""
    parts = {
        "graph": graph.canonical_json(),
        "target": f"{target} {target.features}",
        "flags": "\0".join(flags),
        "emitter": versions.emitter_version(),
        "iree": versions.iree_version(),
    }
    return key_of("tuned", parts)


def place_of(target: Target) -> str:
    """What decides, beside the code, how fast it is: the processor, or the chip and its driver in this process."""
    if target.backend == "llvm-cpu":
        return f"cpu {processor()}"
    if target.backend == "cuda":
        return f"cuda {target.arch}"
    from iree_bridge.devices import hip

    return f"hip {target.arch} {hip.release()}"


def winner(store: Cache, graph: Graph, target: Target, flags: Sequence[str] = ()) -> Variant | None:
    """The form of a graph that was the fastest right one here; None: nothing is known.

    What was measured on another device of the target counts where there is nothing better, if the form is right by
    itself: see `Variant.is_proven`; then what figures of the code say, if the form was executed in the emulator for
    graphs like this one.
    """
    if not store.has_tuned():
        return None
    found = records(store, key_for(graph, target, flags))
    here = place_of(target) if found else ""
    for record in sorted(found, key=lambda record: (record.place != here, record.place == BY_CODE)):
        variant = named(graph, target, record.winner)
        if variant is None or (record.place == BY_CODE and not _may_serve_unmeasured(graph, target, variant)):
            continue
        if variant.is_proven or record.place == here:
            return variant
    return None


def _may_serve_unmeasured(graph: Graph, target: Target, variant: Variant) -> bool:
    """Whether it is the graph's default, or was executed in the emulator; a file may claim anything."""
    return variant == choose(graph, target) or was_executed(graph, target, variant.name)


def records(store: Cache, key: str) -> list[Record]:
    """What the caches have under a key, the latest first. What is damaged is left out."""
    found: list[Record] = []
    for entry in store.tuned(key):
        try:
            found += [_record(each) for each in _list(entry, "records")]
        except TuningFileError:
            continue
    return [record for record in found if record.key == key]


def keep(store: Cache, record: Record) -> None:
    """Keep a record, in the place of an earlier one of the same device, if the folder can be written."""
    with store.lock(record.key, 10):
        others = [each for each in records(store, record.key) if each.place != record.place]
        kept = [record, *others][:_MOST]
        store.keep_tuned(record.key, {"records": [_document(each) for each in kept]})


def write_file(path: Path, found: Iterable[Record]) -> None:
    """A file of records that other machines can import.

    Raises:
        OSError: it cannot be written.
    """
    from fusilli_ground.files import write_whole

    document = {"format": _FORMAT, "version": _VERSION, "records": [_document(record) for record in found]}
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


def read_file(path: Path) -> list[Record]:
    """The records of a file that `write_file` wrote.

    Raises:
        TuningFileError: it is none, or damaged; the message says where.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TuningFileError(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise TuningFileError(f"{path}: no results of tuning: 'format' is not '{_FORMAT}'")
    if document.get("version") != _VERSION:
        raise TuningFileError(f"{path}: version {document.get('version')!r} of the format; this reads {_VERSION}")
    try:
        return [_record(each) for each in _list(document, "records")]
    except TuningFileError as error:
        raise TuningFileError(f"{path}: {error}") from None


def _document(record: Record) -> dict[str, Any]:
    return record._asdict() | {"figures": [figure._asdict() for figure in record.figures]}


def _record(document: object) -> Record:
    if not isinstance(document, dict):
        raise TuningFileError("a record is an object")
    texts = {name: _text(document, name) for name in ("key", "graph", "target", "place", "winner")}
    figures = tuple(_figure(each) for each in _list(document, "figures"))
    if texts["winner"] not in {figure.form for figure in figures if figure.verdict == RIGHT}:
        raise TuningFileError(f"record of '{texts['graph']}': the winner '{texts['winner']}' was not found right")
    return Record(figures=figures, **texts)


def _figure(document: object) -> Figure:
    if not isinstance(document, dict):
        raise TuningFileError("a figure is an object")
    form, verdict, text = (_text(document, name) for name in ("form", "verdict", "text"))
    seconds, spread = (_seconds(document, name, form) for name in ("seconds", "spread"))
    return Figure(form, verdict, seconds, spread, text)


def _seconds(document: Mapping[str, Any], name: str, form: str) -> float:
    value = document.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TuningFileError(f"form '{form}': {name} is {value!r}")
    return float(value)


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise TuningFileError(f"'{name}' is {value!r}, no text")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise TuningFileError(f"'{name}' is {value!r}, no list")
    return value
