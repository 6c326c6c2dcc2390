"""How many of ONNX's node cases our engine passes alone, and what the others want: a table for the pages.

``python -m tests.support.node_counts`` prints it; it takes half an hour. ``--json FILE`` keeps each case's outcome.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.node_cases import load_cases, run_isolated

__all__ = ["KINDS", "kind_of", "outcomes", "table"]

KINDS: Mapping[str, str] = {
    "elements that are texts": r"type STRING",
    "sequences and optionals": r"(sequence|optional) type|a list is given|SequenceConstruct|SplitToSequence",
    "dims or steps that only a run knows": r"only a run knows|Unique of",
    "random numbers": r"\[random\]",
    "pictures in files": r"ImageDecoder",
    "pairs of words (`TfIdfVectorizer`)": r"TfIdfVectorizer",
    "numbers on which sources or code disagree": r"Mod: of float64|Pow: of integers|align_corners",
    "opsets before 7, and `Scan` of opset 8": r"\[opset\]",
    "other operators": "",
}
"""What a case wants that is declined → what is said then; the first that fits counts."""

_BATCH = 100


def kind_of(outcome: str) -> str:
    """The entry of `KINDS` that an outcome of `run_isolated` is."""
    return next(kind for kind, said in KINDS.items() if re.search(said, outcome))


def outcomes() -> dict[str, str]:
    """The outcome of every case, from two processes at a time."""
    names = sorted(load_cases())
    batches = [names[at : at + _BATCH] for at in range(0, len(names), _BATCH)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda batch: run_isolated(batch, seconds=240), batches)
        return {name: outcome for part in found for name, outcome in part.items()}


def table(found: Mapping[str, str]) -> str:
    """Markdown: what passes, then the kinds, each with how many and one of them."""
    declined = {kind: [name for name, said in found.items() if said and kind_of(said) == kind] for kind in KINDS}
    lines = ["| outcome | cases | for example |", "| --- | --- | --- |"]
    lines.append(f"| right | {sum(not said for said in found.values())} | |")
    kinds = sorted((kind for kind in KINDS if declined[kind]), key=lambda kind: -len(declined[kind]))
    lines += [f"| declined: {kind} | {len(declined[kind])} | `{min(declined[kind])}` |" for kind in kinds]
    lines.append(f"| **all** | {len(found)} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count ONNX's node cases.")
    parser.add_argument("--json", type=Path, help="where the outcome of each case goes")
    given = parser.parse_args()
    found = outcomes()
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = {name: said for name, said in found.items() if said.startswith(("Crash", "WrongAnswer"))}
    print(table(found))
    if wrong:
        raise SystemExit(f"wrong: {wrong}")


if __name__ == "__main__":
    main()
