"""The exceptions of the backend."""

from __future__ import annotations

from fusilli_ground.errors import FusilliError

__all__ = ["BackendError", "DeviceError", "EngineError", "NoEngineError", "PackError", "WireError"]


class BackendError(FusilliError):
    """Base class of everything that this package raises on purpose."""


class DeviceError(BackendError, RuntimeError):
    """Memory or a stream could not be had or used; the message has the call and what the runtime said."""


class PackError(BackendError, ValueError):
    """A variant pack does not fit its graph.

    Attributes:
        uid: of the tensor that is wrong, None if the pack as a whole is.
    """

    def __init__(self, reason: str, uid: int | None = None) -> None:
        self.uid = uid
        super().__init__(reason)


class EngineError(BackendError, RuntimeError):
    """An engine, or the plugin that it comes from, failed or broke the contract of the plugin API.

    Attributes:
        where: path of the plugin and function, e.g. ``libx.so: hipdnnEnginePluginCreate``.
        status: the status that it returned, 0 if the call succeeded with a result that breaks the contract.
    """

    def __init__(self, where: str, reason: str, status: int = 0) -> None:
        self.where = where
        self.status = status
        super().__init__(f"{where}: {reason}")


class NoEngineError(EngineError):
    """No engine, or not the one that was asked for, runs the graph; the message has each one's reason."""


class WireError(BackendError, ValueError):
    """Bytes or JSON are not what the hipDNN schema says, or a record cannot be written in the chosen layout.

    Attributes:
        path: where, in the schema's words, e.g. ``nodes[2].attributes.x_tensor_uid`` ("" for the buffer as a whole).
        reason: what is wrong there, with the values seen.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}" if path else reason)

    def under(self, parent: str) -> WireError:
        """The same error one level further out: ``parent`` is put in front of the path."""
        if not self.path:
            return WireError(parent, self.reason)
        joint = "" if self.path.startswith("[") else "."
        return WireError(f"{parent}{joint}{self.path}", self.reason)
