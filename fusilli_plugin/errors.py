"""Exceptions of the engine beside those of the graph API and the compiler."""

from __future__ import annotations

from graph_api import FusilliError

__all__ = ["BadParamError", "QuarantinedError"]


class BadParamError(FusilliError):
    """A caller of the engine passed something that does not exist or is missing: a uid, a buffer, a context."""


class QuarantinedError(FusilliError):
    """The compiled code gave wrong results on this device and driver and must not be used there."""
