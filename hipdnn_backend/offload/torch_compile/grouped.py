"""Grouped products, as mixtures of experts have them: PyTorch's own, and those that Transformers has in their place.

hipDNN says where a group begins, PyTorch where it ends. The former has no name in ATen, so it is an operator of ours,
which PyTorch can run as well: `grouped_mm` and `grouped_mm_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.utils.flop_counter import register_flop_formula

__all__ = ["decompositions"]

_ATEN: Final = torch.ops.aten
_LIBRARY: Final = torch.library.Library("fusilli", "DEF")
_LIBRARY.define("grouped_mm(Tensor token, Tensor weight, Tensor first) -> Tensor")
_LIBRARY.define("grouped_mm_gradient(Tensor doutput, Tensor token, Tensor first) -> Tensor")


def _groups(first: Any, rows: int) -> Iterator[tuple[int, slice]]:
    starts = first.tolist()
    return enumerate(map(slice, starts, [*starts[1:], rows]))


def _product(token: Any, weight: Any, first: Any) -> Any:
    """[rows, K], [experts, K, N], the first row of each expert, int32 and ascending -> [rows, N]."""
    out = token.new_zeros((token.shape[0], weight.shape[2]))
    for expert, rows in _groups(first, token.shape[0]):
        out[rows] = token[rows] @ weight[expert]
    return out


def _gradient(doutput: Any, token: Any, first: Any) -> Any:
    """[rows, N], [rows, K] and as above -> [experts, K, N]."""
    parts = [token[rows].t() @ doutput[rows] for _, rows in _groups(first, token.shape[0])]
    return torch.stack(parts)


_LIBRARY.impl("grouped_mm", _product, "CompositeExplicitAutograd")
_LIBRARY.impl("grouped_mm_gradient", _gradient, "CompositeExplicitAutograd")


@torch.library.register_fake("fusilli::grouped_mm", lib=_LIBRARY)
def _product_of(token: Any, weight: Any, first: Any) -> Any:
    return token.new_empty((token.shape[0], weight.shape[2]))


@torch.library.register_fake("fusilli::grouped_mm_gradient", lib=_LIBRARY)
def _gradient_of(doutput: Any, token: Any, first: Any) -> Any:
    return token.new_empty((first.shape[0], token.shape[1], doutput.shape[1]))


@register_flop_formula(torch.ops.fusilli.grouped_mm)
def _flops(token: Any, weight: Any, first: Any, *_: Any, **__: Any) -> int:
    return 2 * token[0] * token[1] * weight[2]


@register_flop_formula(torch.ops.fusilli.grouped_mm_gradient)
def _gradient_flops(doutput: Any, token: Any, first: Any, *_: Any, **__: Any) -> int:
    return 2 * token[0] * token[1] * doutput[1]


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Operator → what it is made of; those of Transformers once that is imported."""
    table: dict[Any, Callable[..., Any]] = {_ATEN._grouped_mm.default: _grouped_mm}
    for name, (made, arguments) in _OF_TRANSFORMERS.items():
        packet = getattr(torch.ops.transformers, name, None)
        if packet is not None and [each.name for each in packet.default._schema.arguments] == arguments:
            table[packet.default] = made
    return table


def _grouped_mm(x: Any, y: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """x @ y in groups of rows of x, of the columns of y, or of what is summed over.

    Rows behind the last group's end have no meaning in PyTorch, but they are summed by no gradient.
    """
    if bias is not None or out_dtype not in (None, x.dtype):
        return NotImplemented
    if offs is None:
        return torch.bmm(x, y) if x.dim() == y.dim() == 3 else NotImplemented
    if x.dim() == 2 and y.dim() == 3:
        return torch.ops.fusilli.grouped_mm(x, y, _first(offs))
    if x.dim() == 3 and y.dim() == 2:
        return torch.ops.fusilli.grouped_mm(y.t(), x.transpose(1, 2), _first(offs)).t()
    if x.dim() == y.dim() == 2:
        return _sums(x.t(), y, offs)
    return NotImplemented


def _first(offs: Any) -> Any:
    """Where groups begin, of where they end."""
    return _ATEN.constant_pad_nd.default(offs[:-1].to(torch.int32), [1, 0], 0)


def _inside(x: Any, offs: Any) -> Any:
    """Rows behind the last group's end as zeros."""
    rows = torch.arange(x.shape[0], device=x.device, dtype=offs.dtype).unsqueeze(1)
    return torch.where(rows < offs[-1], x, x.new_zeros(()))


def _sums(token: Any, doutput: Any, offs: Any) -> Any:
    return torch.ops.fusilli.grouped_mm_gradient(_inside(doutput, offs), _inside(token, offs), _first(offs))


def _fallback(x: Any, weight: Any, offs: Any) -> Any:
    """Rows behind the last group's end are zeros."""
    return _inside(torch.ops.fusilli.grouped_mm(x, weight, _first(offs)), offs)


def _fallback_backward(x: Any, weight: Any, offs: Any, dy: Any) -> tuple[Any, Any]:
    return _fallback(dy, weight.transpose(1, 2), offs), _sums(x, dy, offs)


_OF_TRANSFORMERS: Final = {
    "grouped_mm_fallback": (_fallback, ["input", "weight", "offs"]),
    "grouped_mm_fallback_backward": (_fallback_backward, ["input", "weight", "offs", "grad_output"]),
}
"""Operator → what it is made of, and the arguments that this is true of."""
