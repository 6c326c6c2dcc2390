"""``build`` and ``compile_graph``: from a graph to something that runs, or to a file that runs elsewhere."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from graph_api import ExecutionError, Graph, NotSupportedError
from iree_bridge.compile.compiler import CompiledCode, compile_code
from iree_bridge.compile.options import CompileMode, Options, TuneMode
from iree_bridge.support import support
from iree_bridge.targets.target import Target

if TYPE_CHECKING:
    from iree_bridge.artifact.artifact import Artifact
    from iree_bridge.devices.device import Device
    from iree_bridge.runtime import Executable

__all__ = ["build", "compile_graph", "load_code"]

_LOG = logging.getLogger(__name__)


def build(
    graph: Graph | object,
    device: str | Device | None = None,
    *,
    stream: int | None = None,
    options: Options | None = None,
    tune: TuneMode | str | None = None,
) -> Executable:
    """A graph, compiled or taken from the cache, loaded on a device.

    Args:
        graph: validated, or valid; or what `Graph.of` makes one of, such as a graph of ``hipdnn_frontend``.
        device: ``"cpu"``, ``"hip"``, ``"hip:1"``, ``"cuda:0"``...; default: ``FUSILLI_DEVICE``, by default ``hip``.
        stream: the caller's stream on a GPU, as an integer; None: calls return when their results are there.
        options: default: ``Options.from_env()``.
        tune: which form of the graph serves: ``"off"``, ``"cached"`` or ``"measure"``; default: as the options say.

    Raises:
        GraphError: the graph is not valid, or it is none.
        NotSupportedError: the device's target does not serve it.
        CompileError: the compiler failed.
        ExecutionError: the device is not there, or does not load the code.
    """
    from iree_bridge.devices.device import Device

    graph = Graph.of(graph)
    options = Options.or_env(options)
    if tune is not None:
        options = replace(options, tune=tune)
    place = Device.parse(options.device if device is None else device) if not isinstance(device, Device) else device
    if stream is not None:
        place = place.on_stream(stream)
    target = place.target
    support(graph, target).require()
    if options.tune is TuneMode.MEASURE:
        from iree_bridge.tuning import ensure

        ensure(graph, place, options)
    return load_code(graph, compile_code(graph, target, options), place, options)[0]


def load_code(graph: Graph, code: CompiledCode, place: Device, options: Options) -> tuple[Executable, CompiledCode]:
    """Compiled code on a device; what comes from a cache and does not load is compiled again.

    Raises:
        ExecutionError: the device is not there, or does not load the code; the code needs another processor.
        CompileError: it had to be compiled again, which failed.
    """
    from iree_bridge.runtime import Executable

    missing = code.missing()
    if missing:  # it would end the process
        raise ExecutionError(
            f"the code of graph '{graph.name}' may use processor extensions that this machine lacks "
            f"({', '.join(missing)}); the compiler flags {shlex.join(options.extra_flags)} ask for them"
        )
    arguments, flops = graph.arguments(), graph.flops()
    try:
        return Executable(arguments, code.vmfb, place, flops=flops, alignment=code.alignment), code
    except ExecutionError as error:
        if not code.from_cache or options.compile is CompileMode.NEVER:
            raise
        _LOG.warning("cached code of graph '%s' does not load and is compiled again: %s", graph.name, error)
    code = compile_code(graph, code.target, options, refresh=True)
    return Executable(arguments, code.vmfb, place, flops=flops, alignment=code.alignment), code


def compile_graph(graph: Graph | object, targets: Iterable[Target], *, options: Options | None = None) -> Artifact:
    """A graph, or what `build` takes for one, compiled for one or more targets; no device is needed.

    With ``options.tune`` of ``measure`` the forms for AMD's targets are ordered by figures of their code first.

    Raises:
        GraphError: the graph is not valid or none, or no target is given.
        NotSupportedError: a target does not serve it, or is none.
        CompileError: the compiler failed.
    """
    from iree_bridge.artifact.artifact import compile_artifact

    if isinstance(targets, str | Target) or not isinstance(targets, Iterable):
        raise NotSupportedError(
            "", "target", f"expected a list of targets, got {targets!r}; write [Target.parse(name)]"
        )
    graph, targets = Graph.of(graph), tuple(targets)
    for target in targets:
        support(graph, target).require()
    options = Options.or_env(options)
    if options.tune is TuneMode.MEASURE:
        from iree_bridge.tuning import ensure_ranked

        for target in targets:
            ensure_ranked(graph, target, options)
    return compile_artifact(graph, targets, options)
