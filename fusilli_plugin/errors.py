"""Exceptions of the engine beside those of the graph API and the compiler."""

from __future__ import annotations

from graph_api import FusilliError
from hipdnn_backend.errors import EngineError

__all__ = ["BadParamError", "FusilliEngineError", "QuarantinedError"]


class BadParamError(FusilliError):
    """A caller of the engine passed something that does not exist or is missing: a uid, a buffer, a context."""


class QuarantinedError(FusilliError):
    """The compiled code gave wrong results on this device and driver and must not be used there."""


class FusilliEngineError(EngineError, FusilliError):
    """What an engine or a plan of this package raises: the backend's error, and one of this project's as well.

    The backend knows no package of ours, so its own errors are no `FusilliError`: this one is both, so that neither
    ``except EngineError`` nor ``except FusilliError`` misses it.
    """
