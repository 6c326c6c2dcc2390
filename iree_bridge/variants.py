"""Which of several right ways a graph is emitted and compiled on a target: decided here, without a compiler."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from graph_api import Graph, Node
from graph_api.ops.custom_op import CustomOpNode
from iree_bridge.target import Target

__all__ = ["Variant", "choose"]


class Variant(NamedTuple):
    """One way to emit and compile a graph.

    Attributes:
        name: stable name, part of the cache key.
        flags: compiler flags of this graph, in addition to the target's.
        global_flags: flags that are global to a compiler process; a worker process serves one set of them.
        spare_flags: in the place of ``flags`` if the compiler crashes with these; None: there is no second way.
    """

    name: str
    flags: tuple[str, ...] = ()
    global_flags: tuple[str, ...] = ()
    spare_flags: tuple[str, ...] | None = None


_UNBUFFERED: Final = ("--iree-rocdl-enable-buffer-instructions=false",)
_JOINED: Final = ("--iree-dispatch-creation-propagate-collapse-across-expands",)
_NO_TENSOR_CORES: Final = (
    "--iree-codegen-llvmgpu-use-tile-and-fuse-matmul=false",
    "--iree-codegen-llvmgpu-use-igemm=false",
)
_NO_VECTOR_DISTRIBUTION: Final = ("--iree-codegen-llvmgpu-use-vector-distribution=false",)
_VECTOR: Final = 4
_PRODUCTS: Final = {"matmul", "conv_fprop", "conv_dgrad", "conv_wgrad", "pointwise"}


def choose(graph: Graph, target: Target) -> Variant:
    """The variant of ``graph`` on ``target``.

    AMD: loads of ragged tiles go through buffer instructions, on whose lowering the compiler crashed for a product with
    rows of 7. Products and convolutions with such rows do without these instructions, but not batched products, which
    read a row behind their first operand then (an emulator of the code saw it). Reductions and norms keep them:
    without them the compiler aborts on some of odd size in f16 ("Cannot select"). Which graphs crash it either way is
    not known exactly (some small f32 convolutions do), so the other way is the spare of each.

    CUDA: the pipelines that use tensor cores made some float16 products and convolutions wrong on a real GPU
    (``docs/gpu_findings.md``). CUDA is for development here, so it does without; attention
    compiles with one of them only.

    CPU: a forward convolution ends in a view of its product, which keeps what follows from joining the product's kernel
    unless views are moved.
    """
    if target.backend == "llvm-cpu" and any(node.op == "conv_fprop" for node in graph.nodes):
        return Variant("joined", _JOINED)
    if target.backend == "llvm-cpu":
        return Variant("plain")
    if target.backend == "cuda":
        if any(_attends(node) for node in graph.nodes):
            return Variant("attention", _NO_TENSOR_CORES)
        return Variant("plain", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION)
    ragged = {node.op for node in graph.nodes} <= _PRODUCTS and _has_ragged_rows(graph)
    if ragged and not any(_is_batched(node) for node in graph.nodes):
        return Variant("ragged", _UNBUFFERED, spare_flags=())
    return Variant("plain", spare_flags=_UNBUFFERED)


def _attends(node: Node) -> bool:
    return node.op == "sdpa" or (isinstance(node, CustomOpNode) and "attention" in node.attributes.data)


def _is_batched(node: Node) -> bool:
    return node.op == "matmul" and any(math.prod(tensor.dims[:-2]) > 1 for tensor in node.outputs.values())


def _has_ragged_rows(graph: Graph) -> bool:
    """Whether a product of the graph writes rows, as they are stored, that vectors do not divide."""
    tensors = [tensor for node in graph.nodes if node.op != "pointwise" for tensor in node.outputs.values()]
    rows = [tensor.dims[tensor.physical.order[-1]] for tensor in tensors if tensor.dims]
    return any(row > 1 and row % _VECTOR for row in rows)
