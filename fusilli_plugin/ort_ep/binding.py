"""Values that inputs are expected to have: code is made for these, and each run is held against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusilli_ground.errors import OptionError
from fusilli_plugin.ort_ep.graphs import SessionGraph
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.binding import bind_inputs
from hipdnn_backend.offload.frontend.graph import OnnxGraph, TensorType

__all__ = ["values_of"]


def values_of(graph: SessionGraph, values: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The values of option ``inputs`` in the types of a model's inputs.

    Raises:
        OptionError: there is no such input, or it cannot have that value.
    """
    inputs = OnnxGraph(graph.name, {})
    for name in graph.inputs:
        value = graph.values[name]
        if value.dtype:
            dims = None if value.dims is None else tuple("" if dim is None else dim for dim in value.dims)
            inputs.inputs[name] = TensorType(value.dtype, dims)
    try:
        bind_inputs(inputs, values)
    except ModelError as error:
        raise OptionError(f"inputs: {error}") from error
    return dict(inputs.constants)
