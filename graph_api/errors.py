"""The exceptions that users of graphs can meet; their root is `fusilli_ground.errors.FusilliError`.

Every message names the node or tensor, the rule that was broken, the values that were seen and the likely fix.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fusilli_ground.errors import FusilliError, NotSupportedError

__all__ = [
    "CompileError",
    "ExecutionError",
    "FusilliError",
    "GraphError",
    "NotSupportedError",
    "naming",
]


class GraphError(FusilliError):
    """The graph, or what was passed to build it, breaks a rule of the operation graph API."""


@contextmanager
def naming(node: str) -> Generator[None]:
    """Attributes are checked before there is a node: errors from within that do not name it get its name in front."""
    try:
        yield
    except GraphError as error:
        if type(error) is not GraphError or not node or f"'{node}'" in str(error):
            raise
        raise GraphError(f"node '{node}': {error}") from error


class CompileError(FusilliError):
    """The compiler failed, crashed or ran out of time or memory; the next compile is not affected.

    Attributes:
        reproducer: folder with the graph, the IR, the flags and the diagnostics, or None if it could not be written.
        kind: ``refused`` (the compiler refuses the input, and would again), ``crash``, ``memory``, ``timeout``,
            ``start`` (no compile worker could be started), ``killed`` (by somebody else), or "".
    """

    def __init__(self, message: str, reproducer: Path | None = None, kind: str = "") -> None:
        self.reproducer = reproducer
        self.kind = kind
        super().__init__(message)


class ExecutionError(FusilliError):
    """A buffer does not fit its tensor, a device is not there, or the device reported a failure."""
