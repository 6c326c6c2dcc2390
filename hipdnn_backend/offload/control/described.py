"""What a control operation is, as data: it is saved with the code of its bodies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name from here on
import numpy as np

__all__ = ["KINDS", "Control", "Port", "Unreadable", "from_document", "to_document"]

KINDS = frozenset({"If", "Loop", "Scan"})
"""Operators of ONNX's own that control what runs."""


class Unreadable(Exception):  # noqa: N818 - a decline, no error of the caller's
    """A node is none that is run here; the message says why."""


@dataclass(frozen=True)
class Port:
    """A tensor that a control operation takes or gives.

    Attributes:
        dims: extents.
        dtype: numpy's name of the element type.
        uid: in the variant pack, 0 if it is a constant.
        constant: number of the constant, -1 if it is none.
    """

    dims: tuple[int, ...]
    dtype: str
    uid: int = 0
    constant: int = -1

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return math.prod(self.dims) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Control:
    """A control operation.

    Attributes:
        kind: ``If``, ``Loop`` or ``Scan``.
        name: of the node.
        operands: of the node, None where an optional one is missing.
        results: of the node, None where nobody reads one.
        captured: of each body, what it reads of the graph around it; it comes after the body's own inputs.
        sequences: of a Scan, how many of the operands it takes a step of at a time.
        in_axes, out_axes: of a Scan, the axes along which its sequences and those that it makes are steps.
        in_backward, out_backward: of a Scan, which of these run backward.
    """

    kind: str
    name: str
    operands: tuple[Port | None, ...]
    results: tuple[Port | None, ...]
    captured: tuple[tuple[Port, ...], ...]
    sequences: int = 0
    in_axes: tuple[int, ...] = ()
    out_axes: tuple[int, ...] = ()
    in_backward: tuple[bool, ...] = ()
    out_backward: tuple[bool, ...] = ()


def to_document(control: Control) -> dict[str, Any]:
    """For JSON."""
    return {
        "kind": control.kind,
        "name": control.name,
        "operands": [_port(each) for each in control.operands],
        "results": [_port(each) for each in control.results],
        "captured": [[_port(each) for each in body] for body in control.captured],
        "sequences": control.sequences,
        "in_axes": list(control.in_axes),
        "out_axes": list(control.out_axes),
        "in_backward": list(control.in_backward),
        "out_backward": list(control.out_backward),
    }


def _port(port: Port | None) -> list[Any] | None:
    return None if port is None else [list(port.dims), port.dtype, port.uid, port.constant]


def from_document(document: Mapping[str, Any]) -> Control:
    """What `to_document` made.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    kind = document["kind"]
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no control operation")
    return Control(
        kind,
        str(document["name"]),
        tuple(_read(each) for each in document["operands"]),
        tuple(_read(each) for each in document["results"]),
        tuple(tuple(_read_one(each) for each in body) for body in document["captured"]),
        int(document["sequences"]),
        tuple(map(int, document["in_axes"])),
        tuple(map(int, document["out_axes"])),
        tuple(map(bool, document["in_backward"])),
        tuple(map(bool, document["out_backward"])),
    )


def _read(document: Any) -> Port | None:
    return None if document is None else _read_one(document)


def _read_one(document: Any) -> Port:
    dims, dtype, uid, constant = document
    np.dtype(dtype)
    if not all(isinstance(each, int) and each >= 0 for each in dims) or not isinstance(uid, int):
        raise ValueError(f"{document!r} is no tensor")
    return Port(tuple(dims), dtype, uid, int(constant))
