"""Shapes for which the groups of a session are compiled before it runs: option ``shapes``.

How a group's inputs follow from the dims that have sizes is learned from the whole graph, since only there a tensor
between two groups is known to have a row for each element of a batch. It is inferred with a few sizes of each dim; the
other dims have one size meanwhile, and then another, which tells whether an extent follows from two of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import onnx

from fusilli_plugin.ort_ep.graphs import SessionGraph
from hipdnn_backend.offload.buckets import Dims, Extent, OpenDim, Sizes, combinations
from hipdnn_backend.offload.frontend.graph import OnnxGraph
from hipdnn_backend.offload.frontend.loading import Unfolded, folded
from hipdnn_backend.offload.frontend.padding import NotPaddableError, padded_ends, probe_sizes

__all__ = ["Ahead", "SizedGraph", "open_dims"]

_LOG: Final = logging.getLogger(__name__)
Extents = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Ahead:
    """What a group is compiled for in advance.

    Attributes:
        opened: the dims of the option that reach it.
        shapes: dims of its inputs, for each of which there shall be code.
        problem: why there are none, "" if that is as it should be.
    """

    opened: tuple[OpenDim, ...] = ()
    shapes: tuple[Dims, ...] = ()
    problem: str = ""


def open_dims(graph: SessionGraph) -> dict[str, tuple[int | str | None, ...]]:
    """The dims of a graph's inputs, by name."""
    return {name: graph.values[name].dims or () for name in graph.inputs}


class SizedGraph:
    """Extents of a graph's tensors with different sizes of its open dims.

    Args:
        graph: a whole model as ONNX Runtime shows it.
        sizes: what the option says.
        infer: gives the extents of all tensors with sizes of some dims.
    """

    def __init__(self, graph: SessionGraph, sizes: Sizes, infer: Callable[[Mapping[str, int]], Extents]) -> None:
        self._sizes = sizes
        self._fixed = {
            name: tuple(isinstance(dim, int) for dim in value.dims or ()) for name, value in graph.values.items()
        }
        self.probes = {name: probe_sizes(each) for name, each in sizes.items()}
        base = {name: each[0] for name, each in self.probes.items()}
        other = {name: each[1] for name, each in self.probes.items()}
        keys = [
            dim or f"{name}.{axis}"
            for name, dims in open_dims(graph).items()
            for axis, dim in enumerate(dims)
            if not isinstance(dim, int)
        ]
        self._base = infer(base)
        self._with = {name: {size: infer({**base, name: size}) for size in each} for name, each in self.probes.items()}
        self._beside = {name: [infer({**other, name: size}) for size in each[:2]] for name, each in self.probes.items()}
        # dims without sizes have another number than the one that was guessed
        self._elsewhere = infer({**{key: 37 + number for number, key in enumerate(keys)}, **base})

    def ahead(
        self, inputs: Sequence[str], model_with: Callable[[Extents], onnx.ModelProto], labels: Mapping[str, str]
    ) -> Ahead:
        """What a group is compiled for in advance.

        Args:
            inputs: names of its inputs.
            model_with: gives the group with extents of these.
            labels: name of a node in that → the node for people.
        """
        missing = next((name for name in inputs if name not in self._base), None)
        if missing is not None:
            return Ahead(problem=f"the dims of '{missing}' are not known")
        opened = []
        for name in self._sizes:
            found = self._extents(name, inputs)
            if isinstance(found, str):
                return Ahead(problem=found)
            if found:
                opened.append(OpenDim(name, self._sizes[name], found))
        left = self._undetermined(inputs, opened)
        if left:
            return Ahead(problem=left)
        made = tuple(self._analysed(each, inputs, model_with, labels) for each in opened)
        base = [list(self._base[name]) for name in inputs]
        return Ahead(made, tuple(dict.fromkeys(self._dims(base, made, bucket) for bucket in combinations(self._sizes))))

    @staticmethod
    def _dims(base: Sequence[Sequence[int]], opened: Sequence[OpenDim], bucket: Mapping[str, int]) -> Dims:
        made = [list(dims) for dims in base]
        for each in opened:
            for at in each.inputs:
                made[at.number][at.axis] = at.per * bucket[each.name]
        return tuple(map(tuple, made))

    def _extents(self, name: str, inputs: Sequence[str]) -> tuple[Extent, ...] | str:
        """Where a dim is in a group's inputs; a text says why that is not so simple."""
        found: list[Extent] = []
        probes = self.probes[name]
        for number, value in enumerate(inputs):
            for axis, start in enumerate(self._base[value]):
                extents = [self._with[name][size].get(value, ())[axis : axis + 1] for size in probes]
                if all(each == (start,) for each in extents):
                    continue
                per = start // probes[0]
                if not per or any(each != (per * size,) for each, size in zip(extents, probes, strict=True)):
                    return f"dim {axis} of '{value}' is no multiple of '{name}'"
                beside = [each.get(value, ())[axis : axis + 1] for each in self._beside[name]]
                if any(each != (per * size,) for each, size in zip(beside, probes, strict=False)):
                    return f"dim {axis} of '{value}' follows from '{name}' and from other dims"
                found.append(Extent(number, axis, per))
        return tuple(found)

    def _undetermined(self, inputs: Sequence[str], opened: Sequence[OpenDim]) -> str:
        """An extent of a group's inputs that sizes of the dims do not tell, "" if there is none."""
        told = {(at.number, at.axis) for each in opened for at in each.inputs}
        for number, value in enumerate(inputs):
            for axis, extent in enumerate(self._base[value]):
                fixed = self._fixed.get(value, ())
                if (number, axis) in told or (axis < len(fixed) and fixed[axis]):
                    continue
                if self._elsewhere.get(value, ())[axis : axis + 1] != (extent,):
                    return f"dim {axis} of '{value}' is open, and the option gives no sizes for it"
        return ""

    def _analysed(
        self,
        dim: OpenDim,
        inputs: Sequence[str],
        model_with: Callable[[Extents], onnx.ModelProto],
        labels: Mapping[str, str],
    ) -> OpenDim:
        def at(size: int) -> tuple[Unfolded, OnnxGraph]:
            extents = self._with[dim.name][size]
            return folded(model_with({name: extents[name] for name in inputs}))

        try:
            ends = padded_ends(at, self.probes[dim.name])
        except NotPaddableError as error:
            what = labels.get(error.node, error.what)
            return replace(dim, refusal=f"{what}: {error.reason}" if what else error.reason)
        if ends.inputs != dim.inputs:
            return replace(dim, refusal="its inputs have the dim in other places than the graph says")
        return replace(dim, outputs=ends.outputs)
