"""How often a group ran for each shape, and by what."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["ShapeCount", "ShapeCounts"]

_MOST: Final = 1024  # shapes that are counted


@dataclass
class ShapeCount:
    """Runs of one shape.

    Attributes:
        hits: by code for it.
        padded: by code for a larger one.
        fallbacks: by what runs it without code: ONNX Runtime's kernels, or PyTorch.
        compiles: how often it was compiled for.
    """

    hits: int = 0
    padded: int = 0
    fallbacks: int = 0
    compiles: int = 0

    def text(self, fallback: str) -> str:
        """For people; ``fallback`` says where runs without code were."""
        parts = {"by its code": self.hits, "padded": self.padded, fallback: self.fallbacks}
        runs = ", ".join(f"{count} {how}" for how, count in parts.items() if count) or "none"
        return f"runs: {runs}; compiled {self.compiles} times"


class ShapeCounts:
    """The counts of a group; its owner lets one thread at a time change them."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, ShapeCount] = OrderedDict()

    def at(self, shapes: Hashable) -> ShapeCount:
        """The count of a shape; those that were not met for the longest time are forgotten."""
        found = self._found.get(shapes)
        if found is None:
            found = self._found[shapes] = ShapeCount()
            while len(self._found) > _MOST:
                self._found.popitem(last=False)
        else:
            self._found.move_to_end(shapes)
        return found

    def copy(self) -> Mapping[Any, ShapeCount]:
        """All of them, as they are now."""
        return {shapes: replace(count) for shapes, count in self._found.items()}
