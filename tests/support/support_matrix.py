"""What is served, as tests saw it: ``docs/support.json``, the README's table, and the long ones of ``docs/support.md``.

``make test-full`` writes the file. ``make support`` writes the tables anew.
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

from fusilli_ground.texts import say
from graph_api import DataType, FusilliError
from tests.support import served, versions

__all__ = ["BEGIN", "END", "TARGETS", "Entry", "dumps", "loads", "main", "page", "render", "with_table"]

BEGIN, END = "<!-- support:begin -->", "<!-- support:end -->"
TARGETS = {"cpu": "run", "gfx90a": "emulated", "gfx942": "emulated", "gfx950": "emulated"}
"""Each target with what success means on it."""

_WORDS = {"compiled": "not run", "declined": "declined", "failed": "failed"}
_PAGE = """# What is served

Written by `make test-full` from `docs/support.json` and from the support rules (`make support` writes it from these
alone); the cases are those of `tests/cases`. A case is *right* if every
element of its results is within its tolerance of the float64 reference: `cpu` ran it here, and for AMD chips the
compiler's machine code was executed in the emulator (`docs/emulator.md`), with NaN in all memory that nobody has
written, and nothing read outside the buffers. Some are right only where the sum of a buffer's offsets wraps at 2**32,
as AMD's simulator of gfx950 has it (`docs/gpu_findings.md` counts them). No case has run on AMD hardware.

{by_rule}
## Versions

What has run, by `make test-versions`: a sample of the tests ({samples}), and the self-test on the CPU. Versions of IREE
other than the pinned one are refused when the package is used, since code depends on them; for these rows the check was
told of the other series. {versions_off}

{versions}

## By operation and data type

{by_type}

## Every case

{by_case}
"""

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
        outcomes: target to ``right`` (ran, on AMD chips in the emulator, every element within its tolerance),
            ``compiled: REASON`` (not run), ``declined: RULE`` or ``failed``; a target that was not tried is absent.
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
    """The README's table in Markdown: right cases of all cases, by operation and target."""
    targets = _targets(entries)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.op, []).append(entry)
    lines = _head(["operation", *(f"{target} ({TARGETS[target]})" for target in targets)])
    for op in sorted(groups):
        lines.append(_row([f"`{op}`", *(_cell(groups[op], target) for target in targets)]))
    lines.append(_row(["**all**", *(f"{_cell(entries, target)}{_share(entries, target)}" for target in targets)]))
    return "\n".join(lines) + "\n"


def page(entries: Sequence[Entry]) -> str:
    """``docs/support.md``: what the rules say, cases by operation and data type, then each case."""
    targets = _targets(entries)
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.op, entry.dtype), []).append(entry)
    by_type = _head(["operation", "data type", *targets])
    for op, dtype in sorted(groups, key=lambda key: (key[0], _DTYPES.index(key[1]))):
        by_type.append(_row([f"`{op}`", dtype, *(_cell(groups[op, dtype], target) for target in targets)]))
    by_case = _head(["case", "operation", "data type", "layout", *targets])
    for entry in sorted(entries, key=lambda entry: entry.case):
        outcomes = [entry.outcomes.get(target, "not tried") for target in targets]
        by_case.append(_row([f"`{entry.case}`", f"`{entry.op}`", entry.dtype, entry.layout, *outcomes]))
    document = json.loads(versions.FILE.read_text(encoding="utf-8"))
    return _PAGE.format(
        by_rule=served.section(),
        by_type="\n".join(by_type),
        by_case="\n".join(by_case),
        versions=versions.section(document),
        samples=versions.samples(document),
        versions_off=versions.not_run(document),
    )


def _targets(entries: Sequence[Entry]) -> list[str]:
    return [target for target in TARGETS if any(target in entry.outcomes for entry in entries)]


def _head(titles: Sequence[str]) -> list[str]:
    return [_row(titles), _row(["---"] * len(titles))]


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
    faults = [f"{counts[kind]} {word}" for kind, word in _WORDS.items() if counts[kind]]
    return ", ".join([f"{counts['right']}/{counts.total()}", *faults])


def _share(entries: Iterable[Entry], target: str) -> str:
    counts = _counts(entries, target)
    return f" ({100 * counts['right'] // counts.total()} %)" if counts else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the tables from the file.

    Returns:
        Exit code: 1 with ``--check`` if the tables are other ones, or if a file is not what it should be.
    """
    parser = argparse.ArgumentParser(prog="support_matrix", description="Write the tables of what is served.")
    parser.add_argument("--support", type=Path, default=Path("docs/support.json"), help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), help="default: %(default)s")
    parser.add_argument("--page", type=Path, default=Path("docs/support.md"), help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is another one")
    given = parser.parse_args(arguments)
    try:
        entries = loads(given.support.read_text(encoding="utf-8"))
        old = given.readme.read_text(encoding="utf-8")
        new, new_page = with_table(old, entries), page(entries)
        old_page = given.page.read_text(encoding="utf-8") if given.page.exists() else ""
    except (FusilliError, OSError) as error:
        say(f"support_matrix: {error}", err=True)
        return 1
    if given.check:
        return int((old, old_page) != (new, new_page))
    given.readme.write_text(new, encoding="utf-8")
    given.page.write_text(new_page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
