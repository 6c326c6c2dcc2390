"""What the front end hands over: a torch module with static shapes, and what its arguments are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from hipdnn_backend.offload.node_outcomes import Absorbed

__all__ = ["Constant", "Declared", "Imported", "TensorInfo"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that a run takes or gives.

    Attributes:
        name: as in the model.
        dims: static.
        dtype: numpy's, ``ml_dtypes`` for bfloat16 and float8.
    """

    name: str
    dims: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Declared:
    """An input as the file declares it.

    Attributes:
        name: as in the model.
        dims: an int, the name of a dim without a size, or "" for an unknown one; None if the rank is unknown.
        dtype: as for `TensorInfo`.
    """

    name: str
    dims: tuple[int | str, ...] | None
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A weight that the module takes as an argument.

    Attributes:
        name: as in the model, or derived from it if the front end computed the value.
        value: its elements, row-major; read-only by convention.
    """

    name: str
    value: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A model in the torch dialect, undecomposed, with static shapes.

    Attributes:
        module: an ``ir.Module`` with one public ``func.func @main``: arguments are `inputs`, then `constants`; results
            are `outputs`. Operations have the source node's name as location.
        name: of the model.
        inputs: what the caller feeds.
        constants: weights, lifted out of the IR.
        outputs: what a run returns, in the model's order.
        opaque: name of a node that stays ONNX → why. A ``torch.operator "hipdnn.onnx"`` carries such nodes as a model;
            empty unless the model was loaded leniently.
        sources: name of every node of the ONNX model, those in bodies too → its operator.
        whole: name of a node → what it is a part of: a recurrence, written out, whose steps are too small for graphs of
            their own. The operations of all its parts are one graph.
        absorbed: name of a source node that left no operation → why: a batch norm went into its convolution, the front
            end computed the node or dropped it.
    """

    module: Any
    name: str
    inputs: tuple[TensorInfo, ...]
    constants: tuple[Constant, ...]
    outputs: tuple[TensorInfo, ...]
    opaque: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    whole: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    absorbed: Mapping[str, Absorbed] = field(default_factory=lambda: MappingProxyType({}))
