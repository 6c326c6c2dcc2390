"""The engine of hipDNN: what it claims, its plans and knobs, and what it learnt about code by running it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusilli_plugin.engine.engine import FusilliEngine

__all__ = ["FusilliEngine"]


def __getattr__(name: str) -> Any:
    """Loads the engine when it is asked for: some need a single file of this folder."""
    if name != "FusilliEngine":
        raise AttributeError(f"module 'fusilli_plugin.engine' has no attribute {name!r}")
    from fusilli_plugin.engine.engine import FusilliEngine

    return FusilliEngine
