"""What the passes of one pipeline run share: the engines and what they said, the options, the compiled graphs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from hipdnn_backend.engine import Engine, Plan, Support, is_fallback
from hipdnn_backend.errors import WireError
from hipdnn_backend.offload.report import Progress, Report
from hipdnn_backend.offload.to_wire import NotTranslated, Translation, translate, translate_leftover
from hipdnn_backend.onnx_op import carries_onnx
from hipdnn_backend.wire import WireGraph, encode_graph

__all__ = ["Answer", "CompiledGraph", "Layout", "OffloadOptions", "Session", "canonical"]

_LOG: Final = logging.getLogger(__name__)
_NO_ENGINE: Final = Support.no("no engine was given", rule="engines")


def _default_threads() -> int:
    return 2 * len(os.sched_getaffinity(0))


class Layout(StrEnum):
    """How the tensors between graphs lie in memory.

    ROW_MAJOR: in the order of the model's dims.
    CHANNELS_LAST: N, spatial, C wherever engines take it.
    AUTO: channels-last if most graphs have a convolution and no engine prefers row-major.
    """

    ROW_MAJOR = "row-major"
    CHANNELS_LAST = "channels-last"
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    """How a model is offloaded.

    Attributes:
        fuse: operations are joined into graphs as large as an engine takes; False: each gets its own.
        leftovers: what no engine takes as hipDNN operations is sent to them as custom operations.
        layout: of the tensors between graphs.
        threads: graphs that are compiled at the same time; engines may have fewer workers.
        progress: told after each compiled graph, from the thread that runs the pipeline.
        reproducers: folder for the files that failing passes leave; None: the system's folder for temporary files.
    """

    fuse: bool = True
    leftovers: bool = True
    layout: Layout = Layout.AUTO
    threads: int = field(default_factory=_default_threads)
    progress: Callable[[Progress], None] | None = None
    reproducers: Path | None = None


@dataclass(frozen=True)
class CompiledGraph:
    """A graph of the model and the plan that runs it. Equal graphs share one plan.

    Attributes:
        name: e.g. ``hipdnn_graph_0``; the IR refers to it.
        wire: the graph in hipDNN's format.
        engine: whose plan it is.
        plan: ready to execute.
        inputs: uid per operand of ``ins``; None: the graph does not read that operand.
        outputs: uid per operand of ``outs``.
        nodes: names of the model's nodes that it computes.
        declined: engine name → why it did not get the graph, for those asked before ``engine``.
        workspace_size: bytes.
        custom: its operations went to the engine as one custom operation.
        varies: its results may differ from run to run on the same operands.
        arranged: uids of operands whose elements lie in memory as the graph's strides say, not in row-major order.
    """

    name: str
    wire: bytes
    engine: Engine
    plan: Plan
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    nodes: tuple[str, ...]
    declined: Mapping[str, Support]
    workspace_size: int
    custom: bool = False
    varies: bool = False
    arranged: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Answer:
    """What the engines said to some operations as one graph.

    Attributes:
        engine: the first that takes them, None if none does.
        declined: engine name → why not, for those that were asked and declined. The name "" stands for all of them
            if the operations have no wire form.
        translation: the graph, None if there is none.
    """

    engine: Engine | None
    declined: Mapping[str, Support]
    translation: Translation | None = None

    def __bool__(self) -> bool:
        return self.engine is not None


def canonical(graph: WireGraph) -> WireGraph:
    """A graph with numbers for names: equal for graphs that compute the same."""
    tensors = tuple(tensor.replace(name="") for tensor in graph.tensors)
    nodes = tuple(node.replace(name=str(number)) for number, node in enumerate(graph.nodes))
    return graph.replace(name="", tensors=tensors, nodes=nodes, id=None)


@dataclass
class Session:
    """One pipeline run.

    Attributes:
        engines: in the order in which they are asked.
        options: see `OffloadOptions`.
        whole: node → what it is a part of, see `Imported.whole`.
        constants: numbers of the function's arguments that are constants.
        graphs: compiled graphs by name; filled by ``hipdnn-graph-to-executable``.
        report: what happened, filled by every pass.
    """

    engines: tuple[Engine, ...] = ()
    options: OffloadOptions = field(default_factory=OffloadOptions)
    whole: Mapping[str, str] = field(default_factory=dict)
    constants: range = range(0)
    graphs: dict[str, CompiledGraph] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    _said: dict[tuple[str, WireGraph], Support] = field(default_factory=dict)

    def ask(self, ops: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *, custom: bool = False) -> Answer:
        """Which engine takes some operations as one graph.

        Args:
            ops: in program order, with the constants that they need.
            inputs: values that come in.
            outputs: values that go out.
            custom: as one custom operation.
        """
        try:
            translation = (translate_leftover if custom else translate)(ops, inputs, outputs, "graph")
        except NotTranslated as error:
            answer = Answer(None, {"": Support.no(error.reason, node=error.location, rule="translation")})
        else:
            answer = self.choose(translation, canonical(translation.graph))
        if not answer and _LOG.isEnabledFor(logging.DEBUG):
            why = "; ".join(f"{name}: {support.reason}" for name, support in answer.declined.items())
            _LOG.debug("declined %s: %s", [op.name for op in ops if "constant" not in op.name], why)
        return answer

    def choose(
        self, translation: Translation, key: WireGraph, *, failed: Mapping[str, Support] | None = None
    ) -> Answer:
        """The first engine that takes a graph. A fallback engine is asked about ONNX nodes only.

        Args:
            translation: the graph.
            key: its `canonical` form.
            failed: engines that shall not be asked, and why.
        """
        declined = dict(failed or {})
        for engine in self.engines:
            if engine.name in declined or (is_fallback(engine) and not carries_onnx(key)):
                continue
            support = self._support(engine, key)
            if support:
                return Answer(engine, declined, translation)
            declined[engine.name] = self._named(support, translation)
        return Answer(None, declined or {"": _NO_ENGINE}, translation)

    def _support(self, engine: Engine, graph: WireGraph) -> Support:
        key = (engine.name, graph)
        if key not in self._said:
            try:
                self._said[key] = engine.support(encode_graph(graph))
            except WireError as error:
                self._said[key] = Support.no(str(error), rule="wire")
        return self._said[key]

    @staticmethod
    def _named(support: Support, translation: Translation) -> Support:
        """The answer to a canonical graph with the node's own name."""
        nodes = translation.graph.nodes
        if support.node.isdecimal() and int(support.node) < len(nodes):
            name = nodes[int(support.node)].name
            return Support.no(support.reason, node=name, rule=support.rule)
        return support
