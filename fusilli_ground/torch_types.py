"""The tensor types of the torch dialect as text: ``!torch.vtensor<[2,3],f32>``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["ValueTensor", "value_tensor_type"]

_TEXT: Final = re.compile(r"!torch\.vtensor<\[([\d?,\s]*)\],([a-zA-Z]\w*)>", re.ASCII)
_FLOAT: Final = re.compile(r"b?f\d+|f8E\w+", re.ASCII)


class ValueTensor(NamedTuple):
    """A tensor with value semantics and a known rank.

    Attributes:
        dims: logical order; None where only a run knows it.
        element: e.g. ``bf16``, ``si64``, ``ui8``, ``i1``.
    """

    dims: tuple[int | None, ...]
    element: str

    @property
    def is_static(self) -> bool:
        """Whether all dims are known."""
        return None not in self.dims

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers, those of 8 bits included."""
        return _FLOAT.fullmatch(self.element) is not None

    @property
    def is_unsigned(self) -> bool:
        """Whether the elements are unsigned integers."""
        return self.element.startswith("ui")

    @property
    def bits(self) -> int:
        """Bits of an element whose name ends with them, such as ``f16`` or ``ui8``."""
        return int(re.sub(r"\D", "", self.element))

    def of(self, element: str) -> str:
        """The text of the type with other elements."""
        dims = ",".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"!torch.vtensor<[{dims}],{element}>"


@lru_cache(maxsize=4096)
def value_tensor_type(text: str) -> ValueTensor | None:
    """What a type says; None if it is another one, or says not even the rank."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    dims = [dim.strip() for dim in match[1].split(",")] if match[1].strip() else []
    if any(dim != "?" and not dim.isdecimal() for dim in dims):
        return None
    return ValueTensor(tuple(None if dim == "?" else int(dim) for dim in dims), match[2])
