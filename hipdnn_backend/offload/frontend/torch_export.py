"""The PyTorch path: ``torch.export``, then torch-mlir's FX importer, operators kept whole."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.functions_ir import info_of
from hipdnn_backend.offload.frontend.imported import Constant, Imported
from hipdnn_backend.offload.frontend.torch_graph import TorchGraph, import_graph, load_torch_graph
from hipdnn_backend.offload.mlir import ir

__all__ = ["load_torch"]

_KNOWN_WRITES = {"aten.detach_.default"}
_RECURRENT = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}
_LOSSES = {
    f"aten.{name}.default"
    for name in (
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss_backward"),
        *("smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "binary_cross_entropy"),
        *("binary_cross_entropy_backward", "soft_margin_loss", "soft_margin_loss_backward", "multi_margin_loss"),
    )
}
_GRADIENTS = {
    f"aten.{name}_backward.default"
    for name in (
        *("embedding_dense", "glu", "hardsigmoid", "hardswish", "log_sigmoid", "logit", "mish"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "_prelu_kernel", "rrelu_with_noise"),
        *("slice", "select"),
    )
}
_INDEXED = {"aten._unsafe_masked_index.default", "aten._unsafe_masked_index_put_accumulate.default"}
"""What some of those gradients are made of."""

_DECOMPOSED = {
    *_RECURRENT,
    *_LOSSES,
    *_GRADIENTS,
    *_INDEXED,
    *("aten.index_add.default", "aten._prelu_kernel.default", "aten.log_sigmoid_forward.default"),
    *("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self"),
    *("aten.upsample_bilinear2d.vec", "aten.upsample_bicubic2d.vec", "aten.upsample_trilinear3d.vec"),
    *("aten.upsample_linear1d.vec", "aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.im2col.default"),
}
"""Operators that torch-mlir does not know or compile, and that PyTorch has a decomposition for."""


def load_torch(source: Any, example: Sequence[Any], context: Any) -> Imported:
    """A PyTorch module, exported in evaluation mode, a ``torch.export.ExportedProgram`` or a `TorchGraph`.

    Args:
        source: left as it is.
        example: positional arguments that a module is exported with; their shapes become static.
        context: of the module that is made.

    Raises:
        ModelError: PyTorch is missing, the export or an operator fails, shapes are dynamic, or buffers are written;
            ``source`` is nothing that a model can be loaded from.
    """
    try:
        import torch
    except ImportError as error:
        reason = f"cannot load a model from {type(source).__name__}; PyTorch is not installed"
        raise ModelError("", "source", reason) from error
    if isinstance(source, TorchGraph):
        return load_torch_graph(source, context)
    program = _functional(torch, _exported(torch, source, example))
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        raise ModelError(written[0], "torch-export", "the module writes to it; only functions of the inputs are run")
    states, order = _arguments(program)
    module, literals = import_graph(program.graph, order, _label, context)
    function = module.body.operations[0].operation
    constants = [*(Constant(name, _numpy(torch, value)) for name, value in states), *literals]
    arguments = list(function.regions[0].blocks[0].arguments)
    names = list(signature.user_inputs)
    inputs = tuple(info_of(value.type, name) for name, value in zip(names, arguments, strict=False))
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    return Imported(
        module=module,
        name=type(source).__name__,
        inputs=inputs,
        constants=tuple(constants),
        whole=_recurrences(program),
        outputs=tuple(info_of(type_, str(name)) for name, type_ in zip(signature.user_outputs, results, strict=True)),
    )


def _exported(torch: Any, source: Any, example: Sequence[Any]) -> Any:
    if isinstance(source, torch.export.ExportedProgram):
        return source
    if not isinstance(source, torch.nn.Module):
        raise ModelError(
            "",
            "source",
            f"cannot load a model from {type(source).__name__}; a path, bytes, ModelProto or torch module can",
        )
    if not isinstance(example, tuple | list):
        raise ModelError(
            type(source).__name__,
            "torch-export",
            f"example is a tuple of the arguments of forward, e.g. example=(x,); got {type(example).__name__}",
        )
    if not example:
        raise ModelError(type(source).__name__, "torch-export", "give example=(…): the inputs that fix its shapes")
    modes = [(module, module.training) for module in source.modules()]
    try:
        return torch.export.export(source.eval(), tuple(example))
    except Exception as error:  # what a model's own code raises while it is traced
        reason = f"torch.export failed: {str(error).strip().splitlines()[0] if str(error).strip() else type(error)}"
        raise ModelError(type(source).__name__, "torch-export", reason) from error
    finally:
        for module, training in modes:
            module.training = training


def _functional(torch: Any, program: Any) -> Any:
    """The program without operations that write to tensors of its own, and without those that torch-mlir lacks.

    PyTorch decomposes a batch norm on the way, so programs that have neither stay as they are.
    """
    aten = torch.ops.aten
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    writes = any(name.startswith("aten.") and name.split(".")[1].endswith("_") for name in names - _KNOWN_WRITES)
    lacking = [getattr(getattr(aten, name.split(".")[1]), name.split(".")[2]) for name in names & _DECOMPOSED]
    if not writes and not lacking and not any(_cuts(node) for node in program.graph.nodes):
        return program

    def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float) -> Any:
        return aten.native_batch_norm(x, weight, bias, mean, variance, False, momentum, epsilon)

    def pad(x: Any, amounts: Sequence[int], value: float = 0) -> Any:
        if min(amounts) >= 0:
            return NotImplemented
        for step, dim in enumerate(range(x.dim() - 1, x.dim() - 1 - len(amounts) // 2, -1)):
            before, after = (max(-amount, 0) for amount in amounts[2 * step : 2 * step + 2])
            x = aten.slice.Tensor(x, dim, before, x.shape[dim] - after)
        return aten.constant_pad_nd(x, [max(amount, 0) for amount in amounts], value)

    def grid_sampler(x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
        return aten.grid_sampler_2d(x, grid, mode, padding, align_corners)

    if aten.grid_sampler.default in lacking:
        lacking.append(aten.grid_sampler_2d.default)
    lacking += [getattr(aten, name.split(".")[1]).default for name in _INDEXED]
    try:
        from torch._decomp import get_decompositions

        table = {
            **get_decompositions(lacking),
            aten.grid_sampler.default: grid_sampler,
            aten.constant_pad_nd.default: pad,
            aten._native_batch_norm_legit_no_training.default: batch_norm,
            aten._unsafe_index.Tensor: aten.index.Tensor,
            aten.__and__.Tensor: aten.bitwise_and.Tensor,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 uses what it deprecates itself
            return program.run_decompositions(table)
    except Exception as error:
        raise ModelError("", "torch-export", f"PyTorch cannot decompose the graph: {error}") from error


def _cuts(node: Any) -> bool:
    """Whether it pads by less than nothing, as the gradient of a padding does; torch-mlir only grows tensors."""
    return str(node.target) == "aten.constant_pad_nd.default" and min(node.args[1]) < 0


def _label(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return f"{path}/{node.name}" if path else node.name


def _recurrences(program: Any) -> dict[str, str]:
    """Label of a node → the recurrence that it was a part of before that was decomposed."""
    found = {}
    for node in program.graph.nodes:
        sources = list(node.meta.get("from_node") or ())
        while sources:
            source = sources.pop()
            if str(source.target) in _RECURRENT:
                found[_label(node)] = source.name
            sources += source.from_node
    return found


def _arguments(program: Any) -> tuple[list[tuple[str, Any]], list[tuple[int, str]]]:
    """States as (name, tensor), and the order that puts the user's inputs before them; unused ones are left out."""
    signature = program.graph_signature
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    tables = (signature.inputs_to_parameters, signature.inputs_to_buffers)
    users = set(signature.user_inputs)
    order: list[tuple[int, str]] = []
    states: list[tuple[str, Any]] = []
    for i, node in enumerate(placeholders):
        if node.name in users:
            order.append((i, node.name))
    for i, node in enumerate(placeholders):
        if node.name in users or not node.users:
            continue
        path = next((table[node.name] for table in tables if node.name in table), None)
        if path is not None:
            value = program.state_dict.get(path, program.constants.get(path))
        else:
            path = signature.inputs_to_lifted_tensor_constants[node.name]
            value = program.constants[path]
        states.append((path, value))
        order.append((i, path))
    return states, order


def _numpy(torch: Any, tensor: Any) -> np.ndarray:
    value = tensor.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()
