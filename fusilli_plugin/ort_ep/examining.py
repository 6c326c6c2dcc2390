"""What the engines say to the nodes of a graph, and to some of them alone: nothing is compiled."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import onnx

from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import Api, OrtError
from fusilli_plugin.ort_ep.extents import assumed_extents
from fusilli_plugin.ort_ep.graphs import SessionGraph, bound_model, boundary, model_of, node_name, read_by
from fusilli_plugin.ort_ep.kernels import Kernels
from fusilli_plugin.ort_ep.offloading import Verdict, survey
from graph_api import FusilliError
from hipdnn_backend.engine import Engine
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.errors import ModelError, OffloadError, PassError

__all__ = ["FAILURES", "Examiner", "Extents"]

_LOG: Final = logging.getLogger(__name__)
_MAX_ROUNDS: Final = 64
_OPSET: Final = "opset"  # what the front end calls a model of another version of ONNX than it knows
_MAX_PROBED: Final = 64 << 20  # bytes that are made to find out the dims of a node's results
FAILURES: Final = (FusilliError, OffloadError, EngineError, OrtError, ValueError, RuntimeError, NotImplementedError)
"""What the pipeline and the engines raise."""

Extents = Mapping[str, tuple[int, ...]]
"""Extents that a graph's tensors are taken to have."""


class Examiner:
    """Shows graphs to engines.

    Args:
        api: functions of the ONNX Runtime.
        engines: in the order in which they are asked.
        dims: extents that the user wants named dims to be taken for.
        problem: is told what goes wrong inside.
    """

    def __init__(
        self,
        api: Api,
        engines: Sequence[Engine],
        dims: Mapping[str, int],
        problem: Callable[[str, BaseException], None],
    ) -> None:
        self._api = api
        self._engines = engines
        self._dims = dims
        self._problem = problem

    def surveyed(
        self, graph: SessionGraph, indices: Iterable[int] | None, extents: Extents, refused: dict[int, str]
    ) -> dict[int, Verdict]:
        """What the engines say to nodes that are shown together; ``refused`` gets those that cannot be shown.

        A node that the pipeline fails for costs that node: the others are shown without it.
        """
        wanted = [node.index for node in graph.nodes] if indices is None else list(indices)
        for _ in range(_MAX_ROUNDS):
            chosen = _with_known_boundary(graph, wanted, refused, extents)
            if not chosen:
                return {}
            try:
                return self._survey(graph, chosen, extents)
            except FAILURES as error:
                faults = self._faults(graph, chosen, extents, error)
                if not faults:
                    raise
                refused.update(faults)
        return {}

    def _survey(self, graph: SessionGraph, chosen: Sequence[int], extents: Extents) -> dict[int, Verdict]:
        inputs, outputs = boundary(graph, chosen)
        found = survey(bound_model(model_of(graph, chosen, inputs, outputs, extents), graph.bound), self._engines)
        return {index: found[node_name(index)] for index in chosen}

    def _faults(
        self, graph: SessionGraph, chosen: Sequence[int], extents: Extents, error: BaseException
    ) -> dict[int, str]:
        """The nodes that an error of `_survey` is due to, and why; none if that cannot be told."""
        reason = f"{error.reason} [{error.rule}]" if isinstance(error, ModelError) else str(error)
        index = _at_fault(graph, error.node, chosen) if isinstance(error, ModelError) else None
        if index is not None:
            return {index: reason}
        if isinstance(error, ModelError) and error.rule == _OPSET:
            return dict.fromkeys(chosen, reason)
        if len(chosen) == 1:
            if not isinstance(error, ModelError):  # the model is not to blame
                self._problem(f"{graph.nodes[chosen[0]].label}: {reason}", error)
            return {chosen[0]: reason}
        if isinstance(error, PassError) and error.reproducer is not None:
            error.reproducer.unlink(missing_ok=True)  # that of the node alone is the one to look at
        middle = len(chosen) // 2
        for half in (chosen[:middle], chosen[middle:]):
            try:
                self._survey(graph, half, extents)
            except FAILURES as inner:
                return self._faults(graph, half, extents, inner)
        return {}

    def extents(self, graph: SessionGraph, sizes: Mapping[str, int] | None = None) -> Extents:
        """Extents for the graph's tensors; see `assumed_extents`. ``sizes`` count more than what the user wants."""
        try:
            return assumed_extents(graph, {**self._dims, **(sizes or {})}, partial(self._probe, graph))
        except (OrtError, ValueError, RuntimeError) as error:
            self._problem(f"graph '{graph.name}': the dims of its tensors are not inferred: {error}", error)
            return {name: _ints(value.dims) for name, value in graph.values.items() if value.is_static}

    def _probe(
        self,
        graph: SessionGraph,
        index: int,
        dims: Mapping[str, Sequence[int]],
        values: Mapping[str, np.ndarray[Any, Any]],
    ) -> Mapping[str, tuple[int, ...]] | None:
        """Dims of what a node gives, found by running it in ONNX Runtime: on zeros, but for ``values``."""
        node = graph.nodes[index]
        inputs = [name for name in dict.fromkeys(read_by(graph, node)) if name in dims and name not in graph.constants]
        outputs = [name for name in node.outputs if name and graph.values[name].dtype]
        sizes = [math.prod(dims[name]) * _itemsize(graph, name) for name in inputs]
        if not outputs or sum(sizes) > _MAX_PROBED:
            return None
        try:
            # without dims: of an If, the branch that is not taken may not fit them
            model = model_of(graph, [index], inputs, outputs, {name: [None] * len(dims[name]) for name in inputs})
            types = [(name, graph.values[name].dtype) for name in inputs]
            kernels = Kernels(self._api, model.SerializeToString(), types, outputs, 1)
            zeros = [bytearray(max(size, 1)) for size in sizes]
            found: list[tuple[int, ...]] = []
            for name, data in zip(inputs, zeros, strict=True):
                value = values.get(name, graph.bound.get(name))
                if value is not None:
                    data[:] = value.tobytes() or b"\0"
            places = [int(ffi.cast("uintptr_t", ffi.from_buffer(each))) for each in zeros]
            kernels.run(
                [(place, dims[name], size) for place, name, size in zip(places, inputs, sizes, strict=True)],
                lambda results: found.extend(result.dims for result in results),
            )
        except (OrtError, ValueError, RuntimeError) as error:
            _LOG.debug("%s is not probed: %s", node.label, error)
            return None
        return dict(zip(outputs, found, strict=True))


def _with_known_boundary(
    graph: SessionGraph, wanted: Iterable[int], refused: dict[int, str], extents: Extents
) -> list[int]:
    """The nodes that are not refused; those that read from outside what nothing is known of are refused, too."""
    wanted = list(wanted)
    while True:
        chosen = [index for index in wanted if index not in refused]
        inputs, _ = boundary(graph, chosen)
        unknown = {name for name in inputs if name not in extents}
        if not unknown:
            return chosen
        for index in chosen:
            bad = next((name for name in read_by(graph, graph.nodes[index]) if name in unknown), "")
            if bad:
                refused[index] = f"the rank of '{bad}' is not known before a run"


def _ints(dims: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(int(dim) for dim in dims or ())


def _itemsize(graph: SessionGraph, name: str) -> int:
    return onnx.helper.tensor_dtype_to_np_dtype(graph.values[name].dtype).itemsize


def _at_fault(graph: SessionGraph, name: str, chosen: Iterable[int]) -> int | None:
    """The node that an error of the pipeline is about: it names the node or one of its results."""
    for index in chosen:
        if name and (name == node_name(index) or name in graph.nodes[index].outputs):
            return index
    return None
