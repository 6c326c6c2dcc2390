"""The pytest plugin: options, fixtures, and files ``*.graph.json`` as tests.

Sessions that use none of it load this file and nothing else of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fusilli_plugin.testing.places import Place

__all__ = ["fusilli_place", "fusion_right"]

_ENDING = ".graph.json"
_MARKER = "fusilli_upstream"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests of this session run their graphs."""
    group = parser.getgroup("fusilli", "fusion tests of hipDNN graphs")
    group.addoption("--fusilli-device", metavar="D", help="cpu, hip, hip:1, cuda:0; default: FUSILLI_DEVICE, or hip")
    group.addoption("--fusilli-emulate", metavar="CHIP", help="gfx90a, gfx942 or gfx950 in the emulator instead")
    group.addoption("--fusilli-engine", metavar="E", help="name of an engine of hipDNN's, or path of an engine plugin")
    group.addoption("--fusilli-compiler", metavar="PATH", help="the iree-compile that compiles; default: the installed")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(number, on='*'): fails because of that issue (owner/repository#1234) on devices whose name matches;"
        " fails when it begins to pass",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Graphs of ours are tests; other files of the same ending are left alone."""
    if not file_path.name.endswith(_ENDING):
        return None
    with file_path.open("rb") as file:
        if b'"fusilli-graph"' not in file.read(4096):
            return None
    from fusilli_plugin.testing.graph_files import GraphFile

    return GraphFile.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked is expected to fail, strictly."""
    marked = [(item, marker) for item in items for marker in item.iter_markers(_MARKER)]
    if not marked:
        return
    from fusilli_plugin.testing.graph_files import Upstream

    for item, marker in marked:
        expected = Upstream.of_marker(item.nodeid, *marker.args, **marker.kwargs)
        if expected.applies(config):
            reason = f"{expected.number}; if this begins to pass, remove the mark"
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(scope="session")
def fusilli_place(request: pytest.FixtureRequest) -> Place:
    """Where the options say that graphs run: a `fusilli_plugin.testing.Place`."""
    from fusilli_plugin.testing.graph_files import place_of

    return place_of(request.config)


@pytest.fixture
def fusion_right(fusilli_place: Place) -> Callable[..., dict[str, float]]:
    """`fusilli_plugin.testing.assert_fusion_right` in that place."""
    from functools import partial

    from fusilli_plugin.testing.fusion import assert_fusion_right

    return partial(assert_fusion_right, device=fusilli_place)
