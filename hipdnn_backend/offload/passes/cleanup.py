"""Upstream's passes, safe for ``hipdnn.graph`` regions.

``torch-onnx-to-torch`` runs where there is ONNX to convert; ``canonicalize`` and ``cse`` leave regions their constants.
"""

from __future__ import annotations

from typing import Any

from hipdnn_backend.offload.frontend.functions_ir import settle_scalars
from hipdnn_backend.offload.mlir import PassManager, rewrite
from hipdnn_backend.offload.passes.graph import functions
from hipdnn_backend.offload.passes.regions import erase_dead, graphs, isolate, operator_name

__all__ = ["canonicalize", "cse", "torch_onnx_to_torch"]


def torch_onnx_to_torch(module: Any) -> None:
    """Convert ``torch.operator "onnx.…"`` to ``torch.aten``; functions without such, which name no opset, stay."""
    for function in functions(module):
        ops = function.regions[0].blocks[0].operations
        if any(operator_name(view.operation).startswith("onnx.") for view in ops):
            _run(module, "func.func(convert-torch-onnx-to-torch)")
            return


def canonicalize(module: Any) -> None:
    """Upstream's pass; where there are regions without its sharing of constants, which would move them out."""
    settle_scalars(module.operation)
    regions = graphs(module)
    if not regions:
        _run(module, "canonicalize")
        return
    config = rewrite.GreedyRewriteConfig()
    config.enable_constant_cse = False
    patterns = rewrite.RewritePatternSet(module.context).freeze()
    rewrite.apply_patterns_and_fold_greedily(module, patterns, config)
    _keep_isolated(module)


def cse(module: Any) -> None:
    """Upstream's pass; constants of the function that came into regions by it are cloned again."""
    _run(module, "func.func(cse)")
    _keep_isolated(module)


def _run(module: Any, passes: str) -> None:
    PassManager.parse(f"builtin.module({passes})", context=module.context).run(module.operation)


def _keep_isolated(module: Any) -> None:
    for graph in graphs(module):
        isolate(graph)
    erase_dead(module)
