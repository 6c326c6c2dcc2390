"""The execution provider of one session: claims nodes of ONNX Runtime's graphs and compiles them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx

from fusilli_ground.errors import OptionError
from fusilli_ground.spelling import did_you_mean
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep import binding, context, devices, dump, report
from fusilli_plugin.ort_ep.abi import NAME, Api, c_text
from fusilli_plugin.ort_ep.ahead import Ahead, SizedGraph, open_dims
from fusilli_plugin.ort_ep.bodies import CONDITIONAL, Bodies
from fusilli_plugin.ort_ep.engines import engines_for
from fusilli_plugin.ort_ep.errors import ProviderError
from fusilli_plugin.ort_ep.examining import FAILURES, Examiner, Extents
from fusilli_plugin.ort_ep.flops import node_flops
from fusilli_plugin.ort_ep.graphs import (
    SessionGraph,
    attributes_of,
    bound_model,
    boundary,
    model_of,
    node_name,
    read,
    values_of,
)
from fusilli_plugin.ort_ep.groups import Role, group
from fusilli_plugin.ort_ep.nodes import CompiledNode, Policy
from fusilli_plugin.ort_ep.offloading import Compiled, UncompiledError, Verdict, compile_model
from fusilli_plugin.ort_ep.options import ContextSettings, ProviderOptions
from fusilli_plugin.ort_ep.report import NodeReport
from fusilli_plugin.ort_ep.threads import with_threads
from graph_api import FusilliError
from hipdnn_backend.offload.buckets import check_names
from iree_bridge import Device

__all__ = ["Provider"]

_LOG: Final = logging.getLogger(__name__)
_MAX_ROUNDS: Final = 64
_CONTROL: Final = frozenset({"If", "Loop", "Scan"})  # nodes whose bodies ONNX Runtime runs as they are


@dataclass(frozen=True)
class _Claim:
    """Nodes that are claimed together, and what they were compiled to if their shapes are known."""

    indices: tuple[int, ...]
    compiled: Compiled | None


class Provider:
    """See the module. One thread of ONNX Runtime's uses it while a session is made.

    Args:
        api: functions of the ONNX Runtime that it belongs to.
        runtime: its number.
        device: where the session runs.
        entries: the session's settings.
        threads: that the session asks for, 0 for as many as there are cores.

    Raises:
        OptionError: an option is unknown or malformed.
    """

    def __init__(self, api: Api, runtime: int, device: Device, entries: Mapping[str, str], threads: int = 0) -> None:
        self.runtime = runtime
        self.device = device
        self.options = ProviderOptions.from_entries(entries)
        self.context = ContextSettings.from_entries(entries)
        self._api = api
        self._threads = threads
        runs_on = with_threads(device, threads)
        self._place = f"{device.target} {runs_on}"
        self._engines = engines_for(runs_on, self.options.engines, self.options.tune)
        self._nodes: list[NodeReport] = []
        self._kept: list[Compiled] = []  # what was compiled while claiming, until `compile` has taken it
        self._compiled: list[CompiledNode] = []
        self._problems: list[str] = []
        self._unchecked = frozenset(self.options.dims)  # dims of the options that no model was asked for yet
        self._bodies = Bodies()
        self._in_body = False  # of an If: the last graph that was shown
        self._model_path = ""
        self._sized: SizedGraph | None = None
        self._refused: OptionError | None = None
        self._bound: dict[str, np.ndarray[Any, Any]] = {}
        self._examiner = Examiner(api, self._engines, self._assumed(), self._problem)
        self._text: Any = c_text(devices.compatibility_text(device))

    def _assumed(self) -> dict[str, int]:
        """Extents that dims are taken to have while nodes are claimed."""
        return {**{name: sizes[0] for name, sizes in self.options.shapes.items()}, **self.options.dims}

    # ---- claiming

    def capability(self, handle: Any, support: Any) -> None:
        """Tell ONNX Runtime which nodes of a graph are claimed.

        ONNX Runtime swallows what goes wrong here, so it goes to the log and the report; in strict mode a node is
        claimed all the same, so that `compile` is called and can raise.
        """
        graph = self._read(handle)
        self._in_body = graph.parent == CONDITIONAL
        self._model_path = self._model_path or graph.model_path
        self._check_dims(graph)
        verdicts: Mapping[int, Verdict] = {}
        claims: list[_Claim] = []
        try:
            self._check_options(graph)
            extents = self._examiner.extents(graph)
            verdicts = self._verdicts(graph, extents)
            verdicts, claims = self._claims(graph, verdicts, extents)
        except Exception as error:
            self._problem(f"graph '{graph.name}' stays with ONNX Runtime as a whole: {error}", error)
        before = len(self._nodes)
        self._note(graph, verdicts, claims)
        self._bodies.note(graph, range(before, len(self._nodes)))
        for claim in claims:
            self._claim(support, [graph.nodes[index].handle for index in claim.indices])
            self._kept += [claim.compiled] if claim.compiled else []
        if not claims and (self._refused or (self.options.strict and self._complaints())):
            for node in [node for node in graph.nodes if not node.has_subgraphs][:1]:
                self._claim(support, [node.handle])

    def _check_options(self, graph: SessionGraph) -> None:
        """Hold what options say of a model's inputs against them, and learn how its tensors follow from their dims."""
        if graph.is_nested or self._holders(graph):
            return
        self._refused = None
        try:
            self._bound = binding.values_of(graph, self.options.inputs)
            if self.options.shapes:
                check_names(self.options.shapes, open_dims(graph))
        except OptionError as error:
            self._refused = error  # for `compile`, which can raise it
            return
        graph.bound.update(self._bound)
        if self.options.shapes:
            self._sized = SizedGraph(graph, self.options.shapes, lambda sizes: self._examiner.extents(graph, sizes))

    def _read(self, handle: Any) -> SessionGraph:
        graph = read(self._api, handle)
        self._bodies.attach(graph)
        return graph

    def _check_dims(self, graph: SessionGraph) -> None:
        """Warn of dims in the options that the model has not; once, since ONNX Runtime shows a graph several times."""
        if graph.is_nested or not self._unchecked:
            return
        known = {dim: None for name in graph.inputs for dim in graph.values[name].dims or () if isinstance(dim, str)}
        anywhere = {dim for value in graph.values.values() for dim in value.dims or ()}
        for name in sorted(self._unchecked - anywhere):
            _LOG.warning(
                "option 'dims' of %s: no dim without a size is called '%s'%s; in model '%s' there are: %s",
                NAME, name, did_you_mean(name, known), graph.name, ", ".join(known) or "none",
            )  # fmt: skip
        self._unchecked = frozenset()

    def _claim(self, support: Any, handles: Sequence[Any]) -> None:
        options: Any = ffi.new("uint32_t[2]", [23, 1])  # OrtNodeFusionOptions: version, drop_constant_initializers
        array: Any = ffi.new("void *[]", handles)
        self._api.call("EpGraphSupportInfo_AddNodesToFuse", support, array, len(handles), options)

    def _verdicts(self, graph: SessionGraph, extents: Extents) -> dict[int, Verdict]:
        """What the engines say to each node, by its index."""
        refused = {node.index: reason for node in graph.nodes if (reason := self._refusal(graph, node.index))}
        if self._holders(graph):
            return {index: Verdict(Role.NONE, reason=reason) for index, reason in refused.items()}
        found = self._examiner.surveyed(graph, None, extents, refused)
        return found | {index: Verdict(Role.NONE, reason=reason) for index, reason in refused.items()}

    def _refusal(self, graph: SessionGraph, index: int) -> str:
        """Why a node cannot even be shown to the pipeline, "" if it can."""
        node = graph.nodes[index]
        if graph.parent and graph.parent not in _CONTROL:
            return f"it is inside a {graph.parent}, which ONNX Runtime puts other nodes in the place of"
        if node.has_subgraphs and index not in graph.bodies:
            return "ONNX Runtime controls what its bodies do; their nodes are claimed by themselves"
        taken_by = self._api.text("Node_GetEpName", node.handle)
        if taken_by and taken_by != NAME:
            return f"{taken_by} has it"
        for name in (*node.inputs, *node.outputs):
            if name and not graph.values[name].dtype:
                return f"'{name}' is no tensor of numbers of whole bytes"
        return ""

    def _claims(
        self, graph: SessionGraph, verdicts: Mapping[int, Verdict], extents: Extents
    ) -> tuple[dict[int, Verdict], list[_Claim]]:
        """Groups of nodes whose code exists: what does not compile after all is left to ONNX Runtime."""
        verdicts = dict(verdicts)
        edges = _edges(graph)
        holders = self._holders(graph)
        if holders:  # a model with compiled code; what else is in it was left to ONNX Runtime when it was made
            held = Verdict(Role.CORE, engine=NAME)
            return verdicts | dict.fromkeys(holders, held), [_Claim((index,), None) for index in holders]
        done: dict[tuple[int, ...], Compiled | None] = {}
        for _ in range(_MAX_ROUNDS):
            roles = [verdicts[node.index].role if node.index in verdicts else Role.NONE for node in graph.nodes]
            failed = False
            groups = group(roles, edges, self.options.min_nodes)
            for indices in groups:
                if indices in done:
                    continue
                try:
                    done[indices], new = self._try(graph, indices, verdicts, extents)
                except Exception as error:
                    new = self._given_up(graph, indices, verdicts, error)
                failed |= bool(new)
                verdicts |= new
            if not failed:
                return verdicts, [_Claim(indices, done[indices]) for indices in groups]
        return verdicts, []

    def _given_up(
        self, graph: SessionGraph, indices: Sequence[int], verdicts: Mapping[int, Verdict], error: Exception
    ) -> dict[int, Verdict]:
        """What becomes of a group that does not compile: the nodes at fault are left out, if they are known.

        It is no problem if an engine was only to try the parts of them that are no hipDNN operations.
        """
        named = error.nodes if isinstance(error, UncompiledError) else {}
        faults = {index: named[node_name(index)] for index in indices if node_name(index) in named}
        if faults and all(verdicts[index].rest for index in faults):
            assert isinstance(error, UncompiledError)
            if error.reproducer is not None:
                error.reproducer.unlink(missing_ok=True)
            _LOG.info("graph '%s': %s", graph.name, error)
        else:
            self._problem(f"{len(indices)} nodes from {graph.nodes[indices[0]].label} on: {error}", error)
        reasons = faults or dict.fromkeys(indices, f"its group does not compile: {error}")
        return {index: Verdict(Role.NONE, reason=reason) for index, reason in reasons.items()}

    def _holders(self, graph: SessionGraph) -> list[int]:
        """The nodes that hold code which this provider compiled in another session."""
        return [
            node.index
            for node in graph.nodes
            if (node.op_type, node.domain) == (context.OP_TYPE, context.DOMAIN)
            and attributes_of(self._api, node).get("source") == NAME.encode()
        ]

    def _try(
        self, graph: SessionGraph, indices: tuple[int, ...], verdicts: Mapping[int, Verdict], extents: Extents
    ) -> tuple[Compiled | None, dict[int, Verdict]]:
        """Compile a group now, while ONNX Runtime can still have its nodes.

        If its shapes are not known, it is shown to the engines alone, since that is what they will get: without nodes
        before it, an operand may be none that has to be known.

        Returns:
            What it was compiled to, if its shapes are known, and what is said differently of its nodes now.
        """
        inputs, outputs = boundary(graph, indices)
        if all(graph.values[name].is_static for name in inputs) and not self._is_late():
            return self._compile_model(model_of(graph, indices, inputs, outputs, extents)), {}
        if all(verdicts[node.index].role is not Role.NONE for node in graph.nodes) and len(indices) == len(graph.nodes):
            return None, {}  # it was shown as it is
        refused: dict[int, str] = {}
        found = self._examiner.surveyed(graph, indices, extents, refused)
        new = {index: Verdict(Role.NONE, reason=reason) for index, reason in refused.items()}
        return None, new | {index: verdict for index, verdict in found.items() if verdict.role is Role.NONE}

    def _is_late(self) -> bool:
        """Whether groups are compiled when they first run.

        Those in bodies of an If are: it may be that no run takes that branch, or that the If is claimed as a whole.
        """
        return self._in_body and not self.options.strict and not self.context.enabled

    # ---- compiling

    def compile(self, graphs: Sequence[Any], fused: Sequence[Any]) -> list[CompiledNode]:
        """What ONNX Runtime will run for the groups that it gave us.

        Raises:
            ProviderError: in strict mode, if claiming left something out.
            OffloadError, EngineError: compiling failed.
            OptionError: sizes are given for dims that no input has.
        """
        if self._refused is not None:
            raise self._refused
        complaints = self._complaints() if self.options.strict else []
        if complaints:
            raise ProviderError(f"{NAME} is strict: " + "; ".join(complaints[:8]))
        made: list[CompiledNode] = []
        try:
            for pair in zip(graphs, fused, strict=True):
                made.append(self._compile_group(*pair))
        except BaseException:
            for node in made:
                node.close()
            raise
        self._compiled += made
        self._kept.clear()
        if not self._in_body:
            self._bodies.clear()
        return made

    def _compile_group(self, handle: Any, fused: Any) -> CompiledNode:
        graph = self._read(handle)
        inputs, outputs = values_of(self._api, fused)
        inputs = tuple(name for name in inputs if name not in graph.constants)
        name = self._api.text("Node_GetName", fused)
        holder = self._holders(graph)
        restored = context.Restored(())
        if holder:
            attributes = attributes_of(self._api, graph.nodes[holder[0]])
            path = graph.model_path or self._model_path
            restored = context.restore(attributes, path, str(self.device.target), self._engines)
            node = graph.nodes[holder[0]]
            restored = restored.ordered(
                [node.inputs.index(each) for each in inputs], [node.outputs.index(each) for each in outputs]
            )
        # dims that are not known are filled in when they are
        shapes = {each: graph.values[each].dims or () for each in inputs}
        dims = {each: [dim if isinstance(dim, int) else None for dim in shape] for each, shape in shapes.items()}
        model = None if holder else model_of(graph, range(len(graph.nodes)), inputs, outputs, dims)
        try:
            node = CompiledNode(
                api=self._api,
                runtime=self.runtime,
                name=name,
                labels=[node.label for node in graph.nodes],
                inputs=[graph.values[each] for each in inputs],
                outputs=[graph.values[each] for each in outputs],
                model=model,
                compiled=restored.codes[0] if holder and not restored.opened else None,
                ready=restored.codes if restored.opened else (),
                device=self.device,
                compile_=self._compile_model,
                late=self._is_late(),
                bound={inputs.index(each): value for each, value in self._bound.items() if each in inputs},
                ahead=Ahead(restored.opened) if holder else self._ahead(graph, inputs, outputs),
                policy=Policy(
                    max_shapes=self.options.max_shapes,
                    strict=self.options.strict,
                    on_new_shape=self.options.on_new_shape,
                    threads=self._threads,
                ),
            )
        except FAILURES as error:
            labels = ", ".join(node.label for node in graph.nodes[:4])
            raise FusilliError(f"node '{name}' ({labels}{', …' if len(graph.nodes) > 4 else ''}): {error}") from error
        return node

    def _ahead(self, graph: SessionGraph, inputs: Sequence[str], outputs: Sequence[str]) -> Ahead | None:
        """The shapes that a group is compiled for in advance; None if the option names none."""
        if self._sized is None or all(graph.values[name].is_static for name in inputs):
            return None
        indices = range(len(graph.nodes))
        labels = {node_name(node.index): node.label for node in graph.nodes}
        found = self._sized.ahead(
            inputs, lambda dims: bound_model(model_of(graph, indices, inputs, outputs, dims), self._bound), labels
        )
        if found.problem:
            self._problem(f"{len(graph.nodes)} nodes are not compiled in advance: {found.problem}", None)
        return found

    def _compile_model(self, model: onnx.ModelProto) -> Compiled:
        compiled = compile_model(
            bound_model(model, self._bound), self._engines, place=self._place, on_gpu=self.device.is_gpu
        )
        if self.options.dump is not None:
            dump.write(self.options.dump, model, compiled)
        return compiled

    # ---- what a user asks

    def _problem(self, text: str, error: BaseException | None) -> None:
        self._problems.append(text)
        _LOG.error("%s", text, exc_info=error if error and _LOG.isEnabledFor(logging.DEBUG) else None)

    def _complaints(self) -> list[str]:
        """What strict mode does not accept."""
        left = [
            f"{node.label} stays with ONNX Runtime although {node.engine} supports it"
            for node in self._nodes
            if node.engine and not node.group
        ]
        return self._problems + left

    def _note(self, graph: SessionGraph, verdicts: Mapping[int, Verdict], claims: Sequence[_Claim]) -> None:
        start = 1 + max((node.group for node in self._nodes), default=0)
        group_of = {index: start + number for number, claim in enumerate(claims) for index in claim.indices}
        for node in graph.nodes:
            verdict = verdicts.get(node.index, Verdict(Role.NONE, reason="it was not examined"))
            number = group_of.get(node.index, 0)
            self._nodes.append(
                NodeReport(
                    name=node.name,
                    op_type=node.op_type,
                    domain=node.domain,
                    group=number,
                    engine=verdict.engine if number or verdict.role is Role.CORE else "",
                    reason="" if number else _left_out(verdict),
                    flops=node_flops(graph, node),
                )
            )
            for inner in self._bodies.reports(node) if number else ():  # it has gone into the group with its node
                self._nodes[inner] = replace(self._nodes[inner], group=number, reason="")

    def report(self) -> report.Report:
        """Where the nodes of this session run."""
        return report.Report(
            device=str(self.device),
            nodes=tuple(self._nodes),
            problems=tuple(self._problems),
            specialisations={node.name: node.specialisations for node in self._compiled},
            elsewhere={node.name: dict(node.elsewhere) for node in self._compiled if node.elsewhere},
            shapes={node.name: node.counts() for node in self._compiled},
            padding={
                node.name: {dim.name: dim.refusal for dim in node.ahead.opened}
                for node in self._compiled
                if node.ahead.opened
            },
            numbers=report.group_numbers(self._nodes, {node.name: node.labels for node in self._compiled}),
            time=time.time(),
        )

    def set_options(self, entries: Mapping[str, str]) -> None:
        """Options that may change while a session lives.

        Raises:
            OptionError: one is unknown.
        """
        for key, value in entries.items():
            if key == report.REQUEST:
                report.answer(value, self.report())
            elif not key.startswith("ep.dynamic."):  # ONNX Runtime's own hints, which have no meaning here
                raise OptionError(f"{NAME} has no option '{key}' that can change while a session lives")

    def compatibility_text(self) -> Any:
        """A C string about the code that was compiled, valid as long as this object."""
        return self._text

    def context_nodes(self, nodes: Sequence[CompiledNode]) -> list[Any]:
        """EPContext nodes that hold compiled groups.

        Raises:
            ProviderError: a group's shapes are known at run time only.
            ProviderError: the code cannot be written.
            EngineError: an engine cannot serialize its plans.
        """
        where = context.place(self.context.path, self._model_path, embed=self.context.embed)
        made: list[Any] = []
        for node in nodes:
            code = self.context.prefix + node.name
            target = str(self.device.target)
            data = context.pack(
                code, [context.variant_of(each, target, sizes, node.ahead.opened) for sizes, each in node.compiled()]
            )
            inputs, outputs = ([value.name for value in values] for values in (node.inputs, node.outputs))
            # ONNX Runtime refuses a node of another name than its own, so the prefix is that of the code only
            made.append(context.create_node(self._api, node.name, inputs, outputs, where.attributes(code, data)))
        return made

    def close(self) -> None:
        """The session is gone; its compiled groups are released one by one."""
        self._kept.clear()
        self._compiled.clear()


def _edges(graph: SessionGraph) -> dict[int, set[int]]:
    """Index of a node → those that use its results."""
    return {
        node.index: {user for name in node.outputs if name for user in graph.consumers.get(name, ())}
        for node in graph.nodes
    }


def _left_out(verdict: Verdict) -> str:
    """Why a node is in no group."""
    if verdict.role is Role.CORE:
        return verdict.reason or "its group would be smaller than min_nodes"
    if verdict.role is Role.FREE:
        return "nothing that is claimed needs it"
    if verdict.role is Role.LEFTOVER:  # an engine would take it along: what it is not is not why it is left
        alone = f"; alone it is no hipDNN operation: {verdict.reason}" if verdict.reason else ""
        return f"it does not stand between nodes that are claimed{alone}"
    return verdict.reason or "no engine takes it"
