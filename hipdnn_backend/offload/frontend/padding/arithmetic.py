"""What a model computes from the extents of its tensors: sums and products, or the dim is not padded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.folding import evaluate
from hipdnn_backend.offload.frontend.graph import attributes, captures, subgraphs
from hipdnn_backend.offload.frontend.padding.walk import NotPaddableError, label

__all__ = ["Arithmetic", "Raw"]

Array = np.ndarray[Any, Any]

_DEGREE: Final = 2
_ZERO: Final = np.zeros((), np.int64)
_KEPT: Final = frozenset({"Identity", "Cast", "Concat", "Gather", "Slice", "Split", "Squeeze", "Unsqueeze", "Reshape"})
"""Operators that only move what they read; what follows the first operand (of Concat, all are the first) says how."""
_MADE: Final = frozenset({"Range", "ConstantOfShape", "Expand", "Tile"})
_ADDED: Final = frozenset({"Add", "Sub"})


class Raw(Protocol):
    """A model before anything is folded."""

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """In topological order."""
        ...

    @property
    def constants(self) -> Mapping[str, Array]:
        """Initializers."""
        ...

    @property
    def opsets(self) -> Mapping[str, int]:
        """Domain → version."""
        ...


class Arithmetic:
    """What a model computes from extents and constants alone: of each element, the degree of the polynomial that it is.

    A tensor whose own extents follow from the size counts as if all of its elements did.
    """

    def __init__(self, raw: Raw, dims: Callable[[str], Sequence[tuple[int, ...]]]) -> None:
        self._raw = raw
        self._dims = dims
        self._values: dict[str, Array | None] = {name: raw.constants[name] for name in raw.constants}
        self._degrees: dict[str, Array] = {}

    def check(self) -> None:
        """Look at all nodes.

        Raises:
            NotPaddableError: one computes with extents other than by sums and products.
        """
        for node in self._raw.nodes:
            reads = [name for name in (*node.input, *captures(node)) if name]
            if any(True for _ in subgraphs(node)):
                self._check_bodies(node, any(self._degree(name).any() for name in reads))
            elif node.op_type in ("Shape", "Size") and not node.domain:
                self._measured(node)
            elif (node.op_type == "Constant" and not node.domain) or (reads and all(map(self._is_known, reads))):
                self._computed(node, reads)

    def _is_known(self, name: str) -> bool:
        return name in self._values

    def _degree(self, name: str) -> Array:
        return self._degrees.get(name, _ZERO)

    @staticmethod
    def _check_bodies(node: onnx.NodeProto, decided: bool) -> None:
        if decided:
            raise NotPaddableError("it is decided by extents, or its bodies read some", node.name, label(node))
        if any(each.op_type in ("Shape", "Size") for body in subgraphs(node) for each in body.node):
            raise NotPaddableError("its bodies read extents", node.name, label(node))

    def _measured(self, node: onnx.NodeProto) -> None:
        dims = self._dims(node.input[0])
        open_ = np.array([len(set(extents)) > 1 for extents in zip(*dims, strict=True)], np.int64)
        value = np.array(dims[0], np.int64)
        if node.op_type == "Size":
            value, open_ = value.prod(), open_.sum()
        else:
            given = attributes(node)
            part = slice(given.get("start", 0), given.get("end", len(value)))
            value, open_ = value[part], open_[part]
        self._put(node, [np.asarray(value)], [np.asarray(open_)])

    def _put(self, node: onnx.NodeProto, values: Sequence[Array | None], degrees: Sequence[Array]) -> None:
        for name, value, degree in zip(node.output, values, degrees, strict=False):
            if name:
                self._values[name] = value
                if degree.any():
                    self._degrees[name] = degree

    def _computed(self, node: onnx.NodeProto, reads: Sequence[str]) -> None:
        values = {name: value for name in reads if (value := self._values[name]) is not None}
        known = len(values) == len(set(reads))
        results = evaluate(node, self._raw.opsets, values, {}) if known else None
        found: Sequence[Array | None] = results if results is not None else [None] * len(node.output)
        if not any(self._degree(name).any() for name in reads):
            self._put(node, found, [_ZERO] * len(node.output))
            return
        degrees = None if node.domain or results is None else self._followed(node, values, results)
        if degrees is None or any(degree.max(initial=0) > _DEGREE for degree in degrees):
            raise NotPaddableError("it computes with extents, other than by sums and products", node.name, label(node))
        self._put(node, found, degrees)

    def _followed(
        self, node: onnx.NodeProto, values: Mapping[str, Array], results: Sequence[Array]
    ) -> Sequence[Array] | None:
        """The degrees of a node's results; None if they are no polynomials."""
        full = {name: np.broadcast_to(self._degree(name), value.shape) for name, value in values.items()}
        moved = list(node.input) if node.op_type == "Concat" else list(node.input[:1])
        steering = [name for name in node.input if name and name not in moved]
        if node.op_type in _MADE or (node.op_type in _KEPT and any(full[name].any() for name in steering)):
            return [
                np.full(each.shape, max(int(degree.max(initial=0)) for degree in full.values())) for each in results
            ]
        if node.op_type in _KEPT:
            plain = onnx.NodeProto()
            plain.CopyFrom(node)
            if node.op_type == "Cast":
                return [full[node.input[0]]]
            return evaluate(plain, self._raw.opsets, {**values, **{name: np.array(full[name]) for name in moved}}, {})
        if node.op_type in _ADDED:
            return [np.maximum(full[node.input[0]], full[node.input[1]])]
        if node.op_type == "Mul":
            return [full[node.input[0]] + full[node.input[1]]]
        return None
