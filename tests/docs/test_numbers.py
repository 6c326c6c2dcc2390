"""Numbers that pages and help texts state: counted where the thing is, and the same on every page that repeats them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from fusilli_plugin.bench.graphs import gfx_rows
from fusilli_plugin.bench.workloads import workloads
from fusilli_plugin.checks.fusion_cases import fusion_cases
from fusilli_plugin.checks.selftest import SMALL
from fusilli_plugin.checks.selftest_cases import read_cases
from fusilli_plugin.cli.main import cli
from fusilli_plugin.conformance.samples import FUNCTIONS
from fusilli_plugin.testing.graphs import FAMILIES
from graph_api import OPS
from tests.support.pages import PAGES, ROOT

# What is counted, how many there are, and the words that state it; each has to be found.
COUNTED = {
    "graphs of the self-test": (len(read_cases()), (r"(\d+) graphs of all operations", r"selftest` has (\d+) graphs")),
    "of these emulated": (
        len(SMALL),
        (r"[Rr]uns? (\d+) of them without", r"--emulate (\d+) of the graphs", r"fewer images; (\d+),"),
    ),
    "cases of the fusion suite": (
        len(fusion_cases()),
        (r"(\d+) fused graphs", r"a part of the (\d+) cases", r"There are (\d+) cases"),
    ),
    "operations of the bench": (len(workloads("cpu")), (r"(\d+) operations of common", r"cpu has (\d+) of common")),
    "graphs that are read for chips": (
        sum(1 for _ in gfx_rows()),
        (r"code of (\d+) graphs takes", r"roofline, of (\d+) graphs, beside goals"),
    ),
    "functions that are conformance's": (len(FUNCTIONS), (r"of (\d+) functions and random graphs",)),
    "families of random graphs": (len(FAMILIES), (r"of (\d+) families \(", r"graphs of each of (\d+) families")),
    "operations": (len(OPS), (r"all (\d+) operations and all data types",)),
}  # fmt: skip
# The same number on several pages.
REPEATED = (
    {"README.md": r"(\d+) of the \d+ node cases", "docs/onnxruntime.md": r"on the CPU device, (\d+) give"},
    {
        "README.md": r"\d+ of the (\d+) node cases",
        "docs/onnxruntime.md": r"Of the (\d+) node cases",
        "docs/models.md": r"Of all (\d+) node",
    },
)


def _helps(command: click.Command, context: click.Context) -> Iterator[str]:
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _helps(found, click.Context(found, info_name=name, parent=context))


@pytest.fixture(scope="module")
def said() -> str:
    """All pages and help texts, each without line breaks."""
    texts = [page.read_text("utf-8") for page in PAGES]
    helps = _helps(cli, click.Context(cli, info_name="fusilli"))
    return "\n".join(" ".join(text.replace("-\n", "-").split()) for text in (*texts, *helps))


@pytest.mark.parametrize("what", COUNTED)
def test_what_is_stated_is_what_there_is(what: str, said: str) -> None:
    number, patterns = COUNTED[what]
    for pattern in patterns:
        assert {int(each) for each in re.findall(pattern, said)} == {number}, f"{what}: {pattern}"


@pytest.mark.parametrize("repeated", REPEATED)
def test_pages_agree(repeated: dict[str, str]) -> None:
    found = {
        name: set(re.findall(pattern, " ".join((ROOT / name).read_text("utf-8").split())))
        for name, pattern in repeated.items()
    }
    assert len(set[str]().union(*found.values())) == 1, found
    assert all(found.values()), found


def test_outcomes_of_node_cases_add_up() -> None:
    text = " ".join((ROOT / "docs/onnxruntime.md").read_text("utf-8").split())
    counts = re.search(
        r"Of the (\d+) node cases .* device, (\d+) give the CPU provider's answers: (\d+) with .*, (\d+) with each "
        r"node left for a reason\. (\d+) run only with .*, (\d+) are random .*, (\d+) run nowhere\. Two differ",
        text,
    )
    assert counts is not None
    every, same, ours, left, alone, random, nowhere = map(int, counts.groups())
    assert same == ours + left
    assert every == same + alone + random + nowhere + 2
    rows = re.findall(
        r"^\| (right|declined: [^|]*|\*\*all\*\*) \| (\d+) \|", (ROOT / "docs/models.md").read_text(), re.M
    )
    numbers = {name: int(number) for name, number in rows}
    assert numbers.pop("**all**") == every == sum(numbers.values())
