"""What is served, as tests saw it: ``docs/support.json``, and the table that the README shows of it.

``make test-full`` writes the file. ``python -m fusilli_plugin.checks.support_matrix`` writes the README's table anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graph_api import DataType, FusilliError

__all__ = ["BEGIN", "END", "TARGETS", "Entry", "dumps", "loads", "main", "render", "with_table"]

BEGIN, END = "<!-- support:begin -->", "<!-- support:end -->"
TARGETS = {"cpu": "run, checked", "gfx90a": "compiled", "gfx942": "compiled", "gfx950": "compiled"}
"""Each target with what success means on it."""

_FORMAT = "fusilli-support"
_VERSION = 1
_DTYPES = [dtype.name for dtype in DataType]


@dataclass(frozen=True)
class Entry:
    """One case of the test tables.

    Attributes:
        case: ``<family>-<name>``.
        op: the operation that the case is about.
        dtype: data type of its first input.
        layout: of that input: ``packed``, ``channels-last`` or ``other``.
        outcomes: target to ``right`` (ran, every element within its tolerance), ``compiled``, ``declined: RULE`` or
            ``failed``; a target that was not tried is absent.
    """

    case: str
    op: str
    dtype: str
    layout: str
    outcomes: Mapping[str, str] = field(default_factory=dict)


def dumps(entries: Iterable[Entry], iree: str) -> str:
    """The file: one case per line, sorted, so that differences read well. ``iree``: the compiler's version."""
    lines = [
        json.dumps({"case": e.case, "op": e.op, "dtype": e.dtype, "layout": e.layout, **_ordered(e.outcomes)})
        for e in sorted(entries, key=lambda entry: entry.case)
    ]
    head = json.dumps({"format": _FORMAT, "version": _VERSION, "iree": iree})
    return head[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"


def loads(text: str) -> list[Entry]:
    """The entries of a file.

    Raises:
        FusilliError: it is no such file.
    """
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT or document["version"] != _VERSION:
            raise FusilliError(f"not a support table of version {_VERSION}; make test-full writes one")
        return [_entry(item) for item in document["cases"]]
    except (ValueError, TypeError, KeyError) as error:
        raise FusilliError(f"not a support table: {error!r}; make test-full writes one") from error


def render(entries: Sequence[Entry]) -> str:
    """The table in Markdown: served cases of all cases, by operation, data type and target."""
    targets = [target for target in TARGETS if any(target in entry.outcomes for entry in entries)]
    titles = ["operation", "data type", *(f"{target} ({TARGETS[target]})" for target in targets)]
    lines = [_row(titles), _row(["---"] * len(titles))]
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.op, entry.dtype), []).append(entry)
    for op, dtype in sorted(groups, key=lambda key: (key[0], _DTYPES.index(key[1]))):
        cells = [_cell(groups[op, dtype], target) for target in targets]
        lines.append(_row([f"`{op}`", dtype, *cells]))
    lines.append(_row(["**all**", "", *(f"{_cell(entries, target)}{_share(entries, target)}" for target in targets)]))
    return "\n".join(lines) + "\n"


def with_table(readme: str, entries: Sequence[Entry]) -> str:
    """``readme`` with the table of ``entries`` between its two markers.

    Raises:
        FusilliError: the markers are not there, once each and in order.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before or END in after:
        raise FusilliError(f"the text needs the lines {BEGIN} and {END}, once each and in this order")
    return f"{before}{BEGIN}\n{render(entries)}{END}{after}"


def _entry(item: Any) -> Entry:
    if not isinstance(item, dict):
        raise TypeError(f"a case is an object, not {item!r}")
    outcomes = {key: str(value) for key, value in item.items() if key in TARGETS}
    if item["dtype"] not in _DTYPES:
        raise ValueError(f"data type {item['dtype']!r}")
    return Entry(str(item["case"]), str(item["op"]), item["dtype"], str(item["layout"]), outcomes)


def _ordered(outcomes: Mapping[str, str]) -> dict[str, str]:
    return {target: outcomes[target] for target in TARGETS if target in outcomes}


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _counts(entries: Iterable[Entry], target: str) -> Counter[str]:
    return Counter(entry.outcomes[target].partition(":")[0] for entry in entries if target in entry.outcomes)


def _cell(entries: Iterable[Entry], target: str) -> str:
    counts = _counts(entries, target)
    if not counts:
        return "not tried"
    served = counts["right"] + counts["compiled"]
    faults = [f"{counts[kind]} {kind}" for kind in ("declined", "failed") if counts[kind]]
    return ", ".join([f"{served}/{counts.total()}", *faults])


def _share(entries: Iterable[Entry], target: str) -> str:
    counts = _counts(entries, target)
    return f" ({100 * (counts['right'] + counts['compiled']) // counts.total()} %)" if counts else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the README's table from the file.

    Returns:
        Exit code: 1 with ``--check`` if the README shows another table, or if a file is not what it should be.
    """
    parser = argparse.ArgumentParser(prog="support_matrix", description="Write the README's table of what is served.")
    parser.add_argument("--support", type=Path, default=Path("docs/support.json"), help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is another one")
    given = parser.parse_args(arguments)
    try:
        old = given.readme.read_text(encoding="utf-8")
        new = with_table(old, loads(given.support.read_text(encoding="utf-8")))
    except (FusilliError, OSError) as error:
        print(f"support_matrix: {error}", file=sys.stderr)
        return 1
    if given.check:
        return int(old != new)
    given.readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
