"""The passes in their order, and what runs them.

onnx.* ─► torch.aten.* ─► hipdnn.graph regions ─► hipdnn.executable ─► hipdnn.execute on tensors ─► on buffers
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hipdnn_backend.engine import Engine, Support
from hipdnn_backend.offload import printer
from hipdnn_backend.offload.errors import PassError
from hipdnn_backend.offload.mlir import PassManager, ir
from hipdnn_backend.offload.node_outcomes import Fate, fates
from hipdnn_backend.offload.passes.assign_layouts import assign_layouts
from hipdnn_backend.offload.passes.backend_legalize import backend_legalize
from hipdnn_backend.offload.passes.bufferize import eliminate_empty_tensors, one_shot_bufferize
from hipdnn_backend.offload.passes.cleanup import canonicalize, cse, torch_onnx_to_torch
from hipdnn_backend.offload.passes.finalize_memrefs import finalize_memrefs
from hipdnn_backend.offload.passes.graph import node_label
from hipdnn_backend.offload.passes.graph_to_executable import graph_to_executable
from hipdnn_backend.offload.passes.leftovers import outline_leftovers
from hipdnn_backend.offload.passes.offload import offload
from hipdnn_backend.offload.passes.regions import CUSTOM, Region, graphs, operation_names, tensor_operations
from hipdnn_backend.offload.report import PassTime, Report
from hipdnn_backend.offload.session import CompiledGraph, OffloadOptions, Session
from hipdnn_backend.offload.to_wire.onnx_model import not_taken
from hipdnn_backend.onnx_op import OPERATOR

if TYPE_CHECKING:
    from hipdnn_backend.offload.frontend.imported import Imported

__all__ = [
    "PASSES",
    "PIPELINE",
    "Group",
    "Offloaded",
    "Partition",
    "Pass",
    "Unclaimed",
    "partition",
    "run",
    "run_passes",
]

PassFunction = Callable[[Any, Session], None]


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline.

    Attributes:
        title: as the walkthrough calls it.
        argument: as the command line calls it.
        run: changes the module; raises on failure.
        asks: it needs the session's engines.
    """

    title: str
    argument: str
    run: PassFunction
    asks: bool = False


def _alone(function: Callable[[Any], None]) -> PassFunction:
    return lambda module, _session: function(module)


_ALL: Final = (
    Pass("TorchOnnxToTorch", "torch-onnx-to-torch", _alone(torch_onnx_to_torch)),
    Pass("CSE", "cse", _alone(cse)),
    Pass("Canonicalize", "canonicalize", _alone(canonicalize)),
    Pass("HipDNNOffload", "hipdnn-offload", offload, asks=True),
    Pass("HipDNNOutlineLeftovers", "hipdnn-outline-leftovers", outline_leftovers),
    Pass("HipDNNAssignLayouts", "hipdnn-assign-layouts", assign_layouts),
    Pass("GraphToExecutable", "hipdnn-graph-to-executable", graph_to_executable, asks=True),
    Pass("BackendLegalize", "hipdnn-backend-legalize", _alone(backend_legalize)),
    Pass("EmptyTensorElimination", "empty-tensor-elimination", _alone(eliminate_empty_tensors)),
    Pass("OneShotBufferize", "one-shot-bufferize", _alone(one_shot_bufferize)),
    Pass("FinalizeMemRefs", "hipdnn-finalize-memrefs", _alone(finalize_memrefs)),
)

PASSES: Final[Mapping[str, Pass]] = {each.argument: each for each in _ALL}
"""Every pass by its argument."""

PIPELINE: Final = tuple(
    PASSES[name]
    for name in (
        "torch-onnx-to-torch",
        # Constants before they are cloned into regions, so that regions share none twice.
        "cse",
        "canonicalize",
        "cse",
        "hipdnn-offload",
        "hipdnn-outline-leftovers",
        "canonicalize",
        "cse",
        # Before compiling: a graph is compiled for the strides of its tensors.
        "hipdnn-assign-layouts",
        "hipdnn-graph-to-executable",
        # No CSE from here on: it would merge the destinations of two graphs.
        "hipdnn-backend-legalize",
        "empty-tensor-elimination",
        "one-shot-bufferize",
        "hipdnn-finalize-memrefs",
    )
)
"""``--hipdnn-offload-pipeline``."""

