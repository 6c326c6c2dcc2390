"""Why operations have no wire form."""

from __future__ import annotations

from hipdnn_backend.offload.errors import OffloadError

__all__ = ["NotTranslated"]


class NotTranslated(OffloadError):  # noqa: N818 - an answer to "can this be a graph?", not a fault
    """Operations that a hipDNN graph cannot express, or not in this combination.

    Attributes:
        op_name: the operation, e.g. ``torch.aten.cumsum``.
        location: name of the model's node.
        reason: one sentence with the values seen.
    """

    def __init__(self, op_name: str, location: str, reason: str) -> None:
        self.op_name = op_name
        self.location = location
        self.reason = reason
        super().__init__(f"{op_name} '{location}': {reason}")
