"""What an engine gets of ONNX nodes that nothing else takes: a graph of one custom operation that carries them.

The operation's id is `ONNX_OP`, its data a serialized ``onnx.ModelProto``. Its inputs and outputs are the model's, in
order; one tensor may be several inputs. Tensors are packed in row-major order. A type that the wire lacks is written as
one of the same size: booleans as UINT8, 16-bit integers as HALF, larger unsigned integers as the signed ones.
"""

from __future__ import annotations

from typing import Final

from hipdnn_backend.wire import CustomOpAttributes, WireGraph

__all__ = ["CONTROL_ENGINE", "ONNX_OP", "OPERATOR", "RANDOM", "carries_onnx"]

ONNX_OP: Final = "onnx.model"
OPERATOR: Final = "hipdnn.onnx"
"""Name of the ``torch.operator`` that becomes such an operation."""
CONTROL_ENGINE: Final = "CONTROL_ENGINE"
"""Name of the engine that goes through If, Loop and Scan nodes and has their bodies compiled by the others."""
RANDOM: Final = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout"),
    }
)
"""ONNX operators that draw random numbers; Dropout in training only."""


def carries_onnx(graph: WireGraph) -> bool:
    """Whether a graph is such an operation."""
    table = graph.nodes[0].attributes if len(graph.nodes) == 1 else None
    return isinstance(table, CustomOpAttributes) and table.custom_op_id == ONNX_OP
