"""Running passes of the offload pipeline over MLIR text in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hipdnn_backend.engine import Engine
from hipdnn_backend.offload import printer
from hipdnn_backend.offload.mlir import new_context
from hipdnn_backend.offload.pipeline import PASSES, PIPELINE, run_passes
from hipdnn_backend.offload.session import OffloadOptions, Session

__all__ = ["TWO_CONVS", "parsed", "run_text", "stages"]

TWO_CONVS = (Path(__file__).parents[1] / "data/offload/two_convs.mlir").read_text(encoding="utf-8")


def parsed(text: str):
    """The module of a text."""
    return printer.parse(text, new_context())


def run_text(
    text: str, *passes: str, engines: Sequence[Engine] = (), options: OffloadOptions | None = None
) -> tuple[str, Session]:
    """The text after some passes (all of the pipeline by default) and the session in which they ran."""
    module = parsed(text)
    session = Session(tuple(engines), options or OffloadOptions())
    chosen = [PASSES[name] for name in passes] or PIPELINE
    run_passes(module, chosen, session)
    return printer.to_text(module, local_scope=True), session


def stages(text: str, engines: Sequence[Engine]) -> dict[str, str]:
    """The text after each pass of the pipeline, by the pass's argument; of passes that run twice the last."""
    module = parsed(text)
    found: dict[str, str] = {}

    def after(each, module) -> None:
        found[each.argument] = printer.to_text(module, local_scope=True)

    run_passes(module, PIPELINE, Session(tuple(engines)), after=after)
    return found
