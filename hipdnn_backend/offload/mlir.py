"""The one import of torch-mlir's bindings, which have no types. What they offer is `Any` for the rest of the package.

Rules that every user of these bindings keeps: `Operation.__hash__` changes when operands change, so operations are
never keys (result `Value` objects are); operations met in a block or as an owner are `OpView` objects, `.operation`
is the operation itself; callbacks handed to MLIR are kept referenced.
"""

from __future__ import annotations

from typing import Any

from hipdnn_backend.offload.errors import MissingPackageError

try:
    import onnx as _onnx  # noqa: F401 - the importer of torch-mlir needs it
    from torch_mlir import ir as _ir
    from torch_mlir import passmanager as _passmanager
    from torch_mlir import rewrite as _rewrite
    from torch_mlir.dialects import torch as _torch_dialect
    from torch_mlir.extras import onnx_importer as _onnx_importer
except ModuleNotFoundError as error:
    raise MissingPackageError(error.name) from error

__all__ = ["PassManager", "fx", "fx_importer", "ir", "new_context", "onnx_importer", "rewrite", "torch_dialect"]

ir: Any = _ir
rewrite: Any = _rewrite
torch_dialect: Any = _torch_dialect
onnx_importer: Any = _onnx_importer
_passes: Any = _passmanager
PassManager: Any = _passes.PassManager


def fx() -> Any:
    """``torch_mlir.fx``, loaded when asked for: it imports PyTorch.

    Raises:
        ImportError: PyTorch is not installed.
    """
    from torch_mlir import fx as loaded

    return loaded


def fx_importer() -> Any:
    """``torch_mlir.extras.fx_importer``, loaded when asked for: it imports PyTorch.

    Raises:
        ImportError: PyTorch is not installed.
    """
    from torch_mlir.extras import fx_importer as loaded

    return loaded


def new_context() -> Any:
    """An `ir.Context` that knows all upstream dialects, torch and torch_c, and allows unregistered operations.

    ``register_dialect`` alone leaves torch_c out: with unregistered operations allowed, its casts would then be made
    as unregistered operations in silence. A pass that depends on the dialect loads it.
    """
    context = ir.Context()
    torch_dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        passes = "builtin.module(torch-func-backend-type-conversion)"
        PassManager.parse(passes).run(ir.Module.create().operation)
    return context