_PREFIX: Final = "hipdnn-ep-"  # of a reproducer's name
_SUFFIX: Final = ".mlir"
_KEPT: Final = 32
"""Reproducers that are kept where no folder was named."""
_PARTITIONING: Final = PIPELINE[: PIPELINE.index(PASSES["hipdnn-outline-leftovers"]) + 1]


@dataclass(frozen=True)
class Offloaded:
    """A model as a program of compiled graphs.

    Attributes:
        module: in its final form: functions on buffers whose last arguments are the outputs.
        graphs: by the name that ``hipdnn.execute`` has.
        report: what happened.
    """

    module: Any
    graphs: Mapping[str, CompiledGraph]
    report: Report


def run(imported: Imported, *, engines: Sequence[Engine], options: OffloadOptions | None = None) -> Offloaded:
    """Offload a model: group, compile, bufferize.

    Args:
        imported: from the front end; its module is changed.
        engines: in the order in which they are asked.
        options: default: `OffloadOptions()`.

    Raises:
        PassError: a pass failed, e.g. because no engine compiles an operation; it names a reproducer.
    """
    session = _session(imported, engines, options)
    run_passes(imported.module, PIPELINE, session)
    return Offloaded(imported.module, session.graphs, session.report)


def _session(imported: Imported, engines: Sequence[Engine], options: OffloadOptions | None) -> Session:
    given = len(imported.inputs)
    constants = range(given, given + len(imported.constants))
    return Session(tuple(engines), options or OffloadOptions(), whole=imported.whole, constants=constants)


# ---- running passes


def run_passes(
    module: Any,
    passes: Sequence[Pass],
    session: Session,
    *,
    after: Callable[[Pass, Any], None] | None = None,
    verify: bool = True,
) -> None:
    """Run passes over a module with one pass manager. Times go into the session's report.

    Args:
        module: an `ir.Module`; changed.
        passes: in order.
        session: of all of them.
        after: told the pass and the module after each pass.
        verify: MLIR checks the module after each pass.

    Raises:
        PassError: a pass failed; the module is in the state in which it left it, the reproducer holds the first one.
    """
    context = module.context
    before = module.operation.clone()
    running: list[Pass] = []
    manager = PassManager("builtin.module", context=context)
    manager.enable_verifier(verify)
    callbacks = [_callback(each, module, session, running, after) for each in passes]
    for each, callback in zip(passes, callbacks, strict=True):
        manager.add(callback, name=each.title, argument=each.argument)
    try:
        with context, ir.Location.unknown(context):
            manager.run(module.operation)
    except Exception as error:
        failed = running[-1].argument if running else "verifier"
        path = _reproducer(before, passes, failed, str(error), session.options.reproducers)
        raise PassError(failed, str(error), path) from error


def _callback(
    each: Pass, module: Any, session: Session, running: list[Pass], after: Callable[[Pass, Any], None] | None
) -> Callable[[Any, Any], None]:
    def call(_operation: Any, _manager: Any) -> None:
        running.append(each)
        start = time.perf_counter()
        each.run(module, session)
        session.report.passes.append(PassTime(each.argument, time.perf_counter() - start))
        if after is not None:
            after(each, module)

    return call


def _reproducer(before: Any, passes: Iterable[Pass], failed: str, diagnostics: str, folder: Path | None) -> Path | None:
    """Writes what it takes to see the failure again; None if it cannot: the failure matters more."""
    lines = [
        f"// pass {failed} failed; run: hipdnn-ep-opt {' '.join(f'--{each.argument}' for each in passes)} <this file>",
        *(f"// {line}" for line in diagnostics.splitlines()),
    ]
    try:
        if folder is None:
            folder = _own_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n" + printer.pretty(before.get_asm(enable_debug_info=True)) + "\n")
    except OSError:
        return None
    return Path(name)


