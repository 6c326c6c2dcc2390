"""Files ``*.graph.json`` as tests.

A key ``"test"`` beside the graph's own says how; it may be left out:

    "test": {"seed": 0, "tol": 1.0, "upstream": "owner/repository#1234", "on": ["hip*", "gfx942"]}

With ``upstream`` the graph is expected to be wrong, or not to compile, on devices whose name matches ``on`` (default:
all); when it begins to pass, the test fails and says so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Final, cast

import pytest

from fusilli_ground.environment import environment
from fusilli_plugin.testing.places import Place, place

__all__ = ["GraphFile", "Upstream", "place_of"]

_NUMBER: Final = re.compile(r"[\w.-]+/[\w.-]+#\d+|https://\S+/\d+")
_KEYS: Final = frozenset({"seed", "tol", "upstream", "on"})
_PLACE: Final = pytest.StashKey[Place]()


def place_of(config: pytest.Config) -> Place:
    """The place that the options name; one for a session.

    Raises:
        FusilliError: it is not there.
    """
    if _PLACE not in config.stash:
        config.stash[_PLACE] = place(
            config.getoption("fusilli_device"),
            emulate=config.getoption("fusilli_emulate"),
            engine=config.getoption("fusilli_engine"),
            compiler=config.getoption("fusilli_compiler"),
        )
    return config.stash[_PLACE]


@dataclass(frozen=True)
class Upstream:
    """A fault of somebody else's, that a test is expected to fail of.

    Attributes:
        number: of the issue.
        on: patterns of the devices that have it.
    """

    number: str
    on: tuple[str, ...] = ("*",)

    @classmethod
    def of_marker(cls, where: str, number: object = None, on: object = "*") -> Upstream:
        """What stands in a file or a marker; ``where`` names it in errors.

        Raises:
            pytest.UsageError: no number of an issue, or no patterns.
        """
        if not isinstance(number, str) or not _NUMBER.fullmatch(number):
            raise pytest.UsageError(f"{where}: an expected failure needs the number of its issue, such as "
                                    f"iree-org/iree#1234 or a link that ends in it, got {number!r}")  # fmt: skip
        patterns = (on,) if isinstance(on, str) else tuple(cast("Iterable[object]", on))
        if not patterns or not all(isinstance(each, str) for each in patterns):
            raise pytest.UsageError(f"{where}: on={on!r} must be names of devices, such as 'cpu' or ['hip*', 'gfx942']")
        return cls(number, cast("tuple[str, ...]", patterns))

    def applies(self, config: pytest.Config) -> bool:
        """Whether the session's device has the fault."""
        device = config.getoption("fusilli_device") or environment().get("FUSILLI_DEVICE") or "hip"
        return any(fnmatch(config.getoption("fusilli_emulate") or device, pattern) for pattern in self.on)


class GraphFile(pytest.File):
    """A file with one graph, which is one test."""

    def collect(self) -> Iterable[pytest.Item]:
        yield GraphItem.from_parent(self, name="fusion")


class GraphItem(pytest.Item):
    """Fused, node by node and float64 must agree."""

    def runtest(self) -> None:
        """A declined graph is skipped; one whose fault has a number is expected to fail, and fails once it passes."""
        from fusilli_plugin.testing.fusion import assert_fusion_right
        from fusilli_plugin.testing.graphs.custom import with_references
        from graph_api import FusilliError, Graph, GraphError, NotSupportedError

        text = self.path.read_text(encoding="utf-8")
        graph = with_references(Graph.from_json(text))
        how, expected = self._how(json.loads(text))
        where = place_of(self.config)
        try:
            assert_fusion_right(graph, device=where, **how)
        except NotSupportedError as error:
            pytest.skip(str(error))
        except GraphError:
            raise
        except FusilliError as error:
            if expected is None:
                raise
            pytest.xfail(f"{expected.number}: {str(error).splitlines()[0]}")
        if expected is not None:
            pytest.fail(
                f"it passes on {where}: {expected.number} seems to be mended; remove 'upstream' from {self.path.name}",
                pytrace=False,
            )

    def _how(self, document: dict[str, Any]) -> tuple[dict[str, Any], Upstream | None]:
        given = document.get("test", {})
        if not isinstance(given, dict) or set(given) - _KEYS:
            raise pytest.UsageError(f"{self.path}: 'test' may have {', '.join(sorted(_KEYS))}, got {given!r:.200}")
        how = {name: given[name] for name in ("seed", "tol") if name in given}
        if "upstream" not in given:
            return how, None
        expected = Upstream.of_marker(str(self.path), given["upstream"], given.get("on", "*"))
        return how, expected if expected.applies(self.config) else None

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What is wrong with a graph is a sentence, not a traceback."""
        from graph_api import FusilliError

        if isinstance(excinfo.value, FusilliError | pytest.UsageError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, self.path.name
