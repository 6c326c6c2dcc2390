"""The options of the backend: what ``torch.compile(model, backend="fusilli", options={...})`` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fusilli_ground.errors import OptionError
from fusilli_ground.spelling import did_you_mean
from hipdnn_backend.offload.buckets import OnNewShape, Sizes, check_sizes, parse_sizes
from hipdnn_backend.offload.session import Layout

__all__ = ["CompileOptions"]

_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`. They tune Inductor; here they change nothing."""
_MOST: Final = 1 << 20


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise ValueError(f"a number from 1 to {_MOST}")
    return value


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError('names of engines, e.g. "FUSILLI_ENGINE" or a list of them')
    return tuple(name.strip() for name in names)


def _layout(value: Any) -> Layout:
    try:
        return Layout(value)
    except ValueError:
        raise ValueError(" or ".join(Layout)) from None


def _shapes(value: Any) -> Sizes:
    if isinstance(value, str):
        return parse_sizes(value)
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(sizes, Iterable) and not isinstance(sizes, str)
        for name, sizes in value.items()
    ):
        raise ValueError('sizes by the dim of an argument, e.g. {"x.0": [1, 2, 4, 8]} or "x.0=1,2,4,8"')
    return check_sizes(value)


@dataclass(frozen=True)
class CompileOptions:
    """What a user may ask of the backend.

    Attributes:
        strict: raise `NotCompiledByEnginesError` if an operation runs in PyTorch that an engine should do: one that is
            neither random nor a copy, an operation on a single number or a write to an argument.
        engines: names of the engines that may be used, () for all.
        layout: of the tensors between graphs.
        min_nodes: fewer operations than these, where they stand alone, run in PyTorch.
        max_shapes: for how many different input shapes a graph with symbolic sizes is kept compiled.
        shapes: sizes of open dims of arguments, by ``argument.axis``, for which the first call compiles.
        on_new_shape: what a call does whose sizes have no code; in strict mode it waits where it would fall back.
    """

    strict: bool = field(default=False, metadata={"read": _flag})
    engines: tuple[str, ...] = field(default=(), metadata={"read": _names})
    layout: Layout = field(default=Layout.ROW_MAJOR, metadata={"read": _layout})
    min_nodes: int = field(default=1, metadata={"read": _count})
    max_shapes: int = field(default=32, metadata={"read": _count})
    shapes: Sizes = field(default_factory=dict, metadata={"read": _shapes})
    on_new_shape: OnNewShape = field(default=OnNewShape.FALLBACK, metadata={"read": OnNewShape.read})

    @classmethod
    def read(cls, options: Mapping[str, Any] | None, mode: str | None) -> CompileOptions:
        """What was given to ``torch.compile``.

        Raises:
            OptionError: an option or mode is unknown, or a value means nothing.
        """
        if mode is not None and mode not in _MODES:
            known = ", ".join(_MODES)
            raise OptionError(f"torch.compile has no mode {mode!r}{did_you_mean(mode, _MODES)}; its modes: {known}")
        readers = {item.name: item.metadata["read"] for item in dataclasses.fields(cls)}
        found: dict[str, Any] = {}
        for name, value in (options or {}).items():
            if name not in readers:
                known = ", ".join(sorted(readers))
                raise OptionError(
                    f"the backend 'fusilli' has no option {name!r}{did_you_mean(name, readers)}. Its options: {known}"
                )
            try:
                found[name] = readers[name](value)
            except OptionError:
                raise
            except ValueError as error:
                raise OptionError(f"option {name!r} of the backend 'fusilli' is {value!r}; it takes {error}") from None
        return cls(**found)
