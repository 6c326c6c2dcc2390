"""What goes wrong between a model and its executable program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hipdnn_backend.errors import BackendError

__all__ = ["MissingPackageError", "ModelError", "OffloadError", "PassError", "UnsupportedNodeError"]


class OffloadError(BackendError, RuntimeError):
    """Base of the errors of this package: a model that cannot be offloaded, a pass that failed."""


class MissingPackageError(OffloadError, ImportError):
    """Models need packages that are not installed.

    Attributes:
        name: of the module that is missing.
    """

    def __init__(self, name: str | None) -> None:
        super().__init__(
            f"{name} is not installed, which models need; graphs do without. Install fusilli-plugin with its extra "
            "'onnx', e.g. pip install 'fusilli-plugin[onnx]', in a checkout pip install -e '.[onnx]'"
        )
        self.name = name


class ModelError(OffloadError):
    """The model is damaged, unknown in part, or lacks something.

    Attributes:
        node: name of the node or tensor concerned, "" if it is the model as a whole.
        rule: short stable name of the rule that is broken.
        reason: one sentence with the values seen and the likely fix.
    """

    def __init__(self, node: str, rule: str, reason: str) -> None:
        self.node = node
        self.rule = rule
        self.reason = reason
        super().__init__(f"{f'{node}: ' if node else ''}{reason} [{rule}]")


class UnsupportedNodeError(ModelError):
    """Nodes that the front end does not convert; an engine may run them as ONNX. The message is about the first.

    Attributes:
        nodes: name of each → why.
    """

    def __init__(self, node: str, rule: str, reason: str, others: Mapping[str, str] | None = None) -> None:
        super().__init__(node, rule, reason)
        self.nodes = {node: reason, **(others or {})}


class PassError(OffloadError):
    """A pass failed, or left IR that is not valid.

    Attributes:
        pass_name: e.g. ``hipdnn-offload``.
        diagnostics: what the pass or MLIR's verifier said.
        reproducer: file with the IR before the pipeline, its passes and the diagnostics; None if there is none.
    """

    def __init__(self, pass_name: str, diagnostics: str, reproducer: Path | None = None) -> None:
        self.pass_name = pass_name
        self.diagnostics = diagnostics
        self.reproducer = reproducer
        where = f"\nreproducer: {reproducer}" if reproducer else ""
        super().__init__(f"pass {pass_name} failed: {diagnostics}{where}")