def _own_folder() -> Path:
    """A private folder in the one for temporary files, whose oldest files over `_KEPT` are removed.

    Raises:
        OSError: it cannot be made, or somebody else's stands in its place.
    """
    folder = Path(tempfile.gettempdir(), f"hipdnn-ep-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(errno.EPERM, "it is not a private folder of this user", str(folder))
    files = [path for path in folder.iterdir() if path.name.startswith(_PREFIX) and path.name.endswith(_SUFFIX)]
    for path in sorted(files, key=lambda path: path.lstat().st_mtime)[: -(_KEPT - 1)]:
        path.unlink(missing_ok=True)
    return folder


# ---- what would be offloaded


@dataclass(frozen=True)
class Group:
    """Nodes that become one graph.

    Attributes:
        nodes: names of the model's nodes.
        operations: MLIR names.
        engine: that takes it.
        declined: engine name → why not, for those asked before.
        custom: it is sent as one custom operation.
    """

    nodes: tuple[str, ...]
    operations: tuple[str, ...]
    engine: str
    declined: Mapping[str, Support]
    custom: bool


@dataclass(frozen=True)
class Unclaimed:
    """A node that no engine takes as a hipDNN operation.

    Attributes:
        node: name of the model's node.
        operation: MLIR name.
        reasons: engine name → why not; the name "" is the translation to a hipDNN graph.
    """

    node: str
    operation: str
    reasons: Mapping[str, Support]


@dataclass(frozen=True)
class Partition:
    """What an offload would do, without compiling.

    Attributes:
        groups: in program order, fusions of hipDNN operations and custom operations.
        unclaimed: what is no hipDNN operation of an engine's, and why; a custom group may have it.
        fates: what became of each node of the model; the numbers of graphs are those of ``groups``.
    """

    groups: tuple[Group, ...]
    unclaimed: tuple[Unclaimed, ...]
    fates: tuple[Fate, ...]


def partition(imported: Imported, *, engines: Sequence[Engine], options: OffloadOptions | None = None) -> Partition:
    """Which nodes would become which graphs. Compiles nothing and leaves the module as it is.

    Args:
        imported: from the front end.
        engines: in the order in which they are asked.
        options: default: `OffloadOptions()`.
    """
    session = _session(imported, engines, options)
    module = imported.module.operation.clone()
    run_passes(module, _PARTITIONING, session)
    groups, unclaimed, alone = [], [], []
    with module.context:
        for op in graphs(module):
            group, missing = _grouped(op, session)
            groups += [group] if group else []
            alone += () if group else Region.of(op).nodes()
            unclaimed += missing
    nodes = [group.nodes for group in groups]
    told = fates(imported.sources, imported.absorbed, nodes, session.report.views, alone)
    return Partition(tuple(groups), tuple(unclaimed), told)


def _grouped(op: Any, session: Session) -> tuple[Group | None, list[Unclaimed]]:
    """The group that a region is, None if no engine takes it; and its operations that are no hipDNN operations."""
    region, custom = Region.of(op), CUSTOM in op.attributes
    answer = session.ask(region.ops, region.inputs, region.outputs, custom=custom)
    names, before = operation_names(region.ops), not_taken(region.ops)
    unclaimed = []
    if before:
        unclaimed = [Unclaimed(node, OPERATOR, before) for node in region.nodes()]
    elif custom or not answer:
        for each in tensor_operations(region.ops):
            label = node_label(each)
            unclaimed.append(Unclaimed(label, each.name, session.report.refused.get(label, answer.declined)))
    if answer.engine is None:
        return None, unclaimed
    return Group(region.nodes(), names, answer.engine.name, {**before, **answer.declined}, custom), unclaimed
