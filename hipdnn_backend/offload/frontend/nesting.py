"""Counted limits of what is nested or expands, before code that recurses sees it: deep enough, it ends the process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import onnx

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import subgraphs

__all__ = ["MAX_DEPTH", "check_calls", "check_text"]

MAX_DEPTH: Final = 200
"""Levels of brackets in a text, and of functions that call each other. MLIR's parser survives some thousands."""
_MAX_TEXT: Final = 1 << 30  # characters
_MAX_NODES: Final = 1 << 18
"""Nodes that the functions of a model may expand to."""
_MAX_RUN: Final = 10_000
"""Operators of one affine expression, which MLIR builds a tree of."""
# Strings and comments hold no brackets that count; the end of an arrow is none.
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[][(){}<>]|[-+*,]')
_OPENING: Final = frozenset("([{<")
_CLOSING: Final = frozenset(")]}>")

_Name = tuple[str, str]


def check_text(text: str) -> None:
    """Refuse MLIR that is too long or too deep to be parsed.

    Raises:
        ModelError: it is.
    """
    if len(text) > _MAX_TEXT:
        raise ModelError("", "mlir-text", f"{len(text)} characters are more than {_MAX_TEXT}")
    depth = run = 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in _OPENING:
            depth, run = depth + 1, 0
        elif token in _CLOSING:
            depth, run = max(0, depth - 1), 0
        elif token == ",":
            run = 0
        elif len(token) == 1:
            run += 1
        if depth > MAX_DEPTH or run > _MAX_RUN:
            line = text.count("\n", 0, found.start()) + 1
            what = f"brackets nest more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else "an expression is too long"
            raise ModelError("", "mlir-text", f"line {line}: {what}")


def check_calls(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Name, onnx.FunctionProto]) -> None:
    """Refuse a model whose functions, which do not call themselves, expand to too much.

    Raises:
        ModelError: they call each other too deep, or make too many nodes.
    """
    sizes: dict[_Name, tuple[int, int]] = {}  # nodes and levels of a call
    for start in functions:
        waiting = [start]
        while waiting:
            name = waiting[-1]
            calls = _calls(functions[name].node, functions)
            missing = [each for each in calls if each in functions and each not in sizes]
            if missing and name not in sizes:
                waiting.extend(missing)
                continue
            waiting.pop()
            sizes[name] = _expanded(calls, sizes)
    count, depth = _expanded(_calls(nodes, functions), sizes)
    if count > _MAX_NODES or depth > MAX_DEPTH:
        what = f"{count} nodes; at most {_MAX_NODES}" if count > _MAX_NODES else f"{depth} levels; at most {MAX_DEPTH}"
        raise ModelError("", "functions", f"the model's functions expand to {what} are supported")


def _expanded(calls: Mapping[_Name, int], sizes: Mapping[_Name, tuple[int, int]]) -> tuple[int, int]:
    own = {name: sizes.get(name, (1, 0)) for name in calls}
    return sum(own[name][0] * count for name, count in calls.items()), 1 + max((d for _, d in own.values()), default=0)


def _calls(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Name, onnx.FunctionProto]) -> dict[_Name, int]:
    """How often operators are used by nodes and the bodies in them; those that are no functions as one."""
    counts: dict[_Name, int] = {}
    for node in nodes:
        name = (node.domain, node.op_type)
        name = name if name in functions else ("", "")
        counts[name] = counts.get(name, 0) + 1
        for body in subgraphs(node):
            for inner, count in _calls(body.node, functions).items():
                counts[inner] = counts.get(inner, 0) + count
    return counts
