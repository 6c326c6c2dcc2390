"""Which operators PyTorch takes apart while it traces: those that the front end does not know, and no others.

What engines take as one operation stays whole. Random operators stay whatever the front end knows: PyTorch draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from hipdnn_backend.offload.torch_compile.known import is_known, is_random

__all__ = ["decompositions"]

_ATEN: Final = torch.ops.aten
_WANTED: Final = (
    *(_ATEN.upsample_bilinear2d, _ATEN.upsample_bicubic2d, _ATEN.upsample_trilinear3d, _ATEN.upsample_linear1d),
    *(_ATEN.upsample_nearest1d_backward, _ATEN.upsample_nearest2d_backward, _ATEN.upsample_nearest3d_backward),
    *(
        _ATEN.grid_sampler_2d,
        _ATEN.im2col,
        _ATEN.col2im,
        _ATEN.native_group_norm_backward,
        _ATEN.native_dropout_backward,
    ),
)
"""Known to torch-mlir by name, but not compiled."""


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator → what it is made of, as AOTAutograd takes it."""
    offered = {**core_aten_decompositions(), **get_decompositions(list(_WANTED))}
    wanted = {overload for packet in _WANTED for overload in (getattr(packet, name) for name in packet.overloads())}
    table = {
        target: made
        for target, made in offered.items()
        if isinstance(target, torch._ops.OpOverload)
        and not is_random(target)
        and (target in wanted or not is_known(target))
    }
    table[_ATEN._native_batch_norm_legit_functional.default] = _batch_norm
    table[_ATEN._batch_norm_with_update_functional.default] = _batch_norm_with_reserve
    return table


def _batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """The norm, which is one operation, and the running statistics of the batch's."""
    if not training:
        made = _ATEN.native_batch_norm.default(x, weight, bias, running_mean, running_var, False, momentum, eps)
        return (*made, running_mean, running_var)
    y, mean, inverse = _ATEN.native_batch_norm.default(x, weight, bias, None, None, True, momentum, eps)
    # Of what the norm gives, so that nothing reads x again. Where the variance is far below eps it is off by a
    # rounding of eps, which is what the norm itself adds to it.
    count = x.numel() // x.shape[1]
    variance = torch.clamp_min(1.0 / (inverse * inverse) - eps, 0.0) * (count / max(count - 1, 1))
    mean_after = momentum * mean + (1.0 - momentum) * running_mean
    variance_after = momentum * variance + (1.0 - momentum) * running_var
    return y, mean, inverse, mean_after.to(running_mean.dtype), variance_after.to(running_var.dtype)


def _batch_norm_with_reserve(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    y, mean, inverse, mean_after, variance_after = _batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return y, mean, inverse, torch.empty(0, dtype=torch.uint8, device=x.device), mean_after, variance_after
