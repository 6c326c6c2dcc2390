"""The torch-dialect text path: a ``.mlir`` file with one function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.conversion import clean, complaints, unconverted
from hipdnn_backend.offload.frontend.functions_ir import (
    drop_devices,
    info_of,
    lift_literals,
    location_name,
    make_entry,
    settle_empty,
)
from hipdnn_backend.offload.frontend.imported import Imported, TensorInfo
from hipdnn_backend.offload.frontend.nesting import check_text
from hipdnn_backend.offload.mlir import ir

__all__ = ["load_text", "parse"]

_DIALECTS = ("torch.", "func.", "builtin.")


def load_text(path: Path, context: Any) -> Imported:
    """The function of a ``.mlir`` file; it is renamed to ``main``, and weights in it become arguments.

    Args:
        path: of the file; operations in the ONNX form (``torch.operator "onnx.…"``) are converted.
        context: of the module.

    Raises:
        ModelError: not readable, not valid, other dialects, not exactly one public function, or shapes not static.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ModelError("", "model-file", f"cannot read {path}: {error}") from error
    module = parse(text, context)
    function = _only_function(module)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    make_entry(function)
    drop_devices(function)
    if any(True for _ in unconverted(module)):
        _convert(module)
    settle_empty(function)
    constants = lift_literals(function)
    arguments = list(function.regions[0].blocks[0].arguments)
    inputs = arguments[: len(arguments) - len(constants)]
    return Imported(
        module=module,
        name=name,
        inputs=tuple(info_of(value.type, _argument_name(value, i)) for i, value in enumerate(inputs)),
        constants=tuple(constants),
        outputs=_outputs(function),
    )


def parse(text: str, context: Any) -> Any:
    """A verified ``ir.Module`` of torch-dialect text.

    Raises:
        ModelError: the text is not valid, or holds another dialect's operations.
    """
    check_text(text)
    try:
        module = ir.Module.parse(text, context=context)
        module.operation.verify()
    except ir.MLIRError as error:
        raise ModelError("", "mlir-text", f"no valid MLIR: {' '.join(str(error).split())[:500]}") from error
    _check_dialects(module.operation)
    return module


def _check_dialects(parent: Any) -> None:
    for region in parent.regions:
        for block in region.blocks:
            for view in block.operations:
                op = view.operation
                if not op.name.startswith(_DIALECTS):
                    raise ModelError(str(op.location), "mlir-text", f"{op.name} is not of the torch dialect")
                _check_dialects(op)


def _only_function(module: Any) -> Any:
    functions = [view.operation for view in module.body.operations if view.operation.name == "func.func"]
    bodies = [function for function in functions if len(function.regions[0].blocks) == 1]
    if len(functions) != 1 or len(bodies) != 1 or len(list(module.body.operations)) != 1:
        reason = f"the module has {len(functions)} functions; it must be one func.func with a body of one block"
        raise ModelError("", "mlir-text", reason)
    return bodies[0]


def _convert(module: Any) -> None:
    try:
        clean(module)
    except ir.MLIRError as error:
        name, reason = next(iter(complaints(error)), ("", " ".join(str(error).split())[:500]))
        raise ModelError(name, "unsupported-operator", reason) from error
    for name, reason in unconverted(module):
        raise ModelError(name, "unsupported-operator", reason)


def _argument_name(value: Any, index: int) -> str:
    return (location_name(value.location) if hasattr(value, "location") else "") or f"arg{index}"


def _outputs(function: Any) -> tuple[TensorInfo, ...]:
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return tuple(info_of(result, f"result{i}") for i, result in enumerate(type_.results))
