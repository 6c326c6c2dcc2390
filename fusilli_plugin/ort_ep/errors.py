"""What the provider tells ONNX Runtime and its users."""

from __future__ import annotations

from fusilli_ground.errors import FusilliError

__all__ = ["NewShapeError", "ProviderError"]


class ProviderError(FusilliError):
    """The provider cannot do what was asked of it: be registered, serve a strict session, run or restore a group."""


class NewShapeError(ProviderError):
    """A run has a shape for which there is no code, in a session that was told to make none for it."""
