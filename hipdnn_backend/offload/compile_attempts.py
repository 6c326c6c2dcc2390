"""From a model to compiled graphs, if need be in several attempts: what nobody compiles may stay ONNX."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from hipdnn_backend.engine import Engine, is_fallback
from hipdnn_backend.offload import frontend, pipeline
from hipdnn_backend.offload.errors import ModelError, OffloadError, PassError
from hipdnn_backend.offload.frontend.imported import Imported
from hipdnn_backend.offload.passes.graph_to_executable import NotCompiledError, Uncompiled
from hipdnn_backend.offload.report import Split
from hipdnn_backend.offload.session import OffloadOptions
from hipdnn_backend.onnx_op import CONTROL_ENGINE

__all__ = ["Attempt", "offload_model"]

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """A model that is offloaded.

    Attributes:
        imported: from the front end; its module is that of ``offloaded``.
        offloaded: compiled.
        seconds: what the import and the passes took, all attempts together.
    """

    imported: Imported
    offloaded: pipeline.Offloaded
    seconds: Mapping[str, float]


def offload_model(
    source: Any,
    *,
    engines: Sequence[Engine],
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    example: Sequence[Any] = (),
    options: OffloadOptions | None = None,
) -> Attempt:
    """Import a model and compile it.

    A node that the front end does not convert, or that no engine compiles in any form, stays ONNX if there is an engine
    for that (`FallbackEngine`); the model is imported again with it. What was compiled by then, engines still have.

    Args:
        source: see `hipdnn_backend.offload.load`, but no saved model.
        engines: in the order in which they are asked.
        dims: see `hipdnn_backend.offload.load`.
        inputs: see `hipdnn_backend.offload.load`.
        example: see `hipdnn_backend.offload.load`.
        options: default: `OffloadOptions()`.

    Raises:
        ModelError: the model is damaged, needs dims, or has nodes that are not converted and that no engine takes.
        PassError: a pass failed, e.g. because no engine compiles an operation.
    """
    last = {engine.name for engine in engines if is_fallback(engine)}
    has_fallback = bool(last) and isinstance(source, str | os.PathLike | bytes | onnx.ModelProto)
    left: dict[str, dict[str, str]] = {}
    splits: list[Split] = []
    first: PassError | None = None
    seconds = {"import": 0.0, "passes": 0.0}
    while True:
        start = time.perf_counter()
        try:
            imported = frontend.load(
                source, dims=dims, inputs=inputs, example=example, strict=not has_fallback, left=left
            )
        except ModelError as error:
            if first is None:
                raise
            raise first from error
        middle = time.perf_counter()
        try:
            offloaded = pipeline.run(imported, engines=engines, options=options)
        except PassError as error:
            failure = error.__cause__
            if not isinstance(failure, NotCompiledError):
                _forget(first)
                raise
            refused = [each for each in failure.failures if not imported.opaque.keys().isdisjoint(each.nodes)]
            if refused:
                _forget(error)
                raise _refused(refused[0], imported.opaque, last, first) from failure
            new = _new(failure, left, last) if has_fallback else {}
            if not new:
                _forget(first)
                raise
            _forget(error if first is not None else None)
            first = first or error
            left.update(new)
            splits += [split for split in failure.splits if new.keys() & set(split.nodes)]
        else:
            _forget(first)
            offloaded.report.splits[:0] = splits
            _tell(imported, offloaded)
            return Attempt(imported, offloaded, seconds)
        finally:
            seconds["import"] += middle - start
            seconds["passes"] += time.perf_counter() - middle


def _new(failure: NotCompiledError, left: Mapping[str, Any], last: Collection[str]) -> dict[str, dict[str, str]]:
    """The nodes that are to stay ONNX from now on, each with what the engines said that are not the last."""
    return {
        node: {who or "translation": said.reason for who, said in each.declined.items() if who not in last}
        for each in failure.failures
        for node in each.nodes
        if node not in left
    }


def _refused(
    failure: Uncompiled, opaque: Mapping[str, str], last: Collection[str], first: PassError | None
) -> OffloadError:
    """What went wrong with nodes that the last engines do not take as ONNX either."""
    said = (f"{who or 'translation'}: {each.reason}" for who, each in failure.declined.items() if who in {"", *last})
    why = f"as ONNX nodes: {'; '.join(said)}"
    if first is not None:
        return PassError(first.pass_name, f"{first.diagnostics}; {why}", first.reproducer)
    node = next(node for node in failure.nodes if node in opaque)
    return ModelError(node, "unsupported-operator", f"{opaque[node]}; {why}")


def _tell(imported: Imported, offloaded: pipeline.Offloaded) -> None:
    for graph in offloaded.graphs.values():
        if is_fallback(graph.engine) and graph.engine.name != CONTROL_ENGINE:
            why = next((imported.opaque[node] for node in graph.nodes if node in imported.opaque), "")
            _LOG.warning(
                "model '%s': %s stays ONNX and is run by %s, because: %s",
                imported.name, ", ".join(graph.nodes), graph.engine.name, why,
            )  # fmt: skip


def _forget(error: PassError | None) -> None:
    """Removes the reproducer of a failure that is not reported."""
    if error is not None and error.reproducer is not None:
        error.reproducer.unlink(missing_ok=True)
